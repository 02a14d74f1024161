"""Looking at directories and files so that a failed look is an error, never "nothing there".

`Path.glob` and `Path.rglob` return nothing when a directory cannot be listed (every `OSError`
since Python 3.13), `os.walk` skips it, and `Path.exists`, `is_file` and `is_dir` return False for
more errors with every version of Python. A process that has run out of file descriptors would
store an empty snapshot. So the package inspects the file system through these functions only;
`tests/tidy` forbids the others. Every function raises `OSError` if the file system does not answer,
or if a directory cannot be listed or is not a directory. Upholds I5 and I7.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

ABSENT: Final = (FileNotFoundError, NotADirectoryError)
"""The errors by which a file system reports that there is no file of that name."""


def entries(directory: Path) -> list[os.DirEntry[str]]:
    """List a directory, sorted by name; nothing if it does not exist."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def list_directory(directory: Path) -> list[Path]:
    """Return the paths of all entries of a directory, sorted; nothing if it does not exist."""
    return [directory / entry.name for entry in entries(directory)]


def matching(directory: Path, *patterns: str) -> list[Path]:
    """Return the entries of a directory that match one of the patterns, sorted.

    Patterns are as in a shell, but match a leading dot like any character. A directory that does
    not exist is empty.
    """
    return [
        path
        for path in list_directory(directory)
        if any(fnmatchcase(path.name, pattern) for pattern in patterns)
    ]


def files_below(directory: Path) -> list[Path]:
    """Return all files below a directory, sorted; nothing if it does not exist.

    A link to a file is a file; a link to a directory is neither a file nor followed.
    """
    return [path for path, entry in _walk(directory) if entry.is_file()]


def directories_below(directory: Path) -> list[Path]:
    """Return all directories below a directory, parents first; nothing if it does not exist."""
    return [path for path, entry in _walk(directory) if entry.is_dir(follow_symlinks=False)]


def _walk(directory: Path) -> Iterator[tuple[Path, os.DirEntry[str]]]:
    for entry in entries(directory):
        path = directory / entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def status(path: Path) -> os.stat_result | None:
    """Return the status of a file, following links; None if it does not exist."""
    try:
        return path.stat()
    except ABSENT:
        return None


def exists(path: Path) -> bool:
    """Return whether a file or directory of that name exists."""
    return status(path) is not None


def is_file(path: Path) -> bool:
    """Return whether there is a regular file of that name."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_directory(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_name(text: str) -> bool:
    """Return whether a text that was read names one file, in whatever directory it is used."""
    return text not in {"", ".", ".."} and not {"/", "\0"} & set(text)


def is_below(path: str) -> bool:
    """Return whether a path that was read stays below the directory that it is joined to.

    A path in a manifest or a header is data: `..` or a leading slash would lead to other files.
    """
    return all(is_name(part) for part in path.split("/"))


def remove_tree(directory: Path) -> None:
    """Delete a directory with everything in it; do nothing if it does not exist."""
    if exists(directory):
        shutil.rmtree(directory)


def try_to_remove_tree(directory: Path) -> None:
    """Delete a directory as far as possible, where leftovers only cost disk space."""
    shutil.rmtree(directory, ignore_errors=True)
