"""A restart changes no result of a step with several event-time inputs.

Spark keeps one watermark per query, the smallest of its inputs', and forgets those of the inputs
when the query ends. An input that is ahead, or has ended, then holds back every window.
"""

import os
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import DEADLINE_S, Rows, options, run, table
from tests.spark.test_rules_restore import add_file

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.ids import StepId
from cutwater.run import RunOptions
from cutwater.spark.checkpoint_dir.logs import next_watermark_ms
from cutwater.spark.engine.input_watermarks import read_watermarks
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

SCHEMA = "id long, at timestamp"
RARELY = CheckpointConfig(interval="1h", retained=1000)
STAGES: list[list[tuple[str, range]]] = [
    [("a", range(100)), ("b", range(40))],
    [],
    [("b", range(40, 70))],
    [("b", range(70, 100))],
]
"""Input a is complete, and ahead, before the first restart; the second run finds nothing new."""

MIDNIGHT_MS = 1_767_225_600_000


def feed(directory: Path, stage: int) -> None:
    for name, seconds in STAGES[stage]:
        feed_seconds(directory / name, [seconds.start], len(seconds))


def feed_seconds(directory: Path, starts: Iterable[int], length: int) -> None:
    """Let a file with a row for each second of a stretch appear, for each start."""
    for start in starts:
        rows: list[dict[str, object]] = [
            {"id": number, "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
            for number in range(start, start + length)
        ]
        add_file(directory, f"{start:03}", rows)
        # Spark reads files in the order of their times.
        os.utime(directory / f"{start:03}", (MIDNIGHT_MS // 1000 + start,) * 2)


def per_window(rows: DataFrame) -> DataFrame:
    found = rows.groupBy(F.window("at", "10 seconds")).count()
    return found.select(F.col("window.start").alias("at"), "count")


def union(a: DataFrame, b: DataFrame) -> DataFrame:
    first, second = (frame.withWatermark("at", "1 second") for frame in (a, b))
    return per_window(first.unionByName(second))


def outer_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """Of a, the rows without a partner come when the watermark has passed them."""
    first = a.withWatermark("at", "1 second")
    odd = b.where("id % 2 = 1").withWatermark("at", "2 seconds").selectExpr("id n", "at then")
    near = "id = n AND then BETWEEN at AND at + INTERVAL 1 SECOND"
    return first.join(odd, F.expr(near), "left_outer").selectExpr("at", "n AS count")


def several(a: DataFrame, b: DataFrame) -> DataFrame:
    """A join below a union below windows: four watermarks, and one of them used twice."""
    first = a.withWatermark("at", "1 second")
    second = b.withWatermark("at", "2 seconds").selectExpr("id AS n", "at AS then")
    joined = first.join(second, F.expr("id = n AND then BETWEEN at AND at"), "inner")
    even, odd = (
        rows.where(f"id % 2 = {rest}").withWatermark("at", "3 seconds")
        for rows, rest in ((a, 0), (b, 1))
    )
    again = first.where("id = 7")
    return per_window(reduce(DataFrame.unionByName, [joined.select("id", "at"), even, odd, again]))


Step = Callable[[DataFrame, DataFrame], DataFrame]


def pipeline(directory: Path, step: Step, tables: Path, *, chain: bool) -> Pipeline:
    made = Pipeline("windows")

    @made.source(chain=chain)
    def a(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(directory / "a"))

    @made.source(chain=chain)
    def b(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(directory / "b"))

    made.step(step)
    made.sink("t", sinks.delta(str(tables / "t")), of=step)
    return made


def now(directory: Path, **given: Any) -> RunOptions:  # noqa: ANN401
    """Process what is there, with one checkpoint at the end; all checkpoints are kept."""
    return options(directory, available_now=True, checkpoint=RARELY, **given)


def uninterrupted(spark: SparkSession, directory: Path, step: Step, *, chain: bool) -> Rows:
    """What one run over the whole input shows."""
    for stage in range(len(STAGES)):
        feed(directory, stage)
    run(pipeline(directory, step, directory, chain=chain), spark, now(directory))
    return table(directory / "t", "at", "count")


@pytest.mark.parametrize(
    ("step", "chain"),
    [(union, True), (outer_join, False), (several, True)],
    ids=["union of sources", "join of channels", "chained operators"],
)
def test_restarts_and_a_rewind_do_not_hold_windows_back(
    spark: SparkSession, tmp_path: Path, step: Step, chain: bool
) -> None:
    (tmp_path / "whole").mkdir()
    expected = uninterrupted(spark, tmp_path / "whole", step, chain=chain)

    first = None
    for stage in range(len(STAGES)):
        feed(tmp_path, stage)
        made = pipeline(tmp_path, step, tmp_path, chain=chain)
        done = run(made, spark, now(tmp_path))
        first = first or done.last_checkpoint
    restarted = table(tmp_path / "t", "at", "count")
    made = pipeline(tmp_path, step, tmp_path, chain=chain)
    run(made, spark, now(tmp_path, start_from=str(first)))

    assert restarted == expected
    assert table(tmp_path / "t", "at", "count") == expected
    assert len(expected) >= 9


def test_state_that_a_watermark_does_not_clear_is_no_reason_to_wait(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark runs no batch without data for such a join, and does not ask for one again."""
    feed(tmp_path, 0)

    def by_id(a: DataFrame, b: DataFrame) -> DataFrame:
        second = b.withWatermark("at", "2 seconds").selectExpr("id AS n", "at AS then")
        joined = a.withWatermark("at", "1 second").join(second, F.expr("id = n"))
        return joined.selectExpr("at", "n AS count")

    result = run(pipeline(tmp_path, by_id, tmp_path, chain=True), spark, now(tmp_path))

    assert result.finished
    assert len(table(tmp_path / "t", "at", "count")) == 40


def two_paces(directory: Path) -> Pipeline:
    """Ten seconds of rows on either side; one side in four times the batches of the other."""
    made = Pipeline("paces")

    def rows(spark: SparkSession, batch_max: int) -> DataFrame:
        found = sources.sequence(spark, total=10_000, batch_max=batch_max)
        return found.withColumn("at", F.timestamp_millis("value"))

    made.source(lambda spark: rows(spark, 500), name="a", chain=False)
    made.source(lambda spark: rows(spark, 2000), name="b", chain=False)
    made.step(union)
    made.sink("t", sinks.delta(str(directory / "t")), of=union)
    return made


def test_the_watermarks_of_a_snapshot_are_those_of_its_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's own log of the batch has the smallest of them, in every checkpoint."""
    often = CheckpointConfig(interval="100ms", min_pause="1ms", retained=1000)

    run(two_paces(tmp_path), spark, options(tmp_path, checkpoint=often))

    backend = LocalBackend(tmp_path / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, "paces"))
    smallest, logged, spread = [], [], []
    for decision in store.log.read().decisions:
        cut = store.manifests.read(decision.checkpoint_id)
        snapshot = cut.snapshots[StepId("union")]
        into = tmp_path / "fetched" / str(cut.checkpoint_id)
        into.mkdir(parents=True)
        store.blobs(cut.generation).fetch_tree(snapshot.state, into)
        if snapshot.batch >= 0:
            found = [
                max(read_watermark.watermark_ms or 0, 0) for read_watermark in read_watermarks(into)
            ]
            smallest.append(min(found))
            spread.append(max(found) - min(found))
            logged.append(next_watermark_ms(into, snapshot.batch))
    assert smallest == logged
    assert len(set(logged)) >= 3
    assert max(spread) > 0


# -- steps that run as batch jobs


def merged(directory: Path) -> Pipeline:
    """Two sources with event time, one file in each batch, and a step without state over both."""
    made = Pipeline("merged")
    for name in ("a", "b"):

        def read(spark: SparkSession, name: str = name) -> DataFrame:
            stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            return stream.json(str(directory / name)).withWatermark("at", "1 second")

        made.source(read, name=name, chain=False)

    @made.step
    def both(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.unionByName(b)

    made.sink("t", sinks.delta(str(directory / "t")), of=both)
    return made


def seconds_reported(spark: SparkSession, directory: Path) -> tuple[dict[str, int], int]:
    """Run to the end; return the watermark of each step in the manifest, and in the status."""
    running = merged(directory).start(spark, now(directory))
    done = running.wait(DEADLINE_S)
    assert done is not None
    assert done.last_checkpoint is not None
    backend = LocalBackend(directory / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, "merged"))
    snapshots = store.manifests.read(done.last_checkpoint).snapshots
    told = next(step for step in running.status().steps if step.name == "both")
    assert told.kind == "batch"
    return {
        str(snapshot): _second(snapshots[snapshot].watermark_ms) for snapshot in snapshots
    }, _second(told.watermark_ms)


def _second(at_ms: int | None) -> int:
    return -1 if at_ms is None else (at_ms - MIDNIGHT_MS) // 1000


def test_a_batch_step_reports_the_watermark_of_its_slowest_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A source's last batch ran with the watermark of the file before it."""
    feed_seconds(tmp_path / "a", range(0, 100, 50), 50)
    feed_seconds(tmp_path / "b", range(0, 40, 20), 20)
    first = seconds_reported(spark, tmp_path)
    feed_seconds(tmp_path / "b", range(40, 80, 20), 20)
    after_restart = seconds_reported(spark, tmp_path)

    assert first == ({"a": 48, "b": 18, "both": 18}, 18)
    assert after_restart == ({"a": 48, "b": 58, "both": 48}, 48)
