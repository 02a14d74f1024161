"""A streaming query that other code stops is a failure of its step, and never the end of its input.

A program that stops all of `spark.streams.active` stops the queries of a pipeline too.
"""

import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from tests import waiting
from tests.spark.runs import DEADLINE_S, options, run, table, wait_until
from tests.spark.test_rules_restore import add_file

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.errors import StepError
from cutwater.run import PipelineRun

FILES = 6
ROWS = 50
ALL = [(number,) for number in range(FILES * ROWS)]
ONCE = RestartConfig(strategy="fixed", attempts=1, delay="1ms")
FULL = CheckpointConfig(interval="1h", channel_messages=1)


def gated(directory: Path, *, chain: bool = False) -> Pipeline:
    """A source that reads one file for each batch, and a reader that waits for a file `gate`.

    With `chain` the two are one query, which waits inside its first batch.
    """
    pipeline = Pipeline("gated")
    gate = directory / "gate"

    @pipeline.source(chain=chain)
    def numbers(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
        return stream.json(str(directory / "in"))

    def wait_at_gate(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            while not gate.exists():
                threading.Event().wait(0.05)
            yield part

    @pipeline.step(partitions=1)
    def kept(numbers: DataFrame) -> DataFrame:
        return numbers.mapInArrow(wait_at_gate, "value long")

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=kept)
    return pipeline


def waits_for_room() -> bool:
    """Say whether a step has written a batch and waits for room in its channel."""
    frames = sys._current_frames().values()
    stacks = [traceback.extract_stack(frame) for frame in frames]
    return any(summary.name == "wait_for_change" for stack in stacks for summary in stack)


def stop_queries_of(running: PipelineRun, spark: SparkSession, directory: Path) -> None:
    """Stop the source's query while its second batch is written and waits for room."""
    wait_until(running, lambda _: waits_for_room(), "a full channel")
    (query,) = spark.streams.active
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    waiting.wait_until(lambda: not query.isActive, "the query is told to stop")
    (directory / "gate").write_text("open")
    stopping.join(DEADLINE_S)


def filled(directory: Path) -> Path:
    for number in range(FILES):
        first = number * ROWS
        rows: list[dict[str, object]] = [{"value": first + number} for number in range(ROWS)]
        add_file(directory / "in", str(number), rows)
    return directory


def test_a_source_stopped_by_other_code_is_read_to_the_end_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = options(filled(tmp_path), available_now=True, checkpoint=FULL, restart=ONCE)
    running = gated(tmp_path).start(spark, given)

    stop_queries_of(running, spark, tmp_path)
    result = running.wait(DEADLINE_S)

    assert result is not None
    assert (result.finished, result.restarts) == (True, 1)
    assert table(tmp_path / "t", "value") == ALL


@pytest.mark.parametrize("available_now", [True, False])
def test_a_query_stopped_by_other_code_is_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path, available_now: bool
) -> None:
    given = options(filled(tmp_path), available_now=available_now, checkpoint=FULL)
    running = gated(tmp_path).start(spark, given)

    stop_queries_of(running, spark, tmp_path)
    with pytest.raises(StepError, match="query was stopped by other code") as caught:
        running.wait(DEADLINE_S)

    assert caught.value.step == "numbers"


def test_a_query_stopped_within_a_batch_says_so_too(spark: SparkSession, tmp_path: Path) -> None:
    running = gated(filled(tmp_path), chain=True).start(spark, options(tmp_path))
    tracker = spark.sparkContext.statusTracker()

    waiting.wait_until(lambda: bool(tracker.getActiveStageIds()), "the first batch")
    for query in spark.streams.active:
        query.stop()
    with pytest.raises(StepError, match="query was stopped by other code"):
        running.wait(DEADLINE_S)


class Counting(DataSource):
    """A source without `prepareForTriggerAvailableNow`: Spark reads it in a single batch."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "value long"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return CountingReader()


class CountingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    # Spark 4.0 passes neither.
    def latestOffset(  # noqa: N802
        self,
        start: object = None,  # noqa: ARG002
        limit: object = None,  # noqa: ARG002
    ) -> dict[str, int]:
        return {"at": 5}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for value in range(*partition.value):
            yield (value,)


def test_a_source_that_spark_reads_in_a_single_batch_ends_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(Counting)
    pipeline = Pipeline("single")
    pipeline.source(lambda spark: spark.readStream.format("counting").load(), name="numbers")
    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of="numbers")

    result = run(pipeline, spark, options(tmp_path, available_now=True))

    assert result.finished
    assert table(tmp_path / "t", "value") == [(number,) for number in range(5)]


def test_windows_in_the_query_of_such_a_source_are_refused_with_the_way_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They are complete when the batch ends, and Spark runs no other batch to put them out."""
    spark.dataSource.register(Counting)

    def windows(name: str, *, chain: bool) -> Pipeline:
        pipeline = Pipeline(name)

        @pipeline.source(chain=chain)
        def numbers(spark: SparkSession) -> DataFrame:
            rows = spark.readStream.format("counting").load()
            return rows.withColumn("at", F.timestamp_seconds(F.col("value") * 10))

        @pipeline.step
        def counts(numbers: DataFrame) -> DataFrame:
            found = numbers.withWatermark("at", "1 second").groupBy(F.window("at", "10 seconds"))
            return found.count().select(F.unix_timestamp("window.start").alias("at"), "count")

        pipeline.sink("t", sinks.delta(str(tmp_path / name)), of=counts)
        return pipeline

    given = options(tmp_path, available_now=True, checkpoint=FULL)
    with pytest.raises(StepError, match=r"in a single batch.* chain=False"):
        windows("chained", chain=True).start(spark, given).wait(DEADLINE_S)
    run(windows("apart", chain=False), spark, given)

    assert table(tmp_path / "apart", "at", "count") == [(0, 1), (10, 1), (20, 1)]
