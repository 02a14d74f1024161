"""The directory of this user alone, below the temporary directory that all users share.

Its name is predictable, so another user may have made something of that name first. It is used only
if lstat(2) shows a real directory, of this user, that nobody else can enter; everything below it is
then out of reach for others, whatever mode it has. The sticky bit of the temporary directory keeps
others from replacing it later. This module does not import pyspark.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077


def private_path(name: str = "") -> Path:
    """Return where this user's directory, or one below it, is; it may not exist yet."""
    return Path(tempfile.gettempdir()).absolute() / f"cutwater-{os.getuid()}" / name


def private_directory(name: str = "") -> Path:
    """Return this user's directory, or one below it; creates and verifies it.

    Raises:
        PermissionError: If it is open to other users, or may be under their control; the message
            names it and the next step.
        OSError: If it cannot be created.
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

    One that does not exist may be created, so nothing is wrong with it.
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
