"""Tasks as threads: what the driver relies on."""

import threading

from cutwater.tasks import THREADS

DEADLINE_S = 30.0


def test_an_inbox_keeps_the_order_and_does_not_wait_for_zero_seconds() -> None:
    inbox = THREADS.inbox()
    inbox.put(1)
    inbox.put(2)

    assert [inbox.get(0), inbox.get(DEADLINE_S), inbox.get(0), inbox.get(0.001)] == [
        1,
        2,
        None,
        None,
    ]


def test_a_lock_can_be_taken_again_by_its_holder_and_by_no_other() -> None:
    lock, taken, seen = THREADS.lock(), THREADS.event(), []

    def take() -> None:
        taken.set()
        with lock:
            seen.append("other")

    with lock, lock:
        task = THREADS.start(take, "other")
        assert taken.wait(DEADLINE_S)
        seen.append("holder")
    task.join(DEADLINE_S)

    assert seen == ["holder", "other"]


def test_a_condition_wakes_a_waiting_task() -> None:
    condition, ready = THREADS.condition(), THREADS.event()
    woken = []

    def wait() -> None:
        with condition:
            ready.set()
            woken.append(condition.wait(DEADLINE_S))

    task = THREADS.start(wait, "waiting")
    assert ready.wait(DEADLINE_S)
    with condition:
        condition.notify_all()
    task.join(DEADLINE_S)

    assert woken == [True]
    assert not task.is_alive()


def test_a_closed_pool_drops_what_has_not_begun_and_waits_for_the_rest() -> None:
    pool, begun, end = THREADS.pool(1, "effect"), threading.Event(), threading.Event()
    done = []

    def first() -> None:
        begun.set()
        end.wait(DEADLINE_S)
        done.append("first")

    pool.submit(first)
    pool.submit(lambda: done.append("second"))
    assert begun.wait(DEADLINE_S)
    THREADS.start(end.set, "end")
    pool.close()

    assert done[:1] == ["first"]
    assert begun.is_set()
