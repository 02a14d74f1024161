"""Runs pipelines to their end in the session of the tests, and reads what their tables show."""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cutwater import CheckpointConfig, Pipeline, RestartConfig
from cutwater.cli.session import SessionStarter
from cutwater.run import PipelineRun, RunOptions
from cutwater.runtime.reporting.status import RunResult, RunStatus
from cutwater.spark.session.session import ship_by_value

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 240.0

Rows = list[tuple[Any, ...]]


def example(name: str) -> ModuleType:
    """Load one of the examples."""
    found = sys.modules.get(f"example_{name}")
    if found is not None:
        return found
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    ship_by_value([module])
    return module


def starter(spark: SparkSession) -> SessionStarter:
    """What commands start their session with: here, the one that runs already."""
    return SessionStarter(str(spark.sparkContext.master), "cutwater-tests", {})


def options(directory: Path, **given: Any) -> RunOptions:  # noqa: ANN401
    """Options with quick checkpoints, a store and a scratch of the test's own."""
    checkpoint = given.pop("checkpoint", CheckpointConfig(interval="1s"))
    restart = given.pop("restart", RestartConfig(strategy="none"))
    scratch = given.pop("scratch", directory / "scratch")
    return RunOptions(
        store=directory / "store",
        scratch=scratch,
        checkpoint=checkpoint,
        restart=restart,
        **given,
    )


def run(pipeline: Pipeline, spark: SparkSession, given: RunOptions) -> RunResult:
    """Run a pipeline to its end."""
    running = pipeline.start(spark, given)
    result = running.wait(DEADLINE_S)
    if result is None:
        status = running.status()
        running.kill()
        running.wait(DEADLINE_S)
        raise AssertionError(f"{pipeline.name} did not end: {status}")
    return result


def wait_until(
    running: PipelineRun, condition: Callable[[RunStatus], bool], what: str
) -> RunStatus:
    """Wait until a running pipeline shows something."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        status = running.status()
        if condition(status):
            return status
        if running.wait(0.05) is not None:
            raise AssertionError(f"the pipeline ended before {what}: {status}")
    raise AssertionError(f"not within {DEADLINE_S} s: {what}; {running.status()}")


def table(path: Path, *columns: str) -> Rows:
    """Read a Delta table with a reader that is not Spark, sorted."""
    rows = DeltaTable(path).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in rows)


def wait_for_rows(path: Path, count: int, *columns: str) -> Rows:
    """Wait until a table shows so many rows, and return them."""
    deadline = time.monotonic() + DEADLINE_S
    rows: Rows = []
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{rows} in {path}"
        # The directory is there a moment before its first entry.
        if any((path / "_delta_log").glob("*.json")):
            rows = table(path, *columns)
    return rows


def files_below(directory: Path, suffix: str) -> Iterator[Path]:
    """Find files, also while directories there are being removed, on which `rglob` would fail."""
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names if name.endswith(suffix))


def collected(frame: DataFrame) -> Rows:
    """What a batch computation gives, sorted."""
    return ordered(tuple(row) for row in frame.collect())


def ordered(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """Rows in an order that does not depend on how they came."""
    return sorted(rows, key=repr)
