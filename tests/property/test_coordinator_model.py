"""`Coordinator` against `NaiveCoordinator`, whatever the steps, the store, the sinks and people do.

Every answer that the coordinator waits for may come late, in any order, or after the attempt has
ended; the clock jumps; acknowledgements come twice, too late, from strangers and from another
generation. Each example ends with a stop, driven by nothing but the coordinator's own alarm clock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, assert_never

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.naive_coordinator import NaiveAttempt, NaiveCoordinator, Stage
from tests.unit.protocol.builders import state_of

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest, Phase
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitSink, CommitterState, RecordCommit
from cutwater.protocol.cut import (
    CheckpointKind,
    Committable,
    InFlight,
    RecordedEvent,
    StepSnapshot,
)
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.messages import Event, Place
from cutwater.protocol.options import CheckpointOptions, CommitOptions, UnalignedOptions
from cutwater.protocol.topology import StepSpec, Topology, inputs_of

FIRST_GENERATION = Generation(3)
PIPELINE = PipelineId("5ca1ab1e")

TOPOLOGIES = (
    Topology((StepSpec(StepId("s")), StepSpec(StepId("t"), inputs_of("s"), SinkId("t")))),
    Topology(
        (
            StepSpec(StepId("s")),
            StepSpec(StepId("u")),
            StepSpec(StepId("j"), inputs_of("s", "u", "s"), SinkId("one")),
            StepSpec(StepId("k"), inputs_of("j"), SinkId("two")),
        )
    ),
    Topology((StepSpec(StepId("s")), StepSpec(StepId("x"), inputs_of("s")))),
)

COMMITS = st.builds(
    CommitOptions,
    commit_unaligned=st.booleans(),
    every_ms=st.sampled_from([0, 0, 80, 400]),
    retry_ms=st.just(5),
    retry_max_ms=st.just(20),
    budget_ms=st.sampled_from([0, 30]),
)
OPTIONS = st.builds(
    CheckpointOptions,
    interval_ms=st.sampled_from([1, 20, 50, 200]),
    timeout_ms=st.just(300),
    savepoint_timeout_ms=st.just(700),
    min_pause_ms=st.sampled_from([1, 10, 90]),
    tolerable_failed=st.sampled_from([*[None] * 6, 0, 3]),
    retry_ms=st.just(8),
    retry_max_ms=st.just(40),
    queue_limit=st.just(2),
    retained=st.just(2),
    flush_when_drained=st.booleans(),
    commit=COMMITS,
)
ALIGNED = UnalignedOptions(enabled=False)
OVERLAPPING = st.builds(
    lambda options, concurrent, interval_ms: replace(
        options, unaligned=ALIGNED, max_concurrent=concurrent, interval_ms=interval_ms
    ),
    OPTIONS,
    st.sampled_from([2, 3, 3]),
    st.sampled_from([1, 1, 20, 50]),
)


class How(Enum):
    """How well something goes."""

    WELL = auto()
    BADLY = auto()
    WORST = auto()


class TimePassed(NamedTuple):
    """The clock goes on."""

    passed_ms: int


class WokenUp(NamedTuple):
    """The clock goes on to when the coordinator wants to be woken up."""


class Asked(NamedTuple):
    """A checkpoint is requested, sometimes as the last one of a stop."""

    kind: CheckpointKind
    drain: bool
    at_once: bool


class Answered(NamedTuple):
    """One of the answers the coordinator waits for comes: a good one, a bad one, the worst one.

    The worst ends the process, so it comes in mortal worlds only. A step's bad answer is a snapshot
    that contradicts the others. After a reservation, `lag` Events are in flight everywhere.
    """

    which: int
    how: How
    lag: int


class AllStored(NamedTuple):
    """Every step that has not acknowledged an attempt does so."""

    which: int


class Misdirected(NamedTuple):
    """An acknowledgement that does not count, or a sink's word about an old decision."""

    kind: str
    which: int
    by: int


class Refused(NamedTuple):
    """A step of this pipeline, or an unknown one, declines an attempt."""

    which: int
    by: str


class WentWell(NamedTuple):
    """What is under way succeeds, up to some point; `lag` Events are in flight everywhere."""

    lag: int
    up_to: int


class CancelledByUser(NamedTuple):
    """A person aborts an attempt, by its number or without one."""

    which: int
    named: bool


class RanDry(NamedTuple):
    """Everything is drained and sinks wait, or no longer."""

    waiting: bool


