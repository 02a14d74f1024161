"""Where a sink of files stages: a hidden place below its root, by generation and batch.

    <root>/_cutwater/<pipeline>/<sink>/g000002/schema-<sha256>.json     once per schema
    <root>/_cutwater/<pipeline>/<sink>/g000002/b000000000007/<random>/  the files of one batch

Readers and VACUUM ignore names that begin with an underscore. `parquet` and `formats` determine the
files and what happens to them after the decision.
"""

import hashlib
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cutwater.errors import SinkError
from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.store.backends.directories import (
    directories_below,
    is_below,
    is_directory,
    list_directory,
    matching,
    remove_tree,
    try_to_remove_tree,
)
from cutwater.store.backends.files import make_lasting, sync_directory

HIDDEN: Final = "_cutwater"
"""The directory in the root that holds what is staged."""

WRITE_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Files appear when the whole job has succeeded: a task that died in mid-commit left nothing.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
"""Hadoop's settings for what executors write there."""


class HiddenFiles:
    """What one sink has staged below one root. Lets every `OSError` through."""

    def __init__(self, root: Path, pipeline: PipelineId, sink: SinkId) -> None:
        self.root = root
        self.base = root / HIDDEN / pipeline / sink
        self.sink = sink
        self._schemas: dict[Path, BlobRef] = {}
        # Batches that were committed, or kept for a checkpoint that carries them. Only in memory:
        # what a process forgets here is found by the `discard` of the next generation.
        self._done: set[tuple[Generation, BatchId]] = set()

    def new_directory(self, generation: Generation, batch: BatchId) -> Path:
        """Clear what a failed call left of a batch; return where its files are to be written.

        Every call gets a unique name: tasks of a failed call may still be running, and Spark would
        collect their files as well.
        """
        place = self.batch_directory(generation, batch)
        remove_tree(place)
        make_lasting(place)
        return place / uuid.uuid4().hex[:8]

    def sync_and_describe(self, files: Sequence[Path], directory: Path) -> tuple[BlobRef, ...]:
        """Sync the files of a new directory, and describe them."""
        blobs = tuple(self.blob(file, sync=True) for file in files)
        for made in (*directories_below(directory), directory, directory.parent):
            sync_directory(made)
        return blobs

    def check_rows(self, written: int, found: int) -> None:
        """Refuse files that hold fewer or more rows than the executors wrote."""
        if written != found:
            reason = f"the executors wrote {written} rows and {found} are in {self.root}"
            why = "files were lost, or driver and executors do not share this file system"
            raise SinkError(self.sink, f"{reason}: {why}")

    def place(self, blob: BlobRef) -> Path:
        """Return where a staged file is; refuse a name that leads out of the root."""
        if not is_below(blob.name):
            raise SinkError(self.sink, f"{blob.name} leads outside {self.root}")
        return self.root / blob.name

    def write_schema(self, text: str, generation: Generation) -> BlobRef:
        """Write the schema of staged rows beside them, once per generation."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        path = self.generation_directory(generation) / f"schema-{digest}.json"
        if path not in self._schemas:
            make_lasting(path.parent)
            put_lasting(path, text)
            self._schemas[path] = self.blob(path, sync=False)
        return self._schemas[path]

    def difference(self, blob: BlobRef, path: Path) -> str | None:
        """Return how a file differs from what was staged; None if it does not."""
        if not is_below(blob.name):
            return f"{blob.name} leads outside {self.root}"
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
        """Delete what older generations staged, except what is to be kept.

        A committed file has another name, outside this directory, so that nothing a reader sees can
        be deleted.
        """
        self.note_committed(
            [committable for committable in keep if committable.generation < generation]
        )
        kept = {self.root / blob.name for committable in keep for blob in committable.blobs}
        kept |= {
            self.batch_directory(committable.generation, committable.batch) for committable in keep
        }
        for directory in matching(self.base, "g[0-9]*"):
            if int(directory.name[1:]) >= generation:
                continue
            for entry in list_directory(directory):
                if entry in kept:
                    continue
                if is_directory(entry):
                    remove_tree(entry)
                else:
                    entry.unlink()
            if not list_directory(directory):
                directory.rmdir()

    def note_committed(self, committables: Sequence[Committable]) -> None:
        """Let `retain` delete these batches as soon as nothing keeps them."""
        self._done.update(
            (committable.generation, committable.batch) for committable in committables
        )

    def retain(self, keep: Sequence[Committable]) -> None:
        """Delete the batches that are committed and not to be kept.

        Only batches that this process has committed, or got as `keep`, are considered, so that a
        process that was paused deletes nothing that its successor has staged.
        """
        for place in sorted(
            self._done - {(committable.generation, committable.batch) for committable in keep}
        ):
            remove_tree(self.batch_directory(*place))
            self._done.discard(place)

    def forget(self, committables: Sequence[Committable]) -> None:
        """Remove what is left in the directories of batches that are done with."""
        for committable in committables:
            try_to_remove_tree(self.batch_directory(committable.generation, committable.batch))

    def generation_directory(self, generation: Generation) -> Path:
        return self.base / f"g{generation:06d}"

    def batch_directory(self, generation: Generation, batch: BatchId) -> Path:
        return self.generation_directory(generation) / f"b{batch:012d}"

    def generation_of(self, name: str) -> Generation:
        part = Path(name).relative_to(self.base.relative_to(self.root)).parts[0]
        return Generation(int(part.removeprefix("g")))

    def blob(self, path: Path, *, sync: bool) -> BlobRef:
        """Describe a file by its name below the root, its size and its hash."""
        with path.open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        return BlobRef(path.relative_to(self.root).as_posix(), size, digest)


def put_lasting(path: Path, text: str) -> None:
    """Write a file atomically and durably, replacing an existing one."""
    unfinished = path.with_name(f"{uuid.uuid4().hex}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def create_lasting(path: Path, text: str) -> bool:
    """Write a file atomically and durably, unless it exists; return whether it was written."""
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
