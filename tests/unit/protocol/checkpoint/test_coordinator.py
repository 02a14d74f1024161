"""The coordinator: every attempt ends, one decision at a time, and nothing is decided twice."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    ALIGNED_ONLY,
    CONCURRENT,
    FAN,
    GENERATION,
    LINE,
    ORDERS,
    PIPELINE,
    T1,
    T2,
    TABLE,
    T,
    acknowledged,
    acknowledgements,
    barrier,
    collecting,
    committable,
    committing,
    completed,
    coordinator,
    deciding,
    fan_snapshots,
    line_snapshots,
    only,
    opened,
    outcome,
    published,
    publishing,
    recorded,
    refusal_of,
    requested,
    reserved,
    savepoint,
    sink_committed,
    sink_failed,
    sink_snapshot,
    source_snapshot,
    tell,
    two_collecting,
)

from cutwater.ids import CheckpointId, Generation, Slot, StepId
from cutwater.protocol.checkpoint.attempt import (
    AckResult,
    CancelResult,
    CheckpointRequest,
    Phase,
    RequestResult,
)
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.checkpoint.events import (
    AnswerAck,
    AnswerCancel,
    AnswerRequest,
    Cancelled,
    Clock,
    CollectGarbage,
    CoordinatorCommand,
    CoordinatorEvent,
    CreateDecision,
    Declined,
    Drained,
    EndAttempt,
    GarbageCollected,
    Halt,
    HaltReason,
    Mode,
    PublishFailed,
    PublishManifest,
    RecordFailed,
    Requested,
    ReserveFailed,
    ReserveId,
    RestartPipeline,
    SinkBehind,
    SinkFenced,
    Standing,
    StartAttempt,
    StepFailed,
    Stop,
)
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import (
    CommitBlocked,
    CommitSink,
    CommitterState,
    RecordCommit,
    grant,
)
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.messages import Flag
from cutwater.protocol.options import CheckpointOptions, CommitOptions

ONE, TWO = CheckpointId(1), CheckpointId(2)
PERMIT = grant(PIPELINE, Slot(2), ONE)
QUICK = CheckpointOptions(
    interval_ms=1_000, timeout_ms=500, savepoint_timeout_ms=5_000, min_pause_ms=10, retry_ms=100
)
INTOLERANT = replace(QUICK, tolerable_failed=0)


def answers(machine: Coordinator, *told: CoordinatorEvent) -> list[AckResult]:
    """What became of the acknowledgements among these events."""
    return [ack.result for ack in only(AnswerAck, tell(machine, *told))]


def declined(
    checkpoint_id: int = 1,
    *,
    step: StepId = TABLE,
    generation: Generation = GENERATION,
    now_ms: int = 0,
) -> Declined:
    reason = FailureReason.INFLIGHT_TOO_LARGE
    return Declined(step, generation, CheckpointId(checkpoint_id), reason, now_ms)


# -- starting


def test_an_attempt_begins_by_reserving_its_number() -> None:
    """Invariant 8: nothing is written twice under one id."""
    machine = coordinator()

    commands = tell(machine, *opened())

    assert commands[-1] == ReserveId(ONE, CheckpointKind.CHECKPOINT)
    assert machine.open_attempts == {ONE: Phase.RESERVING}


def test_a_reserved_attempt_is_announced_with_its_epoch_and_start() -> None:
    """Rule F20 and seed 003 H5."""
    machine = coordinator()
    tell(machine, *opened(40))

    commands = tell(machine, reserved(1, 50))

    assert commands == (StartAttempt(barrier(1, started_at_ms=40)),)


def test_a_number_that_another_process_took_is_not_used() -> None:
    """Rule F5: a predecessor that still runs."""
    machine = coordinator()
    tell(machine, *opened())

    commands = tell(machine, reserved(1, 5, won=False))

    assert commands == (
        EndAttempt(ONE, False, FailureReason.ID_TAKEN),
        ReserveId(TWO, CheckpointKind.CHECKPOINT),
    )


def test_a_request_keeps_its_turn_when_its_number_was_taken() -> None:
    machine = completed(QUICK)
    tell(machine, requested(savepoint(), 20), requested(CheckpointRequest(), 20))

    commands = tell(machine, reserved(2, 30, won=False))

    assert only(ReserveId, commands) == (ReserveId(CheckpointId(3), CheckpointKind.SAVEPOINT),)


def test_numbers_go_on_from_the_highest_ever_taken() -> None:
    """Seed 000 C3 and 001 M13: they began at 1 again after every restart."""
    machine = coordinator(standing=Standing(slot=Slot(9), highest_id=CheckpointId(41)))

    commands = tell(machine, *opened())

    assert commands[-1] == ReserveId(CheckpointId(42), CheckpointKind.CHECKPOINT)


def test_a_savepoint_waits_for_room_and_starts_without_waiting_for_the_interval() -> None:
    """Rule F28 and F30."""
    machine = collecting(QUICK)

    queued = tell(machine, requested(savepoint(), 1))
    tell(machine, *acknowledgements(1, 2), published(1, 2), outcome(now_ms=2))
    tell(machine, sink_committed(now_ms=3), recorded(now_ms=3))
    commands = tell(machine, GarbageCollected(3), reserved(2, 3))

    assert queued == (AnswerRequest(savepoint(), RequestResult.QUEUED),)
    assert only(ReserveId, commands) == (ReserveId(TWO, CheckpointKind.SAVEPOINT),)
    assert only(StartAttempt, commands)[0].barrier.flags == Flag.FULL_SNAPSHOT


def test_requests_beyond_the_limit_are_refused() -> None:
    machine = collecting(replace(QUICK, queue_limit=1))
    tell(machine, requested())

    commands = tell(machine, requested(savepoint()))

    assert commands == (AnswerRequest(savepoint(), RequestResult.QUEUE_FULL),)


def test_the_next_attempt_starts_by_itself_after_a_completed_one() -> None:
    """Seed 000 H11: a forgotten reset stopped checkpointing."""
    machine = completed(QUICK)

    commands = tell(machine, Clock(1_000))

    assert commands == (ReserveId(TWO, CheckpointKind.CHECKPOINT),)


def test_the_next_attempt_starts_by_itself_after_a_failed_one() -> None:
    """Seed 000 H11 and M14: after the backoff, not after a whole interval."""
    machine = collecting(QUICK)
    tell(machine, declined(now_ms=50))

    early = tell(machine, Clock(149))
    late = tell(machine, Clock(150))

    assert early == ()
    assert late == (ReserveId(TWO, CheckpointKind.CHECKPOINT),)


def test_a_failed_attempt_is_ended_before_the_next_one_starts() -> None:
    """Rule F39: released before the next trigger."""
    machine = collecting(QUICK)
    tell(machine, requested(savepoint(), 10))

    commands = tell(machine, declined(now_ms=20))

    assert [type(command) for command in commands] == [EndAttempt, ReserveId]


def test_a_drained_pipeline_is_flushed_before_the_interval() -> None:
    machine = completed(QUICK)

    commands = tell(machine, Drained(True, 10))

    assert commands == (ReserveId(TWO, CheckpointKind.CHECKPOINT),)


def test_a_drained_pipeline_is_not_flushed_before_its_sinks_turn() -> None:
    """An early recovery point would make nothing visible, and be followed by the next."""
    machine = completed(replace(QUICK, commit=CommitOptions(every_ms=60)))

    early = tell(machine, Drained(True, 59))
    due = tell(machine, Drained(True, 60))

    assert only(ReserveId, early) == ()
    assert len(only(ReserveId, due)) == 1


def test_a_pipeline_that_is_no_longer_drained_waits_for_the_interval() -> None:
    machine = completed(QUICK)
    tell(machine, Drained(True, 5), Drained(False, 6))

    assert tell(machine, Clock(900)) == ()


# -- collecting


def test_an_attempt_is_complete_when_all_steps_have_acknowledged() -> None:
    """Across the seeds: three different completion rules; here there is one."""
    machine = collecting()

    first, last = (tell(machine, acknowledgement) for acknowledgement in acknowledgements())

    assert first == (AnswerAck(ORDERS, ONE, AckResult.ACCEPTED),)
    assert last[0] == AnswerAck(TABLE, ONE, AckResult.ACCEPTED)
    assert [manifest.cut.checkpoint_id for manifest in only(PublishManifest, last)] == [1]


def test_participants_are_fixed_when_the_attempt_starts() -> None:
    """Seed 000 H10: a newcomer enlarged the set of a running attempt."""
    machine = collecting()

    assert machine.missing(ONE) == (ORDERS, TABLE)
    assert answers(machine, acknowledged(sink_snapshot(step=StepId("new")))) == [AckResult.UNKNOWN]
    assert machine.missing(ONE) == (ORDERS, TABLE)


def test_a_repeated_acknowledgement_does_not_count_twice() -> None:
    """Seed 000 H8."""
    machine = collecting()

    results = answers(machine, acknowledged(source_snapshot()), acknowledged(source_snapshot()))

    assert results == [AckResult.ACCEPTED, AckResult.DUPLICATE]
    assert machine.missing(ONE) == (TABLE,)


def test_an_acknowledgement_of_another_generation_never_counts() -> None:
    """Seed 000 C3."""
    machine = collecting()
    zombie = replace(source_snapshot(), generation=Generation(2))

    assert answers(machine, acknowledged(zombie)) == [AckResult.STALE_GENERATION]
    assert machine.missing(ONE) == (ORDERS, TABLE)


def test_an_acknowledgement_of_an_ended_attempt_is_not_credited_to_the_next() -> None:
    """Seed 001 C8 and 000 M15: reports carried no attempt."""
    machine = collecting(QUICK)
    tell(machine, declined(), Clock(200), reserved(2, 200))

    assert answers(machine, acknowledged(source_snapshot(1), 201)) == [AckResult.LATE]
    assert machine.missing(TWO) == (ORDERS, TABLE)


def test_an_acknowledgement_of_an_attempt_that_never_was_is_unknown() -> None:
    machine = collecting()

    results = answers(
        machine,
        acknowledged(source_snapshot(99)),
        acknowledged(sink_snapshot(99, step=StepId("ghost"))),
    )

    assert results == [AckResult.UNKNOWN, AckResult.UNKNOWN]


def test_an_acknowledgement_after_completion_is_late() -> None:
    machine = completed()

    assert answers(machine, acknowledged(source_snapshot())) == [AckResult.LATE]


def test_a_declined_attempt_ends_and_names_the_step() -> None:
    machine = collecting()

    commands = tell(machine, declined())

    assert commands == (
        EndAttempt(ONE, False, FailureReason.INFLIGHT_TOO_LARGE, "declined by table"),
    )
    assert machine.open_attempts == {}


@pytest.mark.parametrize(
    "event",
    [declined(7), declined(generation=Generation(2))],
    ids=["unknown attempt", "other generation"],
)
def test_a_decline_of_something_else_changes_nothing(event: Declined) -> None:
    """Invariant 1."""
    machine = collecting()

    assert tell(machine, event) == ()
    assert machine.open_attempts == {ONE: Phase.COLLECTING}


def test_a_decline_of_a_stranger_changes_nothing() -> None:
    """Invariant 2 and seed 000 H7: only participants have a say."""
    machine = collecting()

    assert tell(machine, declined(step=StepId("ghost"))) == ()
    assert machine.open_attempts == {ONE: Phase.COLLECTING}


@pytest.mark.parametrize("number", [ONE, None])
def test_an_attempt_can_be_cancelled_with_a_reason(number: CheckpointId | None) -> None:
    """Seed 000: `abort(reason)`. Without a number the only open attempt is meant."""
    machine = collecting()
    cancel = Cancelled(number, 5, "the disk is being replaced")

    assert tell(machine, cancel) == (
        EndAttempt(ONE, False, FailureReason.CANCELLED, "the disk is being replaced"),
        AnswerCancel(cancel, CancelResult.CANCELLED, ONE),
    )


def test_an_attempt_whose_number_is_being_taken_can_be_cancelled() -> None:
    machine = coordinator(QUICK)
    tell(machine, *opened())
    cancel = Cancelled(None, 1, "why")

    assert only(AnswerCancel, tell(machine, cancel)) == (
        AnswerCancel(cancel, CancelResult.CANCELLED, ONE),
    )
    assert tell(machine, reserved(1, 2)) == ()


def test_cancelling_nothing_changes_nothing() -> None:
    """Seed 000 M12: abort worked in any phase, also after completion."""
    machine = completed(QUICK)
    cancels = [Cancelled(number, 5) for number in (ONE, CheckpointId(9), None)]

    assert tell(machine, *cancels) == tuple(
        AnswerCancel(cancel, CancelResult.NOT_OPEN, cancel.checkpoint_id) for cancel in cancels
    )
    assert machine.completed_count == 1


def test_a_cancellation_without_a_number_is_refused_while_two_attempts_are_open() -> None:
    machine = two_collecting()
    cancel = Cancelled(None, 5)

    assert tell(machine, cancel) == (AnswerCancel(cancel, CancelResult.AMBIGUOUS, None),)
    assert set(machine.open_attempts) == {ONE, TWO}


def test_a_halted_coordinator_has_nothing_to_cancel() -> None:
    machine = collecting()
    tell(machine, Stop(1))
    cancel = Cancelled(None, 5)

    assert tell(machine, cancel) == (AnswerCancel(cancel, CancelResult.NOT_OPEN, None),)


def test_a_cancelled_attempt_is_no_failure_that_counts() -> None:
    """A person aborts for a reason of their own: no restart, no backoff."""
    machine = collecting(INTOLERANT)

    cancelled = tell(machine, Cancelled(ONE, 20))

    assert only(RestartPipeline, cancelled) == ()
    assert machine.wake_at_ms == QUICK.interval_ms


# -- a stop

LAST = CheckpointRequest(is_last=True)


def test_open_attempts_give_way_to_the_last_checkpoint_of_a_stop() -> None:
    """Whether an attempt is stuck or slow cannot be told; a stop waits for neither."""
    machine = two_collecting()

    commands = tell(machine, Requested(LAST, 50, at_once=True))

    assert commands[:3] == (
        AnswerRequest(LAST, RequestResult.QUEUED),
        EndAttempt(ONE, False, FailureReason.GAVE_WAY),
        EndAttempt(TWO, False, FailureReason.GAVE_WAY),
    )
    (started,) = only(ReserveId, commands)
    assert started.request == LAST


def test_the_last_checkpoint_of_a_stop_comes_before_all_that_wait_for_their_turn() -> None:
    limited = replace(QUICK, queue_limit=1)
    machine = deciding(limited)
    other = Requested(LAST, 2, at_once=True)
    tell(machine, requested(savepoint(), 1))

    commands = tell(machine, Requested(LAST, 2, at_once=True), other)

    assert commands == (
        AnswerRequest(LAST, RequestResult.QUEUED),
        AnswerRequest(LAST, RequestResult.QUEUE_FULL),
    )
    assert machine.open_attempts == {ONE: Phase.DECIDING}


def test_a_checkpoint_of_a_run_that_ends_by_itself_waits_for_its_turn() -> None:
    machine = collecting()

    commands = tell(machine, Requested(LAST, 50))

    assert commands == (AnswerRequest(LAST, RequestResult.QUEUED),)
    assert machine.open_attempts == {ONE: Phase.COLLECTING}


# -- deadlines


def test_an_attempt_expires_by_the_clock_alone() -> None:
    """Seed 000 H5 and 001 H9: a silent step stopped checkpointing for good."""
    machine = collecting(QUICK)

    before = tell(machine, Clock(499))
    after = tell(machine, Clock(500))

    assert before == ()
    assert after == (
        EndAttempt(ONE, False, FailureReason.EXPIRED, "no acknowledgement from orders, table"),
    )


def test_an_expired_attempt_names_only_the_silent_steps() -> None:
    """Seed 000 H6: the blame was inverted."""
    machine = collecting(QUICK)
    tell(machine, acknowledged(sink_snapshot(), 400))

    (end,) = tell(machine, Clock(500))

    assert end == EndAttempt(ONE, False, FailureReason.EXPIRED, "no acknowledgement from orders")


def test_the_reservation_counts_towards_the_deadline() -> None:
    machine = coordinator(QUICK)
    tell(machine, *opened())

    commands = tell(machine, Clock(500))

    why = "the store had not answered whether its number is taken"
    assert only(EndAttempt, commands) == (EndAttempt(ONE, False, FailureReason.EXPIRED, why),)
    assert tell(machine, reserved(1, 501)) == ()


def test_a_savepoint_has_a_deadline_of_its_own() -> None:
    """Rule F30."""
    machine = completed(QUICK)
    tell(machine, requested(savepoint(), 100), reserved(2, 100))

    assert tell(machine, Clock(5_099)) == ()
    assert len(only(EndAttempt, tell(machine, Clock(5_100)))) == 1


def test_a_decision_on_its_way_does_not_expire() -> None:
    """Rule F15."""
    machine = deciding(QUICK)

    assert tell(machine, Clock(999)) == ()
    assert machine.open_attempts == {ONE: Phase.DECIDING}


def test_a_decision_that_is_never_answered_ends_the_process() -> None:
    """Rule F15 and invariant 6: it may have been written or not, and nothing waits for ever."""
    machine = deciding(QUICK)

    assert machine.wake_at_ms == 1_000
    assert tell(machine, Clock(1_000)) == (Halt(HaltReason.OUTCOME_UNKNOWN),)


@pytest.mark.parametrize("number", [ONE, None])
def test_a_cancellation_of_a_decision_on_its_way_is_answered_as_too_late(
    number: CheckpointId | None,
) -> None:
    machine = deciding()
    cancel = Cancelled(number, 0, "why")

    assert tell(machine, cancel) == (AnswerCancel(cancel, CancelResult.TOO_LATE, ONE),)


@pytest.mark.parametrize("event", [declined(), Cancelled(ONE, 0), Stop(0)])
def test_a_decision_on_its_way_cannot_be_called_off(event: CoordinatorEvent) -> None:
    """Rule F15: announced as ended, and then the object appears."""
    machine = deciding()

    assert only(EndAttempt, tell(machine, event)) == ()
    assert machine.open_attempts == {ONE: Phase.DECIDING}


# -- deciding


def test_a_manifest_comes_before_the_decision_and_names_everything() -> None:
    """Invariant 7."""
    machine = collecting()

    commands = tell(machine, *acknowledgements())

    (publish,) = only(PublishManifest, commands)
    assert set(publish.cut.snapshots) == {ORDERS, TABLE}
    assert publish.cut.commit == {T: (committable(T, 0),)}


def test_a_published_manifest_is_decided_in_the_next_slot() -> None:
    """Rule F5: exactly last-read + 1."""
    machine = publishing()

    (create,) = tell(machine, published())

    assert isinstance(create, CreateDecision)
    assert (create.slot, create.manifest_sha256) == (2, "sha-1")
    assert create.cut.checkpoint_id == 1


def test_contradicting_snapshots_are_never_decided() -> None:
    """The cut equation, seed 000 C1."""
    machine = collecting()
    blind = replace(source_snapshot(), offsets={})

    commands = tell(machine, acknowledged(sink_snapshot()), acknowledged(blind))

    assert commands[-1] == EndAttempt(
        ONE,
        False,
        FailureReason.INCONSISTENT_CUT,
        "orders: a source's snapshot has no offsets",
    )


def test_a_manifest_that_cannot_be_written_fails_the_attempt() -> None:
    machine = publishing()

    commands = tell(machine, PublishFailed(ONE, 0))

    assert commands == (EndAttempt(ONE, False, FailureReason.STORE_FAILED),)


def test_the_reason_why_the_store_refused_a_manifest_is_reported() -> None:
    commands = tell(publishing(), PublishFailed(ONE, 0, "the disk is full"))

    assert commands == (EndAttempt(ONE, False, FailureReason.STORE_FAILED, "the disk is full"),)


def test_a_number_that_cannot_be_taken_fails_the_attempt() -> None:
    """A store that is full or away is reported; the attempt does not wait for its deadline."""
    machine = coordinator()
    tell(machine, *opened())

    commands = tell(machine, ReserveFailed(ONE, 0, "the disk is full"))

    assert commands == (EndAttempt(ONE, False, FailureReason.STORE_FAILED, "the disk is full"),)
    assert tell(machine, ReserveFailed(ONE, 1)) == ()


def test_a_number_that_was_taken_cannot_fail_any_more() -> None:
    assert "not allowed in COLLECTING" in refusal_of(collecting(), ReserveFailed(ONE, 0))


def test_a_step_says_why_it_declines() -> None:
    silent = declined()

    assert silent.detail == f"declined by {TABLE}"
    assert replace(silent, cause="the disk is full").detail == f"{TABLE}: the disk is full"


def test_a_written_decision_ends_the_attempt_and_lets_the_sinks_act() -> None:
    """Invariant 7: the steps are notified, then the sinks."""
    machine = deciding()

    commands = tell(machine, outcome())

    assert commands == (
        EndAttempt(ONE, True),
        CommitSink(PERMIT, T, (committable(T, 0),)),
    )
    assert [cut.checkpoint_id for cut in machine.completed] == [1]
    assert machine.completed_count == 1


def test_a_slot_that_is_taken_ends_the_process() -> None:
    """Rule F5: a claim took the slot that we wanted."""
    machine = deciding()

    commands = tell(machine, outcome(result=DecisionOutcome.TAKEN))

    assert commands == (Halt(HaltReason.FENCED),)
    assert machine.mode is Mode.HALTED


def test_an_unknown_outcome_ends_the_process() -> None:
    """Rule F15: only a new process that reads the log knows."""
    machine = deciding()

    commands = tell(machine, outcome(result=DecisionOutcome.UNKNOWN))

    assert commands == (Halt(HaltReason.OUTCOME_UNKNOWN),)


def test_answers_about_an_attempt_that_has_ended_are_ignored() -> None:
    machine = publishing(QUICK)
    tell(machine, Clock(500))

    assert tell(machine, published(1, 501), PublishFailed(ONE, 501), reserved(1, 501)) == ()


@pytest.mark.parametrize("at", [collecting, publishing, completed])
def test_an_unexpected_outcome_is_refused(at: Callable[[], Coordinator]) -> None:
    assert refusal_of(at(), outcome())


@pytest.mark.parametrize("result", [DecisionOutcome.TAKEN, DecisionOutcome.UNKNOWN])
def test_an_unexpected_bad_outcome_is_refused(result: DecisionOutcome) -> None:
    assert "not allowed in PUBLISHING" in refusal_of(publishing(), outcome(result=result))


def test_an_unexpected_manifest_is_refused() -> None:
    assert "not allowed in COLLECTING" in refusal_of(collecting(), published())


def test_a_manifest_is_not_decided_twice() -> None:
    assert "not allowed in DECIDING" in refusal_of(deciding(), published())


def test_a_failed_manifest_after_the_decision_was_issued_is_refused() -> None:
    """Rule F15."""
    assert "not allowed in DECIDING" in refusal_of(deciding(), PublishFailed(ONE, 0))


def test_a_failed_manifest_of_an_attempt_that_writes_none_is_refused() -> None:
    assert refusal_of(collecting(), PublishFailed(ONE, 0))


def test_a_number_is_reserved_once() -> None:
    assert "not allowed in COLLECTING" in refusal_of(collecting(), reserved())


@pytest.mark.parametrize("at", [collecting, deciding])
def test_a_number_that_was_reserved_is_not_taken_later(at: Callable[[], Coordinator]) -> None:
    """The machine is left as it was: the request is not queued a second time."""
    assert refusal_of(at(), reserved(won=False))


# -- committing


def test_a_commit_is_recorded_when_the_sinks_are_done() -> None:
    machine = committing()

    commands = tell(machine, sink_committed())

    assert commands == (RecordCommit(PERMIT, {T: "v2"}),)


def test_the_next_decision_waits_for_the_commit_of_the_last() -> None:
    """Rule F8 (b)."""
    machine = two_collecting()
    tell(machine, *acknowledgements(1, 11), published(1, 11), outcome(1, now_ms=11))

    waiting = tell(machine, *acknowledgements(2, 12, batch=1))
    committed = tell(machine, sink_committed(now_ms=13), recorded(now_ms=13))

    assert only(PublishManifest, waiting) == ()
    assert [manifest.cut.checkpoint_id for manifest in only(PublishManifest, committed)] == [2]


def test_a_cut_knows_what_was_visible_when_it_was_decided() -> None:
    machine = completed(QUICK)
    tell(machine, Clock(1_000), reserved(2, 1_000))

    commands = tell(machine, *acknowledgements(2, 1_001, batch=1))

    (publish,) = only(PublishManifest, commands)
    assert publish.cut.visible == {T: "v2"}


def test_a_sink_that_failed_is_asked_again_by_the_clock() -> None:
    machine = committing(replace(QUICK, commit=CommitOptions(retry_ms=20)))

    failed = tell(machine, sink_failed(now_ms=5))
    again = tell(machine, Clock(25))

    assert failed == ()
    assert again == (CommitSink(PERMIT, T, (committable(T, 0),)),)


def test_a_sink_that_failed_wakes_the_coordinator_for_its_repetition() -> None:
    """Rule F41: a driver that sleeps until `wake_at_ms` would repeat it an interval later."""
    machine = committing(replace(QUICK, commit=CommitOptions(retry_ms=20)))

    tell(machine, sink_failed(now_ms=5))

    assert machine.wake_at_ms == 25


def test_a_blocked_commit_is_reported_and_starts_no_attempt() -> None:
    """Rule F41."""
    machine = committing(replace(QUICK, commit=CommitOptions(budget_ms=0)))

    blocked = tell(machine, sink_failed(now_ms=5))
    later = tell(machine, Clock(1_000_000))

    assert blocked == (CommitBlocked(Slot(2), T, "table is locked"),)
    assert machine.committer_state is CommitterState.COMMIT_BLOCKED
    assert only(ReserveId, later) == ()


def test_a_blocked_commit_goes_on_by_itself() -> None:
    """Rule F41."""
    machine = committing(replace(QUICK, commit=CommitOptions(budget_ms=0)))
    tell(machine, sink_failed(now_ms=5))

    commands = tell(machine, sink_committed(now_ms=9), recorded(now_ms=9))

    assert commands == (RecordCommit(PERMIT, {T: "v2"}), CollectGarbage())
    assert machine.committer_state is CommitterState.IDLE


def test_a_commit_cannot_be_recorded_before_the_sinks_are_done() -> None:
    assert "have not committed" in refusal_of(committing(), recorded())


def test_a_recovery_point_commits_nothing() -> None:
    """Rule F3."""
    machine = collecting(topology=FAN)
    snapshots = fan_snapshots(batch=1, right_read=0)
    tell(machine, *acknowledgements(snapshots=snapshots), published())

    commands = tell(machine, outcome())

    assert only(CommitSink, commands) == ()
    assert machine.carries_output
    assert machine.completed[-1].carried == {T1: (committable(T1, 1),), T2: (committable(T2, 1),)}


def test_a_sink_that_another_process_rewound_ends_this_process() -> None:
    """Rule F41: no version may be recorded for a commit that never was."""
    machine = committing()

    commands = tell(machine, SinkFenced(Slot(2), T, 5))

    assert commands == (Halt(HaltReason.FENCED),)
    assert machine.mode is Mode.HALTED


def test_a_late_answer_about_a_recorded_commit_does_not_fence_the_process() -> None:
    """Invariant 1: a repeated commit of slot 2 that runs after slot 3 changes nothing."""
    machine = completed(QUICK)

    assert tell(machine, SinkFenced(Slot(2), T, 5)) == ()
    assert tell(machine, SinkBehind(Slot(2), T, 5)) == ()


def test_a_target_that_lacks_a_recorded_commit_ends_the_process() -> None:
    """Rule F43: nothing is committed on top of a gap."""
    machine = committing()

    commands = tell(machine, SinkBehind(Slot(2), T, 5))

    assert commands == (Halt(HaltReason.TARGET_BEHIND),)
    assert machine.mode is Mode.HALTED


# -- garbage


def test_what_a_predecessor_left_behind_is_collected_before_the_first_attempt() -> None:
    """Rule F7: under the same lock as attempts."""
    machine = coordinator()

    first = tell(machine, Clock(0), Clock(1))
    second = tell(machine, GarbageCollected(2))

    assert first == (CollectGarbage(),)
    assert second == (ReserveId(ONE, CheckpointKind.CHECKPOINT),)


def test_garbage_is_collected_after_the_commit() -> None:
    """Rule F8: prune never passes the commit floor."""
    machine = committing()

    before = tell(machine, sink_committed())
    after = tell(machine, recorded())

    assert CollectGarbage() not in before
    assert after == (CollectGarbage(),)


def test_no_attempt_starts_while_garbage_is_collected() -> None:
    """Rule F7: one lock."""
    machine = committing(QUICK)
    tell(machine, sink_committed(), recorded())

    during = tell(machine, requested(savepoint(), 2_000))
    after = tell(machine, GarbageCollected(2_001))

    assert only(ReserveId, during) == ()
    assert only(ReserveId, after) == (ReserveId(TWO, CheckpointKind.SAVEPOINT),)


def test_garbage_is_not_collected_while_an_attempt_is_open() -> None:
    """Rule F7: a second attempt may have skipped an upload."""
    machine = two_collecting()
    tell(machine, *acknowledgements(1, 11), published(1, 11), outcome(1, now_ms=11))

    committed = tell(machine, sink_committed(now_ms=12), recorded(now_ms=12))
    ended = tell(machine, declined(2, now_ms=13))

    assert CollectGarbage() not in committed
    assert CollectGarbage() in ended


# -- concurrent attempts


def test_two_attempts_may_be_open_at_once() -> None:
    """Seed 001 H9: `max_concurrent` was never read."""
    machine = two_collecting()

    assert machine.open_attempts == {ONE: Phase.COLLECTING, TWO: Phase.COLLECTING}
    assert tell(machine, Clock(100)) == ()


def test_attempts_take_their_numbers_one_at_a_time() -> None:
    """Invariant 8: a later number is not announced before an earlier one."""
    machine = coordinator(CONCURRENT)
    tell(machine, *opened())

    during = tell(machine, Clock(50))
    after = tell(machine, reserved(1, 60))

    assert during == ()
    assert [type(one) for one in after] == [StartAttempt, ReserveId]


@pytest.mark.parametrize("request_", [savepoint(), CheckpointRequest(drain=True)])
def test_nothing_starts_beside_a_savepoint(request_: CheckpointRequest) -> None:
    """Rule F30: a later checkpoint that is decided first would subsume it."""
    machine = completed(CONCURRENT)
    tell(machine, requested(request_, 20), reserved(2, 20))

    during = tell(machine, Clock(500))

    assert only(ReserveId, during) == ()
    assert machine.open_attempts == {TWO: Phase.COLLECTING}


def test_a_savepoint_may_start_beside_a_checkpoint() -> None:
    machine = collecting(CONCURRENT)

    commands = tell(machine, requested(savepoint(), 1))

    assert only(ReserveId, commands) == (ReserveId(TWO, CheckpointKind.SAVEPOINT),)


def test_a_later_attempt_that_is_decided_first_subsumes_the_earlier() -> None:
    """Invariant 8: decisions never go back in ids within a generation."""
    machine = two_collecting()
    tell(machine, *acknowledgements(2, 11), published(2, 11))

    commands = tell(machine, outcome(2, now_ms=12))

    assert commands[:2] == (
        EndAttempt(TWO, True),
        EndAttempt(ONE, False, FailureReason.SUBSUMED),
    )
    assert machine.open_attempts == {}


def test_an_earlier_attempt_that_is_decided_first_leaves_the_later_open() -> None:
    machine = two_collecting()
    tell(machine, *acknowledgements(1, 11), published(1, 11))

    tell(machine, outcome(1, now_ms=12))

    assert machine.open_attempts == {TWO: Phase.COLLECTING}


def test_one_attempt_is_decided_at_a_time_and_the_oldest_first() -> None:
    machine = two_collecting()
    first = tell(machine, *acknowledgements(2, 11), *acknowledgements(1, 12))

    second = tell(machine, PublishFailed(TWO, 13))

    assert [manifest.cut.checkpoint_id for manifest in only(PublishManifest, first)] == [2]
    assert [manifest.cut.checkpoint_id for manifest in only(PublishManifest, second)] == [1]


def test_an_attempt_that_expires_with_all_acknowledgements_blames_no_step() -> None:
    """Seed 000 H6: it waited for its turn after a decision on its way."""
    machine = two_collecting(replace(CONCURRENT, timeout_ms=100))
    tell(machine, *acknowledgements(1, 11), published(1, 11), *acknowledgements(2, 12, batch=1))

    (end,) = only(EndAttempt, tell(machine, Clock(110)))

    assert (end.checkpoint_id, end.reason) == (TWO, FailureReason.EXPIRED)
    assert "acknowledgement" not in end.detail


def test_an_attempt_whose_snapshots_contradict_holds_up_no_other() -> None:
    machine = two_collecting(replace(CONCURRENT, max_concurrent=3))
    tell(machine, Clock(20), reserved(3, 20))
    tell(machine, *acknowledgements(1, 21), published(1, 21), outcome(1, now_ms=21))
    blind = replace(source_snapshot(2, batch=1), offsets={})
    tell(machine, acknowledged(sink_snapshot(2, batch=1), 22), acknowledged(blind, 22))
    tell(machine, *acknowledgements(3, 23, batch=2), sink_committed(now_ms=24))

    commands = tell(machine, recorded(now_ms=25))

    assert [attempt.reason for attempt in only(EndAttempt, commands)] == [
        FailureReason.INCONSISTENT_CUT
    ]
    assert [manifest.cut.checkpoint_id for manifest in only(PublishManifest, commands)] == [3]


def test_every_open_attempt_expires_by_its_own_deadline() -> None:
    machine = two_collecting(replace(CONCURRENT, timeout_ms=100))

    first = tell(machine, Clock(100))
    second = tell(machine, Clock(110))

    assert [attempt.checkpoint_id for attempt in only(EndAttempt, first)] == [1]
    assert [attempt.checkpoint_id for attempt in only(EndAttempt, second)] == [2]


# -- ending


def test_too_many_failures_end_the_generation() -> None:
    machine = collecting(INTOLERANT)

    commands = tell(machine, declined())

    assert commands == (
        EndAttempt(ONE, False, FailureReason.INFLIGHT_TOO_LARGE, "declined by table"),
        RestartPipeline(FailureReason.INFLIGHT_TOO_LARGE, "declined by table"),
    )
    assert machine.mode is Mode.HALTED


def test_a_restart_ends_the_other_open_attempts_first() -> None:
    machine = two_collecting(replace(CONCURRENT, tolerable_failed=0, timeout_ms=100))

    commands = tell(machine, Clock(1_000))

    assert [type(command) for command in commands] == [EndAttempt, EndAttempt, RestartPipeline]
    assert [attempt.reason for attempt in only(EndAttempt, commands)] == [
        FailureReason.EXPIRED,
        FailureReason.STEP_FAILED,
    ]


def test_the_death_of_a_step_ends_the_generation() -> None:
    """Rule F10: no step restarts alone."""
    machine = collecting()

    commands = tell(machine, StepFailed(TABLE, 5))

    assert commands == (
        EndAttempt(ONE, False, FailureReason.STEP_FAILED),
        RestartPipeline(FailureReason.STEP_FAILED, "table failed"),
    )


def test_the_death_of_a_step_waits_for_a_decision_on_its_way() -> None:
    """Rule F10: end the attempt first, by its decision or without."""
    machine = deciding()

    during = tell(machine, StepFailed(TABLE, 5))
    commands = tell(machine, outcome())

    assert during == ()
    assert commands[0] == EndAttempt(ONE, True)
    assert only(RestartPipeline, commands) == ()


def test_a_restart_waits_for_sinks_that_are_busy() -> None:
    """Effects of one generation do not run beside those of the next."""
    machine = committing()

    during = tell(machine, StepFailed(TABLE, 5))
    after = tell(machine, sink_committed(), recorded())

    assert during == ()
    assert after[-1] == RestartPipeline(FailureReason.STEP_FAILED, "table failed")


def test_a_restart_does_not_wait_for_a_sink_that_is_blocked() -> None:
    """Recovery repeats what is decided and not committed."""
    machine = committing(replace(QUICK, commit=CommitOptions(budget_ms=0)))
    tell(machine, sink_failed(now_ms=5))

    assert tell(machine, StepFailed(TABLE, 6)) == (
        RestartPipeline(FailureReason.STEP_FAILED, "table failed"),
    )


def test_a_stop_takes_the_place_of_a_restart_that_has_not_come_yet() -> None:
    """A user who requests a stop does not get a restart."""
    machine = deciding()
    tell(machine, StepFailed(TABLE, 5), Stop(6))

    commands = tell(machine, outcome(), sink_committed(), recorded())

    assert commands[-1] == Halt(HaltReason.STOPPED)


def test_a_record_that_is_not_confirmed_is_requested_again() -> None:
    """Invariant 6: a lost answer must not hang the pipeline."""
    machine = committing(replace(QUICK, commit=CommitOptions(retry_ms=5, retry_max_ms=20)))
    (first,) = only(RecordCommit, tell(machine, sink_committed()))
    tell(machine, Clock(100))

    assert only(RecordCommit, tell(machine, Clock(119))) == ()
    assert only(RecordCommit, tell(machine, Clock(120))) == (first,)
    assert machine.wake_at_ms is not None


def test_stopping_fails_what_is_open_and_ends() -> None:
    machine = collecting()

    commands = tell(machine, Stop(5))

    assert commands == (
        EndAttempt(ONE, False, FailureReason.STOPPED),
        Halt(HaltReason.STOPPED),
    )


def test_stopping_waits_for_the_sinks_of_a_decision() -> None:
    machine = committing()

    waiting = tell(machine, Stop(5))
    recording = tell(machine, sink_committed(now_ms=6))
    commands = tell(machine, recorded(now_ms=7))

    assert waiting == ()
    assert recording == (RecordCommit(PERMIT, {T: "v2"}),)
    assert commands == (Halt(HaltReason.STOPPED),)


def test_stopping_does_not_wait_for_a_sink_that_is_blocked() -> None:
    """Rule F25: a stop has an end; recovery repeats the commit."""
    machine = committing(replace(QUICK, commit=CommitOptions(budget_ms=0)))
    tell(machine, sink_failed(now_ms=5))

    assert tell(machine, Stop(6)) == (Halt(HaltReason.STOPPED),)


def test_a_stop_that_waits_for_a_sink_gives_up_when_the_sink_is_blocked() -> None:
    """Rule F25 and F41: by the clock, also when the sink never answers."""
    machine = committing(replace(QUICK, commit=CommitOptions(budget_ms=60)))

    waiting = tell(machine, Stop(5))
    commands = tell(machine, Clock(60))

    assert waiting == ()
    assert commands == (
        CommitBlocked(Slot(2), T, "no answer yet"),
        Halt(HaltReason.STOPPED),
    )


def test_stopping_does_not_wait_for_a_record_that_the_store_does_not_take() -> None:
    """Rule F25: a stop has an end, also on a full disk; recovery repeats the commit."""
    machine = committing()
    tell(machine, sink_committed())

    waiting = tell(machine, Stop(5))
    commands = tell(machine, RecordFailed(Slot(2), "the disk is full", 6))

    assert waiting == ()
    assert commands == (
        CommitBlocked(Slot(2), None, "the disk is full"),
        Halt(HaltReason.STOPPED),
    )


@pytest.mark.parametrize("healed", [False, True])
def test_nothing_is_decided_before_the_record_of_the_last_commit(healed: bool) -> None:
    """Rule F8 (b); with the record, what has waited goes on by itself."""
    machine = two_collecting()
    tell(machine, *acknowledgements(1), published(), outcome(), sink_committed())
    tell(machine, RecordFailed(Slot(2), "the disk is full", 20), *acknowledgements(2, batch=1))

    commands = tell(machine, recorded(now_ms=30) if healed else Clock(30))

    assert len(only(PublishManifest, commands)) == healed


def test_a_stopping_pipeline_is_still_woken_for_its_sinks() -> None:
    """Rule F41: otherwise the stop would hang on a sink whose commit is not repeated."""
    machine = committing(replace(QUICK, commit=CommitOptions(retry_ms=20)))
    tell(machine, Stop(5), sink_failed(now_ms=6))

    assert machine.wake_at_ms == 26


def test_the_first_reason_to_end_stands() -> None:
    machine = deciding()
    tell(machine, Stop(5), StepFailed(TABLE, 6))

    commands = tell(machine, outcome(), sink_committed(), recorded())

    assert commands[-1] == Halt(HaltReason.STOPPED)


def test_a_pipeline_that_ends_takes_no_requests() -> None:
    machine = deciding()
    tell(machine, Stop(5))

    commands = tell(machine, requested(savepoint(), 6), Clock(1_000_000))

    assert commands == (AnswerRequest(savepoint(), RequestResult.NOT_RUNNING),)


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (Stop(5), Halt(HaltReason.STOPPED)),
        (StepFailed(TABLE, 5), RestartPipeline(FailureReason.STEP_FAILED, "table failed")),
    ],
)
def test_queued_requests_are_answered_when_the_pipeline_ends(
    event: CoordinatorEvent, end: CoordinatorCommand
) -> None:
    machine = deciding()
    tell(machine, requested(savepoint()), requested(CheckpointRequest()))

    commands = tell(machine, event)
    later = tell(machine, outcome(), sink_committed(), recorded())

    assert commands == (
        AnswerRequest(savepoint(), RequestResult.NOT_RUNNING),
        AnswerRequest(CheckpointRequest(), RequestResult.NOT_RUNNING),
    )
    assert later[-1] == end
    assert only(AnswerRequest, later) == ()


def test_queued_requests_are_answered_when_the_process_is_fenced_out() -> None:
    machine = deciding()
    tell(machine, requested(savepoint()))

    commands = tell(machine, outcome(result=DecisionOutcome.TAKEN))

    assert commands == (
        AnswerRequest(savepoint(), RequestResult.NOT_RUNNING),
        Halt(HaltReason.FENCED),
    )


def test_a_pipeline_that_ends_can_still_be_fenced() -> None:
    machine = deciding()
    tell(machine, Stop(5))

    assert tell(machine, outcome(result=DecisionOutcome.TAKEN)) == (Halt(HaltReason.FENCED),)


def test_a_halted_coordinator_answers_and_does_nothing() -> None:
    machine = deciding()
    tell(machine, outcome(result=DecisionOutcome.TAKEN))

    commands = tell(
        machine,
        acknowledged(source_snapshot()),
        requested(savepoint()),
        Clock(1_000_000),
        StepFailed(TABLE, 5),
    )

    assert commands == (
        AnswerAck(ORDERS, ONE, AckResult.LATE),
        AnswerRequest(savepoint(), RequestResult.NOT_RUNNING),
    )


# -- waking


def test_a_coordinator_is_begun_by_its_first_event_and_not_by_a_timer() -> None:
    assert coordinator().wake_at_ms is None


def test_a_coordinator_is_woken_by_the_deadline_of_an_open_attempt() -> None:
    machine = collecting(QUICK)

    assert machine.wake_at_ms == 500


def test_a_coordinator_is_woken_for_the_next_start() -> None:
    machine = completed(QUICK)

    assert machine.wake_at_ms == 1_000


def test_a_coordinator_is_not_woken_for_a_start_that_has_no_room() -> None:
    """An attempt that takes longer than the interval would keep its driver spinning."""
    machine = collecting(replace(QUICK, interval_ms=100))
    tell(machine, Clock(200))

    assert machine.wake_at_ms == 500


def test_a_coordinator_is_not_woken_for_a_flush_that_has_no_room() -> None:
    machine = collecting(QUICK)
    tell(machine, Drained(True, 50))

    assert machine.wake_at_ms == 500


def test_a_coordinator_is_not_woken_for_a_start_that_waits_for_a_number() -> None:
    """While the store is out of reach its driver would spin."""
    machine = coordinator(CONCURRENT)
    tell(machine, *opened(), Clock(50))

    assert machine.wake_at_ms is not None
    assert machine.wake_at_ms > 50


def test_a_coordinator_is_not_woken_for_a_start_that_waits_for_a_savepoint() -> None:
    machine = completed(CONCURRENT)
    tell(machine, requested(savepoint(), 20), reserved(2, 20), Clock(500))

    assert machine.wake_at_ms is not None
    assert machine.wake_at_ms > 500


def test_a_coordinator_is_not_woken_for_a_start_that_waits_for_sinks() -> None:
    machine = committing(QUICK)
    tell(machine, Clock(5_000))

    assert machine.wake_at_ms is None or machine.wake_at_ms > 5_000


def test_a_halted_coordinator_waits_for_nothing() -> None:
    machine = deciding()
    tell(machine, outcome(result=DecisionOutcome.TAKEN))

    assert machine.wake_at_ms is None


def test_the_participants_are_the_steps_of_the_topology() -> None:
    machine = collecting(replace(QUICK, unaligned=ALIGNED_ONLY))

    assert set(machine.missing(ONE)) == set(line_snapshots()) == LINE.participants


def test_sinks_that_have_waited_long_enough_get_a_cut_that_commits() -> None:
    """Rule F3: after so many recovery points the next barrier must not overtake data."""
    machine = completed(replace(QUICK, commit=CommitOptions(recovery_points_max=2)))
    machine._ledger._recovery_points = 2

    (reserve,) = only(ReserveId, tell(machine, Clock(100_000)))

    assert reserve.kind is CheckpointKind.FULL
