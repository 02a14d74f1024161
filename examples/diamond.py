"""A diamond: numbers go through a fast and a slow branch, are joined again, and get their price.

Two sources, numbers and prices, meet in one join. The slow branch waits a while for every row, so
its backlog grows and with it the time a barrier needs to come through: after `alignment_timeout`
it overtakes the data instead.

    cutwater run examples/diamond.py:create --available-now --param total=5000 --param slow_us=200
"""

import math
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources

LOT = 100
"""So many numbers in a row have one price."""


def create(
    total: str = "20000",
    rate: str = "2000",
    slow_us: str = "100",
    table: str = "out/diamond",
) -> Pipeline:
    """Make the pipeline.

    Args:
        total: How many numbers.
        rate: How many numbers a second.
        slow_us: How long the slow branch waits for each row, in microseconds.
        table: Where the result goes.
    """
    pipeline = Pipeline("diamond")
    pause_s = int(slow_us) / 1e6
    numbers_s, lots_s = float(rate), float(rate) / LOT
    # Which price it is, the lot says; the time says for how long a row is remembered.
    of_its_lot = f"""
        lot = value div {LOT}
        AND at >= offered - INTERVAL 1 SECOND
        AND at <= offered + INTERVAL {math.ceil(1 / lots_s)} SECONDS
    """

    def slowly(value: int) -> int:
        time.sleep(pause_s)
        return value * 3

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=numbers_s, batch_max=5000)

    @pipeline.source
    def prices(spark: SparkSession) -> DataFrame:
        lots = sources.sequence(
            spark, total=math.ceil(int(total) / LOT), rate=lots_s, batch_max=500
        )
        price = F.col("value") % 7 + 1
        return lots.select(
            F.col("value").alias("lot"), F.col("at").alias("offered"), price.alias("price")
        ).withWatermark("offered", "10 seconds")

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
    def both(fast: DataFrame, slow: DataFrame, prices: DataFrame) -> DataFrame:
        same = (F.col("value") == F.col("number")) & (F.col("at") == F.col("since"))
        joined = fast.join(slow, same).select("value", "twice", "thrice", "at")
        priced = joined.join(prices, F.expr(of_its_lot))
        return priced.select("value", "twice", "thrice", "price", "at")

    pipeline.sink("joined", sinks.delta(table), of=both)
    return pipeline
