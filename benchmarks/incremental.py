"""What an incremental checkpoint uploads: a large state of which little changes between two.

One step counts rows for each key. First every key is seen once; then, again and again, a small
share of the keys, spread evenly, is seen once more and a checkpoint is taken. At the end a full one
shows what all of the state takes. Counted are the bytes sent and the objects new in the store.

    python -m benchmarks.incremental [--keys N] [--touched 0.01] [--checkpoints N]
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from benchmarks.chain import drop
from benchmarks.measuring import (
    DEADLINE_S,
    Discard,
    machine,
    options_of,
    parsed,
    publish,
    rounded,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import CheckpointConfig, Pipeline, RestartConfig
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.run import PipelineRun, RunOptions

SMOKE: Final = {"keys": 20_000, "checkpoints": 3}


def pipeline(source: Path) -> Pipeline:
    made = Pipeline("incremental")

    @made.source
    def seen(spark: SparkSession) -> DataFrame:
        frame = spark.readStream.schema("key long").option("maxFilesPerTrigger", 1)
        return frame.parquet(str(source))

    @made.step(output_mode="update")
    def counts(seen: DataFrame) -> DataFrame:
        return seen.groupBy("key").agg(F.count("*").alias("count"))

    made.sink("nowhere", Discard(), of=counts)
    return made


def see(keys: np.ndarray, source: Path, number: int) -> None:
    drop(pa.table({"key": keys}), source, f"k{number:06}.parquet")


def objects(store: Path) -> set[Path]:
    """Return every blob in the store."""
    return {path for path in store.glob("pipelines/*/blobs/**/*") if path.is_file()}


def checkpoint(run: PipelineRun, store: Path, kind: CheckpointKind) -> dict[str, Any]:
    """Take a checkpoint; return what was sent for it."""
    before = objects(store)
    report = run._supervisor.checkpoint(CheckpointRequest(kind), DEADLINE_S)  # noqa: SLF001
    if report is None or report.status != "COMPLETED":
        raise RuntimeError(f"the checkpoint was not completed: {report}")
    # A full one sends objects again that are there, under the names they have.
    new = objects(store) - before
    return {
        "bytes": report.uploaded_bytes,
        "state_bytes": report.state_bytes,
        "objects": len(new),
        "milliseconds": report.duration_ms,
    }


def measure(spark: SparkSession, given: Namespace, directory: Path) -> dict[str, Any]:
    source, store = directory / "input", directory / "store"
    source.mkdir()
    see(np.arange(given.keys, dtype=np.int64), source, 0)
    options = RunOptions(
        store=store,
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval="1h", retained=3),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline(source).start(spark, options)

    def batch(number: int) -> None:
        wait_for(lambda: run.status().steps[0].batch >= number, f"batch {number}", run)

    batch(0)
    found: dict[str, Any] = {"first": checkpoint(run, store, CheckpointKind.CHECKPOINT)}
    touched, samples = int(given.keys * given.touched), []
    for number in range(1, given.checkpoints + 1):
        step = given.keys // touched
        see(np.arange(number % step, given.keys, step, dtype=np.int64), source, number)
        batch(number)
        samples.append(checkpoint(run, store, CheckpointKind.CHECKPOINT))
        print(f"{number}: {rounded(samples[-1]['bytes'] / 1e3)} kB", flush=True)
        time.sleep(given.pause)
    found["incremental"] = samples
    found["full"] = checkpoint(run, store, CheckpointKind.FULL)
    run.kill()
    run.wait()
    return found


def show(found: Mapping[str, Any]) -> str:
    full = found["full"]
    later = found["incremental"]
    share = spread([one["bytes"] / full["bytes"] * 100 for one in later])
    rows = [
        ("full", rounded(full["bytes"] / 1e3), "", "100"),
        (
            "incremental",
            spread([one["bytes"] / 1e3 for one in later]),
            spread([one["objects"] for one in later]),
            share,
        ),
        ("largest of them", rounded(max(one["bytes"] for one in later) / 1e3), "", ""),
    ]
    return table(("", "kB uploaded", "objects", "% of a full one"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("incremental", "Measure what checkpoints upload.", repeats=1)
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the state (%(default)s)")
    parser.add_argument("--touched", type=float, default=0.01, help="share (%(default)s)")
    parser.add_argument("--checkpoints", type=int, default=30, help="taken (%(default)s)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between (%(default)s)")
    given = parsed(parser, arguments, SMOKE)
    facts = machine()
    with session(given.master) as spark, workspace(given) as directory:
        found = measure(spark, given, directory)
    print(f"\n{show(found)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
