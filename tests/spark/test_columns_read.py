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
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START
from cutwater.runtime.channel import Channel, Signal
from cutwater.runtime.output import ChannelOutput
from cutwater.sinks.base import FrameRows
from cutwater.spark.analysis.analysis import channel_form
from cutwater.spark.analysis.column_pruning import columns_read, rows_depend_on_columns
from cutwater.spark.jvm.channel_scan import ChannelScan, carry, select_carried
from cutwater.spark.jvm.channel_source import ChannelSource, ReadOptions
from cutwater.spark.jvm.internals import Internals

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


def viewed(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("viewed")
    return rows.sparkSession.sql("select id from viewed where key > 1")


def named(rows: DataFrame) -> DataFrame:
    """Spark could say, but pruning alone does not see through it."""
    rows.createOrReplaceTempView("viewed")
    return rows.sparkSession.sql("with a as (select * from viewed where id > 1) select id from a")


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
        # What is constant for now is not for ever: which time it is, what a function looks up.
        (
            lambda rows: rows.where("current_date > date'2000-01-01' or key > 1").select("id"),
            "id key",
        ),
        (
            lambda rows: rows.select(F.when(F.lit(True), F.col("id")).otherwise(F.col("key"))),
            "id key",
        ),
        (lambda rows: rows.where("false and key > 1").select("id"), "id key"),
        (lambda rows: rows.alias("a").select("a.id"), "id"),
        (viewed, "id key"),
        (named, ALL),
        (ranked, "id key at"),
    ],
)
def test_a_step_reads_what_the_optimizer_leaves(
    spark: SparkSession, tmp_path: Path, step: Step, read: str
) -> None:
    internals = Internals(spark)
    reader = ReaderId(StepId("reads"), FIRST)
    source = ChannelSource(internals, channel_in(spark, tmp_path), reader, Signal(), ReadOptions())

    found = columns_read(internals, step(source.frame()))

    assert found == {reader: frozenset(read.split())}


def test_what_is_not_carried_is_never_read_as_nothing(spark: SparkSession, tmp_path: Path) -> None:
    channel = channel_in(spark, tmp_path)
    frame = spark.sql(
        "select 1L id, 2 key, timestamp'2026-01-01' at, 'x' `a.b`, struct(1 as x, 2 as y) deep"
    )
    carry(channel, {"key", "a.b"})
    written = ChannelOutput(channel).write(FrameRows(select_carried(frame, channel)), BatchId(0))
    assert written.event is not None
    channel.append(written.event)

    rows = ChannelScan(Internals(spark), channel).rows(0, 1, streaming=False)

    assert pq.read_schema(channel.data / written.event.files[0]).names == ["key", "a.b"]
    assert rows.schema == channel.form.schema
    assert [tuple(row) for row in rows.select("`a.b`", "key").collect()] == [("x", 2)]
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
            seen.update(tuple(pq.read_schema(data / file).names) for file in written.event.files)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelOutput, "write", noted)
        assert run(pipeline, spark, options(tmp_path)).finished

    assert seen == {("value", "key", "twice")}
    assert table(tmp_path / "values", "value") == [(number,) for number in range(total)]
    assert table(tmp_path / "sums", "key", "sum") == [
        (key, 2 * sum(range(key, total, 7))) for key in range(7)
    ]


def test_newest_rows_are_found_by_keys_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    internals, channel = Internals(spark), channel_in(spark, tmp_path)
    for number in range(2):
        frame = spark.range(2).selectExpr(
            "id", f"{number} key", "timestamp'2026-01-01' at", "'' `a.b`", "struct(1 x, 2 y) deep"
        )
        written = ChannelOutput(channel).write(FrameRows(frame), BatchId(number))
        assert written.event is not None
        channel.append(written.event)

    for key, needed in {"id": "id key", "ID": ALL, "deep.x": ALL, "a.b": "key a.b"}.items():
        reader = ReaderId(StepId("reads"), FIRST)
        source = ChannelSource(internals, channel, reader, Signal(), ReadOptions(keys=(key,)))
        newest = ChannelScan(internals, channel, (key,)).rows(0, 2, streaming=False)
        assert columns_read(internals, source.frame().select("key")) == {
            reader: frozenset(needed.split())
        }
        assert [row.key for row in newest.collect()] == [1, 1]
    channel.close()


def test_text_is_parsed_as_far_as_if_everything_were_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("1,10\n2,x\n3,30\n")
    text = spark.read.schema("id long, n int")
    corrupt = spark.readStream.schema("id long, n int, bad string")
    for frame, depends in (
        (text.csv(str(tmp_path / "in")), False),
        (text.option("MODE", "FailFast").json(str(tmp_path / "in")), True),
        (corrupt.csv(str(tmp_path / "in")), False),
        (corrupt.option("columnNameOfCorruptRecord", "bad").csv(str(tmp_path / "in")), True),
        (spark.readStream.schema("_corrupt_record string").json(str(tmp_path / "in")), True),
    ):
        assert rows_depend_on_columns(Internals(spark), frame.select("*")) is depends
    pipeline = Pipeline("malformed")

    @pipeline.source(chain=False)
    def lines(spark: SparkSession) -> DataFrame:
        read = spark.readStream.schema("id long, n int").option("mode", "DROPMALFORMED")
        return read.csv(str(tmp_path / "in"))

    @pipeline.sink(sinks.delta(str(tmp_path / "ids")))
    def ids(lines: DataFrame) -> DataFrame:
        return lines.select("id")

    assert run(pipeline, spark, options(tmp_path, available_now=True)).finished

    assert table(tmp_path / "ids", "id") == [(1,), (3,)]
