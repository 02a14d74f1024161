"""One source and three tables that always show the same moment of the stream.

cutwater run examples/three_sinks.py:create --available-now
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(total: str = "20000", rate: str = "4000", tables: str = "out/three") -> Pipeline:
    """Create the pipeline: all orders, the large orders, and the sum of every second."""
    pipeline = Pipeline("three_sinks")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=2000)
        amount = (F.col("value") * 37) % 1000
        return rows.withColumn("amount", amount).withWatermark("at", "1 second")

    @pipeline.view
    def large(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 900")

    @pipeline.step
    def per_second(orders: DataFrame) -> DataFrame:
        sums = orders.groupBy(F.window("at", "1 second")).agg(F.sum("amount").alias("sum"))
        return sums.select("window.start", "sum")

    pipeline.sink("all_orders", sinks.delta(f"{tables}/all"), of=orders)
    pipeline.sink("large_orders", sinks.delta(f"{tables}/large"), of=large)
    pipeline.sink("sums", sinks.delta(f"{tables}/sums"), of=per_second)
    return pipeline
