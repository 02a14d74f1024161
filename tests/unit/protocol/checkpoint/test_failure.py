"""Failures in a row: which count, how long to pause, when to restart."""

import pytest

from cutwater.protocol.checkpoint.failure import FailureReason, FailureStreak, backoff_ms


def streak(tolerable: int | None = None) -> FailureStreak:
    return FailureStreak(tolerable, retry_ms=100, retry_max_ms=1_000)


def test_without_a_limit_a_failure_is_an_alarm_and_never_a_restart() -> None:
    one = streak()

    restarts = [one.failed(FailureReason.EXPIRED) for _ in range(50)]

    assert not any(restarts)


def test_more_failures_than_tolerable_ask_for_a_restart() -> None:
    one = streak(tolerable=2)

    restarts = [one.failed(FailureReason.EXPIRED) for _ in range(3)]

    assert restarts == [False, False, True]


def test_tolerating_nothing_restarts_at_the_first_failure() -> None:
    assert streak(tolerable=0).failed(FailureReason.STORE_FAILED)


def test_a_completed_attempt_ends_the_streak() -> None:
    one = streak(tolerable=1)
    one.failed(FailureReason.EXPIRED)

    one.completed()

    assert one.pause_ms == 0
    assert not one.failed(FailureReason.EXPIRED)


@pytest.mark.parametrize(
    "reason",
    [
        FailureReason.ID_TAKEN,
        FailureReason.SUBSUMED,
        FailureReason.CANCELLED,
        FailureReason.STOPPED,
    ],
)
def test_a_failure_without_a_fault_does_not_count(reason: FailureReason) -> None:
    one = streak(tolerable=0)

    assert not one.failed(reason)
    assert one.pause_ms == 0


def test_all_other_failures_count() -> None:
    counted = {reason for reason in FailureReason if reason.counted}

    assert counted == {
        FailureReason.EXPIRED,
        FailureReason.STEP_FAILED,
        FailureReason.SNAPSHOT_FAILED,
        FailureReason.INFLIGHT_TOO_LARGE,
        FailureReason.SINK_CANNOT_OVERTAKE,
        FailureReason.INCONSISTENT_CUT,
        FailureReason.STORE_FAILED,
    }


def test_every_reason_has_a_sentence_of_its_own() -> None:
    sentences = {reason.sentence for reason in FailureReason}

    assert len(sentences) == len(FailureReason)
    assert all(sentences)


def test_the_pause_doubles_with_every_failure_up_to_the_longest() -> None:
    """Rule F39."""
    pauses = [backoff_ms(failures, 100, 1_000) for failures in range(7)]

    assert pauses == [0, 100, 200, 400, 800, 1_000, 1_000]


def test_a_streak_pauses_as_long_as_its_failures_say() -> None:
    one = streak()

    one.failed(FailureReason.EXPIRED)
    one.failed(FailureReason.EXPIRED)

    assert one.pause_ms == 200


def test_the_pause_stays_bounded_after_any_number_of_failures() -> None:
    assert backoff_ms(10**9, 1, 60_000) == 60_000
