"""What a pipeline does when it goes on from a cut: owed batches, the rest of its input, its state.

Runs in one process end by a stop or by `kill`, which takes no checkpoint; tests/crash kills real
processes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import (
    DEADLINE_S,
    files_below,
    options,
    run,
    table,
    wait_for_rows,
    wait_until,
)

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
SNAPSHOT_AFTER = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
KEYS = 20_000
RARELY = CheckpointConfig(interval="1h")


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set an option of the session for a while."""
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def add_file(directory: Path, name: str, rows: list[dict[str, object]]) -> None:
    """Let a file of JSON lines appear in a directory at once."""
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(directory / name)


# -- a batch that is owed (F22)


def windows(directory: Path, *, chain: bool) -> Pipeline:
    pipeline = Pipeline("owing")

    @pipeline.source(chain=chain)
    def clicks(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("at timestamp").json(str(directory / "in"))

    @pipeline.step
    def counts(clicks: DataFrame) -> DataFrame:
        marked = clicks.withWatermark("at", "1 second")
        found = marked.groupBy(F.window("at", "10 seconds")).count()
        return found.select("window.start", "count")

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=counts)
    return pipeline


@pytest.mark.parametrize(
    ("chain", "chain_again"),
    [(True, True), (False, False), (True, False), (False, True)],
    ids=["chained source", "channel", "moved out", "moved in"],
)
def test_a_window_that_was_due_when_the_cut_was_made_comes_after_the_restore(
    spark: SparkSession, tmp_path: Path, chain: bool, chain_again: bool
) -> None:
    add_file(
        tmp_path / "in",
        "all",
        [{"at": f"2026-01-01T00:00:{number:02}Z"} for number in (1, 2, 3, 40)],
    )
    # Without batches of no data the window stays due, for as long as the pipeline runs.
    with setting(spark, NO_DATA_BATCHES, "false"):
        running = windows(tmp_path, chain=chain).start(spark, options(tmp_path, checkpoint=RARELY))
        wait_until(running, lambda status: status.steps[-1].batch >= 0, "the one batch")
        running.stop()
        assert running.wait(DEADLINE_S) is not None
    assert not (tmp_path / "t" / "_delta_log").exists()

    quick = CheckpointConfig(interval="500ms")
    again = windows(tmp_path, chain=chain_again).start(spark, options(tmp_path, checkpoint=quick))
    rows = wait_for_rows(tmp_path / "t", 1, "start", "count")
    again.stop()
    again.wait(DEADLINE_S)

    ((start, count),) = rows
    assert (start.replace(tzinfo=None), count) == (datetime(2026, 1, 1), 3)  # noqa: DTZ001


# -- the end of an input is never restored (F2)


@pytest.mark.parametrize("chain", [True, False], ids=["chained source", "channel"])
def test_a_second_run_reads_exactly_the_rest(
    spark: SparkSession, tmp_path: Path, chain: bool
) -> None:
    def pipeline() -> Pipeline:
        made = Pipeline("rest")

        @made.source(chain=chain)
        def numbers(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("value long").json(str(tmp_path / "in"))

        @made.step
        def kept(numbers: DataFrame) -> DataFrame:
            # Keeps no row back, so that one which was read twice shows.
            return numbers.withColumn("twice", F.col("value") * 2)

        made.sink("t", sinks.delta(str(tmp_path / "t")), of=kept)
        return made

    now = options(tmp_path, available_now=True)
    add_file(tmp_path / "in", "a", [{"value": number} for number in range(100)])
    first = run(pipeline(), spark, now)
    shown = table(tmp_path / "t", "value", "twice")
    nothing = run(pipeline(), spark, now)
    add_file(tmp_path / "in", "b", [{"value": number} for number in range(100, 150)])
    second = run(pipeline(), spark, now)

    assert first.finished
    assert nothing.finished
    assert second.finished
    assert shown == [(number, number * 2) for number in range(100)]
    assert table(tmp_path / "t", "value", "twice") == [
        (number, number * 2) for number in range(150)
    ]


# -- what was in flight is read in pieces of the usual size (F42)


def in_pieces(directory: Path, trigger: str | None) -> Pipeline:
    """Two steps that read one Event in each batch: a query and batch jobs."""
    pipeline = Pipeline("pieces")

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=400, batch_max=50, partitions=1)

    @pipeline.step(trigger=trigger, max_batch="1B", partitions=1)
    def firsts(numbers: DataFrame) -> DataFrame:
        return numbers.dropDuplicates(["value"])

    @pipeline.step(trigger=trigger, max_batch="1B")
    def doubled(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("value", "value * 2 AS twice")

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=firsts)
    pipeline.sink("u", sinks.delta(str(directory / "u")), of=doubled)
    return pipeline


