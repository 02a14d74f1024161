"""Delta tables as targets: what a user names, what is checked before a run, and how one is opened.

The table is an ordinary Delta table that any Delta reader can read; Spark needs no Delta jar for
it. `delta.table` does the work. It and everything else that needs the package `deltalake` is
imported when a table is opened, so that a pipeline can be planned without that package.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from cutwater.config.delivery import AT_CHECKPOINTS, Delivery, delivery
from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext, share_disk
from cutwater.store.backends.directories import is_directory
from cutwater.store.backends.location import Location, file_path
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SESSION: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""How Spark must write Parquet so that every Delta reader sees the same values in it."""

_ACCEPTS: Final = {
    "append": frozenset({"append"}),
    "upsert": frozenset({"append", "update"}),
    "overwrite": frozenset({"complete"}),
}
"""The ways to write, each with the output modes that it makes sense for."""


def delta(
    uri: str,
    *,
    write: str = "append",
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    commit_every: str | None = None,
    visibility: str = "checkpoint",
) -> "DeltaTarget":
    """Write a step's rows to a Delta table, exactly once, at every checkpoint.

    The table is made at the first commit that has rows. A column that a later batch brings along
    is added; one whose type has changed is refused. Other programs may write to the table at the
    same time.

    Args:
        uri: The table's directory: a path, relative to the working directory or absolute, a
            `file:` address, or `s3://bucket/prefix` (with `?endpoint=` and `?region=` as for a
            store); credentials come from the environment and are never part of the address.
        write: How rows are combined with existing rows. `append` adds them. `upsert` replaces all
            rows with the same key, whichever program wrote them. `overwrite` takes the results of
            a step in complete mode: the table holds only the last result.
        keys: For an upsert, the columns that identify a row: strings, whole numbers,
            decimals, booleans, dates, timestamps or binary. A null equals a null. A batch has at
            most one row for each key.
        partition_by: Columns that partition the table; strings, whole numbers, booleans or dates.
            As in every Delta table, an empty string becomes null there.
        commit_every: A duration such as `1m`: the table gets a version at most this often, and
            checkpoints in between are for recovery only. All sinks of a pipeline commit together,
            at the longest interval that one of them requests. None for every checkpoint.
        visibility: `checkpoint`, or `batch` to see rows as soon as their batch is written, as a
            separate version. These rows may be revised: after a failure the table is rolled back
            to its last commit, unless another program has written to it since. The first commit
            creates the table.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    if write not in _ACCEPTS:
        ways = "'append', 'upsert' or 'overwrite'"
        raise ConfigError("write", f"{write!r} is not a way to write; write {ways}")
    for option, names in (("keys", keys), ("partition_by", partition_by)):
        if isinstance(names, str):
            raise ConfigError(option, f"{names!r} is one name; write a list of names")
        if len({name.lower() for name in names}) < len(names):
            raise ConfigError(option, f"{list(names)} names a column twice")
    if write == "upsert" and not keys:
        reason = "an upsert needs the columns that identify a row"
        raise ConfigError("keys", f"{reason}; write keys=['id'], or write='append'")
    if keys and write != "upsert":
        raise ConfigError("keys", f"write={write!r} has no keys; leave them out, or upsert")
    when = delivery(commit_every, visibility)
    if when.shows_batches and write != "append":
        reason = f"write={write!r} is seen at checkpoints only; rows can be shown early by append"
        raise ConfigError("visibility", f"{reason}. Leave it out, or write='append'")
    _place(uri)
    return DeltaTarget(uri, tuple(partition_by), write, tuple(keys), when)


@dataclass(frozen=True, slots=True)
class DeltaWriteMode:
    """How rows are combined with the existing rows of a table; `delta` explains each."""

    write: str = "append"
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A Delta table to write to; made by `delta`, fills `Sink`."""

    uri: str
    partition_by: tuple[str, ...] = ()
    write: str = "append"
    keys: tuple[str, ...] = ()
    delivery: Delivery = AT_CHECKPOINTS

    @property
    def format(self) -> str:
        return "delta"

    @property
    def accepts(self) -> frozenset[str]:
        return _ACCEPTS[self.write]

    def describe(self) -> str:
        """Name the table's directory as the user wrote it; an address with a secret is refused."""
        return self.uri

    def open(self, context: SinkContext) -> OpenSink:
        """Open the table for one generation; makes its directory, not the table.

        Refuses a session that writes Parquet in a form that Delta readers misread.
        """
        for key, needed in _SESSION.items() if context.spark else ():
            assert context.spark is not None
            found = str(context.spark.conf.get(key))
            if found.upper() != needed.upper():
                raise ConfigError(key, f"{found!r} makes files that Delta misreads; set {needed}")
        _need_deltalake()
        from cutwater.sinks.delta.early_batches import ShowingDeltaTable  # noqa: PLC0415 - extra
        from cutwater.sinks.delta.storage import LocalStaging, LocalStorage  # noqa: PLC0415 - extra
        from cutwater.sinks.delta.table import OpenDeltaTable  # noqa: PLC0415 - an extra

        opens = ShowingDeltaTable if self.delivery.shows_batches else OpenDeltaTable
        place = _place(self.uri)
        if isinstance(place, Path):
            place = place.absolute()
            staging = LocalStaging(place, context.pipeline, context.sink)
            return opens(LocalStorage(place), staging, self._writing, context)
        if not share_disk(context.spark):
            reason = f"{self.uri}: a table in a bucket needs executors on the driver's machine"
            raise ConfigError("uri", f"{reason} (local, local-cluster), for now")
        from cutwater.sinks.delta.storage_s3 import BucketStaging, BucketStorage  # noqa: PLC0415

        storage = BucketStorage(place)
        sent = BucketStaging(storage, context.pipeline, context.sink)
        return opens(storage, sent, self._writing, context)

    def check_target(self, sink: SinkId, rows: "StructType | None") -> str | None:
        """It creates nothing."""
        _need_deltalake()
        from cutwater.sinks.delta.schema import check_table  # noqa: PLC0415 - an extra
        from cutwater.sinks.delta.storage import LocalStorage  # noqa: PLC0415 - an extra

        place = _place(self.uri)
        if isinstance(place, Path):
            return check_table(LocalStorage(place.absolute()), self._writing, sink, rows)
        from cutwater.sinks.delta.storage_s3 import BucketStorage  # noqa: PLC0415 - an extra

        return check_table(BucketStorage(place), self._writing, sink, rows)

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:
        _need_deltalake()
        from cutwater.sinks.delta.schema import check_rows  # noqa: PLC0415 - an extra

        return check_rows(self._writing, sink, rows)

    def stored(self) -> StoredTarget:
        """Its real directory, with links resolved."""
        found = _place(self.uri)
        place = str(found.resolve()) if isinstance(found, Path) else self.uri
        options = {"partition_by": self.partition_by, "write": (self.write,), "keys": self.keys}
        options |= self.delivery.stored()
        return StoredTarget(self.format, place, options)

    @property
    def _writing(self) -> DeltaWriteMode:
        return DeltaWriteMode(self.write, self.keys, self.partition_by)


