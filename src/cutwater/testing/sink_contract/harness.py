"""What the tests of `SinkContract` do with a sink: reopen it, stage, read, compare.

A `Trial` is one sink in one directory, as several generations and processes open it.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import BlobRef, Committable, Version
from cutwater.sinks.base import KeepsPast, OpenSink, Rows, Sink, SinkContext
from cutwater.store.backends.directories import files_below

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


PIPELINE: Final = PipelineId("5f0c1a52-8f6e-4f0b-9d5e-0c1f5a7d2b11")
SINK: Final = SinkId("checked")
_TOLD_S: Final = 30.0


def check(holds: object, message: str) -> None:
    """Fail with a message that says which part of the contract is broken."""
    if not holds:
        raise AssertionError(message)


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


class Described(Protocol):
    """A sink as its owner describes it for the tests; `SinkContract` says what each means."""

    def target(self, directory: Path) -> Sink:
        """Name the target below a directory."""
        ...

    def shown(self, directory: Path) -> list[int]:
        """Return the ids that readers see."""
        ...

    def rows(self, spark: "SparkSession | None", ids: Sequence[int]) -> Rows:
        """Return rows with these ids."""
        ...


@dataclass
class Trial:
    """One sink in one directory."""

    contract: Described
    spark: "SparkSession | None"
    directory: Path
    next_batch: int = 0

    def opened(self, *, without_spark: bool = False) -> OpenSink:
        """Open the target, as another process would."""
        spark = None if without_spark else self.spark
        return self.contract.target(self.directory).open(SinkContext(spark, PIPELINE, SINK))

    def stage(self, sink: OpenSink, *ids: int, generation: int = 1) -> tuple[Committable, ...]:
        """Stage rows as the next batch."""
        self.next_batch += 1
        return self.stage_batch(sink, self.next_batch, *ids, generation=generation)

    def stage_batch(
        self, sink: OpenSink, batch: int, *ids: int, generation: int = 1
    ) -> tuple[Committable, ...]:
        """Stage rows as a batch of a certain number."""
        rows = self.contract.rows(self.spark, ids)
        found = sink.stage(rows, Generation(generation), BatchId(batch))
        return () if found is None else (found,)

    def retain(
        self,
        sink: OpenSink,
        generation: int,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete what a sink has staged and no kept checkpoint needs."""
        if isinstance(sink, KeepsPast):
            sink.retain(Generation(generation), shown, keep)

    def shows(self, ids: Sequence[int], moment: str) -> None:
        found = self.contract.shown(self.directory)
        check(found == list(ids), f"{moment} readers see {found} instead of {list(ids)}")


def file_of(blob: BlobRef, directory: Path) -> Path:
    for path in files_below(directory):
        if hashlib.sha256(path.read_bytes()).hexdigest() == blob.sha256:
            return path
    raise AssertionError(f"there is no file with the hash of {blob.name}")


def jobs_of(context: "SparkContext", group: str) -> int:
    """Count the Spark jobs of a group that has run some; Spark reports them with a delay."""
    deadline = time.monotonic() + _TOLD_S
    tracker = context.statusTracker()
    while not (found := tracker.getJobIdsForGroup(group)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(found)


def same(*versions: Version) -> None:
    """Check that a slot has one version, whichever process commits it and however often."""
    check(len(set(versions)) == 1, f"a slot that is acted on again has other versions: {versions}")


def patiently(sink: OpenSink, slot: int, staged: tuple[Committable, ...]) -> Version:
    """Commit as a pipeline does: again while it fails."""
    for _ in range(20):
        try:
            return sink.commit(permit(slot), staged)
        except Superseded:
            raise
        except SinkError:
            continue
    return sink.commit(permit(slot), staged)


def superseded(act: Callable[..., Version], *given: object) -> None:
    try:
        act(*given)
    except Superseded:
        return
    raise AssertionError("an older slot acted after a later one; it must raise Superseded")


def fails(act: Callable[..., Version], *given: object) -> None:
    try:
        act(*given)
    except SinkError:
        return
    raise AssertionError("a sink that cannot go back must raise SinkError")
