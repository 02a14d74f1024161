"""The options: each refuses values that cannot work, and each changes what the protocol does."""

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.unit.protocol.builders import (
    ALIGNED_ONLY,
    FORCED,
    PATIENT,
    A,
    aligner,
    barrier,
    collecting,
    committing,
    completed,
    coordinator,
    cut,
    decision,
    fan_snapshots,
    only,
    opened,
    requested,
    reserved,
    savepoint,
    seen,
    sink_failed,
    tell,
    two_collecting,
)

from cutwater.errors import ConfigError
from cutwater.ids import NO_BATCH, SinkId, Slot, StepId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.events import (
    AnswerRequest,
    Clock,
    Declined,
    Drained,
    EndAttempt,
    ReserveId,
    RestartPipeline,
)
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.checkpoint.ledger import CommitPace
from cutwater.protocol.commit import CommitBlocked, CommitSink, plan_commit
from cutwater.protocol.decisions import LogView
from cutwater.protocol.messages import Flag
from cutwater.protocol.options import MIB, CheckpointOptions, CommitOptions, UnalignedOptions
from cutwater.protocol.retention import kept, reusable
from cutwater.protocol.step.aligner_events import Captured, Emit, Tick

OPTIONS = CheckpointOptions(
    interval_ms=1_000,
    timeout_ms=500,
    savepoint_timeout_ms=5_000,
    min_pause_ms=10,
    retry_ms=100,
    retry_max_ms=400,
)
SINKS = (SinkId("t1"), SinkId("t2"))


def started_at(options: CheckpointOptions, *times_ms: int) -> list[int]:
    """At which of these times a coordinator that completed an attempt at 0 starts the next."""
    machine = completed(options)
    return [now for now in times_ms if only(ReserveId, tell(machine, Clock(now)))]


def retried_at(options: CheckpointOptions, failures: int, *times_ms: int) -> list[int]:
    """At which of these times after that many failures in a row, all at 0, an attempt starts."""
    machine = coordinator(options)
    tell(machine, *opened(), reserved(), failure())
    for number in range(2, failures + 1):
        tell(machine, requested(), reserved(number), failure(number))
    return [now for now in times_ms if only(ReserveId, tell(machine, Clock(now)))]


def failure(checkpoint_id: int = 1) -> Declined:
    """Step `table` declines."""
    of = barrier(checkpoint_id)
    return Declined(StepId("table"), of.epoch, of.checkpoint_id, FailureReason.SNAPSHOT_FAILED, 0)


# -- defaults and bad values


