"""Where a Delta table's files are: the few things that are done to them, by name below the root.

A name is relative to the table's directory, with slashes, as the files of a table's log are named.
What was published outlives a power cut. A file is never changed once it has its name, so
that all of this can be repeated.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.parquet as pq

from cutwater.sinks.delta.foreign_types import open_parquet
from cutwater.store.backends.directories import matching
from cutwater.store.backends.files import make_lasting, sync_directory

LOG = "_delta_log"
"""The directory of a table's log."""


class FileFacts(NamedTuple):
    """What can be said of a file without reading it."""

    size_bytes: int
    modified_ms: int


class TableRoot(Protocol):
    """The directory of one table. Raises `OSError` for whatever cannot be done."""

    @property
    def address(self) -> str:
        """What deltalake opens, and what messages name; holds no secret."""
        ...

    @property
    def options(self) -> dict[str, str] | None:
        """What deltalake is told beside the address; may hold secrets, so nobody shows it."""
        ...

    def prepare(self) -> None:
        """Make the directory, as far as there are directories."""
        ...

    def entries(self) -> list[str]:
        """Return the names directly in the root."""
        ...

    def has_log(self) -> bool:
        """Say whether there is a table."""
        ...

    def facts(self, name: str) -> FileFacts | None:
        """Look at a file; None if there is none."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file whole.

        Raises:
            FileNotFoundError: If there is none.
        """
        ...

    def parquet(self, name: str) -> pq.ParquetFile:
        """Open a Parquet file, to be read in parts.

        Raises:
            FileNotFoundError: If there is none.
        """
        ...

    def publish(self, local: Path, name: str) -> None:
        """Give a local file, written and synced, its name in the table; replaces another."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Make files that somebody else wrote outlive a power cut, as far as they exist."""
        ...


class LocalRoot:
    """A directory of this machine's file system; fills `TableRoot`."""

    def __init__(self, directory: Path) -> None:
        """Use a directory; nothing is touched yet."""
        self._directory = directory

    @property
    def address(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def options(self) -> None:
        """Nothing."""
        return None

    def prepare(self) -> None:
        """Make the directory."""
        make_lasting(self._directory)

    def entries(self) -> list[str]:
        """Return the names directly in the root."""
        return [one.name for one in self._directory.iterdir()]

    def has_log(self) -> bool:
        """Say whether there is a table."""
        return bool(matching(self._directory / LOG, "*.json"))

    def facts(self, name: str) -> FileFacts | None:
        """Look at a file."""
        try:
            found = (self._directory / name).stat()
        except FileNotFoundError:
            return None
        return FileFacts(found.st_size, int(found.st_mtime * 1000))

    def read(self, name: str) -> bytes:
        """Return a file whole."""
        return (self._directory / name).read_bytes()

    def parquet(self, name: str) -> pq.ParquetFile:
        """Open a Parquet file."""
        return open_parquet(self._directory / name)

    def publish(self, local: Path, name: str) -> None:
        """Rename the file; its directory must be there."""
        target = self._directory / name
        if local != target:
            local.replace(target)
            sync_directory(target.parent)

    def sync(self, names: Iterable[str]) -> None:
        """Sync the files and the directories that name them."""
        directories = {self._directory}
        for name in names:
            path = self._directory / name
            directories.add(path.parent)
            try:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            except FileNotFoundError:
                continue
        for directory in sorted(directories, reverse=True):
            sync_directory(directory)
