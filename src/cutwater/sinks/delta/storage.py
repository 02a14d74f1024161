"""Where a Delta table's files are: those of the table (`TableStorage`) and those that are staged.

A name is relative to the table's directory, with slashes, as the files of a table's log are named.
A published file survives a power cut. A file is never changed once it has its name, so that every
call can be repeated.

`Staging` is the interface to the staged files, which wait for a decision beside the table. On this
machine's file system the executors write them to their final staging place (`StagedFiles`);
`LocalStaging` adds a place for copies being written. `storage_s3` has both for a bucket.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from cutwater.errors import StoreError
from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import Rows
from cutwater.sinks.delta.foreign_types import open_parquet
from cutwater.sinks.staging.parquet import StagedFiles
from cutwater.store.backends.directories import matching, try_to_remove_tree
from cutwater.store.backends.files import make_lasting, sync_directory

LOG = "_delta_log"
"""The directory of a table's log."""

FAILURES: Final = (DeltaError, OSError, StoreError, pa.ArrowException)
"""The exceptions by which a table reports that something cannot be done now."""

_SPOOLS = "copies-*"


class FileFacts(NamedTuple):
    """What is known about a file without reading it."""

    size_bytes: int
    modified_ms: int


class TableStorage(Protocol):
    """The directory of one table. Every method raises `OSError` if it fails."""

    @property
    def address(self) -> str:
        """What deltalake opens, and what messages name; holds no secret."""
        ...

    @property
    def options(self) -> dict[str, str] | None:
        """Options for deltalake besides the address; may hold secrets, so they are never shown."""
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
        """Give a local file, written and synced, its name in the table; replace an existing one."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Sync files that another program wrote, if they exist."""
        ...


class LocalStorage:
    """A directory of this machine's file system; fills `TableStorage`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def address(self) -> str:
        return str(self._directory)

    @property
    def options(self) -> None:
        return None

    def prepare(self) -> None:
        make_lasting(self._directory)

    def entries(self) -> list[str]:
        return [entry.name for entry in self._directory.iterdir()]

    def has_log(self) -> bool:
        return bool(matching(self._directory / LOG, "*.json"))

    def facts(self, name: str) -> FileFacts | None:
        try:
            found = (self._directory / name).stat()
        except FileNotFoundError:
            return None
        return FileFacts(found.st_size, int(found.st_mtime * 1000))

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def parquet(self, name: str) -> pq.ParquetFile:
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


class Staging(Protocol):
    """What waits for a decision; `StagedFiles` says what each of these does."""

    def write(
        self,
        rows: Rows,
        place: tuple[Generation, BatchId],
        partition_by: Sequence[str],
        check: Callable[[Sequence[Path]], None] | None = None,
    ) -> tuple[int, tuple[BlobRef, ...]]:
        """Write the rows of a batch with one Spark action."""
        ...

    def write_schema(self, text: str, generation: Generation) -> BlobRef:
        """Write the schema of staged rows beside them."""
        ...

    def schema_text(self, committable: Committable) -> str:
        """Read the schema that was staged with a batch."""
        ...

    def data(self, committables: Sequence[Committable]) -> Iterator[BlobRef]:
        """Give the files with rows, in order."""
        ...

    def settle(self, blobs: Sequence[BlobRef]) -> dict[BlobRef, str]:
        """Give files their last names in the table."""
        ...

    def note_committed(self, committables: Sequence[Committable]) -> None:
        """Let `retain` delete these batches as soon as nothing keeps them."""
        ...

    def retain(self, keep: Sequence[Committable]) -> None:
        """Delete what is left of batches that are committed and not to be kept."""
        ...

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with something staged; None if it is sound."""
        ...

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what earlier generations staged and will never be committed."""
        ...

    def spool(self, name: str) -> Path:
        """Return a local directory for copies being written."""
        ...

    def clear_spools(self, own: str) -> None:
        """Remove such directories of dead processes."""
        ...


class LocalStaging(StagedFiles):
    """Staged files on this machine's file system; fills `Staging`."""

    def spool(self, name: str) -> Path:
        """It is on the disk of the table."""
        return self.base / name

    def clear_spools(self, own: str) -> None:
        """Remove what dead processes were writing; a process that is alive starts again."""
        for directory in matching(self.base, _SPOOLS):
            if directory.name != own:
                try_to_remove_tree(directory)
