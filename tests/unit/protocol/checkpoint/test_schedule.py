"""When an attempt starts: the decision, and the schedule that remembers its facts."""

import pytest
from tests.unit.protocol.builders import savepoint

from cutwater.protocol.checkpoint.attempt import CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.checkpoint.schedule import Schedule, TriggerFacts, Verdict, decide, due_ms
from cutwater.protocol.options import CheckpointOptions, UnalignedOptions

EVERY_SECOND = CheckpointOptions(interval_ms=1_000, min_pause_ms=100)
TWO_OPEN = CheckpointOptions(
    interval_ms=1_000, min_pause_ms=100, max_concurrent=2, unaligned=UnalignedOptions(enabled=False)
)


def test_the_first_attempt_is_due_at_once() -> None:
    assert decide(TriggerFacts(now_ms=0), EVERY_SECOND) is Verdict.START


@pytest.mark.parametrize(("now_ms", "verdict"), [(1_999, Verdict.NOT_DUE), (2_000, Verdict.START)])
def test_an_attempt_is_due_an_interval_after_the_start_of_the_last(
    now_ms: int, verdict: Verdict
) -> None:
    facts = TriggerFacts(now_ms=now_ms, started_at_ms=1_000, ended_at_ms=1_200)

    assert decide(facts, EVERY_SECOND) is verdict


@pytest.mark.parametrize(("now_ms", "verdict"), [(2_499, Verdict.NOT_DUE), (2_500, Verdict.START)])
def test_a_long_attempt_is_followed_by_a_pause(now_ms: int, verdict: Verdict) -> None:
    """Rule F39: attempts back to back would hold the pipeline for ever."""
    facts = TriggerFacts(now_ms=now_ms, started_at_ms=1_000, ended_at_ms=2_400)

    assert decide(facts, EVERY_SECOND) is verdict


@pytest.mark.parametrize(("now_ms", "verdict"), [(1_449, Verdict.NOT_DUE), (1_450, Verdict.START)])
def test_a_failed_attempt_is_repeated_after_the_backoff(now_ms: int, verdict: Verdict) -> None:
    """Rule F39 and seed 000 M14: a failed attempt waited a full interval."""
    facts = TriggerFacts(
        now_ms=now_ms, started_at_ms=1_000, ended_at_ms=1_200, failure_pause_ms=250
    )

    assert decide(facts, EVERY_SECOND) is verdict


def test_a_backoff_longer_than_the_interval_is_waited_for() -> None:
    """Rule F39."""
    facts = TriggerFacts(now_ms=0, started_at_ms=0, ended_at_ms=10, failure_pause_ms=60_000)

    assert due_ms(facts, EVERY_SECOND) == 60_010


def test_a_backoff_shorter_than_the_pause_waits_for_the_pause() -> None:
    facts = TriggerFacts(now_ms=0, started_at_ms=0, ended_at_ms=10, failure_pause_ms=1)

    assert due_ms(facts, EVERY_SECOND) == 110


def test_the_attempt_after_a_backoff_is_not_followed_by_another_at_once() -> None:
    """Rule F39: the failure before it has been paid for; the interval counts again."""
    facts = TriggerFacts(
        now_ms=1_300,
        open_attempts=1,
        started_at_ms=1_250,
        ended_at_ms=1_000,
        failure_pause_ms=250,
    )

    assert decide(facts, TWO_OPEN) is Verdict.NOT_DUE


def test_a_request_waits_for_neither_interval_nor_pause_nor_backoff() -> None:
    facts = TriggerFacts(
        now_ms=1_201,
        started_at_ms=1_000,
        ended_at_ms=1_200,
        failure_pause_ms=60_000,
        requested=True,
    )

    assert decide(facts, EVERY_SECOND) is Verdict.START


def test_a_request_waits_for_room() -> None:
    """Rule F28: savepoints queue too."""
    facts = TriggerFacts(now_ms=9_000, open_attempts=1, started_at_ms=1_000, requested=True)

    assert decide(facts, EVERY_SECOND) is Verdict.TOO_MANY_OPEN


def test_as_many_attempts_may_be_open_as_the_option_says() -> None:
    """Seed 001 H9: `max_concurrent` and `interval` were never read."""
    facts = TriggerFacts(now_ms=9_000, open_attempts=1, started_at_ms=1_000)

    assert decide(facts, EVERY_SECOND) is Verdict.TOO_MANY_OPEN
    assert decide(facts, TWO_OPEN) is Verdict.START


def test_a_second_attempt_waits_for_the_interval_while_the_first_is_open() -> None:
    facts = TriggerFacts(now_ms=1_500, open_attempts=1, started_at_ms=1_000)

    assert decide(facts, TWO_OPEN) is Verdict.NOT_DUE


