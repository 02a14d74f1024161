"""Upserts into Delta tables whose files other programs wrote: untouched rows read as before.

Spark itself is the oracle: it reads the table's files before and after the upsert. It also wrote
most of them, with every setting that changes how Parquet stores a value.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater import sinks
from cutwater.errors import SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, SinkContext
from cutwater.sinks.columns import nullable
from cutwater.sinks.delta import merge as delta_changes

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
TIMESTAMPS = ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")
MOMENTS = (
    "0001-01-01 00:00:00",
    "1500-03-01 12:34:56.123456",
    "1582-10-10 00:00:00",
    "1677-01-01 01:01:01.000001",
    "1899-12-31 23:59:59.999999",
    "2024-02-29 12:00:00.123456",
    "2262-12-31 00:00:00.5",
    "9999-12-31 23:59:59.999999",
)
ROWS = """
    select {first} + id k, ts, cast(ts as date) d, cast(ts as timestamp_ntz) ntz,
        cast(id - 3.25 as decimal(9, 2)) d9, cast(id - 3.25 as decimal(18, 2)) d18,
        cast(id - 3.25 as decimal(38, 9)) d38,
        struct(ts as t, array(ts, null) as l) st, map(ts, array(struct(ts as x))) m,
        array(named_struct('only', ts)) one, array(array(id), null) aa, '{mark}' mark
    from (select id, element_at(array({moments}), cast(id as int) + 1) ts from range({count}))
