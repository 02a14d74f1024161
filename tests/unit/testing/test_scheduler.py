"""Simulated tasks: one at a time, in an order that the seed decides, until they are killed."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cutwater.testing.simulation.scheduler import Killed, Scheduler, SimulatedTasks


class World:
    """A scheduler with one process."""

    def __init__(self, seed: int = 0) -> None:
        self.died: list[BaseException] = []
        self.scheduler = Scheduler(random.Random(seed), lambda _, error: self.died.append(error))
        self.owner = SimpleNamespace(alive=True, paused=False)
        self.tasks = SimulatedTasks(self.scheduler, self.owner)

    def run(self) -> None:
        """Run until nothing is ready and no timer is left."""
        for _ in range(1000):
            if self.scheduler.step() is None:
                timer_ms = self.scheduler.next_timer_ms()
                if timer_ms is None:
                    return
                self.scheduler.now_ms = timer_ms
        raise AssertionError("it never ends")


@pytest.fixture
def world() -> World:
    return World()


def test_a_lock_keeps_other_tasks_out_while_its_holder_gives_way(world: World) -> None:
    lock, seen = world.tasks.lock(), []

    def task(name: str) -> Callable[[], None]:
        def run() -> None:
            with lock, lock:
                seen.append(name)
                world.scheduler.switch()
                seen.append(name)

        return run

    for name in "abc":
        world.tasks.start(task(name), name)
    world.run()

    assert seen[0::2] == seen[1::2]
    assert sorted(seen[0::2]) == ["a", "b", "c"]


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), []

        def task(number: int) -> Callable[[], None]:
            def run() -> None:
                for _ in range(5):
                    world.scheduler.switch()
                    seen.append(number)

            return run

        for number in range(4):
            world.tasks.start(task(number), str(number))
        world.run()
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_wait_ends_with_its_event_or_its_timeout(world: World) -> None:
    event, seen = world.tasks.event(), []
    world.tasks.start(lambda: seen.append(("late", event.wait(0.1))), "late")
    world.run()
    world.tasks.start(lambda: seen.append(("in time", event.wait(100))), "in time")
    world.tasks.start(event.set, "set")
    world.run()

    assert seen == [("late", False), ("in time", True)]
    assert world.scheduler.now_ms == 100


def test_an_inbox_wakes_its_reader_and_gives_up_after_the_timeout(world: World) -> None:
    inbox, seen = world.tasks.inbox(), []

    def read() -> None:
        seen.extend([inbox.get(10), inbox.get(0.05), inbox.get(0)])

    world.tasks.start(read, "reader")
    world.tasks.start(lambda: inbox.put("item"), "writer")
    world.run()

    assert seen == ["item", None, None]


def test_a_condition_gives_its_lock_away_while_it_waits(world: World) -> None:
    condition, seen = world.tasks.condition(), []

    def wait() -> None:
        with condition:
            seen.append("waits")
            seen.append(str(condition.wait(10)))

    def notify() -> None:
        while not seen:
            world.scheduler.switch()
        with condition:
            seen.append("notifies")
            condition.notify_all()

    world.tasks.start(wait, "waiting")
    world.tasks.start(notify, "notifying")
    world.run()

    assert seen == ["waits", "notifies", "True"]


def test_a_pool_runs_no_more_tasks_than_it_has_workers(world: World) -> None:
    running, most, done = [0], [0], []
    pool = world.tasks.pool(2, "effect")

    def work(number: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        world.scheduler.switch()
        running[0] -= 1
        done.append(number)

    def submit() -> None:
        for number in range(6):
            pool.submit(lambda number=number: work(number))  # type: ignore[misc]

    world.tasks.start(submit, "submit")
    world.run()

    assert sorted(done) == list(range(6))
    assert most == [2]


def test_a_killed_process_can_do_nothing_more_whatever_its_code_catches(world: World) -> None:
    event, done = world.tasks.event(), []

    def stubborn() -> None:
        try:
            event.wait(None)
        except BaseException:  # noqa: BLE001 - as a driver that catches everything
            done.append("caught")
            world.scheduler.switch()
            done.append("went on")

    task = world.tasks.start(stubborn, "stubborn")
    world.tasks.start(lambda: done.append("never ran"), "new")
    world.scheduler.step()
    world.scheduler.step()
    done.clear()
    world.owner.alive = False
    world.scheduler.kill(world.owner)
    world.run()

    assert done in (["caught"], [])
    assert not task.is_alive()
    assert world.died == []


def test_the_tasks_and_timers_of_a_paused_process_stand_still(world: World) -> None:
    done = []

    def sleep() -> None:
        world.scheduler.sleep(50)
        done.append("slept")

    world.tasks.start(sleep, "sleeper")
    world.scheduler.step()
    world.owner.paused = True
    world.scheduler.now_ms = 1000

    assert world.scheduler.step() is None
    assert world.scheduler.next_timer_ms() is None
    world.owner.paused = False
    world.run()
    assert done == ["slept"]


def test_a_task_that_dies_of_an_exception_is_reported(world: World) -> None:
    def fail() -> None:
        raise ValueError("no")

    task = world.tasks.start(fail, "failing")
    world.tasks.start(task.join, "joining")
    world.run()

    assert [str(error) for error in world.died] == ["no"]


def test_only_a_task_may_wait(world: World) -> None:
    with pytest.raises(AssertionError, match="only a task"):
        world.scheduler.wait(1)
    assert issubclass(Killed, BaseException)
