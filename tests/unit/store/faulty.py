"""A real store in memory whose answers can be lost, refused or delayed, one call at a time.

The next call of a method fails as planned; everything else is the memory backend itself.
"""

from collections.abc import Callable

from cutwater.errors import StoreError
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath


class FaultyBackend(MemoryBackend):
    """Fails as told."""

    def __init__(self) -> None:
        super().__init__()
        self.before_create: list[StoreError] = []
        self.after_create: list[StoreError] = []
        self.before_read: list[StoreError] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.reads: list[ObjectPath] = []
        self.lists = 0

    def create(self, path: ObjectPath, data: bytes) -> bool:
        if self.before_create:
            raise self.before_create.pop()
        if self.meanwhile:
            self.meanwhile.pop()()
        created = super().create(path, data)
        if self.after_create:
            raise self.after_create.pop()
        return created

    def read(self, path: ObjectPath) -> bytes:
        self.reads.append(path)
        if self.before_read:
            raise self.before_read.pop()
        return super().read(path)

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        self.lists += 1
        return super().list(prefix, after)
