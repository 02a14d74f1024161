"""A backend in memory: for tests and dry runs. Nothing outlives the process.

It is as strict as the other backends, so that code that works on it works on them: paths are
checked, and no path is both an object and a prefix.
"""

from pathlib import Path
from threading import Lock

from cutwater.errors import Conflict, NotFound
from cutwater.store.backends.backend import AT_ONCE
from cutwater.store.paths import ObjectPath, object_path


class MemoryBackend:
    """Objects in a dictionary; fills the port `Backend`."""

    def __init__(self) -> None:
        self._objects: dict[ObjectPath, bytes] = {}
        self._prefixes: set[str] = set()
        self._lock = Lock()

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def at_once(self) -> int:
        return AT_ONCE

    def create(self, path: ObjectPath, data: bytes) -> bool:
        with self._lock:
            if object_path(path) in self._objects:
                return False
            self._write(path, data)
            return True

    def put(self, path: ObjectPath, data: bytes) -> None:
        with self._lock:
            self._write(object_path(path), data)

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        self.put(path, local_file.read_bytes())

    def _write(self, path: ObjectPath, data: bytes) -> None:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        for prefix in above:
            if prefix in self._objects:
                raise Conflict(path, f"{prefix} is an object, so nothing can be below it")
        if path in self._prefixes:
            raise Conflict(path, "there are objects below it, so it cannot be one")
        self._prefixes.update(above)
        self._objects[path] = bytes(data)

    def read(self, path: ObjectPath) -> bytes:
        try:
            return self._objects[object_path(path)]
        except KeyError:
            raise NotFound(path) from None

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        local_file.write_bytes(self.read(path))

    def exists(self, path: ObjectPath) -> bool:
        return object_path(path) in self._objects

    def size(self, path: ObjectPath) -> int:
        return len(self.read(path))

    def delete(self, path: ObjectPath) -> None:
        with self._lock:
            self._objects.pop(object_path(path), None)

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        below = f"{object_path(prefix)}/"
        with self._lock:
            found = sorted(path for path in self._objects if path.startswith(below))
        return tuple(path for path in found if after is None or path > after)
