"""An open attempt: a fixed set of participants, and one answer to every acknowledgement."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    GENERATION,
    ORDERS,
    TABLE,
    refusal,
    savepoint,
    sink_snapshot,
    source_snapshot,
)

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId, Generation, StepId
from cutwater.protocol.checkpoint.attempt import (
    ATTEMPT,
    AckResult,
    Attempt,
    CheckpointRequest,
    Phase,
    PhaseTrigger,
)
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.messages import Barrier, Flag
from cutwater.protocol.options import CheckpointOptions


def attempt(phase: Phase = Phase.COLLECTING, request: CheckpointRequest | None = None) -> Attempt:
    return Attempt(
        CheckpointId(1),
        GENERATION,
        request or CheckpointRequest(),
        frozenset({ORDERS, TABLE}),
        started_at_ms=40,
        deadline_ms=640,
        phase=phase,
    )


def test_an_attempt_is_complete_when_every_participant_has_acknowledged() -> None:
    one = attempt()

    results = [one.acknowledge(source_snapshot()), one.acknowledge(sink_snapshot())]

    assert results == [AckResult.ACCEPTED, AckResult.ACCEPTED]
    assert one.phase is Phase.READY
    assert one.snapshots == {ORDERS: source_snapshot(), TABLE: sink_snapshot()}


def test_an_attempt_names_the_missing_steps() -> None:
    """Seed 000 H6: the step that had answered was blamed."""
    one = attempt()
    one.acknowledge(sink_snapshot())

    assert one.missing == (ORDERS,)
    assert one.phase is Phase.COLLECTING


def test_an_acknowledgement_counts_once_and_the_first_one_stands() -> None:
    """Seed 000 H8: the second replaced the first and its size was added."""
    one = attempt()
    one.acknowledge(source_snapshot(batch=0))

    result = one.acknowledge(source_snapshot(batch=5))

    assert result is AckResult.DUPLICATE
    assert one.snapshots == {ORDERS: source_snapshot(batch=0)}


def test_an_acknowledgement_after_completion_is_a_duplicate() -> None:
    one = attempt()
    one.acknowledge(source_snapshot())
    one.acknowledge(sink_snapshot())

    assert one.acknowledge(sink_snapshot()) is AckResult.DUPLICATE
    assert one.phase is Phase.READY


def test_a_stranger_is_answered_and_not_counted() -> None:
    """Seed 000 H7, H9 and H10: any sender could complete an attempt."""
    one = attempt()

    result = one.acknowledge(sink_snapshot(step=StepId("ghost")))

    assert result is AckResult.UNKNOWN
    assert one.snapshots == {}


def test_another_generation_is_answered_and_not_counted() -> None:
    """Seed 000 C3: a zombie's acknowledgement of the old attempt 1 counted for the new one."""
    one = attempt()

    result = one.acknowledge(replace(source_snapshot(), generation=Generation(2)))

    assert result is AckResult.STALE_GENERATION
    assert one.snapshots == {}


def test_no_step_can_acknowledge_before_the_attempt_has_begun() -> None:
    one = attempt(Phase.RESERVING)

    assert one.acknowledge(source_snapshot()) is AckResult.UNKNOWN
    assert one.missing == (ORDERS, TABLE)


def test_what_has_been_acknowledged_is_a_copy() -> None:
    one = attempt()
    one.acknowledge(source_snapshot())

    assert one.snapshots is not one.snapshots


@pytest.mark.parametrize(
    ("phase", "can_fail"),
    [
        (Phase.RESERVING, True),
        (Phase.COLLECTING, True),
        (Phase.READY, True),
        (Phase.PUBLISHING, True),
        (Phase.DECIDING, False),
        (Phase.COMPLETED, False),
        (Phase.FAILED, False),
    ],
)
def test_an_attempt_can_fail_until_its_decision_is_issued(phase: Phase, can_fail: bool) -> None:
    """Rule F15."""
    assert attempt(phase).can_fail is can_fail


@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.COMPLETED, Phase.FAILED])
def test_an_attempt_that_cannot_fail_refuses_to(phase: Phase) -> None:
    """Rule F15 and seed 000 M12: a completed checkpoint could be aborted."""
    one = attempt(phase)

    message = refusal(one, lambda: one.move(PhaseTrigger.FAIL))

    assert phase.name in message


def test_a_new_attempt_reserves_its_number_first() -> None:
    assert ATTEMPT.initial is Phase.RESERVING


# -- requests


def test_the_barrier_of_an_attempt_names_it_and_its_start() -> None:
    """Rule F20, seed 001 M13 and 003 H5: start and epoch are the coordinator's."""
    assert attempt().barrier == Barrier(CheckpointId(1), GENERATION, Flag.NONE, 40)


@pytest.mark.parametrize(
    ("request_", "flags"),
    [
        (CheckpointRequest(), Flag.NONE),
        (CheckpointRequest(CheckpointKind.FULL), Flag.FULL_SNAPSHOT),
        (savepoint(), Flag.FULL_SNAPSHOT),
        (savepoint(drain=True), Flag.FULL_SNAPSHOT | Flag.DRAIN),
        (CheckpointRequest(drain=True), Flag.DRAIN),
    ],
)
def test_a_request_becomes_the_flags_of_its_barrier(
    request_: CheckpointRequest, flags: Flag
) -> None:
    """Seed 003 M7: flags that no code interprets."""
    assert request_.flags == flags
    assert attempt(request=request_).barrier.flags == flags


@pytest.mark.parametrize(
    ("request_", "timeout_ms"),
    [
        (CheckpointRequest(), 1_000),
        (CheckpointRequest(drain=True), 9_000),
        (savepoint(), 9_000),
    ],
)
def test_an_attempt_that_never_overtakes_gets_the_longer_deadline(
    request_: CheckpointRequest, timeout_ms: int
) -> None:
    """Rule F30."""
    options = CheckpointOptions(timeout_ms=1_000, savepoint_timeout_ms=9_000)

    assert request_.timeout_ms(options) == timeout_ms


def test_a_rewind_cannot_be_requested_as_an_attempt() -> None:
    with pytest.raises(ProtocolViolation, match="decided, not attempted"):
        CheckpointRequest(CheckpointKind.REWIND)
