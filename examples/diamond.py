"""A diamond: one source, a fast and a slow branch, joined again.

The slow branch waits a while for every row, so its backlog grows and with it the time a barrier
needs to come through: after `alignment_timeout` it overtakes the data instead.

    cutwater run examples/diamond.py:create --available-now --param total=5000 --param slow_us=200
"""

import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(
    total: str = "20000",
    rate: str = "2000",
    slow_us: str = "100",
    table: str = "out/diamond",
) -> Pipeline:
    """Make the pipeline.

    Args:
        total: How many rows.
        rate: How many rows a second.
        slow_us: How long the slow branch waits for each row, in microseconds.
        table: Where the result goes.
    """
    pipeline = Pipeline("diamond")
    pause_s = int(slow_us) / 1e6

    def slowly(value: int) -> int:
        time.sleep(pause_s)
        return value * 3

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=5000)

    @pipeline.step
    def fast(numbers: DataFrame) -> DataFrame:
        return numbers.withColumn("twice", F.col("value") * 2).withWatermark("at", "10 seconds")

    @pipeline.step(max_batch="64KB")
    def slow(numbers: DataFrame) -> DataFrame:
        thrice = F.udf(slowly, "long", useArrow=False)(F.col("value"))
        return numbers.select(
            F.col("value").alias("number"), F.col("at").alias("since"), thrice.alias("thrice")
        ).withWatermark("since", "10 seconds")

    @pipeline.step
    def both(fast: DataFrame, slow: DataFrame) -> DataFrame:
        same = (F.col("value") == F.col("number")) & (F.col("at") == F.col("since"))
        return fast.join(slow, same).select("value", "twice", "thrice", "at")

    pipeline.sink("joined", sinks.delta(table), of=both)
    return pipeline
