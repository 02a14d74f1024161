"""The history of attempts: a waiter gets the attempt that serves it, and no other."""

import pytest
from tests.unit.store.checkpoint_writer import step_report

from cutwater.ids import CheckpointId, Generation, Slot, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CancelResult, CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.runtime.reporting.attempt_history import AbortWaiter, AttemptHistory
from cutwater.runtime.reporting.status import CheckpointReport

PLAIN = CheckpointRequest()
FULL = CheckpointRequest(CheckpointKind.FULL)
DRAIN = CheckpointRequest(drain=True)
LAST = CheckpointRequest(is_last=True)
SAVED = CheckpointRequest(CheckpointKind.SAVEPOINT, "saved")
OTHER = CheckpointRequest(CheckpointKind.SAVEPOINT, "other")


class Told(list[CheckpointReport]):
    """What the history has reported."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def book(told: Told) -> AttemptHistory:
    return AttemptHistory(told.append)


def begin(book: AttemptHistory, number: int, request: CheckpointRequest = PLAIN) -> None:
    book.on_command(events.ReserveId(CheckpointId(number), request.kind, request), {})


def decide(book: AttemptHistory, number: int, *, commit_point: bool = True) -> None:
    cut = Cut(
        CheckpointId(number),
        Generation(1),
        CheckpointKind.CHECKPOINT,
        {},
        commit_point=commit_point,
    )
    book.on_command(events.CreateDecision(Slot(number), cut, "sha"), {CheckpointId(number): 9})
    book.on_event(events.DecisionMade(CheckpointId(number), DecisionOutcome.WRITTEN, 0))


def fail(book: AttemptHistory, number: int, reason: FailureReason) -> None:
    book.on_command(events.EndAttempt(CheckpointId(number), False, reason, ""), {})


@pytest.mark.parametrize(
    ("waits_for", "served_by", "expected"),
    [
        (PLAIN, PLAIN, True),
        (PLAIN, FULL, True),
        (FULL, PLAIN, False),
        (PLAIN, SAVED, False),
        (SAVED, PLAIN, False),
        (SAVED, OTHER, False),
        (SAVED, SAVED, True),
        (DRAIN, PLAIN, False),
        (PLAIN, DRAIN, False),
        (DRAIN, DRAIN.standing_alone(), True),
        (LAST, PLAIN, False),
        (LAST, LAST.standing_alone(), True),
        (PLAIN, LAST, True),
    ],
)
def test_an_attempt_serves_the_requests_that_it_matches(
    waits_for: CheckpointRequest, served_by: CheckpointRequest, expected: bool
) -> None:
    assert waits_for.is_served_by(served_by) is expected


def test_a_savepoint_waits_for_its_own_attempt_and_for_its_commit(
    book: AttemptHistory, told: Told
) -> None:
    waiter = book.wait_for(SAVED)
    begin(book, 1)
    decide(book, 1)
    book.on_event(events.CommitRecorded(Slot(1), 0))
    begin(book, 2, SAVED)
    decide(book, 2)
    before_commit = waiter.done.is_set()
    book.on_event(events.CommitRecorded(Slot(2), 0))

    assert not before_commit
    assert waiter.report is not None
    assert (waiter.report.id, waiter.report.name, waiter.report.status) == (2, "saved", "COMPLETED")
    assert waiter.report.committed_ms is not None
    assert [(report.id, report.uploaded_bytes) for report in told] == [(1, 9), (2, 9)]


def test_a_recovery_point_is_reported_when_it_is_decided(book: AttemptHistory, told: Told) -> None:
    waiter = book.wait_for(PLAIN)
    begin(book, 1)
    decide(book, 1, commit_point=False)

    assert waiter.done.is_set()
    assert [(report.id, report.committed_ms) for report in told] == [(1, None)]


def test_an_attempt_that_fails_is_reported_with_its_steps(book: AttemptHistory, told: Told) -> None:
    book.generation = Generation(4)
    begin(book, 1)
    book.on_acknowledged(
        CheckpointId(1), StepId("orders"), lambda at: step_report(end_to_end_ms=at)
    )
    fail(book, 1, FailureReason.EXPIRED)
    book.on_acknowledged(CheckpointId(1), StepId("late"), lambda _: step_report())
    book.on_acknowledged(CheckpointId(9), StepId("unknown"), lambda _: step_report())

    (report,) = told
    assert (report.status, report.failure, report.generation) == (
        "FAILED",
        FailureReason.EXPIRED.sentence,
        4,
    )
    assert set(report.steps) == {"orders"}
    assert report.steps[StepId("orders")].end_to_end_ms == report.started_at_ms


def test_a_number_that_was_taken_does_not_cost_a_request_its_turn(book: AttemptHistory) -> None:
    waiter = book.wait_for(SAVED)
    begin(book, 1, SAVED)
    fail(book, 1, FailureReason.ID_TAKEN)
    still_waits = not waiter.done.is_set()
    begin(book, 2, SAVED)
    decide(book, 2, commit_point=False)

    assert still_waits
    assert waiter.report is not None
    assert waiter.report.id == 2


@pytest.mark.parametrize("result", [RequestResult.QUEUE_FULL, RequestResult.NOT_RUNNING])
def test_one_refusal_answers_one_waiter(book: AttemptHistory, result: RequestResult) -> None:
    first, second = book.wait_for(PLAIN), book.wait_for(PLAIN)
    book.on_reply(events.AnswerRequest(PLAIN, RequestResult.QUEUED))

    book.on_reply(events.AnswerRequest(PLAIN, result))

    assert (first.done.is_set(), second.done.is_set()) == (False, True)
    assert second.report is not None
    assert (second.report.status, bool(second.report.failure)) == ("FAILED", True)


def test_no_waiter_is_left_when_a_run_is_over(book: AttemptHistory, told: Told) -> None:
    waiting, open_one, decided = (book.wait_for(request) for request in (SAVED, FULL, OTHER))
    begin(book, 1, OTHER)
    decide(book, 1)
    begin(book, 2, FULL)

    book.abandon("the pipeline has ended")

    assert [waiter.report and waiter.report.status for waiter in (waiting, open_one, decided)] == [
        "FAILED",
        "FAILED",
        "COMPLETED",
    ]
    assert sorted(report.id for report in told) == [1, 2]
    # Once: what was told is not told again.
    book.abandon("again")
    assert len(told) == 2


# -- aborts


def abort(
    book: AttemptHistory, result: CancelResult, asked: int | None, meant: int | None
) -> AbortWaiter:
    """Request an abort, and let the coordinator answer it."""
    cancel = events.Cancelled(None if asked is None else CheckpointId(asked), 0, "why")
    waiter = book.wait_for_abort(cancel)
    number = None if meant is None else CheckpointId(meant)
    if result is CancelResult.CANCELLED:
        assert number is not None
        book.on_command(events.EndAttempt(number, False, FailureReason.CANCELLED, "why"), {})
    book.on_command(events.AnswerCancel(cancel, result, number), {})
    return waiter


def test_an_aborted_savepoint_gives_its_reason_to_its_waiter(
    book: AttemptHistory, told: Told
) -> None:
    waiter = book.wait_for(SAVED)
    begin(book, 1, SAVED)

    aborted = abort(book, CancelResult.CANCELLED, None, 1)

    assert aborted.done.is_set()
    assert aborted.report is not None
    assert (aborted.report.id, aborted.refusal) == (1, "")
    assert waiter.report is not None
    assert waiter.report.failure == "it was aborted on request (why)"
    assert [report.failure for report in told] == ["it was aborted on request (why)"]


@pytest.mark.parametrize(
    ("result", "asked", "meant", "said"),
    [
        (CancelResult.NOT_OPEN, None, None, "pending is 3 and 4"),
        (CancelResult.NOT_OPEN, 1, 1, "checkpoint 1 has already completed; pending is 3 and 4"),
        (CancelResult.NOT_OPEN, 2, 2, "has already failed: the pipeline stopped; pending is 3"),
        (CancelResult.NOT_OPEN, 9, 9, "checkpoint 9 is not pending; pending is 3 and 4"),
        (CancelResult.TOO_LATE, 3, 3, "checkpoint 3 is being decided, and only the outcome"),
        (CancelResult.AMBIGUOUS, None, None, "checkpoints 3 and 4 are pending; name one of them"),
    ],
)
def test_an_abort_that_is_refused_says_how_things_are(
    book: AttemptHistory, result: CancelResult, asked: int | None, meant: int | None, said: str
) -> None:
    begin(book, 1)
    decide(book, 1, commit_point=False)
    begin(book, 2)
    fail(book, 2, FailureReason.STOPPED)
    begin(book, 3)
    begin(book, 4)

    waiter = abort(book, result, asked, meant)

    assert waiter.done.is_set()
    assert (waiter.report, said in waiter.refusal) == (None, True)


def test_an_abort_is_refused_where_nothing_is_pending(book: AttemptHistory) -> None:
    assert abort(book, CancelResult.NOT_OPEN, None, None).refusal == "no checkpoint is pending"


def test_an_abort_that_is_never_sent_or_never_answered_is_refused(book: AttemptHistory) -> None:
    never_sent, never_answered = (book.wait_for_abort(events.Cancelled(None, 0)) for _ in range(2))

    book.refuse_abort(never_sent, "it does not run")
    book.abandon("it has ended")
    book.refuse_abort(never_answered, "too late")

    assert (never_sent.refusal, never_answered.refusal) == ("it does not run", "it has ended")
