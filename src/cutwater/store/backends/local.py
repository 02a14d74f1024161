"""A backend in a directory: an object is a file, its path the file's path below the root.

A write goes to a hidden file first, which is synced and then gets its name: by link(2) for
`create`, which fails if the name is taken, and by rename(2) for `put`. Then the directory is
synced, so that an acknowledged write survives a power cut (rule F5). A crash in between leaves a
hidden file that no reader sees; `clean` removes it.

    <root>/.incoming/<random>    files on their way in, each locked by its writer while it lives
    <root>/<path>                objects

The root is created when the store is opened and never again: a disk that was unmounted is
`Unavailable`, not an empty store. Needs a POSIX file system with hard links and flock(2).
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from cutwater.errors import (
    ConfigError,
    Conflict,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from cutwater.store.backends.backend import AT_ONCE
from cutwater.store.backends.directories import ABSENT, is_directory, is_file
from cutwater.store.backends.files import (
    make_lasting,
    objects_below,
    open_hidden,
    remove_if_abandoned,
    sync_directory,
)
from cutwater.store.paths import ObjectPath, object_path

_INCOMING: Final = ".incoming"
_PRIVATE: Final = 0o700
"""The mode of a new store, which contains rows of every table and state."""
_CHUNK_BYTES: Final = 1 << 20
_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class LocalBackend:
    """Objects as files below a directory; fills the port `Backend`."""

    def __init__(self, root: Path) -> None:
        """Open a directory; create it, closed to other users, if it does not exist."""
        self._root = root.absolute()
        self._incoming = self._root / _INCOMING
        # Directories whose names this process has synced.
        self._lasting: set[Path] = set()
        # Directories whose last sync failed: names in them may not survive a crash.
        self._doubtful: set[Path] = set()
        try:
            make_lasting(self._root, _PRIVATE)
            make_lasting(self._incoming)
        except FileExistsError as error:
            reason = f"{self.url} cannot be a directory: it, or one above it, is a file"
            raise ConfigError("store", reason) from error
        except OSError as error:
            raise ConfigError("store", f"{self.url} cannot be used: {_words(error)}") from error

    @property
    def url(self) -> str:
        return self._root.as_uri()

    @property
    def at_once(self) -> int:
        return AT_ONCE

    # -- writing

    def create(self, path: ObjectPath, data: bytes) -> bool:
        """Refuse a file system that has no hard links, and a root that spans several."""
        target = self._root / object_path(path)
        with self._stage(path, (data,)) as file:
            self._make_room(path, target.parent)
            created = self._link(path, file, target)
            self._sync(path, target.parent)
        return created

    def put(self, path: ObjectPath, data: bytes) -> None:
        self._replace(path, (data,))

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        with local_file.open("rb") as file:
            self._replace(path, iter(lambda: file.read(_CHUNK_BYTES), b""))

    def delete(self, path: ObjectPath) -> None:
        if self._status(path) is None:
            return
        target = self._root / path
        with self._failing_as(Unavailable, path):
            target.unlink(missing_ok=True)
        self._sync(path, target.parent)

    def clean(self) -> int:
        """Remove the hidden files that crashed writers have left; return how many.

        Called when a process opens its store for writing. Safe at any time: a file whose writer is
        alive, in any process, is locked and stays.
        """
        with self._failing_as(Unavailable, _INCOMING):
            return sum(remove_if_abandoned(file) for file in sorted(self._incoming.iterdir()))

    def _replace(self, path: ObjectPath, chunks: Iterable[bytes]) -> None:
        target = self._root / object_path(path)
        with self._stage(path, chunks) as file:
            self._make_room(path, target.parent)
            with self._failing_as(Unavailable, path):
                try:
                    Path(file.name).replace(target)
                except IsADirectoryError as error:
                    raise _has_objects_below(path) from error
            self._sync(path, target.parent)

    @contextmanager
    def _stage(self, path: ObjectPath, chunks: Iterable[bytes]) -> Iterator[BinaryIO]:
        """Write and sync a hidden file; it is removed at the end in any case."""
        self._check_present(path)
        with self._failing_as(Unavailable, path):
            file = open_hidden(self._incoming)
        try:
            for chunk in chunks:
                with self._failing_as(Unavailable, path):
                    file.write(chunk)
            with self._failing_as(Unavailable, path):
                file.flush()
                os.fsync(file.fileno())
            yield file
        finally:
            # A file that cannot be removed now is left to `clean`; the object does not need it.
            with suppress(OSError):
                Path(file.name).unlink(missing_ok=True)
            with suppress(OSError):
                file.close()

    def _make_room(self, path: ObjectPath, directory: Path) -> None:
        with self._failing_as(Unavailable, path):
            try:
                self._make_below_root(directory)
            except (FileExistsError, NotADirectoryError) as error:
                reason = "a part of the path is an object, so nothing can be below it"
                raise Conflict(path, reason) from error

    def _make_below_root(self, directory: Path) -> None:
        if directory == self._root or (directory in self._lasting and is_directory(directory)):
            return
        self._make_below_root(directory.parent)
        directory.mkdir(exist_ok=True)
        # Also if it existed: the process that created it may have died before syncing.
        sync_directory(directory.parent)
        self._lasting.add(directory)

    def _link(self, path: ObjectPath, file: BinaryIO, target: Path) -> bool:
        """Give a hidden file its name unless the name is taken; return whether it got the name."""
        try:
            os.link(file.name, target)
        except OSError as error:
            # Over a network an answer can be lost, and the repeated call finds its own link. So
            # the number of links counts, not the result of link(2).
            with self._failing_as(OutcomeUnknown, path):
                linked = os.fstat(file.fileno()).st_nlink > 1
            if not linked and not isinstance(error, FileExistsError):
                raise self._no_link(path, error) from error
            if not linked and not is_file(target):
                raise _has_objects_below(path) from error
            return linked
        return True

    def _no_link(self, path: ObjectPath, error: OSError) -> ConfigError | Unavailable:
        if error.errno in _NO_HARD_LINKS:
            reason = f"{self.url} has no hard links, which create-if-absent needs: {_words(error)}"
            return ConfigError("store", reason)
        if error.errno == errno.EXDEV:
            return ConfigError("store", f"{self.url} is not one file system: {path} is in another")
        return Unavailable(path, f"{self.url}: {_words(error)}")

    def _sync(self, path: ObjectPath, directory: Path) -> None:
        """Sync a directory, and remember it if the sync failed."""
        with self._failing_as(OutcomeUnknown, path):
            try:
                sync_directory(directory)
            except OSError:
                self._doubtful.add(directory)
                raise
        self._doubtful.discard(directory)

    # -- reading

    def read(self, path: ObjectPath) -> bytes:
        with self._open(path) as file:
            return self._read(path, file, -1)

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        with self._open(path) as file, local_file.open("wb") as copy:
            while chunk := self._read(path, file, _CHUNK_BYTES):
                copy.write(chunk)

    def exists(self, path: ObjectPath) -> bool:
        return self._status(path) is not None

    def size(self, path: ObjectPath) -> int:
        status = self._status(path)
        if status is None:
            raise NotFound(path)
        return status.st_size

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        """Skip files with names that no object can have: they do not belong to the store."""
        with self._failing_as(Unavailable, prefix):
            found = sorted(objects_below(self._root, object_path(prefix), after))
        if not found:
            self._check_present(prefix)
        return tuple(found)

    @contextmanager
    def _open(self, path: ObjectPath) -> Iterator[BinaryIO]:
        target = self._find_trusted(path)
        file = None
        with self._failing_as(Unavailable, path), suppress(*ABSENT, IsADirectoryError):
            file = target.open("rb")
        if file is None:
            self._check_present(path)
            raise NotFound(path)
        with file:
            yield file

    def _read(self, path: ObjectPath, file: BinaryIO, size: int) -> bytes:
        with self._failing_as(Unavailable, path):
            return file.read(size)

    def _status(self, path: ObjectPath) -> os.stat_result | None:
        target = self._find_trusted(path)
        status = None
        with self._failing_as(Unavailable, path), suppress(*ABSENT):
            status = target.stat()
        if status is not None and stat.S_ISREG(status.st_mode):
            return status
        self._check_present(path)
        return None

    def _find_trusted(self, path: ObjectPath) -> Path:
        """Return an object's file; if the last sync of its directory failed, sync it first.

        Otherwise an object whose write failed could be read back, trusted, and lost later.
        """
        target = self._root / object_path(path)
        if target.parent in self._doubtful:
            with self._failing_as(Unavailable, path):
                sync_directory(target.parent)
            self._doubtful.discard(target.parent)
        return target

    # -- errors

    def _check_present(self, path: ObjectPath) -> None:
        """Make sure that an object is not reported as missing because the whole store is."""
        with self._failing_as(Unavailable, path):
            present = is_directory(self._incoming)
        if not present:
            raise Unavailable(path, f"{self.url} is not there any more")

    @contextmanager
    def _failing_as(self, kind: type[StoreError], path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise kind(path, f"{self.url}: {_words(error)}") from error


def _has_objects_below(path: ObjectPath) -> Conflict:
    return Conflict(path, "there is a directory of that name, so it cannot be an object")


def _words(error: OSError) -> str:
    return error.strerror or str(error)
