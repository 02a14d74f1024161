"""One pipeline that is killed again and again, and what must hold whenever no process runs it."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.crash.drivers import QUICK, Driver, Drivers, Task
from tests.crash.pipeline_state import PipelineState, read_state, slots_of

ENDLESS = "1000000000"
REST = 2000
"""How many rows the last driver reads beyond the last cut."""


class Killing:
    """Runs one pipeline in drivers that die, then in one that finishes."""

    def __init__(
        self,
        drivers: Drivers,
        directory: Path,
        pipeline: str,
        parameters: Mapping[str, str],
        **checkpoint: object,
    ) -> None:
        """Prepare; the tables are below `tables` in the directory."""
        self._drivers = drivers
        self._directory = directory
        self._task = Task(
            pipeline,
            str(directory),
            {**parameters, "total": ENDLESS},
            {**QUICK, **checkpoint},
        )
        self.states: list[PipelineState] = []
        self.writes: dict[str, None] = {}
        """All durable writes that its drivers came to, in the order of their first time."""
        self._paused: Driver | None = None

    def dies_at(self, write: str, count: int = 1) -> PipelineState:
        """Let a driver die when it comes to a write of this name for the count-th time.

        A write that it never comes to is an error.
        """
        driver = self._drivers.take()
        driver.run(replace(self._task, dies_at=(write, count)))
        self.writes.update(dict.fromkeys(driver.wait_for_death()))
        return self._look()

    def dies_after(
        self,
        event: str,
        chance: random.Random,
        most_s: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> PipelineState:
        """Kill a driver at some moment after it has reported an event, perhaps after more harm."""
        driver = self._drivers.take()
        driver.run(self._task)
        driver.wait_for(event)
        time.sleep(chance.uniform(0, most_s))
        meanwhile()
        driver.kill()
        return self._look()

    def is_paused(self) -> PipelineState:
        """Pause a driver that has taken a checkpoint; `finish` takes over and wakes it."""
        self._paused = self._drivers.take()
        self._paused.run(self._task)
        self._paused.wait_for("checkpoint")
        self._paused.signal(signal.SIGSTOP)
        return self._look()

    def is_paused_at(self, write: str, count: int = 1) -> PipelineState:
        """Pause a driver at a write of this name; `finish` takes over and wakes it."""
        self._paused = self._drivers.take()
        self._paused.run(replace(self._task, dies_at=(write, count), only_pauses=True))
        self._paused.wait_for("dying")
        return self._look()

    def _look(self) -> PipelineState:
        self.states.append(read_state(self._task.pipeline, self._directory))
        return self.states[-1]

    def finish(self) -> int:
        """Let a driver run to the end of the stream, and return where that was."""
        total = self.states[-1].source_position + REST
        driver = self._drivers.take()
        parameters = {**self._task.parameters, "total": str(total)}
        takes_over = self._paused is not None
        driver.run(replace(self._task, parameters=parameters, takeover=takes_over))
        if self._paused is not None:
            driver.wait_for("checkpoint")
            self._paused.signal(signal.SIGCONT)
            # Wherever it met its successor, in the log or in a sink that was taken back.
            assert self._paused.wait_for("error")["kind"] == "Fenced"
        self.writes.update(dict.fromkeys(driver.finish()))
        state = self._look()
        assert state.changes > self.states[-2].changes
        for table in (self._directory / "tables").iterdir():
            slots = slots_of(table)
            assert slots == sorted(set(slots)), f"{table.name}: {slots}"
        return total
