"""Columns of Parquet files in the types of a Delta table: what is converted and what is refused."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.delta.foreign_types import (
    Calendar,
    Calendars,
    TableColumns,
    kept_metadata,
    open_parquet,
)
from cutwater.sinks.delta.transaction_log import statistics

OLD = datetime(1500, 3, 1, tzinfo=UTC)
RECENT = datetime(2024, 2, 29, 12, 0, 0, 1000, tzinfo=UTC)
SPARK_3_0 = {b"org.apache.spark.version": b"3.0.3"}
HYBRID = {b"org.apache.spark.version": b"4.3.0", b"org.apache.spark.legacyDateTime": b""}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "part-0.parquet"


def columns(**types: DataType) -> TableColumns:
    fields = [StructField(name, kind) for name, kind in types.items()]
    return TableColumns(StructType(fields), SinkId("totals"))


def write(
    file: Path, table: pa.Table, metadata: dict[bytes, bytes] | None = None, **options: bool
) -> None:
    with pq.ParquetWriter(file, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata or {})


def read(file: Path, wanted: TableColumns, rows: int = 2) -> pa.Table:
    with open_parquet(file) as opened:
        parts = list(wanted.batches(opened, file.name, rows))
    return pa.Table.from_batches(parts, wanted.arrow)


def keys(file: Path, wanted: TableColumns) -> pa.Table:
    with open_parquet(file) as opened:
        return wanted.keys(opened, file.name)


@pytest.mark.parametrize(
    ("stored", "kind", "value"),
    [
        (pa.array([1], pa.uint8()), ShortType(), 1),
        (pa.array([2**32 - 1], pa.uint32()), LongType(), 2**32 - 1),
        (pa.array([7], pa.int64()), IntegerType(), 7),
        (pa.array([7], pa.int32()), DoubleType(), 7.0),
        (pa.array([1.5], pa.float16()), FloatType(), 1.5),
        (pa.array([1.5], pa.float32()), DoubleType(), 1.5),
        (pa.array([Decimal("1.5")], pa.decimal128(9, 1)), DecimalType(12, 2), Decimal("1.50")),
        (pa.array([7], pa.int32()), DecimalType(12, 2), Decimal("7.00")),
        (pa.array(["a"]).dictionary_encode(), StringType(), "a"),
        (pa.array(["a"], pa.large_string()), StringType(), "a"),
        (pa.nulls(1), ArrayType(StringType()), None),
        (pa.array([b"a"]), StringType(), "a"),
        (pa.array([b"ab"], pa.binary(2)), BinaryType(), b"ab"),
        (pa.array([b"x" * 16], pa.uuid()), BinaryType(), b"x" * 16),
        (pa.array([RECENT], pa.timestamp("ns", "Europe/Berlin")), TimestampType(), RECENT),
        (pa.array([RECENT], pa.timestamp("ms", "UTC")), TimestampType(), RECENT),
        (pa.array([RECENT], pa.timestamp("us")), TimestampType(), RECENT),
        (pa.array([RECENT], pa.timestamp("ms")), TimestampNTZType(), RECENT.replace(tzinfo=None)),
        (pa.array([date(2024, 2, 29)], pa.date64()), DateType(), date(2024, 2, 29)),
    ],
    ids=str,
)
def test_a_value_is_the_same_in_the_tables_type(
    file: Path, stored: pa.Array, kind: DataType, value: object
) -> None:
    write(file, pa.table({"a": stored}))

    assert read(file, columns(a=kind)).to_pylist() == [{"a": value}]
    assert keys(file, columns(a=kind)).to_pylist() == [{"a": value}]


@pytest.mark.parametrize(
    ("stored", "kind", "reason"),
    [
        (pa.array([40_000]), ShortType(), "int64 in the file and smallint in the table"),
        (pa.array([2**63], pa.uint64()), LongType(), "uint64 in the file and bigint"),
        (pa.array([0.1]), FloatType(), "double in the file and float in the table"),
        (pa.array([2**53 + 1]), DoubleType(), "int64 in the file and double in the table"),
        (pa.array([1]), StringType(), "int64 in the file and string in the table"),
        (pa.array(["1"]), LongType(), "string in the file and bigint in the table"),
        (pa.array([b"\xff"]), StringType(), "a value would change: Invalid UTF8"),
        (pa.array([Decimal("1.25")]), DecimalType(5, 1), "a value would change"),
        (pa.array([1], pa.timestamp("ns")), TimestampType(), "a value would change"),
        (pa.array([2**62], pa.timestamp("ms")), TimestampType(), "a value would change"),
        (pa.array([1], pa.int64()), TimestampType(), "int64 in the file and timestamp"),
        (pa.array([1], pa.time64("us")), LongType(), r"time64\[us\] in the file and bigint"),
        (pa.array([{"b": 1}]), LongType(), "struct<b: int64> in the file and bigint"),
        (pa.array([[1]]), MapType(LongType(), LongType()), "in the file and map<bigint,bigint>"),
        (pa.array([[0.5]]), ArrayType(LongType()), "column a.element as double"),
    ],
    ids=str,
)
def test_what_would_change_a_value_is_refused_by_name(
    file: Path, stored: pa.Array, kind: DataType, reason: str
) -> None:
    write(file, pa.table({"a": stored}))

    with pytest.raises(
        SinkError, match=f"sink totals: the table's file {file.name} .*{reason}"
    ) as (caught):
        read(file, columns(a=kind))
    with pytest.raises(SinkError, match=reason):
        keys(file, columns(a=kind))

    assert "column a" in caught.value.reason
    assert caught.value.reason.endswith(
        "; rewrite it with the program that wrote it, in the table's own types"
    )


def test_nested_values_and_nulls_at_every_level_stay(file: Path) -> None:
    inner = pa.struct([("t", pa.timestamp("ms", "UTC")), ("gone", pa.int8())])
    rows: list[dict[str, Any]] = [
        {"s": {"t": RECENT}, "l": [{"t": RECENT}, None], "m": [("a", [1, None])], "f": [1, 2]},
        {"s": None, "l": None, "m": None, "f": None},
        {"s": {"t": None}, "l": [], "m": [], "f": [None, 2]},
        {"s": {"t": RECENT}, "l": [{"t": None}], "m": [("b", None), ("c", [])], "f": [3, 4]},
        {"s": None, "l": [None], "m": [("d", [5])], "f": None},
    ]
    kinds = [
        ("s", inner),
        ("l", pa.large_list(inner)),
        ("m", pa.map_(pa.string(), pa.list_(pa.uint8()))),
        ("f", pa.list_(pa.int32(), 2)),
    ]
    write(file, pa.Table.from_pylist(rows, schema=pa.schema(kinds)))
    struct = StructType([StructField("T", TimestampType()), StructField("new", StringType())])
    wanted = columns(
        s=struct,
        l=ArrayType(struct),
        m=MapType(StringType(), ArrayType(ShortType())),
        f=ArrayType(LongType()),
    )

    def renamed(value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {"T": value["t"], "new": None}

    expected = [
        {
            **row,
            "s": renamed(row["s"]),
            "l": None if row["l"] is None else [renamed(entry) for entry in row["l"]],
        }
        for row in rows
    ]
    assert read(file, wanted).to_pylist() == expected
    assert read(file, wanted, rows=1).to_pylist() == expected


def test_a_column_is_found_whatever_the_case_of_its_name_and_is_null_where_it_is_missing(
    file: Path,
) -> None:
    write(file, pa.table({"ID": [1, 2, 3], "other": [1, 2, 3]}))

    rows = [{"id": number, "late": None} for number in (1, 2, 3)]
    assert read(file, columns(id=LongType(), late=StringType())).to_pylist() == rows
    assert keys(file, columns(id=LongType(), late=StringType())).to_pylist() == rows
    assert read(file, columns(late=StringType())).to_pylist() == [{"late": None}] * 3
    assert keys(file, columns(late=StringType())).to_pylist() == [{"late": None}] * 3


def test_a_damaged_file_is_named(file: Path) -> None:
    write(file, pa.table({"id": list(range(10_000))}), use_dictionary=False)
    content = bytearray(file.read_bytes())
    content[1000:3000] = bytes(2000)
    file.write_bytes(content)

    with pytest.raises(OSError, match=f"the table's file {file.name} cannot be read: "):
        read(file, columns(id=LongType()))


def test_a_name_that_fits_two_columns_is_refused(file: Path) -> None:
    write(file, pa.table({"id": [1], "ID": [2]}))

    with pytest.raises(SinkError, match=r"has column id 2 times \(id, ID\)"):
        read(file, columns(id=LongType()))


@pytest.mark.parametrize(
    ("metadata", "usual", "int96"),
    [
        (None, Calendar.UNKNOWN, Calendar.UNKNOWN),
        ({b"org.apache.spark.legacyDateTime": b""}, Calendar.UNKNOWN, Calendar.UNKNOWN),
        ({b"org.apache.spark.version": b"2.4.8"}, Calendar.HYBRID, Calendar.HYBRID),
        (SPARK_3_0, Calendar.PROLEPTIC, Calendar.HYBRID),
        ({b"org.apache.spark.version": b"3.1.0"}, Calendar.PROLEPTIC, Calendar.PROLEPTIC),
        (HYBRID, Calendar.HYBRID, Calendar.PROLEPTIC),
    ],
)
def test_the_calendar_of_a_file_is_the_one_that_spark_takes_it_for(
    metadata: dict[bytes, bytes] | None, usual: Calendar, int96: Calendar
) -> None:
    found = Calendars.of(metadata)

    assert (found.usual, found.int96) == (usual, int96)


def test_files_of_one_calendar_may_be_joined_and_copies_keep_it() -> None:
    zone = {b"org.apache.spark.timeZone": b"Europe/Berlin"}
    other = {b"org.apache.spark.version": b"4.1.0", b"x": b"y"}

    assert Calendars.of(other) == Calendars.of({b"org.apache.spark.version": b"4.3.0"})
    assert Calendars.of(HYBRID) != Calendars.of(HYBRID | zone)
    assert kept_metadata(HYBRID | zone | {b"x": b"y"}) == HYBRID | zone
    assert kept_metadata(None) == {}


def test_old_int96_timestamps_of_another_calendar_than_a_copys_are_refused(file: Path) -> None:
    wanted = columns(at=TimestampType())
    rows = pa.table({"at": pa.array([RECENT, None], pa.timestamp("us", "UTC"))})
    write(file, rows, SPARK_3_0, use_deprecated_int96_timestamps=True)
    assert read(file, wanted) == rows.cast(wanted.arrow)

    rows = pa.table({"at": pa.array([RECENT, OLD], pa.timestamp("us", "UTC"))})
    write(file, rows, SPARK_3_0, use_deprecated_int96_timestamps=True)

    reason = "values before 1900 in column at by the hybrid Julian and Gregorian calendar"
    with pytest.raises(SinkError, match=f"{file.name} has {reason}, which cannot be kept"):
        read(file, wanted)
    with pytest.raises(SinkError, match=r"in column at by the hybrid .* cannot be kept"):
        read(file, columns(at=TimestampNTZType()))
    write(file, rows, SPARK_3_0)
    assert read(file, wanted) == rows.cast(wanted.arrow)


def test_timestamps_without_a_time_zone_have_no_calendar(file: Path) -> None:
    wanted = columns(at=TimestampNTZType())
    rows = pa.Table.from_pylist([{"at": OLD.replace(tzinfo=None)}], schema=wanted.arrow)
    write(file, rows, HYBRID)

    assert read(file, wanted) == rows
    assert keys(file, wanted) == rows


@pytest.mark.parametrize(
    ("kind", "old", "recent"),
    [
        (DateType(), date(1582, 10, 4), date(1582, 10, 15)),
        (TimestampType(), OLD, datetime(1900, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_keys_by_the_hybrid_calendar_are_refused_as_far_as_it_differs(
    file: Path, kind: DataType, old: object, recent: object
) -> None:
    wanted = columns(at=kind)
    write(file, pa.Table.from_pylist([{"at": recent}], schema=wanted.arrow), HYBRID)
    assert keys(file, wanted).to_pylist() == [{"at": recent}]

    write(file, pa.Table.from_pylist([{"at": old}], schema=wanted.arrow), HYBRID)

    with pytest.raises(SinkError, match="in column at by the hybrid"):
        keys(file, wanted)
    assert read(file, wanted).to_pylist() == [{"at": old}]
    write(file, pa.Table.from_pylist([{"at": old}], schema=wanted.arrow))
    assert keys(file, wanted).to_pylist() == [{"at": old}]


@pytest.mark.parametrize(
    ("kind", "unit", "metadata", "is_said"),
    [
        (TimestampType(), "us", {}, True),
        (TimestampType(), "us", HYBRID, False),
        (TimestampType(), "ms", {}, False),
        (TimestampNTZType(), "us", HYBRID, True),
        (TimestampNTZType(), "ns", {}, False),
    ],
    ids=str,
)
def test_the_log_gives_no_bounds_that_a_reader_would_misunderstand(
    file: Path, kind: DataType, unit: str, metadata: dict[bytes, bytes], is_said: bool
) -> None:
    zone = "UTC" if isinstance(kind, TimestampType) else None
    write(file, pa.table({"at": pa.array([1_000_000], pa.timestamp(unit, zone))}), metadata)

    said = json.loads(statistics(pq.read_metadata(file), columns(at=kind).schema))

    assert ("at" in said["minValues"], "at" in said["maxValues"]) == (is_said, is_said)
    assert said["nullCount"] == {"at": 0}


def test_the_log_gives_no_bounds_of_int96_timestamps_and_dates_of_the_hybrid_calendar(
    file: Path,
) -> None:
    rows = {"at": pa.array([RECENT], pa.timestamp("us", "UTC")), "day": pa.array([RECENT.date()])}
    write(file, pa.table(rows), HYBRID, use_deprecated_int96_timestamps=True)

    schema = columns(at=TimestampType(), day=DateType()).schema
    said = json.loads(statistics(pq.read_metadata(file), schema))

    assert (said["minValues"], said["maxValues"]) == ({}, {})
