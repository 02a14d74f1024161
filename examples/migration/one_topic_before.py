"""Plain Spark: two queries on one Kafka topic, each with a checkpoint of its own.

spark-submit --packages … examples/migration/one_topic_before.py broker:9092 orders /data
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery


def read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
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


def start_totals(orders: DataFrame, out: str, **trigger: bool) -> StreamingQuery:
    groups = orders.groupBy("customer")
    totals = groups.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))

    def replace(batch: DataFrame, _: int) -> None:
        batch.write.mode("overwrite").parquet(f"{out}/totals")

    query = totals.writeStream.outputMode("complete").foreachBatch(replace)
    query = query.option("checkpointLocation", f"{out}/checkpoints/totals")
    return query.trigger(**trigger).start() if trigger else query.start()


def start_archive(orders: DataFrame, out: str, **trigger: bool) -> StreamingQuery:
    query = orders.writeStream.format("parquet").option("path", f"{out}/archive")
    query = query.option("checkpointLocation", f"{out}/checkpoints/archive")
    return query.trigger(**trigger).start() if trigger else query.start()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    start_totals(read(session, *sys.argv[1:3]), sys.argv[3])
    start_archive(read(session, *sys.argv[1:3]), sys.argv[3])
    session.streams.awaitAnyTermination()
