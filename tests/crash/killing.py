"""One pipeline that is killed again and again, and what must hold whenever nobody runs it."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.crash.drivers import QUICK, Drivers, Task
from tests.crash.stands import Stand, slots_of, stand_of

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
        self.stands: list[Stand] = []
        self.writes: list[str] = []

    def dies_at(self, write: str, count: int = 1) -> Stand:
        """Let a driver die right after it has made a write of this name for the count-th time."""
        driver = self._drivers.take()
        driver.run(replace(self._task, dies_at=(write, count)))
        driver.wait_for_death()
        return self._look()

    def dies_after(
        self,
        event: str,
        chance: random.Random,
        most_s: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Stand:
        """Kill a driver at some moment after it has told of an event, perhaps after more harm."""
        driver = self._drivers.take()
        driver.run(self._task)
        driver.wait_for(event)
        time.sleep(chance.uniform(0, most_s))
        meanwhile()
        driver.kill()
        return self._look()

    def _look(self) -> Stand:
        self.stands.append(stand_of(self._task.pipeline, self._directory))
        return self.stands[-1]

    def finish(self) -> int:
        """Let a driver run to the end of the stream, and return where that was."""
        total = self.stands[-1].source_position + REST
        driver = self._drivers.take()
        driver.run(replace(self._task, parameters={**self._task.parameters, "total": str(total)}))
        self.writes = driver.finish()
        stand = self._look()
        assert stand.changes > self.stands[-2].changes
        for table in (self._directory / "tables").iterdir():
            slots = slots_of(table)
            assert slots == sorted(set(slots)), f"{table.name}: {slots}"
        return total
