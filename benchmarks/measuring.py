"""What the benchmarks on Spark share: fair turns, medians with their spread, facts, result files.

Nothing here judges a time. Cases are run in turn, each round beginning with another one, so that
all of them see the same machine in the same mood; a result is a median with its quartiles, and is
written as JSON beside the command and the machine it comes from. Where settings would leak from
one case to the next, every measurement is a process of its own (`in_fresh_process`).
"""

import argparse
import functools
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, TypeVar

from benchmarks.processes import first_value
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cutwater.ids import BatchId, Generation
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.run import PipelineRun
from cutwater.sinks.base import RestorePreview, Rows, SinkContext
from cutwater.spark.session.session import embedded_session
from cutwater.store.records.targets import StoredTarget

ROOT: Final = Path(__file__).resolve().parents[1]
DEADLINE_S: Final = 1800.0
_POLL_S: Final = 0.05

T = TypeVar("T")
Progress = Mapping[str, Any]
"""One entry of a query's `recentProgress`."""

# -- numbers


@dataclass(frozen=True, slots=True)
class Spread:
    """One thing measured several times."""

    samples: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile; of one sample, the sample."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return low, high

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{rounded(self.middle)} ({rounded(low)}..{rounded(high)})"

    def form(self) -> dict[str, object]:
        """Return what a result file says of it."""
        low, high = self.quartiles
        return {"median": self.middle, "quartiles": [low, high], "samples": list(self.samples)}


def spread(samples: Sequence[float]) -> Spread:
    """Return the spread of at least one sample."""
    return Spread(tuple(float(sample) for sample in samples))


def rounded(number: float) -> str:
    """Write a number for people: three digits that matter, thousands set apart."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def interleaved(cases: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """Yield every case once per round; each round begins one case further on."""
    for repeat in range(repeats):
        first = repeat % len(cases)
        for case in (*cases[first:], *cases[:first]):
            yield repeat, case


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Set rows as text: the first column to the left, the others to the right."""
    cells = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in cells
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


# -- options, facts and result files


def options_of(name: str, summary: str, *, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=summary)
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds (%(default)s)")
    parser.add_argument("--master", default="local[2]", help="Spark's master (%(default)s)")
    parser.add_argument("--smoke", action="store_true", help="tiny: shows that it runs, no more")
    parser.add_argument("--work", type=Path, help="directory for files of the run; default: temp")
    results = Path("benchmarks", "results")
    parser.add_argument(
        "--output", type=Path, default=results / f"{name}.json", help="result file (%(default)s)"
    )
    return parser


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, smoke: Mapping[str, object]
) -> argparse.Namespace:
    """Parse the options; with `--smoke`, these tiny values stand in for those not given."""
    given = parser.parse_args(arguments)
    if given.smoke:
        parser.set_defaults(**smoke)
        given = parser.parse_args(arguments)
    return given


def settings_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, object]:
    """Return the values of all options but paths, which mean nothing on another machine."""
    return {
        action.dest: getattr(given, action.dest)
        for action in parser._actions  # noqa: SLF001 - argparse has no other list of its options
        if action.dest != "help"
        and action.help is not argparse.SUPPRESS
        and action.type is not Path
    }


def command_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """Return the command that runs the same again, without paths."""
    smoke = getattr(given, "smoke", False)
    words = shlex.split(parser.prog) + (["--smoke"] if smoke else [])
    for name, value in settings_of(parser, given).items():
        if name != "smoke" and value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def machine() -> dict[str, object]:
    """Return what a time depends on: the machine, the versions, and how busy it was."""
    cpu = first_value(Path("/proc/cpuinfo"), "model name")
    memory_kb = first_value(Path("/proc/meminfo"), "MemTotal").split(" ")[0]
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_gb": round(int(memory_kb or 0) / 1024**2, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "load_average": [round(one, 2) for one in os.getloadavg()],
    }