"""


def rows(
    spark: SparkSession, first: int, mark: str, moments: tuple[str, ...] = MOMENTS
) -> DataFrame:
    """Return one row for each moment, numbered from `first`, in every type that can hold it."""
    literals = ", ".join(f"timestamp'{moment}'" for moment in moments)
    text = ROWS.format(first=first, mark=mark, moments=literals, count=len(moments))
    return spark.sql(text).coalesce(1)


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """Change the session's settings for a while."""
    before = {name: str(spark.conf.get(name)) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def parquet_settings(
    timestamps: str, calendar: str, legacy_format: str = "false"
) -> dict[str, str]:
    return {
        "spark.sql.parquet.outputTimestampType": timestamps,
        "spark.sql.parquet.datetimeRebaseModeInWrite": calendar,
        "spark.sql.parquet.int96RebaseModeInWrite": calendar,
        "spark.sql.parquet.writeLegacyFormat": legacy_format,
    }


def write_file(frame: DataFrame, table: Path, name: str) -> Path:
    """Let Spark write one Parquet file into a table's directory."""
    made = table.parent / f"made-{name}"
    frame.write.parquet(str(made))
    (file,) = made.glob("*.parquet")
    return file.rename(table / f"{name}.parquet")


def table_of(table: Path, schema: StructType) -> None:
    """Make a Delta table of all Parquet files in a directory, as a log without statistics."""
    files = sorted(table.glob("*.parquet"))
    columns = Schema.from_json(nullable(schema).json())
    made = DeltaTable.create(str(table), columns)
    added: list[AddAction | RemoveAction] = [
        AddAction(file.name, file.stat().st_size, {}, 0, True, '{"numRecords": 1}')
        for file in files
    ]
    made.create_write_transaction(added, "append", columns, [])


def shown(spark: SparkSession, table: Path, schema: StructType) -> list[str]:
    """Return the rows of a table as Spark reads its files, every digit of every value."""
    files = [str(table / Path(text).name) for text in DeltaTable(str(table)).file_uris()]
    read = spark.read.schema(nullable(schema)).parquet(*files)
    return sorted(row[0] for row in read.selectExpr("cast(struct(*) as string)").collect())


def upsert(
    spark: SparkSession, table: Path, frame: DataFrame, slot: int = 1, key: str = "k"
) -> None:
    target = sinks.delta(str(table), write="upsert", keys=[key])
    sink = target.open(SinkContext(spark, PIPELINE, SinkId("foreign")))
    staged = sink.stage(FrameRows(frame), Generation(1), BatchId(slot))
    assert staged is not None
    sink.commit(grant(PIPELINE, Slot(slot), CheckpointId(slot)), [staged])


@pytest.fixture(scope="module")
def of_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of Spark, one for each way to store the same rows, with keys of their own."""
    table = tmp_path_factory.mktemp("of-spark") / "table"
    table.mkdir()
    kinds = (("CORRECTED", "false"), ("CORRECTED", "true"), ("LEGACY", "false"), ("LEGACY", "true"))
    for number, (timestamps, (calendar, legacy_format)) in enumerate(product(TIMESTAMPS, kinds)):
        stored = parquet_settings(timestamps, calendar, legacy_format)
        # Only the old calendar depends on a time zone.
        zone = {"spark.sql.session.timeZone": "America/Los_Angeles"} if number % 4 == 3 else {}
        with settings(spark, stored | zone):
            write_file(rows(spark, number * 100, "old"), table, f"{number:02d}")
    return table


@pytest.mark.parametrize("joined_min", [2, 100])
def test_untouched_rows_of_files_that_spark_wrote_read_as_before(
    spark: SparkSession,
    of_spark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    joined_min: int,
) -> None:
    monkeypatch.setattr(delta_changes, "JOINED_MIN", joined_min)
    table = tmp_path / "table"
    shutil.copytree(of_spark, table)
    schema = rows(spark, 0, "old").schema
    table_of(table, schema)
    before = shown(spark, table, schema)
    replaced = [number * 100 + 5 for number in range(12)]
    new = rows(spark, 0, "new", ("2024-01-01 00:00:00.000001",)).drop("k")
    numbers = spark.createDataFrame([(number,) for number in replaced], "k long")
    fresh = numbers.crossJoin(new).coalesce(1)

    upsert(spark, table, fresh)

    kept = [row for row in before if int(row[1:].partition(",")[0]) not in replaced]
    text = fresh.selectExpr("cast(struct(*) as string)")
    expected = sorted([*kept, *(row[0] for row in text.collect())])
    assert shown(spark, table, schema) == expected
    # The copies are copied in turn, and read the same by a session that knows other calendars.
    upsert(spark, table, fresh, slot=2)
    reading = {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    }
    with settings(spark, reading):
        assert shown(spark, table, schema) == expected


@pytest.mark.parametrize("timestamps", TIMESTAMPS)
def test_a_timestamp_key_meets_its_row_however_the_file_stores_it(
    spark: SparkSession, tmp_path: Path, timestamps: str
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    moments = tuple(moment.partition(".")[0] for moment in MOMENTS)
    with settings(spark, parquet_settings(timestamps, "CORRECTED")):
        write_file(rows(spark, 0, "old", moments), table, "old")
    schema = rows(spark, 0, "old").schema
    table_of(table, schema)

    fresh = rows(spark, 0, "new", moments)
    upsert(spark, table, fresh, key="ts")

    text = fresh.selectExpr("cast(struct(*) as string)")
    assert shown(spark, table, schema) == sorted(row[0] for row in text.collect())


def test_a_key_of_the_old_calendar_is_refused_before_anything_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    with settings(spark, parquet_settings("TIMESTAMP_MICROS", "LEGACY")):
        write_file(rows(spark, 0, "old"), table, "old")
    schema = rows(spark, 0, "old").schema
    table_of(table, schema)
    before = shown(spark, table, schema)

    with pytest.raises(SinkError, match=r"old\.parquet.*column d .*calendar"):
        upsert(spark, table, rows(spark, 0, "new"), key="d")

    assert DeltaTable(str(table)).version() == 1
    assert shown(spark, table, schema) == before


# -- files of other programs

UINT8, UINT32 = pa.uint8(), pa.uint32()
POLARS = Path(__file__).parents[1] / "golden" / "parquet" / "polars.parquet"
"""Its rows have the keys 3000 to 3004."""

OTHERS = """
    k long, ts timestamp, ntz timestamp_ntz, millis timestamp_ntz, d date, d9 decimal(9, 2),
    d18 decimal(18, 2), d38 decimal(38, 9), u32 long, u8 short, f float, txt string, cat string,
    bin binary, st struct<t: timestamp, n: short>, l array<timestamp>, pair array<long>,
    wall timestamp, late string
"""


def arrow_rows(first: int, u32: pa.DataType = UINT32, u8: pa.DataType = UINT8) -> pa.Table:
    """Return rows with the types of Arrow that other programs start from."""
    zoned = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1500, 3, 1, 12, 34, 56, 123456, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ]
    moments = [moment and moment.replace(tzinfo=None) for moment in zoned]
    millis = [
        moment and moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        for moment in moments
    ]
    numbers = [Decimal("-1.25"), Decimal("0.00"), Decimal("1.25"), Decimal("9.75"), None]
    small = [0, 1, 128, 255, None]
    structs = [{"t": t, "n": n} for t, n in zip(zoned, small, strict=True)]
    kind = pa.struct([("t", pa.timestamp("us", "UTC")), ("n", u8)])
    return pa.table(
        {
            "k": pa.array(range(first, first + 5), pa.int64()),
            "ts": pa.array(zoned, pa.timestamp("us", "UTC")),
            "ntz": pa.array(moments, pa.timestamp("us")),
            "millis": pa.array(millis, pa.timestamp("ms")),
            "d": pa.array([moment and moment.date() for moment in moments], pa.date32()),
            "d9": pa.array(numbers, pa.decimal128(9, 2)),
            "d18": pa.array(numbers, pa.decimal128(18, 2)),
            "d38": pa.array(numbers, pa.decimal128(38, 9)),
            "u32": pa.array([0, 1, 2**31, 2**32 - 1, None], u32),
            "u8": pa.array(small, u8),
            "f": pa.array([0.5, float("nan"), -0.0, 1e30, None], pa.float32()),
            "txt": pa.array(["", "ü", "x" * 100, "\U0001f600", None]),
            "cat": pa.array(["a", "b", "a", "b", None]).dictionary_encode(),
            "bin": pa.array([b"", b"\xff", b"x", b"y", None], pa.large_binary()),
            "st": pa.array([*structs[:-1], None], kind),
            "l": pa.array(
                [[moment, None] for moment in zoned], pa.list_(pa.timestamp("us", "UTC"))
            ),
            "pair": pa.array([[1, 2], [3, None], None, [], [5]], pa.large_list(pa.int64())),
            "wall": pa.array(moments, pa.timestamp("us")),
        }
    )


def foreign_files(table: Path) -> None:
    """Let DuckDB, delta-rs, Polars and pyarrow write a file each."""
    table.mkdir()
    shutil.copy(POLARS, table / "polars.parquet")
    duckdb.from_arrow(arrow_rows(1000)).write_parquet(str(table / "duckdb.parquet"))
    made = table.parent / "delta-rs"
    write_deltalake(str(made), arrow_rows(2000, pa.int64(), pa.int16()))
    (file,) = made.glob("*.parquet")
    file.rename(table / "delta-rs.parquet")
    pq.write_table(arrow_rows(4000), table / "int96.parquet", use_deprecated_int96_timestamps=True)
    renamed = arrow_rows(5000)
    renamed = renamed.rename_columns([column_name.upper() for column_name in renamed.column_names])
    pq.write_table(renamed, table / "upper.parquet")
    pq.write_table(arrow_rows(6000).select(["k", "d"]), table / "few.parquet")


def test_untouched_rows_of_files_that_other_programs_wrote_read_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    foreign_files(table)
    schema = StructType.fromDDL(OTHERS)
    assert isinstance(schema, StructType)
    table_of(table, schema)
    before = shown(spark, table, schema)
    keys = [1000, 2000, 3000, 4000, 5000, 6000, 9000]
    fresh = spark.createDataFrame([(key,) for key in keys], "k long").coalesce(1)

    upsert(spark, table, fresh)

    kept = [row for row in before if int(row[1:].partition(",")[0]) not in keys]
    new = [f"{{{key}{', null' * (len(schema) - 1)}}}" for key in keys]
    assert len(kept) == 24
    assert shown(spark, table, schema) == sorted([*kept, *new])
