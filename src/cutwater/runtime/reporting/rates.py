"""How the steps and channels of a generation are just now, for people who look.

Whoever looks makes a sample of every step's rows; a rate is what was added over the last seconds.
Reads what steps and channels show without taking a step's lock: a look never holds a step up.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from cutwater.clock import now_ms
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

_WINDOW_MS: Final = 10_000
"""Longer than most batches: a rate that falls to nothing between two batches says nothing."""

_SAMPLES_MAX: Final = 256


class Rates:
    """Samples of rows by step. May be used from any thread: a terminal, an API and a program."""

    def __init__(self) -> None:
        """Know of no sample."""
        self._lock = threading.Lock()
        self._seen: dict[StepId, deque[tuple[int, int]]] = {}

    def clear(self) -> None:
        """Forget all samples: a new generation counts from zero."""
        with self._lock:
            self._seen.clear()

    def of(self, step: StepId, rows: int) -> float:
        """Note how many rows a step has put out, and return how many that is a second."""
        at_ms = now_ms()
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
    """Return how the steps are, given the newest attempts."""
    opened = next((one for one in reversed(reports) if one.status == "IN_PROGRESS"), None)
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
        )
        for name, step in built.steps.items()
    )


def channels_of(built: Built) -> tuple[ChannelStatus, ...]:
    """Return how far the readers of every channel lie behind."""
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
        # The step stands at the barrier there, so whatever it has not read lies behind it.
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
