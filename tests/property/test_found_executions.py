"""Executions that went wrong once: found by the state machines of this directory, or beside them.

Each is shortened to what matters. The machine finds the next one of its kind; the execution says
in a few lines what it was.
"""

from dataclasses import replace

import pytest
from tests.property.test_coordinator_model import (
    ALIGNED,
    TOPOLOGIES,
    Asked,
    CoordinatorMachine,
    How,
    Refused,
    TimePassed,
    WentWell,
)
from tests.unit.protocol.builders import state_of

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.checkpoint import events
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.messages import START, Barrier, EndOfInput, Event, Place, Watermark
from cutwater.protocol.options import CheckpointOptions, UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    Advanced,
    AlignerEvent,
    Announced,
    AttemptOver,
    BarrierSeen,
    EndSeen,
    LogGrew,
    Release,
)
from cutwater.protocol.step.machine import Step
from cutwater.protocol.topology import StepSpec, inputs_of

GENERATION = Generation(3)
A, B = inputs_of("a", "b")
ONE = Barrier(CheckpointId(1), GENERATION)
TWO = Barrier(CheckpointId(2), GENERATION)
READER = ReaderId(StepId("join"), InputId(0, ChannelId("a")))


def aligner_of(options: UnalignedOptions | None = None) -> Aligner:
    return Aligner({A: START, B: START}, options or UnalignedOptions(), generation=GENERATION)


def refuses(machine: Aligner | Step, event: AlignerEvent) -> None:
    before = state_of(machine)
    with pytest.raises(ProtocolViolation):
        machine.handle(event)  # type: ignore[arg-type]
    assert state_of(machine) == before


# -- the aligner


def test_a_barrier_of_an_attempt_before_one_that_has_ended_holds_no_input() -> None:
    aligner = aligner_of()
    aligner.handle(BarrierSeen(A, TWO.cancelled(), START))

    seen = aligner.handle(BarrierSeen(B, ONE, START))
    announced = aligner.handle(Announced(ONE))
    over = aligner.handle(AttemptOver(ONE.checkpoint_id))

    assert Release(ONE.checkpoint_id) in (*seen, *announced, *over)


def test_a_step_cannot_read_past_the_end_of_an_input() -> None:
    aligner = aligner_of()
    aligner.handle(EndSeen(A, Place(2, 20)))

    refuses(aligner, Advanced({A: Place(3, 30)}))


def test_a_log_that_is_being_recorded_does_not_shrink() -> None:
    aligner = aligner_of(UnalignedOptions(forced=True))
    aligner.handle(BarrierSeen(A, ONE, Place(1, 10)))
    aligner.handle(LogGrew(B, Place(3, 30)))

    before = state_of(aligner)

    aligner.handle(LogGrew(B, Place(2, 20)))

    assert state_of(aligner) == before


def test_the_end_of_an_attempt_cannot_be_announced_as_its_beginning() -> None:
    refuses(aligner_of(), Announced(ONE.cancelled()))


def test_a_step_that_refuses_an_announcement_does_not_remember_it() -> None:
    step = Step(StepSpec(StepId("join"), inputs_of("a")), CheckpointOptions(), GENERATION)

    refuses(step, Announced(replace(ONE, epoch=Generation(2))))


# -- the channel


def test_a_watermark_appended_where_a_reader_stands_is_passed() -> None:
    log = ChannelLog(ChannelId("a"), {READER: START})

    log.append(Watermark(5))

    assert log.watermark_ms(READER) == 5


def test_watermarks_of_batches_without_rows_are_freed_if_their_reader_is_idle() -> None:
    log = ChannelLog(ChannelId("a"), {READER: START})
    log.append(Event(BatchId(0), 1, 10))
    log.advance(READER, log.end)
    log.settle(READER)

    for value_ms in range(100):
        log.append(Watermark(value_ms))
        log.news(READER)
        log.limit(READER)
    log.free()

    assert log.controls == 0


def test_releases_after_the_end_of_input_take_no_memory() -> None:
    log = ChannelLog(ChannelId("a"), {READER: START})
    log.append(EndOfInput())
    log.limit(READER)

    for number in range(1, 101):
        log.release(READER, CheckpointId(number))

    assert len(log._readers[READER].released) <= 1


