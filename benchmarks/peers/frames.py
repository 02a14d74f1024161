"""The queries of the race as DataFrames: the same code for Cutwater, plain Spark and batch Spark.

In a batch, `withWatermark` does nothing. What Flink and DuckDB run is in `queries`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.peers.queries import (
    CATEGORY,
    COLUMNS,
    DELAY_S,
    SLIDE_S,
    STATES,
    WINDOW_S,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

FILES_PER_BATCH: Final = 2

Compute = Callable[..., DataFrame]
"""From the frames of a query's streams, in their order, to the rows of one table."""


def schema_of(stream: str) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS[stream].items())


def read_stream(
    spark: SparkSession, directory: Path, stream: str, files_per_batch: int = FILES_PER_BATCH
) -> DataFrame:
    """Read a stream as it grows, a few files for each batch."""
    reader = spark.readStream.schema(schema_of(stream))
    return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(directory / stream))


def read_all(spark: SparkSession, directory: Path, stream: str) -> DataFrame:
    """Read all files of a stream at once."""
    return spark.read.schema(schema_of(stream)).parquet(str(directory / stream))


def _timed(frame: DataFrame) -> DataFrame:
    at = F.timestamp_millis("at_ms")
    return frame.withColumn("at", at).withWatermark("at", f"{DELAY_S} seconds")


def _tumbling() -> Column:
    return F.window("at", f"{WINDOW_S} seconds")


def _milliseconds(window: str) -> Column:
    return F.unix_millis(F.col(f"{window}.start")).alias("window_ms")


def _converted(bids: DataFrame) -> DataFrame:
    euros = (F.col("price") * F.lit(0.908)).alias("euros")
    return bids.select("auction", "bidder", euros, "at_ms", "extra")


def _raw(bids: DataFrame) -> DataFrame:
    return bids.select(*COLUMNS["bids"])


def _counts(key: str) -> Compute:
    def counts(bids: DataFrame) -> DataFrame:
        counted = _timed(bids).groupBy(_tumbling(), key).agg(F.count("*").alias("bids"))
        return counted.select(_milliseconds("window"), key, "bids")

    return counts


def _local(auctions: DataFrame, people: DataFrame) -> DataFrame:
    wanted = auctions.where(F.col("category") == CATEGORY)
    wanted = wanted.select(F.col("id").alias("auction"), "seller")
    locals_ = people.where(F.col("state").isin(*STATES)).select("id", "name", "city", "state")
    joined = wanted.join(locals_, F.col("seller") == F.col("id"))
    return joined.select("name", "city", "state", "auction")


def _hottest(bids: DataFrame) -> DataFrame:
    windows = F.window("at", f"{WINDOW_S} seconds", f"{SLIDE_S} seconds")
    counted = _timed(bids).groupBy(windows, "auction").agg(F.count("*").alias("bids"))
    hottest = counted.groupBy("window").agg(F.max("bids").alias("bids"))
    return hottest.select(_milliseconds("window"), "bids")


def _new_sellers(people: DataFrame, auctions: DataFrame) -> DataFrame:
    new = _timed(people).select("id", "name", _tumbling().alias("joined"))
    opened = _timed(auctions).select(
        F.col("id").alias("auction"), "seller", _tumbling().alias("opened")
    )
    same = (F.col("id") == F.col("seller")) & (F.col("joined") == F.col("opened"))
    return new.join(opened, same).select("id", "name", _milliseconds("joined"), "auction")


FRAMES: Final[Mapping[str, Mapping[str, Compute]]] = {
    "q1": {"converted": _converted},
    "q12": {"per_bidder": _counts("bidder")},
    "two": {"raw": _raw, "per_auction": _counts("auction")},
    "q3": {"local": _local},
    "q5": {"hottest": _hottest},
    "q8": {"new_sellers": _new_sellers},
}
"""How each table of each query is computed."""
