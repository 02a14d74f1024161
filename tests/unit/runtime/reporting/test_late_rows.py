"""Counting late rows, and where a barrier is: numbers for people, taken from aside."""

import threading

from cutwater.ids import CheckpointId
from cutwater.runtime.reporting.rates import LateRows
from cutwater.runtime.reporting.status import BarrierAt, StepTimes

ONE, TWO = CheckpointId(1), CheckpointId(2)


class Counted:
    """A step that notes that it was asked; the first time its query is just ending."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked_again = threading.Event()

    def count_late_rows(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the query has ended")
        self.asked_again.set()


def test_a_step_that_cannot_say_it_now_is_asked_again() -> None:
    step = Counted()
    late = LateRows(lambda: [step], every_s=0.001)
    late.start()
    try:
        assert step.asked_again.wait(30)
    finally:
        late.close()


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
