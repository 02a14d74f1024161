"""Tables of the user's own Spark catalog as targets, if their files may be written directly.

A commit must make rows and its slot visible in one step. Spark's own write path into a catalog has
no such step: a table of files gets its files one by one, and no catalog interface accepts a key
that every writer would honour. So the catalog supplies the location and format of a table, rows are
written there as `sinks.files` writes them, and new partitions are registered with the catalog. A
table of any other kind is refused, with what to use instead (docs/reference/sinks.md).
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import (
    KeepsPast,
    KnowsNewest,
    KnowsSlots,
    OpenSink,
    RestorePreview,
    Rows,
    SinkContext,
)
from cutwater.sinks.files.target import FilesOptions, FilesTarget, directory_of
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FORMATS: Final = ("parquet", "json")
"""The formats that a table's own reader reads correctly with our write options."""


def table(name: str) -> "TableTarget":
    """Append a step's rows to a table of the session's catalog, exactly once.

    The table must exist when the pipeline starts, be one of Parquet or JSON files in Spark's own
    session catalog (in memory, Hive's, or one that replaces it), and be empty or written by
    this sink alone. Its partitioning is its own; new partitions are registered with the catalog at
    each commit.

    Args:
        name: The table, as SQL names it: `events`, `shop.events` or `spark_catalog.shop.events`.

    Raises:
        ConfigError: If it is not a name.
    """
    if not name.strip():
        raise ConfigError("name", "an empty name is no table")
    return TableTarget(name)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table of the user's catalog; made by `table`, fills `Sink`."""

    name: str

    @property
    def format(self) -> str:
        return "table"

    @property
    def accepts(self) -> frozenset[str]:
        """Rows that are final."""
        return frozenset({"append"})

    @property
    def write(self) -> str:
        return "append"

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return self.name

    def open(self, context: SinkContext) -> OpenSink:
        """Refuse a table that is not there, or that rows cannot be committed to."""
        if context.spark is None:
            reason = "only a session knows the catalog; use `cutwater run FILE --from`"
            raise ConfigError(self.name, reason)
        files = files_of(context.spark, self.name)
        return OpenTable(self.name, files, context.spark, context)

    def stored(self) -> StoredTarget:
        """Its name, since only a session knows more."""
        return StoredTarget(self.format, self.name)


def files_of(spark: "SparkSession", name: str) -> FilesTarget:
    """Look up a table in the catalog, and return its directory as a target."""
    found = _describe(spark, name)
    catalog, provider = str(found.get("catalog_name")), str(found.get("provider", "")).lower()
    if catalog != "spark_catalog":
        reason = f"catalog {catalog} has no commit that takes a key along"
        raise ConfigError("name", f"{name}: {reason}; use a sink of its format")
    if found.get("type") not in {"MANAGED", "EXTERNAL"}:
        raise ConfigError("name", f"{name} is a {found.get('type')}, not a table")
    if provider not in _FORMATS:
        instead = "sinks.delta" if provider == "delta" else "sinks.files, or a table of Parquet"
        reason = f"{name} is a table of {provider or 'an unknown format'}, which has no such commit"
        raise ConfigError("name", f"{reason}; use {instead}")
    settings = {str(key): str(value) for key, value in found.get("storage_properties", {}).items()}
    odd = sorted(key for key in settings if key.lower() not in {"compression", "path"})
    if odd:
        raise ConfigError("name", f"{name} has the option {odd[0]}, which its files would lack")
    location = str(found.get("location", ""))
    directory = directory_of(location)
    kept = {key: value for key, value in settings.items() if key.lower() == "compression"}
    columns = tuple(found.get("partition_columns") or ())
    return FilesTarget(str(directory), provider, FilesOptions(partition_by=columns, writer=kept))


def _describe(spark: "SparkSession", name: str) -> dict[str, Any]:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - planning needs no Spark

    try:
        (row,) = spark.sql(f"DESCRIBE TABLE EXTENDED {name} AS JSON").collect()
    except PySparkException as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError("name", f"the catalog cannot describe {name}: {reason}") from error
    found = json.loads(row[0])
    assert isinstance(found, dict)
    return found


class OpenTable:
    """A table in use by one generation: its directory, and its partitions in the catalog.

    Every method raises what `OpenFiles` raises.
    """

    def __init__(
        self, name: str, files: FilesTarget, spark: "SparkSession", context: SinkContext
    ) -> None:
        self._name = name
        self._spark = spark
        self._sink = context.sink
        self._partitioned = bool(files.options.partition_by)
        self._files = files.open(context)
        self._told: set[str] = set()

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        return self._files.stage(rows, generation, batch)

    def problem(self, committable: Committable) -> str | None:
        return self._files.problem(committable)

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Make rows visible, then register partitions that the catalog may not know."""
        version = self._files.commit(permit, committables)
        self._tell({part for committable in committables for part in _partitions(committable)})
        return version

    def look_back(self, version: Version | None) -> RestorePreview:
        return self._files.look_back(version)

    def slot_at(self, version: Version) -> Slot | None:
        assert isinstance(self._files, KnowsSlots)
        return self._files.slot_at(version)

    def newest(self) -> Found:
        assert isinstance(self._files, KnowsNewest)
        return self._files.newest()

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        restored = self._files.restore(permit, version)
        self._told.clear()
        self._tell({""})
        return restored

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        self._files.discard(generation, keep)

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        if isinstance(self._files, KeepsPast):
            self._files.retain(generation, shown, keep)

    def _tell(self, partitions: set[str]) -> None:
        """Let the catalog search for partitions, if there may be new ones, and forget old listings.

        If the catalog refuses, the rows are committed nevertheless, and the call is repeated.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - planning needs no Spark

        try:
            if self._partitioned and not partitions <= self._told:
                self._spark.sql(f"MSCK REPAIR TABLE {self._name}")
                self._told |= partitions
            if partitions:
                self._spark.sql(f"REFRESH TABLE {self._name}")
        except PySparkException as error:
            reason = " ".join(str(error).split())[:300].rstrip(".")
            raise SinkError(self._sink, f"the catalog was not updated: {reason}") from error


def _partitions(committable: Committable) -> set[str]:
    """Return the directories of the partitions that a batch has rows in."""
    names = (blob.name.rpartition("/")[0] for blob in committable.blobs[1:])
    return {"/".join(part for part in name.split("/") if "=" in part) for name in names}


def read_table(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Return the rows of a version of a table that the session's catalog knows."""
    from cutwater.sinks.files.manifests import read_files  # noqa: PLC0415 - needs Spark

    try:
        files = files_of(spark, target.uri)
    except ConfigError as error:
        raise SinkError(sink, error.reason) from error
    return read_files(spark, files.stored(), version, sink)