# -- the coordinator


def world(**options: int) -> CoordinatorMachine:
    """A pipeline whose first attempt has not started: garbage is being collected."""
    machine = CoordinatorMachine()
    machine.begin(
        TOPOLOGIES[0],
        replace(CheckpointOptions(unaligned=ALIGNED), **options),  # type: ignore[arg-type]
        carried=False,
        mortal=True,
    )
    machine.happens(TimePassed(0))
    return machine


def attempt(machine: CoordinatorMachine) -> CheckpointId:
    """Let the next attempt start."""
    if not machine.numbers:
        machine.happens(TimePassed(machine.model.options.interval_ms))
    number = machine.numbers[0]
    machine.answer_number(number, How.WELL, 0)
    return number


def test_no_checkpoint_starts_that_could_be_decided_before_an_open_savepoint() -> None:
    machine = world(max_concurrent=2)
    machine.happens(Asked(CheckpointKind.SAVEPOINT, False, False))
    machine.answer_garbage()
    savepoint = attempt(machine)

    machine.happens(TimePassed(machine.model.options.interval_ms))

    assert list(machine.coordinator.open_attempts) == [savepoint]


def test_a_cut_that_contradicts_itself_does_not_hold_up_the_next_one() -> None:
    machine = world(max_concurrent=3)
    machine.answer_garbage()
    numbers = [attempt(machine) for _ in range(3)]

    for number, wrong in zip(numbers, (None, 1, None), strict=True):
        machine.acknowledge(number, StepId("s"))
        machine.acknowledge(number, StepId("t"), wrong)
    machine.answer_manifest(numbers[0], How.WELL)
    machine.let_the_store_act()

    assert machine.manifests == [numbers[2]]


def test_an_attempt_that_is_repeated_after_a_failure_is_not_followed_before_its_interval() -> None:
    machine = world(max_concurrent=2)
    machine.answer_garbage()
    attempt(machine)
    machine.happens(Refused(0, "step"))
    machine.happens(TimePassed(machine.model.options.retry_ms))
    attempt(machine)

    machine.happens(TimePassed(0))

    assert len(machine.coordinator.open_attempts) == 1


def test_a_sink_that_failed_is_asked_again_in_time() -> None:
    machine = world()
    machine.answer_garbage()
    machine.happens(WentWell(0, 3))
    machine.answer_decision(machine.decisions[0], How.WELL)
    slot, sink = machine.sinks[0]
    machine.answer_sink(slot, sink, How.BADLY)

    wake_at_ms = machine.coordinator.wake_at_ms

    assert wake_at_ms == machine.now_ms + machine.model.options.commit.retry_ms


def test_a_coordinator_that_can_start_nothing_does_not_want_to_be_woken_for_it() -> None:
    machine = world()
    machine.answer_garbage()
    number = attempt(machine)

    machine.happens(TimePassed(0))

    assert machine.coordinator.wake_at_ms == machine.model.open[number].deadline_ms


def test_a_coordinator_that_waits_for_a_number_does_not_want_to_be_woken_for_the_next() -> None:
    machine = world(max_concurrent=2)
    machine.answer_garbage()
    number = machine.numbers[0]

    machine.happens(TimePassed(machine.model.options.interval_ms))

    assert machine.coordinator.wake_at_ms == machine.model.open[number].deadline_ms


def test_a_number_cannot_be_lost_after_the_attempt_has_begun() -> None:
    machine = world()
    machine.answer_garbage()
    machine.happens(WentWell(0, 3))
    number = machine.decisions[0]
    before = state_of(machine.coordinator)

    with pytest.raises(ProtocolViolation):
        machine.coordinator.handle(events.Reserved(number, False, machine.now_ms))

    assert state_of(machine.coordinator) == before


def test_a_manifest_cannot_fail_before_it_is_written() -> None:
    machine = world()
    machine.answer_garbage()
    number = attempt(machine)
    before = state_of(machine.coordinator)

    with pytest.raises(ProtocolViolation):
        machine.coordinator.handle(events.PublishFailed(number, machine.now_ms))

    assert state_of(machine.coordinator) == before
