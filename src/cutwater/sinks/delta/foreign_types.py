"""Reads the Parquet files of a Delta table in the table's types, whichever program wrote them.

Parquet stores one value in many ways: a timestamp as INT96, in milliseconds, microseconds or
nanoseconds; a decimal as an integer or as bytes; a date by one of two calendars. A row that is
copied must read as before, and a key must equal the same key in another file. So every column is
converted to the one Arrow type of its Delta type, and only if no value changes. A column that
cannot be converted is refused, with the name of the file, before anything is committed.

Spark before 3.0, and later versions on request, write dates before 1582 and timestamps before 1900
by the hybrid Julian and Gregorian calendar. Spark notes it in the file's metadata. A copy keeps the
stored numbers and that metadata (docs/adr/0026).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cutwater.errors import SinkError
from cutwater.ids import SinkId

_SPARK_VERSION: Final = b"org.apache.spark.version"
_LEGACY_DATETIME: Final = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96: Final = b"org.apache.spark.legacyINT96"
_TIME_ZONE: Final = b"org.apache.spark.timeZone"

_FIRST_SAME_DAY: Final = -141_427
"""1582-10-15, in days since 1970. From this day on both calendars agree."""

_FIRST_SAME_MICROSECOND: Final = -2_208_988_800_000_000
"""1900-01-01 UTC. From this moment on both calendars and all time zone offsets agree."""

_KEYS_AT_ONCE: Final = 64 * 1024

_ARROW: Final[Mapping[type[DataType], pa.DataType]] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", "UTC"),
}


def arrow_type(kind: DataType) -> pa.DataType:
    match kind:
        case StructType():
            return pa.struct([(field.name, arrow_type(field.dataType)) for field in kind])
        case ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType)))
        case MapType():
            return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case _:
            return _ARROW[type(kind)]


def open_parquet(source: Path | pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file. INT96 is read in microseconds: nanoseconds end in the year 2262."""
    return pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us")


class Calendar(Enum):
    """How a file counts days before 1582 and moments before 1900."""

    UNKNOWN = "unknown"
    PROLEPTIC = "proleptic Gregorian"
    HYBRID = "hybrid Julian and Gregorian"


@dataclass(frozen=True, slots=True)
class Calendars:
    """What Spark wrote into a file's metadata about its calendars.

    Attributes:
        usual: The calendar of dates and of timestamps that are 64-bit integers.
        int96: The calendar of INT96 timestamps.
        time_zone: The time zone of a hybrid calendar; empty if the file does not name one.
    """

    usual: Calendar = Calendar.UNKNOWN
    int96: Calendar = Calendar.UNKNOWN
    time_zone: bytes = b""

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> "Calendars":
        """Decide as Spark does when it reads the file, comparison of versions as text included."""
        found = metadata or {}
        if _SPARK_VERSION not in found:
            return cls()
        version = found[_SPARK_VERSION]

        def calendar(first: bytes, mark: bytes) -> Calendar:
            return Calendar.HYBRID if version < first or mark in found else Calendar.PROLEPTIC

        usual, int96 = calendar(b"3.0.0", _LEGACY_DATETIME), calendar(b"3.1.0", _LEGACY_INT96)
        if Calendar.HYBRID not in {usual, int96}:
            return cls(usual, int96)
        return cls(usual, int96, found.get(_TIME_ZONE, b""))


