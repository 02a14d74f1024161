"""Delta tables as targets: what a user names, and what is checked before anything runs.

The table is an ordinary Delta table that any Delta reader can read; Spark needs no Delta jar for
it. `delta_table` does the work and is imported when a table is opened, so that a pipeline can be
planned without the package `deltalake`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from cutwater.delivery import AT_CHECKPOINTS, Delivery, delivery
from cutwater.errors import ConfigError, SinkError
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.store.targets import StoredTarget

_SESSION: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""How Spark must write Parquet so that every Delta reader sees the same values in it."""


def delta(
    uri: str,
    *,
    write: str = "append",
    partition_by: Sequence[str] = (),
    commit_every: str | None = None,
    visibility: str = "checkpoint",
) -> "DeltaTarget":
    """Append a step's rows to a Delta table, exactly once, at every checkpoint.

    The table is made at the first commit that has rows. A column that a later batch brings along
    is added; one whose type has changed is refused. Other programs may write to the table at the
    same time.

    Args:
        uri: The table's directory: a path, relative to the working directory or absolute, or a
            `file:` address.
        write: How rows meet those that are there: `append`.
        partition_by: Columns whose values divide the table's files; strings, whole numbers,
            booleans or dates. As in every Delta table, an empty string becomes null there.
        commit_every: A duration such as `1m`: the table gets a version this often at most, and
            checkpoints between are for recovery alone. All sinks of a pipeline are committed
            together, as seldom as the most patient of them wants. None for every checkpoint.
        visibility: `checkpoint`, or `batch` to see rows as soon as their batch is written, as a
            version of its own; they may be revised: after a failure the table is taken back to
            its last commit, unless another program has written to it since. The table itself is
            made by the first commit.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    if write in {"upsert", "overwrite"}:
        raise ConfigError("write", f"{write!r} is not there yet; sinks.delta can append only")
    if write != "append":
        raise ConfigError("write", f"{write!r} is not a way to write; write 'append'")
    if isinstance(partition_by, str):
        raise ConfigError("partition_by", f"{partition_by!r} is one name; write a list of names")
    if len({name.lower() for name in partition_by}) < len(partition_by):
        raise ConfigError("partition_by", f"{list(partition_by)} names a column twice")
    _local_path(uri)
    return DeltaTarget(uri, tuple(partition_by), delivery(commit_every, visibility))


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A Delta table to append to; made by `delta`, fills `Sink`."""

    uri: str
    partition_by: tuple[str, ...] = ()
    delivery: Delivery = AT_CHECKPOINTS

    @property
    def format(self) -> str:
        """The kind of target."""
        return "delta"

    @property
    def accepts(self) -> frozenset[str]:
        """The output modes it takes: rows that are final."""
        return frozenset({"append"})

    def describe(self) -> str:
        """Name the table's directory as the user wrote it; a local path holds no secret."""
        return self.uri

    def open(self, context: SinkContext) -> OpenSink:
        """Open the table for one generation; makes its directory, not the table.

        Raises:
            ConfigError: If `deltalake` is not installed, the session writes Parquet in a form
                that Delta readers misread, or the table is one that we cannot append to.
            SinkError: If the table cannot be read now.
        """
        for key, needed in _SESSION.items() if context.spark else ():
            assert context.spark is not None
            found = str(context.spark.conf.get(key))
            if found.upper() != needed.upper():
                raise ConfigError(key, f"{found!r} makes files that Delta misreads; set {needed}")
        try:
            from cutwater.sinks.delta_batches import ShowingDeltaTable  # noqa: PLC0415 - an extra
            from cutwater.sinks.delta_table import OpenDeltaTable  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "deltalake":
                raise
            reason = "needs the package deltalake: pip install 'cutwater[delta]'"
            raise ConfigError("sinks.delta", reason) from error
        opens = ShowingDeltaTable if self.delivery.shows_batches else OpenDeltaTable
        return opens(_local_path(self.uri).absolute(), self.partition_by, context)

    def stored(self) -> StoredTarget:
        """Say how to find the table again: its real directory, whatever links lead to it."""
        place = str(_local_path(self.uri).resolve())
        options = {"partition_by": self.partition_by, **self.delivery.stored()}
        return StoredTarget(self.format, place, options)


def reopen_delta(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a table that a store remembers; makes no directory.

    Raises:
        ConfigError: As `DeltaTarget.open` does.
        SinkError: If its directory is gone, or the table cannot be read now.
    """
    if not Path(target.uri).is_dir():
        raise SinkError(context.sink, f"there is no directory {target.uri} any more")
    partition_by = tuple(target.options.get("partition_by", ()))
    shown = Delivery(shows_batches=target.shows_batches)
    return DeltaTarget(target.uri, partition_by, shown).open(context)


def _local_path(uri: str) -> Path:
    """Return the directory that a path or a `file:` address names.

    Raises:
        ConfigError: If it is on another machine, or a name that deltalake cannot open.
    """
    scheme, separator, _ = uri.partition(":")
    if separator and scheme.isalnum() and scheme.lower() != "file":
        reason = f"{scheme}: tables on this machine's file system only, for now"
        raise ConfigError("uri", f"{reason}; give a path")
    path = uri
    if separator and scheme.lower() == "file":
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"}:
            raise ConfigError("uri", f"a file: address has three slashes, not a host: {uri}")
        path = unquote(parts.path)
    # deltalake decodes a path as if it were a part of an address.
    if not path or unquote(path) != path or "\\" in path:
        raise ConfigError("uri", f"{uri!r} cannot be the directory of a Delta table")
    return Path(path)
