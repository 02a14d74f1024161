"""Plain Spark: a query that writes Parquet files, and a second one that reads them.

spark-submit examples/migration/file_chain_before.py /data/incoming /data
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

CLEAN = "id long, customer string, cents long"


def start_clean(spark: SparkSession, incoming: str, out: str, **trigger: bool) -> StreamingQuery:
    lines = spark.readStream.text(incoming)
    rows = lines.select(F.from_json("value", CLEAN).alias("row")).select("row.*")
    clean = rows.where("id IS NOT NULL AND cents > 0")
    query = clean.writeStream.format("parquet").option("path", f"{out}/clean")
    query = query.option("checkpointLocation", f"{out}/checkpoints/clean")
    return query.trigger(**trigger).start() if trigger else query.start()


def start_totals(spark: SparkSession, out: str, **trigger: bool) -> StreamingQuery:
    clean = spark.readStream.schema(CLEAN).parquet(f"{out}/clean")
    groups = clean.groupBy("customer")
    totals = groups.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))

    def replace(batch: DataFrame, _: int) -> None:
        batch.write.mode("overwrite").parquet(f"{out}/totals")

    query = totals.writeStream.outputMode("complete").foreachBatch(replace)
    query = query.option("checkpointLocation", f"{out}/checkpoints/totals")
    return query.trigger(**trigger).start() if trigger else query.start()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    start_clean(session, *sys.argv[1:3])
    start_totals(session, sys.argv[2])
    session.streams.awaitAnyTermination()
