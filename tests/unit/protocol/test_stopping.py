"""The stop of a generation: requested, refused, repeated, superseded, resumed, ended."""

import pytest

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.stopping import (
    STOPPING,
    STOPPING_ALREADY,
    TRIES_MAX,
    AttemptBegan,
    AttemptEnded,
    EndPipeline,
    FailPipeline,
    InputEnded,
    RefuseStop,
    RequestLast,
    RequestRefused,
    ResumePipeline,
    RetryDue,
    SinksBlocked,
    Stopping,
    StopRequested,
    StopState,
    StopTrigger,
)

LAST = CheckpointRequest(is_last=True)
SAVEPOINT = CheckpointRequest(CheckpointKind.SAVEPOINT, "before-upgrade", is_last=True)
ONE, TWO = CheckpointId(1), CheckpointId(2)


def stopped(request: CheckpointRequest | None = LAST, *, insists: bool = False) -> Stopping:
    """A machine whose last checkpoint was requested, and whose attempt has begun."""
    machine = Stopping()
    machine.handle(StopRequested(request, insists))
    if request is not None:
        machine.handle(AttemptBegan(ONE, request))
    return machine


def failed(
    checkpoint_id: CheckpointId = ONE, reason: FailureReason = FailureReason.STEP_FAILED
) -> AttemptEnded:
    return AttemptEnded(checkpoint_id, False, reason, "the step failed")


def test_a_stop_requests_a_last_checkpoint_before_all_others() -> None:
    machine = Stopping()

    assert machine.handle(StopRequested(LAST)) == (RequestLast(LAST, at_once=True),)
    assert (machine.state, machine.is_requested) == (StopState.LAST_CHECKPOINT, True)


def test_a_stop_without_a_checkpoint_ends_in_every_state() -> None:
    for machine in (Stopping(), stopped(), stopped(SAVEPOINT, insists=True), stopped(None)):
        assert machine.handle(StopRequested(None)) == (EndPipeline(),)
        assert machine.state is StopState.ENDING


def test_a_decided_last_checkpoint_ends_the_pipeline() -> None:
    machine = stopped()

    assert machine.handle(AttemptEnded(ONE, True)) == (EndPipeline(),)
    assert (machine.is_saved, machine.unsaved) == (True, "")


def test_attempts_that_do_not_serve_the_stop_change_nothing() -> None:
    machine = Stopping()
    machine.handle(AttemptBegan(ONE, LAST))
    machine.handle(StopRequested(LAST))
    machine.handle(AttemptBegan(TWO, CheckpointRequest()))

    assert machine.handle(AttemptEnded(ONE, True)) == ()
    assert machine.handle(AttemptEnded(TWO, True)) == ()
    assert machine.state is StopState.LAST_CHECKPOINT


def test_a_number_that_was_taken_keeps_the_request_in_its_turn() -> None:
    machine = stopped()

    assert machine.handle(failed(reason=FailureReason.ID_TAKEN)) == ()
    machine.handle(AttemptBegan(TWO, LAST))
    assert machine.handle(AttemptEnded(TWO, True)) == (EndPipeline(),)


def test_a_plain_stop_tries_again_and_then_ends_without_a_checkpoint() -> None:
    machine = stopped()

    for number in range(2, TRIES_MAX + 1):
        assert machine.handle(failed(CheckpointId(number - 1))) == (RequestLast(LAST, True),)
        machine.handle(AttemptBegan(CheckpointId(number), LAST))
    assert machine.handle(failed(CheckpointId(TRIES_MAX))) == (EndPipeline("the step failed"),)
    assert (machine.is_saved, machine.unsaved) == (False, "the step failed")


@pytest.mark.parametrize("reason", [FailureReason.CANCELLED, FailureReason.EXPIRED])
def test_a_plain_stop_ends_after_an_abort_or_one_deadline(reason: FailureReason) -> None:
    assert stopped().handle(failed(reason=reason)) == (EndPipeline("the step failed"),)


def test_a_stop_with_a_savepoint_resumes_the_pipeline_if_it_fails() -> None:
    machine = stopped(SAVEPOINT, insists=True)

    assert machine.handle(failed()) == (ResumePipeline(),)
    assert (machine.state, machine.is_requested) == (StopState.RUNNING, False)
    assert machine.handle(StopRequested(LAST)) == (RequestLast(LAST, at_once=True),)


def test_a_second_stop_with_a_savepoint_is_refused_and_the_first_one_stands() -> None:
    machine = stopped(SAVEPOINT, insists=True)

    second = machine.handle(StopRequested(SAVEPOINT, insists=True))

    assert second == (RefuseStop(SAVEPOINT, STOPPING_ALREADY),)
    assert machine.handle(AttemptEnded(ONE, True)) == (EndPipeline(),)
    assert machine.handle(StopRequested(SAVEPOINT, insists=True)) == second


def test_a_plain_stop_supersedes_one_with_a_savepoint_and_no_other() -> None:
    machine = stopped(SAVEPOINT, insists=True)

    assert machine.handle(StopRequested(LAST)) == (RequestLast(LAST, at_once=True),)
    assert machine.handle(failed()) == ()
    machine.handle(AttemptBegan(TWO, LAST))
    assert machine.handle(StopRequested(LAST)) == ()
    assert machine.handle(AttemptEnded(TWO, True)) == (EndPipeline(),)
    assert machine.handle(StopRequested(LAST)) == ()


