"""Orders from a Kafka topic, enriched by a second topic, into a third topic and a Delta table.

Both outputs commit at the same checkpoints. `make kafka` runs it on a broker of its own, kills it
during a commit, resumes it and compares both outputs with a recomputation. With a broker of yours:

    cutwater run examples/kafka_orders.py:create --conf spark.jars.packages=… \
        --param bootstrap=broker:9092 --param out=/data/orders
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks


def create(bootstrap: str, out: str) -> Pipeline:
    """Return the pipeline.

    Args:
        bootstrap: The broker's address. It has the topics orders, customers and enriched.
        out: A directory for the table and for rows that wait for their checkpoint.
    """
    pipeline = Pipeline("kafka_orders")

    def read(spark: SparkSession, topic: str, schema: str) -> DataFrame:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 2000)
            .load()
        )
        rows = stream.select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
        return rows.select("row.*")

    @pipeline.source(consumer_group="kafka_orders")
    def orders(spark: SparkSession) -> DataFrame:
        return read(spark, "orders", "id long, customer long, cents long")

    @pipeline.source
    def customers(spark: SparkSession) -> DataFrame:
        return read(spark, "customers", "customer long, name string")

    @pipeline.step(partitions=2)
    def enriched(orders: DataFrame, customers: DataFrame) -> DataFrame:
        return orders.join(customers, "customer").select("id", "name", "cents")

    topic = sinks.kafka(
        bootstrap, topic="enriched", key=["name"], value="json", staging=f"{out}/staging"
    )
    pipeline.sink("enriched_topic", topic, of=enriched)
    pipeline.sink("enriched_table", sinks.delta(f"{out}/enriched"), of=enriched)
    return pipeline
