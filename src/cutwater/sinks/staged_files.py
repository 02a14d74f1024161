"""Parquet files that wait for a decision: written, synced and hashed where no reader looks.

    <root>/_cutwater/<pipeline>/<sink>/g000002/schema-<sha256>.json     once per schema
    <root>/_cutwater/<pipeline>/<sink>/g000002/b000000000007/<random>/  the files of one batch
    <root>/part-<sha256 of the staged name>.parquet                     after the decision

Names that begin with an underscore are left alone by readers and by VACUUM. After the decision,
before the table names it, a file moves to its last place, which follows from its staged name
alone: the move can be repeated, and whatever is still here was never committed.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from cutwater.errors import CutwaterError
from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.rows import Rows
from cutwater.store.files import make_lasting, sync_directory

HIDDEN: Final = "_cutwater"
"""The directory in the root that holds what is staged."""

_NULL_IN_PATH: Final = "__HIVE_DEFAULT_PARTITION__"
_WRITE_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Files appear when the whole job has succeeded: a task that died in mid-commit left nothing.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


class StagedFiles:
    """The staged files of one sink below one root. Lets every `OSError` through."""

    def __init__(self, root: Path, pipeline: PipelineId, sink: SinkId) -> None:
        """Use a root; nothing is touched yet."""
        self._root = root
        self._base = root / HIDDEN / pipeline / sink
        self._sink = sink
        self._schemas: dict[Path, BlobRef] = {}

    def write(
        self,
        rows: Rows,
        place: tuple[Generation, BatchId],
        partition_by: Sequence[str],
        check: Callable[[Sequence[Path]], None] | None = None,
    ) -> tuple[int, tuple[BlobRef, ...]]:
        """Write the rows of a batch with one Spark action; replaces what a failed call left.

        Args:
            rows: The rows.
            place: The generation and the batch.
            partition_by: Columns that become directories.
            check: Looks at the files that hold the rows, and raises if they cannot be taken;
                nothing is left behind then.

        Returns:
            The number of rows, and the files that hold them, on disk for good. No files and
            nothing left behind for no rows.
        """
        batch = self._batch_directory(*place)
        shutil.rmtree(batch, ignore_errors=True)
        make_lasting(batch)
        # A name of its own for every call: tasks of a failed one may still be running, and
        # Spark would gather their files as well.
        directory = batch / uuid.uuid4().hex[:8]
        # Hadoop's paths are not percent-encoded.
        rows.write_parquet(f"file://{directory}", _WRITE_OPTIONS, partition_by)
        try:
            return self._gather(batch, directory, check)
        except CutwaterError:
            shutil.rmtree(batch, ignore_errors=True)
            raise

    def _gather(
        self, batch: Path, directory: Path, check: Callable[[Sequence[Path]], None] | None
    ) -> tuple[int, tuple[BlobRef, ...]]:
        total, files = 0, []
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            data = file.suffix == ".parquet" and not file.name.startswith((".", "_"))
            count = pq.read_metadata(file).num_rows if data else 0
            if not count:
                file.unlink()
                continue
            total += count
            files.append(file)
        if not files:
            shutil.rmtree(batch)
            return 0, ()
        if check is not None:
            check(files)
        blobs = [self._blob(file, sync=True) for file in files]
        for made in (*directory.rglob("*"), directory, batch):
            if made.is_dir():
                sync_directory(made)
        return total, tuple(blobs)

    def write_schema(self, text: str, generation: Generation) -> BlobRef:
        """Write the schema of staged rows beside them, once per generation."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        path = self._generation_directory(generation) / f"schema-{digest}.json"
        if path not in self._schemas:
            make_lasting(path.parent)
            unfinished = path.with_name(f"{uuid.uuid4().hex}.unfinished")
            unfinished.write_text(text, encoding="utf-8")
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_directory(path.parent)
            self._schemas[path] = self._blob(path, sync=False)
        return self._schemas[path]

    def schema_text(self, committable: Committable) -> str:
        """Read the schema that was staged with a batch."""
        (blob,) = (one for one in committable.blobs if not holds_rows(one))
        return (self._root / blob.name).read_text(encoding="utf-8")

    def data(self, committables: Sequence[Committable]) -> Iterator[BlobRef]:
        """Give the files with rows, in order."""
        return (blob for one in committables for blob in one.blobs if holds_rows(blob))

    def settle(self, blobs: Sequence[BlobRef]) -> dict[BlobRef, str]:
        """Move files to their last places, on disk for good; what has moved already stays.

        Raises:
            FileNotFoundError: If a file is in neither place, or not as large as it was.
        """
        settled = {blob: settled_name(blob) for blob in blobs}
        for blob, name in settled.items():
            staged, target = self._root / blob.name, self._root / name
            if staged.exists():
                staged.rename(target)
            if not target.exists() or target.stat().st_size != blob.size_bytes:
                message = f"{blob.name} is gone or not what was staged"
                raise FileNotFoundError(message)
        sync_directory(self._root)
        return settled

    def forget(self, committables: Sequence[Committable]) -> None:
        """Remove the empty directories of batches whose files have settled."""
        for one in committables:
            shutil.rmtree(self._batch_directory(one.generation, one.batch), ignore_errors=True)

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with the first file that is not what was staged; None if sound."""
        for blob in committable.blobs:
            path = self._root / blob.name
            if not path.exists() and holds_rows(blob):
                path = self._root / settled_name(blob)
            try:
                found = self._blob(path, sync=False)
            except FileNotFoundError:
                return f"{blob.name} is missing"
            if found.size_bytes != blob.size_bytes:
                return f"{blob.name} has {found.size_bytes} bytes instead of {blob.size_bytes}"
            if found.sha256 != blob.sha256:
                return f"{blob.name} has another content: sha256 {found.sha256}"
        return None

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what older generations staged, except what is to be kept.

        A committed file has left this directory, so that nothing a table names can be deleted.
        """
        kept = {self._root / blob.name for one in keep for blob in one.blobs}
        kept |= {self._batch_directory(one.generation, one.batch) for one in keep}
        for directory in sorted(self._base.glob("g*")):
            if int(directory.name[1:]) >= generation:
                continue
            for entry in sorted(directory.iterdir()):
                if entry in kept:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if not any(directory.iterdir()):
                directory.rmdir()

    def _generation_directory(self, generation: Generation) -> Path:
        return self._base / f"g{generation:06d}"

    def _batch_directory(self, generation: Generation, batch: BatchId) -> Path:
        return self._generation_directory(generation) / f"b{batch:012d}"

    def _blob(self, path: Path, *, sync: bool) -> BlobRef:
        with path.open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        return BlobRef(path.relative_to(self._root).as_posix(), size, digest)


def holds_rows(blob: BlobRef) -> bool:
    """Tell a file with rows from one that describes them."""
    return blob.name.endswith(".parquet")


def settled_name(blob: BlobRef) -> str:
    """Name a file's last place. Partition values are in the table's log, not in this name."""
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
