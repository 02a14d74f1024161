"""The auction pipeline of `make demo` and `make dashboard`: events of the NEXMark benchmark.

One stream of events is read as three sources: people, auctions, bids. Bids are enriched and shared
by two consumers; every two seconds of event time the highest price of each channel is found; and
each person's auctions are joined with their names. Three tables, committed together. Whatever is
kept is forgotten as event time goes on, so that it can run for ever.
"""

import math

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(
    total: str = "100000",
    rate: str = "3000",
    tables: str = "out/auctions",
    active: str = "1000",
) -> Pipeline:
    """Make the pipeline.

    Args:
        total: How many events of all kinds, or `endless`.
        rate: How many of them a second.
        tables: The directory of the three tables.
        active: How many people open auctions and bid at a time: so many of the newest.
    """
    pipeline = Pipeline("auctions")
    events = None if total == "endless" else int(total)
    market = sources.Market(active_people=int(active))
    stream = {"total": events, "rate": float(rate), "batch_max": 20_000, "market": market}
    # Whoever is older opens no auction any more, and need not be remembered.
    active_s = math.ceil(market.active_events / float(rate))
    opened_by = f"""
        seller = person
        AND dateTime >= joined
        AND dateTime <= joined + INTERVAL {active_s} SECONDS
    """

    @pipeline.source
    def bids(spark: SparkSession) -> DataFrame:
        return sources.nexmark(spark, "bid", **stream)

    @pipeline.source(chain=False)
    def auctions(spark: SparkSession) -> DataFrame:
        rows = sources.nexmark(spark, "auction", **stream)
        chosen = rows.select("id", "seller", "category", "dateTime")
        return chosen.withWatermark("dateTime", "2 seconds")

    @pipeline.source(chain=False)
    def people(spark: SparkSession) -> DataFrame:
        rows = sources.nexmark(spark, "person", **stream)
        chosen = rows.selectExpr("id AS person", "name", "city", "dateTime AS joined")
        return chosen.withWatermark("joined", "2 seconds")

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
        joined = auctions.join(people, F.expr(opened_by))
        return joined.select("id", "seller", "name", "city", "category")

    pipeline.sink("high_bids", sinks.delta(f"{tables}/high_bids"), of=large_bids)
    pipeline.sink("channels", sinks.delta(f"{tables}/channels"), of=per_channel)
    pipeline.sink("auction_sellers", sinks.delta(f"{tables}/auction_sellers"), of=sellers)
    return pipeline


def large_bids(priced: DataFrame) -> DataFrame:
    """Keep what is worth a look."""
    return priced.where("euros > 1000")
