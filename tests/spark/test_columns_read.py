"""A channel carries what its readers read: found by Spark's optimizer, and wrong only loudly."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from tests.spark.runs import options, run, table

from cutwater import Pipeline, sinks, sources
from cutwater.ids import BatchId, ChannelId, InputId, ReaderId, StepId
from cutwater.physical_plan import PhysicalStep, StepInput
from cutwater.protocol.channel import Bound, ChannelLog
from cutwater.protocol.message import START
from cutwater.sinks.rows import FrameRows
from cutwater.spark.analysis import channel_form
from cutwater.spark.channel import Channel, Signal
from cutwater.spark.channel_scan import ChannelScan, narrowed
from cutwater.spark.channel_source import ChannelSource, Reading
from cutwater.spark.columns_read import columns_read
from cutwater.spark.internals import Internals
from cutwater.spark.output import ChannelOutput
from cutwater.step_options import StepOptions

Step = Callable[[DataFrame], DataFrame]
SCHEMA = "id long, key int, at timestamp, `a.b` string, deep struct<x:int,y:int>"
ALL = "id key at a.b deep"
FIRST = InputId(0, ChannelId("rows"))


def channel_in(spark: SparkSession, directory: Path) -> Channel:
    log = ChannelLog(ChannelId("rows"), {ReaderId(StepId("reads"), FIRST): START})
    form = channel_form(spark.createDataFrame([], SCHEMA).schema)
    return Channel(log, directory, form, Bound(10, 10**9), lambda _: None)


def joined(rows: DataFrame) -> DataFrame:
    timed = rows.withWatermark("at", "1 minute")
    return timed.select("id", "at").join(
        timed.select(F.col("id").alias("other"), F.col("at").alias("then")),
        F.expr("id = other and at = then"),
    )


def ranked(rows: DataFrame) -> DataFrame:
    """Not for streams, but for what the optimizer does not see through."""
    rank = F.row_number().over(Window.partitionBy("key").orderBy("at"))
    return rows.withColumn("rank", rank).where("rank = 1").select("id")


def mapped(rows: DataFrame) -> DataFrame:
    return rows.mapInPandas(as_it_is, rows.schema)


def as_it_is(pages: Iterator[Any]) -> Iterator[Any]:
    yield from pages


@pytest.mark.parametrize(
    ("step", "read"),
    [
        (lambda rows: rows, ALL),
        (lambda rows: rows.select("id"), "id"),
        (lambda rows: rows.where("key > 1").select("id"), "id key"),
        (lambda rows: rows.groupBy("key").count(), "key"),
        (lambda rows: rows.groupBy().count(), ""),
        (lambda rows: rows.groupBy("key").agg(F.max("deep.x")), "key deep"),
        (lambda rows: rows.withWatermark("at", "1 second").select("id"), "id at"),
        (lambda rows: rows.dropDuplicates(["key"]).select("id"), "id key"),
        (lambda rows: rows.dropDuplicates(["key"]), ALL),
        (lambda rows: rows.select("id").union(rows.select("key")), "id key"),
        (lambda rows: rows.select(F.udf(lambda one: one, "long")("id").alias("u")), "id"),
        (lambda rows: mapped(rows.select("id", "key")).select("id"), "id key"),
        (lambda rows: rows.select("`a.b`"), "a.b"),
        (lambda rows: rows.select(F.explode(F.array("id", "key")).alias("one")), "id key"),
        (joined, "id at"),
        (ranked, "id key at"),
    ],
)
def test_a_step_reads_what_the_optimizer_leaves(
    spark: SparkSession, tmp_path: Path, step: Step, read: str
) -> None:
    internals = Internals(spark)
    reader = ReaderId(StepId("reads"), FIRST)
    source = ChannelSource(internals, channel_in(spark, tmp_path), reader, Signal(), Reading())
    plan = PhysicalStep(
        name=reader.step,
        nodes=(),
        inputs=(StepInput(FIRST, "reads", "rows"),),
        output_mode="append",
        options=StepOptions(),
        output=None,
    )

    found = columns_read(internals, plan, step(source.frame()))

    assert found == {reader: frozenset(read.split())}


def test_what_is_not_carried_is_never_read_as_nothing(spark: SparkSession, tmp_path: Path) -> None:
    channel = channel_in(spark, tmp_path)
    frame = spark.sql(
        "select 1L id, 2 key, timestamp'2026-01-01' at, 'x' `a.b`, struct(1 as x, 2 as y) deep"
    )
    channel.carry({"key", "a.b"})
    written = ChannelOutput(channel).write(FrameRows(narrowed(frame, channel)), BatchId(0))
    assert written.event is not None
    channel.append(written.event)

    rows = ChannelScan(Internals(spark), channel).rows(0, 1, streaming=False)

    assert pq.read_schema(channel.data / written.event.files[0]).names == ["key", "a.b"]
    assert rows.schema == channel.form.schema
    assert [tuple(one) for one in rows.select("`a.b`", "key").collect()] == [("x", 2)]
    with pytest.raises(PySparkException, match="channel rows does not carry a column"):
        rows.select("deep").collect()
    channel.close()


def test_a_channel_carries_what_all_its_readers_read(spark: SparkSession, tmp_path: Path) -> None:
    total = 3000
    pipeline = Pipeline("narrow")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        found = sources.sequence(spark, total=total, partitions=2)
        return found.selectExpr("value", "value % 7 as key", "value * 2 as twice", "at", "1 as one")

    @pipeline.step
    def passed(numbers: DataFrame) -> DataFrame:
        return numbers.where("one = 1")

    @pipeline.step(output_mode="complete", partitions=2)
    def sums(passed: DataFrame) -> DataFrame:
        return passed.groupBy("key").agg(F.sum("twice").alias("sum"))

    pipeline.sink("all_sums", sinks.delta(str(tmp_path / "sums"), write="overwrite"), of=sums)

    @pipeline.sink(sinks.delta(str(tmp_path / "values")))
    def values(passed: DataFrame) -> DataFrame:
        return passed.select("value")

    seen: set[tuple[str, ...]] = set()
    write = ChannelOutput.write

    def noted(self: ChannelOutput, rows: Any, batch: BatchId) -> Any:  # noqa: ANN401
        written = write(self, rows, batch)
        if written.event:
            data = self._channel.data
            seen.update(tuple(pq.read_schema(data / one).names) for one in written.event.files)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelOutput, "write", noted)
        assert run(pipeline, spark, options(tmp_path)).finished

    assert seen == {("value", "key", "twice")}
    assert table(tmp_path / "values", "value") == [(one,) for one in range(total)]
    assert table(tmp_path / "sums", "key", "sum") == [
        (key, 2 * sum(range(key, total, 7))) for key in range(7)
    ]
