"""What a channel costs beside Spark's own way to chain two queries: files between them.

The same chain three times: files of numbers, a filter, Parquet in between, a grouped count.

- spark: Spark's file sink and file source, with Spark's defaults (but for the number of shuffle
  partitions, which is the number of cores everywhere);
- tuned: the same with the file system and state settings of our own session;
- cutwater: two steps with a channel, checkpoints included.

Every measurement is a fresh process over the same input files, and the three take turns. First all
rows go through as fast as they can; then small files are dropped one at a time, and the hop is the
time from the end of the first query's batch to the end of the second's.

    python -m benchmarks.chain [--rows N] [--batch-rows N] [--repeats N]
"""

import json
import os
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.chain_report import show
from benchmarks.measuring import (
    Discard,
    Progress,
    in_fresh_process,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    query_of,
    rounded,
    session,
    spread,
    timed,
    wait_for,
    workspace,
)
from benchmarks.processes import milliseconds_by_work
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from cutwater import CheckpointConfig, Pipeline, RestartConfig
from cutwater.run import RunOptions
from cutwater.runtime.output import ChannelOutput
from cutwater.runtime.step import RunningStep
from cutwater.spark.session.java import use_java

MODES: Final = ("spark", "tuned", "cutwater")
SCHEMA: Final = "id long, key int, amount double, weight double"
KEYS: Final = 1000
SMOKE: Final = {"rows": 60_000, "batch_rows": 10_000, "trickle": 3, "repeats": 1}
TRICKLE_ROWS: Final = 1000
_PAUSE_S: Final = 0.3
WARM_UP: Final = 1 / 3
"""The part of the rows after which Java has compiled what it will; "running" begins there."""

Chain = tuple[Callable[[], StreamingQuery | None], Callable[[], StreamingQuery | None]]
"""How to find the first and the second query."""

# -- the work


def numbers(start: int, rows: int) -> pa.Table:
    """Return rows that follow from their numbers; nine of ten pass the filter."""
    ids = np.arange(start, start + rows, dtype=np.int64)
    mixed = ids * 2654435761 % 2**32
    return pa.table(
        {
            "id": ids,
            "key": (mixed % KEYS).astype(np.int32),
            "amount": (ids % 10).astype(np.float64),
            "weight": mixed / 2**32,
        }
    )


def drop(rows: pa.Table, directory: Path, name: str) -> None:
    """Let a file appear in a directory at once; Spark does not look at names with a dot."""
    hidden = directory / f".{name}"
    pq.write_table(rows, hidden)
    hidden.rename(directory / name)


def passing(frame: DataFrame) -> DataFrame:
    return frame.where("amount > 0")


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.count("*").alias("count"), F.sum("weight").alias("weight"))


def files(spark: SparkSession, directory: Path) -> DataFrame:
    """Read the input, one file for each batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))


# -- the three chains


@contextmanager
def plain_session(master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session with Spark's defaults, but for partitions, memory and noise."""
    use_java()
    cores = master.partition("[")[2].strip("]")
    builder = SparkSession.builder.master(master).config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.shuffle.partitions", cores or "1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def plain_chain(spark: SparkSession, source: Path, directory: Path) -> Iterator[Chain]:
    """Run two queries with a file sink and a file source between them."""
    between = directory / "between"
    between.mkdir(parents=True)
    first = (
        passing(files(spark, source))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "first"))
        .start(str(between))
    )
    second = (
        counted(spark.readStream.schema(SCHEMA).parquet(str(between)))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(directory / "second"))
        .start()
    )
    try:
        yield (lambda: first), (lambda: second)
    finally:
        first.stop()
        second.stop()


@contextmanager
def channel_chain(
    spark: SparkSession, source: Path, directory: Path, interval: str
) -> Iterator[Chain]:
    """Run two steps with a channel between them."""
    pipeline = Pipeline("chain")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return files(spark, source)

    @pipeline.step
    def passed(numbers: DataFrame) -> DataFrame:
        return passing(numbers)

    @pipeline.step(output_mode="update")
    def counts(passed: DataFrame) -> DataFrame:
        return counted(passed)

    pipeline.sink("nowhere", Discard(), of=counts)
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval=interval),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline.start(spark, options)
    try:
        yield (lambda: query_of(spark, "passed")), (lambda: query_of(spark, "counts"))
    finally:
        run.kill()
        run.wait()


# -- measuring one of them


def ended_ms(progress: Progress) -> float:
    """Return when the batch's rows were handed on, in milliseconds: before its commit log."""
    began = datetime.fromisoformat(str(progress["timestamp"])).timestamp() * 1000
    took = progress["durationMs"]
    return began + float(took["triggerExecution"]) - float(took.get("commitOffsets", 0))


class Follower:
    """Gathers the batches of a query that had rows, each once.

    Only new entries are fetched from Java: reading all of `recentProgress` every time would keep a
    core busy, and this process's Python with it.
    """

    def __init__(self, find: Callable[[], StreamingQuery | None]) -> None:
        """Follow the query that is found."""
        self._find = find
        self._seen = ""
        self.batches: dict[int, Progress] = {}

    def look(self) -> int:
        """Look at the newest batches; return how many rows all of them have read."""
        query = self._find()
        if query is not None:
            failure = query.exception()
            if failure is not None:
                raise RuntimeError(str(failure))
            for progress in self._news(query):
                if progress["numInputRows"]:
                    self.batches[int(progress["batchId"])] = progress
        return sum(int(batch["numInputRows"]) for batch in self.batches.values())

    def _news(self, query: StreamingQuery) -> Iterator[Progress]:
        """Yield what the query has reported since the last look, the newest first."""
        seen, self._seen = self._seen, ""
        for one in reversed(query._jsq.recentProgress()):  # noqa: SLF001 - one at a time
            name = f"{one.batchId()} {one.timestamp()}"
            self._seen = self._seen or name
            if name == seen:
                return
            yield json.loads(one.json())

    def newest(self) -> Progress:
        """Return the last batch with rows."""
        return self.batches[max(self.batches)]


