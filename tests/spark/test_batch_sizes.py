"""A step that lags takes more files in a batch than its source's limit, and no more when it is up.

What the tables show is computed from the input alone.
"""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.runs import options, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks
from cutwater.run import PipelineRun, RunOptions

FILES = 40
ROWS = 20
COLUMNS = ("id", "file")

pytestmark = pytest.mark.matrix


def write_file(directory: Path, number: int) -> None:
    rows = [{"id": number * ROWS + row, "file": number} for row in range(ROWS)]
    # A rename, so that Spark sees the whole file or none; a second apart, which is their order.
    pq.write_table(pa.Table.from_pylist(rows), directory / f".{number:03}")
    os.utime(directory / f".{number:03}", (1_700_000_000 + number,) * 2)
    (directory / f".{number:03}").rename(directory / f"{number:03}.parquet")


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    directory = tmp_path / "incoming"
    directory.mkdir()
    for number in range(FILES):
        write_file(directory, number)
    return directory


def numbered(directory: Path) -> Pipeline:
    pipeline = Pipeline("numbered")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema("id long, file long").option("maxFilesPerTrigger", 1)
        return stream.parquet(str(directory / "incoming"))

    pipeline.sink("copied", sinks.delta(str(directory / "copied")), of=orders)
    return pipeline


def with_target(directory: Path, target: str) -> RunOptions:
    return options(directory, checkpoint=CheckpointConfig(interval="1s", target_batch=target))


def files_per_batch(directory: Path) -> list[int]:
    """Return how many files each batch read, from the log that Spark's source keeps."""
    (log,) = (directory / "scratch").glob("*/*/*/query/sources/0")
    batches: dict[int, set[str]] = {}
    for entry in sorted(log.iterdir()):
        if entry.name.startswith("."):
            continue
        for line in entry.read_text(encoding="utf-8").splitlines()[1:]:
            file = json.loads(line)
            # Compacted entries repeat what older ones have.
            batches.setdefault(file["batchId"], set()).add(file["path"])
    return [len(batches[batch]) for batch in sorted(batches)]


def wait_for_batches(running: PipelineRun, rows: int) -> None:
    wait_until(running, lambda status: status.steps[0].rows == rows, f"{rows} rows are written")


def check_rows(directory: Path, files: int) -> None:
    expected = [(number, number // ROWS) for number in range(files * ROWS)]
    assert sorted(table(directory / "copied", *COLUMNS)) == expected


def test_a_backlog_is_read_in_larger_batches(
    spark: SparkSession, tmp_path: Path, incoming: Path
) -> None:
    running = numbered(tmp_path).start(spark, with_target(tmp_path, "2s"))
    wait_for_batches(running, FILES * ROWS)
    sizes = files_per_batch(tmp_path)
    for number in range(FILES, FILES + 3):
        write_file(incoming, number)
        wait_for_batches(running, (number + 1) * ROWS)
    later = files_per_batch(tmp_path)[len(sizes) :]
    running.stop()
    assert running.wait(120) is not None

    check_rows(tmp_path, FILES + 3)
    assert sizes[0] == 1, "the first batch says how long one takes"
    assert max(sizes) > 4, sizes
    assert sum(sizes) == FILES
    assert later == [1, 1, 1], "a step that has caught up takes what is there"


def test_a_sink_that_refuses_a_key_twice_in_a_batch_keeps_the_limit(
    spark: SparkSession, tmp_path: Path, incoming: Path
) -> None:
    assert incoming.is_dir()
    pipeline = Pipeline("newest")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema("id long, file long").option("maxFilesPerTrigger", 1)
        return stream.parquet(str(tmp_path / "incoming"))

    @pipeline.view
    def changes(orders: DataFrame) -> DataFrame:
        return orders.selectExpr(f"id % {ROWS} AS id", "file")

    newest = sinks.delta(str(tmp_path / "newest"), write="upsert", keys=["id"])
    pipeline.sink("newest", newest, of=changes)
    running = pipeline.start(spark, with_target(tmp_path, "2s"))
    wait_for_batches(running, FILES * ROWS)
    sizes = files_per_batch(tmp_path)
    running.stop()
    assert running.wait(120) is not None

    assert sizes == [1] * FILES
    assert sorted(table(tmp_path / "newest", *COLUMNS)) == [(row, FILES - 1) for row in range(ROWS)]


def test_without_a_target_the_limit_holds(
    spark: SparkSession, tmp_path: Path, incoming: Path
) -> None:
    assert incoming.is_dir()
    running = numbered(tmp_path).start(spark, with_target(tmp_path, "0s"))
    wait_for_batches(running, FILES * ROWS)
    sizes = files_per_batch(tmp_path)
    running.stop()
    assert running.wait(120) is not None

    check_rows(tmp_path, FILES)
    assert sizes == [1] * FILES
