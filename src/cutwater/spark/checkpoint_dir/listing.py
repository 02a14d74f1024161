"""Lists directories that Spark may be writing to at the same time.

Hidden files are unfinished, and Hadoop's checksum files may be missing: neither is listed. Spark
chooses all other names; `files` and `state_files` interpret them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cutwater.errors import RecoveryError
from cutwater.store.backends.directories import entries as listed_entries

LISTINGS_MAX: Final = 10
"""The max number of listings of a directory that keeps changing."""


def counts(name: str) -> bool:
    """Return whether a file counts: files in the making are hidden, checksums can be missed."""
    return not name.startswith(".") and not name.endswith(".crc")


def entries(directory: Path) -> list[os.DirEntry[str]]:
    """List a directory, in order; empty if it does not exist."""
    return [entry for entry in listed_entries(directory) if counts(entry.name)]


def names(directory: Path) -> set[str]:
    return {entry.name for entry in entries(directory)}


def directories(directory: Path) -> list[str]:
    return [entry.name for entry in entries(directory) if entry.is_dir()]


def files_below(directory: Path, prefix: str = "") -> Iterator[str]:
    """Find all files below a directory, in order, as paths that begin with the prefix."""
    for entry in entries(directory):
        if entry.is_dir():
            yield from files_below(directory / entry.name, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"


def steady_files(directory: Path) -> list[str]:
    """List all files below a directory in which files are created one after the other.

    A single listing may miss a file but contain a later one, which would be a log with a gap. Two
    equal listings in a row cannot: a file that the second one misses was created after every file
    of the first one.
    """
    found = list(files_below(directory))
    for _ in range(LISTINGS_MAX):
        before, found = found, list(files_below(directory))
        if before == found:
            return found
    raise RecoveryError(f"{directory} changes whenever it is listed.")
