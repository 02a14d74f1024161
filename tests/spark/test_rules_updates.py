"""Rows of an update-mode step, read by another: of each batch the newest row for each key (F31)."""

import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import DEADLINE_S, options, table, wait_until

from cutwater import Pipeline, sinks, sources
from cutwater.runtime.reporting.status import RunStatus
from cutwater.spark.session.session import ship_by_value

ship_by_value([sys.modules[__name__]])

TOTAL, BATCH, KEYS = 1800, 60, 3
FIRST = BATCH // KEYS
"""What the first Event says of each key."""


def counting(directory: Path, way: str) -> Pipeline:
    pipeline = Pipeline("updates")
    gate = str(directory / "gate")

    def slowly(key: int, total: int) -> int:
        # A batch of the first Event alone ends when others wait for the next one. One key is in
        # one task, which leaves a core to the others.
        while (key, total) == (0, FIRST) and not Path(gate).exists():
            time.sleep(0.02)
        return total

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
        waited = F.udf(slowly, "long", useArrow=False)(F.col("key"), F.col("total"))
        return rows.select("key", waited.alias("total"))

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=newest)
    return pipeline


@pytest.mark.parametrize("way", ["query", "batch"])
def test_a_batch_holds_the_newest_row_of_each_key_alone(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    running = counting(tmp_path, way).start(spark, options(tmp_path))
    kinds = {step.name: step.kind for step in running.status().steps}
    try:
        wait_until(running, several_events, "several Events")
    finally:
        (tmp_path / "gate").touch()
    result = running.wait(DEADLINE_S)

    assert kinds["newest"] == way
    assert result is not None
    files = [Path(text) for text in DeltaTable(tmp_path / "t").file_uris()]
    for file in files:
        keys = pq.ParquetFile(file).read(["key"])["key"].to_pylist()
        assert len(keys) == len(set(keys))
    rows = table(tmp_path / "t", "key", "total")
    assert len(rows) == len(set(rows))
    updates = TOTAL // BATCH * KEYS
    assert len(rows) < updates
    possible = set(range(FIRST, TOTAL // KEYS + 1, FIRST))
    assert {total for _, total in rows} <= possible
    last = {key: max(total for row, total in rows if row == key) for key in range(KEYS)}
    assert last == dict.fromkeys(range(KEYS), TOTAL // KEYS)


def several_events(status: RunStatus) -> bool:
    return next(step.batch for step in status.steps if step.name == "counts") >= 5
