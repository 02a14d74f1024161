"""A diamond: numbers go through a fast and a slow branch, are joined again, and get a price.

Two sources, numbers and prices, meet in one join. The slow branch sleeps for every row, so its
backlog grows, and a barrier needs longer to pass through it. After `alignment_timeout` the barrier
overtakes the data instead.

    cutwater run examples/diamond.py:create --available-now --param total=5000 --param slow_us=200
"""

import math
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources

LOT = 100
"""The number of consecutive numbers that share one price."""


def create(
    total: str = "20000",
    rate: str = "2000",
    slow_us: str = "100",
    table: str = "out/diamond",
) -> Pipeline:
    """Create the pipeline.

    Args:
        total: The count of numbers.
        rate: Numbers per second.
        slow_us: How long the slow branch sleeps for each row, in microseconds.
        table: The path of the result table.
    """
    pipeline = Pipeline("diamond")
    pause_s = int(slow_us) / 1e6
    numbers_s, lots_s = float(rate), float(rate) / LOT
    # The lot selects the price. The time range limits how long the join keeps a row.
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
