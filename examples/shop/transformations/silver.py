"""Orders that count, with their customers."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view
def valid_orders() -> DataFrame:
    return spark.readStream.table("bronze_orders").where("amount > 0")


@dp.table(partition_cols=["country"])
def silver_orders() -> DataFrame:
    orders = spark.readStream.table("valid_orders")
    customers = spark.readStream.table("bronze_customers")
    joined = orders.join(customers, "customer")
    return joined.select("id", "customer", "name", "amount", "at", "country")
