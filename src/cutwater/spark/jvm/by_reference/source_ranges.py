"""What a channel by reference holds: which rows of its source an Event refers to.

An Event of such a channel has one small file, a `Range`. `file_ranges` and `kafka_ranges` say what
a planned batch of their kind of source reads, and read it again; `source_reference` does the rest.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from cutwater.errors import RunError
from cutwater.runtime.channel import Channel
from cutwater.spark.jvm.native_sink import PlannedBatch


class SourceFile(msgspec.Struct, frozen=True, order=True):
    """One file of a source, as it was when the source's query planned it."""

    path: str
    size_bytes: int
    modified_ms: int


class RecordRange(msgspec.Struct, frozen=True, order=True):
    """Records of one partition of a topic: from `start` up to, and without, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class Range(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an Event refers to.

    Attributes:
        plan: A hash of the plan with which it is evaluated.
        files: The files of a source of files.
        records: The records of a source of Kafka, at most one range for each partition.
    """

    plan: str = ""
    files: tuple[SourceFile, ...] = ()
    records: tuple[RecordRange, ...] = ()

    @property
    def parts(self) -> int:
        """How many files or records it names."""
        return len(self.files) + sum(part.end - part.start for part in self.records)


class SourceRanges(Protocol):
    """How one kind of source says what a batch reads, and reads it again."""

    def planned(self, rows: PlannedBatch) -> Range | None:
        """Return what a planned batch reads, without its plan; None if that is nothing."""
        ...

    def relation(self, channel: Channel, ranges: Sequence[Range]) -> Any:
        """Return Spark's relation over ranges in their order.

        Rows that are gone or have changed are a `RunError`, or fail the job that reads them.
        """
        ...

    def check(self, channel: Channel, ranges: Sequence[Range]) -> None:
        """Refuse restored ranges whose rows are gone or have changed, with a `RunError`."""
        ...

    def size_bytes(self, found: Range) -> int:
        """Return how many bytes a range has, at least roughly."""
        ...

    def facts(self) -> str:
        """Return what else than the plan decides which rows are read."""
        ...


def lost(channel: Channel, why: str) -> RunError:
    return RunError(
        f"channel {channel.id} refers to rows of its source that cannot be read as they were: "
        f"{why}. Put them back, or rewind to a checkpoint before they were read; with "
        "materialize=True the channel would hold the rows themselves."
    )
