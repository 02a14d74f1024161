"""Cutwater: the same two steps, joined by a channel instead of a directory.

cutwater run examples/migration/file_chain_after.py:create \
    --param incoming=/data/incoming --param out=/data/tables
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks

CLEAN = "id long, customer string, cents long"


def create(incoming: str, out: str) -> Pipeline:
    """Create the pipeline: two steps, the second of which keeps state, and two tables."""
    pipeline = Pipeline("file_chain")

    @pipeline.source
    def lines(spark: SparkSession) -> DataFrame:
        return spark.readStream.text(incoming)

    @pipeline.step
    def clean(lines: DataFrame) -> DataFrame:
        rows = lines.select(F.from_json("value", CLEAN).alias("row")).select("row.*")
        return rows.where("id IS NOT NULL AND cents > 0")

    @pipeline.step(output_mode="complete")
    def totals(clean: DataFrame) -> DataFrame:
        groups = clean.groupBy("customer")
        return groups.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))

    pipeline.sink("clean_orders", sinks.delta(f"{out}/clean"), of=clean)
    pipeline.sink("total_table", sinks.delta(f"{out}/totals", write="overwrite"), of=totals)
    return pipeline
