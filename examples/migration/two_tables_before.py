"""Plain Spark: one query that writes two tables with foreachBatch.

spark-submit examples/migration/two_tables_before.py /data/incoming /data
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def read(spark: SparkSession, incoming: str) -> DataFrame:
    schema = "id long, customer string, cents long, at timestamp"
    return spark.readStream.schema(schema).json(incoming)


def start(orders: DataFrame, out: str, **trigger: bool) -> StreamingQuery:
    # A client that gets no answer sends its order again.
    distinct = orders.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])

    def write_both(batch: DataFrame, _: int) -> None:
        batch.persist()
        batch.write.mode("append").parquet(f"{out}/orders")
        batch.where("cents > 10000").write.mode("append").parquet(f"{out}/large")
        batch.unpersist()

    query = distinct.writeStream.foreachBatch(write_both)
    query = query.option("checkpointLocation", f"{out}/checkpoints/orders")
    return query.trigger(**trigger).start() if trigger else query.start()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    start(read(session, sys.argv[1]), sys.argv[2]).awaitTermination()