def warm_up(bulk: Sequence[Progress], expected: int) -> tuple[float, int]:
    """Return when the first part of the rows was through, and how many those were."""
    rows = 0
    for one in bulk:
        rows += int(one["numInputRows"])
        if rows >= expected * WARM_UP:
            return ended_ms(one), rows
    raise ValueError("fewer rows than expected")


def measure(
    chain: Chain, began_ms: float, source: Path, expected: int, trickle: int
) -> dict[str, Any]:
    """Wait until all rows are through, then let small files trickle."""
    first, second = (Follower(find) for find in chain)

    def through(rows: int) -> Callable[[], bool]:
        return lambda: first.look() >= 0 and second.look() >= rows

    wait_for(through(int(expected * WARM_UP)), "the first rows were counted", poll_s=0.2)
    work, warm_batches = milliseconds_by_work(), len(second.batches)
    wait_for(through(expected), f"{expected} rows were counted", poll_s=0.2)
    batches = len(second.batches) - warm_batches
    work = {one: (ms - work[one]) / batches for one, ms in milliseconds_by_work().items()}
    bulk = [second.batches[number] for number in sorted(second.batches)]
    ended, (warm, warm_rows) = ended_ms(second.newest()), warm_up(bulk, expected)
    hops, ways = [], []
    for number in range(trickle):
        time.sleep(_PAUSE_S)
        dropped_ms = time.time() * 1000
        drop(numbers(10**12 + number * TRICKLE_ROWS, TRICKLE_ROWS), source, f"t{number:06}.parquet")
        expected += TRICKLE_ROWS * 9 // 10
        wait_for(through(expected), f"small file {number} was counted")
        first.look()
        hops.append(ended_ms(second.newest()) - ended_ms(first.newest()))
        ways.append(ended_ms(second.newest()) - dropped_ms)
    phases = sorted({phase for one in bulk for phase in one["durationMs"]})
    return {
        "seconds": (ended - began_ms) / 1000,
        "warm_seconds": (ended - warm) / 1000,
        "warm_rows": sum(int(one["numInputRows"]) for one in bulk) - warm_rows,
        "hop_ms": hops,
        "file_to_count_ms": ways,
        "work_ms": work,
        "second_batches": len(bulk),
        "second_ms": {
            phase: fmean(float(one["durationMs"].get(phase, 0)) for one in bulk) for phase in phases
        },
    }


def work(mode: str, given: Namespace) -> dict[str, Any]:
    """Measure one chain in this process."""
    source, directory = given.input, given.worker.parent / f"run-{os.getpid()}"
    # Links, so that trickled files do not stay in the input of the next run.
    own = directory / "input"
    own.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        os.link(file, own / file.name)
    write_ms: list[float] = []
    append_ms: list[float] = []
    timed(ChannelOutput, "write", write_ms)
    timed(RunningStep, "append", append_ms)
    expected = given.rows * 9 // 10
    opened = plain_session(given.master) if mode == "spark" else session(given.master)
    with opened as spark:
        began_ms = time.time() * 1000
        running = (
            channel_chain(spark, own, directory, given.interval)
            if mode == "cutwater"
            else plain_chain(spark, own, directory)
        )
        with running as chain:
            found = measure(chain, began_ms, own, expected, given.trickle)
    bulk = given.rows // given.batch_rows
    if write_ms:
        found["write_ms"] = fmean(write_ms[:bulk])
        found["append_ms"] = fmean(append_ms)
    return found


# -- all of them


def run_all(given: Namespace) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with workspace(given) as directory:
        source = directory / "input"
        source.mkdir()
        for start in range(0, given.rows, given.batch_rows):
            drop(numbers(start, given.batch_rows), source, f"n{start:012}.parquet")
        for _, mode in interleaved(MODES, given.repeats):
            words = ["--mode", mode, "--input", str(source), "--master", given.master]
            for option in ("rows", "batch_rows", "trickle", "interval"):
                words += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
            one = in_fresh_process("benchmarks.chain", words, directory)
            found[mode].append(one)
            rate = given.rows / one["seconds"]
            print(f"{mode}: {rounded(rate)} rows/s, hop {spread(one['hop_ms'])} ms", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("chain", "Measure a channel beside Spark's files.", repeats=5)
    parser.add_argument("--rows", type=int, default=30_000_000, help="in all (%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=250_000, help="per file (%(default)s)")
    parser.add_argument("--trickle", type=int, default=20, help="small files (%(default)s)")
    parser.add_argument("--interval", default="10s", help="of checkpoints (%(default)s)")
    parser.add_argument("--mode", choices=MODES, help=SUPPRESS)
    parser.add_argument("--input", type=Path, help=SUPPRESS)
    parser.add_argument("--worker", type=Path, help=SUPPRESS)
    given = parsed(parser, arguments, SMOKE)
    if given.rows % given.batch_rows or given.batch_rows % 10:
        parser.error("--rows must be a multiple of --batch-rows, and that of 10")
    if given.worker is not None:
        given.worker.write_text(json.dumps(work(given.mode, given)))
        return
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found, given.rows)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
