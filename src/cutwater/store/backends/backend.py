"""The port to whatever keeps objects: a directory, an object store, memory.

A backend keeps whole objects under paths. It knows nothing of checkpoints and decides nothing.
Two promises carry the protocol: an object is visible whole or not at all, and `create` lets
exactly one of any number of writers win (rule F5). What a call has acknowledged survives a crash.
"Not there" is only ever said by a store that is there itself; anything else is `Unavailable`.

`each` makes several calls at once, because a single call to an object store is slow. Its thread
pool limits one caller; a backend has its own limit for all callers together.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from cutwater.errors import Conflict, OutcomeUnknown
from cutwater.store.paths import ObjectPath

T = TypeVar("T")
Result = TypeVar("Result")

AT_ONCE: Final = 8
"""How many calls one caller has under way at the same time."""


class Backend(Protocol):
    """Where objects are kept. May be used by any number of threads at once.

    Every method raises `InvalidPath` for a path that `paths.object_path` would refuse, before
    anything else happens, and `Unavailable` when the store cannot be read or written now.
    Streaming methods let the `OSError` of the local file through: the store is not to blame.
    A path is either an object or a prefix of others, never both.
    """

    @property
    def url(self) -> str:
        """The store's address, for messages."""
        ...

    def create(self, path: ObjectPath, data: bytes) -> bool:
        """Write an object unless there is one of that name.

        Returns:
            Whether it was written. Either way the object that is there now is durable.

        Raises:
            Conflict: If the path is a prefix of other objects, or runs through an object.
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written, or may not last.
        """
        ...

    def put(self, path: ObjectPath, data: bytes) -> None:
        """Write an object, replacing one of that name: readers see the old one or the new one.

        For objects that are documented as mutable, or named by their content.

        Raises:
            Conflict: If the path is a prefix of other objects, or runs through an object.
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written, or may not last.
        """
        ...

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        """Do as `put` does with the content of a local file, without holding it in memory.

        Raises:
            OSError: If the local file cannot be read; nothing was written.
            Conflict: If the path is a prefix of other objects, or runs through an object.
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written, or may not last.
        """
        ...

    def read(self, path: ObjectPath) -> bytes:
        """Return an object whole.

        Raises:
            NotFound: If there is none.
            Unavailable: If it cannot be read now.
        """
        ...

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        """Write an object's content to a local file, replacing what was there.

        The local file is not written atomically; after an error it may hold a part.

        Raises:
            OSError: If the local file cannot be written.
            NotFound: If there is no such object; the local file was not touched.
            Unavailable: If the object cannot be read now.
        """
        ...

    def exists(self, path: ObjectPath) -> bool:
        """Say whether there is an object of that name.

        Raises:
            Unavailable: If nobody can say now.
        """
        ...

    def size(self, path: ObjectPath) -> int:
        """Return how many bytes an object has.

        Raises:
            NotFound: If there is none.
            Unavailable: If nobody can say now.
        """
        ...

    def delete(self, path: ObjectPath) -> None:
        """Delete an object. One that is not there is deleted already.

        Raises:
            Unavailable: If it was certainly not deleted.
            OutcomeUnknown: If it may or may not be gone, or may come back after a crash.
        """
        ...

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        """Return the whole paths of all objects below a prefix, sorted.

        `a/b` lists `a/b/c` and `a/b/c/d`, neither `a/b` itself nor `a/bc`. An object that is
        written or deleted meanwhile may or may not be among them.

        Args:
            prefix: Whole parts of a path.
            after: Only those that sort after this path, whether there is an object or not.

        Raises:
            Unavailable: If they cannot be listed now.
        """
        ...


def write_once(backend: Backend, path: ObjectPath, data: bytes) -> None:
    """Write an object that never changes; writing the same again changes nothing.

    May therefore be repeated after any error; after a lost answer it is, once.

    Raises:
        Conflict: If an object of that name has other content.
        StoreError: As `Backend.create` and `Backend.read` do.
    """
    try:
        created = backend.create(path, data)
    except OutcomeUnknown:
        created = backend.create(path, data)
    if not created and backend.read(path) != data:
        raise Conflict(path, "is written once, and has other content already")


def each(call: Callable[[T], Result], items: Collection[T]) -> list[Result]:
    """Call with each item, several at once; return the results in the order of the items.

    After the first error what has not begun is left out, what has begun is waited for, and the
    error is raised.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="store") as pool:
        return list(pool.map(call, items))
