"""Cutwater: the same two results of one Kafka topic, at one checkpoint.

cutwater run examples/migration/one_topic_after.py:create --conf spark.jars.packages=… \
    --param bootstrap=broker:9092 --param topic=orders --param out=/data/tables
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks


def create(bootstrap: str, topic: str, out: str) -> Pipeline:
    """Create the pipeline: one source, which is read once, and two tables."""
    pipeline = Pipeline("one_topic")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        schema = "id long, customer string, cents long"
        rows = stream.select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
        return rows.select("row.*")

    @pipeline.step(output_mode="complete")
    def totals(orders: DataFrame) -> DataFrame:
        groups = orders.groupBy("customer")
        return groups.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))

    pipeline.sink("total_table", sinks.delta(f"{out}/totals", write="overwrite"), of=totals)
    pipeline.sink("archive", sinks.delta(f"{out}/archive"), of=orders)
    return pipeline
