"""`ChannelLog` against a list: everything is recomputed from the first entry at every question.

The model knows nothing of cursors, bases or freed controls. It keeps each message that was ever
appended, in order, and per reader four plain facts: how many Events it has read, how many of them
are settled, which attempts it has released and how many control messages it has received.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog, Placed
from cutwater.protocol.messages import (
    Barrier,
    Control,
    EndOfInput,
    Event,
    Flag,
    Message,
    Place,
    Watermark,
)

CHANNEL = ChannelId("orders")
GENERATION = Generation(3)
SIZES = st.sampled_from([0, 5, 10, 20])
BASES = st.sampled_from([Place(0, 0), Place(7, 93)])


def reader_id(number: int) -> ReaderId:
    return ReaderId(StepId(f"step{number}"), InputId(number % 2, CHANNEL))


@dataclass
class NaiveReader:
    """What is known of one reader."""

    read: int
    settled: int
    released: set[CheckpointId] = field(default_factory=set)
    told: int = 0


@dataclass
class NaiveLog:
    """A channel as a list that only grows."""

    base: Place
    entries: list[Message] = field(default_factory=list)
    readers: dict[ReaderId, NaiveReader] = field(default_factory=dict)
    protected: dict[tuple[CheckpointId, ReaderId], int] = field(default_factory=dict)
    freed: int = 0

    def events(self) -> list[Event]:
        return [entry for entry in self.entries if isinstance(entry, Event)]

    def place(self, position: int) -> Place:
        before = self.events()[: position - self.base.position]
        return Place(position, self.base.log_bytes + sum(event.size_bytes for event in before))

    def end(self) -> Place:
        return self.place(self.base.position + len(self.events()))

    def first(self) -> Place:
        return self.place(self.base.position + self.freed)

    def controls(self) -> Iterator[tuple[int, Control]]:
        position = self.base.position
        for entry in self.entries:
            if isinstance(entry, Event):
                position += 1
            else:
                yield position, entry

    def last_barrier(self) -> int:
        barriers = (watermark for _, watermark in self.controls() if isinstance(watermark, Barrier))
        return max(
            (barrier.checkpoint_id for barrier in barriers if not barrier.is_cancel), default=0
        )

    def ended(self) -> bool:
        return any(isinstance(entry, EndOfInput) for entry in self.entries)

    def holds(self, reader: ReaderId, message: Control) -> bool:
        return (
            isinstance(message, Barrier)
            and not message.is_cancel
            and message.checkpoint_id not in self.readers[reader].released
        )

    def limit(self, reader: ReaderId) -> Place:
        held = (
            position for position, watermark in self.controls() if self.holds(reader, watermark)
        )
        return self.place(next(held, self.end().position))

    def watermark_ms(self, reader: ReaderId) -> int | None:
        newest = None
        for position, watermark in self.controls():
            if position > self.readers[reader].read or self.holds(reader, watermark):
                break
            if isinstance(watermark, Watermark):
                newest = watermark.value_ms
        return newest

    def backlog(self, reader: ReaderId) -> Bound:
        unread = self.events()[self.readers[reader].read - self.base.position :]
        return Bound(len(unread), sum(event.size_bytes for event in unread))

    def needed_from(self) -> int:
        wanted = [reader.settled for reader in self.readers.values()] + list(
            self.protected.values()
        )
        return min(wanted, default=self.end().position)


class ChannelMachine(RuleBasedStateMachine):
    """One channel, its producer and up to three readers."""

    @initialize(
        base=BASES,
        restored=st.lists(SIZES, max_size=3),
        starts=st.lists(st.integers(0, 3), max_size=3),
    )
    def begin(self, base: Place, restored: list[int], starts: list[int]) -> None:
        events = [Event(BatchId(100 + n), 1, size) for n, size in enumerate(restored)]
        self.model = NaiveLog(base, list(events))
        for number, start in enumerate(starts):
            position = base.position + min(start, len(events))
            self.model.readers[reader_id(number)] = NaiveReader(position, position)
        self.log = ChannelLog(
            CHANNEL,
            {name: self.model.place(reader.read) for name, reader in self.model.readers.items()},
            base=base,
            events=events,
        )
        self.batch = 0
        self.ids = 0

    def reader(self, number: int) -> ReaderId:
        return reader_id(number % len(self.model.readers))

    def append(self, message: Message) -> None:
        self.model.entries.append(message)
        assert self.log.append(message) == self.model.end()

    def refuses(self, message: Message) -> None:
        with pytest.raises(ProtocolViolation):
            self.log.append(message)

    # -- the producer

    @precondition(lambda self: not self.model.ended())
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4), skipped=st.integers(0, 2))
    def append_events(self, sizes: list[int], skipped: int) -> None:
        self.batch += skipped
        for size in sizes:
            self.append(Event(BatchId(self.batch), 1 + size, size))
            self.batch += 1

    @precondition(lambda self: not self.model.ended())
    @rule(value_ms=st.integers(0, 50))
    def append_a_watermark(self, value_ms: int) -> None:
        self.append(Watermark(value_ms))

    @precondition(lambda self: not self.model.ended())
    @rule(
        skipped=st.integers(0, 2),
        flags=st.sampled_from([Flag.NONE, Flag.UNALIGNED, Flag.DRAIN, Flag.FULL_SNAPSHOT]),
    )
    def append_a_barrier(self, skipped: int, flags: Flag) -> None:
        self.ids = max(self.ids, self.model.last_barrier()) + 1 + skipped
        self.append(Barrier(CheckpointId(self.ids), GENERATION, flags))

    @precondition(lambda self: not self.model.ended())
    @rule(back=st.integers(0, 3))
    def append_a_cancel(self, back: int) -> None:
        checkpoint_id = CheckpointId(max(1, self.ids - back))
        self.append(Barrier(checkpoint_id, GENERATION, Flag.CANCEL))

    @precondition(lambda self: len(self.model.entries) > 12 and not self.model.ended())
    @rule()
    def append_the_end(self) -> None:
        self.append(EndOfInput())

    @precondition(lambda self: self.batch > 0)
    @rule(back=st.integers(1, 3))
    def append_a_batch_again(self, back: int) -> None:
        known = BatchId(max(0, self.batch - back))

        assert self.log.append(Event(known, 9, 9)) == self.model.end()

    @rule(back=st.integers(0, 2))
    def append_what_may_not_follow(self, back: int) -> None:
        self.refuses(Event(BatchId(self.batch), 0, 5))
        older = CheckpointId(self.model.last_barrier() - back)
        if older > 0:
            self.refuses(Barrier(older, GENERATION))
        if self.model.ended():
            self.refuses(Event(BatchId(self.batch), 1, 5))
            self.refuses(Barrier(CheckpointId(self.ids + 9), GENERATION))
            self.refuses(Barrier(CheckpointId(self.ids + 9), GENERATION, Flag.CANCEL))
            self.refuses(Watermark(1))
            self.refuses(EndOfInput())

    @rule(messages=st.integers(0, 5), size_bytes=st.sampled_from([0, 5, 10, 20, 40]))
    def ask_for_room(self, messages: int, size_bytes: int) -> None:
        backlogs = [self.model.backlog(reader) for reader in self.model.readers]

        assert self.log.has_room(Bound(messages, size_bytes)) == all(
            backlog.messages == 0
            or (backlog.messages < messages and backlog.size_bytes < size_bytes)
            for backlog in backlogs
        )
        assert self.log.has_room(Bound(messages, size_bytes), lets_barrier_out=True) == all(
            backlog.messages == 0
            or (backlog.messages <= messages and backlog.size_bytes < 2 * size_bytes)
            for backlog in backlogs
        )

    # -- the readers

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2), back=st.integers(-1, 4))
    def release(self, number: int, back: int) -> None:
        reader = self.reader(number)
        checkpoint_id = CheckpointId(max(1, self.ids - back))
        self.model.readers[reader].released.add(checkpoint_id)
        self.log.release(reader, checkpoint_id)

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2), share=st.floats(0, 1))
    def advance(self, number: int, share: float) -> None:
        reader = self.reader(number)
        state, limit = self.model.readers[reader], self.model.limit(reader).position
        target = state.read + round(share * (limit - state.read))
        expected = self.model.events()[
            state.read - self.model.base.position : target - self.model.base.position
        ]

        seen = self.log.read(self.log.position(reader), self.log.place(target))
        self.log.advance(reader, self.log.place(target))

        assert list(seen) == expected
        state.read = target

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2), by=st.integers(1, 3))
    def advance_where_it_may_not(self, number: int, by: int) -> None:
        reader = self.reader(number)
        read, limit = self.model.readers[reader].read, self.model.limit(reader)

        with pytest.raises(ProtocolViolation):
            self.log.advance(reader, Place(limit.position + by, limit.log_bytes))
        with pytest.raises(ProtocolViolation):
            self.log.advance(reader, Place(read - by, limit.log_bytes))

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2))
    def ask_for_the_limit(self, number: int) -> None:
        reader = self.reader(number)

        assert self.log.limit(reader) == self.model.limit(reader)
        for _, message in self.model.controls():
            if isinstance(message, Barrier) and not message.is_cancel:
                held = self.log.holds(reader, message.checkpoint_id)
                assert held == self.model.holds(reader, message)

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2))
    def settle(self, number: int) -> None:
        state = self.model.readers[self.reader(number)]
        state.settled = state.read
        self.log.settle(self.reader(number))

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2))
    def hear_the_news(self, number: int) -> None:
        reader = self.reader(number)
        state, controls = self.model.readers[reader], list(self.model.controls())
        expected = [
            Placed(self.model.place(position), message)
            for position, message in controls[state.told :]
        ]
        state.told = len(controls)

        assert list(self.log.news(reader)) == expected

    # -- freeing

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2), checkpoint_id=st.integers(1, 4), share=st.floats(0, 1))
    def protect(self, number: int, checkpoint_id: int, share: float) -> None:
        first, end = self.model.first().position, self.model.end().position
        position = first + round(share * (end - first))
        key = (CheckpointId(checkpoint_id), self.reader(number))
        self.model.protected[key] = position
        self.log.protect(*key, self.model.place(position))

    @precondition(lambda self: self.model.readers)
    @rule(number=st.integers(0, 2), checkpoint_id=st.integers(1, 4))
    def unprotect(self, number: int, checkpoint_id: int) -> None:
        key = (CheckpointId(checkpoint_id), self.reader(number))
        self.model.protected.pop(key, None)
        self.log.unprotect(*key)

    @rule()
    def free(self) -> None:
        model = self.model
        floor = max(model.freed, model.needed_from() - model.base.position)
        expected = model.events()[model.freed : floor]
        model.freed = floor

        assert list(self.log.free()) == expected

    @rule(before=st.integers(1, 3), behind=st.integers(1, 3))
    def read_what_is_not_there(self, before: int, behind: int) -> None:
        first, end = self.model.first(), self.model.end()

        with pytest.raises(ProtocolViolation):
            self.log.read(Place(first.position - before, 0), end)
        with pytest.raises(ProtocolViolation):
            self.log.read(first, Place(end.position + behind, end.log_bytes))

    # -- after every step

    @invariant()
    def the_log_holds_what_the_list_holds(self) -> None:
        model, log = self.model, self.log
        assert (log.base, log.end) == (model.first(), model.end())
        assert log.ended == model.ended()
        assert list(log.read(log.base, log.end)) == model.events()[model.freed :]
        assert [log.place(n) for n in range(log.base.position, log.end.position + 1)] == [
            model.place(n) for n in range(log.base.position, log.end.position + 1)
        ]

    @invariant()
    def every_reader_stands_where_the_list_says(self) -> None:
        for reader, state in self.model.readers.items():
            assert self.log.position(reader) == self.model.place(state.read)
            assert self.log.backlog(reader) == self.model.backlog(reader)

    @invariant()
    def every_reader_has_the_watermark_it_has_passed(self) -> None:
        for reader in self.model.readers:
            assert self.log.watermark_ms(reader) == self.model.watermark_ms(reader)

    def teardown(self) -> None:
        """Let all readers finish; then nothing may be left in memory."""
        if not hasattr(self, "log"):
            return
        for checkpoint_id, reader in tuple(self.model.protected):
            self.log.unprotect(checkpoint_id, reader)
        for reader in self.model.readers:
            for number in range(1, self.ids + 1):
                self.log.release(reader, CheckpointId(number))
            self.log.advance(reader, self.log.limit(reader))
            self.log.settle(reader)
            self.log.news(reader)
        self.log.free()

        assert self.log.base == self.log.end == self.model.end()
        assert not self.log._events
        assert self.log.controls == 0
        assert self.log.controls_freed == len(list(self.model.controls()))


TestChannel = ChannelMachine.TestCase
