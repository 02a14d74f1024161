"""What steps cost that have nothing to do: start-up, processor time and processes of twenty.

One source feeds twenty stateful steps, each a streaming query behind a channel. It gives all of
them one batch and then nothing. Beside it: a session without a query, and twenty plain queries of
Spark's over one directory. Each measurement is a fresh process, and the three take turns.

    python -m benchmarks.idle [--steps N] [--seconds N] [--repeats N]
"""

import json
import os
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.measuring import (
    Discard,
    in_fresh_process,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from benchmarks.processes import cpu_seconds, family, java_process, memory_mb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sources
from cutwater.run import RunOptions

MODES: Final = ("nothing", "spark", "cutwater")
ROWS: Final = 1000
ALMOST_NEVER: Final = 1e-6
SMOKE: Final = {"steps": 2, "seconds": 2.0, "repeats": 1}
MEASURES: Final = {
    "running_s": "all running s",
    "first_batch_s": "first batch of all s",
    "cpu_seconds": "CPU s",
    "cores": "cores",
    "children": "processes",
    "memory_mb": "memory MB",
}


def counted(frame: DataFrame, number: int) -> DataFrame:
    return frame.groupBy((frame["value"] % (number + 2)).alias("key")).count()


def pipeline(steps: int) -> Pipeline:
    made = Pipeline("idle")

    @made.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        # The second part never gives a row and never ends: it keeps the pipeline up.
        given = sources.sequence(spark, total=ROWS)
        return given.unionByName(sources.sequence(spark, rate=ALMOST_NEVER))

    for number in range(steps):
        made.step(
            lambda numbers, number=number: counted(numbers, number),
            name=f"step{number}",
            output_mode="update",
        )
        made.sink(f"sink{number}", Discard(), of=f"step{number}")
    return made


@contextmanager
def steps_running(spark: SparkSession, given: Namespace, directory: Path) -> Iterator[int]:
    """Run the pipeline; yields how many queries it has."""
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval="10s"),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline(given.steps).start(spark, options)
    try:
        yield given.steps + 1
    finally:
        run.kill()
        run.wait()


@contextmanager
def queries_running(spark: SparkSession, given: Namespace, directory: Path) -> Iterator[int]:
    """Run as many plain queries over one directory; yields how many."""
    source = directory / "numbers"
    source.mkdir()
    pq.write_table(pa.table({"value": range(ROWS)}), source / "numbers.parquet")
    queries = [
        counted(spark.readStream.schema("value long").parquet(str(source)), number)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(directory / f"q{number}"))
        .start()
        for number in range(given.steps)
    ]
    try:
        yield given.steps
    finally:
        for query in queries:
            query.stop()


@contextmanager
def nothing_running(*_: object) -> Iterator[int]:
    """Run nothing."""
    yield 0


def has_run(query: StreamingQuery) -> bool:
    """Say whether a query has ended a batch; what it reports while it idles names no such phase."""
    return any("addBatch" in one["durationMs"] for one in query.recentProgress)


def work(given: Namespace) -> dict[str, Any]:
    """Measure one of them in this process."""
    start: Mapping[str, Callable[[SparkSession, Namespace, Path], AbstractContextManager[int]]] = {
        "nothing": nothing_running,
        "spark": queries_running,
        "cutwater": steps_running,
    }
    directory = given.worker.parent / f"run-{os.getpid()}"
    directory.mkdir()
    with session(given.master) as spark:
        began = time.perf_counter()
        with start[given.mode](spark, given, directory) as queries:
            wait_for(lambda: len(spark.streams.active) >= queries, "all queries ran")
            running_s = time.perf_counter() - began
            wait_for(lambda: all(map(has_run, spark.streams.active)), "every query had a batch")
            first_batch_s = time.perf_counter() - began
            # What the first batches leave behind (a checkpoint, the JIT's backlog) is not idling.
            time.sleep(given.seconds / 2)
            before, at = cpu_seconds(), time.perf_counter()
            children = []
            while time.perf_counter() - at < given.seconds:
                time.sleep(min(1.0, given.seconds / 2))
                children.append(len(family()) - 1)
            taken, passed = cpu_seconds() - before, time.perf_counter() - at
            java = java_process()
            memory = memory_mb(os.getpid()) + (memory_mb(java) if java else 0.0)
    return {
        "running_s": running_s,
        "first_batch_s": first_batch_s,
        "cpu_seconds": taken,
        "cores": taken / passed,
        "children": median(children),
        "memory_mb": memory,
    }


def run_all(given: Namespace) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with workspace(given) as directory:
        for _, mode in interleaved(MODES, given.repeats):
            words = ["--mode", mode, "--master", given.master]
            words += ["--steps", str(given.steps), "--seconds", str(given.seconds)]
            found[mode].append(in_fresh_process("benchmarks.idle", words, directory))
            print(f"{mode}: {found[mode][-1]}", flush=True)
    return found


def show(found: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = [
        (mode, *(spread([run[key] for run in runs]) for key in MEASURES))
        for mode, runs in found.items()
    ]
    return table(("", *MEASURES.values()), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("idle", "Measure what idle steps cost.", repeats=3)
    parser.add_argument("--steps", type=int, default=20, help="idle steps (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="to idle (%(default)s)")
    parser.add_argument("--mode", choices=MODES, help=SUPPRESS)
    parser.add_argument("--worker", type=Path, help=SUPPRESS)
    given = parsed(parser, arguments, SMOKE)
    if given.worker is not None:
        given.worker.write_text(json.dumps(work(given)))
        return
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
