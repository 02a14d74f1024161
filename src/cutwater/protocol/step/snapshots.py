"""The snapshots of one step: noted, pinned, stored, acknowledged (section 6), restored (10).

A snapshot is noted in the critical section that appends the barrier. Its files may be pinned once
its batch is committed; it may be stored once everything in flight is known as well; it may be
acknowledged once it is stored. Each happens once. `Restored` says where a step begins in a new
generation; only a decided cut is ever restored. Upholds I3, I5 and I9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, InputId
from cutwater.protocol.cut import StepSnapshot
from cutwater.protocol.messages import START, Place
from cutwater.protocol.step.aligner_events import Captured
from cutwater.protocol.step.events import Acknowledge, Forget, Pin, StepCommand, Stored, Upload
from cutwater.protocol.step.in_flight import InFlightRange

Commands = tuple[StepCommand, ...]


@dataclass(slots=True)
class _Pending:
    snapshot: StepSnapshot
    captured: bool
    committed: bool = False
    ranges: tuple[InFlightRange, ...] = ()
    uploading: bool = False
    acknowledged: bool = False


class SnapshotBook:
    """The open snapshots of one step."""

    def __init__(self) -> None:
        self._pending: dict[CheckpointId, _Pending] = {}

    def __contains__(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id in self._pending

    @property
    def awaits_commit(self) -> bool:
        """Whether a snapshot waits for the commit of its batch. May be read from any thread."""
        return any(not pending.committed for pending in tuple(self._pending.values()))

    def note(self, snapshot: StepSnapshot, *, committed: bool, captured: bool) -> Commands:
        """Add a snapshot; it is captured at once if nothing can be in flight (a source)."""
        pending = _Pending(snapshot, captured)
        self._pending[snapshot.checkpoint_id] = pending
        return self._commit(pending) if committed else ()

    def batch_committed(self, batch: BatchId) -> Commands:
        """Pin the files of the snapshots that waited for the commit of this batch."""
        commands: Commands = ()
        for pending in self._pending.values():
            if pending.snapshot.batch == batch and not pending.committed:
                commands += self._commit(pending)
        return commands

    def captured(self, captured: Captured) -> Commands:
        pending = self._pending[captured.checkpoint_id]
        pending.captured = True
        pending.ranges = captured.ranges
        pending.snapshot = replace(pending.snapshot, barriers=captured.places)
        return self._upload(pending)

    def stored(self, event: Stored) -> Commands:
        """Acknowledge a stored snapshot; a snapshot that was dropped meanwhile is ignored."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is None:
            return ()
        if not pending.uploading or pending.acknowledged:
            message = f"checkpoint {event.checkpoint_id} was not being stored."
            raise ProtocolViolation(message)
        pending.acknowledged = True
        pending.snapshot = replace(pending.snapshot, state=event.state, in_flight=event.in_flight)
        return (Acknowledge(pending.snapshot),)

    def batch_of(self, checkpoint_id: CheckpointId) -> BatchId | None:
        pending = self._pending.get(checkpoint_id)
        return None if pending is None else pending.snapshot.batch

    def forget(self, checkpoint_id: CheckpointId) -> Commands:
        """Drop a snapshot, if there is one: its attempt is over for this step."""
        if self._pending.pop(checkpoint_id, None) is None:
            return ()
        return (Forget(checkpoint_id),)

    def _commit(self, pending: _Pending) -> Commands:
        pending.committed = True
        pin = Pin(pending.snapshot.checkpoint_id, pending.snapshot.batch)
        return (pin, *self._upload(pending))

    def _upload(self, pending: _Pending) -> Commands:
        if not (pending.committed and pending.captured):
            return ()
        pending.uploading = True
        return (Upload(pending.snapshot, pending.ranges),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where a step starts: empty, or from its snapshot in the restored cut."""

    batch: BatchId = NO_BATCH
    positions: Mapping[InputId, Place] = field(default_factory=dict)
    output: Place = START
    offsets: Mapping[str, str] = field(default_factory=dict)
    watermark_ms: int | None = None
    owes_batch: bool = False

    @classmethod
    def from_snapshot(cls, snapshot: StepSnapshot) -> "Restored":
        """Start from a snapshot, including the owed batch (rule F22).

        EndOfInput is not restored: a finished step finds its own end again (F2).
        """
        return cls(
            batch=snapshot.batch,
            positions=snapshot.positions,
            output=snapshot.output,
            offsets=snapshot.offsets,
            watermark_ms=snapshot.watermark_ms,
            owes_batch=snapshot.owes_batch,
        )
