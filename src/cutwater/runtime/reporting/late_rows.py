"""Counts the rows that Spark drops because the watermark has passed them, for people.

Spark says so only in a query's progress, batch by batch, and keeps the last hundred. One thread
asks every few seconds, away from everything that decides or waits: a call into the JVM may take
its time. Nothing depends on the numbers.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 2.0


class CountsLateRows(Protocol):
    """Something that may have dropped rows since it was last asked."""

    def count_late_rows(self) -> None:
        """Count what is new."""
        ...


class LateRows:
    """Asks all steps of the generation that runs, again and again."""

    def __init__(
        self, steps: Callable[[], Iterable[CountsLateRows]], every_s: float = _EVERY_S
    ) -> None:
        """Prepare; `steps` returns those that run now."""
        self._steps = steps
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-rows", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more; does not wait."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for step in self._steps():
                try:
                    step.count_late_rows()
                except Exception as error:  # noqa: BLE001 - a query or a JVM that is just ending
                    _LOG.debug("late rows are not known now: %s", error)
