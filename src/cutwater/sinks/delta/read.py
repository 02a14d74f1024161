"""Reading a Delta table as it was at a version, with Spark and without its Delta jar.

deltalake says which files a version consists of and which values their partitions have; Spark reads
them as the Parquet files they are. A column that a file was written without is null there.
"""

from collections.abc import Mapping
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
from cutwater.sinks.columns import loose
from cutwater.sinks.files.read import literal
from cutwater.sinks.rows import STRICT_READING
from cutwater.store.backends.directories import exists
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_NO_TABLE: Final = "none"
_FILE: Final = "__cutwater_file"
_KNOWN: Final = "__cutwater_known"


def read_delta(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Return the rows of a version.

    Raises:
        SinkError: If there was no table yet, its log or files are gone, or it has a feature that
            a reader of plain Parquet files would get wrong.
    """
    if version == _NO_TABLE:
        raise SinkError(sink, f"there was no table in {target.uri} yet: it had no columns then")
    if "://" in target.uri:
        reason = f"{target.uri} is in an object store, which this reader does not know yet"
        raise SinkError(sink, f"{reason}; read version {version} with a reader of Delta tables")
    table, schema, files = _looked_at(target, int(version), sink)
    root = Path(target.uri)
    missing = next((one for one in files if not exists(root / one)), None)
    if missing is not None:
        reason = f"{missing} of version {version} is gone from {root}, perhaps by VACUUM"
        raise SinkError(sink, reason)
    if not files:
        return spark.createDataFrame([], schema)
    names = table.metadata().partition_columns
    data = StructType([field for field in schema if field.name not in names])
    reader = spark.read.options(**STRICT_READING).schema(data)
    frame = reader.parquet(*(literal(root / one) for one in files))
    if names:
        frame = _with_partitions(frame, schema, names, {root / k: v for k, v in files.items()})
    return frame.select(*(_quoted(name) for name in schema.names))


def _looked_at(
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
        reason = f"{target.uri} uses {', '.join(odd)}, which plain Parquet files do not tell"
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
    # Never null by mistake: a row whose file is not in the list is an error.
    unknown = assert_true(col(_KNOWN).isNotNull(), lit("a file of the table was not recognised"))
    for name in names:
        joined = joined.withColumn(name, when(unknown.isNull(), col(_quoted(name))))
    return joined


def _plain(address: Column) -> Column:
    """Return the path in an address as Spark gives it: percent-encoded, with slashes to spare."""
    path = regexp_replace(address, "^file:/+", "/")
    return url_decode(regexp_replace(path, "[+]", "%2B"))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