def test_the_defaults_are_those_of_the_documents_but_for_the_times_of_an_attempt() -> None:
    """Sinks become visible at checkpoints, so they come more often; batches take their time."""
    options = CheckpointOptions()

    assert (options.interval_ms, options.timeout_ms) == (10_000, 600_000)
    assert (options.max_concurrent, options.tolerable_failed) == (1, None)
    assert (options.unaligned.enabled, options.unaligned.forced) == (True, False)
    assert options.unaligned.alignment_timeout_ms == 10_000
    assert options.unaligned.max_inflight_bytes == 256 * MIB


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"interval_ms": 0}, "interval"),
        ({"timeout_ms": 0}, "timeout"),
        ({"savepoint_timeout_ms": 0}, "savepoint_timeout"),
        ({"min_pause_ms": 0}, "min_pause"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"tolerable_failed": -1}, "tolerable_failed"),
        ({"retry_ms": 0}, "retry"),
        ({"retry_ms": 10, "retry_max_ms": 9}, "retry_max"),
        ({"queue_limit": 0}, "queue_limit"),
        ({"retained": 0}, "retained"),
        ({"max_concurrent": 2}, "max_concurrent"),
    ],
)
def test_a_checkpoint_option_that_cannot_work_is_refused_by_name(
    values: dict[str, Any], option: str
) -> None:
    """Seed 000 M13 (`retained` 0 kept nothing) and rule F28, F39."""
    with pytest.raises(ConfigError) as caught:
        CheckpointOptions(**values)

    assert caught.value.option == option


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"alignment_timeout_ms": -1}, "unaligned.alignment_timeout"),
        ({"max_inflight_bytes": 0}, "unaligned.max_inflight_bytes"),
        ({"enabled": False, "forced": True}, "unaligned.forced"),
    ],
)
def test_an_unaligned_option_that_cannot_work_is_refused_by_name(
    values: dict[str, Any], option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        UnalignedOptions(**values)

    assert caught.value.option == option


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"retry_ms": 0}, "commit.retry"),
        ({"retry_ms": 10, "retry_max_ms": 9}, "commit.retry_max"),
        ({"budget_ms": -1}, "commit.budget"),
    ],
)
def test_a_commit_option_that_cannot_work_is_refused_by_name(
    values: dict[str, Any], option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        CommitOptions(**values)

    assert caught.value.option == option


def test_two_attempts_may_be_open_when_nothing_overtakes() -> None:
    """Rule F28."""
    options = CheckpointOptions(max_concurrent=2, unaligned=ALIGNED_ONLY)

    assert options.max_concurrent == 2


# -- every option changes something (seed 001 H9 and 002 H10: options that no code read)


def test_interval_says_when_the_next_attempt_starts() -> None:
    assert started_at(OPTIONS, 999, 1_000) == [1_000]
    assert started_at(replace(OPTIONS, interval_ms=300), 299, 300) == [300]


def test_timeout_says_when_an_attempt_expires() -> None:
    machine = collecting(replace(OPTIONS, timeout_ms=200))

    assert tell(machine, Clock(199)) == ()
    assert len(only(EndAttempt, tell(machine, Clock(200)))) == 1


def test_savepoint_timeout_says_when_a_savepoint_expires() -> None:
    machine = completed(replace(OPTIONS, savepoint_timeout_ms=700))
    tell(machine, requested(savepoint(), 20), reserved(2, 20))

    assert tell(machine, Clock(719)) == ()
    assert len(only(EndAttempt, tell(machine, Clock(720)))) == 1


def test_min_pause_keeps_attempts_apart() -> None:
    drained = replace(OPTIONS, min_pause_ms=70)
    machine = completed(drained)

    assert tell(machine, Drained(True, 69)) == ()
    assert len(only(ReserveId, tell(machine, Clock(70)))) == 1


def test_max_concurrent_says_how_many_attempts_may_be_open() -> None:
    assert len(two_collecting().open_attempts) == 2
    assert len(two_collecting(replace(OPTIONS, interval_ms=10)).open_attempts) == 1


@pytest.mark.parametrize(("tolerable", "restarts"), [(None, 0), (1, 0), (0, 1)])
def test_tolerable_failed_says_when_the_pipeline_restarts(
    tolerable: int | None, restarts: int
) -> None:
    machine = collecting(replace(OPTIONS, tolerable_failed=tolerable))

    assert len(only(RestartPipeline, tell(machine, failure()))) == restarts


def test_retry_says_when_a_failed_attempt_is_repeated() -> None:
    assert retried_at(OPTIONS, 1, 99, 100) == [100]
    assert retried_at(replace(OPTIONS, retry_ms=30), 1, 29, 30) == [30]


def test_retry_max_bounds_the_pause_after_failures() -> None:
    assert retried_at(OPTIONS, 5, 399, 400) == [400]
    assert retried_at(replace(OPTIONS, retry_max_ms=250), 5, 249, 250) == [250]


def test_queue_limit_says_how_many_requests_may_wait() -> None:
    machine = collecting(replace(OPTIONS, queue_limit=2))

    commands = tell(machine, requested(), requested(), requested())

    assert [request.result for request in only(AnswerRequest, commands)] == [
        RequestResult.QUEUED,
        RequestResult.QUEUED,
        RequestResult.QUEUE_FULL,
    ]


def test_retained_says_how_many_checkpoints_stay() -> None:
    log = LogView((decision(1), decision(2), decision(3)))

    assert kept(log, Slot(3), OPTIONS.retained) == log.decisions
    assert kept(log, Slot(3), replace(OPTIONS, retained=1).retained) == (decision(3),)


def test_retained_bounds_what_the_coordinator_remembers() -> None:
    machine = completed(replace(OPTIONS, retained=1))

    assert len(machine.completed) == 1


def test_incremental_says_whether_objects_are_reused() -> None:
    full = replace(OPTIONS, incremental=False)

    assert reusable((cut(),), barrier(), incremental=OPTIONS.incremental) != {}
    assert reusable((cut(),), barrier(), incremental=full.incremental) == {}


def test_flush_when_drained_starts_before_the_interval() -> None:
    eager, patient = completed(OPTIONS), completed(replace(OPTIONS, flush_when_drained=False))

    assert len(only(ReserveId, tell(eager, Drained(True, 10)))) == 1
    assert tell(patient, Drained(True, 10)) == ()


def test_unaligned_enabled_says_whether_a_step_may_overtake() -> None:
    overtaking, holding = aligner(A, options=PATIENT), aligner(A, options=ALIGNED_ONLY)

    assert len(only(Emit, tell(overtaking, seen(A, 1), Tick(100)))) == 1
    assert tell(holding, seen(A, 1), Tick(100)) == ()


def test_unaligned_forced_overtakes_at_the_first_barrier() -> None:
    forced, patient = aligner(A, options=FORCED), aligner(A, options=PATIENT)

    assert len(only(Emit, tell(forced, seen(A, 1)))) == 1
    assert tell(patient, seen(A, 1)) == ()


def test_alignment_timeout_says_when_a_step_overtakes() -> None:
    quick = aligner(A, options=UnalignedOptions(alignment_timeout_ms=20))
    slow = aligner(A, options=UnalignedOptions(alignment_timeout_ms=90))

    assert len(only(Emit, tell(quick, seen(A, 1), Tick(20)))) == 1
    assert tell(slow, seen(A, 1), Tick(20)) == ()


def test_max_inflight_bytes_says_how_much_may_be_recorded() -> None:
    wide = aligner(A, options=UnalignedOptions(forced=True, max_inflight_bytes=50))
    narrow = aligner(A, options=UnalignedOptions(forced=True, max_inflight_bytes=49))

    assert len(only(Captured, tell(wide, seen(A, 5)))) == 1
    assert tell(narrow, seen(A, 5)) == ()


def test_commit_unaligned_says_whether_tables_may_disagree() -> None:
    """Rule F3."""
    snapshots = fan_snapshots(batch=1, right_read=0)
    new = dict.fromkeys(snapshots, NO_BATCH)

    careful = plan_commit(snapshots, SINKS, {}, new, CommitOptions())
    careless = plan_commit(snapshots, SINKS, {}, new, CommitOptions(commit_unaligned=True))

    assert (careful.commit_point, careless.commit_point) == (False, True)


def test_commit_retry_says_when_a_sink_is_asked_again() -> None:
    machine = committing(replace(OPTIONS, commit=CommitOptions(retry_ms=40)))
    tell(machine, sink_failed())

    assert tell(machine, Clock(39)) == ()
    assert len(only(CommitSink, tell(machine, Clock(40)))) == 1


def test_commit_retry_max_bounds_the_pause_between_repetitions() -> None:
    options = CommitOptions(retry_ms=40, retry_max_ms=50)
    machine = committing(replace(OPTIONS, commit=options))
    tell(machine, sink_failed(), sink_failed(), sink_failed())

    assert tell(machine, Clock(49)) == ()
    assert len(only(CommitSink, tell(machine, Clock(50)))) == 1


def test_commit_every_lets_sinks_wait_for_their_turn() -> None:
    often, seldom = CommitPace(0), CommitPace(50)
    for pace in (often, seldom):
        pace.decided(replace(cut(1), started_at_ms=100))

    assert [pace.is_due(149) for pace in (often, seldom)] == [True, False]
    assert [pace.is_due(150) for pace in (often, seldom)] == [True, True]


def test_recovery_points_max_asks_for_a_cut_that_commits() -> None:
    """Rule F3: sinks that wait get a cut in which no step overtakes."""
    request = CheckpointRequest()

    assert request.standing_alone().flags == Flag.FULL_SNAPSHOT
    assert savepoint().standing_alone() == savepoint()


def test_commit_budget_says_when_a_commit_is_blocked() -> None:
    machine = committing(replace(OPTIONS, commit=CommitOptions(budget_ms=60)))

    within, past = tell(machine, sink_failed(now_ms=59)), tell(machine, sink_failed(now_ms=60))

    assert only(CommitBlocked, within) == ()
    assert len(only(CommitBlocked, past)) == 1


def test_every_option_is_shown_to_change_something() -> None:
    """A new option needs a test above that is named after it."""
    groups = (CheckpointOptions, UnalignedOptions, CommitOptions)
    options = {field.name for group in groups for field in fields(group)} - {"unaligned", "commit"}
    shown = " ".join(name for name in globals() if name.startswith("test_"))

    assert [option for option in options if option.removesuffix("_ms") not in shown] == []
