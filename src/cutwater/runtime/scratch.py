"""The scratch directory of one run: owned by one process, held by a lock, removed at the end.

A killed process cannot clean up. The next start of the same pipeline below the same directory does,
once it has moved the files that it can reuse (`store.blobs.local_cache`). The lock on a file in the
directory shows whether its process lives: the operating system releases it when the process ends.
A directory gets its name together with its lock. A directory of that name without the lock file was
removed in part by a process that was killed meanwhile, or Spark recreated it: Spark may write a
snapshot of state after its query was stopped.

By default scratch is below a directory of this user alone, in the temporary directory that all
users share. That name is predictable, so another user may have created something of that name. It
is used only if lstat(2) shows a real directory, owned by this user, that no other user can enter;
the sticky bit of the temporary directory keeps other users from replacing it later.
"""

import atexit
import fcntl
import os
import stat
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from cutwater.errors import ConfigError
from cutwater.ids import Generation, PipelineId
from cutwater.store.backends.directories import exists, matching, try_to_remove_tree
from cutwater.store.blobs.local_cache import BlobCache, LeftFiles

_LOCK = "lock"
_PRIVATE: Final = "scratch"
_SWEPT_S: Final = 90.0
"""How long a removal is repeated: Spark's state maintenance runs once a minute by default."""
_LEFT_BY_OTHERS: Final = "left-"
_LEFT: Final = ("g*", "stock-*", f"{_LEFT_BY_OTHERS}*")
"""The content of a scratch directory: generations, blob caches, files of ended processes."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A scratch directory in use; `lock` is the locked file in it."""

    path: Path
    lock: IO[bytes]

    @classmethod
    def make(cls, given: Path | None, pipeline: PipelineId, *, shared: bool) -> "Scratch":
        """Create a new directory below the given one, or below the user's private directory.

        The new directory is closed to other users, unless executors must see it. Executors may run
        as another user, so the umask then sets the mode.

        Args:
            given: The directory that the user has set; None for the default.
            shared: Whether executors run on other machines and must see the directory too.
        """
        if given is None and shared:
            raise ConfigError("scratch", "name a directory that the driver and all executors share")
        root = _private_root() if given is None else given.absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
            abandoned = matching(root, f"{pipeline}-*", f".{pipeline}-*")
            made = cls._create(root, pipeline, 0o777 if shared else 0o700)
            for left in abandoned:
                _take_if_abandoned(left, made.path)
        except OSError as error:
            raise ConfigError("scratch", f"{root} cannot be written: {error.strerror}") from error
        return made

    @classmethod
    def _create(cls, root: Path, pipeline: PipelineId, mode: int) -> "Scratch":
        """Create and lock a directory; retry if another start removed it as abandoned."""
        while True:
            path = root / f"{pipeline}-{uuid.uuid4().hex[:8]}"
            nameless = root / f".{path.name}"
            nameless.mkdir(mode)
            with ExitStack() as undone:
                try:
                    lock = undone.enter_context((nameless / _LOCK).open("xb"))
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    nameless.rename(path)
                except (FileNotFoundError, BlockingIOError):
                    continue
                undone.pop_all()
                return cls(path, lock)

    def remove(self) -> None:
        """Delete the directory and release the lock; delete it again if Spark recreates it."""
        try_to_remove_tree(self.path)
        self.lock.close()
        root, (pipeline, _, _) = self.path.parent, self.path.name.rpartition("-")
        atexit.register(_sweep, root, pipeline)
        threading.Thread(target=_keep_swept, args=(root, pipeline), daemon=True).start()


def _private_root() -> Path:
    """Return the default directory for scratch; refuse one that is open to other users."""
    try:
        return private_directory(_PRIVATE)
    except OSError as error:
        reason = f"{private_path()} cannot be made: {error.strerror}" if error.strerror else error
        raise ConfigError("scratch", str(reason)) from error


def _keep_swept(root: Path, pipeline: str) -> None:
    deadline = time.monotonic() + _SWEPT_S
    while time.monotonic() < deadline:
        _sweep(root, pipeline)
        time.sleep(1.0)


def _sweep(root: Path, pipeline: str) -> None:
    """Delete the directories of a pipeline that were removed before."""
    # Other processes may clean up at the same time.
    with suppress(OSError):
        for directory in matching(root, f"{pipeline}-*"):
            if not exists(directory / _LOCK):
                try_to_remove_tree(directory)


def _take_if_abandoned(directory: Path, into: Path) -> None:
    """Move the files that generations of an ended process have left, and delete the rest."""
    try:
        with (directory / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in matching(directory, *_LEFT):
                left.rename(into / f"{_LEFT_BY_OTHERS}{uuid.uuid4().hex[:8]}")
            try_to_remove_tree(directory)
    except FileNotFoundError:
        if directory.name.startswith("."):
            # It may be being created: then it is empty now, and gets its lock and its name soon.
            with suppress(OSError):
                directory.rmdir()
        else:
            try_to_remove_tree(directory)
    except BlockingIOError:
        return


# -- generations in it


def generation_directory(scratch: Path, generation: Generation) -> Path:
    return scratch / f"g{generation:06d}"


def new_blob_cache(scratch: Path) -> BlobCache:
    """Return an empty cache that first searches the files of earlier generations."""
    left = LeftFiles(matching(scratch, *_LEFT))
    return BlobCache(scratch / f"stock-{uuid.uuid4().hex[:8]}", left)


def clear(scratch: Path, keep: Generation) -> None:
    """Delete everything but the files of one generation."""
    kept = generation_directory(scratch, keep)
    for left in matching(scratch, *_LEFT):
        if left != kept:
            try_to_remove_tree(left)


_OTHERS: Final = 0o077


def private_path(name: str = "") -> Path:
    """Return the path of this user's directory, or of one below it; it may not exist yet."""
    return Path(tempfile.gettempdir()).absolute() / f"cutwater-{os.getuid()}" / name


def private_directory(name: str = "") -> Path:
    """Return this user's directory, or one below it; creates and verifies it.

    Raises:
        PermissionError: If it is open to other users, or may be under their control; the message
            names it and the next step.
    """
    path = private_path()
    # A file or a dangling link is in the way of mkdir; lstat says which.
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    problem = private_problem()
    if problem:
        raise PermissionError(problem)
    if name:
        path = path / name
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def private_problem() -> str:
    """Say why this user's directory must not be used, and the next step; empty if it may be.

    A directory that does not exist is no problem: it will be created.
    """
    path = private_path()
    try:
        problem = _problem(path.lstat())
    except FileNotFoundError:
        return ""
    way_out = "Remove it, or set TMPDIR to a directory of your own"
    return f"{path} {problem}. {way_out}" if problem else ""


def _problem(status: os.stat_result) -> str:
    """Say what is wrong with a directory that must be private; empty if nothing is."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link, which another user may have made"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.getuid():
        return f"belongs to another user (uid {status.st_uid})"
    if status.st_mode & _OTHERS:
        return f"is open to other users (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""
