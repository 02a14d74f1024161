"""The columns of a table, from its declaration and the flows that write to it.

The rules are those of `spark-pipelines`: several flows together give all columns, declared columns
must be those of the flows, and the catalog puts the columns of partitions last.
"""

from collections import Counter
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from cutwater.declarative.definitions import DatasetDefinition
from cutwater.planning.graph import join_names
from cutwater.sinks.columns import nullable


class ColumnsRefused(Exception):
    """The columns of a table cannot be; the end of a sentence that begins with the table."""


def table_columns(definition: DatasetDefinition, flows: Sequence[StructType]) -> StructType:
    """Return the columns of a table in the catalog's order.

    Raises:
        ColumnsRefused: If the flows do not fit each other, the declared columns or the partitions.
    """
    columns: dict[str, StructField] = {}
    for flow in map(nullable, flows):
        names = Counter(name.lower() for name in flow.names)
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            reason = f"gets {names[repeated[0]]} columns called {repeated[0]} from one flow"
            raise ColumnsRefused(f"{reason}; give each a name of its own, with AS")
        for column in flow.fields:
            known = columns.setdefault(column.name, column)
            if known.dataType != column.dataType:
                types = f"{known.dataType.simpleString()} and {column.dataType.simpleString()}"
                raise ColumnsRefused(f"gets column {column.name} as {types}; cast one of them")
    declared = _declared(definition)
    if declared is not None:
        columns = _in_declared_order(columns, declared)
    missing = [name for name in definition.partition_columns if name not in columns]
    if missing:
        known_names = join_names(columns)
        raise ColumnsRefused(
            f"has no column {join_names(missing)} to partition by, but has {known_names}"
        )
    last = [columns[name] for name in definition.partition_columns]
    first = [column for column in columns.values() if column not in last]
    return StructType([*first, *last])


def _declared(definition: DatasetDefinition) -> StructType | None:
    if not isinstance(definition.columns, str):
        return None if definition.columns is None else nullable(definition.columns)
    try:
        parsed = StructType.fromDDL(definition.columns)
    except PySparkException as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        raise ColumnsRefused(f"has a schema that Spark cannot parse: {reason}") from error
    assert isinstance(parsed, StructType)
    return nullable(parsed)


def _in_declared_order(
    columns: dict[str, StructField], declared: StructType
) -> dict[str, StructField]:
    given = {name: column.dataType for name, column in columns.items()}
    wanted = {column.name: column.dataType for column in declared.fields}
    if given != wanted:
        differing = sorted(
            name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name)
        )
        raise ColumnsRefused(
            f"declares other columns than its flows give: {join_names(differing)}; declare those "
            "of the flows, or select those that are declared"
        )
    return {column.name: columns[column.name] for column in declared.fields}
