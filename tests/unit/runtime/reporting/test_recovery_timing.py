"""Phases of a recovery and times of a step: what is counted where, and nothing twice."""

import time

from cutwater.clock import now_ms
from cutwater.ids import NO_SLOT, BatchId, CheckpointId, Generation, StepId
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.recovery import Restore
from cutwater.runtime.reporting.recovery_timing import Phase, Phases
from cutwater.runtime.reporting.status import StepTimes

ONE = CheckpointId(1)
SNAPSHOT = StepSnapshot(
    StepId("orders"), ONE, Generation(1), BatchId(3), state=(BlobRef("a", 5, "x"),)
)
CUT = Cut(ONE, Generation(1), CheckpointKind.CHECKPOINT, {SNAPSHOT.step: SNAPSHOT})


def test_what_runs_inside_a_phase_counts_for_itself_only() -> None:
    phases = Phases("a step failed")
    began_s = time.monotonic()
    with phases.during(Phase.START):
        with phases.during(Phase.FETCH):
            time.sleep(0.05)
        with phases.during(Phase.FETCH):
            time.sleep(0.05)
    took_ms = (time.monotonic() - began_s) * 1000

    report = phases.report(Restore(Generation(2), CUT, Standing(slot=NO_SLOT)))

    assert (report.generation, report.checkpoint_id, report.reason) == (2, 1, "a step failed")
    assert report.state_bytes == 5
    assert report.fetch_ms >= 99
    assert report.fetch_ms + report.start_ms <= took_ms + 2
    assert report.first_batch_ms is None
    assert (report.choose_ms, report.commit_replay_ms) == (0, 0)


def test_the_first_batch_counts_from_the_end_of_the_start() -> None:
    phases = Phases()
    with phases.during(Phase.START):
        time.sleep(0.02)
    time.sleep(0.03)
    phases.first_batch()

    report = phases.report(Restore(Generation(1), None, Standing(slot=NO_SLOT)))

    assert report.checkpoint_id is None
    assert report.first_batch_ms is not None
    assert report.first_batch_ms >= 29
    assert report.total_ms >= 49


def test_a_step_is_timed_from_the_start_of_its_attempt() -> None:
    times, started_at_ms = StepTimes(), now_ms() - 1000
    times.on_seen(ONE)
    time.sleep(0.03)
    times.on_seen(ONE)
    times.on_emitted(ONE, 5)
    times.on_pinned(ONE, now_ms() - 10)
    times.on_storing(ONE)
    times.on_uploaded(ONE, 42)

    report = times.report(SNAPSHOT, started_at_ms)

    assert report.start_delay_ms >= 1000
    assert report.alignment_ms >= 29
    assert report.sync_ms >= 10
    assert report.async_ms >= 0
    assert report.end_to_end_ms >= report.start_delay_ms + report.alignment_ms
    assert (report.uploaded_bytes, report.state_bytes, report.in_flight_bytes) == (42, 5, 0)


def test_an_attempt_that_is_over_is_forgotten_with_those_before_it() -> None:
    times = StepTimes()
    times.on_seen(ONE)
    times.on_seen(CheckpointId(2))
    times.forget(CheckpointId(2))
    times.on_uploaded(ONE, 42)

    report = times.report(SNAPSHOT, now_ms())

    assert (report.uploaded_bytes, report.alignment_ms) == (0, 0)
