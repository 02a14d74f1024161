"""What frequent checkpoints cost: rows per second with one every second, and with none.

Two stateful steps with a channel between them, over a fixed number of rows that come as fast as
they are read: windows of event time are counted, and the counts are added up for each key. Both
settings run in one session, in turn. The clock runs from the first generation's start to its end;
the last checkpoint of a run is part of both.

    python -m benchmarks.interval [--rows N] [--intervals 1s,24h] [--repeats N]
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import (
    DEADLINE_S,
    Discard,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    rounded,
    session,
    spread,
    table,
    workspace,
)
from benchmarks.processes import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sources
from cutwater.run import RunOptions

SMOKE: Final = {"rows": 30_000, "batch_rows": 10_000, "repeats": 1}
KEYS: Final = 1000


def pipeline(rows: int, batch_rows: int) -> Pipeline:
    made = Pipeline("interval")

    @made.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=rows, batch_max=batch_rows)

    @made.step
    def windows(numbers: DataFrame) -> DataFrame:
        keyed = numbers.withColumn("key", F.col("value") % KEYS).withWatermark("at", "1 second")
        return keyed.groupBy(F.window("at", "10 seconds"), "key").agg(F.count("*").alias("count"))

    @made.step(output_mode="update")
    def totals(windows: DataFrame) -> DataFrame:
        return windows.groupBy("key").agg(F.sum("count").alias("count"))

    made.sink("nowhere", Discard(), of=totals)
    return made


def measure(
    spark: SparkSession, interval: str, given: Namespace, directory: Path
) -> dict[str, Any]:
    """Run the pipeline once, to its end."""
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval=interval),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline(given.rows, given.batch_rows).start(spark, options)
    began, taken = time.perf_counter(), cpu_seconds()
    result = run.wait(DEADLINE_S)
    seconds, taken = time.perf_counter() - began, cpu_seconds() - taken
    if result is None or not result.finished:
        run.kill()
        raise RuntimeError(f"the run with checkpoints every {interval} did not end")
    # The book keeps the newest reports only; enough for a median.
    durations = [
        checkpoint.duration_ms
        for checkpoint in run.status().checkpoints
        if checkpoint.status == "COMPLETED"
    ]
    return {
        "rows_per_second": given.rows / seconds,
        "seconds": seconds,
        "cpu_seconds": taken,
        "checkpoints": result.checkpoints,
        "checkpoint_ms": durations,
    }


def run_all(given: Namespace) -> dict[str, list[dict[str, Any]]]:
    intervals = given.intervals.split(",")
    found: dict[str, list[dict[str, Any]]] = {interval: [] for interval in intervals}
    with session(given.master) as spark, workspace(given) as directory:
        # One round more than asked for: the first pays for Spark's start and does not count.
        for repeat, interval in interleaved(intervals, given.repeats + 1):
            own = directory / f"r{repeat}-{interval}"
            one = measure(spark, interval, given, own)
            rate, cpu = rounded(one["rows_per_second"]), rounded(one["cpu_seconds"])
            print(f"every {interval}: {rate} rows/s, {cpu} s of CPU", flush=True)
            if repeat:
                found[interval].append(one)
    return found


def show(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rates = {
        interval: spread([run["rows_per_second"] for run in runs])
        for interval, runs in found.items()
    }
    rarest = list(rates.values())[-1]
    rows = [
        (
            interval,
            rates[interval],
            f"{rates[interval].middle / rarest.middle:.3f}",
            rounded(spread([run["checkpoints"] for run in runs]).middle),
            spread([sample for run in runs for sample in run["checkpoint_ms"]]),
            spread([run["cpu_seconds"] for run in runs]),
        )
        for interval, runs in found.items()
    ]
    return table(("checkpoints every", "rows/s", "of the last", "taken", "each ms", "CPU s"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("interval", "Measure the cost of frequent checkpoints.", repeats=5)
    parser.add_argument("--rows", type=int, default=40_000_000, help="in all (%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=250_000, help="per batch (%(default)s)")
    parser.add_argument("--intervals", default="1s,24h", help="the rarest last (%(default)s)")
    given = parsed(parser, arguments, SMOKE)
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
