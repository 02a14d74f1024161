"""The auction pipeline of `make demo` and `make dashboard`: events of the NEXMark benchmark.

One stream of events is read as three sources: people, auctions, bids. Bids are enriched and shared
by two consumers; every two seconds of event time the highest price of each channel is found; and
each person's auctions are joined with their names. Three tables, committed together.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(total: str = "100000", rate: str = "3000", tables: str = "out/auctions") -> Pipeline:
    """Make the pipeline.

    Args:
        total: How many events of all kinds, or `endless`.
        rate: How many of them a second.
        tables: The directory of the three tables.
    """
    pipeline = Pipeline("auctions")
    events = None if total == "endless" else int(total)
    stream = {"total": events, "rate": float(rate), "batch_max": 20_000}

    @pipeline.source
    def bids(spark: SparkSession) -> DataFrame:
        return sources.nexmark(spark, "bid", **stream)

    @pipeline.source(chain=False)
    def auctions(spark: SparkSession) -> DataFrame:
        rows = sources.nexmark(spark, "auction", **stream)
        return rows.select("id", "seller", "category", "dateTime")

    @pipeline.source(chain=False)
    def people(spark: SparkSession) -> DataFrame:
        return sources.nexmark(spark, "person", **stream).select("id", "name", "city")

    @pipeline.view
    def priced(bids: DataFrame) -> DataFrame:
        euros = (F.col("price") * 0.92).cast("decimal(18,2)")
        priced = bids.select("auction", "bidder", "channel", "dateTime", euros.alias("euros"))
        return priced.withWatermark("dateTime", "2 seconds")

    @pipeline.step
    def per_channel(priced: DataFrame) -> DataFrame:
        windows = priced.groupBy(F.window("dateTime", "2 seconds"), "channel")
        highest = windows.agg(F.max("euros").alias("highest"), F.count("*").alias("bids"))
        return highest.select("window.start", "channel", "highest", "bids")

    @pipeline.step
    def sellers(auctions: DataFrame, people: DataFrame) -> DataFrame:
        who = people.withColumnRenamed("id", "seller")
        return auctions.join(who, "seller").select("id", "seller", "name", "city", "category")

    pipeline.sink("high_bids", sinks.delta(f"{tables}/high_bids"), of=large_bids)
    pipeline.sink("channels", sinks.delta(f"{tables}/channels"), of=per_channel)
    pipeline.sink("auction_sellers", sinks.delta(f"{tables}/auction_sellers"), of=sellers)
    return pipeline


def large_bids(priced: DataFrame) -> DataFrame:
    """Keep what is worth a look."""
    return priced.where("euros > 1000")
