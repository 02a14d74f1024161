"""Which rows a Delta table can take: types and names of columns, and features of tables.

Everything that can be refused is refused while a batch is staged: after the decision it would block
every later commit. Columns are nullable at every level and carry no metadata, regardless of Spark's
schema, so that the nullability of one batch does not bind others.

`check_rows` and `check_table` inspect rows and a table while a pipeline is planned and at a start.
They write nothing, and return the problem together with what the user can do about it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.base import reason_of
from cutwater.sinks.columns import loose
from cutwater.sinks.delta.data_files import DataFile, files_of
from cutwater.sinks.delta.merge_keys import Keys
from cutwater.sinks.delta.storage import FAILURES, LOG, TableStorage
from cutwater.sinks.delta.target import DeltaWriteMode

_IN_PATHS: Final = (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)
_PLAIN: Final = (
    *_IN_PATHS,
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
)
_NO_NAME: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta does not allow in column names."""

_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
    }
)
"""Features that do not matter to an append, and those whose use `obstacle` looks for."""

_REFUSED_CHANGES: Final = {
    "delta.appendOnly": "so that no row may be replaced",
    "delta.enableChangeDataFeed": "and its readers would see changes that did not happen",
}
"""Settings of a table from which nothing may be taken away by exchanging files."""


def table_schema(rows: StructType, partition_by: Sequence[str], sink: SinkId) -> StructType:
    """Return the schema of a table that holds these rows."""
    for complaint in (*_complaints(rows, ""), *_partition_complaints(rows, partition_by)):
        raise ConfigError(f"sink {sink}", complaint)
    return loose(rows)


def added_columns(table: StructType, rows: StructType, sink: SinkId) -> list[StructField]:
    """Return the columns of the rows that the table lacks; refuse another type or spelling."""
    known = {field.name.lower(): field for field in loose(table)}
    new = []
    for field in rows:
        found = known.get(field.name.lower())
        if found is None:
            new.append(field)
        elif found.name != field.name:
            reason = f"column {field.name} is spelled {found.name} in the table"
            raise SinkError(sink, reason)
        elif found.dataType != field.dataType:
            types = f"{found.dataType.simpleString()} in the table and "
            types += f"{field.dataType.simpleString()} in the new rows"
            raise SinkError(sink, f"column {field.name} is {types}; give it another name")
    return new


