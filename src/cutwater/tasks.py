"""The tasks port: what the driver runs at the same time, and how it waits.

Everything in the driver that starts a thread, waits for another thread or shares data with one gets
it from `Tasks`. `ThreadTasks` uses the threads of the operating system. The simulator has its own
implementation, in which one seed decides which task runs next, and in which a process can be killed
between any two steps.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")


class Lock(Protocol):
    """A lock that its holder may take again."""

    def __enter__(self) -> bool:
        """Take the lock, and wait for it if necessary."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        ...


class Condition(Lock, Protocol):
    """A lock whose holder can wait until another task changes what the lock protects."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified; return whether that was before the timeout, in seconds."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        ...


class Event(Protocol):
    """A flag that tasks can wait for."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...

    def set(self) -> None:
        """Set the flag and wake all waiting tasks."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; return whether it is, after at most this many seconds."""
        ...


class Inbox(Protocol[T]):
    """A queue with one reader."""

    def put(self, item: T) -> None:
        """Append an item; never waits."""
        ...

    def get(self, timeout_s: float) -> T | None:
        """Return the next item; None if none arrives within this many seconds (0: do not wait)."""
        ...


class Task(Protocol):
    """A function that runs beside its starter."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most this many seconds."""
        ...

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        ...


class Pool(Protocol):
    """Runs functions in a bounded number of tasks."""

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function as soon as a task is free; the function must not raise."""
        ...

    def close(self) -> None:
        """Drop what has not begun, and wait for the rest."""
        ...


class Tasks(Protocol):
    """Starts tasks, and makes what they share."""

    def lock(self) -> Lock:
        """Return a new lock."""
        ...

    def condition(self) -> Condition:
        """Return a new condition."""
        ...

    def event(self) -> Event:
        """Return a new event, not set."""
        ...

    def inbox(self) -> Inbox[Any]:
        """Return a new, empty inbox."""
        ...

    def start(self, function: Callable[[], None], name: str) -> Task:
        """Run a function in a new task; the end of the process does not wait for it."""
        ...

    def pool(self, workers: int, name: str) -> Pool:
        """Return a new pool."""
        ...


class ThreadInbox(Inbox[T]):
    """An inbox between threads."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        self._items.put(item)

    def get(self, timeout_s: float) -> T | None:
        try:
            return self._items.get(timeout=timeout_s) if timeout_s > 0 else self._items.get_nowait()
        except queue.Empty:
            return None


class ThreadPool:
    """A pool of threads."""

    def __init__(self, workers: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=name)

    def submit(self, function: Callable[[], None]) -> None:
        self._executor.submit(function)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class ThreadTasks:
    """Tasks are threads of this process."""

    def lock(self) -> Lock:
        return threading.RLock()

    def condition(self) -> Condition:
        return threading.Condition()

    def event(self) -> Event:
        return threading.Event()

    def inbox(self) -> Inbox[Any]:
        return ThreadInbox()

    def start(self, function: Callable[[], None], name: str) -> Task:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, workers: int, name: str) -> Pool:
        return ThreadPool(workers, name)


THREADS: Final[Tasks] = ThreadTasks()
