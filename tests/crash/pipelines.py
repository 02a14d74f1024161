"""The pipelines that are killed. What each must show in the end follows from arithmetic alone."""

import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import example

from cutwater import Pipeline, sinks, sources


def join(total: str, rate: str, table: str) -> Pipeline:
    """Two sources of unlike batches, each behind a channel, joined in one step into one sink."""
    pipeline = Pipeline("join")

    @pipeline.source(chain=False)
    def left(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=700)

    @pipeline.source(chain=False)
    def right(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=1100)
        return rows.select(F.col("value").alias("number"), F.col("at").alias("since"))

    @pipeline.step
    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        lefts = left.withWatermark("at", "10 seconds")
        rights = right.withWatermark("since", "10 seconds")
        same = (F.col("value") == F.col("number")) & (F.col("at") == F.col("since"))
        return lefts.join(rights, same).select("value", (F.col("number") * 7).alias("seven"))

    pipeline.sink("table", sinks.delta(table), of=joined)
    return pipeline


def shop(total: str, rate: str, dsn: str, table: str, slow_us: str) -> Pipeline:
    """One source; a Delta table, two PostgreSQL tables, one of them behind a slow step."""
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
        # Each key once in a batch: the order of rows in a batch is nobody's promise.
        return numbers.groupBy((F.col("value") % 100).alias("part")).agg(
            F.max("value").alias("value")
        )

    values = lambda numbers: numbers.select("value")  # noqa: E731
    pipeline.sink("all", sinks.delta(table), of=values)
    pipeline.sink("slowly", sinks.postgres(dsn, table="slowly"), of=slow)
    parts = sinks.postgres(dsn, table="parts", write="upsert", keys=["part"])
    pipeline.sink("parts", parts, of=newest)
    return pipeline


PIPELINES: Mapping[str, Callable[..., Pipeline]] = {
    "join": join,
    "diamond": lambda **given: _example("diamond", given),
    "shop": shop,
    "three_sinks": lambda **given: _example("three_sinks", given),
}


def _example(name: str, given: Mapping[str, str]) -> Pipeline:
    pipeline = example(name).create(**given)
    assert isinstance(pipeline, Pipeline)
    return pipeline
