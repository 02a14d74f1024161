"""Every type of Spark SQL goes through a channel unchanged, pruned and filtered by the scan.

Or it is refused while planning, which tests/spark/test_rules_plan.py shows.
"""

import datetime
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, UserDefinedType
from tests.spark.features import needs
from tests.spark.runs import ordered

from cutwater.ids import BatchId, ChannelId, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START
from cutwater.runtime.channel import Channel, Signal
from cutwater.runtime.output import ChannelOutput
from cutwater.sinks.base import FrameRows
from cutwater.spark.analysis.analysis import channel_form
from cutwater.spark.jvm.channel_scan import ChannelScan, carry, columns_of
from cutwater.spark.jvm.channel_source import ChannelSource, ReadOptions
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_sink import PlannedBatch

POINT = "X'0101000000000000000000F03F0000000000000040'"
SCHEMA = """
    boolean boolean, byte byte, short short, int int, long long, float float, double double,
    decimal decimal(38,18), small decimal(5,2), string string, binary binary, date date,
    at timestamp, local timestamp_ntz,
    array array<int>, nested array<struct<a:int,b:array<string>>>, map map<string,double>,
    struct struct<x:long,y:struct<z:timestamp,w:binary>>
"""
# Column and Spark's SQL for a value: types that Spark has no syntax or Python no value for.
RARE = {
    "nothing": "null",
    "nothing_inside": "named_struct('x', null, 'y', 1, 'z', named_struct('n', null))",
    "nothing_alone": "named_struct('n', null)",
    "no_items": "array()",
    "nothings": "array(null, null)",
    "no_entries": "map()",
    "nothing_in_map": "map('k', null)",
    "months": "INTERVAL '-1-2' YEAR TO MONTH",
    "years": "INTERVAL '3' YEAR",
    "span": "INTERVAL '-1 02:03:04.000005' DAY TO SECOND",
    "hours": "INTERVAL '5' HOUR",
    "spans": "array(INTERVAL '1' SECOND, null)",
    "spans_inside": "named_struct('m', INTERVAL '1-2' YEAR TO MONTH, 's', INTERVAL '1' DAY)",
    "by_span": "map(INTERVAL '1' HOUR, INTERVAL '2' MONTH)",
    "variant": """parse_json('{"v": [1, "two", null, 1.50]}')""",
    "variants": "array(parse_json('null'), parse_json('[]'), null)",
    "variant_inside": """named_struct('v', parse_json('{"a": {"b": true}}'))""",
    "time": "TIME'23:59:59.000001'",
    "round_time": "cast('12:30' AS time(0))",
    "times": "map('t', TIME'00:00:00')",
    "char": "cast('a' AS char(3))",
    "varchar": "cast('ab' AS varchar(5))",
    "lcase": "'Ab' COLLATE UTF8_LCASE",
    "collated": "array('Ab' COLLATE UNICODE_CI)",
    "collated_inside": "named_struct('s', 'Ab' COLLATE UNICODE, 'm', map('k', 'x' COLLATE de))",
    "locals": "array(TIMESTAMP_NTZ'0001-01-01 00:00:00.000001')",
    "point": f"st_geomfromwkb({POINT})",
    "place": f"st_geogfromwkb({POINT})",
}
SHOWN = {name: f"cast({name} AS string)" for name in RARE} | {
    "point": "hex(st_asbinary(point))",
    "place": "hex(st_asbinary(place))",
}
READER = ReaderId(StepId("reads"), InputId(0, ChannelId("rows")))
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - Spark's own form


class Point(UserDefinedType):
    """A type of the user's own: two numbers, which Python sees as one."""

    @classmethod
    def sqlType(cls) -> ArrayType:  # noqa: N802 - Spark's name
        return ArrayType(DoubleType(), containsNull=False)

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: "Complex") -> list[float]:
        return [obj.real, obj.imag]

    def deserialize(self, datum: list[float]) -> "Complex":
        return Complex(*datum)


class Complex(complex):
    """What is in such a column."""

    __UDT__ = Point()


def rows(spark: SparkSession) -> DataFrame:
    full = (
        *(True, -128, 32767, -(2**31), 2**63 - 1, 0.1, 1e-300),
        *(decimal.Decimal("99999999999999999999.000000000000000001"), decimal.Decimal("-1.50")),
        *("naïve \x00 ☃", b"\x00\xff", datetime.date(1582, 10, 15), MOMENT, MOMENT),
        *([1, None, 3], [Row(a=None, b=["x", None])], {"k": None, "": 1.5}),
        Row(x=1, y=Row(z=MOMENT, w=b"")),
        *(Complex(1, 2), [Complex(0, 3), None]),
    )
    empty = (None,) * len(full)
    schema = spark.createDataFrame([], SCHEMA).schema
    schema = schema.add("own", Point()).add("owns", ArrayType(Point()))
    return spark.createDataFrame([full, empty, full], schema)


