"""Chandy and Lamport's rules for one step, as slowly and plainly as they can be written.

Each channel is the list of everything ever appended to it. Where a barrier is, whether the step
stands at it and what lies in flight is counted from the front of that list at every question. Of
an attempt only what the step has *done* is remembered: waited, let the barrier out, or declined.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from cutwater.ids import ChannelId, CheckpointId, InputId
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.messages import Barrier, Control, EndOfInput, Event, Message, Place
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step.aligner_events import AlignerCommand, Captured, Cause, Decline, Emit
from cutwater.protocol.step.in_flight import InFlightRange

Expected = list[AlignerCommand]


class Fate(Enum):
    """What the step has done about an attempt."""

    WAITING = auto()
    ALIGNED = auto()
    RECORDING = auto()
    CAPTURED = auto()
    DECLINED = auto()


@dataclass
class NaiveAttempt:
    """An attempt that has not ended; positions count Events from the front of the channel."""

    fate: Fate = Fate.WAITING
    snapshot: dict[InputId, int] = field(default_factory=dict)
    grown: dict[InputId, int] = field(default_factory=dict)


@dataclass
class NaiveStep:
    """One step: its channels as lists, how far it has read and what it has been shown.

    Attributes:
        channels: Everything ever appended, per channel.
        read: How many Events the step has read, per input.
        shown: How many control messages the aligner has been shown, per input.
        barriers: The barrier of every attempt ever started, as the coordinator made it.
        open: The attempts the step knows of and that have not ended.
        ended: The attempts whose end the step has been told or has concluded.
        freed: The attempts whose barriers must not stop the step any more.
    """

    channels: dict[ChannelId, list[Message]]
    read: dict[InputId, int]
    options: UnalignedOptions
    is_sink: bool
    max_concurrent: int
    shown: dict[InputId, int] = field(default_factory=dict)
    barriers: dict[CheckpointId, Barrier] = field(default_factory=dict)
    open: dict[CheckpointId, NaiveAttempt] = field(default_factory=dict)
    ended: set[CheckpointId] = field(default_factory=set)
    freed: set[CheckpointId] = field(default_factory=set)

    # -- counting from the front

    def events(self, channel: ChannelId) -> list[Event]:
        return [one for one in self.channels[channel] if isinstance(one, Event)]

    def place(self, channel: ChannelId, position: int) -> Place:
        return Place(position, sum(event.size_bytes for event in self.events(channel)[:position]))

    def controls(self, channel: ChannelId) -> list[tuple[int, Control]]:
        position, found = 0, []
        for one in self.channels[channel]:
            if isinstance(one, Event):
                position += 1
            else:
                found.append((position, one))
        return found

    def visible(self, source: InputId) -> list[tuple[int, Control]]:
        return self.controls(source.channel)[: self.shown.get(source, 0)]

    def end_of(self, source: InputId) -> int | None:
        ends = (at for at, watermark in self.visible(source) if isinstance(watermark, EndOfInput))
        return next(ends, None)

    def barrier_on(self, source: InputId, checkpoint_id: CheckpointId) -> int | None:
        """Where the attempt's barrier is, if it is visible; the end of input counts as one."""
        for position, watermark in self.visible(source):
            if is_barrier(watermark, checkpoint_id):
                return position
        return self.end_of(source)

    def barrier_places(self, checkpoint_id: CheckpointId) -> dict[InputId, int]:
        found = {row: self.barrier_on(row, checkpoint_id) for row in self.read}
        return {row: position for row, position in found.items() if position is not None}

    def in_flight_bytes(self, starts: dict[InputId, int], ends: dict[InputId, int]) -> int:
        return sum(
            event.size_bytes
            for source, end in ends.items()
            for event in self.events(source.channel)[starts[source] : end]
        )

    def limit(self, source: InputId, passes: set[CheckpointId]) -> int:
        """How far the step may read: shown or not, a barrier stops it until it may pass."""
        for position, watermark in self.controls(source.channel):
            if (
                isinstance(watermark, Barrier)
                and not watermark.is_cancel
                and watermark.checkpoint_id not in passes
            ):
                return position
        return len(self.events(source.channel))

    # -- attempts

    def barrier(self, checkpoint_id: CheckpointId) -> Barrier:
        """The barrier as the step passes it on: once overtaken somewhere, always overtaken."""
        overtaken = any(
            isinstance(watermark, Barrier)
            and watermark.checkpoint_id == checkpoint_id
            and watermark.is_unaligned
            for source in self.read
            for _, watermark in self.visible(source)
        )
        barrier = self.barriers[checkpoint_id]
        return barrier.overtaking() if overtaken else barrier

    def is_ignored(self, checkpoint_id: CheckpointId) -> bool:
        """Whether it has ended, or a later one has and no attempt before that is open."""
        if checkpoint_id in self.open:
            return False
        return checkpoint_id in self.ended or any(
            later > checkpoint_id and all(one > later for one in self.open) for later in self.ended
        )

    def may_overtake(self, checkpoint_id: CheckpointId) -> bool:
        barrier = self.barriers[checkpoint_id]
        asked_whole = barrier.is_full_snapshot or barrier.is_drain
        return self.options.enabled and not self.is_sink and not asked_whole

    def waiting(self) -> CheckpointId | None:
        """The oldest attempt whose barrier is neither out nor refused."""
        ids = (one for one, attempt in self.open.items() if attempt.fate is Fate.WAITING)
        return min(ids, default=None)

    # -- what happens, and what the step then does

    def hear_of(self, checkpoint_id: CheckpointId) -> Expected:
        if checkpoint_id in self.open or self.is_ignored(checkpoint_id):
            return []
        done: Expected = []
        if self.max_concurrent == 1 and self.open:
            oldest = min(self.open)
            done += self.end(min(oldest, checkpoint_id))
        if checkpoint_id not in self.ended:
            self.open[checkpoint_id] = NaiveAttempt()
        return done

    def end(self, checkpoint_id: CheckpointId) -> Expected:
        self.freed.add(checkpoint_id)
        if self.is_ignored(checkpoint_id):
            return []
        self.open.pop(checkpoint_id, None)
        self.ended.add(checkpoint_id)
        return self.look_around()

    def announced(self, checkpoint_id: CheckpointId) -> Expected:
        return self.hear_of(checkpoint_id) + self.look_around()

    def shown_next(self, source: InputId) -> Expected:
        """Show one more control message of an input."""
        self.shown[source] = self.shown.get(source, 0) + 1
        _, message = self.visible(source)[-1]
        done: Expected = []
        if isinstance(message, Barrier):
            if message.is_cancel:
                return self.end(message.checkpoint_id)
            done += self.hear_of(message.checkpoint_id)
        for checkpoint_id in sorted(self.open):
            done += self.look_at_recording(checkpoint_id)
        return done + self.look_around()

    def grew(self, source: InputId, position: int) -> Expected:
        done: Expected = []
        for checkpoint_id, attempt in sorted(self.open.items()):
            attempt.grown[source] = max(position, attempt.grown.get(source, 0))
            done += self.look_at_recording(checkpoint_id)
        return done

    def moved(self, positions: dict[InputId, int]) -> Expected:
        self.read.update(positions)
        return self.look_around()

    def look_around(self, now_ms: int | None = None) -> Expected:
        """Let out every barrier that can go out, oldest attempt first."""
        checkpoint_id = self.waiting()
        if checkpoint_id is None:
            return []
        places = self.barrier_places(checkpoint_id)
        if places == self.read:
            self.open[checkpoint_id].fate = Fate.ALIGNED
            self.freed.add(checkpoint_id)
            return [
                Emit(self.barrier(checkpoint_id), Cause.ALIGNED),
                Captured(checkpoint_id, (), self.as_places(places)),
                *self.look_around(now_ms),
            ]
        return self.overtake(checkpoint_id, places, now_ms)

    def cause(self, checkpoint_id: CheckpointId, now_ms: int | None) -> Cause | None:
        barrier = self.barriers[checkpoint_id]
        if self.barrier(checkpoint_id).is_unaligned:
            return Cause.UPSTREAM
        if not self.may_overtake(checkpoint_id) or not self.barrier_places(checkpoint_id):
            return None
        if self.options.forced:
            return Cause.FORCED
        patience_ms = barrier.started_at_ms + self.options.alignment_timeout_ms
        return Cause.TIMEOUT if now_ms is not None and now_ms >= patience_ms else None

    def overtake(
        self, checkpoint_id: CheckpointId, places: dict[InputId, int], now_ms: int | None
    ) -> Expected:
        cause = self.cause(checkpoint_id, now_ms)
        if cause is None:
            return []
        if not self.may_overtake(checkpoint_id):
            return self.decline(checkpoint_id, FailureReason.SINK_CANNOT_OVERTAKE)
        if self.in_flight_bytes(self.read, places) > self.options.max_inflight_bytes:
            if cause is Cause.UPSTREAM:
                return self.decline(checkpoint_id, FailureReason.INFLIGHT_TOO_LARGE)
            return []
        attempt = self.open[checkpoint_id]
        attempt.fate = Fate.RECORDING
        attempt.snapshot = dict(self.read)
        attempt.grown = dict(self.read)
        self.freed.add(checkpoint_id)
        out = Emit(self.barrier(checkpoint_id).overtaking(), cause)
        return [out, *self.look_at_recording(checkpoint_id)]

    def look_at_recording(self, checkpoint_id: CheckpointId) -> Expected:
        attempt = self.open[checkpoint_id]
        if attempt.fate is not Fate.RECORDING:
            return []
        places = self.barrier_places(checkpoint_id)
        recorded = self.in_flight_bytes(attempt.snapshot, attempt.grown | places)
        if recorded > self.options.max_inflight_bytes:
            return self.decline(checkpoint_id, FailureReason.INFLIGHT_TOO_LARGE)
        if len(places) < len(self.read):
            return []
        attempt.fate = Fate.CAPTURED
        starts, ends = self.as_places(attempt.snapshot), self.as_places(places)
        ranges = tuple(
            InFlightRange(row, starts[row], ends[row])
            for row in sorted(self.read)
            if attempt.snapshot[row] < places[row]
        )
        return [Captured(checkpoint_id, ranges, ends)]

    def decline(self, checkpoint_id: CheckpointId, reason: FailureReason) -> Expected:
        self.open[checkpoint_id].fate = Fate.DECLINED
        self.freed.add(checkpoint_id)
        return [Decline(checkpoint_id, reason)]

    def as_places(self, positions: dict[InputId, int]) -> dict[InputId, Place]:
        return {row: self.place(row.channel, position) for row, position in positions.items()}


def is_barrier(message: Control, checkpoint_id: CheckpointId) -> bool:
    return (
        isinstance(message, Barrier)
        and not message.is_cancel
        and message.checkpoint_id == checkpoint_id
    )
