"""Where a barrier is at a step, as the status shows it."""

from cutwater.ids import CheckpointId
from cutwater.runtime.reporting.status import BarrierAt, StepTimes

ONE, TWO = CheckpointId(1), CheckpointId(2)


def test_a_barrier_is_awaited_then_aligned_then_sent() -> None:
    times = StepTimes()
    seen = [times.barrier(ONE)]
    times.on_seen(ONE)
    seen.append(times.barrier(ONE))
    times.on_emitted(ONE, 0)
    seen.append(times.barrier(ONE))

    assert seen == [BarrierAt.AWAITED, BarrierAt.ALIGNING, BarrierAt.SENT]
    assert times.barrier(TWO) is BarrierAt.AWAITED


def test_a_source_has_sent_what_it_never_saw_come() -> None:
    times = StepTimes()
    times.on_emitted(ONE, 0)
    assert times.barrier(ONE) is BarrierAt.SENT
