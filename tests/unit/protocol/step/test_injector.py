"""The injector: a barrier offered to a source is taken by that source once, or not at all."""

from tests.unit.protocol.builders import GENERATION, ORDERS, barrier, cancel, refusal

from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.step.injector import Injector


def injector(limit: int = 1) -> Injector:
    return Injector(ORDERS, GENERATION, limit)


def test_a_source_without_a_waiting_barrier_polls_nothing() -> None:
    handle = injector().poll_handle()

    assert handle.poll() is None


def test_an_offered_barrier_is_polled_exactly_once() -> None:
    source = injector()
    handle = source.poll_handle()
    source.offer(barrier(1))

    taken = [handle.poll(), handle.poll()]

    assert taken == [barrier(1), None]


def test_an_injector_has_one_handle_only() -> None:
    """Seed 003 C1: handles of one injector shared one barrier, so all but one missed it."""
    source = injector()
    source.poll_handle()

    assert "already has its handle" in refusal(source, source.poll_handle)


def test_a_waiting_barrier_is_never_replaced_by_a_newer_one() -> None:
    """Seed 003 C2: a newer trigger superseded the barrier that another source had emitted."""
    source = injector()
    source.offer(barrier(1))

    assert "the maximum" in refusal(source, lambda: source.offer(barrier(2)))
    assert source.poll_handle().poll() == barrier(1)


def test_barriers_of_concurrent_attempts_are_taken_in_order() -> None:
    source = injector(limit=2)
    handle = source.poll_handle()
    source.offer(barrier(1))
    source.offer(barrier(2))

    taken = [handle.poll(), handle.poll(), handle.poll()]

    assert taken == [barrier(1), barrier(2), None]


def test_a_barrier_is_not_offered_twice() -> None:
    source = injector()
    source.offer(barrier(4))
    source.poll_handle().poll()

    assert "is not newer" in refusal(source, lambda: source.offer(barrier(4)))


def test_an_older_barrier_is_not_offered_after_a_newer_one() -> None:
    source = injector(limit=2)
    source.offer(barrier(4))

    assert "is not newer" in refusal(source, lambda: source.offer(barrier(3)))


def test_a_barrier_of_another_generation_is_not_offered() -> None:
    """Seed 003 H5: the epoch was whatever the poller said."""
    source = injector()
    foreign = barrier(1, epoch=Generation(2))

    assert "runs generation 3" in refusal(source, lambda: source.offer(foreign))


def test_every_source_polls_the_epoch_that_the_coordinator_set() -> None:
    """Seed 003 H5: one checkpoint had another epoch at every source."""
    first, second = injector(), injector()
    first.offer(barrier(1))
    second.offer(barrier(1))

    taken = {first.poll_handle().poll(), second.poll_handle().poll()}

    assert taken == {barrier(1, epoch=GENERATION)}


def test_a_cancel_is_never_injected() -> None:
    source = injector()

    assert "never injected" in refusal(source, lambda: source.offer(cancel(1)))


def test_a_waiting_barrier_can_be_withdrawn() -> None:
    """Seed 003 H6: a barrier of an ended attempt stayed until the source polled."""
    source = injector()
    source.offer(barrier(1))

    source.withdraw(CheckpointId(1))

    assert source.poll_handle().poll() is None


def test_only_the_named_barrier_is_withdrawn() -> None:
    source = injector(limit=2)
    source.offer(barrier(1))
    source.offer(barrier(2))

    source.withdraw(CheckpointId(2))

    assert source.waiting == 1
    assert source.poll_handle().poll() == barrier(1)


def test_withdrawing_a_barrier_that_was_taken_changes_nothing() -> None:
    source = injector()
    source.offer(barrier(1))
    handle = source.poll_handle()
    handle.poll()
    source.offer(barrier(2))

    source.withdraw(CheckpointId(1))

    assert handle.poll() == barrier(2)


def test_withdrawing_makes_room_for_a_newer_barrier_only() -> None:
    source = injector()
    source.offer(barrier(1))
    source.withdraw(CheckpointId(1))

    assert "is not newer" in refusal(source, lambda: source.offer(barrier(1)))

    source.offer(barrier(2))
    assert source.waiting == 1
