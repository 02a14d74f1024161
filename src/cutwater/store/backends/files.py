"""The single file system operations of `LocalBackend`.

The functions take plain paths and let every `OSError` through. The writer of a hidden file holds
its lock from creation to the end, so the writer of a file without a lock has died.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cutwater.errors import InvalidPath
from cutwater.store.backends.directories import ABSENT, is_directory
from cutwater.store.paths import ObjectPath, object_path


def make_lasting(directory: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents, and sync the names of the new directories.

    The mode, less the umask, applies to the directory itself; an existing directory keeps its mode.
    """
    if is_directory(directory):
        return
    make_lasting(directory.parent)
    directory.mkdir(mode, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that the names in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_hidden(directory: Path) -> BinaryIO:
    """Create a file with a random name; it is locked for as long as it is open."""
    while True:
        file = (directory / uuid.uuid4().hex).open("xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            Path(file.name).unlink()
            file.close()
            raise
        if os.fstat(file.fileno()).st_nlink:
            return file
        # `remove_if_abandoned` ran between open and lock.
        file.close()


def remove_if_abandoned(hidden: Path) -> bool:
    """Remove a hidden file unless its writer is alive; return whether it was removed."""
    try:
        with hidden.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.unlink()
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def objects_below(
    root: Path, prefix: ObjectPath, after: ObjectPath | None = None
) -> Iterator[ObjectPath]:
    """Find all files below a prefix, and after a path, whose names objects can have, unsorted."""
    try:
        with os.scandir(root / prefix) as found:
            entries = list(found)
    except ABSENT:
        return
    for entry in entries:
        below = f"{prefix}/{entry.name}/"
        if after is not None and below <= after and not after.startswith(below):
            # Skipped before its name is checked, because there may be very many.
            continue
        try:
            path = object_path(below[:-1])
        except InvalidPath:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from objects_below(root, path, after)
        elif entry.is_file() and (after is None or path > after):
            yield path