def test_a_request_that_finds_no_room_is_repeated_when_due() -> None:
    machine = Stopping()
    machine.handle(StopRequested(LAST))

    assert machine.handle(RetryDue()) == ()
    assert machine.handle(RequestRefused(CheckpointRequest())) == ()
    assert machine.handle(RequestRefused(LAST)) == ()
    assert machine.state is StopState.NO_ROOM
    assert machine.handle(StopRequested(LAST)) == ()
    assert machine.handle(RetryDue()) == (RequestLast(LAST, at_once=True),)


def test_a_request_that_found_no_room_is_no_attempt() -> None:
    machine = Stopping()
    machine.handle(StopRequested(LAST))
    for _ in range(TRIES_MAX):
        machine.handle(RequestRefused(LAST))
        machine.handle(RetryDue())
    machine.handle(AttemptBegan(ONE, LAST))

    assert machine.handle(failed()) == (RequestLast(LAST, at_once=True),)


def test_a_kill_gives_up_the_savepoint_to_stop_with_and_no_plain_checkpoint() -> None:
    plain, savepoint = stopped(), stopped(SAVEPOINT, insists=True)

    for machine in (plain, savepoint):
        machine.handle(StopRequested(None))

    assert (plain.is_requested, savepoint.is_requested) == (True, False)


def test_a_savepoint_that_finds_no_room_resumes_the_pipeline() -> None:
    machine = Stopping()
    machine.handle(StopRequested(SAVEPOINT, insists=True))

    assert machine.handle(RequestRefused(SAVEPOINT)) == (ResumePipeline(),)
    assert machine.handle(RequestRefused(SAVEPOINT)) == ()


def test_a_plain_stop_ends_while_sinks_are_blocked_and_says_why() -> None:
    machine = Stopping()

    assert machine.handle(StopRequested(LAST, blocked="disk full")) == (EndPipeline("disk full"),)
    assert machine.unsaved == "disk full"


def test_a_stop_with_a_savepoint_is_refused_while_sinks_are_blocked() -> None:
    machine = Stopping()

    asked = machine.handle(StopRequested(SAVEPOINT, insists=True, blocked="disk full"))

    assert asked == (RefuseStop(SAVEPOINT, "disk full"),)
    assert machine.state is StopState.RUNNING


def test_a_plain_stop_ends_when_sinks_become_blocked_before_or_after_its_decision() -> None:
    pending, decided = stopped(), stopped()
    decided.handle(AttemptEnded(ONE, True))

    for machine in (pending, decided):
        assert machine.handle(SinksBlocked("disk full")) == (EndPipeline("disk full"),)
        assert machine.unsaved == "disk full"


def test_blocked_sinks_do_not_end_what_waits_for_its_checkpoint() -> None:
    ended = Stopping()
    ended.handle(InputEnded())

    for machine in (Stopping(), stopped(SAVEPOINT, insists=True), ended):
        before = machine.state
        assert machine.handle(SinksBlocked("disk full")) == ()
        assert machine.state is before


def test_the_end_of_all_input_waits_for_pending_attempts_and_commits_what_is_left() -> None:
    machine = Stopping()

    assert machine.handle(InputEnded()) == (RequestLast(LAST, at_once=False),)
    assert machine.handle(InputEnded()) == ()
    machine.handle(AttemptBegan(ONE, LAST))
    decided = AttemptEnded(ONE, True, output_waits=True)
    assert machine.handle(decided) == (RequestLast(LAST, at_once=False),)
    machine.handle(AttemptBegan(TWO, LAST))
    assert machine.handle(AttemptEnded(TWO, True)) == (EndPipeline(),)
    assert machine.is_saved


def test_a_run_whose_input_has_ended_fails_without_its_last_checkpoint() -> None:
    machine = Stopping()
    machine.handle(InputEnded())
    for number in range(1, TRIES_MAX):
        machine.handle(AttemptBegan(CheckpointId(number), LAST))
        (again,) = machine.handle(failed(CheckpointId(number), FailureReason.EXPIRED))
        assert again == RequestLast(LAST, at_once=False)
    machine.handle(AttemptBegan(CheckpointId(TRIES_MAX), LAST))

    (end,) = machine.handle(failed(CheckpointId(TRIES_MAX)))

    message = f"the last checkpoint failed {TRIES_MAX} times: the step failed."
    assert end == FailPipeline(message)


def test_a_kill_during_the_last_checkpoint_is_not_followed_by_another_try() -> None:
    machine = Stopping()
    machine.handle(InputEnded())
    machine.handle(AttemptBegan(ONE, LAST))

    assert machine.handle(StopRequested(None)) == (EndPipeline(),)
    assert machine.handle(failed(reason=FailureReason.STOPPED)) == ()
    assert not machine.is_saved


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="stop: RESUME is not allowed in ENDING"):
        STOPPING.next(StopState.ENDING, StopTrigger.RESUME)
