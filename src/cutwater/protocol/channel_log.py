"""The index of one channel: what the log holds, how far each reader is, where it must stop.

This is the in-memory half of a channel; `runtime.channel` owns the files. The index decides four
things (PROTOCOL.md sections 2, 4 and 14): where a reader must stop (before the first barrier it
has not released: default closed, rule F6), whether the producer has room (F17, F24), what may be
freed (F26) and which control messages a reader has not received. Every call costs O(1)
amortised, however long the pipeline has run. Upholds I4 and I12.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_BATCH, NO_CHECKPOINT, ChannelId, CheckpointId, ReaderId
from cutwater.protocol.messages import (
    START,
    Barrier,
    Control,
    EndOfInput,
    Event,
    Message,
    Place,
    Watermark,
)


class Bound(NamedTuple):
    """How far the slowest reader may lag before the producer waits."""

    messages: int
    size_bytes: int


class Placed(NamedTuple):
    place: Place
    message: Control


@dataclass(slots=True)
class _Reader:
    position: Place
    settled: Place
    passed: CheckpointId = NO_CHECKPOINT
    released: set[CheckpointId] = field(default_factory=set)
    next_hold: int = 0
    next_told: int = 0
    next_watermark: int = 0
    watermark_ms: int | None = None

    def is_held_by(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id > self.passed and checkpoint_id not in self.released

    def pass_barrier(self, checkpoint_id: CheckpointId) -> None:
        # Barrier numbers of one channel only increase, so releases up to this one are used up.
        self.passed = checkpoint_id
        self.released = {number for number in self.released if number > checkpoint_id}


class ChannelLog:
    """The index of one channel in one generation.

    A place that the log does not hold is a `ProtocolViolation`.
    """

    def __init__(
        self,
        channel: ChannelId,
        readers: Mapping[ReaderId, Place],
        *,
        base: Place = START,
        events: Iterable[Event] = (),
    ) -> None:
        """Create the index of a new channel, or of a restored one with its Events (rule F29)."""
        self.channel = channel
        self._events: dict[int, tuple[Place, Event]] = {}
        self._base = base
        self._end = base
        self._controls: dict[int, Placed] = {}
        self._control_base = 0
        self._control_end = 0
        self._last_batch = NO_BATCH
        self._last_barrier = NO_CHECKPOINT
        self._ended = False
        self._readers = {reader: _Reader(place, place) for reader, place in readers.items()}
        self._protected: dict[tuple[CheckpointId, ReaderId], Place] = {}
        for event in events:
            self._push(event)
        for reader, place in readers.items():
            if not base.position <= place.position <= self._end.position:
                message = f"{reader} is at {place}, outside {base}..{self._end} of {channel}."
                raise ProtocolViolation(message)

    def _push(self, event: Event) -> None:
        self._events[self._end.position] = (self._end, event)
        self._end = self._end.after(event.size_bytes)

    # -- the producer

    def append(self, message: Message) -> Place:
        """Append a message and return the end of the log.

        An Event of a batch that is already in the log is ignored: appending is idempotent.
        Barriers are accepted whatever the bound.

        Raises:
            ProtocolViolation: After EndOfInput, for an Event without rows, or for a barrier
                that is not newer than the last one.
        """
        match message:
            case Event():
                self._append_event(message)
            case Watermark():
                self._append_control(message)
            case Barrier():
                self._check_open(message)
                if not message.is_cancel:
                    if message.checkpoint_id <= self._last_barrier:
                        text = (
                            f"{self.channel} already has barrier {self._last_barrier}; "
                            f"{message.checkpoint_id} is not newer."
                        )
                        raise ProtocolViolation(text)
                    self._last_barrier = message.checkpoint_id
                self._append_control(message)
            case EndOfInput():
                self._append_control(message)
                self._ended = True
            case other:
                assert_never(other)
        return self._end

    def _check_open(self, message: Message) -> None:
        if self._ended:
            text = f"{self.channel} has ended; {type(message).__name__} cannot follow."
            raise ProtocolViolation(text)

    def _append_event(self, event: Event) -> None:
        if event.batch <= self._last_batch:
            return
        self._check_open(event)
        if event.rows < 1:
            text = f"batch {event.batch} of {self.channel} has no rows and is not an Event."
            raise ProtocolViolation(text)
        self._push(event)
        self._last_batch = event.batch

    def _append_control(self, message: Control) -> None:
        self._check_open(message)
        self._controls[self._control_end] = Placed(self._end, message)
        self._control_end += 1

    def has_room(self, bound: Bound, *, lets_barrier_out: bool = False) -> bool:
        """Return whether the producer may append one more Event.

        The check comes before appending and does not know the size of the Event, so one Event
        larger than the bound can still be appended (rule F24). One Event that ends at a held
        barrier (`lets_barrier_out`) may exceed the bound, never more.
        """
        messages = bound.messages + lets_barrier_out
        size_bytes = bound.size_bytes * (1 + lets_barrier_out)
        return all(
            self._end.position == reader.position.position
            or (
                self._end.position - reader.position.position < messages
                and self._end.log_bytes - reader.position.log_bytes < size_bytes
            )
            for reader in self._readers.values()
        )

    # -- the readers

    def limit(self, reader: ReaderId) -> Place:
        """Return how far the reader may read: up to the first barrier it has not released."""
        state = self._readers[reader]
        while state.next_hold < self._control_end:
            placed = self._controls[state.next_hold]
            if _holds(placed.message, state):
                return placed.place
            if isinstance(placed.message, Barrier) and not placed.message.is_cancel:
                state.pass_barrier(placed.message.checkpoint_id)
            state.next_hold += 1
        return self._end

    def holds(self, reader: ReaderId, checkpoint_id: CheckpointId) -> bool:
        return self._readers[reader].is_held_by(checkpoint_id)

    def release(self, reader: ReaderId, checkpoint_id: CheckpointId) -> None:
        """Let the reader pass the barrier of one attempt. A release is never revoked."""
        state = self._readers[reader]
        if self._ended and checkpoint_id > self._last_barrier:
            return  # No barrier of that attempt will ever arrive.
        state.released.add(checkpoint_id)
        self._follow_watermark(state)

    def news(self, reader: ReaderId) -> tuple[Placed, ...]:
        """Return the control messages the reader has not received, oldest first.

        They are visible as soon as they are appended, however far the reader lags.
        """
        state = self._readers[reader]
        first, state.next_told = state.next_told, self._control_end
        return tuple(self._controls[index] for index in range(first, self._control_end))

    def recordable(self, reader: ReaderId) -> Place:
        """Return how far an overtaking reader records while it has not received the barrier.

        What comes after a barrier that is already in the log is not in flight, even if the
        reader's aligner has not received the barrier yet (rule F21).
        """
        for index in range(self._readers[reader].next_told, self._control_end):
            placed = self._controls[index]
            if isinstance(placed.message, Barrier) and not placed.message.is_cancel:
                return placed.place
        return self._end

    def read(self, start: Place, end: Place) -> tuple[Event, ...]:
        """Return the Events between two places."""
        if not self._base.position <= start.position <= end.position <= self._end.position:
            text = f"{self.channel} holds {self._base}..{self._end}, not {start}..{end}."
            raise ProtocolViolation(text)
        return tuple(self._events[index][1] for index in range(start.position, end.position))

    def place(self, position: int) -> Place:
        """Return the place before the Event with that ordinal, or the end."""
        if position == self._end.position:
            return self._end
        if position not in self._events:
            text = f"{self.channel} holds {self._base}..{self._end}, not @{position}."
            raise ProtocolViolation(text)
        return self._events[position][0]

    def advance(self, reader: ReaderId, place: Place) -> None:
        """Move the reader's position: called when its batch is appended (rule F17)."""
        state = self._readers[reader]
        if not state.position.position <= place.position <= self.limit(reader).position:
            text = f"{reader} cannot move from {state.position} to {place} of {self.channel}."
            raise ProtocolViolation(text)
        state.position = place
        self._follow_watermark(state)

    def settle(self, reader: ReaderId) -> None:
        """Note that the reader's batch is committed: its input will not be read again."""
        state = self._readers[reader]
        state.settled = state.position

    def watermark_ms(self, reader: ReaderId, position: int | None = None) -> int | None:
        """Return the newest watermark the reader has passed, or will have passed at a position."""
        state = self._readers[reader]
        self._follow_watermark(state)
        if position is None:
            return state.watermark_ms
        return self._passed(state, position)[1]

    def _follow_watermark(self, state: _Reader) -> None:
        passed = self._passed(state, state.position.position)
        state.next_watermark, state.watermark_ms = passed

    def _passed(self, state: _Reader, position: int) -> tuple[int, int | None]:
        """Return the first control message not passed at a position, and the newest watermark."""
        index, watermark_ms = state.next_watermark, state.watermark_ms
        while index < self._control_end:
            placed = self._controls[index]
            if placed.place.position > position or _holds(placed.message, state):
                break
            if isinstance(placed.message, Watermark):
                watermark_ms = placed.message.value_ms
            index += 1
        return index, watermark_ms

    # -- freeing

    def protect(self, checkpoint_id: CheckpointId, reader: ReaderId, start: Place) -> None:
        """Keep everything from `start` on while an attempt records or uploads it (F26)."""
        self._protected[(checkpoint_id, reader)] = start

    def unprotect(self, checkpoint_id: CheckpointId, reader: ReaderId) -> None:
        self._protected.pop((checkpoint_id, reader), None)

    @property
    def is_protected(self) -> bool:
        return bool(self._protected)

    def free(self) -> tuple[Event, ...]:
        """Drop and return the Events that are no longer needed."""
        floor = min(
            (
                *(state.settled.position for state in self._readers.values()),
                *(start.position for start in self._protected.values()),
            ),
            default=self._end.position,
        )
        freed = []
        while self._base.position < floor:
            place, event = self._events.pop(self._base.position)
            freed.append(event)
            self._base = place.after(event.size_bytes)
        self._free_controls()
        return tuple(freed)

    def _free_controls(self) -> None:
        for reader, state in self._readers.items():
            self.limit(reader)
            self._follow_watermark(state)
        done = min(
            (
                min(state.next_hold, state.next_told, state.next_watermark)
                for state in self._readers.values()
            ),
            default=self._control_end,
        )
        while self._control_base < done:
            del self._controls[self._control_base]
            self._control_base += 1

    # -- facts

    @property
    def base(self) -> Place:
        return self._base

    @property
    def end(self) -> Place:
        return self._end

    @property
    def controls(self) -> int:
        return self._control_end - self._control_base

    @property
    def controls_freed(self) -> int:
        """Number of control messages that every reader has received and passed."""
        return self._control_base

    @property
    def ended(self) -> bool:
        return self._ended

    def position(self, reader: ReaderId) -> Place:
        return self._readers[reader].position

    def backlog(self, reader: ReaderId) -> Bound:
        position = self._readers[reader].position
        return Bound(
            self._end.position - position.position, self._end.log_bytes - position.log_bytes
        )


def _holds(message: Control, state: _Reader) -> bool:
    return (
        isinstance(message, Barrier)
        and not message.is_cancel
        and state.is_held_by(message.checkpoint_id)
    )
