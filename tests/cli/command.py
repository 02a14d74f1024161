"""Run `cutwater` as people do, in a process of its own; most tests of this directory do."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
SPARK_DEADLINE_S = 400

PIPELINE = """
from cutwater import Pipeline


class Nowhere:
    format = "nowhere"
    accepts = frozenset({"append"})

    def describe(self):
        return "nowhere"


def build(name):
    made = Pipeline(name)
    made.source(numbers)
    made.sink("out", Nowhere(), of="numbers")
    return made


def numbers(spark):
    return spark.readStream.format("rate").load()
"""


def command(*arguments: str, program: str = "cutwater.cli.main") -> list[str]:
    return [sys.executable, "-m", program, *arguments]


def environment(**changes: str) -> Mapping[str, str]:
    # Wide enough that no sentence is broken where a test looks for it.
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "COLUMNS": "200",
        # What is served has tests of its own.
        "CUTWATER_SERVE": "off",
        **changes,
    }


def cutwater(
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    return run_to_end(command(*arguments), cwd=cwd, env=env, deadline_s=deadline_s)


def run_to_end(
    words: Sequence[str],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end; what it says is kept."""
    return subprocess.run(
        words,
        cwd=cwd,
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