class Ended(NamedTuple):
    """The pipeline ends, if this world is mortal."""

    stopped: bool


class Recovered(NamedTuple):
    """If the process has ended, the next one takes over."""


class ImpossibleTold(NamedTuple):
    """The coordinator gets an event that cannot happen."""

    kind: int


Move = (
    TimePassed
    | WokenUp
    | Asked
    | Answered
    | AllStored
    | Misdirected
    | Refused
    | WentWell
    | CancelledByUser
    | RanDry
    | Ended
    | Recovered
    | ImpossibleTold
)

WHICH = st.integers(0, 3)
MOSTLY_NOT = st.sampled_from([False, False, False, True])
LAGS = st.sampled_from([0, 0, 1, 2])
HOW = st.sampled_from([*[How.WELL] * 8, *[How.BADLY] * 3, How.WORST])
KINDS = st.sampled_from(
    [*[CheckpointKind.CHECKPOINT] * 3, CheckpointKind.FULL, CheckpointKind.SAVEPOINT]
)
ODD = st.sampled_from(["again", "stranger", "unknown", "late", "stale", "fenced"])
WEIGHTED: list[st.SearchStrategy[Move]] = [
    *[st.builds(TimePassed, st.sampled_from([0, 1, 1, 1, 5, 5, 10, 20, 45, 120, 400]))] * 5,
    st.just(WokenUp()),
    *[st.builds(Asked, KINDS, MOSTLY_NOT, MOSTLY_NOT)] * 2,
    *[st.builds(Answered, st.integers(0, 11), HOW, LAGS)] * 8,
    *[st.builds(AllStored, WHICH)] * 3,
    *[st.builds(WentWell, LAGS, st.sampled_from([1, 1, 1, 2, 3, 4]))] * 4,
    *[st.builds(Misdirected, ODD, WHICH, WHICH)] * 2,
    st.builds(Refused, WHICH, st.sampled_from(["step", "step", "stranger", "predecessor"])),
    st.builds(CancelledByUser, WHICH, st.booleans()),
    st.builds(RanDry, st.booleans()),
    st.builds(Ended, st.booleans()),
    *[st.just(Recovered())] * 2,
    *[st.builds(ImpossibleTold, st.integers(0, 99))] * 2,
]
MOVES = st.sampled_from(WEIGHTED).flatmap(lambda moves: moves)