def test_what_was_in_flight_is_read_within_the_limit_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    forced = CheckpointConfig(interval="1h", unaligned="forced")
    # Of eight Events they read at most one, and would read the next in an hour.
    running = in_pieces(tmp_path, "1h").start(spark, options(tmp_path, checkpoint=forced))
    wait_until(
        running,
        lambda status: (
            status.steps[0].rows == 400
            and all(channel.messages >= 7 for channel in status.channels)
        ),
        "seven Events in flight to each",
    )
    report = running.checkpoint(60)
    running.kill()
    running.wait(DEADLINE_S)
    assert report.unaligned

    again = in_pieces(tmp_path, None).start(spark, options(tmp_path, available_now=True))
    result = again.wait(DEADLINE_S)

    assert result is not None
    assert result.finished
    batches = {step.name: step.batch for step in again.status().steps if step.name != "numbers"}
    assert batches == {"firsts": 7, "doubled": 7}
    assert table(tmp_path / "t", "value") == [(number,) for number in range(400)]
    assert table(tmp_path / "u", "value", "twice") == [
        (number, number * 2) for number in range(400)
    ]


# -- what was staged and is staged again


def endless(directory: Path) -> Pipeline:
    pipeline = Pipeline("endless")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=1_000_000, rate=500.0)

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=numbers)
    return pipeline


def staged(directory: Path) -> set[Path]:
    return set(files_below(directory / "t" / "_cutwater", ".parquet"))


def test_rows_that_will_never_be_committed_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    killed = endless(tmp_path).start(spark, options(tmp_path, checkpoint=RARELY))
    wait_until(killed, lambda status: status.steps[-1].rows > 0, "staged rows")
    killed.kill()
    killed.wait(DEADLINE_S)
    left = staged(tmp_path)
    assert left

    running = endless(tmp_path).start(spark, options(tmp_path))
    running.checkpoint(60)
    running.stop()
    running.wait(DEADLINE_S)

    assert not left & staged(tmp_path)


# -- state that has become a snapshot of RocksDB


def sums(directory: Path, total: int) -> Pipeline:
    pipeline = Pipeline("sums")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, batch_max=50, rate=200.0)

    @pipeline.step(partitions=1)
    def firsts(numbers: DataFrame) -> DataFrame:
        return numbers.withColumn("key", F.col("value") % KEYS).dropDuplicates(["key"])

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=firsts)
    return pipeline


def test_a_pipeline_goes_on_from_a_snapshot_of_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    with setting(spark, SNAPSHOT_AFTER, "2"):
        running = sums(tmp_path, 1_000_000).start(spark, options(tmp_path, checkpoint=RARELY))
        wait_until(running, lambda _: bool(zips(tmp_path)), "a snapshot in the query's directory")
        report = running.checkpoint(60)
        running.kill()
        running.wait(DEADLINE_S)
    backend = LocalBackend(tmp_path / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, "sums"))
    cut = store.manifests.read(report.id)
    for snapshot in cut.snapshots.values():
        store.blobs(cut.generation).fetch_tree(snapshot.state, tmp_path / "state")
    position = json.loads(next(iter(cut.stream_positions.values())))["sequence"]

    result = run(sums(tmp_path, position + 500), spark, options(tmp_path))

    assert list((tmp_path / "state").rglob("*.zip"))
    assert result.finished
    count = min(KEYS, position + 500)
    assert table(tmp_path / "t", "value", "key") == [(number, number) for number in range(count)]


def zips(directory: Path) -> list[Path]:
    found = files_below(directory / "scratch", ".zip")
    return [path for path in found if "query/state/" in path.as_posix()]
