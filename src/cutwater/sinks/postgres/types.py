"""Spark's types as PostgreSQL's: how a column is made, and which columns take its values whole.

`Column.expression` turns a value into one that Arrow can write as text and PostgreSQL reads back
as the same value: arrays become array literals and nested values JSON, computed by Spark itself.
What a column would lose by going into another one is refused here, by name, before a row is sent.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from cutwater.errors import SinkError
from cutwater.ids import SinkId

_TEXTS: Final = frozenset(
    (
        *("text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb", "xml"),
        *("inet", "cidr", "macaddr", "ltree", "enum", "time", "timetz"),
    )
)
"""What a string may go into: whether it is one is checked while it is staged."""

_BACKSLASH: Final = "char(92)"
"""Written so that no setting for escapes in Spark's SQL matters."""

_OFFSET: Final = "X" * 5
"""The pattern of Spark's formats for an offset from UTC, with seconds if there are any."""

_DAY_TO_SECOND: Final = ("day", "hour", "minute", "second")
_JSON: Final = frozenset({"jsonb", "json"})
_SIMPLE: Final[Mapping[type[DataType], tuple[str, frozenset[str]]]] = {
    BooleanType: ("boolean", frozenset({"bool"})),
    ByteType: ("smallint", frozenset(["int2", "int4", "int8", "numeric", "float4", "float8"])),
    ShortType: ("smallint", frozenset(["int2", "int4", "int8", "numeric", "float4", "float8"])),
    IntegerType: ("integer", frozenset(["int4", "int8", "numeric", "float8"])),
    LongType: ("bigint", frozenset({"int8", "numeric"})),
    FloatType: ("real", frozenset({"float4", "float8"})),
    DoubleType: ("double precision", frozenset({"float8"})),
    StringType: ("text", _TEXTS),
    BinaryType: ("bytea", frozenset({"bytea"})),
    DateType: ("date", frozenset({"date"})),
    TimestampType: ("timestamp with time zone", frozenset({"timestamptz"})),
    TimestampNTZType: ("timestamp without time zone", frozenset({"timestamp"})),
    DayTimeIntervalType: ("interval", frozenset({"interval"})),
    YearMonthIntervalType: ("interval", frozenset({"interval"})),
}
_BY_NAME: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    # Where Spark distinguishes these from strings, it has already applied their rules.
    "char": ("text", _TEXTS),
    "varchar": ("text", _TEXTS),
    "time": ("time without time zone", frozenset({"time"})),
}
"""Types that not every Spark has, or that are sent as texts."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows.

    Attributes:
        type: Its type in a table that we make.
        takes: The types of existing columns, by their short names, that take it whole.
        expression: Spark's SQL that makes it ready to be sent.
        digits: Precision and scale of a decimal; None for anything else.
    """

    name: str
    type: str
    takes: frozenset[str]
    expression: str
    digits: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table.

    Attributes:
        type: Its type as PostgreSQL writes it.
        base: The short name of its type, below a domain; `enum` for an enumeration; with `[]`
            for an array.
        digits: Precision and scale of a numeric that has them.
        required: Whether a row must supply it: not null, and without a default.
        given: Whether PostgreSQL generates it, so that it cannot be written.
        computed: Whether PostgreSQL computes it from the row's other columns.
    """

    name: str
    type: str
    base: str
    digits: tuple[int, int] | None = None
    required: bool = False
    given: bool = False
    computed: bool = False


def columns_of(schema: StructType, sink: SinkId) -> tuple[Column, ...]:
    """Return how the columns of the rows are sent."""
    found = []
    for field in schema:
        column = _column(field.name, field.dataType)
        if isinstance(column, str):
            raise SinkError(sink, f"column {field.name} {column}")
        found.append(column)
    names = [column.name for column in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        raise SinkError(sink, "has no columns" if not names else f"has two columns {twice}")
    return tuple(found)


def _column(name: str, kind: DataType) -> Column | str:
    """Return a column, or what is wrong with it in words that follow its name."""
    if not name or {"\0", "%"} & set(name) or len(name.encode()) > 63:
        return "has a name that cannot be one here: 1 to 63 bytes, without %"
    if name.startswith("_cw_"):
        return "has a name that begins with _cw_, which is kept for staging; rename it"
    quoted = f"`{name.replace('`', '``')}`"
    if isinstance(kind, DecimalType):
        digits = (kind.precision, kind.scale)
        type_name = f"numeric({kind.precision},{kind.scale})"
        return Column(name, type_name, frozenset({"numeric"}), quoted, digits)
    if isinstance(kind, StructType | MapType) or kind.typeName() == "variant":
        return Column(name, "jsonb", _JSON, _json(quoted))
    if isinstance(kind, ArrayType):
        return _array(name, quoted, kind)
    simple = _SIMPLE.get(type(kind)) or _BY_NAME.get(kind.typeName())
    if simple is not None:
        return Column(name, *simple, _scalar(kind)(quoted))
    if kind.typeName() == "void":
        return "has no type; cast it to one"
    return f"is a {kind.simpleString()}, which PostgreSQL has no type for; cast it to a string"


def _array(name: str, quoted: str, kind: ArrayType) -> Column:
    """Arrays of plain values are arrays; what is nested deeper, and may be ragged, is JSON."""
    element = _column("element", kind.elementType)
    plain = isinstance(element, Column) and "jsonb" not in element.takes - _TEXTS
    if not plain or isinstance(kind.elementType, ArrayType | StructType | MapType):
        return Column(name, "jsonb", _JSON, _json(quoted))
    assert isinstance(element, Column)
    value = f"cast({_element(kind.elementType)('x')} AS string)"
    escaped = f"replace(replace({value}, {_BACKSLASH}, concat({_BACKSLASH}, {_BACKSLASH}))"
    escaped = f"{escaped}, '\"', concat({_BACKSLASH}, '\"'))"
    items = f"transform({quoted}, x -> coalesce(concat('\"', {escaped}, '\"'), 'NULL'))"
    literal = f"concat('{{', array_join({items}, ','), '}}')"
    takes = frozenset(f"{taken}[]" for taken in element.takes) | _JSON
    return Column(name, f"{element.type}[]", takes, literal, element.digits)


def _scalar(kind: DataType) -> Callable[[str], str]:
    """Return what makes a plain value one that Arrow writes as PostgreSQL reads it."""
    if isinstance(kind, BinaryType):
        return lambda value: f"concat({_BACKSLASH}, 'x', hex({value}))"
    if kind.typeName() in _BY_NAME:
        return lambda value: f"cast({value} AS string)"
    if isinstance(kind, YearMonthIntervalType):
        months = "extract(YEAR FROM {0}) * 12 + extract(MONTH FROM {0})"
        return lambda value: f"concat(cast({months.format(value)} AS string), ' months')"
    if isinstance(kind, DayTimeIntervalType):
        parts = (f"extract({unit} FROM {{0}}), ' {unit}s '" for unit in _DAY_TO_SECOND)
        joined = f"concat({', '.join(parts)})"
        return joined.format
    return lambda value: value


def _element(kind: DataType) -> Callable[[str], str]:
    """Return the same for a value in an array, which Spark writes as text by itself."""
    if isinstance(kind, TimestampType):
        return lambda value: f"date_format({value}, 'yyyy-MM-dd HH:mm:ss.SSSSSS{_OFFSET}')"
    return _scalar(kind)


def _json(quoted: str) -> str:
    instant = "concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS')"
    options = {
        "ignoreNullFields": "'false'",
        "timestampFormat": f"concat({instant}, '{_OFFSET}')",
        "timestampNTZFormat": instant,
    }
    listed = ", ".join(f"'{name}', {value}" for name, value in options.items())
    return f"to_json({quoted}, map({listed}))"


def check_keys(columns: Sequence[Column], keys: Sequence[str], sink: SinkId) -> None:
    named = {column.name for column in columns}
    missing = next((key for key in keys if key not in named), None)
    if missing is not None:
        raise SinkError(sink, f"the rows have no column {missing}, one of the keys")


def check_columns(
    columns: Sequence[Column], table: Sequence[TableColumn], title: str, sink: SinkId
) -> None:
    """Check that an existing table takes the rows whole."""
    there = {existing.name: existing for existing in table}
    for column in columns:
        found = there.get(column.name)
        if found is None:
            other = next((name for name in there if name.lower() == column.name.lower()), None)
            hint = f"; it has {other}, which is another name" if other else ""
            way = f"add it ({column.type}) or leave it out"
            raise SinkError(sink, f"{title} has no column {column.name}{hint}; {way}")
        if found.given:
            reason = "is generated by PostgreSQL and cannot be written; leave it out"
            raise SinkError(sink, f"column {column.name} of {title} {reason}")
        if not _fits(column, found):
            reason = f"is {found.type}, and the rows have {column.type}, which it does not hold"
            raise SinkError(sink, f"column {column.name} of {title} {reason}; cast one of them")
    named = {column.name for column in columns}
    for missing in (
        existing for existing in table if existing.required and existing.name not in named
    ):
        reason = "is NOT NULL without a default, and the rows do not have it"
        raise SinkError(sink, f"column {missing.name} of {title} {reason}")


def _fits(column: Column, found: TableColumn) -> bool:
    if found.base not in column.takes:
        return False
    if column.digits is None or found.digits is None or found.base in _JSON:
        return True
    (precision, scale), (room, room_scale) = column.digits, found.digits
    return scale <= room_scale and precision - scale <= room - room_scale


def digits_of(type_name: str) -> tuple[int, int] | None:
    """Read precision and scale out of a type as PostgreSQL writes it."""
    found = re.match(r"numeric\((\d+),(-?\d+)\)", type_name)
    return None if found is None else (int(found[1]), int(found[2]))
