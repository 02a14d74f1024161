"""Rows of an update-mode step, read by another: of each batch the newest row for each key (F31)."""

import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, table

from cutwater import Pipeline, sinks, sources
from cutwater.spark.session import ship_by_value

ship_by_value([sys.modules[__name__]])

TOTAL, BATCH, KEYS = 1800, 60, 3


def counting(directory: Path, way: str) -> Pipeline:
    pipeline = Pipeline("updates")

    def slowly(value: int) -> int:
        # Long enough for more than one Event to be waiting when the next batch is taken.
        time.sleep(0.1)
        return value

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=TOTAL, batch_max=BATCH)

    @pipeline.step(output_mode="update", partitions=1)
    def counts(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy((F.col("value") % KEYS).alias("key")).agg(
            F.count("*").alias("total")
        )

    @pipeline.step(updates=["key"])
    def newest(spark: SparkSession, counts: DataFrame) -> DataFrame:
        rows = counts
        if way == "query":
            names = spark.range(KEYS).withColumnRenamed("id", "key")
            rows = counts.join(F.broadcast(names), "key")
        waited = F.udf(slowly, "long", useArrow=False)(F.col("total"))
        return rows.select("key", waited.alias("total"))

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=newest)
    return pipeline


@pytest.mark.parametrize("way", ["query", "batch"])
def test_a_batch_holds_the_newest_row_of_each_key_alone(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    running = counting(tmp_path, way).start(spark, options(tmp_path))
    kinds = {one.name: one.kind for one in running.status().steps}
    result = running.wait(240)

    assert kinds["newest"] == way
    assert result is not None
    files = [Path(one) for one in DeltaTable(tmp_path / "t").file_uris()]
    for file in files:
        keys = pq.ParquetFile(file).read(["key"])["key"].to_pylist()
        assert len(keys) == len(set(keys))
    rows = table(tmp_path / "t", "key", "total")
    assert len(rows) == len(set(rows))
    updates = TOTAL // BATCH * KEYS
    assert len(rows) < updates
    possible = set(range(BATCH // KEYS, TOTAL // KEYS + 1, BATCH // KEYS))
    assert {total for _, total in rows} <= possible
    last = {key: max(total for one, total in rows if one == key) for key in range(KEYS)}
    assert last == dict.fromkeys(range(KEYS), TOTAL // KEYS)
