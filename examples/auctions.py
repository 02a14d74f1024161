"""The auction pipeline of `make demo` and `make dashboard`, with events of the NEXMark benchmark.

Three sources read one stream of events: people, auctions and bids. Two consumers share the
enriched bids. One step finds the highest price of each channel in every two seconds of event time.
Another step joins auctions with the names of their sellers. The three tables are committed
together. State expires as event time advances, so the pipeline can run indefinitely.
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
    """Create the pipeline.

    Args:
        total: The number of events of all kinds, or `endless`.
        rate: Events of all kinds per second.
        tables: The directory for the three tables.
        active: The number of people who open auctions and bid at a time: the newest ones.
    """
    pipeline = Pipeline("auctions")
    events = None if total == "endless" else int(total)
    market = sources.Market(active_people=int(active))
    stream = {"total": events, "rate": float(rate), "batch_max": 20_000, "market": market}
    # People who joined earlier open no more auctions, so the join can forget them.
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
    """Keep bids above 1000 euros."""
    return priced.where("euros > 1000")
