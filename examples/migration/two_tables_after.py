"""Cutwater: the same two tables, as two sinks that commit together.

cutwater run examples/migration/two_tables_after.py:create \
    --param incoming=/data/incoming --param out=/data/tables
"""

from pyspark.sql import DataFrame, SparkSession

from cutwater import Pipeline, sinks


def create(incoming: str, out: str) -> Pipeline:
    """Create the pipeline: one step with state, and two tables of its rows."""
    pipeline = Pipeline("two_tables")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        schema = "id long, customer string, cents long, at timestamp"
        return spark.readStream.schema(schema).json(incoming)

    @pipeline.step
    def distinct(orders: DataFrame) -> DataFrame:
        # A client that gets no answer sends its order again.
        return orders.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])

    pipeline.sink("all_orders", sinks.delta(f"{out}/orders"), of=distinct)

    @pipeline.sink(sinks.delta(f"{out}/large"))
    def large_orders(distinct: DataFrame) -> DataFrame:
        return distinct.where("cents > 10000")

    return pipeline
