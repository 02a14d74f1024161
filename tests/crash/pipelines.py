"""The pipelines that are killed. What each must show in the end follows from arithmetic alone."""

import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import example

from cutwater import Pipeline, sinks, sources
from cutwater.pipeline.nodes import StateStore


def join(total: str, rate: str, table: str, state: StateStore = "rocksdb") -> Pipeline:
    """Two sources of unlike batches, each with a channel, joined in one step into one sink."""
    pipeline = Pipeline("join")

    @pipeline.source(chain=False)
    def left(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)

    @pipeline.source(chain=False)
    def right(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=1100)
        return rows.select(F.col("value").alias("number"), F.col("at").alias("since"))

    @pipeline.step(state=state)
    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        lefts = left.withWatermark("at", "10 seconds")
        rights = right.withWatermark("since", "10 seconds")
        same = (F.col("value") == F.col("number")) & (F.col("at") == F.col("since"))
        return lefts.join(rights, same).select("value", (F.col("number") * 7).alias("seven"))

    pipeline.sink("table", sinks.delta(table), of=joined)
    return pipeline


def files(total: str, rate: str, table: str) -> Pipeline:
    """One source straight into a directory of files."""
    pipeline = Pipeline("files")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)
        return rows.select("value", (F.col("value") % 3).alias("part"))

    pipeline.sink("files", sinks.files(table, partition_by=["part"]), of=numbers)
    return pipeline


def straight(total: str, rate: str, table: str, **delivered: str) -> Pipeline:
    """One source straight into one sink, whose options for when rows are seen are given."""
    pipeline = Pipeline("straight")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)
        return rows.select("value", (F.col("value") * 7).alias("seven"))

    pipeline.sink("table", sinks.delta(table, **delivered), of=numbers)
    return pipeline


WAYS_KEYS = 40


def ways(total: str, rate: str, tables: str) -> Pipeline:
    """One source into three tables: appended to, upserted and overwritten."""
    pipeline = Pipeline("ways")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)

    def counted(numbers: DataFrame) -> DataFrame:
        key = F.col("value") % WAYS_KEYS
        # One of the keys is null.
        groups = numbers.groupBy(F.when(key != 0, key).alias("key"))
        return groups.agg(F.count("*").alias("count"), F.sum("value").alias("sum"))

    pipeline.step(counted, name="totals", inputs=["numbers"], output_mode="update", partitions=2)
    pipeline.step(counted, name="whole", inputs=["numbers"], output_mode="complete", partitions=2)
    pipeline.sink("append", sinks.delta(f"{tables}/append"), of=numbers)
    upsert = sinks.delta(f"{tables}/upsert", write="upsert", keys=["key"])
    pipeline.sink("upsert", upsert, of="totals")
    overwrite = sinks.delta(f"{tables}/overwrite", write="overwrite")
    pipeline.sink("overwrite", overwrite, of="whole")
    return pipeline


def shop(total: str, rate: str, dsn: str, table: str, slow_us: str) -> Pipeline:
    """One source; a Delta table, two PostgreSQL tables, one of them after a slow step."""
    pipeline = Pipeline("shop")
    pause_s = int(slow_us) / 1e6

    def slowly(value: int) -> int:
        time.sleep(pause_s)
        return value * 3

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=5000)

    @pipeline.step(max_batch="64KB")
    def slow(numbers: DataFrame) -> DataFrame:
        thrice = F.udf(slowly, "long", useArrow=False)(F.col("value"))
        return numbers.select("value", thrice.alias("thrice"))

    @pipeline.step(output_mode="update", partitions=2)
    def newest(numbers: DataFrame) -> DataFrame:
        # Each key once in a batch: the order of rows in a batch is not guaranteed.
        return numbers.groupBy((F.col("value") % 100).alias("part")).agg(
            F.max("value").alias("value")
        )

    values = lambda numbers: numbers.select("value")  # noqa: E731
    pipeline.sink("all", sinks.delta(table), of=values)
    pipeline.sink("slowly", sinks.postgres(dsn, table="slowly"), of=slow)
    parts = sinks.postgres(dsn, table="parts", write="upsert", keys=["part"])
    pipeline.sink("parts", parts, of=newest)
    return pipeline


PUBLISHED_KEYS = 7


def published(total: str, rate: str, bootstrap: str, staging: str, table: str) -> Pipeline:
    """One source; a Kafka topic with a key, and a Delta table after a step with state."""
    pipeline = Pipeline("published")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)

    @pipeline.step(partitions=2, state="memory")
    def once(numbers: DataFrame) -> DataFrame:
        return numbers.dropDuplicates(["value"]).select("value")

    keyed = lambda numbers: numbers.select(  # noqa: E731
        "value", (F.col("value") % PUBLISHED_KEYS).alias("part")
    )
    topic = sinks.kafka(
        bootstrap,
        topic="numbers",
        key=["part"],
        value="json",
        staging=staging,
        order_by=["value"],
    )
    pipeline.sink("topic", topic, of=keyed)
    pipeline.sink("table", sinks.delta(table), of=once)
    return pipeline


PIPELINES: Mapping[str, Callable[..., Pipeline]] = {
    "files": files,
    "join": join,
    "published": published,
    "straight": straight,
    "diamond": lambda **given: _example("diamond", given),
    "ways": ways,
    "shop": shop,
    "three_sinks": lambda **given: _example("three_sinks", given),
}


def _example(name: str, given: Mapping[str, str]) -> Pipeline:
    pipeline = example(name).create(**given)
    assert isinstance(pipeline, Pipeline)
    return pipeline
