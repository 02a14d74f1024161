"""How long a pipeline takes to go on after it was killed, beside a plain query doing the same.

The same work three times: files of numbers, one file a batch, counted for each key. A driver runs
until some batches are through, takes its checkpoint and is killed with SIGKILL. Then a new process
starts, and the clock runs from there until its first new batch is committed.

- spark: one streaming query with Spark's defaults, from its own checkpoint directory;
- tuned: the same with the file system and state settings of our own session;
- cutwater: a pipeline of one step, from its store; its scratch is gone.

Killed once, each is restarted from copies of what was left, and the three take turns.

    python -m benchmarks.recovery [--batches N] [--repeats N]
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.chain import MODES, counted, drop, files, numbers, plain_session
from benchmarks.measuring import (
    DEADLINE_S,
    ROOT,
    Discard,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    query_of,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from benchmarks.processes import family
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cutwater import CheckpointConfig, Pipeline, RestartConfig
from cutwater.run import RunOptions

SMOKE: Final = {"batches": 3, "batch_rows": 10_000, "repeats": 1}
_READY: Final = "ready"
_DONE: Final = "done"


def start_plain(spark: SparkSession, home: Path) -> Callable[[], StreamingQuery | None]:
    """Start the plain query and return how to find it."""
    query = (
        counted(files(spark, home / "input"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(home / "checkpoint"))
        .start()
    )
    return lambda: query


def start_pipeline(
    spark: SparkSession, home: Path
) -> tuple[Callable[[], StreamingQuery | None], Callable[[], object]]:
    """Start the pipeline; return how to find its query, and how to take a checkpoint."""
    pipeline = Pipeline("recovery")

    @pipeline.source
    def rows(spark: SparkSession) -> DataFrame:
        return files(spark, home / "input")

    @pipeline.step(output_mode="update")
    def counts(rows: DataFrame) -> DataFrame:
        return counted(rows)

    pipeline.sink("nowhere", Discard(), of=counts)
    options = RunOptions(
        store=home / "store",
        scratch=home / f"scratch-{os.getpid()}",
        checkpoint=CheckpointConfig(interval="1h"),
        restart=RestartConfig(strategy="none"),
        takeover=True,
    )
    run = pipeline.start(spark, options)
    return (lambda: query_of(spark, "counts")), (lambda: run.checkpoint(timeout_s=DEADLINE_S))


def work(given: Namespace) -> None:
    """Run in this process until it is killed; say when the batch waited for is committed."""
    home: Path = given.worker
    opened = plain_session if given.mode == "spark" else session
    with opened(given.master) as spark:
        checkpoint: Callable[[], object] = lambda: None  # noqa: E731 - nothing to take
        if given.mode == "cutwater":
            find, checkpoint = start_pipeline(spark, home)
        else:
            find = start_plain(spark, home)

        def committed() -> bool:
            query = find()
            done = [int(one["batchId"]) for one in query.recentProgress] if query else []
            return max(done, default=-1) >= int(given.until)

        wait_for(committed, f"batch {given.until} was committed", poll_s=0.01)
        (home / _DONE).write_text(json.dumps(time.time()))
        if given.until < given.batches:
            checkpoint()
        (home / _READY).touch()
        signal.pause()


@contextmanager
def driver(mode: str, given: Namespace, home: Path, until: int) -> Any:  # noqa: ANN401
    """Run a driver; it is killed afterwards, and all that it started."""
    words = [sys.executable, "-m", "benchmarks.recovery", "--mode", mode, "--worker", str(home)]
    words += ["--until", str(until), "--batches", str(given.batches), "--master", given.master]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        for one in family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()


def wait_for_file(process: subprocess.Popen[bytes], file: Path) -> None:
    def there() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the driver ended with {process.returncode}")
        return file.exists()

    wait_for(there, f"{file.name} appears", poll_s=0.01)


def prepare(mode: str, given: Namespace, home: Path) -> None:
    """Run some batches, take a checkpoint, and kill the driver."""
    (home / "input").mkdir(parents=True)
    for batch in range(given.batches):
        rows = numbers(batch * given.batch_rows, given.batch_rows)
        drop(rows, home / "input", f"n{batch:06}.parquet")
    with driver(mode, given, home, given.batches - 1) as process:
        wait_for_file(process, home / _READY)


def measure(mode: str, given: Namespace, left: Path, home: Path) -> float:
    """Restart from a copy of what was left; return the seconds to the first new batch."""
    shutil.copytree(left, home, ignore=shutil.ignore_patterns("scratch-*", _READY, _DONE))
    # Paths of state are absolute in a checkpoint directory only for operators not used here; the
    # input must be the very files that were read before.
    shutil.rmtree(home / "input")
    (left / "input").rename(home / "input")
    drop(numbers(10**9, given.batch_rows), home / "input", "z.parquet")
    began = time.time()
    with driver(mode, given, home, given.batches) as process:
        wait_for_file(process, home / _DONE)
        seconds = json.loads((home / _DONE).read_text()) - began
    (home / "input" / "z.parquet").unlink()
    (home / "input").rename(left / "input")
    return float(seconds)


def run_all(given: Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    with workspace(given) as directory:
        for mode in MODES:
            # All restarts of a mode use one place, since files are known by their paths.
            prepare(mode, given, directory / mode)
            (directory / mode).rename(directory / f"{mode}-left")
        for _, mode in interleaved(MODES, given.repeats):
            home = directory / mode
            seconds = measure(mode, given, directory / f"{mode}-left", home)
            shutil.rmtree(home)
            print(f"{mode}: {seconds:.2f} s", flush=True)
            found[mode].append(seconds)
    return found


def show(found: Mapping[str, Sequence[float]]) -> str:
    middles = {mode: spread(samples) for mode, samples in found.items()}
    rows = [
        (
            mode,
            middles[mode],
            *(f"{middles[mode].middle / middles[one].middle:.2f}" for one in ("spark", "tuned")),
        )
        for mode in found
    ]
    return table(("", "s to the first new batch", "/spark", "/tuned"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("recovery", "Measure a restart after SIGKILL.", repeats=5)
    parser.add_argument("--batches", type=int, default=10, help="before the kill (%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=250_000, help="per file (%(default)s)")
    parser.add_argument("--mode", choices=MODES, help=SUPPRESS)
    parser.add_argument("--until", type=int, help=SUPPRESS)
    parser.add_argument("--worker", type=Path, help=SUPPRESS)
    given = parsed(parser, arguments, SMOKE)
    if given.worker is not None:
        work(given)
        return
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
