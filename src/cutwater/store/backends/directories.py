"""Looking at directories and files so that a failed look is an error, never "nothing there".

`Path.glob` and `Path.rglob` return nothing when a directory cannot be listed (every `OSError`
since Python 3.13), `os.walk` skips it, and `Path.exists`, `is_file` and `is_dir` return False for
more errors with every version of Python. A process that has run out of file descriptors would
store an empty snapshot. So the package lists and looks through these functions only; `tests/tidy`
forbids the others. Upholds I5 and I7.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

ABSENT: Final = (FileNotFoundError, NotADirectoryError)
"""How a file system says that there is no file of that name."""


def entries(directory: Path) -> list[os.DirEntry[str]]:
    """List a directory, sorted by name; nothing if it does not exist.

    Raises:
        OSError: If it cannot be listed, or is not a directory.
    """
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def listed(directory: Path) -> list[Path]:
    """Return the paths of all that is in a directory, sorted; nothing if it does not exist.

    Raises:
        OSError: If it cannot be listed, or is not a directory.
    """
    return [directory / entry.name for entry in entries(directory)]


def matching(directory: Path, *patterns: str) -> list[Path]:
    """Return what is in a directory and matches one of the patterns, sorted.

    Args:
        directory: The directory; one that does not exist holds nothing.
        patterns: Patterns of a name, as in a shell; a leading dot is matched like any character.

    Raises:
        OSError: If it cannot be listed, or is not a directory.
    """
    return [
        path
        for path in listed(directory)
        if any(fnmatchcase(path.name, pattern) for pattern in patterns)
    ]


def files_below(directory: Path) -> list[Path]:
    """Return all files below a directory, sorted; nothing if it does not exist.

    A link to a file is a file; a link to a directory is neither a file nor followed.

    Raises:
        OSError: If one of the directories cannot be listed.
    """
    return [path for path, entry in _walked(directory) if entry.is_file()]


def directories_below(directory: Path) -> list[Path]:
    """Return all directories below a directory, parents first; nothing if it does not exist.

    Raises:
        OSError: If one of the directories cannot be listed.
    """
    return [path for path, entry in _walked(directory) if entry.is_dir(follow_symlinks=False)]


def _walked(directory: Path) -> Iterator[tuple[Path, os.DirEntry[str]]]:
    for entry in entries(directory):
        path = directory / entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walked(path)


def status(path: Path) -> os.stat_result | None:
    """Return what the file system knows of a file, links followed; None if it does not exist.

    Raises:
        OSError: If the file system does not answer.
    """
    try:
        return path.stat()
    except ABSENT:
        return None


def exists(path: Path) -> bool:
    """Say whether there is something of that name.

    Raises:
        OSError: If the file system does not answer.
    """
    return status(path) is not None


def is_file(path: Path) -> bool:
    """Say whether there is an ordinary file of that name.

    Raises:
        OSError: If the file system does not answer.
    """
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_directory(path: Path) -> bool:
    """Say whether there is a directory of that name.

    Raises:
        OSError: If the file system does not answer.
    """
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_name(text: str) -> bool:
    """Say whether a text that was read is the name of one file, wherever it is joined to."""
    return text not in {"", ".", ".."} and not {"/", "\0"} & set(text)


def is_below(path: str) -> bool:
    """Say whether a path that was read stays below the directory that it is joined to.

    A path in a manifest or a header is data: `..` or a leading slash would lead to files of others.
    """
    return all(is_name(part) for part in path.split("/"))


def remove_tree(directory: Path) -> None:
    """Delete a directory with everything in it; one that does not exist is no error.

    Raises:
        OSError: If something is left of it.
    """
    if exists(directory):
        shutil.rmtree(directory)


def try_to_remove_tree(directory: Path) -> None:
    """Delete a directory as far as possible. For what costs room and nothing else if it stays."""
    shutil.rmtree(directory, ignore_errors=True)
