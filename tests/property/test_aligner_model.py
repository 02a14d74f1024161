"""`Aligner` and real `ChannelLog`s against `NaiveStep`, under any order of what can happen.

Control messages (an attempt begins, an attempt ends) reach the step in order but late; what is in
the logs is shown late too, and the step reads as far as the logs let it, no further. So barriers
come before their announcement, after their end, and after those of the next attempt.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, assert_never

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.naive_step import Expected, Fate, NaiveStep
from tests.unit.protocol.builders import state_of

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import ChannelLog, Placed
from cutwater.protocol.messages import Barrier, EndOfInput, Event, Flag, Message, Place
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    Advanced,
    AlignerCommand,
    AlignerEvent,
    Announced,
    AttemptOver,
    BarrierSeen,
    Captured,
    Cause,
    Decline,
    Emit,
    EndSeen,
    LogGrew,
    Protect,
    Release,
    Tick,
)
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.topology import inputs_of

STEP = StepId("join")
GENERATION = Generation(3)
STRANGER = InputId(9, ChannelId("nowhere"))
NEVER_STARTED = CheckpointId(1_000_000)

INDEX = st.integers(0, 5)
ALL = tuple(range(6))
SOME = st.sampled_from([*[ALL] * 6, *((number,) for number in ALL), (0, 2, 4), (1, 3, 5), (0, 5)])
CHANNELS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5)
LIMITS = st.sampled_from([1, 40, 90, 10_000])
MOSTLY_NOT = st.sampled_from([False, False, False, True])
UNALIGNED = st.builds(
    UnalignedOptions,
    forced=MOSTLY_NOT,
    alignment_timeout_ms=st.sampled_from([0, 10, 50]),
    max_inflight_bytes=LIMITS,
)
ALIGNED = st.builds(UnalignedOptions, enabled=st.just(False))
CONFIGURATIONS = st.one_of(
    st.tuples(UNALIGNED, st.just(False), st.just(1)),
    st.tuples(UNALIGNED, MOSTLY_NOT, st.just(1)),
    st.tuples(ALIGNED, MOSTLY_NOT, st.sampled_from([1, 2, 2])),
)


class EventsAppended(NamedTuple):
    """Producers append `times` Events to some channels."""

    some: tuple[int, ...]
    size: int
    times: int


class BarrierAppended(NamedTuple):
    """Producers append the barrier of a recent attempt to some channels."""

    some: tuple[int, ...]
    back: int
    overtaken: bool


class CancelAppended(NamedTuple):
    """A producer records that the attempt of its last barrier has ended."""

    which: int


class EndAppended(NamedTuple):
    """A producer ends."""

    which: int


class AttemptStarted(NamedTuple):
    """The coordinator starts an attempt, ending one if need be."""

    skipped: int
    flags: Flag


class AttemptEnded(NamedTuple):
    """The coordinator ends an attempt."""

    which: int


class ControlDelivered(NamedTuple):
    """The step hears what the coordinator has said."""

    times: int


class LogsLookedInto(NamedTuple):
    """The step sees the next control message and the growth of some inputs."""

    some: tuple[int, ...]
    grown_first: bool


class BatchAppended(NamedTuple):
    """The step reads up to `most` Events of some inputs."""

    some: tuple[int, ...]
    most: int
    committed: bool


class CaughtUp(NamedTuple):
    """The step hears and sees everything and reads as far as it may."""

    some: tuple[int, ...]


class TimePassed(NamedTuple):
    """The clock goes on."""

    passed_ms: int


class ImpossibleTold(NamedTuple):
    """The step gets an event that cannot happen."""

    which: int
    by: int
    kind: int


Move = (
    EventsAppended
    | BarrierAppended
    | CancelAppended
    | EndAppended
    | AttemptStarted
    | AttemptEnded
    | ControlDelivered
    | LogsLookedInto
    | BatchAppended
    | CaughtUp
    | TimePassed
    | ImpossibleTold
)

FLAGS = st.sampled_from([Flag.NONE, Flag.NONE, Flag.NONE, Flag.FULL_SNAPSHOT, Flag.DRAIN])
APPEND_EVENTS = st.builds(EventsAppended, SOME, st.integers(0, 20), st.integers(1, 2))
APPEND_BARRIER = st.builds(BarrierAppended, SOME, st.sampled_from([0, 0, 0, 1, 2]), st.booleans())
LOOK = st.builds(LogsLookedInto, SOME, st.booleans())
READ = st.builds(BatchAppended, SOME, st.sampled_from([0, 1, 2, 9]), st.booleans())
WEIGHTED: list[st.SearchStrategy[Move]] = [
    *[APPEND_EVENTS] * 6,
    *[APPEND_BARRIER] * 6,
    *[LOOK] * 6,
    *[READ] * 3,
    *[st.builds(AttemptStarted, st.integers(0, 1), FLAGS)] * 2,
    st.builds(AttemptEnded, INDEX),
    *[st.builds(ControlDelivered, st.integers(1, 3))] * 2,
    *[st.builds(CancelAppended, INDEX)] * 2,
    st.builds(EndAppended, INDEX),
    st.builds(CaughtUp, SOME),
    *[st.builds(TimePassed, st.sampled_from([0, 1, 10, 40, 50]))] * 3,
    *[st.builds(ImpossibleTold, INDEX, st.integers(1, 2), st.integers(0, 99))] * 2,
]
MOVES = st.sampled_from(WEIGHTED).flatmap(lambda moves: moves)


class AlignerMachine(RuleBasedStateMachine):
    """One step, its inputs, and a coordinator that starts and ends attempts as it likes."""

    agrees = False

    @initialize(
        channels=CHANNELS,
        read_twice=st.booleans(),
        configuration=CONFIGURATIONS,
        deafness=st.sampled_from([0, 1, 4]),
    )
    def begin(
        self,
        channels: list[tuple[int, int]],
        read_twice: bool,
        configuration: tuple[UnalignedOptions, bool, int],
        deafness: int,
    ) -> None:
        names = [f"c{number}" for number in range(len(channels))]
        self.inputs = inputs_of(*names, *(names[:1] if read_twice else ()))
        histories: dict[ChannelId, list[Message]] = {
            ChannelId(name): [Event(BatchId(n), 1, 5) for n in range(restored)]
            for name, (restored, _) in zip(names, channels, strict=True)
        }
        starts = {
            step_input: min(channels[int(step_input.channel[1:])]) for step_input in self.inputs
        }
        options, is_sink, self.max_concurrent = configuration
        self.model = NaiveStep(histories, starts, options, is_sink, self.max_concurrent)
        self.logs = {
            name: ChannelLog(
                name,
                {
                    ReaderId(STEP, step_input): Place(starts[step_input], 5 * starts[step_input])
                    for step_input in self.inputs
                    if step_input.channel == name
                },
                events=(event for event in history if isinstance(event, Event)),
            )
            for name, history in histories.items()
        }
        self.aligner = Aligner(
            {row: Place(start, 5 * start) for row, start in starts.items()},
            options,
            generation=GENERATION,
            is_sink=is_sink,
            max_concurrent=self.max_concurrent,
        )
        self.deafness = deafness
        self.now_ms = 0
        self.running: list[CheckpointId] = []
        self.control: deque[AlignerEvent] = deque()
        self.news: dict[InputId, deque[Placed]] = {
            step_input: deque() for step_input in self.inputs
        }
        self.read: dict[InputId, list[Event]] = {
            step_input: self.model.events(step_input.channel)[: starts[step_input]]
            for step_input in self.inputs
        }
        self.emitted: dict[CheckpointId, dict[InputId, int]] = {}
        self.captured: dict[CheckpointId, Captured] = {}

    # -- names of things

    def input_at(self, index: int) -> InputId:
        return self.inputs[index % len(self.inputs)]

    def inputs_at(self, some: tuple[int, ...]) -> list[InputId]:
        return sorted({self.input_at(index) for index in some})

    def channels_at(self, some: tuple[int, ...]) -> list[ChannelId]:
        names = sorted(self.logs)
        return sorted({names[index % len(names)] for index in some})

    def log_of(self, source: InputId) -> ChannelLog:
        return self.logs[source.channel]

    @rule(move=MOVES)
    def happens(self, move: Move) -> None:
        match move:
            case EventsAppended():
                self.append_events(*move)
            case BarrierAppended():
                self.append_a_barrier(*move)
            case CancelAppended(which):
                self.append_a_cancel(which)
            case EndAppended(which):
                self.append_the_end(which)
            case AttemptStarted():
                self.start_an_attempt(*move)
            case AttemptEnded(which):
                self.end_an_attempt(which)
            case ControlDelivered(times):
                self.deliver_control(times - self.deafness)
            case LogsLookedInto():
                self.look_into_the_logs(*move)
            case BatchAppended():
                self.append_a_batch(*move)
            case CaughtUp(some):
                self.catch_up(some)
            case TimePassed(passed_ms):
                self.let_time_pass(passed_ms)
            case ImpossibleTold():
                self.refuse_what_cannot_be(*move)
            case _:
                assert_never(move)

    # -- the producers

    def append(self, channel: ChannelId, message: Message) -> None:
        self.model.channels[channel].append(message)
        self.logs[channel].append(message)

    def barriers_in(self, channel: ChannelId) -> list[CheckpointId]:
        found = (
            watermark
            for _, watermark in self.model.controls(channel)
            if isinstance(watermark, Barrier)
        )
        return [barrier.checkpoint_id for barrier in found if not barrier.is_cancel]

    def append_events(self, some: tuple[int, ...], size: int, times: int) -> None:
        for channel in self.channels_at(some):
            for _ in range(0 if self.logs[channel].ended else times):
                batch = BatchId(len(self.model.events(channel)))
                self.append(channel, Event(batch, 1, size))

    def append_a_barrier(self, some: tuple[int, ...], back: int, overtaken: bool) -> None:
        known = sorted(self.model.barriers)
        if not known:
            return
        barrier = self.model.barriers[known[max(0, len(known) - 1 - back)]]
        if overtaken and barrier.may_overtake and self.max_concurrent == 1:
            barrier = barrier.overtaking()
        for channel in self.channels_at(some):
            newest = max(self.barriers_in(channel), default=0)
            if not self.logs[channel].ended and barrier.checkpoint_id > newest:
                self.append(channel, barrier)

    def append_a_cancel(self, index: int) -> None:
        channel = self.channels_at((index,))[0]
        newest = max(self.barriers_in(channel), default=None)
        if newest is not None and newest not in self.running and not self.logs[channel].ended:
            self.append(channel, self.model.barriers[newest].cancelled())

    def append_the_end(self, index: int) -> None:
        channel = self.channels_at((index,))[0]
        if len(self.model.events(channel)) > 3 and not self.logs[channel].ended:
            self.append(channel, EndOfInput())

    # -- the coordinator

    def start_an_attempt(self, skipped: int, flags: Flag) -> None:
        if len(self.running) == self.max_concurrent:
            self.end_an_attempt(skipped)
        number = CheckpointId(max(self.model.barriers, default=0) + 1 + skipped)
        barrier = Barrier(number, GENERATION, flags, self.now_ms)
        self.model.barriers[number] = barrier
        self.running.append(number)
        self.control.append(Announced(barrier))

    def end_an_attempt(self, index: int) -> None:
        if self.running:
            number = self.running.pop(index % len(self.running))
            self.control.append(AttemptOver(number))

    # -- the step is told something

    def tell(self, event: AlignerEvent, expected: Expected) -> tuple[AlignerCommand, ...]:
        """Hand over an event; what comes back is what the model says, apart from bookkeeping."""
        self.agrees = False
        commands = self.aligner.handle(event)
        done = [command for command in commands if not isinstance(command, Release | Protect)]
        assert done == expected
        self.carry_out(commands)
        return commands

    def carry_out(self, commands: Iterable[AlignerCommand]) -> None:
        for command in commands:
            match command:
                case Release(number):
                    for one in self.inputs:
                        self.log_of(one).release(ReaderId(STEP, one), number)
                case Protect(number, source, start):
                    self.log_of(source).protect(number, ReaderId(STEP, source), start)
                case Emit(barrier, _):
                    number = barrier.checkpoint_id
                    assert number not in self.emitted
                    self.emitted[number] = {
                        step_input: len(self.read[step_input]) for step_input in self.inputs
                    }
                case Captured(number, ranges, places):
                    self.captured[number] = command
                    self.check_the_cut(number, ranges, places)
                case Decline(number, _):
                    self.forget(number)

    def forget(self, number: CheckpointId) -> None:
        self.captured.pop(number, None)
        for step_input in self.inputs:
            self.log_of(step_input).unprotect(number, ReaderId(STEP, step_input))

    def check_the_cut(
        self,
        number: CheckpointId,
        ranges: tuple[InFlightRange, ...],
        places: Mapping[InputId, Place],
    ) -> None:
        """What the step had read, and then what was recorded, is all before the barrier."""
        recorded = {
            part.input: self.log_of(part.input).read(part.start, part.end) for part in ranges
        }
        for step_input in self.inputs:
            before = self.model.events(step_input.channel)[: places[step_input].position]
            had_read = self.read[step_input][: self.emitted[number][step_input]]
            assert [*had_read, *recorded.get(step_input, ())] == before

    def deliver_control(self, times: int) -> None:
        for _ in range(min(times, len(self.control))):
            event = self.control.popleft()
            if isinstance(event, Announced):
                self.tell(event, self.model.announced(event.barrier.checkpoint_id))
            elif isinstance(event, AttemptOver):
                self.tell(event, self.model.end(event.checkpoint_id))
                self.forget(event.checkpoint_id)

    def look_into_the_logs(self, some: tuple[int, ...], grown_first: bool) -> None:
        for source in self.inputs_at(some):
            if grown_first:
                self.show_growth(source)
            self.show_a_control_message(source)
            if not grown_first:
                self.show_growth(source)

    def show_a_control_message(self, source: InputId) -> None:
        waiting = self.news[source]
        waiting += self.log_of(source).news(ReaderId(STEP, source))
        if not waiting:
            return
        place, message = waiting.popleft()
        expected = self.model.shown_next(source)
        if isinstance(message, Barrier):
            self.tell(BarrierSeen(source, message, place), expected)
            # The same news again changes nothing.
            self.tell(BarrierSeen(source, message, place), [])
        elif isinstance(message, EndOfInput):
            self.tell(EndSeen(source, place), expected)

    def show_growth(self, source: InputId) -> None:
        """Report that the log has grown, one Event before its end and at its end, and then late."""
        log, behind = self.log_of(source), self.aligner.positions[source]
        for position in range(max(behind.position, log.end.position - 1), log.end.position + 1):
            if self.aligner.is_recording(source):
                grown = LogGrew(source, log.place(position))
                self.tell(grown, self.model.grew(source, position))
        before = state_of(self.aligner)
        self.tell(LogGrew(source, behind), [])
        assert state_of(self.aligner) == before

    def append_a_batch(self, some: tuple[int, ...], most: int, committed: bool) -> None:
        moved: dict[InputId, int] = {}
        for step_input in self.inputs_at(some):
            limit = self.log_of(step_input).limit(ReaderId(STEP, step_input)).position
            moved[step_input] = min(limit, self.model.read[step_input] + most)
        places = {row: self.log_of(row).place(position) for row, position in moved.items()}
        for row, place in places.items():
            log, reader = self.log_of(row), ReaderId(STEP, row)
            self.read[row] += log.read(log.position(reader), place)
            log.advance(reader, place)
            if committed:
                log.settle(reader)
        would_align = self.aligner.would_align(places)

        commands = self.tell(Advanced(places), self.model.moved(moved))

        causes = [command.cause for command in commands if isinstance(command, Emit)]
        assert would_align == (Cause.ALIGNED in causes)

        if committed:
            for log in self.logs.values():
                log.free()

    def catch_up(self, some: tuple[int, ...]) -> None:
        """Tell the step all there is about some inputs and let it read as far as it may."""
        self.deliver_control(len(self.control) - self.deafness)
        for source in self.inputs_at(some):
            for _ in self.model.controls(source.channel):
                self.show_a_control_message(source)
        self.append_a_batch(some, 99, committed=True)

    def let_time_pass(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.tell(Tick(self.now_ms), self.model.look_around(self.now_ms))

    # -- what cannot happen

    def refuse_what_cannot_be(self, which: int, by: int, kind: int) -> None:
        impossible = list(self.impossible(self.input_at(which), by))
        before = state_of(self.aligner)
        self.agrees = False

        with pytest.raises(ProtocolViolation):
            self.aligner.handle(impossible[kind % len(impossible)])

        assert state_of(self.aligner) == before

    def impossible(self, source: InputId, by: int) -> Iterator[AlignerEvent]:
        """Events that no order of real ones can lead to here."""
        barrier = Barrier(NEVER_STARTED, GENERATION)
        # A stranger, alone and beside a move that would be fine.
        yield BarrierSeen(STRANGER, barrier, Place(99, 99))
        yield EndSeen(STRANGER, Place(99, 99))
        yield LogGrew(STRANGER, Place(99, 99))
        yield Advanced({source: self.aligner.positions[source], STRANGER: Place(0, 0)})
        # A message of another generation, and an end announced as a beginning.
        foreign = Barrier(NEVER_STARTED, Generation(GENERATION + (-1) ** by))
        yield Announced(foreign)
        yield BarrierSeen(source, foreign, Place(99, 99))
        yield Announced(barrier.cancelled())
        # What lies behind the step.
        read = self.model.read[source]
        if read > 0:
            yield BarrierSeen(source, barrier, self.beside(source, read, -1))
            yield EndSeen(source, self.beside(source, read, -1))
            yield Advanced({source: self.beside(source, read, -1)})
        # A second end, and what lies behind the first.
        end = self.model.end_of(source)
        if end is not None:
            yield EndSeen(source, self.beside(source, end, 0))
            yield BarrierSeen(source, barrier, self.beside(source, end, 0))
            yield Advanced({source: self.beside(source, end, by)})
        yield from self.impossible_in_open_attempts(source, by)

    def impossible_in_open_attempts(self, source: InputId, by: int) -> Iterator[AlignerEvent]:
        for number, attempt in self.model.open.items():
            barrier, place = self.model.barriers[number], self.model.barrier_on(source, number)
            if place is not None:
                yield BarrierSeen(source, barrier, self.beside(source, place, by))
            if place is not None and attempt.fate is Fate.WAITING:
                others = {
                    step_input: self.aligner.positions[step_input] for step_input in self.inputs
                }
                yield Advanced(others | {source: self.beside(source, place, by)})
            if place is None and not barrier.may_overtake:
                end = self.log_of(source).end
                yield BarrierSeen(source, replace(barrier, flags=Flag.UNALIGNED), end)

    def beside(self, source: InputId, position: int, by: int) -> Place:
        at = self.model.place(source.channel, position)
        return Place(position + by, at.log_bytes + 5 * by)

    # -- after every step

    @invariant()
    def the_aligner_agrees_with_the_model(self) -> None:
        self.agrees = False
        self.the_step_may_read_exactly_what_is_released()
        self.an_overtaking_barrier_is_never_waited_for()
        self.the_facts_are_those_of_the_model()
        self.what_was_recorded_stays_within_the_bound_and_can_be_read()
        self.agrees = True

    def the_step_may_read_exactly_what_is_released(self) -> None:
        for step_input in self.inputs:
            limit = self.log_of(step_input).limit(ReaderId(STEP, step_input)).position
            ignored = {number for number in self.model.barriers if self.model.is_ignored(number)}
            assert limit >= self.model.limit(step_input, self.model.freed)
            assert limit <= self.model.limit(step_input, self.model.freed | ignored)

    def an_overtaking_barrier_is_never_waited_for(self) -> None:
        number = self.model.waiting()
        assert number is None or not self.model.barrier(number).is_unaligned

    def the_facts_are_those_of_the_model(self) -> None:
        model, aligner = self.model, self.aligner
        assert aligner.positions == model.as_places(model.read)
        assert aligner.drained == all(
            model.end_of(step_input) == model.read[step_input] for step_input in self.inputs
        )
        for step_input in self.inputs:
            assert aligner.is_recording(step_input) == any(
                attempt.fate is Fate.RECORDING and model.barrier_on(step_input, number) is None
                for number, attempt in model.open.items()
            )
        for number, attempt in model.open.items():
            recording = aligner._attempts[number].recording
            if attempt.fate is Fate.RECORDING:
                ends = attempt.grown | model.barrier_places(number)
                size_bytes = model.in_flight_bytes(attempt.snapshot, ends)
                assert recording is not None
                assert recording.size_bytes == size_bytes
        self.the_alarm_clock_is_set(model.waiting())

    def the_alarm_clock_is_set(self, number: CheckpointId | None) -> None:
        model = self.model
        patient = number is not None and model.may_overtake(number) and model.barrier_places(number)
        deadline_ms = None
        if number is not None and patient:
            started_at_ms = model.barriers[number].started_at_ms
            deadline_ms = started_at_ms + model.options.alignment_timeout_ms
        assert self.aligner.deadline_ms == deadline_ms

    def what_was_recorded_stays_within_the_bound_and_can_be_read(self) -> None:
        for number, captured in self.captured.items():
            size_bytes = sum(part.size_bytes for part in captured.ranges)
            assert size_bytes <= self.model.options.max_inflight_bytes
            self.check_the_cut(number, captured.ranges, captured.places)

    def teardown(self) -> None:
        """End every attempt: nothing is held, and the step can read to the end of every log."""
        if not self.agrees:
            return
        for number in self.running:
            self.control.append(AttemptOver(number))
        self.deliver_control(len(self.control))
        self.the_step_may_read_exactly_what_is_released()
        for step_input in self.inputs:
            log, reader = self.log_of(step_input), ReaderId(STEP, step_input)
            assert log.limit(reader) == log.end
            rest = log.read(log.position(reader), log.end)
            assert [*self.read[step_input], *rest] == self.model.events(step_input.channel)


TestAligner = AlignerMachine.TestCase
# There is more to choose from here than in the other machines.
TestAligner.settings = settings(max_examples=2 * settings().max_examples)
