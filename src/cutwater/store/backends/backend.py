"""The port to a place that keeps objects: a directory, an object store, memory.

A backend keeps whole objects under paths. It knows nothing about checkpoints and decides nothing.
The protocol relies on two promises: an object is visible as a whole or not at all, and `create`
lets exactly one of any number of writers win (rule F5). An acknowledged call survives a crash.
`NotFound` means that the store answered and has no such object; anything else is `Unavailable`.

`each` makes several calls at once, because a single call to an object store is slow. The backend
says how many one caller may make; it has its own limit for all callers together.
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
"""How many calls one caller makes at the same time, unless the backend has a reason for another
number."""


class Backend(Protocol):
    """Where objects are kept. May be used by any number of threads at once.

    Every method raises `InvalidPath` for a path that `paths.object_path` would refuse, before
    anything else happens, and `Unavailable` if the store cannot be read or written now; a call
    that raised `Unavailable` has certainly changed nothing. The methods that write or delete raise
    `OutcomeUnknown` if the change may or may not have happened, or may not outlive a crash. The
    methods that write raise `Conflict` if the path is a prefix of other objects, or runs through
    an object. Streaming methods let the `OSError` of the local file through: the store is not to
    blame. A path is either an object or a prefix of others, never both.
    """

    @property
    def url(self) -> str:
        """The store's address, for messages."""
        ...

    @property
    def at_once(self) -> int:
        """How many calls one caller should make at the same time."""
        ...

    def create(self, path: ObjectPath, data: bytes) -> bool:
        """Write an object unless there is one of that name.

        Returns:
            Whether it was written. Either way the object that is there now is durable.
        """
        ...

    def put(self, path: ObjectPath, data: bytes) -> None:
        """Write an object, replacing one of that name: readers see the old object or the new one.

        For objects that are documented as mutable, or named by their content.
        """
        ...

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        """Write the content of a local file as `put` does, without holding it in memory.

        Raises:
            OSError: If the local file cannot be read; nothing was written.
        """
        ...

    def read(self, path: ObjectPath) -> bytes:
        """Return an object whole.

        Raises:
            NotFound: If there is none.
        """
        ...

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        """Write an object's content to a local file, replacing what was there.

        The local file is not written atomically; after an error it may hold a part.

        Raises:
            OSError: If the local file cannot be written.
            NotFound: If there is no such object; the local file was not touched.
        """
        ...

    def exists(self, path: ObjectPath) -> bool:
        """Return whether there is an object of that name."""
        ...

    def size(self, path: ObjectPath) -> int:
        """Return the size of an object in bytes.

        Raises:
            NotFound: If there is none.
        """
        ...

    def delete(self, path: ObjectPath) -> None:
        """Delete an object; do nothing if there is none."""
        ...

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        """Return the full paths of all objects below a prefix, sorted.

        `a/b` lists `a/b/c` and `a/b/c/d`, neither `a/b` itself nor `a/bc`. An object that is
        written or deleted during the call may or may not be listed.

        Args:
            prefix: Whole parts of a path.
            after: Only paths that sort after this path are listed, whether it exists or not.
        """
        ...


def write_once(backend: Backend, path: ObjectPath, data: bytes) -> None:
    """Write an object that never changes; writing the same content again changes nothing.

    A call may therefore be repeated after any error. After a lost answer, this function itself
    repeats the write once.

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


def each(backend: Backend, call: Callable[[T], Result], items: Collection[T]) -> list[Result]:
    """Call a function that uses a backend with each item; return the results in order.

    After the first error, no further call is started, the running calls are awaited, and the error
    is raised.
    """
    workers = min(backend.at_once, len(items))
    if workers < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(workers, thread_name_prefix="store") as pool:
        return list(pool.map(call, items))
