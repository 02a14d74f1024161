"""Nothing that belongs to a batch grows: batch times, files, threads and memory over many batches.

One source feeds a stateful step (a streaming query behind a channel) and a stateless one (plain
batch jobs) with small batches, under frequent checkpoints. The batch times of the stateful step are
those its query reports, without the wait for new rows; the rest is counted in `/proc` and in the
scratch directory while it runs. Batches 50 to 100 are compared with the last 50.

    python -m benchmarks.steady [--batches N] [--rate N] [--interval 2s]
"""

import os
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.measuring import (
    Discard,
    Progress,
    machine,
    options_of,
    parsed,
    publish,
    query_of,
    rounded,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from benchmarks.plot import Chart, Line, svg
from benchmarks.processes import entries, family, java_process, memory_mb, threads_named
from pyspark.sql import DataFrame, SparkSession

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks, sources
from cutwater.run import PipelineRun, RunOptions

STEP: Final = "counts"
KEYS: Final = 1000
WINDOW: Final = 50
SMOKE: Final = {"batches": 12, "interval": "1s", "sample_s": 1.0, "repeats": 1}


def pipeline(rate: float, shown: Path) -> Pipeline:
    made = Pipeline("steady")

    @made.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, rate=rate, batch_max=1000)

    @made.step(output_mode="update")
    def counts(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy((numbers["value"] % KEYS).alias("key")).count()

    @made.step
    def even(numbers: DataFrame) -> DataFrame:
        return numbers.where("value % 2 = 0")

    made.sink("nowhere", Discard(), of=counts)
    made.sink("evens", sinks.delta(str(shown)), of=even)
    return made


# -- watching


def batch_ms(progress: Progress) -> float:
    """Return how long a batch took, without the wait for something to read."""
    took = progress["durationMs"]
    return float(took["triggerExecution"]) - float(took.get("latestOffset", 0))


def files_of(directory: Path) -> Mapping[str, int]:
    """Count what lies in scratch; files may go while they are counted."""
    files = size = changelogs = snapshots = logs = events = 0
    partitions = set()
    for parent, _, names in os.walk(directory):
        parts = Path(parent).parts
        files += len(names)
        events += parts[-1].startswith("b") and parts[-2] == "data" if len(parts) > 1 else 0
        for name in names:
            try:
                size += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
            # A pin is a second name of the same state.
            if "state" in parts and "pins" not in parts:
                if name.endswith((".changelog", ".zip")):
                    partitions.add(parent)
                changelogs += name.endswith(".changelog")
                snapshots += name.endswith(".zip")
            logs += parts[-1] in {"offsets", "commits"} and "pins" not in parts
    each = max(1, len(partitions))
    return {
        "scratch_files": files,
        "scratch_bytes": size,
        "changelogs_per_partition": round(changelogs / each),
        "snapshots_per_partition": round(snapshots / each),
        "offsets_and_commits": logs,
        "channel_events": events,
    }


def sample(scratch: Path, batch: int, began: float) -> dict[str, float]:
    """Count everything that could grow."""
    java = java_process()
    assert java is not None
    # The Delta library's own pool: each of its threads ends after ten seconds without work.
    pooled = threads_named(os.getpid(), "tokio")
    return {
        "seconds": time.perf_counter() - began,
        "batch": batch,
        "python_files": entries(os.getpid(), "fd"),
        "python_threads": entries(os.getpid(), "task") - pooled,
        "delta_threads": pooled,
        "python_mb": memory_mb(os.getpid()),
        "java_files": entries(java, "fd"),
        "java_threads": entries(java, "task"),
        "java_mb": memory_mb(java),
        "processes": len(family()),
        **files_of(scratch),
    }


class Watch:
    """Gathers batch times, checkpoints and samples while a pipeline runs."""

    def __init__(self, spark: SparkSession, run: PipelineRun, scratch: Path) -> None:
        """Begin to watch."""
        self._spark = spark
        self._run = run
        self._scratch = scratch
        self._began = time.perf_counter()
        self._next_sample = self._began
        self.batches: dict[int, float] = {}
        self.checkpoints: dict[int, int] = {}
        self.samples: list[dict[str, float]] = []

    def look(self, sample_s: float) -> int:
        """Look once; return the newest batch."""
        query = query_of(self._spark, STEP)
        for one in query.recentProgress if query is not None else ():
            if one["numInputRows"]:
                self.batches[int(one["batchId"])] = batch_ms(one)
        for report in self._run.status().checkpoints:
            if report.status == "COMPLETED":
                self.checkpoints[int(report.id)] = report.duration_ms
        newest = max(self.batches, default=0)
        if time.perf_counter() >= self._next_sample:
            self._next_sample = time.perf_counter() + sample_s
            self.samples.append(sample(self._scratch, newest, self._began))
        return newest


def measure(given: Namespace) -> dict[str, Any]:
    with session(given.master) as spark, workspace(given) as directory:
        options = RunOptions(
            store=directory / "store",
            scratch=directory / "scratch",
            checkpoint=CheckpointConfig(interval=given.interval),
            restart=RestartConfig(strategy="none"),
        )
        run = pipeline(given.rate, directory / "table").start(spark, options)
        watch = Watch(spark, run, directory / "scratch")
        try:
            wait_for(
                lambda: watch.look(given.sample_s) >= given.batches,
                f"{given.batches} batches",
                run,
                poll_s=0.5,
            )
            watch.look(0.0)
        finally:
            run.kill()
            run.wait()
    return {
        "batch_ms": [[batch, watch.batches[batch]] for batch in sorted(watch.batches)],
        "checkpoint_ms": [
            [checkpoint, watch.checkpoints[checkpoint]] for checkpoint in sorted(watch.checkpoints)
        ],
        "samples": watch.samples,
    }


# -- showing


def compared(points: Sequence[tuple[float, float]], window: int) -> tuple[list[float], list[float]]:
    """Return an early window (behind the start-up, as long again) and the last one."""
    values = [value for _, value in points]
    early = values[window : 2 * window] if len(values) >= 3 * window else values[: len(values) // 2]
    return early, values[-min(window, len(values) - len(early)) :]


def running_median(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Return at each point the median of those around it."""
    half = window // 2
    return [
        (x, median(y for _, y in points[max(0, at - half) : at + half + 1]))
        for at, (x, _) in enumerate(points)
    ]


def show(found: Mapping[str, Any]) -> str:
    rows = []
    for name, window in (("batch_ms", WINDOW), ("checkpoint_ms", WINDOW // 5)):
        early, late = compared(found[name], window)
        ratio = median(late) / median(early)
        rows.append((name.replace("_ms", " ms"), spread(early), spread(late), f"{ratio:.2f}"))
    times = table(("", "early", "late", "late/early"), rows)
    samples = found["samples"]
    quarter, last = samples[len(samples) // 4], samples[-1]
    half = samples[len(samples) // 2]
    counts = [
        (
            key,
            *(rounded(one[key]) for one in (quarter, half, last)),
            rounded(max(sample[key] for sample in samples)),
        )
        for key in last
    ]
    return f"{times}\n\n{table(('', 'a quarter in', 'half', 'end', 'most'), counts)}"


def chart(found: Mapping[str, Any]) -> Chart:
    points = [(float(batch), float(took)) for batch, took in found["batch_ms"]]
    return Chart(
        "Batch times of a stateful step behind a channel",
        "batch",
        "milliseconds",
        (
            Line("one batch", tuple(points), joined=False),
            Line("median of the 50 around it", tuple(running_median(points, WINDOW))),
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("steady", "Watch whether anything grows with every batch.", repeats=1)
    parser.add_argument("--batches", type=int, default=600, help="to wait for (%(default)s)")
    parser.add_argument("--rate", type=float, default=2000.0, help="rows/s (%(default)s)")
    parser.add_argument("--interval", default="2s", help="of checkpoints (%(default)s)")
    parser.add_argument("--sample-s", type=float, default=5.0, help="between counts (%(default)s)")
    given = parsed(parser, arguments, SMOKE)
    facts = machine()
    found = []
    for _ in range(given.repeats):
        found.append(measure(given))
        print(f"\n{show(found[-1])}", flush=True)
    publish(parser, given, found, facts)
    given.output.with_suffix(".svg").write_text(svg(chart(found[0])))


if __name__ == "__main__":
    main()
