"""The durable store of the simulated world, and each process's connection to it.

`Objects` survive crashes; `faults` damages them from outside. `SimulatedBackend` is the store as
one process sees it (the port `store.backends.backend.Backend`): before and after every call another
task may run, the process may be killed, the store may be out of reach or full, and an answer may be
lost. A write whose answer is lost has happened, has not happened, or happens later.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cutwater.errors import NotFound, OutcomeUnknown, Unavailable
from cutwater.store.paths import ObjectPath, object_path


class Objects:
    """All objects, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, bytes] = {}
        self.out_of_reach = False
        self.full = False


class Mishaps(Protocol):
    """What may happen to a single request on its way to the store or back."""

    def write_hangs(self, name: str, data: bytes, *, create: bool, failed: bool) -> bool:
        """Return whether a write gets no response in time; it may still arrive later.

        `create` leaves an existing object alone; `failed` is a store out of reach anyway.
        """
        ...

    def response_lost(self, name: str) -> bool:
        """Return whether the response to a write that has happened is lost."""
        ...

    def delete_astray(self, name: str) -> bool:
        """Return whether an acknowledged delete is lost, or happens later."""
        ...

    def listing_fails(self) -> bool:
        """Return whether a listing fails midway."""
        ...


class SimulatedBackend:
    """The store as one process sees it."""

    at_once = 1

    def __init__(
        self,
        objects: Objects,
        mishaps: Mishaps,
        switch: Callable[[], None],
        written: Callable[[str, bytes], None],
        deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect a process; `switch` lets other tasks run and raises if the process is dead.

        `written` and `deleted` are called after each write and delete that happened.
        """
        self._objects = objects
        self._mishaps = mishaps
        self._switch = switch
        self._written = written
        self._deleted = deleted

    @property
    def url(self) -> str:
        return "simulated:"

    # -- writing

    def create(self, path: ObjectPath, data: bytes) -> bool:
        self._begin_write(path, data, create=True)
        is_new = path not in self._objects.by_name
        if is_new:
            self._write(path, data)
        self._end_write(path)
        return is_new

    def put(self, path: ObjectPath, data: bytes) -> None:
        self._begin_write(path, data, create=False)
        self._write(path, data)
        self._end_write(path)

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        self.put(path, local_file.read_bytes())

    def _begin_write(self, path: ObjectPath, data: bytes, *, create: bool) -> None:
        object_path(path)
        self._switch()
        objects = self._objects
        hangs = self._mishaps.write_hangs(path, data, create=create, failed=objects.out_of_reach)
        if hangs:
            raise OutcomeUnknown(path, "the store did not answer")
        if objects.full:
            raise Unavailable(path, "the store is full")

    def _write(self, path: ObjectPath, data: bytes) -> None:
        self._objects.by_name[path] = data
        self._written(path, data)

    def _end_write(self, path: ObjectPath) -> None:
        lost = self._mishaps.response_lost(path)
        self._switch()
        if lost:
            raise OutcomeUnknown(path, "the answer was lost")

    def delete(self, path: ObjectPath) -> None:
        self._begin_read(path)
        if (
            not self._mishaps.delete_astray(path)
            and self._objects.by_name.pop(path, None) is not None
        ):
            self._deleted(path)
        self._switch()

    # -- reading

    def _begin_read(self, path: ObjectPath) -> None:
        object_path(path)
        self._switch()
        if self._objects.out_of_reach:
            raise Unavailable(path, "the store does not answer")

    def read(self, path: ObjectPath) -> bytes:
        self._begin_read(path)
        try:
            return self._objects.by_name[path]
        except KeyError:
            raise NotFound(path) from None

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        local_file.write_bytes(self.read(path))

    def exists(self, path: ObjectPath) -> bool:
        self._begin_read(path)
        return path in self._objects.by_name

    def size(self, path: ObjectPath) -> int:
        return len(self.read(path))

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        self._begin_read(prefix)
        if self._mishaps.listing_fails():
            raise Unavailable(prefix, "the listing broke off")
        below = f"{prefix}/"
        found = sorted(path for path in self._objects.by_name if path.startswith(below))
        return tuple(ObjectPath(path) for path in found if after is None or path > after)


class NoMishaps:
    """Nothing happens to requests: the connection of checkers."""

    def write_hangs(self, name: str, data: bytes, *, create: bool, failed: bool) -> bool:
        del name, data, create, failed
        return False

    def response_lost(self, name: str) -> bool:
        del name
        return False

    def delete_astray(self, name: str) -> bool:
        del name
        return False

    def listing_fails(self) -> bool:
        return False


def calm_backend(objects: Objects) -> SimulatedBackend:
    """Return a connection for checkers: always in reach, and invisible to processes."""
    view = Objects()
    view.by_name = objects.by_name
    return SimulatedBackend(view, NoMishaps(), lambda: None, lambda *_: None)
