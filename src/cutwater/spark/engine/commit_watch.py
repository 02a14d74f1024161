"""Notices when Spark has committed a batch: looks for commits/N right after batch N was appended.

Spark tells nobody when that file is there; its listener bus may be late or lose events. So while a
batch waits for it, and only then, one thread looks every few milliseconds.
"""

import threading
from collections.abc import Callable
from typing import Final

from cutwater.ids import BatchId, StepId
from cutwater.runtime.step import RunningStep
from cutwater.spark.engine.query_step import QueryStep

_POLL_S: Final = 0.005


class CommitWatch:
    """Watches the queries of one generation."""

    def __init__(self, failed: Callable[[RunningStep, BaseException], None]) -> None:
        """Watch nothing yet."""
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: dict[StepId, tuple[QueryStep, BatchId]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="commit watch", daemon=True)
        self._thread.start()

    def watch(self, step: QueryStep, batch: BatchId) -> None:
        """Let the step note when this batch of its query is committed."""
        with self._changed:
            self._waiting[step.name] = (step, batch)
            self._changed.notify()

    def close(self) -> None:
        """Stop looking, and wait for the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                waiting = list(self._waiting.values())
            for step, batch in waiting:
                self._look(step, batch)
            with self._changed:
                if self._waiting and not self._closed:
                    self._changed.wait(_POLL_S)

    def _look(self, step: QueryStep, batch: BatchId) -> None:
        try:
            found = step.machine.committed >= batch or step.note_if_committed(batch)
        except BaseException as error:  # noqa: BLE001 - a defect must not end the watch unseen
            self._failed(step, error)
            found = True
        if found:
            with self._changed:
                if self._waiting.get(step.name) == (step, batch):
                    del self._waiting[step.name]
