"""The engines that are Spark: Cutwater, plain queries with two sets of settings, and one batch.

Each runs one query over all files that are there and ends. `spark` has Spark's defaults but for the
number of shuffle partitions; `tuned` has the settings of Cutwater's own session. Both run one query
for each table, as Spark's users do. The clock starts with the first batch and stops when the last
rows are visible: for plain Spark when the last batch has ended, for Cutwater when the last
checkpoint has committed its tables.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks.chain import plain_session
from benchmarks.measuring import DEADLINE_S, session
from benchmarks.peers.frames import FILES_PER_BATCH, FRAMES, read_all, read_stream
from benchmarks.peers.queries import QUERIES
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import CheckpointReport, RunOptions
from cutwater.sinks.base import Sink

ENGINES: Final = ("cutwater", "spark", "tuned", "batch")


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement.

    Attributes:
        query: Which query.
        streams: Where its streams are.
        target: Where its tables go, `target/<table>`.
        work: For checkpoints and the like.
        cores: How many cores the engine may use.
        interval_s: The time between checkpoints.
        sink: What Cutwater writes: `files`, as the others do, or `delta`.
        files_per_batch: How many files of a stream a batch reads.
        visibility: For `delta`: when rows become visible, at a `checkpoint` or with their `batch`.
    """

    query: str
    streams: Path
    target: Path
    work: Path
    cores: int
    interval_s: float
    sink: str = "files"
    files_per_batch: int = FILES_PER_BATCH
    visibility: str = "checkpoint"


@dataclass(slots=True)
class Timing:
    """What an engine says of its run.

    Attributes:
        began_s: When the first batch began, in seconds since 1970.
        ended_s: When the last rows were visible.
        phases_ms: Spark's own times, summed over all batches.
        batches: How many batches there were.
        checkpoints: The duration in milliseconds and the new bytes of each checkpoint.
    """

    began_s: float
    ended_s: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    checkpoints: list[dict[str, float]] = field(default_factory=list)


class Batches(StreamingQueryListener):
    """Notes when the first batch of all queries began, when the last ended, and what they did."""

    def __init__(self) -> None:
        self.began_s: list[float] = []
        self.ended_s: list[float] = []
        self.phases_ms: dict[str, float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the start of a query is not its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Note a batch."""
        progress = event.progress
        began_s = datetime.fromisoformat(progress.timestamp).timestamp()
        self.began_s.append(began_s)
        self.ended_s.append(began_s + progress.durationMs["triggerExecution"] / 1000)
        for phase, took_ms in progress.durationMs.items():
            self.phases_ms[phase] = self.phases_ms.get(phase, 0) + took_ms

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def timing(self) -> Timing:
        """Return what was noted; at least one batch."""
        began_s, ended_s = min(self.began_s), max(self.ended_s)
        return Timing(began_s, ended_s, self.phases_ms, len(self.began_s))


def _opened(engine: str, cores: int) -> AbstractContextManager[SparkSession]:
    master = f"local[{cores}]"
    return plain_session(master) if engine in {"spark", "batch"} else session(master)


def run(engine: str, task: Task) -> Timing:
    """Run a query on one of the `ENGINES` to the end of its files, in a session of its own."""
    with _opened(engine, task.cores) as spark:
        if engine == "batch":
            return _run_batch(spark, task)
        batches = Batches()
        spark.streams.addListener(batches)
        if engine == "cutwater":
            return _run_pipeline(spark, task, batches)
        return _run_queries(spark, task, batches)


def run_live(engine: str, task: Task) -> None:
    """Run a query on one of the streaming `ENGINES` until this process is killed."""
    with _opened(engine, task.cores) as spark:
        if engine == "cutwater":
            options = _options(task, task.work / f"scratch-{os.getpid()}")
            pipeline_of(task).start(spark, options).wait()
            return
        for query in _start_queries(spark, task):
            query.awaitTermination()


def _run_batch(spark: SparkSession, task: Task) -> Timing:
    began_s = time.time()
    for name, compute in FRAMES[task.query].items():
        frames = [read_all(spark, task.streams, one) for one in QUERIES[task.query].streams]
        compute(*frames).write.parquet(str(task.target / name))
    return Timing(began_s, time.time())


def _run_queries(spark: SparkSession, task: Task, batches: Batches) -> Timing:
    for query in _start_queries(spark, task, availableNow=True):
        query.awaitTermination()
    _drain_listeners(spark)
    return batches.timing()


def _start_queries(spark: SparkSession, task: Task, **trigger: bool) -> list[StreamingQuery]:
    """Start one query for each table."""
    found = []
    for name, compute in FRAMES[task.query].items():
        streams = QUERIES[task.query].streams
        frames = [read_stream(spark, task.streams, one, task.files_per_batch) for one in streams]
        writer = compute(*frames).writeStream.format("parquet")
        if trigger:
            writer = writer.trigger(**trigger)
        writer = writer.option("checkpointLocation", str(task.work / "checkpoints" / name))
        found.append(writer.start(str(task.target / name)))
    return found


def _drain_listeners(spark: SparkSession) -> None:
    """Wait until every progress event has reached the listener."""
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - pyspark has no other way to wait
    context.listenerBus().waitUntilEmpty()


def pipeline_of(task: Task) -> Pipeline:
    """Return a query as a pipeline: a source for each stream, a sink for each table."""
    pipeline = Pipeline("race")
    for stream in QUERIES[task.query].streams:
        pipeline.source(_source(task, stream))
    for name, compute in FRAMES[task.query].items():
        pipeline.sink(name, _sink(task, name), of=compute)
    return pipeline


def _source(task: Task, stream: str) -> Callable[[SparkSession], DataFrame]:
    """Return the function of a source; a pipeline calls the source as the function is called."""

    def source(spark: SparkSession) -> DataFrame:
        return read_stream(spark, task.streams, stream, task.files_per_batch)

    source.__name__ = stream
    return source


def _sink(task: Task, name: str) -> Sink:
    path = str(task.target / name)
    if task.sink == "delta":
        return sinks.delta(path, visibility=task.visibility)
    return sinks.files(path, "parquet")


def _options(task: Task, scratch: Path) -> RunOptions:
    return RunOptions(
        store=task.work / "store",
        scratch=scratch,
        checkpoint=CheckpointConfig(interval=f"{round(task.interval_s * 1000)}ms"),
        restart=RestartConfig(strategy="none"),
        takeover=True,
    )


def _run_pipeline(spark: SparkSession, task: Task, batches: Batches) -> Timing:
    options = replace(_options(task, task.work / "scratch"), available_now=True)
    running = pipeline_of(task).start(spark, options)
    if running.wait(DEADLINE_S) is None:
        raise RuntimeError("the pipeline did not end in time")
    ended_s = time.time()
    _drain_listeners(spark)
    timing = batches.timing()
    reports = [report for report in running.status().checkpoints if report.status == "COMPLETED"]
    committed_s = max(map(_committed_s, reports), default=0.0)
    # A commit before the end of the last batch is not the last one: the pipeline's own end is.
    timing.ended_s = committed_s if committed_s >= timing.ended_s else ended_s
    timing.checkpoints = [
        {"ms": float(report.duration_ms), "bytes": float(report.uploaded_bytes)}
        for report in reports
    ]
    return timing


def _committed_s(report: CheckpointReport) -> float:
    """Return when all sinks had committed; the checkpoint's start if they had nothing to do."""
    return (report.started_at_ms + (report.committed_ms or 0)) / 1000
