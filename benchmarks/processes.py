"""Processes and their threads as the kernel counts them: time, memory, what is open.

A family is the benchmark's own process and all below it: Spark's JVM is one of them.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final


def family(root: int | None = None) -> list[int]:
    """Return a process (this one) and all below it: where Spark's JVM and its workers are."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents.setdefault(parent_of((entry / "stat").read_text()), []).append(int(entry.name))
    found = [os.getpid() if root is None else root]
    for process in found:
        found += parents.get(process, [])
    return found


def parent_of(stat: str) -> int:
    """Read the parent from `/proc/N/stat`; the name before it may hold anything."""
    return int(stat.rpartition(")")[2].split()[1])


def cpu_seconds_of(stat: str, ticks_per_second: int) -> float:
    """Read from `/proc/N/stat` the processor time of a process and of its ended children."""
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / ticks_per_second


def cpu_seconds(root: int | None = None) -> float:
    """Return the processor time of a whole family so far; of this process's own without a root."""
    ticks, taken = os.sysconf("SC_CLK_TCK"), 0.0
    for process in family(root):
        with suppress(OSError):
            taken += cpu_seconds_of(Path(f"/proc/{process}/stat").read_text(), ticks)
    return taken


def java_process() -> int | None:
    """Return Spark's JVM among the family."""
    for process in family():
        with suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "java":
                return process
    return None


def entries(process: int, kind: str) -> int:
    """Count what a process has open (`fd`) or runs (`task`)."""
    return sum(1 for _ in Path(f"/proc/{process}/{kind}").iterdir())


def threads_named(process: int, part: str) -> int:
    """Count the threads of a process that have this in their name."""
    found = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            found += part in (thread / "comm").read_text()
    return found


def memory_mb(process: int) -> float:
    """Return what a process has in memory."""
    return int(first_value(Path(f"/proc/{process}/status"), "VmRSS").split(" ")[0]) / 1024


def first_value(file: Path, key: str) -> str:
    """Return the value of the first `key : value` line; empty without one."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


# -- what takes the time

_WORKS: Final = {
    "CompilerThre": "Java compiles",
    "Sweeper": "Java compiles",
    "GC Thread": "Java collects garbage",
    "G1 ": "Java collects garbage",
    "Executor task": "Spark's tasks",
    "stream execut": "threads of the queries",
}
"""What a thread does, by a part of its name; the kernel cuts names after 15 letters."""

OTHER_JAVA: Final = "Spark, the rest"
PYTHON: Final = "Python"


def milliseconds_by_work() -> Mapping[str, float]:
    """Return the processor time of the family's living threads so far, by what they do."""
    tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys((*_WORKS.values(), OTHER_JAVA, PYTHON), 0.0)
    for process in family():
        with suppress(OSError):
            is_java = Path(f"/proc/{process}/comm").read_text().strip() == "java"
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(OSError):
                    name, _, rest = (thread / "stat").read_text().rpartition(")")
                    work = _work_of(name) if is_java else PYTHON
                    found[work] += sum(map(int, rest.split()[11:13])) * tick_ms
    return found


def _work_of(thread: str) -> str:
    return next((work for part, work in _WORKS.items() if part in thread), OTHER_JAVA)
