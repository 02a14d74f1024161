"""Counts per event-time window: a linear pipeline, one Spark query at Spark's own speed.

cutwater run examples/windows.py:create --available-now --param table=out/windows
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(total: str = "20000", rate: str = "1000", table: str = "out/windows") -> Pipeline:
    """Create the pipeline: count rows per page in event-time windows of two seconds."""
    pipeline = Pipeline("windows")

    @pipeline.source
    def clicks(spark: SparkSession) -> DataFrame:
        numbers = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=2000)
        return numbers.withColumn("page", F.col("value") % 7).withWatermark("at", "3 seconds")

    @pipeline.step
    def per_window(clicks: DataFrame) -> DataFrame:
        windows = clicks.groupBy(F.window("at", "2 seconds"), "page").count()
        return windows.select("window.start", "window.end", "page", "count")

    pipeline.sink("counts", sinks.delta(table), of=per_window)
    return pipeline
