"""The current numbers of a generation's steps and channels, for a status.

Each status takes a sample of every step's row count; a rate is the increase over the last seconds.
The counts are read without taking a step's lock, so that a status never delays a step. Nothing
depends on the numbers.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import CheckpointId, StepId
from cutwater.protocol.step.aligner_events import AlignmentState
from cutwater.runtime.engine import Built
from cutwater.runtime.reporting.status import (
    AlignmentStatus,
    BarrierAt,
    ChannelStatus,
    CheckpointReport,
    StepStatus,
)
from cutwater.runtime.step import RunningStep
from cutwater.tasks import THREADS, Tasks

_WINDOW_MS: Final = 10_000
"""Longer than most batches, so that a rate does not fall to zero between two batches."""

_SAMPLES_MAX: Final = 256
_LATE_ROWS_EVERY_S: Final = 2.0
_LOG: Final = logging.getLogger(__name__)


class Rates:
    """Samples of rows by step. May be used from any thread: a terminal, an API and a program."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, tasks: Tasks = THREADS) -> None:
        self._clock = clock
        self._lock = tasks.lock()
        self._seen: dict[StepId, deque[tuple[int, int]]] = {}

    def clear(self) -> None:
        """Forget all samples: a new generation counts from zero."""
        with self._lock:
            self._seen.clear()

    def of(self, step: StepId, rows: int) -> float:
        """Record how many rows a step has emitted, and return its rows per second."""
        at_ms = self._clock.now_ms()
        with self._lock:
            seen = self._seen.setdefault(step, deque(maxlen=_SAMPLES_MAX))
            seen.append((at_ms, rows))
            while len(seen) > 2 and seen[1][0] < at_ms - _WINDOW_MS:
                seen.popleft()
            (first_ms, before), (last_ms, after) = seen[0], seen[-1]
        return (after - before) * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0


def steps_of(
    built: Built, reports: Sequence[CheckpointReport], rates: Rates
) -> tuple[StepStatus, ...]:
    opened = next((report for report in reversed(reports) if report.status == "IN_PROGRESS"), None)
    return tuple(
        StepStatus(
            name,
            step.kind,
            step.machine.last,
            step.rows,
            rates.of(name, step.rows),
            step.machine.finished,
            step.machine.watermark_ms,
            step.late_rows,
            _barrier(step, opened),
            None if opened is None else alignment_of(step, opened.id),
            step.lag,
        )
        for name, step in built.steps.items()
    )


def channels_of(built: Built) -> tuple[ChannelStatus, ...]:
    return tuple(
        ChannelStatus(name, reader.step, backlog.messages, backlog.size_bytes)
        for name, channel in built.channels.items()
        for reader, backlog in channel.backlogs().items()
    )


def _barrier(step: RunningStep, opened: CheckpointReport | None) -> BarrierAt:
    if opened is None:
        return BarrierAt.NOWHERE
    if step.name in opened.steps:
        return BarrierAt.ACKNOWLEDGED
    return step.times.barrier(opened.id)


def alignment_of(step: RunningStep, checkpoint_id: CheckpointId) -> AlignmentStatus | None:
    """Return how the inputs of a step meet a barrier; None for a source, or if it is over."""
    aligner = step.machine.aligner
    progress = None if aligner is None else aligner.progress(checkpoint_id)
    if progress is None:
        return None
    held_bytes = 0
    if progress.state is AlignmentState.ALIGNING:
        # The step has read up to the barrier there, so everything unread comes after the barrier.
        held_bytes = sum(
            step.wiring.inputs[source].backlogs()[step.reader(source)].size_bytes
            for source in progress.aligned
        )
    return AlignmentStatus(
        tuple(str(source) for source in progress.aligned),
        tuple(str(source) for source in progress.waiting),
        held_bytes,
        progress.behind_bytes,
        progress.recorded_bytes,
    )


class CountsLateRows(Protocol):
    """A step that may have dropped rows since the last call."""

    def count_late_rows(self) -> None:
        """Count the rows dropped since the last call."""
        ...


class LateRows:
    """Counts the rows that Spark drops because the watermark has passed them.

    Spark reports them only in a query's progress, batch by batch, and keeps the last hundred. One
    thread reads the progress of all running steps every few seconds, apart from all threads that
    decide or wait: a call into the JVM may take long.
    """

    def __init__(
        self,
        steps: Callable[[], Iterable[CountsLateRows]],
        every_s: float = _LATE_ROWS_EVERY_S,
        tasks: Tasks = THREADS,
    ) -> None:
        """Prepare; `steps` returns the steps that run now."""
        self._steps = steps
        self._every_s = every_s
        self._tasks = tasks
        self._over = tasks.event()

    def start(self) -> None:
        self._tasks.start(self._run, "late-rows")

    def close(self) -> None:
        """End the thread; does not wait for it."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for step in self._steps():
                try:
                    step.count_late_rows()
                except Exception as error:  # noqa: BLE001 - a query or a JVM that is just ending
                    _LOG.debug("late rows are not known now: %s", error)
