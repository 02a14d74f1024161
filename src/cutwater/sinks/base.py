"""The contract of a sink: a writer that stages and a committer that makes visible, apart.

A user names a target (`sinks.delta(...)`); a generation opens it. The writer stages the rows of
one batch outside scratch, as the batch's one and only Spark action (rule F32); nothing a reader of
the target can see has changed then. The committer acts on a written decision alone, proven by a
permit, and is asked again until it succeeds: acting twice on one slot must change nothing (F8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.node import SinkTarget
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who opens a sink.

    Attributes:
        spark: The session whose executors write.
        pipeline: The pipeline's uuid, part of every idempotence key.
        sink: The sink's name in the pipeline.
    """

    spark: SparkSession
    pipeline: PipelineId
    sink: SinkId


@runtime_checkable
class Sink(SinkTarget, Protocol):
    """A target as the user names it: what planning needs, and how to open it."""

    def open(self, context: SinkContext) -> "OpenSink":
        """Open the target for one generation; checks that it can be written at all.

        Raises:
            ConfigError: If the target cannot work, naming the option and the reason.
            SinkError: If it cannot be reached now.
        """
        ...


class OpenSink(Protocol):
    """A target in use by one generation. `stage` and `commit` come from different threads."""

    def stage(self, rows: DataFrame, generation: Generation, batch: BatchId) -> Committable | None:
        """Write the rows of one batch where no reader sees them, with exactly one Spark action.

        May be called again for a (generation, batch) whose first call failed: what that call
        left behind is replaced.

        Returns:
            What was staged: explicit files with size and hash, named relative to the target;
            None if the batch has no rows.
        """
        ...

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with something staged (missing, other size or hash); None if sound."""
        ...

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Make what was staged visible, all of it or nothing; also when there is nothing.

        Acting again on a slot changes nothing and returns the version of the first time.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now; it is asked again.
        """
        ...

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Take the target back to a version (None: as before the first commit), as a new one.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now.
        """
        ...

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what generations before this one staged and nobody will commit.

        Args:
            generation: The generation that runs now.
            keep: What a cut still carries; never deleted, whoever staged it.
        """
        ...
