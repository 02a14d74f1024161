"""The simulated time and tasks: one seed decides which task of which process runs next.

A task is a greenlet. It runs until it waits, or until it passes a point at which another task may
run: a call to the store or to a table, a lock that is taken, a queue that is read. Nothing runs at
the same time, so a seed replays exactly. A process can be killed at each of these points: `Killed`
is thrown into all its tasks, and every further call to a port raises it again, so that nothing
durable happens after the kill. A process can also be paused: its tasks and its timers stand still.
"""

import random
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from cutwater.tasks import Condition, Event, Inbox, Lock, Pool

T = TypeVar("T")

START_MS: Final = 1_700_000_000_000
"""The wall-clock time at which every simulated world begins."""


class Killed(BaseException):
    """The process of this task was killed."""


class Owner(Protocol):
    """The process that a task belongs to."""

    alive: bool
    paused: bool


class SimulatedTask:
    """One task; `Scheduler` runs it. The hub calls `resume` and `kill`."""

    def __init__(
        self, scheduler: "Scheduler", owner: Owner, function: Callable[[], None], name: str
    ) -> None:
        self.scheduler = scheduler
        self.owner = owner
        self.name = name
        self.ready = True
        self.wake_at_ms: int | None = None
        self.ended = False
        self._function = function
        self._waiting: list[SimulatedTask] = []
        self._greenlet = greenlet(self._run, scheduler.hub)

    def _run(self) -> None:
        try:
            self._function()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread that dies is a defect
            self.scheduler.died(self, error)
        finally:
            self.end()

    def end(self) -> None:
        """Note the end, and wake the tasks that wait for it."""
        self.ended = True
        self.scheduler.forget(self)
        for task in self._waiting:
            task.wake()
        self._waiting.clear()

    def resume(self) -> None:
        self._greenlet.switch()

    def kill(self) -> None:
        """Throw `Killed` into the task."""
        if self._greenlet:
            self._greenlet.throw(Killed)
        self.ended = True

    def wake(self) -> None:
        self.ready = True
        self.wake_at_ms = None

    # -- the port `cutwater.tasks.Task`

    def join(self, timeout: float | None = None) -> None:
        while not self.ended:
            self._waiting.append(self.scheduler.running)
            if not self.scheduler.wait(timeout):
                return

    def is_alive(self) -> bool:
        return not self.ended


class Scheduler:
    """Runs the tasks of all processes of a world, one at a time."""

    def __init__(
        self, rng: random.Random, died: Callable[[SimulatedTask, BaseException], None]
    ) -> None:
        """Start without tasks; `died` is called with a task that ended with an exception."""
        self.rng = rng
        self.died = died
        self.now_ms = 0
        self.hub = getcurrent()
        self.lock_switches = rng.choice((0.0, 0.01, 0.1))
        self._tasks: list[SimulatedTask] = []
        self._running: SimulatedTask | None = None

    # -- the hub

    def start(self, owner: Owner, function: Callable[[], None], name: str) -> SimulatedTask:
        task = SimulatedTask(self, owner, function, name)
        self._tasks.append(task)
        return task

    def forget(self, task: SimulatedTask) -> None:
        if task in self._tasks:
            self._tasks.remove(task)

    def tasks_of(self, owner: Owner) -> list[SimulatedTask]:
        return [task for task in self._tasks if task.owner is owner]

    def step(self) -> SimulatedTask | None:
        """Run one ready task until it waits; return it, or None if no task is ready."""
        ready = []
        for task in self._tasks:
            if task.owner.paused:
                continue
            if task.wake_at_ms is not None and task.wake_at_ms <= self.now_ms:
                task.wake()
            if task.ready:
                ready.append(task)
        if not ready:
            return None
        chosen = ready[0] if len(ready) == 1 else self.rng.choice(ready)
        self._running = chosen
        chosen.resume()
        self._running = None
        return chosen

    def next_timer_ms(self) -> int | None:
        """Return when the next task that can run wakes up by itself."""
        times = [
            task.wake_at_ms
            for task in self._tasks
            if task.wake_at_ms is not None and not task.owner.paused
        ]
        return min(times, default=None)

    def kill(self, owner: Owner) -> None:
        """End all tasks of a process; called by the hub."""
        for task in self.tasks_of(owner):
            self._running = task
            task.kill()
        self._running = None
        self._tasks = [task for task in self._tasks if task.owner is not owner]

    # -- tasks

    @property
    def running(self) -> SimulatedTask:
        assert self._running is not None, "only a task of a simulated process may wait"
        return self._running

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def check(self) -> None:
        """Raise `Killed` in a task whose process is dead."""
        if not self.running.owner.alive:
            raise Killed

    def switch(self) -> None:
        """Let another task run, perhaps."""
        self.check()
        self.hub.switch()
        self.check()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until another task wakes this one; return whether that was before the timeout."""
        self.check()
        task = self.running
        task.ready = False
        task.wake_at_ms = (
            None if timeout_s is None else self.now_ms + max(0, round(timeout_s * 1000))
        )
        due_ms = task.wake_at_ms
        self.hub.switch()
        self.check()
        return due_ms is None or self.now_ms < due_ms

    def sleep(self, duration_ms: int) -> None:
        self.wait(duration_ms / 1000)


class SimulatedClock:
    """The time of a world; fills `cutwater.clock.Clock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return START_MS + self._scheduler.now_ms

    def wall_ms(self) -> int:
        return self.now_ms()


class SimulatedLock:
    """A lock that its holder may take again; fills `cutwater.tasks.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: SimulatedTask | None = None
        self._depth = 0
        self._visits = 0
        self._waiting: list[SimulatedTask] = []

    def __enter__(self) -> bool:
        """Take the lock; another task may run first."""
        scheduler = self._scheduler
        if scheduler.is_idle:
            # A checker or a fault looks on while no task runs.
            self._visits += 1
            return True
        scheduler.check()
        task = scheduler.running
        if self._holder is not task:
            if scheduler.rng.random() < scheduler.lock_switches:
                scheduler.switch()
            while self._holder is not None:
                self._waiting.append(task)
                scheduler.wait(None)
            self._holder = task
        self._depth += 1
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._visits:
            self._visits -= 1
            return
        self._depth -= 1
        if self._depth == 0:
            self.release()

    def release(self) -> int:
        """Release the lock, however often its holder has taken it; return how often."""
        depth, self._depth, self._holder = self._depth, 0, None
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.wake()
        return depth

    def take_again(self, depth: int) -> None:
        """Take the lock as often as it was taken before `release`."""
        self.__enter__()
        self._depth = depth


