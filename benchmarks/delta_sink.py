"""What the Delta sink costs beside Spark's own Parquet file sink, on the same stream.

Files of numbers, a filter, and a table: nothing but reading and writing.

- parquet: Spark's file sink, with Spark's defaults;
- tuned: the same with the file system settings of our own session;
- delta: a pipeline with `sinks.delta`, checkpoints included; it ends when a reader of the table
  sees the last row.

Every measurement is a fresh process over the same input files, and the three take turns. Beside
the rates it tells where the sink's time goes: staging a batch (of which Spark's own write is one
part; syncing and hashing files is the rest) and committing a checkpoint.

    python -m benchmarks.delta_sink [--rows N] [--batch-rows N] [--repeats N]
"""

import json
import os
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pyarrow as pa
from benchmarks.chain import (
    SCHEMA,
    Follower,
    drop,
    ended_ms,
    files,
    numbers,
    passing,
    plain_session,
    warm_up,
)
from benchmarks.chain_report import rates, running_rates
from benchmarks.measuring import (
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
    table,
    timed,
    wait_for,
    workspace,
)
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import RunOptions
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.spark.jvm.native_sink import PlannedBatch

MODES: Final = ("parquet", "tuned", "delta")
SMOKE: Final = {"rows": 60_000, "batch_rows": 10_000, "repeats": 1}

Query = Callable[[], StreamingQuery | None]
"""How to find the query."""

# -- the two sinks


@contextmanager
def file_sink(spark: SparkSession, source: Path, directory: Path) -> Iterator[Query]:
    """Run one query into Spark's own files."""
    query = (
        passing(files(spark, source))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start(str(directory / "table"))
    )
    try:
        yield lambda: query
    finally:
        query.stop()


@contextmanager
def delta_sink(
    spark: SparkSession, source: Path, directory: Path, interval: str
) -> Iterator[Query]:
    """Run one step into a Delta table."""
    pipeline = Pipeline("delta")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return files(spark, source)

    @pipeline.step
    def passed(numbers: DataFrame) -> DataFrame:
        return passing(numbers)

    pipeline.sink("rows", sinks.delta(str(directory / "table")), of=passed)
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval=interval),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline.start(spark, options)
    try:
        yield lambda: query_of(spark, "passed")
    finally:
        run.kill()
        run.wait()


def visible(directory: Path) -> int:
    """Count the rows that a reader of the Delta table sees."""
    if not any((directory / "table" / "_delta_log").glob("*.json")):
        return 0
    actions = pa.table(DeltaTable(directory / "table").get_add_actions(flatten=True))
    return sum(actions["num_records"].to_pylist())


# -- measuring one of them


def measure(
    find: Query, began_ms: float, expected: int, shown: Callable[[], int] | None
) -> dict[str, Any]:
    """Wait until all rows are through, and for the table until they are seen."""
    follower = Follower(find)
    wait_for(lambda: follower.look() >= expected, f"{expected} rows were read", poll_s=0.2)
    batches: list[Progress] = [follower.batches[number] for number in sorted(follower.batches)]
    ended, (warm, warm_rows) = ended_ms(follower.newest()), warm_up(batches, expected)
    if shown is not None:
        wait_for(lambda: shown() >= expected * 9 // 10, "all rows were seen", poll_s=0.2)
    phases = sorted({phase for batch in batches for phase in batch["durationMs"]})
    return {
        "seconds": (ended - began_ms) / 1000,
        "seen_seconds": time.time() - began_ms / 1000,
        "warm_seconds": (ended - warm) / 1000,
        "warm_rows": sum(int(batch["numInputRows"]) for batch in batches) - warm_rows,
        "batches": len(batches),
        "batch_ms": {
            phase: fmean(float(batch["durationMs"].get(phase, 0)) for batch in batches)
            for phase in phases
        },
    }


def work(mode: str, given: Namespace) -> dict[str, Any]:
    """Measure one sink in this process."""
    directory = given.worker.parent / f"run-{os.getpid()}"
    directory.mkdir()
    parts: dict[str, list[float]] = {"stage": [], "write": [], "commit": []}
    timed(OpenDeltaTable, "stage", parts["stage"])
    timed(PlannedBatch, "write_parquet", parts["write"])
    timed(OpenDeltaTable, "commit", parts["commit"])
    opened = plain_session(given.master) if mode == "parquet" else session(given.master)
    with opened as spark:
        began_ms = time.time() * 1000
        is_delta = mode == "delta"
        running = (
            delta_sink(spark, given.input, directory, given.interval)
            if is_delta
            else file_sink(spark, given.input, directory)
        )
        with running as find:
            shown = (lambda: visible(directory)) if is_delta else None
            found = measure(find, began_ms, given.rows, shown)
        if not is_delta:
            # What the file sink's own readers see.
            rows = spark.read.schema(SCHEMA).parquet(str(directory / "table")).count()
            if rows != given.rows * 9 // 10:
                raise RuntimeError(f"{rows} rows were written")
    if is_delta:
        found["parts_ms"] = {name: [len(part), fmean(part)] for name, part in parts.items() if part}
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
            for option in ("rows", "batch_rows", "interval"):
                words += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
            one = in_fresh_process("benchmarks.delta_sink", words, directory)
            found[mode].append(one)
            print(f"{mode}: {rounded(given.rows / one['seconds'])} rows/s", flush=True)
    return found


def show(found: Mapping[str, Sequence[Mapping[str, Any]]], rows: int) -> str:
    whole, running = rates(found, rows), running_rates(found)
    lines = []
    for mode, runs in found.items():
        whole_ratios = [whole[mode].middle / whole[other].middle for other in MODES[:2]]
        running_ratios = [running[mode].middle / running[other].middle for other in MODES[:2]]
        lines.append(
            (
                mode,
                whole[mode],
                *(f"{ratio:.2f}" for ratio in whole_ratios),
                running[mode],
                *(f"{ratio:.2f}" for ratio in running_ratios),
                spread([run["seen_seconds"] for run in runs]),
            )
        )
    ratios = ("/parquet", "/tuned")
    header = ("", "rows/s", *ratios, "rows/s running", *ratios, "s until seen")
    phases = list(dict.fromkeys(key for runs in found.values() for key in runs[0]["batch_ms"]))
    parts = [
        (phase, *(rounded(_phase(runs, phase)) for runs in found.values())) for phase in phases
    ]
    inside = [
        f"{name} {spread([one['parts_ms'][name][1] for one in found['delta']])} ms "
        f"({found['delta'][0]['parts_ms'][name][0]} times)"
        for name in found["delta"][0]["parts_ms"]
    ]
    return "\n".join(
        [
            table(header, lines),
            "\nMilliseconds of a batch (mean):\n",
            table(("", *found), parts),
            f"\nInside the Delta sink: {', '.join(inside)}",
        ]
    )


def _phase(runs: Sequence[Mapping[str, Any]], phase: str) -> float:
    return spread([float(run["batch_ms"].get(phase, 0)) for run in runs]).middle


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("delta_sink", "Measure the Delta sink beside Spark's files.", repeats=5)
    parser.add_argument("--rows", type=int, default=30_000_000, help="in all (%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=250_000, help="per file (%(default)s)")
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