def test_nothing_starts_while_garbage_is_collected() -> None:
    """Rule F7: one lock for deleting and for attempts."""
    facts = TriggerFacts(now_ms=9_000, started_at_ms=1_000, requested=True, garbage=True)

    assert decide(facts, EVERY_SECOND) is Verdict.COLLECTING_GARBAGE


def test_nothing_starts_while_the_pipeline_ends() -> None:
    facts = TriggerFacts(now_ms=9_000, requested=True, ending=True)

    assert decide(facts, EVERY_SECOND) is Verdict.ENDING


def test_a_drained_pipeline_does_not_wait_for_the_interval() -> None:
    facts = TriggerFacts(now_ms=1_300, started_at_ms=1_000, ended_at_ms=1_200, drained=True)
    patient = CheckpointOptions(interval_ms=1_000, min_pause_ms=100, flush_when_drained=False)

    assert decide(facts, EVERY_SECOND) is Verdict.START
    assert decide(facts, patient) is Verdict.NOT_DUE


def test_a_drained_pipeline_still_pauses() -> None:
    """Rule F39."""
    facts = TriggerFacts(now_ms=1_250, started_at_ms=1_000, ended_at_ms=1_200, drained=True)

    assert decide(facts, EVERY_SECOND) is Verdict.NOT_DUE
    assert due_ms(facts, EVERY_SECOND) == 1_300


OPTIONS = CheckpointOptions(queue_limit=2, retry_ms=100, tolerable_failed=1)


def schedule() -> Schedule:
    """A schedule whose predecessor's garbage is collected."""
    fresh = Schedule(OPTIONS)
    fresh.collect()
    fresh.collected()
    return fresh


def test_a_generation_begins_with_its_predecessors_garbage() -> None:
    """Rule F7."""
    fresh = Schedule(OPTIONS)

    assert fresh.facts(7, 0, ending=False) == TriggerFacts(now_ms=7, garbage=True)


def test_requests_take_their_turns_in_order() -> None:
    one = schedule()
    one.enqueue(savepoint("first"))
    one.enqueue(savepoint("second"))

    served = [one.started(0), one.started(0), one.started(0)]

    assert served == [savepoint("first"), savepoint("second"), CheckpointRequest()]


def test_a_request_beyond_the_limit_is_refused() -> None:
    """Invariant 12."""
    one = schedule()

    results = [one.enqueue(savepoint()), one.enqueue(savepoint()), one.enqueue(savepoint())]

    assert results == [RequestResult.QUEUED, RequestResult.QUEUED, RequestResult.QUEUE_FULL]


def test_a_request_that_gets_its_turn_back_is_first_again() -> None:
    one = schedule()
    one.enqueue(savepoint("first"))
    one.enqueue(savepoint("second"))

    one.put_back(one.started(0))

    assert one.started(0) == savepoint("first")


def test_a_waiting_request_is_a_fact() -> None:
    one = schedule()

    before = one.facts(0, 0, ending=False).requested
    one.enqueue(savepoint())

    assert (before, one.facts(0, 0, ending=False).requested) == (False, True)


def test_starts_and_ends_are_remembered() -> None:
    one = schedule()
    one.started(10)
    one.ended(30)

    assert one.facts(40, 2, ending=True) == TriggerFacts(
        now_ms=40, open_attempts=2, started_at_ms=10, ended_at_ms=30, ending=True
    )


def test_without_a_time_the_facts_are_those_of_the_last_start() -> None:
    one = schedule()

    before = one.facts(None, 0, ending=False).now_ms
    one.started(10)

    assert (before, one.facts(None, 0, ending=False).now_ms) == (0, 10)


def test_a_start_serves_what_was_drained() -> None:
    one = schedule()
    one.drained = True

    before = one.facts(0, 0, ending=False).drained
    one.started(0)

    assert (before, one.facts(0, 0, ending=False).drained) == (True, False)


def test_failures_lengthen_the_pause_until_a_checkpoint() -> None:
    """Rule F39."""
    one = schedule()

    restarts = [one.failed(FailureReason.EXPIRED), one.failed(FailureReason.EXPIRED)]
    pause_ms = one.facts(0, 0, ending=False).failure_pause_ms
    one.completed()

    assert restarts == [False, True]
    assert (pause_ms, one.facts(0, 0, ending=False).failure_pause_ms) == (200, 0)


def test_a_checkpoint_makes_garbage_that_is_collected_once() -> None:
    """Rule F7."""
    one = schedule()
    one.completed()

    begun = [one.collect(), one.collect()]
    collecting = one.facts(0, 0, ending=False).garbage
    one.collected()

    assert begun == [True, False]
    assert (collecting, one.facts(0, 0, ending=False).garbage) == (True, False)
