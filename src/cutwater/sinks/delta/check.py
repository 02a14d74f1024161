"""Why rows cannot go into a Delta table as it is: asked while planning, at a start, at a commit.

Nothing here writes. What is wrong with a table is said together with what a person can do.
"""

from collections.abc import Sequence

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.delta.data_files import DataFile, files_of
from cutwater.sinks.delta.merge_keys import Keys
from cutwater.sinks.delta.schema import added_columns, obstacle, spark_schema, table_schema
from cutwater.sinks.delta.slot_commits import FAILURES, words
from cutwater.sinks.delta.storage import LOG, TableRoot
from cutwater.sinks.delta.writing import Writing


def check_rows(writing: Writing, sink: SinkId, rows: StructType) -> str | None:
    """Say why no Delta table can hold rows that are written in this way; None if one can."""
    try:
        known = table_schema(rows, writing.partition_by, sink)
        if writing.keys:
            Keys.of(known, writing.keys, sink)
    except (ConfigError, SinkError) as error:
        return error.reason
    return None


def check_table(
    root: TableRoot, writing: Writing, sink: SinkId, rows: StructType | None
) -> str | None:
    """Say why rows cannot go into what is at a place; None if nothing is known against it.

    Args:
        root: The place; it may hold no table yet.
        writing: How the table is to be written.
        sink: The sink.
        rows: The columns of its rows, if they are known.

    Raises:
        SinkError: If the place cannot be looked at now.
    """
    try:
        known = None if rows is None else table_schema(rows, writing.partition_by, sink)
        if known is not None and writing.keys:
            Keys.of(known, writing.keys, sink)
        there = _entries(root)
        if LOG not in there:
            return foreign_files(root, there)
        table = DeltaTable(root.address, storage_options=root.options)
        why = table_obstacle(table, writing) or stuck_files(root, table, writing)
        if why is None and known is not None:
            added_columns(spark_schema(table), known, sink)
    except DeltaError as error:
        way_out = "put the table right with the program that wrote it, or name another one"
        return f"{root.address} cannot be read as a Delta table: {words(error)}; {way_out}"
    except (ConfigError, SinkError) as error:
        return error.reason
    except FAILURES as error:
        raise SinkError(sink, f"{root.address}: {words(error)}") from error
    return None if why is None else unwritable(root, writing, why)


def _entries(root: TableRoot) -> list[str]:
    try:
        return root.entries()
    except FileNotFoundError:
        return []


def foreign_files(root: TableRoot, there: Sequence[str]) -> str | None:
    """Say why a place without a table cannot become one; None if it can."""
    foreign = [one for one in there if one[0] not in "._"]
    if not foreign:
        return None
    return f"{root.address} holds {min(foreign)} and no Delta table; give a directory of its own"


def unwritable(root: TableRoot, writing: Writing, why: str) -> str:
    """Say that a table cannot be written, and why."""
    return f"{root.address} cannot be written with write={writing.write!r}: {why}"


def table_obstacle(table: DeltaTable, writing: Writing) -> str | None:
    """Say why a table cannot be written in this way; None if it can."""
    found, wanted = tuple(table.metadata().partition_columns), writing.partition_by
    if found != wanted:
        return f"it is partitioned by {list(found)}, not by {list(wanted)}"
    columns = [field.name for field in spark_schema(table)]
    missing = [name for name in writing.keys if name not in columns]
    if missing:
        return f"it has no column {missing[0]}, which keys names"
    return obstacle(table, writing.write)


def stuck_files(root: TableRoot, table: DeltaTable, writing: Writing) -> str | None:
    """Name a file of a table that this way to write could not take away; None if all could."""
    return None if writing.write == "append" else stuck(files_of(root, table, None))


def stuck(files: Sequence[DataFile]) -> str | None:
    """Name a file that cannot be taken away; None if all can."""
    found = next((one.logged for one in files if not one.can_be_removed), None)
    if found is None:
        return None
    reason = f"its log names {found} in a way that deltalake cannot take away"
    return f"{reason}; rewrite the table with the program that wrote it, such as by OPTIMIZE"
