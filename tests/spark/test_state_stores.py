"""State in memory is as exact as state in RocksDB, through a kill and a rewind."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.features import needs
from tests.spark.plain_queries import processed
from tests.spark.runs import files_below, options, run, table, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import CodeChanged, PlanError
from cutwater.pipeline.nodes import StateStore
from cutwater.run import RunOptions

KEYS = 9
TOTAL = 6000


def counting(directory: Path, state: StateStore | None, rate: float | None = None) -> Pipeline:
    """Numbers, counted by their remainder and upserted."""
    pipeline = Pipeline("counting")

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=TOTAL, rate=rate, batch_max=200)

    @pipeline.step(output_mode="update", partitions=2, state=state)
    def totals(numbers: DataFrame) -> DataFrame:
        groups = numbers.groupBy((F.col("value") % KEYS).alias("key"))
        return groups.agg(F.count("*").alias("n"), F.sum("value").alias("sum"))

    target = sinks.delta(str(directory / "table"), write="upsert", keys=["key"])
    pipeline.sink("table", target, of=totals)
    return pipeline


def expected() -> list[tuple[int, int, int]]:
    groups = {key: range(key, TOTAL, KEYS) for key in range(KEYS)}
    return [(key, len(numbers), sum(numbers)) for key, numbers in groups.items()]


def shown(directory: Path) -> list[tuple[Any, ...]]:
    return table(directory / "table", "key", "n", "sum")


def kept(directory: Path) -> RunOptions:
    return options(directory, checkpoint=CheckpointConfig(interval="1s", retained=1000))


def state_files(directory: Path, suffix: str) -> list[Path]:
    return [file for file in files_below(directory / "scratch", suffix) if "state" in file.parts]


@pytest.mark.matrix
def test_state_in_memory_goes_on_after_a_kill_and_a_rewind(
    spark: SparkSession, tmp_path: Path
) -> None:
    running = counting(tmp_path, "memory", rate=1500).start(spark, kept(tmp_path))
    wait_until(
        running,
        lambda status: status.completed >= 3 and bool(state_files(tmp_path, ".delta")),
        "three checkpoints and files of the state",
    )
    assert not state_files(tmp_path, ".changelog")
    running.kill()
    running.wait()

    assert run(counting(tmp_path, "memory"), spark, kept(tmp_path)).finished
    assert shown(tmp_path) == expected()

    # Without the option a step keeps its state where it is.
    cutwater.rewind("counting", to="3", store=tmp_path / "store", yes=True)
    assert sum(count for _, count, _ in shown(tmp_path)) < TOTAL
    assert run(counting(tmp_path, None), spark, kept(tmp_path)).finished
    assert shown(tmp_path) == expected()


@pytest.mark.parametrize(("began", "continues"), [("memory", "rocksdb"), (None, "memory")])
def test_state_cannot_change_its_place(
    spark: SparkSession, tmp_path: Path, began: StateStore | None, continues: StateStore
) -> None:
    assert run(counting(tmp_path, began), spark, kept(tmp_path)).finished

    place = began or "rocksdb"
    with pytest.raises(CodeChanged, match=f"requests state='{continues}'.*kept in {place}"):
        run(counting(tmp_path, continues), spark, kept(tmp_path))
    assert run(counting(tmp_path, place), spark, kept(tmp_path)).finished
    assert shown(tmp_path) == expected()


@needs("transformWithState on rows")
def test_state_that_spark_keeps_in_rocksdb_only_is_refused_in_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("transforming")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=10)
        return rows.select((F.col("value") % 3).cast("int").alias("k"), F.col("value").alias("v"))

    @pipeline.step(output_mode="update", state="memory")
    def totals(numbers: DataFrame) -> DataFrame:
        return processed(lambda: numbers)

    pipeline.sink("table", sinks.console(), of=totals)

    with pytest.raises(PlanError, match=r"state='memory'.*TransformWithState.*needs rocksdb"):
        run(pipeline, spark, kept(tmp_path))
