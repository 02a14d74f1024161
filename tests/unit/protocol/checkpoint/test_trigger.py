"""When an attempt starts: interval, pause, backoff, room, requests, garbage."""

import pytest

from cutwater.protocol.checkpoint.trigger import TriggerFacts, Verdict, decide, due_ms
from cutwater.protocol.options import CheckpointOptions, UnalignedOptions

OPTIONS = CheckpointOptions(interval_ms=1_000, min_pause_ms=100)
TWO_OPEN = CheckpointOptions(
    interval_ms=1_000, min_pause_ms=100, max_concurrent=2, unaligned=UnalignedOptions(enabled=False)
)


def test_the_first_attempt_is_due_at_once() -> None:
    assert decide(TriggerFacts(now_ms=0), OPTIONS) is Verdict.START


@pytest.mark.parametrize(("now_ms", "verdict"), [(1_999, Verdict.NOT_DUE), (2_000, Verdict.START)])
def test_an_attempt_is_due_an_interval_after_the_start_of_the_last(
    now_ms: int, verdict: Verdict
) -> None:
    facts = TriggerFacts(now_ms=now_ms, started_at_ms=1_000, ended_at_ms=1_200)

    assert decide(facts, OPTIONS) is verdict


@pytest.mark.parametrize(("now_ms", "verdict"), [(2_499, Verdict.NOT_DUE), (2_500, Verdict.START)])
def test_a_long_attempt_is_followed_by_a_pause(now_ms: int, verdict: Verdict) -> None:
    """Rule F39: attempts back to back would hold the pipeline for ever."""
    facts = TriggerFacts(now_ms=now_ms, started_at_ms=1_000, ended_at_ms=2_400)

    assert decide(facts, OPTIONS) is verdict


@pytest.mark.parametrize(("now_ms", "verdict"), [(1_449, Verdict.NOT_DUE), (1_450, Verdict.START)])
def test_a_failed_attempt_is_repeated_after_the_backoff(now_ms: int, verdict: Verdict) -> None:
    """Rule F39 and seed 000 M14: a failed attempt waited a full interval."""
    facts = TriggerFacts(
        now_ms=now_ms, started_at_ms=1_000, ended_at_ms=1_200, failure_pause_ms=250
    )

    assert decide(facts, OPTIONS) is verdict


def test_a_backoff_longer_than_the_interval_is_waited_for() -> None:
    """Rule F39."""
    facts = TriggerFacts(now_ms=0, started_at_ms=0, ended_at_ms=10, failure_pause_ms=60_000)

    assert due_ms(facts, OPTIONS) == 60_010


def test_a_backoff_shorter_than_the_pause_waits_for_the_pause() -> None:
    facts = TriggerFacts(now_ms=0, started_at_ms=0, ended_at_ms=10, failure_pause_ms=1)

    assert due_ms(facts, OPTIONS) == 110


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

    assert decide(facts, OPTIONS) is Verdict.START


def test_a_request_waits_for_room() -> None:
    """Rule F28: savepoints queue too."""
    facts = TriggerFacts(now_ms=9_000, open_attempts=1, started_at_ms=1_000, requested=True)

    assert decide(facts, OPTIONS) is Verdict.TOO_MANY_OPEN


def test_as_many_attempts_may_be_open_as_the_option_says() -> None:
    """Seed 001 H9: `max_concurrent` and `interval` were never read."""
    facts = TriggerFacts(now_ms=9_000, open_attempts=1, started_at_ms=1_000)

    assert decide(facts, OPTIONS) is Verdict.TOO_MANY_OPEN
    assert decide(facts, TWO_OPEN) is Verdict.START


def test_a_second_attempt_waits_for_the_interval_while_the_first_is_open() -> None:
    facts = TriggerFacts(now_ms=1_500, open_attempts=1, started_at_ms=1_000)

    assert decide(facts, TWO_OPEN) is Verdict.NOT_DUE


def test_nothing_starts_while_garbage_is_collected() -> None:
    """Rule F7: one lock for deleting and for attempts."""
    facts = TriggerFacts(now_ms=9_000, started_at_ms=1_000, requested=True, garbage=True)

    assert decide(facts, OPTIONS) is Verdict.COLLECTING_GARBAGE


def test_nothing_starts_while_the_pipeline_ends() -> None:
    facts = TriggerFacts(now_ms=9_000, requested=True, ending=True)

    assert decide(facts, OPTIONS) is Verdict.ENDING


def test_a_drained_pipeline_does_not_wait_for_the_interval() -> None:
    facts = TriggerFacts(now_ms=1_300, started_at_ms=1_000, ended_at_ms=1_200, drained=True)
    patient = CheckpointOptions(interval_ms=1_000, min_pause_ms=100, flush_when_drained=False)

    assert decide(facts, OPTIONS) is Verdict.START
    assert decide(facts, patient) is Verdict.NOT_DUE


def test_a_drained_pipeline_still_pauses() -> None:
    """Rule F39."""
    facts = TriggerFacts(now_ms=1_250, started_at_ms=1_000, ended_at_ms=1_200, drained=True)

    assert decide(facts, OPTIONS) is Verdict.NOT_DUE
    assert due_ms(facts, OPTIONS) == 1_300
