"""Parquet files that wait for a decision: written, synced and hashed where no reader looks.

They wait in the hidden layout of `directory`. After the decision, before the table names it, a file
gets a second name, `<root>/part-<sha256 of the staged name>.parquet`, which is derived from its
staged name alone, so that this can be repeated. The staged name stays until the commit is done:
another program's VACUUM may delete the second name before a version of the table refers to it.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from cutwater.errors import CutwaterError
from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import Rows
from cutwater.sinks.staging.directory import WRITE_OPTIONS, HiddenFiles
from cutwater.store.backends.directories import exists, files_below, remove_tree, try_to_remove_tree
from cutwater.store.backends.files import sync_directory

_NULL_IN_PATH: Final = "__HIVE_DEFAULT_PARTITION__"


class StagedFiles(HiddenFiles):
    """Parquet files of one sink below one root. Lets every `OSError` through."""

    def write(
        self,
        rows: Rows,
        place: tuple[Generation, BatchId],
        partition_by: Sequence[str],
        check: Callable[[Sequence[Path]], None] | None = None,
    ) -> tuple[int, tuple[BlobRef, ...]]:
        """Write the rows of a batch with one Spark action; replaces what a failed call left.

        Returns the number of rows, and the synced files that hold them; no files without rows.
        `check` raises if the files are not acceptable; they are deleted then. SinkError if they do
        not hold as many rows as the executors wrote.
        """
        directory = self.new_directory(*place)
        # Hadoop's paths are not percent-encoded.
        written = rows.write_parquet(f"file://{directory}", WRITE_OPTIONS, partition_by)
        try:
            return self._gather(directory, written, check)
        except CutwaterError:
            try_to_remove_tree(directory.parent)
            raise

    def _gather(
        self, directory: Path, written: int, check: Callable[[Sequence[Path]], None] | None
    ) -> tuple[int, tuple[BlobRef, ...]]:
        total, files = 0, []
        for file in files_below(directory):
            data = file.suffix == ".parquet" and not file.name.startswith((".", "_"))
            count = pq.read_metadata(file).num_rows if data else 0
            if not count:
                file.unlink()
                continue
            total += count
            files.append(file)
        self.check_rows(written, total)
        if not files:
            remove_tree(directory.parent)
            return 0, ()
        if check is not None:
            check(files)
        return total, self.sync_and_describe(files, directory)

    def schema_text(self, committable: Committable) -> str:
        (blob,) = (blob for blob in committable.blobs if not holds_rows(blob))
        return self.place(blob).read_text(encoding="utf-8")

    def data(self, committables: Sequence[Committable]) -> Iterator[BlobRef]:
        return (
            blob for committable in committables for blob in committable.blobs if holds_rows(blob)
        )

    def settle(self, blobs: Sequence[BlobRef]) -> dict[BlobRef, str]:
        """Give files their final names too, and sync them; the staged names stay.

        The modification time is set to now. VACUUM compares it with the retention, and a file may
        have been staged long ago. FileNotFoundError if a file is in neither place, or not as large
        as it was.
        """
        settled = {blob: settled_name(blob) for blob in blobs}
        for blob, name in settled.items():
            staged, target = self.place(blob), self.root / name
            if _size_bytes(target) != blob.size_bytes and exists(staged):
                _touch(staged)
                _link(staged, target)
            if _size_bytes(target) != blob.size_bytes:
                message = f"{blob.name} is gone or not what was staged"
                raise FileNotFoundError(message)
            _touch(target)
        sync_directory(self.root)
        return settled

    def problem(self, committable: Committable) -> str | None:
        for blob in committable.blobs:
            path = self.root / blob.name
            if not exists(path) and holds_rows(blob):
                path = self.root / settled_name(blob)
            difference = self.difference(blob, path)
            if difference is not None:
                return difference
        return None


def _size_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _touch(path: Path) -> None:
    """Set the modification time to now, if the file is ours: on a cluster executors may own it."""
    with suppress(PermissionError):
        os.utime(path)


def _link(staged: Path, target: Path) -> None:
    """Give a file a second name, replacing another file; copy it if there are no hard links."""
    unfinished = staged.with_name(f"{uuid.uuid4().hex}.unfinished")
    try:
        unfinished.hardlink_to(staged)
    except OSError:
        shutil.copyfile(staged, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
    unfinished.replace(target)


def holds_rows(blob: BlobRef) -> bool:
    """Return whether a file holds rows, and not their schema."""
    return blob.name.endswith(".parquet")


def settled_name(blob: BlobRef) -> str:
    """Return a file's final name. Partition values are in the table's log, not in this name."""
    return f"part-{hashlib.sha256(blob.name.encode()).hexdigest()}.parquet"


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values of partition columns, as Spark has written them into a file's path."""
    values: dict[str, str | None] = {}
    for part in Path(path).parent.parts[-1:0:-1]:
        column, separator, value = part.partition("=")
        if not separator:
            break
        values[unquote(column)] = None if value == _NULL_IN_PATH else unquote(value)
    return values