@pytest.fixture
def all_types(spark: SparkSession) -> Iterator[SparkSession]:
    """Enable the types that Spark has only on request."""
    switches = ("timeType.enabled", "geospatial.enabled")
    for name in switches:
        spark.conf.set(f"spark.sql.{name}", "true")
    yield spark
    for name in switches:
        spark.conf.unset(f"spark.sql.{name}")


def channel_of(frame: DataFrame, directory: Path, *, also_as_batch: bool = False) -> Channel:
    """A channel with one Event that holds the rows of a frame, as a query writes them.

    A batch step can write them too, and finds as many.
    """
    log = ChannelLog(ChannelId("rows"), {READER: START})
    form = channel_form(frame.schema)
    channel = Channel(log, directory, form, Bound(10, 10**9), lambda _: None)
    spark = frame.sparkSession
    planned = PlannedBatch(Internals(spark), frame._jdf, lambda _: spark)
    written = ChannelOutput(channel).write(planned, BatchId(0))
    assert written.event is not None
    if also_as_batch:
        again = ChannelOutput(channel).write(FrameRows(frame), BatchId(1))
        assert again.rows == written.rows
    channel.append(written.event)
    return channel


def through(
    spark: SparkSession, channel: Channel, step: Callable[[DataFrame], DataFrame], directory: Path
) -> tuple[list[Row], str]:
    """Read a channel in a streaming query; return its rows and Spark's executed plan."""
    signal = Signal()
    source = ChannelSource(Internals(spark), channel, READER, signal, ReadOptions())
    found: list[Row] = []

    def note(frame: DataFrame, _: int) -> None:
        found.extend(frame.collect())
        # All was read: there is nothing more to wait for.
        signal.close()

    query = (
        step(source.frame())
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(directory))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    channel.close()
    return found, str(query._jsq.explainInternal(True))


def test_every_type_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark)
    channel = channel_of(frame, tmp_path / "channel", also_as_batch=True)

    found, _ = through(spark, channel, lambda one: one, tmp_path / "query")

    assert ordered(map(tuple, found)) == ordered(map(tuple, frame.collect()))
    assert [column.dataType for column in columns_of(channel.form.schema)] == [
        field.dataType for field in frame.schema
    ]


@needs("the type TIME")
def test_rare_types_come_back_as_they_were(all_types: SparkSession, tmp_path: Path) -> None:
    values = ", ".join(f"if(id = 1, null, {value}) AS {name}" for name, value in RARE.items())
    frame = all_types.sql(f"SELECT id, {values} FROM range(3)")
    channel = channel_of(frame, tmp_path / "channel", also_as_batch=True)
    scan = ChannelScan(Internals(all_types), channel)

    batch = scan.rows(0, 1, streaming=False)
    found, _ = through(
        all_types, channel, lambda one: one.selectExpr("id", *SHOWN.values()), tmp_path / "query"
    )

    expected = sorted(map(tuple, frame.selectExpr("id", *SHOWN.values()).collect()))
    assert [entry is None for entry in expected[1]] == [False, *[True] * len(RARE)]
    assert sorted(map(tuple, found)) == expected
    assert sorted(map(tuple, batch.selectExpr("id", *SHOWN.values()).collect())) == expected
    types = [field.dataType.simpleString() for field in frame.schema]
    assert [column.dataType.simpleString() for column in columns_of(channel.form.schema)] == types
    assert [field.dataType.simpleString() for field in batch.schema] == types
    assert batch.where("lcase = 'aB' AND collated[0] = 'aB'").count() == 2
    # Nor does it hurt to know of one that is not carried.
    carry(channel, ["id"])
    assert ChannelScan(Internals(all_types), channel).rows(0, 1, streaming=False).count() == 3


def test_the_scan_reads_only_what_the_step_needs(spark: SparkSession, tmp_path: Path) -> None:
    channel = channel_of(rows(spark), tmp_path / "channel")

    found, plan = through(
        spark, channel, lambda one: one.where("int < 0").select("string"), tmp_path / "query"
    )

    assert [row.string for row in found] == ["naïve \x00 ☃"] * 2
    assert "ReadSchema: struct<int:int,string:string>" in plan
    assert "PushedFilters: [IsNotNull(int), LessThan(int,0)]" in plan
    assert "Batched: true" in plan


def test_a_pipeline_knows_its_columns(spark: SparkSession) -> None:
    """The form of a channel has no metadata and no column that must not be null."""
    frame = spark.range(3).select(F.col("id").alias("id", metadata={"note": "x"}))

    (column,) = columns_of(channel_form(frame.schema).schema).fields
    assert column.nullable
    assert not column.metadata