class CoordinatorMachine(RuleBasedStateMachine):
    """A coordinator and everything around it that answers it, well or badly."""

    agrees = False

    @initialize(
        topology=st.sampled_from([*TOPOLOGIES, TOPOLOGIES[1]]),
        options=st.one_of(OPTIONS, OVERLAPPING),
        carried=st.booleans(),
        mortal=MOSTLY_NOT,
    )
    def begin(
        self, topology: Topology, options: CheckpointOptions, carried: bool, mortal: bool
    ) -> None:
        self.topology = topology
        self.mortal = mortal
        self.now_ms = 1_000
        self.asked = 0
        self.snapshots: dict[tuple[CheckpointId, StepId], StepSnapshot] = {}
        self.started: list[CheckpointId] = []
        self.slots: list[Slot] = []
        self.take_over(
            NaiveCoordinator(
                topology,
                options,
                FIRST_GENERATION,
                Slot(5),
                CheckpointId(7),
                {spec.step: BatchId(2) for spec in topology.steps},
                {sink: [BatchId(1), BatchId(2)] * carried for sink in topology.sinks},
                overtaken=carried,
            )
        )

    def take_over(self, model: NaiveCoordinator) -> None:
        """Begin a generation where the model says the one before has left off."""
        self.model = model
        self.generation = model.generation
        self.coordinator = Coordinator(
            PIPELINE,
            model.topology,
            model.options,
            model.generation,
            events.Standing(
                slot=model.slot,
                highest_id=model.last_id,
                decided=dict(model.batches),
                carried={
                    sink: tuple(self.committable(sink, one) for one in found)
                    for sink, found in model.carried.items()
                },
                overtaken=model.overtaken,
            ),
        )
        self.begun: set[CheckpointId] = set()
        self.latest = dict(model.batches)
        self.numbers: list[CheckpointId] = []
        self.manifests: list[CheckpointId] = []
        self.decisions: list[CheckpointId] = []
        self.sinks: list[tuple[Slot, SinkId]] = []
        self.records: list[Slot] = []
        self.garbage = 0

    def recover(self) -> None:
        """Claim the next generation; what was decided has been committed meanwhile."""
        model = self.model
        if model.over:
            self.every_attempt_has_ended_once()
            self.take_over(
                NaiveCoordinator(
                    model.topology,
                    model.options,
                    Generation(model.generation + 1),
                    Slot(model.slot + 1),
                    model.last_id,
                    model.batches,
                    model.carried,
                    model.overtaken,
                )
            )

    def committable(self, sink: SinkId, batch: int) -> Committable:
        return Committable(sink, self.generation, BatchId(batch), 1, ())

    # -- telling the coordinator

    def tell(self, event: events.CoordinatorEvent) -> None:
        self.agrees = False
        commands = self.coordinator.handle(event)
        self.model.judge(event, commands)
        for command in commands:
            self.carry_out(command)

    def carry_out(self, command: events.CoordinatorCommand) -> None:
        match command:
            case events.ReserveId(number):
                self.numbers.append(number)
            case events.StartAttempt(barrier):
                self.started.append(barrier.checkpoint_id)
                self.begun.add(barrier.checkpoint_id)
            case events.PublishManifest(cut):
                self.check_snapshots(cut.checkpoint_id, cut.snapshots)
                self.manifests.append(cut.checkpoint_id)
            case events.CreateDecision(slot, cut):
                self.slots.append(slot)
                self.decisions.append(cut.checkpoint_id)
            case CommitSink(permit, sink):
                assert permit.slot == self.model.slot
                self.sinks.append((permit.slot, sink))
            case RecordCommit(permit):
                self.records.append(permit.slot)
            case events.CollectGarbage():
                self.garbage += 1
            case _:
                pass

    def check_snapshots(self, number: CheckpointId, found: Mapping[StepId, StepSnapshot]) -> None:
        """The cut holds the first snapshot of every participant, and staged rows beside them."""
        assert set(found) == self.topology.participants
        for step, snapshot in found.items():
            assert snapshot == replace(self.snapshots[number, step], staged=())

    @rule(move=MOVES)
    def happens(self, move: Move) -> None:
        match move:
            case TimePassed(passed_ms):
                self.pass_time(passed_ms)
            case WokenUp():
                self.wake_up()
            case Asked():
                self.ask(move)
            case Answered():
                self.answer(*move)
            case AllStored(which):
                self.store_all(which)
            case Misdirected():
                self.misdirect(*move)
            case Refused(which, by):
                self.decline(which, by)
            case CancelledByUser(which, named):
                number = self.any_number(which) if named else None
                self.tell(events.Cancelled(number, self.now_ms, "a test asked for it"))
            case RanDry(waiting):
                self.tell(events.Drained(waiting, self.now_ms))
            case Ended(stopped):
                self.end(stopped=stopped)
            case Recovered():
                self.recover()
            case WentWell(lag, up_to):
                self.go_well(lag, up_to)
            case ImpossibleTold(kind):
                self.refuse_what_cannot_be(kind)
            case _:
                assert_never(move)

    # -- time and people

    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.tell(events.Clock(self.now_ms))

    def wake_up(self) -> None:
        self.now_ms = max(self.now_ms, self.coordinator.wake_at_ms or 0)
        self.tell(events.Clock(self.now_ms))
        wake_at_ms = self.coordinator.wake_at_ms
        assert wake_at_ms is None or wake_at_ms > self.now_ms

    def ask(self, asked: Asked) -> None:
        self.asked += 1
        is_last = asked.at_once or self.asked % 3 == 0
        request = CheckpointRequest(asked.kind, f"asked{self.asked}", asked.drain, is_last)
        self.tell(events.Requested(request, self.now_ms, asked.at_once))

    def any_number(self, which: int) -> CheckpointId:
        """An attempt: open, if there is one, or else one that has ended or never began."""
        numbers = [*self.model.open, CheckpointId(self.model.last_id + which)]
        return numbers[which % len(numbers)]

    def decline(self, which: int, by: str) -> None:
        step = StepId("absent") if by == "stranger" else self.topology.steps[0].step
        generation = Generation(self.generation - (by == "predecessor"))
        number, reason = self.any_number(which), FailureReason.SNAPSHOT_FAILED
        self.tell(events.Declined(step, generation, number, reason, self.now_ms))

    def end(self, *, stopped: bool) -> None:
        if not self.mortal:
            return
        failed = events.StepFailed(self.topology.steps[0].step, self.now_ms)
        self.tell(events.Stop(self.now_ms) if stopped else failed)

    # -- steps

    def take_snapshots(self, number: CheckpointId, lag: int) -> None:
        """Let every step run on by a few batches and work out what it will acknowledge."""
        attempt = self.model.open.get(number)
        may_lag = self.model.options.unaligned.enabled
        if attempt is not None:
            may_lag = may_lag and not attempt.stands_alone
        for ordinal, spec in enumerate(self.topology.steps):
            self.latest[spec.step] = BatchId(self.latest[spec.step] + (number + ordinal) % 3)
        for spec in self.topology.steps:
            self.snapshots[number, spec.step] = self.snapshot(spec, number, lag if may_lag else 0)

    def snapshot(self, spec: StepSpec, number: CheckpointId, lag: int) -> StepSnapshot:
        batch = self.latest[spec.step]
        barriers = {
            step_input: place_behind(self.latest[StepId(step_input.channel)])
            for step_input in spec.inputs
        }
        positions = {row: Place(at.position - lag, 0) for row, at in barriers.items()}
        in_flight = tuple(
            InFlight(
                step_input,
                tuple(
                    RecordedEvent(at, Event(BatchId(at), 1, 10), ())
                    for at in range(positions[step_input].position, barriers[step_input].position)
                ),
            )
            for step_input in spec.inputs
            if lag
        )
        since = self.model.batches[spec.step]
        staged = (
            tuple(self.committable(spec.sink, number) for number in range(since + 1, batch + 1))
            if spec.sink is not None
            else ()
        )
        return StepSnapshot(
            spec.step,
            number,
            self.generation,
            batch,
            positions,
            barriers,
            place_behind(batch),
            batch,
            in_flight,
            {} if spec.inputs else {"stream": str(batch)},
            staged=staged,
        )

    def acknowledge(self, number: CheckpointId, step: StepId, wrong: int | None = None) -> None:
        attempt = self.model.open.get(number)
        if wrong is not None and attempt is not None:
            self.snapshots[number, step] = contradicting(
                self.topology[step], self.snapshots[number, step], wrong
            )
            attempt.contradicts = True
        self.tell(events.Acknowledged(self.snapshots[number, step], self.now_ms))

    def store_all(self, which: int) -> None:
        found = [
            attempt for attempt in self.model.open.values() if attempt.stage is not Stage.RESERVING
        ]
        if found:
            attempt = found[which % len(found)]
            for step in self.missing(attempt):
                self.acknowledge(attempt.number, step)

    def missing(self, attempt: NaiveAttempt) -> list[StepId]:
        if attempt.stage is Stage.RESERVING:
            return []
        return sorted(self.topology.participants - set(attempt.acknowledged))

    def misdirect(self, kind: str, which: int, by: int) -> None:
        """Send what must not count: an acknowledgement, which is answered, or a fenced sink."""
        if kind == "fenced":
            for sink in self.topology.sinks:
                self.tell(events.SinkFenced(Slot(self.model.slot - 1), sink, self.now_ms))
                self.tell(events.SinkBehind(Slot(self.model.slot - 1), sink, self.now_ms))
            return
        step = self.topology.steps[by % len(self.topology.steps)].step
        number = self.any_number(which)
        if kind == "stranger":
            step = StepId("absent")
        if kind == "unknown":
            number = CheckpointId(self.model.last_id + 1 + which)
        if kind == "late":
            number = CheckpointId(max(self.model.ended, default=self.model.last_id))
        generation = Generation(self.generation - (kind == "stale"))
        attempt = self.model.open.get(number)
        if kind == "again" and attempt is not None and attempt.acknowledged:
            step = sorted(attempt.acknowledged)[by % len(attempt.acknowledged)]
        if generation != self.generation or attempt is None or step not in self.missing(attempt):
            odd = StepSnapshot(step, number, generation, BatchId(0))
            self.tell(events.Acknowledged(odd, self.now_ms))

    # -- answers

    def answer(self, which: int, how: How, lag: int) -> None:
        """Answer one of the questions that are open, whether or not the attempt still is."""
        questions: list[Callable[[], None]] = [
            *(partial(self.answer_number, number, how, lag) for number in self.numbers),
            *(partial(self.answer_manifest, manifest, how) for manifest in self.manifests),
            *(partial(self.answer_decision, decision, how) for decision in self.decisions),
            *(partial(self.answer_sink, *sink, how) for sink in self.sinks),
            *(partial(self.answer_record, record, how) for record in self.records),
            *([self.answer_garbage] if self.garbage else []),
            *(
                partial(self.acknowledge, attempt.number, step, None if how is How.WELL else which)
                for attempt in self.model.open.values()
                for step in self.missing(attempt)
            ),
        ]
        if questions:
            questions[which % len(questions)]()

    def answer_number(self, number: CheckpointId, how: How, lag: int) -> None:
        self.numbers.remove(number)
        self.take_snapshots(number, lag)
        if how is How.WORST:
            self.tell(events.ReserveFailed(number, self.now_ms))
        else:
            self.tell(events.Reserved(number, how is How.WELL, self.now_ms))

    def answer_manifest(self, number: CheckpointId, how: How) -> None:
        self.manifests.remove(number)
        if how is How.WELL:
            self.tell(events.Published(number, f"hash of {number}", self.now_ms))
        else:
            self.tell(events.PublishFailed(number, self.now_ms))

    def answer_decision(self, number: CheckpointId, how: How) -> None:
        outcome = DecisionOutcome.WRITTEN
        if self.mortal and how is not How.WELL:
            fenced = how is How.BADLY
            outcome = DecisionOutcome.TAKEN if fenced else DecisionOutcome.UNKNOWN
        self.decisions.remove(number)
        self.tell(events.DecisionMade(number, outcome, self.now_ms))

    def answer_sink(self, slot: Slot, sink: SinkId, how: How) -> None:
        self.sinks.remove((slot, sink))
        if how is How.WELL:
            self.tell(events.SinkCommitted(slot, sink, f"{sink} at {slot}", self.now_ms))
        elif how is How.BADLY or not self.mortal:
            self.tell(events.SinkFailed(slot, sink, f"{sink} is down", self.now_ms))
        else:
            self.tell(events.SinkFenced(slot, sink, self.now_ms))

    def answer_record(self, slot: Slot, how: How) -> None:
        self.records.remove(slot)
        if how is How.WELL:
            self.tell(events.CommitRecorded(slot, self.now_ms))
        else:
            self.tell(events.RecordFailed(slot, "the store is full", self.now_ms))

    def answer_garbage(self) -> None:
        self.garbage -= 1
        self.tell(events.GarbageCollected(self.now_ms))

    def go_well(self, lag: int, up_to: int) -> None:
        if self.garbage:
            self.answer_garbage()
        for number in tuple(self.numbers):
            self.answer_number(number, How.WELL, lag)
        if up_to > 1:
            self.store_all(up_to)
        for number in tuple(self.manifests) if up_to > 2 else ():
            self.answer_manifest(number, How.WELL)
        if up_to > 3:
            self.let_the_store_act()

    def let_the_store_act(self) -> None:
        for number in tuple(self.decisions):
            self.answer_decision(number, How.WELL)
        for slot, sink in tuple(self.sinks):
            self.answer_sink(slot, sink, How.WELL)
        for slot in tuple(self.records):
            self.answer_record(slot, How.WELL)
        if self.garbage:
            self.answer_garbage()

    # -- what cannot happen

    def refuse_what_cannot_be(self, kind: int) -> None:
        impossible = list(self.impossible())
        if not impossible or self.model.over:
            return
        before = state_of(self.coordinator)
        self.agrees = False

        with pytest.raises(ProtocolViolation):
            self.coordinator.handle(impossible[kind % len(impossible)])

        assert state_of(self.coordinator) == before

    def impossible(self) -> Iterator[events.CoordinatorEvent]:
        """Answers to questions that were never asked."""
        now_ms = self.now_ms
        yield events.DecisionMade(
            CheckpointId(self.model.last_id + 1), DecisionOutcome.WRITTEN, now_ms
        )
        for number, attempt in self.model.open.items():
            if attempt.stage is not Stage.RESERVING:
                yield events.Reserved(number, True, now_ms)
                yield events.Reserved(number, False, now_ms)
                yield events.ReserveFailed(number, now_ms)
            if attempt.stage is not Stage.PUBLISHING:
                yield events.Published(number, "hash", now_ms)
                yield events.PublishFailed(number, now_ms)
            if attempt.stage is not Stage.DECIDING:
                yield events.DecisionMade(number, DecisionOutcome.WRITTEN, now_ms)
                yield events.DecisionMade(number, DecisionOutcome.UNKNOWN, now_ms)
        if self.model.commit is not None and self.model.commit.waiting:
            yield events.CommitRecorded(self.model.commit.slot, now_ms)
            yield events.RecordFailed(self.model.commit.slot, "the store is full", now_ms)

    # -- after every step

    @invariant()
    def the_coordinator_agrees_with_the_model(self) -> None:
        self.agrees = False
        self.the_facts_are_those_of_the_model()
        self.what_is_remembered_is_bounded()
        self.it_wants_to_be_woken_in_time()
        assert self.started == sorted(set(self.started))
        assert self.slots == sorted(set(self.slots))
        self.agrees = True

    def the_facts_are_those_of_the_model(self) -> None:
        model, coordinator = self.model, self.coordinator
        if model.over:
            assert coordinator.mode is events.Mode.HALTED
            return
        assert {number: PHASES[phase] for number, phase in coordinator.open_attempts.items()} == {
            number: attempt.stage for number, attempt in model.open.items()
        }
        for number, attempt in model.open.items():
            assert set(coordinator.missing(number)) == self.topology.participants - set(
                attempt.acknowledged
            )
        committer = CommitterState.IDLE
        if model.commit is not None:
            blocked = model.commit.blocked
            committer = CommitterState.COMMIT_BLOCKED if blocked else CommitterState.COMMITTING
        assert coordinator.committer_state is committer
        assert coordinator.completed_count == len(model.decided)
        newest = [cut.checkpoint_id for cut in coordinator.completed]
        assert newest == model.decided[-model.options.retained :]

    def what_is_remembered_is_bounded(self) -> None:
        options = self.model.options
        assert len(self.coordinator.open_attempts) <= options.max_concurrent
        assert len(self.model.queue) <= options.queue_limit + options.max_concurrent
        assert len(self.coordinator.completed) <= options.retained

    def it_wants_to_be_woken_in_time(self) -> None:
        due = [] if self.model.over else self.model.waits_until_ms()
        wake_at_ms = self.coordinator.wake_at_ms
        assert not due or (wake_at_ms is not None and wake_at_ms <= min(due))

    def teardown(self) -> None:
        """Let only the clock and the store act: every attempt ends, then the pipeline."""
        if not self.agrees:
            return
        if not self.model.over:
            self.every_open_attempt_ends_in_time()
        if not self.model.over:
            self.tell(events.Stop(self.now_ms))
        for _ in range(100):
            if self.model.over:
                break
            self.let_the_store_and_the_clock_act()
        assert self.model.over
        self.every_attempt_has_ended_once()

    def every_attempt_has_ended_once(self) -> None:
        """Only a process that may not know how its decision came out leaves attempts behind."""
        left_behind = set(self.model.open)
        assert not left_behind or self.model.may_be_fenced
        assert self.begun <= left_behind | set(self.model.ended)
        assert set(self.model.ended.values()) <= {1}

    def every_open_attempt_ends_in_time(self) -> None:
        waiting = set(self.model.open)
        for _ in range(100):
            waiting &= set(self.model.open)
            if not waiting or self.model.over:
                break
            self.let_the_store_and_the_clock_act()
        assert not waiting or self.model.over

    def let_the_store_and_the_clock_act(self) -> None:
        self.let_the_store_act()
        if not self.model.over:
            self.wake_up()


PHASES = {
    Phase.RESERVING: Stage.RESERVING,
    Phase.COLLECTING: Stage.COLLECTING,
    Phase.READY: Stage.COLLECTING,
    Phase.PUBLISHING: Stage.PUBLISHING,
    Phase.DECIDING: Stage.DECIDING,
}


def place_behind(batch: BatchId) -> Place:
    return Place(batch + 1, 10 * (batch + 1))


def contradicting(spec: StepSpec, snapshot: StepSnapshot, how: int) -> StepSnapshot:
    """Give a snapshot that does not fit to the others."""
    if how == 0 or not spec.inputs:
        return replace(snapshot, output_batch=BatchId(snapshot.batch + 1))
    first = spec.inputs[0]
    position = snapshot.output.position
    if how == 1:
        return replace(snapshot, barriers={**snapshot.barriers, first: Place(position + 99, 0)})
    if how == 2:
        return replace(snapshot, positions={**snapshot.positions, first: Place(position + 99, 0)})
    return replace(snapshot, barriers={})


TestCoordinator = CoordinatorMachine.TestCase