class SimulatedCondition(SimulatedLock):
    """A lock whose holder can wait for a change; fills `cutwater.tasks.Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._notified: list[SimulatedTask] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified; the lock is free meanwhile."""
        scheduler = self._scheduler
        scheduler.check()
        self._notified.append(scheduler.running)
        depth = self.release()
        in_time = scheduler.wait(timeout)
        if scheduler.running in self._notified:
            self._notified.remove(scheduler.running)
        self.take_again(depth)
        return in_time

    def notify_all(self) -> None:
        for task in self._notified:
            task.wake()
        self._notified.clear()


class SimulatedEvent:
    """A flag; fills `cutwater.tasks.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[SimulatedTask] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for task in self._waiting:
            task.wake()
        self._waiting.clear()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            task = self._scheduler.running
            self._waiting.append(task)
            self._scheduler.wait(timeout)
            if task in self._waiting:
                self._waiting.remove(task)
        else:
            self._scheduler.switch()
        return self._is_set


class SimulatedInbox(Inbox[T], Generic[T]):
    """A queue with one reader."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[T] = deque()
        self._reader: SimulatedTask | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._reader.wake()

    def get(self, timeout_s: float) -> T | None:
        self._scheduler.check()
        if not self._items and timeout_s > 0:
            self._reader = self._scheduler.running
            self._scheduler.wait(timeout_s)
            self._reader = None
        else:
            self._scheduler.switch()
        return self._items.popleft() if self._items else None


class SimulatedPool:
    """Runs functions in a bounded number of tasks; fills `cutwater.tasks.Pool`."""

    def __init__(self, tasks: "SimulatedTasks", workers: int, name: str) -> None:
        self._tasks = tasks
        self._workers = workers
        self._name = name
        self._running: list[SimulatedTask] = []
        self._queue: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[[], None]) -> None:
        self._running = [task for task in self._running if not task.ended]
        self._queue.append(function)
        if len(self._running) < self._workers:
            self._running.append(self._tasks.start(self._work, self._name))

    def _work(self) -> None:
        while self._queue:
            self._queue.popleft()()

    def close(self) -> None:
        self._queue.clear()
        for task in self._running:
            task.join()


class SimulatedTasks:
    """The tasks of one process; fills `cutwater.tasks.Tasks`."""

    def __init__(self, scheduler: Scheduler, owner: Owner) -> None:
        self._scheduler = scheduler
        self._owner = owner

    def lock(self) -> Lock:
        return SimulatedLock(self._scheduler)

    def condition(self) -> Condition:
        return SimulatedCondition(self._scheduler)

    def event(self) -> Event:
        return SimulatedEvent(self._scheduler)

    def inbox(self) -> Inbox[Any]:
        return SimulatedInbox(self._scheduler)

    def start(self, function: Callable[[], None], name: str) -> SimulatedTask:
        return self._scheduler.start(self._owner, function, name)

    def pool(self, workers: int, name: str) -> Pool:
        return SimulatedPool(self, workers, name)
