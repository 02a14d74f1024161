"""Every type of Spark SQL goes through a channel unchanged, pruned and filtered by the scan."""

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import ordered

from cutwater.ids import BatchId, ChannelId, InputId, ReaderId, StepId
from cutwater.protocol.channel import Bound, ChannelLog
from cutwater.protocol.message import START
from cutwater.sinks.rows import FrameRows
from cutwater.spark.analysis import channel_form
from cutwater.spark.channel import Channel, Signal
from cutwater.spark.channel_source import ChannelSource, Reading
from cutwater.spark.internals import Internals
from cutwater.spark.output import ChannelOutput

SCHEMA = """
    boolean boolean, byte byte, short short, int int, long long, float float, double double,
    decimal decimal(38,18), small decimal(5,2), string string, binary binary, date date,
    at timestamp, local timestamp_ntz,
    array array<int>, nested array<struct<a:int,b:array<string>>>, map map<string,double>,
    struct struct<x:long,y:struct<z:timestamp,w:binary>>
"""
READER = ReaderId(StepId("reads"), InputId(0, ChannelId("rows")))
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - Spark's own form


def rows(spark: SparkSession) -> DataFrame:
    full = (
        *(True, -128, 32767, -(2**31), 2**63 - 1, 0.1, 1e-300),
        *(decimal.Decimal("99999999999999999999.000000000000000001"), decimal.Decimal("-1.50")),
        *("naïve \x00 ☃", b"\x00\xff", datetime.date(1582, 10, 15), MOMENT, MOMENT),
        *([1, None, 3], [Row(a=None, b=["x", None])], {"k": None, "": 1.5}),
        Row(x=1, y=Row(z=MOMENT, w=b"")),
    )
    empty = (None,) * len(full)
    return spark.createDataFrame([full, empty, full], SCHEMA)


def channel_of(frame: DataFrame, directory: Path) -> Channel:
    """A channel with one Event that holds the rows of a frame."""
    log = ChannelLog(ChannelId("rows"), {READER: START})
    form = channel_form(frame.schema)
    channel = Channel(log, directory, form, Bound(10, 10**9), lambda _: None)
    # Once more as on a cluster, where executors count what they write.
    plain, written = (
        ChannelOutput(channel, counted=counted).write(FrameRows(frame), BatchId(0))
        for counted in (False, True)
    )
    assert written.event is not None
    assert written.rows == plain.rows
    channel.append(written.event)
    return channel


def through(
    spark: SparkSession, channel: Channel, step: Callable[[DataFrame], DataFrame], directory: Path
) -> tuple[list[Row], str]:
    """Read a channel in a streaming query; return its rows and Spark's executed plan."""
    source = ChannelSource(Internals(spark), channel, READER, Signal(), Reading())
    found: list[Row] = []

    def note(frame: DataFrame, _: int) -> None:
        found.extend(frame.collect())

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
    channel = channel_of(frame, tmp_path / "channel")

    found, _ = through(spark, channel, lambda one: one, tmp_path / "query")

    assert ordered(map(tuple, found)) == ordered(map(tuple, frame.collect()))
    assert [one.dataType for one in channel.form.schema] == [one.dataType for one in frame.schema]


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

    (column,) = channel_form(frame.schema).schema.fields
    assert column.nullable
    assert not column.metadata
