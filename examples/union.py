"""Two sources merged into one stream, written to a table partitioned by source.

cutwater run examples/union.py:create --available-now
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(total: str = "10000", rate: str = "4000", table: str = "out/union") -> Pipeline:
    """Create the pipeline: rows of a web shop and of stores; `channel` names their origin."""
    pipeline = Pipeline("union")

    @pipeline.source(chain=False)
    def web(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total), rate=float(rate), batch_max=1500)

    @pipeline.source(chain=False)
    def stores(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=int(total) // 2, rate=float(rate), batch_max=1000)

    @pipeline.step
    def sales(web: DataFrame, stores: DataFrame) -> DataFrame:
        return web.withColumn("channel", F.lit("web")).unionByName(
            stores.withColumn("channel", F.lit("store"))
        )

    pipeline.sink("all_sales", sinks.delta(table, partition_by=["channel"]), of=sales)
    return pipeline
