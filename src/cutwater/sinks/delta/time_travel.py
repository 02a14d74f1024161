"""A Delta table's past: whether it can go back to a version, and what the rows of a version were.

A table can go back to a version while the version's log and files are there and no other program
has changed the table since: what another program wrote would be lost. Versions that change no rows,
as those of OPTIMIZE and VACUUM, do not matter.

`read_delta` reads a version with Spark and without its Delta jar. deltalake says which files the
version consists of and which values their partitions have; Spark reads them as the Parquet files
they are. A column that a file was written without is null there. deltalake is imported only when a
table is opened.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow
from pyspark.sql import Column
from pyspark.sql.functions import (
    assert_true,
    broadcast,
    col,
    lit,
    regexp_replace,
    url_decode,
    when,
)
from pyspark.sql.types import StringType, StructField, StructType

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.protocol.cut import Version
from cutwater.sinks.base import STRICT_READING, RestorePreview
from cutwater.sinks.columns import loose
from cutwater.sinks.files.manifests import literal
from cutwater.store.backends.directories import exists
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from cutwater.sinks.delta.storage import TableStorage
    from cutwater.sinks.delta.transaction_log import DeltaLog

NO_TABLE: Final[Version] = "none"
"""The version of a table that does not exist yet."""

_FILE: Final = "__cutwater_file"
_KNOWN: Final = "__cutwater_known"


def no_table(storage: "TableStorage", version: Version | None) -> RestorePreview:
    """Return what a restore does if there is no table: nothing, or it is impossible."""
    if version is None:
        return RestorePreview(NO_TABLE, 0, 0)
    reason = (
        f"there is no table in {storage.address} any more that could go back to version {version}"
    )
    return RestorePreview(NO_TABLE, 0, obstacle=reason)


def look_back(
    storage: "TableStorage", log: "DeltaLog", table: "DeltaTable", target: int
) -> RestorePreview:
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    now = table.version()
    rows = _rows(table)
    if target > now:
        never = f"is at version {now} and never was at {target}"
        reason = f"{storage.address} {never}: it has been recreated"
        return RestorePreview(str(now), rows, obstacle=reason)
    foreign = foreign_commit(log, target, now)
    if foreign is not None:
        return RestorePreview(str(now), rows, obstacle=foreign)
    try:
        then = DeltaTable(storage.address, version=target, storage_options=storage.options)
        rows_then, missing = _rows(then), _missing_file(storage, then)
    except DeltaError as error:
        reason = f"version {target} of {storage.address} cannot be read any more: {error}".rstrip(
            "."
        )
        return RestorePreview(str(now), rows, obstacle=reason)
    if missing is not None:
        reason = f"{missing} of version {target} is gone from {storage.address}, perhaps by VACUUM"
        return RestorePreview(str(now), rows, rows_then, reason)
    return RestorePreview(str(now), rows, rows_then)


def foreign_commit(log: "DeltaLog", target: int, now: int) -> str | None:
    """Name a change after a version that another program has made; None if there is none.

    If the log does not reach back far enough, the answer is unknown, which counts as a change.
    """
    for version in range(target + 1, now + 1):
        try:
            actions = log.foreign_actions(version)
        except FileNotFoundError:
            return f"the table's log no longer has version {version}, so its writer is unknown"
        if any(_changes_rows(action) for action in actions):
            return f"version {version} was written by another writer ({_describe_commit(actions)})"
    return None


def _changes_rows(action: Mapping[str, Any]) -> bool:
    for kind in ("add", "remove", "cdc"):
        if kind in action:
            return bool(action[kind].get("dataChange", True))
    return "metaData" in action or "protocol" in action


def _describe_commit(actions: list[Mapping[str, Any]]) -> str:
    found = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info: Mapping[str, Any] = next(found, {})
    operation = str(info.get("operation", "unknown operation"))
    if "timestamp" not in info:
        return operation
    at = datetime.fromtimestamp(info["timestamp"] / 1000, tz=UTC)
    return f"{operation} at {at:%Y-%m-%d %H:%M:%S} UTC"


def _rows(table: "DeltaTable") -> int | None:
    """Count a version's rows by its files' statistics; None if a file has none."""
    counts = _files(table, "num_records")
    return None if any(count is None for count in counts) else sum(counts)


def _missing_file(storage: "TableStorage", table: "DeltaTable") -> str | None:
    names = (unquote(str(path)) for path in _files(table, "path"))
    return next((name for name in names if storage.facts(name) is None), None)


def _files(table: "DeltaTable", column: str) -> list[Any]:
    actions = pyarrow.table(table.get_add_actions(flatten=True))
    if column not in actions.column_names:
        return [None] * actions.num_rows
    return list(actions.column(column).to_pylist())


def read_delta(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Return the rows of a version.

    SinkError if there was no table yet, its log or files are gone, or it has a feature that a
    reader of plain Parquet files would get wrong.
    """
    if version == NO_TABLE:
        raise SinkError(sink, f"there was no table in {target.uri} yet: it had no columns then")
    if "://" in target.uri:
        reason = f"{target.uri} is in an object store, which this reader does not know yet"
        raise SinkError(sink, f"{reason}; read version {version} with a reader of Delta tables")
    table, schema, files = _read_version(target, int(version), sink)
    root = Path(target.uri)
    missing = next((file for file in files if not exists(root / file)), None)
    if missing is not None:
        reason = f"{missing} of version {version} is gone from {root}, perhaps by VACUUM"
        raise SinkError(sink, reason)
    if not files:
        return spark.createDataFrame([], schema)
    names = table.metadata().partition_columns
    data = StructType([field for field in schema if field.name not in names])
    reader = spark.read.options(**STRICT_READING).schema(data)
    frame = reader.parquet(*(literal(root / file) for file in files))
    if names:
        frame = _with_partitions(frame, schema, names, {root / k: v for k, v in files.items()})
    return frame.select(*(_quote(name) for name in schema.names))