def spark_schema(table: DeltaTable) -> StructType:
    """Return a table's schema in Spark's words, which are Delta's."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def obstacle(table: DeltaTable, write: str = "append") -> str | None:
    """Say why a table cannot be written in this way; None if it can."""
    protocol = table.protocol()
    named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    unknown = sorted(named - _FEATURES)
    if unknown:
        reason = f"it uses the table features {', '.join(unknown)}, which are not supported"
        drop = "drop them with the program that made it (ALTER TABLE … DROP FEATURE)"
        return f"{reason}; {drop}, or name another table"
    settings = table.metadata().configuration
    if settings.get("delta.columnMapping.mode", "none") != "none":
        return "it uses column mapping, which is not supported"
    for key, why in _REFUSED_CHANGES.items() if write != "append" else ():
        if settings.get(key, "false").lower() == "true":
            return f"{key} is true, {why}"
    checks = sorted(key for key in settings if key.startswith("delta.constraints."))
    if checks:
        return f"it has CHECK constraints ({', '.join(checks)}), which nothing would check"
    for field in spark_schema(table):
        said = field.json()
        if '"nullable":false' in said or '"delta.' in said:
            return f"it has a rule for column {field.name} (as NOT NULL), which nothing would check"
    return None


def _complaints(struct: StructType, above: str) -> Iterator[str]:
    """Say what no Delta table can hold, deepest columns included."""
    seen: dict[str, str] = {}
    if not struct.fields:
        yield f"column {above[:-1]} is a struct without fields" if above else "there is no column"
    for field in struct:
        path = above + field.name
        twin = seen.setdefault(field.name.lower(), field.name)
        if twin is not field.name:
            yield f"columns {above}{twin} and {path} differ in case at most; rename one"
        if not field.name or _NO_NAME.intersection(field.name):
            yield f"column {path!r} has a name that Delta does not allow; give it an alias"
        yield from _type_complaints(field.dataType, path)


def _type_complaints(kind: DataType, path: str) -> Iterator[str]:
    match kind:
        case StructType():
            yield from _complaints(kind, f"{path}.")
        case ArrayType():
            yield from _type_complaints(kind.elementType, f"{path}.element")
        case MapType():
            yield from _type_complaints(kind.keyType, f"{path}.key")
            yield from _type_complaints(kind.valueType, f"{path}.value")
        case _ if type(kind) not in _PLAIN:
            yield (
                f"column {path} has the type {kind.simpleString()}, which a Delta table cannot "
                f"hold; cast it or leave it out"
            )


def _partition_complaints(rows: StructType, partition_by: Sequence[str]) -> Iterator[str]:
    types = {field.name: field.dataType for field in rows}
    for name in partition_by:
        if name not in types:
            yield f"partition_by names {name}, and the columns are {', '.join(types)}"
        elif type(types[name]) not in _IN_PATHS:
            yield (
                f"partition_by names {name}, which is {types[name].simpleString()}; a table can "
                f"be divided by strings, whole numbers, booleans and dates"
            )
    if partition_by and set(types) <= set(partition_by):
        yield "partition_by names all columns; at least one must be left"


def check_rows(writing: DeltaWriteMode, sink: SinkId, rows: StructType) -> str | None:
    """Say why no Delta table can hold rows that are written in this way; None if one can."""
    try:
        known = table_schema(rows, writing.partition_by, sink)
        if writing.keys:
            Keys.of(known, writing.keys, sink)
    except (ConfigError, SinkError) as error:
        return error.reason
    return None


def check_table(
    storage: TableStorage, writing: DeltaWriteMode, sink: SinkId, rows: StructType | None
) -> str | None:
    """Say why rows cannot go into what is at a place; None if nothing is known against it.

    The place may hold no table yet. `rows` is None if its columns are not known.
    """
    try:
        known = None if rows is None else table_schema(rows, writing.partition_by, sink)
        if known is not None and writing.keys:
            Keys.of(known, writing.keys, sink)
        there = _entries(storage)
        if LOG not in there:
            return foreign_files(storage, there)
        table = DeltaTable(storage.address, storage_options=storage.options)
        why = table_obstacle(table, writing) or stuck_files(storage, table, writing)
        if why is None and known is not None:
            added_columns(spark_schema(table), known, sink)
    except DeltaError as error:
        way_out = "put the table right with the program that wrote it, or name another one"
        return f"{storage.address} cannot be read as a Delta table: {reason_of(error)}; {way_out}"
    except (ConfigError, SinkError) as error:
        return error.reason
    except FAILURES as error:
        raise SinkError(sink, f"{storage.address}: {reason_of(error)}") from error
    return None if why is None else unwritable(storage, writing, why)


def _entries(storage: TableStorage) -> list[str]:
    try:
        return storage.entries()
    except FileNotFoundError:
        return []


def foreign_files(storage: TableStorage, there: Sequence[str]) -> str | None:
    """Say why a place without a table cannot become one; None if it can."""
    foreign = [file for file in there if file[0] not in "._"]
    if not foreign:
        return None
    return f"{storage.address} holds {min(foreign)} and no Delta table; give a directory of its own"


def unwritable(storage: TableStorage, writing: DeltaWriteMode, why: str) -> str:
    """Say that a table cannot be written, and why."""
    return f"{storage.address} cannot be written with write={writing.write!r}: {why}"


def table_obstacle(table: DeltaTable, writing: DeltaWriteMode) -> str | None:
    """Say why a table cannot be written in this way; None if it can."""
    found, wanted = tuple(table.metadata().partition_columns), writing.partition_by
    if found != wanted:
        return f"it is partitioned by {list(found)}, not by {list(wanted)}"
    columns = [field.name for field in spark_schema(table)]
    missing = [name for name in writing.keys if name not in columns]
    if missing:
        return f"it has no column {missing[0]}, which keys names"
    return obstacle(table, writing.write)


def stuck_files(storage: TableStorage, table: DeltaTable, writing: DeltaWriteMode) -> str | None:
    """Name a file of a table that this way to write could not take away; None if all could."""
    return None if writing.write == "append" else stuck(files_of(storage, table, None))


def stuck(files: Sequence[DataFile]) -> str | None:
    """Name a file that cannot be taken away; None if all can."""
    found = next((file.logged for file in files if not file.can_be_removed), None)
    if found is None:
        return None
    reason = f"its log names {found} in a way that deltalake cannot take away"
    return f"{reason}; rewrite the table with the program that wrote it, such as by OPTIMIZE"
