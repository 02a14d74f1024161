"""One measurement as a process of its own, watched from outside: time, processors, memory.

The same watcher for every engine, whatever language it runs in. The engine says when it began and
ended; what it used in between is read from the kernel four times a second, for the process and all
below it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import DEADLINE_S, ROOT
from benchmarks.processes import cpu_seconds, family, memory_mb

_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """What a family of processes had used at one moment."""

    at_s: float
    cpu_s: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Use:
    """What a family of processes used between two moments."""

    cpu_s: float
    memory_mb_max: float


def sample(root: int) -> Sample:
    """Look at a process and all below it; those that end meanwhile are left out."""
    memory = 0.0
    for process in family(root):
        with suppress(OSError, ValueError):
            memory += memory_mb(process)
    return Sample(time.time(), cpu_seconds(root), memory)


def use_between(samples: Sequence[Sample], began_s: float, ended_s: float) -> Use:
    """Return the processor time from one moment to another, and the most memory of all samples.

    The time is taken between the samples next to the moments, by the share that lies within. The
    time of a family falls when a member ends that its parent does not wait for, as Flink's JVM
    does; what was seen before still counts.
    """
    memory = max((one.memory_mb for one in samples), default=0.0)
    totals = accumulate((one.cpu_s for one in samples), max)
    samples = [replace(one, cpu_s=cpu_s) for one, cpu_s in zip(samples, totals, strict=True)]
    return Use(_cpu_at(samples, ended_s) - _cpu_at(samples, began_s), memory)


def _cpu_at(samples: Sequence[Sample], at_s: float) -> float:
    before = [one for one in samples if one.at_s <= at_s]
    after = [one for one in samples if one.at_s > at_s]
    if not before or not after:
        return (before[-1] if before else after[0]).cpu_s if samples else 0.0
    first, last = before[-1], after[0]
    share = (at_s - first.at_s) / (last.at_s - first.at_s)
    return first.cpu_s + share * (last.cpu_s - first.cpu_s)


@contextmanager
def started(
    words: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process at the root of the repository; it and all below it are killed afterwards."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, env=dict(environment), stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all below it with SIGKILL, and wait for its end."""
    for member in family(process.pid):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait()


def watch(
    words: Sequence[str], environment: Mapping[str, str], result: Path
) -> tuple[dict[str, Any], list[Sample]]:
    """Run a process to its end.

    Returns:
        The JSON that it wrote to `result`, and what it used meanwhile.

    Raises:
        RuntimeError: If it fails, or takes too long; with the end of what it printed.
    """
    samples, log = [], result.with_suffix(".log")
    deadline = time.monotonic() + DEADLINE_S
    with started(words, environment, log) as process:
        while process.poll() is None and time.monotonic() < deadline:
            samples.append(sample(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        code = process.poll()
    if code != 0:
        printed = log.read_text(errors="replace").strip().splitlines()[-30:]
        ended = "took too long" if code is None else f"ended with {code}"
        raise RuntimeError("\n".join([f"{' '.join(words[:4])} {ended}:", *printed]))
    return json.loads(result.read_text()), samples
