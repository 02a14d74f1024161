"""Rows that wait for a decision as files of any format: written, synced and hashed out of sight.

    <root>/_cutwater/<pipeline>/<sink>/g000002/schema-<sha256>.json     once per schema
    <root>/_cutwater/<pipeline>/<sink>/g000002/b000000000007/<random>/  the files of one batch

Names that begin with an underscore are left alone by readers. What becomes of the files after the
decision is the business of whoever asked for them; `staged_files` does the same for Delta tables,
whose files are Parquet and lie in one directory.
"""

import bz2
import gzip
import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import lit

from cutwater.errors import SinkError
from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.rows import FrameRows, Rows
from cutwater.sinks.staged_files import HIDDEN
from cutwater.store.files import make_lasting, sync_directory

PARQUET: Final = "parquet"

_HADOOP: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Files appear when the whole job has succeeded: a task that died in mid-commit left nothing.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How rows are written into files.

    Attributes:
        format: What Spark calls the format: `parquet`, `json` or `csv`.
        options: Options of Spark's writer.
        partition_by: Columns that become directories.
        whole: Whether a batch is a whole result, so that one without rows counts as well.
    """

    format: str = PARQUET
    options: Mapping[str, str] | None = None
    partition_by: tuple[str, ...] = ()
    whole: bool = False


class StagedOutput:
    """What one sink has staged below one root. Lets every `OSError` through."""

    def __init__(self, root: Path, pipeline: PipelineId, sink: SinkId) -> None:
        """Use a root; nothing is touched yet."""
        self.root = root
        self.base = root / HIDDEN / pipeline / sink
        self._sink = sink
        self._schemas: dict[Path, BlobRef] = {}

    def stage(
        self, rows: Rows, place: tuple[Generation, BatchId], form: Form, *, shares_disk: bool
    ) -> Committable | None:
        """Write the rows of a batch with one Spark action; replaces what a failed call left.

        Args:
            rows: The rows.
            place: The generation and the batch they belong to.
            form: How they are written.
            shares_disk: Whether what the executors write is certain to be seen here.

        Returns:
            What was staged: its first blob is the schema, the others hold the rows, and are on
            disk for good. None, and nothing left behind, for a batch without rows that does not
            count.

        Raises:
            SinkError: If the executors wrote rows that are not to be found here.
        """
        batch = self.batch_directory(*place)
        shutil.rmtree(batch, ignore_errors=True)
        make_lasting(batch)
        # A name of its own for every call: tasks of a failed one may still be running.
        directory = batch / uuid.uuid4().hex[:8]
        counted = None
        if form.format != PARQUET or not shares_disk:
            counted = Observation()
            rows = FrameRows(rows.frame.observe(counted, count_of(lit(1)).alias("rows")))
        _write(rows, directory, form)
        written = None if counted is None else int(counted.get["rows"])
        found, blobs = self._gather(batch, directory, form, written)
        if written is not None and found != written:
            reason = f"the executors wrote {written} rows and {found} are in {self.root}"
            raise SinkError(self._sink, f"{reason}; driver and executors need one file system")
        if not blobs and not form.whole:
            return None
        described = self._write_schema(rows.schema.json(), place[0])
        return Committable(self._sink, *place, found, (described, *blobs))

    def _gather(
        self, batch: Path, directory: Path, form: Form, written: int | None
    ) -> tuple[int, tuple[BlobRef, ...]]:
        """Keep the files with rows, for good, and remove the others.

        The rows of a Parquet file are counted; those of another one are as many as were written,
        if there is a file at all.
        """
        total, blobs = 0, []
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            if file.name.startswith((".", "_")) or written == 0 or _is_blank(file):
                file.unlink()
                continue
            if form.format == PARQUET:
                count = pq.read_metadata(file).num_rows
                if not count:
                    file.unlink()
                    continue
                total += count
            blobs.append(self.blob(file, sync=True))
        if not blobs:
            shutil.rmtree(batch)
            return 0, ()
        for made in (*directory.rglob("*"), directory, batch):
            if made.is_dir():
                sync_directory(made)
        return total if form.format == PARQUET else written or 0, tuple(blobs)

    def _write_schema(self, text: str, generation: Generation) -> BlobRef:
        digest = hashlib.sha256(text.encode()).hexdigest()
        path = self.generation_directory(generation) / f"schema-{digest}.json"
        if path not in self._schemas:
            make_lasting(path.parent)
            put_lasting(path, text)
            self._schemas[path] = self.blob(path, sync=False)
        return self._schemas[path]

    def schema_text(self, committable: Committable) -> str:
        """Read the schema that was staged with a batch."""
        return (self.root / committable.blobs[0].name).read_text(encoding="utf-8")

    def difference(self, blob: BlobRef, path: Path) -> str | None:
        """Say how a file differs from what was staged; None if it does not."""
        try:
            found = self.blob(path, sync=False)
        except FileNotFoundError:
            return f"{blob.name} is missing"
        if found.size_bytes != blob.size_bytes:
            return f"{blob.name} has {found.size_bytes} bytes instead of {blob.size_bytes}"
        if found.sha256 != blob.sha256:
            return f"{blob.name} has another content: sha256 {found.sha256}"
        return None

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what older generations staged, except what is to be kept."""
        kept = {self.root / blob.name for one in keep for blob in one.blobs}
        kept |= {self.batch_directory(one.generation, one.batch) for one in keep}
        for directory in sorted(self.base.glob("g[0-9]*")):
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

    def forget(self, committables: Sequence[Committable]) -> None:
        """Remove what is left in the directories of batches that are done with."""
        for one in committables:
            shutil.rmtree(self.batch_directory(one.generation, one.batch), ignore_errors=True)

    def generation_directory(self, generation: Generation) -> Path:
        """Where a generation stages."""
        return self.base / f"g{generation:06d}"

    def batch_directory(self, generation: Generation, batch: BatchId) -> Path:
        """Where the files of one batch are."""
        return self.generation_directory(generation) / f"b{batch:012d}"

    def blob(self, path: Path, *, sync: bool) -> BlobRef:
        """Describe a file by its name below the root, its size and its hash."""
        with path.open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        return BlobRef(path.relative_to(self.root).as_posix(), size, digest)


def _write(rows: Rows, directory: Path, form: Form) -> None:
    # Hadoop's paths are not percent-encoded.
    address = f"file://{directory}"
    options = {**_HADOOP, **(form.options or {})}
    if form.format == PARQUET:
        rows.write_parquet(address, options, form.partition_by)
        return
    writer = rows.frame.write.format(form.format).options(**options)
    writer.partitionBy(*form.partition_by).save(address)


def _is_blank(file: Path) -> bool:
    """Say whether a file holds nothing: a task without rows writes one, perhaps compressed."""
    match file.suffix:
        case ".gz":
            with gzip.open(file) as opened:
                return not opened.read(1)
        case ".bz2":
            with bz2.open(file) as opened_too:
                return not opened_too.read(1)
        case _:
            return not file.stat().st_size


def put_lasting(path: Path, text: str) -> None:
    """Write a file, whole and for good, in the place of one that may be there."""
    unfinished = path.with_name(f"{uuid.uuid4().hex}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def create_lasting(path: Path, text: str) -> bool:
    """Write a file, whole and for good, unless there is one; say whether it was written."""
    unfinished = path.with_name(f"{uuid.uuid4().hex}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    try:
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        path.hardlink_to(unfinished)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    sync_directory(path.parent)
    return True
