"""A stream joined with a static table that maps numbers to names.

cutwater run examples/static_join.py:create --available-now
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources

COUNTRIES = {0: "Austria", 1: "Brazil", 2: "Canada", 3: "Denmark", 4: "Egypt"}


def create(total: str = "10000", rate: str = "4000", table: str = "out/named") -> Pipeline:
    """Create the pipeline."""
    pipeline = Pipeline("static_join")

    @pipeline.source
    def visits(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=2000)
        return rows.withColumn("country", F.col("value") % 6)

    @pipeline.step
    def named(spark: SparkSession, visits: DataFrame) -> DataFrame:
        names = spark.createDataFrame(list(COUNTRIES.items()), "country long, name string")
        return visits.join(F.broadcast(names), "country", "left").select("value", "name")

    pipeline.sink("named_visits", sinks.delta(table), of=named)
    return pipeline
