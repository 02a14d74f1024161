"""An engine that runs without end while files arrive: what latency and recovery have in common.

The files are bids whose `auction` is the number of their file; engine and reader share nothing but
directories. The engine is a process of its own, and is always ended with SIGKILL.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.measuring import DEADLINE_S
from benchmarks.peers import data
from benchmarks.peers.flink_setup import Flink
from benchmarks.peers.queries import START_MS
from benchmarks.peers.throughput import command
from benchmarks.peers.visible import NUMBER
from benchmarks.peers.watching import started

BATCH_SUFFIX: Final = "-batch"
"""Marks the case in which Cutwater's tables show every batch."""
_TOTALS: Final = data.rows_of(10_000_000)
_STEP_MS: Final = 100
_MONITOR_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Live:
    """One live run.

    Attributes:
        case: The engine, for Cutwater with the suffix that says what is visible.
        query: Its query.
        home: Where everything of it is.
        cores: How many cores it may use.
        interval_s: The time between checkpoints.
        flink: The Flink to run, if it is one.
    """

    case: str
    query: str
    home: Path
    cores: int
    interval_s: float
    flink: Flink | None = None

    @property
    def incoming(self) -> Path:
        """Where files arrive."""
        return self.home / "streams" / "bids"

    def table(self, name: str) -> Path:
        """Return where a table is."""
        return self.home / "tables" / name


def live_cases(engines: list[str]) -> list[str]:
    """Return the cases of those engines that can run without end."""
    found = []
    for engine in engines:
        if engine not in {"batch", "duckdb"}:
            found.append(engine)
        if engine == "cutwater":
            found.append(engine + BATCH_SUFFIX)
    return found


def arriving(number: int, rows: int) -> pa.Table:
    """Return the rows of one file."""
    numbers = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
    made = data.bids(numbers, _TOTALS)
    for name, values in (
        (NUMBER, np.full(rows, number, dtype=np.int64)),
        ("at_ms", np.full(rows, START_MS + number * _STEP_MS, dtype=np.int64)),
    ):
        made = made.set_column(made.column_names.index(name), name, pa.array(values))
    return made


def drop(live: Live, number: int, rows: int) -> float:
    """Let a file arrive at once; return when."""
    live.incoming.mkdir(parents=True, exist_ok=True)
    hidden = live.home / f"{number:09}.unfinished"
    pq.write_table(arriving(number, rows), hidden)
    hidden.rename(live.incoming / f"{number:09}.parquet")
    return time.time()


class Arrivals:
    """Lets files arrive at a fixed rate, and notes when each did."""

    def __init__(self, live: Live, every_s: float, rows: int) -> None:
        self._live = live
        self._every_s = every_s
        self._rows = rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at_s: dict[int, float] = {}

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._ended.wait(max(0.0, next_s - time.monotonic())):
            number = len(self.at_s)
            self.at_s[number] = drop(self._live, number, self._rows)
            next_s += self._every_s

    def start(self) -> None:
        """Let the first one arrive."""
        self._thread.start()

    def end(self) -> None:
        """Let no more arrive."""
        self._ended.set()
        self._thread.join()


@contextmanager
def engine(live: Live) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the engine, from what an earlier one left if there was one; kill it afterwards."""
    live.incoming.mkdir(parents=True, exist_ok=True)
    task = live.home / "task.json"
    name = live.case.removesuffix(BATCH_SUFFIX)
    task.write_text(
        json.dumps(
            {
                "query": live.query,
                "engine": name,
                "kind": name.removeprefix("flink-"),
                "streams": str(live.home / "streams"),
                "target": str(live.home / "tables"),
                "work": str(live.home / "work"),
                "cores": live.cores,
                "interval_s": live.interval_s,
                "sink": "delta",
                "live": True,
                "visibility": "batch" if live.case.endswith(BATCH_SUFFIX) else "checkpoint",
                "monitor_s": _MONITOR_S,
                "mini_batch": False,
                "restore": _flink_checkpoint(live.home / "work"),
            }
        )
    )
    words, environment = command(name, live.flink)
    words = [*words, str(task), os.devnull]
    with started(words, environment, live.home / "engine.log") as process:
        yield process


def _flink_checkpoint(work: Path) -> str | None:
    """Return Flink's newest complete checkpoint, if there is one."""
    found = list(work.glob("checkpoints/*/chk-*/_metadata"))
    newest = max(found, key=lambda file: file.stat().st_mtime_ns, default=None)
    return newest.parent.as_uri() if newest else None


def wait_while_running(
    process: "subprocess.Popen[bytes]", live: Live, done: Callable[[], bool], what: str
) -> None:
    """Wait until something is so.

    Raises:
        RuntimeError: If the engine ends first, or it takes too long.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if process.poll() is not None:
            printed = (live.home / "engine.log").read_text(errors="replace").splitlines()[-20:]
            raise RuntimeError("\n".join([f"{live.case} ended before {what}", *printed]))
        if time.monotonic() > deadline:
            raise RuntimeError(f"{live.case}: not in time: {what}")
        time.sleep(0.01)