def publish(
    parser: argparse.ArgumentParser, given: argparse.Namespace, measured: object, facts: object
) -> None:
    """Write the result file and say where it is and which command makes it.

    Args:
        parser: The benchmark's options.
        given: Their values.
        measured: What was measured, as JSON takes it.
        facts: What `machine` said before the benchmark began.
    """
    command = command_of(parser, given)
    result = {
        "command": command,
        "machine": facts,
        "settings": settings_of(parser, given),
        "measured": measured,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{command}\n{given.output}")


# -- running


@contextmanager
def workspace(given: argparse.Namespace) -> Iterator[Path]:
    """Give a directory for the files of one run; they are deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="cutwater-bench-", dir=given.work) as made:
        yield Path(made)


@contextmanager
def session(master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start the session that a pipeline runs in, and stop it afterwards."""
    spark = embedded_session(master, app_name="cutwater-benchmark", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def in_fresh_process(module: str, arguments: Sequence[str], directory: Path) -> Any:  # noqa: ANN401
    """Run `python -m module … --worker FILE` and return the JSON it wrote there."""
    file = directory / "worker.json"
    file.unlink(missing_ok=True)
    words = [sys.executable, "-m", module, *arguments, "--worker", str(file)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=DEADLINE_S)
    return json.loads(file.read_text())


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    run: PipelineRun | None = None,
    poll_s: float = _POLL_S,
) -> T:
    """Wait until the condition gives something true, and return that.

    Raises:
        RuntimeError: If it does not in time, or the pipeline ends first.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        if run is None:
            time.sleep(poll_s)
        elif run.wait(poll_s) is not None:
            raise RuntimeError(f"the pipeline ended before {what}")
    raise RuntimeError(f"not within {DEADLINE_S:.0f} s: {what}")


def query_of(spark: SparkSession, step: str) -> StreamingQuery | None:
    """Return the running query of a step, the first word of its name; None without one."""
    for query in spark.streams.active:
        if str(query.name).partition(" ")[0] == step:
            return query
    return None


def timed(owner: type, method: str, into: list[float]) -> None:
    """Let a method note the milliseconds of each call, for the rest of this process."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def noted(*arguments: object, **keywords: object) -> object:
        start = time.perf_counter()
        try:
            return original(*arguments, **keywords)
        finally:
            into.append((time.perf_counter() - start) * 1000)

    setattr(owner, method, noted)


# -- a sink that costs nothing


@dataclass(frozen=True, slots=True)
class Discard:
    """A target that computes every row and keeps none: what is measured ends before the sink."""

    @property
    def format(self) -> str:
        """The kind of target."""
        return "discard"

    @property
    def accepts(self) -> frozenset[str]:
        """The output modes it takes: all."""
        return frozenset({"append", "update", "complete"})

    def describe(self) -> str:
        """Name the target for people."""
        return "nowhere"

    def open(self, context: SinkContext) -> "OpenDiscard":  # noqa: ARG002 - a contract
        """Open it; there is nothing to check."""
        return OpenDiscard()

    def stored(self) -> StoredTarget:
        """Say where it is: nowhere."""
        return StoredTarget(self.format, "nowhere")


class OpenDiscard:
    """`Discard` in use; fills `OpenSink`."""

    def stage(
        self,
        rows: Rows,
        generation: Generation,  # noqa: ARG002
        batch: BatchId,  # noqa: ARG002
    ) -> Committable | None:
        """Compute the rows, and stage nothing."""
        rows.count()
        return None

    def problem(self, committable: Committable) -> str | None:  # noqa: ARG002
        """Return None: nothing staged can be wrong."""
        return None

    def commit(
        self,
        permit: CommitPermit,  # noqa: ARG002
        committables: Sequence[Committable],  # noqa: ARG002
    ) -> Version:
        """Do nothing."""
        return ""

    def look_back(self, version: Version | None) -> RestorePreview:  # noqa: ARG002
        """Return that going back changes nothing."""
        return RestorePreview("")

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:  # noqa: ARG002
        """Do nothing."""
        return ""

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Do nothing."""
