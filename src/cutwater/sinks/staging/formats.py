"""Rows that wait for a decision as files of any format, in the hidden layout of `directory`.

The sink that staged the files determines what happens to them after the decision. `parquet` does
the same for Delta tables, whose files are Parquet and lie in one directory.
"""

import bz2
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import Rows, observed
from cutwater.sinks.staging.directory import WRITE_OPTIONS, HiddenFiles
from cutwater.store.backends.directories import files_below, remove_tree

PARQUET: Final = "parquet"


@dataclass(frozen=True, slots=True)
class Form:
    """How rows are written into files.

    Attributes:
        whole: Whether a batch is a whole result, so that one without rows counts as well.
    """

    format: str = PARQUET
    options: Mapping[str, str] | None = None
    partition_by: tuple[str, ...] = ()
    whole: bool = False


class StagedOutput(HiddenFiles):
    """Rows of one sink as files of any format. Lets every `OSError` through."""

    def stage(
        self, rows: Rows, place: tuple[Generation, BatchId], form: Form
    ) -> Committable | None:
        """Write the rows of a batch with one Spark action; replaces what a failed call left.

        The first blob of the result is the schema, the others hold the rows, and are synced. None,
        and no files, for a batch without rows that does not count. SinkError if the executors wrote
        rows that are not found here.
        """
        directory = self.new_directory(*place)
        written = _write(rows, directory, form)
        found, blobs = self._gather(directory, form, written)
        if not blobs and not form.whole:
            return None
        described = self.write_schema(rows.schema.json(), place[0])
        return Committable(self.sink, *place, found, (described, *blobs))

    def _gather(self, directory: Path, form: Form, written: int) -> tuple[int, tuple[BlobRef, ...]]:
        """Sync the files with rows, and remove the others.

        The rows of a Parquet file are counted; for other formats the number of written rows is
        used, if there is a file at all.
        """
        total, files = 0, []
        for file in files_below(directory):
            if file.name.startswith((".", "_")) or written == 0 or _is_blank(file):
                file.unlink()
                continue
            if form.format == PARQUET:
                count = pq.read_metadata(file).num_rows
                if not count:
                    file.unlink()
                    continue
                total += count
            files.append(file)
        if form.format != PARQUET and files:
            total = written
        self.check_rows(written, total)
        if not files:
            remove_tree(directory.parent)
            return 0, ()
        return total, self.sync_and_describe(files, directory)

    def schema_text(self, committable: Committable) -> str:
        return self.place(committable.blobs[0]).read_text(encoding="utf-8")


def _write(rows: Rows, directory: Path, form: Form) -> int:
    # Hadoop's paths are not percent-encoded.
    address = f"file://{directory}"
    options = {**WRITE_OPTIONS, **(form.options or {})}
    if form.format == PARQUET:
        return rows.write_parquet(address, options, form.partition_by)
    counted, frame = observed(rows.frame)
    writer = frame.write.format(form.format).options(**options)
    writer.partitionBy(*form.partition_by).save(address)
    return int(counted.get["rows"])


def _is_blank(file: Path) -> bool:
    """Return whether a file is empty: a task without rows writes one, perhaps compressed."""
    match file.suffix:
        case ".gz":
            with gzip.open(file) as opened:
                return not opened.read(1)
        case ".bz2":
            with bz2.open(file) as opened_too:
                return not opened_too.read(1)
        case _:
            return not file.stat().st_size