def reopen_delta(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a table that a store has recorded; create no directory. SinkError if it is gone."""
    place = _place(target.uri)
    if isinstance(place, Path) and not is_directory(place):
        raise SinkError(context.sink, f"there is no directory {target.uri} any more")
    partition_by, keys = (
        tuple(target.options.get(option, ())) for option in ("partition_by", "keys")
    )
    (write,) = target.options.get("write", ("append",))
    shown = Delivery(shows_batches=target.shows_batches)
    return DeltaTarget(target.uri, partition_by, write, keys, shown).open(context)


def _need_deltalake() -> None:
    try:
        import deltalake  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "deltalake":
            raise
        reason = "needs the package deltalake: pip install 'cutwater[delta]'"
        raise ConfigError("sinks.delta", reason) from error


def _place(uri: str) -> Path | Location:
    """Return the directory, or the place in a bucket, that an address names."""
    if uri.partition("://")[0] in {"s3", "s3a"}:
        found = Location.of(uri, "uri")
        if not found.path:
            raise ConfigError("uri", f"{uri} is a whole bucket; give a prefix in it")
        return found
    return _local_path(uri)


def _local_path(uri: str) -> Path:
    """Refuse a directory on another machine, and a name that deltalake cannot open."""
    path = file_path(uri, "uri")
    if path is None:
        scheme, separator, _ = uri.partition(":")
        if separator and scheme.isalnum():
            reason = f"{scheme}: is no place for a Delta table"
            raise ConfigError("uri", f"{reason}; give a path or s3://bucket/prefix")
        path = uri
    # deltalake decodes a path as if it were a part of an address.
    if not path or unquote(path) != path or "\\" in path:
        raise ConfigError("uri", f"{uri!r} cannot be the directory of a Delta table")
    return Path(path)
