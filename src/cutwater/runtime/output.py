"""Where a step's rows go: Parquet files of its channel, or what its sink stages.

Writing is the batch's one and only action (rule F32): counts come from the files themselves. A
batch without rows leaves no files and is no Event (F23).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow.parquet as pq

from cutwater.errors import RunError
from cutwater.ids import BatchId, Generation
from cutwater.protocol.commit import ShowPermit
from cutwater.protocol.cut import Committable
from cutwater.protocol.messages import Event
from cutwater.runtime.channel import Channel
from cutwater.sinks.base import OpenSink, Rows, ShowingSink
from cutwater.store.backends.directories import matching, remove_tree

SMALL_BYTES: Final = 64 * 1024
"""A result below this size is written as one file where the plan allows it. One task writes it, so
it must be so small that a second core would not have helped."""

_WRITE_OPTIONS: Final = {
    # The directory belongs to one batch of one generation and is read after the job has ended.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing one batch's rows."""

    rows: int = 0
    event: Event | None = None
    staged: tuple[Committable, ...] = ()

    @property
    def size_bytes(self) -> int:
        staged = sum(blob.size_bytes for committable in self.staged for blob in committable.blobs)
        return staged + (self.event.size_bytes if self.event else 0)


class Output(Protocol):
    """Takes the rows of a batch."""

    def write(self, rows: Rows, batch: BatchId) -> Written:
        """Write the rows with exactly one Spark action."""
        ...

    def appended(self, written: Written) -> None:
        """Called after the batch was appended to the step; cuts hold what was written."""
        ...


class ChannelOutput:
    """Writes into the step's channel; the step appends the Event once the gate is open."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, rows: Rows, batch: BatchId) -> Written:
        """Write the rows as Parquet.

        Raises:
            RunError: If the files do not hold as many rows as the executors wrote.
            OSError: If the directory cannot be examined; nothing is deleted then.
        """
        directory = self._channel.data / f"b{batch:012d}"
        remove_tree(directory)
        written = rows.write_parquet(str(directory), _WRITE_OPTIONS)
        files = _files_with_rows(directory)
        count = sum(rows for _, rows in files)
        self._check_count(written, count)
        if not files:
            remove_tree(directory)
            return Written()
        names = tuple(str(path.relative_to(self._channel.data)) for path, _ in files)
        size = sum(path.stat().st_size for path, _ in files)
        return Written(rows=count, event=Event(batch, count, size, names))

    def appended(self, written: Written) -> None:
        """Do nothing: the Event is the batch."""

    def _check_count(self, written: int, found: int) -> None:
        if written != found:
            message = (
                f"the executors wrote {written} rows and {found} are in {self._channel.data}: "
                "files were lost, or driver and executors do not share the scratch directory."
            )
            raise RunError(message)


class SinkOutput:
    """Lets the step's sink stage the rows."""

    def __init__(
        self, sink: OpenSink, generation: Generation, shows: ShowPermit | None = None
    ) -> None:
        """Stage for one generation; `shows` permits it to show batches before their checkpoint."""
        self._sink = sink
        self._generation = generation
        self._shows = shows

    def write(self, rows: Rows, batch: BatchId) -> Written:
        staged = self._sink.stage(rows, self._generation, batch)
        return Written() if staged is None else Written(rows=staged.rows, staged=(staged,))

    def appended(self, written: Written) -> None:
        """Show the rows, if the sink shows batches."""
        if self._shows is not None and isinstance(self._sink, ShowingSink):
            for committable in written.staged:
                self._sink.show(self._shows, committable)


def _files_with_rows(directory: Path) -> list[tuple[Path, int]]:
    found = []
    for path in matching(directory, "part-*"):
        rows = pq.read_metadata(path).num_rows
        if rows:
            found.append((path, rows))
        else:
            path.unlink()
    return found
