"""The schedule: it remembers what the choice of when to start depends on."""

from tests.unit.protocol.builders import savepoint

from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.checkpoint.schedule import Schedule
from cutwater.protocol.checkpoint.trigger import RequestResult, TriggerFacts
from cutwater.protocol.options import CheckpointOptions

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
    one.ask(savepoint("first"))
    one.ask(savepoint("second"))

    served = [one.started(0), one.started(0), one.started(0)]

    assert served == [savepoint("first"), savepoint("second"), CheckpointRequest()]


def test_a_request_beyond_the_limit_is_refused() -> None:
    """Invariant 12."""
    one = schedule()

    results = [one.ask(savepoint()), one.ask(savepoint()), one.ask(savepoint())]

    assert results == [RequestResult.QUEUED, RequestResult.QUEUED, RequestResult.QUEUE_FULL]


def test_a_request_that_gets_its_turn_back_is_first_again() -> None:
    one = schedule()
    one.ask(savepoint("first"))
    one.ask(savepoint("second"))

    one.ask_again(one.started(0))

    assert one.started(0) == savepoint("first")


def test_a_waiting_request_is_a_fact() -> None:
    one = schedule()

    before = one.facts(0, 0, ending=False).requested
    one.ask(savepoint())

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
