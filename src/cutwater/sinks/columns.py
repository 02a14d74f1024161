"""How the columns of a batch join those that are there already, for targets made of files.

Columns may be added; one whose type or spelling has changed is refused while a batch is staged.
Nullability and metadata are dropped at every level, so that those of one batch bind no other.

`key_twice` is the refusal of a batch in which a key occurs twice, the same for every kind of table.
Rows of one batch have no order: Spark reads them from several files in no order it promises. So
neither of two rows with the same key is the later one, and a replay might keep the other. Rows of
different batches do have an order: the later batch wins.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VariantType,
)

from cutwater.errors import SinkError
from cutwater.ids import SinkId

_NOT_AS_TEXT: Final = ("geography", "geometry")
"""Types that Spark writes as no text, in JSON or CSV."""


def find_unheld(rows: StructType, format: str) -> str | None:  # noqa: A002 - as in files
    """Return which column a file format cannot hold; None if it can hold all columns."""
    for column in rows.fields:
        for kind in parts(column.dataType):
            is_place = kind.typeName().startswith(_NOT_AS_TEXT)
            is_cell = not isinstance(
                kind, ArrayType | MapType | StructType | NullType | VariantType
            )
            if (is_place and format != "parquet") or (not is_cell and format == "csv"):
                reason = f"column {column.name} has the type {column.dataType.simpleString()}"
                return f"{reason}, which {format} files cannot hold; cast it or leave it out"
    return None


def parts(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types nested in it."""
    yield kind
    match kind:
        case StructType():
            for field in kind.fields:
                yield from parts(field.dataType)
        case ArrayType():
            yield from parts(kind.elementType)
        case MapType():
            yield from parts(kind.keyType)
            yield from parts(kind.valueType)
        case UserDefinedType():
            yield from parts(kind.sqlType())


def joined_columns(
    known: StructType, found: StructType, sink: SinkId, *, by_position: bool = False
) -> StructType:
    """Return all columns: those that are there, then those that are new.

    With `by_position` readers find columns by position, so that they may never change. SinkError if
    a column's type or spelling differs, or columns differ that may not.
    """
    known, found = loose(known), loose(found)
    if not known.fields:
        return found
    if by_position and known != found:
        reason = f"its files have the columns {known.simpleString()} and the new rows have "
        raise SinkError(sink, f"{reason}{found.simpleString()}; CSV files cannot change theirs")
    there = {field.name.lower(): field for field in known}
    new = []
    for field in found:
        before = there.get(field.name.lower())
        if before is None:
            new.append(field)
        elif before.name != field.name:
            raise SinkError(sink, f"column {field.name} was spelled {before.name} before")
        elif before.dataType != field.dataType:
            types = f"{before.dataType.simpleString()} before and "
            types += f"{field.dataType.simpleString()} in the new rows"
            raise SinkError(sink, f"column {field.name} was {types}; give it another name")
    return StructType([*known, *new])


def loose(schema: StructType) -> StructType:
    """Return a schema as files know it: like `nullable`, and every kind of text is a text."""
    return nullable(schema, _as_in_files)


def _as_in_files(kind: DataType) -> DataType:
    # Also what Spark calls char and varchar.
    return StringType() if isinstance(kind, StringType) else kind


def nullable(
    schema: StructType, cell: Callable[[DataType], DataType] = lambda kind: kind
) -> StructType:
    """Return a schema in which everything is nullable and nothing carries metadata.

    Types stay what they are, collations of strings included: on the way through JSON, Spark puts
    those among the metadata. `cell` changes a type that holds no others.
    """

    def of(kind: DataType) -> DataType:
        match kind:
            case StructType():
                return nullable(kind, cell)
            case ArrayType():
                return ArrayType(of(kind.elementType))
            case MapType():
                return MapType(of(kind.keyType), of(kind.valueType))
            case _:
                return cell(kind)

    return StructType([StructField(field.name, of(field.dataType)) for field in schema.fields])


def key_twice(sink: SinkId, times: int, key: Mapping[str, object]) -> SinkError:
    """Return the refusal of a batch that has several rows with one key."""
    named = ", ".join(f"{name}={_format_value(value)}" for name, value in key.items())
    reason = f"one batch has {times} rows with the key {named}, and none is the later one"
    way_out = "aggregate by the key, or drop all but one row of each key, before the sink"
    return SinkError(sink, f"{reason}; {way_out}")


def _format_value(value: object) -> str:
    return repr(value) if value is None or isinstance(value, str | bytes) else str(value)
