"""The keys of an upsert: which rows of a file have a key that occurs again, and which occur twice.

Two keys are equal if all their columns are, and a null equals a null, as in a group-by: a stream
that counts by customer has one row for orders without a customer, and so does its table. Only key
columns are read here, a bounded number of rows at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cutwater.errors import ConfigError
from cutwater.ids import SinkId
from cutwater.sinks.columns import key_twice
from cutwater.sinks.delta.foreign_types import TableColumns, arrow_type

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""One boolean for each row of a file, in order."""

_EXACT: Final = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""Types that are compared exactly. Floats are not, because their equality is ambiguous."""

_BOUNDED: Final = (ByteType, DateType, IntegerType, LongType, ShortType, StringType)
"""Types whose min and max values in a table's log are exact, whichever program wrote them."""

_ROWS_AT_ONCE: Final = 2_000_000
_EMPTY_VALUES: Final[Mapping[str, object]] = {"string": "", "binary": b"", "bool": False}


class KeyedFile(Protocol):
    """A Parquet file of a table, as far as its keys matter."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def values(self) -> Mapping[str, str | None]:
        """The values of the partition columns, which the file does not contain."""
        ...

    def open(self) -> pq.ParquetFile:
        """Open it."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """The min and max value of a key column; None if unknown."""

    low: Any = None
    high: Any = None
    has_null: bool = True

    def may_meet(self, other: "Bounds") -> bool:
        """Return whether two columns may have a value in common."""
        if self.has_null and other.has_null:
            return True
        ends = (self.low, self.high, other.low, other.high)
        if any(end is None for end in ends):
            return True
        try:
            return bool(self.low <= other.high and other.low <= self.high)
        except TypeError:
            # The value in the log is not a valid bound.
            return True


@dataclass(frozen=True, slots=True)
class Keys:
    """The key columns of an upsert, with their types, and the sink that reads them."""

    types: Mapping[str, DataType]
    sink: SinkId

    @classmethod
    def of(cls, rows: StructType, names: Sequence[str], sink: SinkId) -> "Keys":
        """Find the key columns of these rows."""
        types = {field.name: field.dataType for field in rows}
        for name in names:
            if name not in types:
                reason = f"keys names {name}, and the columns are {', '.join(types)}"
                raise ConfigError(f"sink {sink}", reason)
            if type(types[name]) not in _EXACT:
                reason = f"keys names {name}, which is {types[name].simpleString()}"
                kinds = "strings, whole numbers, decimals, booleans, dates, timestamps and binary"
                raise ConfigError(f"sink {sink}", f"{reason}; a key is made of {kinds}")
        return cls({name: types[name] for name in names}, sink)

    def read(self, files: Iterable[KeyedFile]) -> pa.Table:
        """Read the keys of files, row by row."""
        tables = [self._read_one(file) for file in files]
        return pa.concat_tables([self._schema.empty_table(), *tables])

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, arrow_type(kind)) for name, kind in self.types.items()])

    def _read_one(self, file: KeyedFile) -> pa.Table:
        # The log's value of a partition column counts, even if a file has that column too.
        stored = {name: kind for name, kind in self.types.items() if name not in file.values}
        schema = StructType([StructField(name, kind) for name, kind in stored.items()])
        with file.open() as opened:
            found = TableColumns(schema, self.sink).keys(opened, file.name)
            rows = opened.metadata.num_rows
        columns = []
        for name, kind in self.types.items():
            if name in stored:
                columns.append(found[name])
            else:
                value = _value(file.values[name], arrow_type(kind))
                columns.append(pa.chunked_array([pa.repeat(value, rows)]))
        return pa.Table.from_arrays(columns, schema=self._schema)

    def bounds(self, keys: pa.Table) -> Mapping[str, Bounds]:
        found = {}
        for name in self.types:
            ends = pc.min_max(keys[name]).as_py() if self.is_bounded(name) else {}
            found[name] = Bounds(ends.get("min"), ends.get("max"), keys[name].null_count > 0)
        return found

    def is_bounded(self, name: str) -> bool:
        """Return whether the bounds of a column in a log can be relied on."""
        return type(self.types[name]) in _BOUNDED and "." not in name

    def refuse_twice(self, keys: pa.Table, sink: SinkId) -> None:
        """Refuse keys if one of them occurs twice; the error names it."""
        counted = _plain(keys).group_by(_plain(keys).column_names).aggregate([([], "count_all")])
        if counted.num_rows == keys.num_rows:
            return
        again = counted.filter(pc.field("count_all") > 1).slice(0, 1)
        (shown,) = _unplain(again, keys.schema).to_pylist()
        times = again["count_all"][0].as_py()
        raise key_twice(sink, times, shown)


@dataclass(slots=True)
class KeySet:
    """Keys to look for in files; one may be in `found` more than once."""

    keys: Keys
    found: pa.Table
    _plain: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        plain = _plain(self.found)
        self._plain = plain.group_by(plain.column_names).aggregate([])

    def masks(self, files: Sequence[KeyedFile]) -> Iterator[Mask | None]:
        """Yield for each file which of its rows have one of the keys; None if no row has."""
        waiting: list[pa.Table] = []
        rows = 0
        for file in files:
            table = self.keys.read([file])
            waiting.append(table)
            rows += table.num_rows
            if rows >= _ROWS_AT_ONCE:
                yield from self._masks(waiting)
                waiting, rows = [], 0
        yield from self._masks(waiting)

    def _masks(self, tables: Sequence[pa.Table]) -> Iterator[Mask | None]:
        if not tables:
            return
        rows = _plain(pa.concat_tables(tables))
        numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
        names = rows.column_names
        met = numbered.join(self._plain, keys=names, join_type="left semi")["row"]
        mask: Mask = np.zeros(rows.num_rows, dtype=np.bool_)
        mask[met.to_numpy()] = True
        start = 0
        for table in tables:
            part = mask[start : start + table.num_rows]
            start += table.num_rows
            yield part if part.any() else None


def _plain(keys: pa.Table) -> pa.Table:
    """Return keys as columns without nulls, because nulls are not equal in Arrow's join."""
    columns: dict[str, pa.ChunkedArray] = {}
    for number, column in enumerate(keys.columns):
        columns[f"null{number}"] = pc.cast(pc.is_null(column), pa.int8())
        columns[f"key{number}"] = pc.fill_null(column, _empty(column.type))
    return pa.table(columns)


def _unplain(plain: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        pc.if_else(pc.equal(plain[f"null{number}"], 1), None, plain[f"key{number}"])
        for number in range(len(schema))
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _empty(kind: pa.DataType) -> pa.Scalar:
    """Return any value of a type; which one does not matter, since nulls are marked."""
    return pa.scalar(_EMPTY_VALUES.get(str(kind), 0), kind)


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition, which is text in a table's log."""
    return pa.scalar(None, kind) if text is None else pa.scalar(text).cast(kind)