def kept_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Return what a copy, which has no INT96 columns, needs to be read by the same calendar."""
    kept = (_SPARK_VERSION, _LEGACY_DATETIME, _TIME_ZONE)
    return {key: value for key, value in (metadata or {}).items() if key in kept}


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Columns of a Delta table, to be read from any of its files.

    Attributes:
        schema: The columns, with the table's types; no partition columns, which files lack.
    """

    schema: StructType
    sink: SinkId

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([(field.name, arrow_type(field.dataType)) for field in self.schema])

    def batches(self, file: pq.ParquetFile, name: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Read a file in parts of at most so many rows, as the table has its columns.

        A column it lacks is null. SinkError if one cannot be converted without changing a value.
        """
        columns = _FileColumns(self, file, name)
        there = columns.find_columns()
        for part in columns.parts(file, there, rows):
            yield columns.convert(part, there)

    def keys(self, file: pq.ParquetFile, name: str) -> pa.Table:
        """Read all rows of these columns, as `batches` does, to be compared with other files.

        Raises:
            SinkError: If a column cannot be converted without changing a value, or counts days by
                another calendar than the rows it is to be compared with.
        """
        columns = _FileColumns(self, file, name, compares=True)
        there = columns.find_columns()
        parts = columns.parts(file, there, _KEYS_AT_ONCE)
        return pa.Table.from_batches([columns.convert(part, there) for part in parts], self.arrow)


def _empty_parts(file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield parts without values: all that a file has of columns that were added after it."""
    for start in range(0, file.metadata.num_rows, rows):
        count = min(rows, file.metadata.num_rows - start)
        yield pa.record_batch({"": pa.nulls(count)})


class _FileColumns:
    def __init__(
        self, columns: TableColumns, file: pq.ParquetFile, name: str, *, compares: bool = False
    ) -> None:
        self._columns = columns
        self._name = name
        self._compares = compares
        try:
            self._there = file.schema_arrow
        except pa.ArrowException as error:
            raise self._refusal(f"has columns that cannot be read: {error}") from error
        self._calendars = Calendars.of(file.metadata.metadata)
        self._has_hybrid = Calendar.HYBRID in {self._calendars.usual, self._calendars.int96}
        leaves = [file.schema.column(index) for index in range(len(file.schema))]
        self._int96 = {
            leaf.path.partition(".")[0].lower() for leaf in leaves if leaf.physical_type == "INT96"
        }

    def find_columns(self) -> dict[str, str]:
        """Return the names of the table's columns that the file has, and their names there."""
        return self._match(self._columns.schema.names, self._there.names, "")

    def parts(
        self, file: pq.ParquetFile, there: Mapping[str, str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the columns that were found, as they are stored."""
        read = file.iter_batches(rows, columns=sorted(there.values()))
        try:
            yield from read if there else _empty_parts(file, rows)
        except pa.ArrowException as error:
            raise self._refusal(f"cannot be read: {error}") from error
        except OSError as error:
            # Damage looks like a failing disk or network here, so it is tried again.
            message = f"the table's file {self._name} cannot be read: {error}"
            raise OSError(message) from error

    def convert(self, part: pa.RecordBatch, there: Mapping[str, str]) -> pa.RecordBatch:
        arrays = []
        for field in self._columns.schema:
            if field.name in there:
                column = part.column(part.schema.get_field_index(there[field.name]))
                arrays.append(self._convert(column, field.dataType, field.name))
            else:
                arrays.append(pa.nulls(part.num_rows, arrow_type(field.dataType)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.arrow)

    def _match(self, wanted: Sequence[str], there: Sequence[str], above: str) -> dict[str, str]:
        """Find names as Spark does: upper and lower case are the same."""
        found: dict[str, str] = {}
        for name in wanted:
            alike = [other for other in there if other.lower() == name.lower()]
            if len(alike) > 1:
                twice = f"has column {above}{name} {len(alike)} times ({', '.join(alike)})"
                raise self._refusal(f"{twice}, and which one is meant is unknown")
            if alike:
                found[name] = alike[0]
        return found

    def _convert(self, array: pa.Array, kind: DataType, path: str) -> pa.Array:
        array = _decode(array)
        if array.type == arrow_type(kind) and not self._has_hybrid:
            return array
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), arrow_type(kind))
        match kind:
            case StructType() if pa.types.is_struct(array.type):
                return self._struct(array, kind, path)
            case ArrayType() if _is_list(array.type):
                return self._list(array, kind, path)
            case MapType() if pa.types.is_map(array.type):
                return self._map(array, kind, path)
            case _:
                return self._leaf(array, kind, path)

    def _struct(self, array: pa.StructArray, kind: StructType, path: str) -> pa.Array:
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        there = self._match(kind.names, names, f"{path}.")
        children = dict(zip(names, array.flatten(), strict=True))
        arrays = [
            self._convert(children[there[field.name]], field.dataType, f"{path}.{field.name}")
            if field.name in there
            else pa.nulls(len(array), arrow_type(field.dataType))
            for field in kind
        ]
        fields = list(arrow_type(kind))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())

    def _list(self, array: pa.Array, kind: ArrayType, path: str) -> pa.Array:
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()),
            self._convert(array.flatten(), kind.elementType, f"{path}.element"),
            arrow_type(kind),
            mask=array.is_null(),
        )

    def _map(self, array: pa.MapArray, kind: MapType, path: str) -> pa.Array:
        # Offsets of a slice are those into the keys and values of the whole.
        return pa.MapArray.from_arrays(
            pa.array(array.offsets.to_numpy()),
            self._convert(array.keys, kind.keyType, f"{path}.key"),
            self._convert(array.items, kind.valueType, f"{path}.value"),
            arrow_type(kind),
            mask=array.is_null(),
        )

    def _leaf(self, array: pa.Array, kind: DataType, path: str) -> pa.Array:
        target = arrow_type(kind)
        if array.type != target:
            is_kept = _KEPT.get(type(kind))
            types = f"{array.type} in the file and {kind.simpleString()} in the table"
            if is_kept is None or not is_kept(array.type):
                raise self._refusal(f"has column {path} as {types}, which do not fit")
            try:
                array = array.cast(target)
            except pa.ArrowException as error:
                reason = f"has column {path} as {types}, and a value would change"
                raise self._refusal(f"{reason}: {error}") from error
        if self._has_hybrid and isinstance(kind, DateType | TimestampType | TimestampNTZType):
            self._refuse_other_calendar(array, kind, path)
        return array

    def _refuse_other_calendar(self, array: pa.Array, kind: DataType, path: str) -> None:
        """Refuse old values that a copy moves to another calendar, or that no key can equal."""
        is_int96 = path.partition(".")[0].lower() in self._int96 and not isinstance(kind, DateType)
        # Spark applies no calendar to timestamps without a time zone, except to INT96.
        is_plain = isinstance(kind, TimestampNTZType)
        usual = Calendar.PROLEPTIC if is_plain else self._calendars.usual
        stored = self._calendars.int96 if is_int96 else usual
        meant = Calendar.PROLEPTIC if self._compares else usual
        if (stored is Calendar.HYBRID) == (meant is Calendar.HYBRID):
            return
        is_date = isinstance(kind, DateType)
        first = _FIRST_SAME_DAY if is_date else _FIRST_SAME_MICROSECOND
        oldest = pc.min(array.cast(pa.int32() if is_date else pa.int64())).as_py()
        if oldest is not None and oldest < first:
            until = "1582-10-15" if is_date else "1900"
            raise self._refusal(
                f"has values before {until} in column {path} by the {stored.value} calendar, "
                f"which cannot be {'compared' if self._compares else 'kept'}"
            )

    def _refusal(self, what: str) -> SinkError:
        cure = "rewrite it with the program that wrote it, in the table's own types"
        return SinkError(self._columns.sink, f"the table's file {self._name} {what}; {cure}")


def _decode(array: pa.Array) -> pa.Array:
    """Return the values themselves: Arrow remembers dictionaries and types of its own in files."""
    if isinstance(array, pa.ExtensionArray):
        return _decode(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary_decode()
    if isinstance(array, pa.RunEndEncodedArray):
        return pc.run_end_decode(array)
    return array


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type may hold text; text that is not marked so is common in old files."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(is_text or is_bytes or is_view)


def _is_double(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32))


_KEPT: Final[Mapping[type[DataType], Callable[[Any], bool]]] = {
    BinaryType: lambda kind: _is_text(kind) or pa.types.is_fixed_size_binary(kind),
    ByteType: pa.types.is_integer,
    DateType: pa.types.is_date,
    DecimalType: lambda kind: pa.types.is_decimal(kind) or pa.types.is_integer(kind),
    DoubleType: _is_double,
    FloatType: pa.types.is_float16,
    IntegerType: pa.types.is_integer,
    LongType: pa.types.is_integer,
    ShortType: pa.types.is_integer,
    StringType: _is_text,
    TimestampNTZType: pa.types.is_timestamp,
    TimestampType: pa.types.is_timestamp,
}
"""For each Delta type, the Arrow types whose values it may hold. The cast checks each value."""
