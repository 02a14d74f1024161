"""What arrives, as it arrives: one table for each source."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
INCOMING = spark.conf.get("shop.incoming")


@dp.table(comment="Orders as they arrive")
def bronze_orders() -> DataFrame:
    schema = "id long, customer long, amount decimal(10,2), at timestamp"
    return spark.readStream.schema(schema).json(f"{INCOMING}/orders")


@dp.table(comment="Customers as they register")
def bronze_customers() -> DataFrame:
    schema = "customer long, name string, country string"
    return spark.readStream.schema(schema).csv(f"{INCOMING}/customers")