def _read_version(
    target: StoredTarget, version: int, sink: SinkId
) -> tuple["DeltaTable", StructType, Mapping[str, Mapping[str, Any]]]:
    """Return a version's table, its columns, and its files with the values of their partitions."""
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    from cutwater.sinks.delta.schema import spark_schema  # noqa: PLC0415 - needs deltalake

    try:
        table = DeltaTable(target.uri, version=version)
        actions = pyarrow.table(table.get_add_actions(flatten=True))
        schema = loose(spark_schema(table))
        features = set(table.protocol().reader_features or ())
        settings = table.metadata().configuration
    except (DeltaError, OSError) as error:
        reason = f"version {version} of {target.uri} cannot be read: {error}"
        raise SinkError(sink, reason.rstrip(".")) from error
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    odd = sorted(features - {"timestampNtz", "columnMapping"}) + ["columnMapping"] * mapped
    if odd:
        reason = f"{target.uri} uses {', '.join(odd)}, which plain Parquet files do not contain"
        raise SinkError(sink, reason)
    partitions = table.metadata().partition_columns
    files = {}
    for row in actions.to_pylist():
        values = {name: row[f"partition.{name}"] for name in partitions}
        files[unquote(str(row["path"]))] = values
    return table, schema, files


def _with_partitions(
    frame: "DataFrame",
    schema: StructType,
    names: list[str],
    files: Mapping[Path, Mapping[str, Any]],
) -> "DataFrame":
    """Add the columns that are in the log and not in the files, by the file that a row is in."""
    fields = [schema[name] for name in names]
    columns = StructType([StructField(_FILE, StringType()), *fields])
    rows = [(str(path), *(values[name] for name in names)) for path, values in files.items()]
    values = frame.sparkSession.createDataFrame(rows, columns)
    values = values.withColumn(_KNOWN, lit(1))
    named = frame.withColumn(_FILE, _plain(col("_metadata.file_path")))
    joined = named.join(broadcast(values), _FILE, "left")
    # A row whose file is not in the list is an error, and never gets a null instead.
    unknown = assert_true(col(_KNOWN).isNotNull(), lit("a file of the table was not recognised"))
    for name in names:
        joined = joined.withColumn(name, when(unknown.isNull(), col(_quote(name))))
    return joined


def _plain(address: Column) -> Column:
    """Return the path in an address as Spark gives it: percent-encoded, with slashes to spare."""
    path = regexp_replace(address, "^file:/+", "/")
    return url_decode(regexp_replace(path, "[+]", "%2B"))


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
