"""The book of attempts: whoever waits hears of the attempt that serves him, and of no other."""

import pytest
from tests.unit.store.made import step_report

from cutwater.ids import CheckpointId, Generation, Slot, StepId
from cutwater.protocol import coordinator_events as events
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.failure import FailureReason
from cutwater.protocol.pending import CheckpointRequest
from cutwater.protocol.trigger import RequestResult
from cutwater.spark.attempts import AttemptBook, Waiter
from cutwater.spark.progress import CheckpointReport

PLAIN = CheckpointRequest()
FULL = CheckpointRequest(CheckpointKind.FULL)
DRAIN = CheckpointRequest(drain=True)
LAST = CheckpointRequest(is_last=True)
SAVED = CheckpointRequest(CheckpointKind.SAVEPOINT, "saved")
OTHER = CheckpointRequest(CheckpointKind.SAVEPOINT, "other")


class Told(list[CheckpointReport]):
    """What the book has told."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def book(told: Told) -> AttemptBook:
    return AttemptBook(told.append)


def begin(book: AttemptBook, number: int, request: CheckpointRequest = PLAIN) -> None:
    book.ordered(events.ReserveId(CheckpointId(number), request.kind, request), {})


def decide(book: AttemptBook, number: int, *, commit_point: bool = True) -> None:
    cut = Cut(
        CheckpointId(number),
        Generation(1),
        CheckpointKind.CHECKPOINT,
        {},
        commit_point=commit_point,
    )
    book.ordered(events.CreateDecision(Slot(number), cut, "sha"), {CheckpointId(number): 9})
    book.heard(events.DecisionMade(CheckpointId(number), DecisionOutcome.WRITTEN, 0))


def fail(book: AttemptBook, number: int, reason: FailureReason) -> None:
    book.ordered(events.EndAttempt(CheckpointId(number), False, reason, ""), {})


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
def test_an_attempt_serves_those_who_asked_for_what_it_is(
    waits_for: CheckpointRequest, served_by: CheckpointRequest, expected: bool
) -> None:
    assert Waiter(waits_for).is_served_by(served_by) is expected


def test_a_savepoint_waits_for_its_own_attempt_and_for_its_commit(
    book: AttemptBook, told: Told
) -> None:
    waiter = book.wait_for(SAVED)
    begin(book, 1)
    decide(book, 1)
    book.heard(events.CommitRecorded(Slot(1), 0))
    begin(book, 2, SAVED)
    decide(book, 2)
    before_commit = waiter.done.is_set()
    book.heard(events.CommitRecorded(Slot(2), 0))

    assert not before_commit
    assert waiter.report is not None
    assert (waiter.report.id, waiter.report.name, waiter.report.status) == (2, "saved", "COMPLETED")
    assert waiter.report.committed_ms is not None
    assert [(one.id, one.uploaded_bytes) for one in told] == [(1, 9), (2, 9)]


def test_a_recovery_point_is_told_of_when_it_is_decided(book: AttemptBook, told: Told) -> None:
    waiter = book.wait_for(PLAIN)
    begin(book, 1)
    decide(book, 1, commit_point=False)

    assert waiter.done.is_set()
    assert [(one.id, one.committed_ms) for one in told] == [(1, None)]


def test_an_attempt_that_fails_is_told_of_with_its_steps(book: AttemptBook, told: Told) -> None:
    book.generation = Generation(4)
    begin(book, 1)
    book.acknowledged(CheckpointId(1), StepId("orders"), lambda at: step_report(end_to_end_ms=at))
    fail(book, 1, FailureReason.EXPIRED)
    book.acknowledged(CheckpointId(1), StepId("late"), lambda _: step_report())
    book.acknowledged(CheckpointId(9), StepId("unknown"), lambda _: step_report())

    (report,) = told
    assert (report.status, report.failure, report.generation) == (
        "FAILED",
        FailureReason.EXPIRED.sentence,
        4,
    )
    assert set(report.steps) == {"orders"}
    assert report.steps[StepId("orders")].end_to_end_ms == report.started_at_ms


def test_a_number_that_was_taken_does_not_cost_a_request_its_turn(book: AttemptBook) -> None:
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
def test_one_refusal_answers_one_who_waits(book: AttemptBook, result: RequestResult) -> None:
    first, second = book.wait_for(PLAIN), book.wait_for(PLAIN)
    book.answered(events.AnswerRequest(PLAIN, RequestResult.QUEUED))

    book.answered(events.AnswerRequest(PLAIN, result))

    assert (first.done.is_set(), second.done.is_set()) == (False, True)
    assert second.report is not None
    assert (second.report.status, bool(second.report.failure)) == ("FAILED", True)


def test_nobody_waits_for_a_run_that_is_over(book: AttemptBook, told: Told) -> None:
    waiting, open_one, decided = (book.wait_for(one) for one in (SAVED, FULL, OTHER))
    begin(book, 1, OTHER)
    decide(book, 1)
    begin(book, 2, FULL)

    book.abandon("the pipeline has ended")

    assert [one.report and one.report.status for one in (waiting, open_one, decided)] == [
        "FAILED",
        "FAILED",
        "COMPLETED",
    ]
    assert sorted(one.id for one in told) == [1, 2]
    # Once: what was told is not told again.
    book.abandon("again")
    assert len(told) == 2
