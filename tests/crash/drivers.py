"""Drivers as real processes: started ahead of time, given a task, stopped, killed, reaped.

Starting Spark takes seconds, so one driver is always being made ready while another one runs, and a
driver that has come to a regular end runs the next task.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0
QUICK = {"interval": "500ms", "min_pause": "100ms", "retained": 1000}
"""A checkpoint every half second; none is deleted, so that all of them can be looked at."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What a driver is to run.

    Attributes:
        pipeline: The pipeline.
        directory: Where its store and its scratch are.
        parameters: What it is made with.
        checkpoint: How its checkpoints are taken.
        takeover: Whether to insist.
        dies_at: The write, and the how many-th, that is its last.
        only_pauses: Whether it stops there with SIGSTOP instead of dying.
        name: What it is called in the store; as it calls itself for None.
    """

    pipeline: str
    directory: str
    parameters: Mapping[str, str]
    checkpoint: Mapping[str, object] = field(default_factory=lambda: QUICK)
    takeover: bool = False
    dies_at: tuple[str, int] = ("", 0)
    only_pauses: bool = False
    name: str | None = None


class Driver:
    """One process with a Spark of its own."""

    def __init__(self, log: Path, master: str) -> None:
        """Start it; Spark is ready some seconds later."""
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.child", master],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self.heard: list[Line] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.is_free = True

    @property
    def id(self) -> int:
        """The process id."""
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def run(self, task: Task) -> None:
        """Run a task; does not wait for anything."""
        self.heard = []
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, event: str, such: Callable[[Line], bool] = lambda _: True) -> Line:
        """Wait until the driver reports such an event."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event} in {DEADLINE_S} s: {self._told()}") from None
            if line is None:
                raise AssertionError(f"died before {event}: {self._told()}")
            self.heard.append(line)
            if line["event"] == event and such(line):
                return line
            if line["event"] in {"error", "ended"}:
                raise AssertionError(f"{line} before {event}: {self._told()}")

    def wait_for_death(self) -> list[str]:
        """Wait until it has killed itself at the given write; return what it came to."""
        dying = self.wait_for("dying")
        self._reap()
        return list(dying["writes"])

    def finish(self) -> list[str]:
        """Wait until its task has come to a regular end; return what it came to."""
        ended = self.wait_for("ended")
        assert ended["finished"]
        self.is_free = True
        return list(ended["writes"])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; the JVM gets none, it lives and dies with the driver."""
        os.kill(self.id, number)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        code = self._process.wait(DEADLINE_S)
        assert code == -signal.SIGKILL, self._told()

    def children(self) -> list[Path]:
        """Return the processes that it has started and that live: its JVM."""
        return [path for path in Path("/proc").glob("[0-9]*") if parent_of(path) == self.id]

    def give_up(self) -> None:
        """Kill it if it is still there, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        # No other process has its stdout, so it has ended.
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _told(self) -> str:
        return f"{self.heard[-5:]}; {self._log.read_text(errors='replace')[-2000:]}"


class Drivers:
    """All drivers of a test session; one is kept ready."""

    def __init__(self, directory: Path, master: str = "local[2]") -> None:
        """Begin to start the first one."""
        self._directory = directory
        self._master = master
        self._all: list[Driver] = []
        self._spare = self._start()

    def _start(self) -> Driver:
        log = self._directory / f"driver-{len(self._all)}.log"
        driver = Driver(log, self._master)
        self._all.append(driver)
        return driver

    def take(self) -> Driver:
        """Return a driver that is ready, and begin to start the one after it."""
        free = next(
            (driver for driver in self._all if driver.is_free and driver is not self._spare), None
        )
        if free is None:
            free = self._spare
            free.wait_for("ready")
            self._spare = self._start()
        free.is_free = False
        return free

    def sweep(self) -> None:
        """Kill those that a test has left running."""
        for driver in self._all:
            if not driver.is_free:
                driver.give_up()

    def close(self) -> None:
        """Leave none running."""
        for driver in self._all:
            driver.give_up()


def parent_of(process: Path) -> int | None:
    """Return the parent of a process; None if it is dead."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])
