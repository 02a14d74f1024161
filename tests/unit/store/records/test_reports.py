"""Reports: written after the fact, replaced, trimmed, and lost without harm."""

import pytest
from tests.unit.store.checkpoint_writer import attempt_report
from tests.unit.store.cuts import PIPELINE

from cutwater.ids import CheckpointId, Generation
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.reports import RecoveryReport, Reports

PATHS = PipelinePaths(PIPELINE)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def reports(backend: MemoryBackend) -> Reports:
    return Reports(backend, PIPELINE)


def recovery(generation: int, first_batch_ms: int | None = 500) -> RecoveryReport:
    return RecoveryReport(
        generation=Generation(generation),
        checkpoint_id=CheckpointId(7),
        started_at_ms=1_700_000_000_000,
        reason="step totals failed",
        choose_ms=1,
        commit_replay_ms=20,
        fetch_ms=300,
        start_ms=4_000,
        first_batch_ms=first_batch_ms,
        repeated_commits=2,
        state_bytes=1024,
    )


def test_what_is_written_is_read_and_the_last_one_counts(reports: Reports) -> None:
    reports.write(attempt_report(3, failure="first"))
    reports.write(attempt_report(3, failure="second"))
    reports.write(recovery(2))

    assert reports.attempt(CheckpointId(3)) == attempt_report(3, failure="second")
    assert reports.recovery(Generation(2)) == recovery(2)


def test_a_report_that_is_lost_or_damaged_is_left_out(
    reports: Reports, backend: MemoryBackend
) -> None:
    for generation in (1, 2, 3):
        reports.write(recovery(generation))
    reports.write(attempt_report(3))
    backend.put(PATHS.recovery(Generation(2)), b"damaged")
    backend.put(PATHS.report(CheckpointId(3)), b"damaged")

    assert reports.attempt(CheckpointId(3)) is None
    assert reports.attempt(CheckpointId(4)) is None
    assert reports.recovery(Generation(4)) is None
    assert [recovery.generation for recovery in reports.recoveries()] == [1, 3]


def test_the_newest_of_each_kind_stay(reports: Reports, backend: MemoryBackend) -> None:
    for number in range(1, 6):
        reports.write(attempt_report(number))
        reports.write(recovery(number))

    assert reports.trim(2) == 6
    assert backend.list(PATHS.reports) == (
        PATHS.report(CheckpointId(4)),
        PATHS.report(CheckpointId(5)),
    )
    assert [recovery.generation for recovery in reports.recoveries()] == [4, 5]
    assert reports.trim(2) == 0


@pytest.mark.parametrize(("first_batch_ms", "total_ms"), [(500, 4_821), (None, 4_321)])
def test_a_recovery_ends_with_its_first_batch(first_batch_ms: int | None, total_ms: int) -> None:
    assert recovery(1, first_batch_ms).total_ms == total_ms
