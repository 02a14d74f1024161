"""When a step did its part of each open attempt, for people who ask what took so long.

Written under the step's lock and by the thread that stores its snapshot, read when the step has
acknowledged. Nothing depends on it.
"""

import time
from dataclasses import dataclass

from cutwater.clock import now_ms
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import StepSnapshot
from cutwater.runtime.reporting.status import BarrierAt
from cutwater.store.records.reports import StepReport


@dataclass(slots=True)
class _Times:
    seen_at_ms: int | None = None
    emitted_at_ms: int | None = None
    sync_s: float = 0.0
    stored_from_ms: int | None = None
    uploaded_bytes: int = 0
    rows: int | None = None


class StepTimes:
    """The open attempts of one step."""

    def __init__(self) -> None:
        """Know of none."""
        self._open: dict[CheckpointId, _Times] = {}

    def _of(self, checkpoint_id: CheckpointId) -> _Times:
        return self._open.setdefault(checkpoint_id, _Times())

    def seen(self, checkpoint_id: CheckpointId) -> None:
        """Note that a barrier has come in; the first one counts."""
        times = self._of(checkpoint_id)
        times.seen_at_ms = times.seen_at_ms or now_ms()

    def emitted(self, checkpoint_id: CheckpointId, rows: int) -> None:
        """Note that the barrier went out, behind so many rows of this generation."""
        times = self._of(checkpoint_id)
        times.emitted_at_ms = now_ms()
        times.rows = rows

    def pinned(self, checkpoint_id: CheckpointId, since_s: float) -> None:
        """Note how long pinning took, on `time.monotonic`."""
        self._of(checkpoint_id).sync_s += time.monotonic() - since_s

    def storing(self, checkpoint_id: CheckpointId) -> None:
        """Note that the snapshot begins to be stored."""
        self._of(checkpoint_id).stored_from_ms = now_ms()

    def uploaded(self, checkpoint_id: CheckpointId, size_bytes: int) -> None:
        """Note how much was stored anew, if anybody still asks."""
        times = self._open.get(checkpoint_id)
        if times is not None:
            times.uploaded_bytes = size_bytes

    def forget(self, checkpoint_id: CheckpointId) -> None:
        """Forget an attempt that is over, and what came before it."""
        for one in [one for one in self._open if one <= checkpoint_id]:
            del self._open[one]

    def barrier(self, checkpoint_id: CheckpointId) -> BarrierAt:
        """Say how far an attempt's barrier has come, acknowledgements aside; from any thread."""
        times = self._open.get(checkpoint_id)
        if times is None or (times.seen_at_ms is None and times.emitted_at_ms is None):
            return BarrierAt.AWAITED
        return BarrierAt.ALIGNING if times.emitted_at_ms is None else BarrierAt.SENT

    def report(self, snapshot: StepSnapshot, started_at_ms: int) -> StepReport:
        """Return the step's part of an attempt that it has just acknowledged."""
        times = self._open.get(snapshot.checkpoint_id, _Times())
        at_ms = now_ms()
        emitted = times.emitted_at_ms or times.seen_at_ms or started_at_ms
        seen = times.seen_at_ms or emitted
        return StepReport(
            start_delay_ms=max(0, seen - started_at_ms),
            alignment_ms=max(0, emitted - seen),
            sync_ms=round(times.sync_s * 1000),
            async_ms=max(0, at_ms - (times.stored_from_ms or at_ms)),
            end_to_end_ms=max(0, at_ms - started_at_ms),
            uploaded_bytes=times.uploaded_bytes,
            state_bytes=sum(blob.size_bytes for blob in snapshot.state),
            in_flight_bytes=snapshot.in_flight_bytes,
            rows=times.rows,
        )
