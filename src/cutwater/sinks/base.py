"""The contract of a sink: a writer that stages and a committer that makes visible, apart.

A user names a target (`sinks.delta(...)`); a generation opens it. The writer stages the rows of
one batch outside scratch, as the batch's one and only Spark action (rule F32); nothing a reader of
the target can see has changed then. The committer acts on a written decision alone, proven by a
permit, and is asked again until it succeeds: acting twice on one slot must change nothing (F8).

`Rows` are the rows of one batch as a sink gets them: not computed yet, and to be computed once. A
batch is either a DataFrame or a batch that Spark has planned already; written as Parquet, the
second kind is not planned again. A sink that needs anything else uses the DataFrame. `share_disk`
says whether executors see the driver's disk, so that channels, scratch and staged files never
disagree about it. Nothing here imports pyspark before it is needed.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from cutwater.errors import SinkError
from cutwater.ids import BatchId, Generation, PipelineId, SinkId, Slot
from cutwater.pipeline.nodes import SinkTarget
from cutwater.protocol import cut
from cutwater.protocol.commit import CommitPermit, CommitSink
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.protocol.showing import ShowPermit
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

NO_TARGET: Final[Version] = cut.NO_TARGET
"""What a sink calls the version of a target that does not exist yet."""

STRICT_READING: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Spark's reader for files that hold rows of ours: one that is lost or damaged is an
error, whatever the session says of files in general."""

_STEPS_MAX: Final = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who opens a sink.

    Attributes:
        spark: The session whose executors write; None for whoever only commits and restores.
        pipeline: The pipeline's uuid, part of every idempotence key.
        sink: The sink's name in the pipeline.
    """

    spark: "SparkSession | None"
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

    def stored(self) -> StoredTarget:
        """Say how to find the target again without the user's file; holds no secret."""
        ...


@runtime_checkable
class CheckedTarget(Protocol):
    """What a target has besides if it can be looked at while a pipeline is planned."""

    def check_target(self, sink: SinkId, rows: "StructType | None") -> str | None:
        """Say why the target, as it is now, cannot take the rows of a sink; changes nothing.

        Nothing relies on it: whatever it cannot see is refused later, as if it were not there.

        Args:
            sink: The sink's name, for errors.
            rows: The columns of its rows; None if they are not known.

        Returns:
            What is wrong, and what to do, in words that follow the sink's name; None if nothing
            is known against it, also if there is no target yet.

        Raises:
            CutwaterError: If it cannot be looked at now.
        """
        ...


@runtime_checkable
class SelectiveTarget(Protocol):
    """What a target has besides if not all rows can go into one of its kind."""

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:
        """Say why no target of this kind can hold such rows; looks at nothing but the columns.

        Asked at every start, before anything runs. As with `CheckedTarget`, nothing relies on it.

        Args:
            sink: The sink's name, for errors.
            rows: The columns of its rows.

        Returns:
            What is wrong, and what to do, in words that follow the sink's name; None if nothing is.

        Raises:
            CutwaterError: If that cannot be said here.
        """
        ...


@runtime_checkable
class IdentifiedTarget(Protocol):
    """What a target has besides if its address does not tell it from every other one."""

    def identity(self, sink: SinkId) -> str:
        """Return what is the same for all addresses of the target and for no other target.

        It is written to the store, and must hold no secret.

        Args:
            sink: The sink's name, for errors.

        Raises:
            CutwaterError: If the target cannot be looked at now.
        """
        ...


@runtime_checkable
class IdentifiedSink(Protocol):
    """What the open sink of an `IdentifiedTarget` has besides."""

    @property
    def identity(self) -> str:
        """What `IdentifiedTarget.identity` says of the target that was opened."""
        ...


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """What taking a target back to a version would do; nothing has been done.

    Attributes:
        version: What the target shows now.
        rows: How many rows it shows now; None if that is not known.
        rows_then: How many it showed at that version; None if that is not known.
        obstacle: Why it cannot go back, in words that follow the sink's name; None if it can.
    """

    version: Version
    rows: int | None = None
    rows_then: int | None = None
    obstacle: str | None = None


class OpenSink(Protocol):
    """A target in use by one generation. `stage` and `commit` come from different threads."""

    def stage(self, rows: "Rows", generation: Generation, batch: BatchId) -> Committable | None:
        """Write the rows of one batch where no reader sees them, with exactly one Spark action.

        May be called again for a (generation, batch) whose first call failed: what that call
        left behind is replaced.

        Returns:
            What was staged: explicit files with size and hash, named relative to the target;
            None if the batch has no rows.
        """
        ...

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with something staged (missing, other size or hash); None if sound.

        Sound means: `commit` could make the rows visible now, or could after a `restore` to a
        version without them. That the rows were committed once is not enough.
        """
        ...

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Make what was staged visible, all of it or nothing; also when there is nothing.

        Acting again on a slot changes nothing and returns the version of the first time.

        What was staged stays, unless the target itself has taken it over for good: a checkpoint
        that is kept may carry the same rows, and a rewind to it commits them again. `retain` and
        `discard` say when it may be deleted.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now; it is asked again.
        """
        ...

    def look_back(self, version: Version | None) -> RestorePreview:
        """Say what `restore` would do, and whether it can; changes nothing.

        Raises:
            SinkError: If the target cannot be looked at now.
        """
        ...

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Take the target back to a version (None: as before the first commit), as a new one.

        Acting again on a slot changes nothing and returns the version of the first time. What
        others have written since that version is never taken away: that is an error.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now.
        """
        ...

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what generations before this one staged and nobody will commit.

        Called once by each generation, again if it fails. Only what is older than the generation
        may be deleted: a process that was paused may call this long after a newer generation has
        begun to stage.

        Args:
            generation: The generation that runs now.
            keep: What a kept checkpoint carries, or has decided and not committed yet; never
                deleted, whoever staged it.
        """
        ...


@runtime_checkable
class ShowingSink(OpenSink, Protocol):
    """A target that can show batches before their checkpoint, and be taken back (rule F33).

    The slot of a claim is written into the target when it is taken back. While that is the last
    slot there, whoever has its permit may show batches, in order; what was shown since is what
    can be taken back.
    """

    def take_back(
        self, permit: ShowPermit, version: Version | None, carried: Sequence[Committable]
    ) -> Version:
        """Take away what was shown after a version (None: all of it); shut out predecessors.

        Acting again with a permit changes nothing. What others have written before the first
        batch that is taken away stays; if they have written after it, that is an error.

        Args:
            permit: That of the generation that begins.
            version: What the target showed at the last commit.
            carried: What the cut holds beyond it; shown again before this returns.

        Returns:
            The version that holds what it showed then, without what is carried.

        Raises:
            Superseded: If somebody with a later slot has acted on the target.
            SinkError: If it cannot be done now.
        """
        ...

    def take_over(self, permit: ShowPermit) -> Version:
        """Shut out predecessors and leave the target as it is: nothing in it is ours to revise.

        Raises:
            Superseded: As `take_back`.
            SinkError: As `take_back`.
        """
        ...

    def show(self, permit: ShowPermit, committable: Committable) -> None:
        """Make a batch visible before its checkpoint; again changes nothing.

        What cannot be shown now is shown before the next batch, or by `seal`.

        Raises:
            Superseded: If somebody with a later slot has acted on the target.
        """
        ...

    def seal(
        self, permit: CommitPermit, committables: Sequence[Committable], shown: Version | None
    ) -> Version:
        """Act on a decision: see that what it holds is visible. Takes the place of `commit`.

        Args:
            permit: The decision's.
            committables: What it holds, in order, shown or not.
            shown: What the target showed at the decision before it; None if that is not known.

        Returns:
            The version that holds all of it and nothing that was shown behind it.

        Raises:
            Superseded: If somebody with a later slot has acted on the target.
            SinkError: If it cannot be done now; it is asked again.
        """
        ...


@runtime_checkable
class CommitsAtomically(Protocol):
    """What an open sink has besides if it can act in one transaction with others (ADR 0018).

    Sinks of one pipeline whose `group` is equal act on a decision together: all of them or none.
    """

    @property
    def group(self) -> Hashable:
        """What sinks share that can act in one transaction, for instance a database."""
        ...

    def act_together(self, acts: Sequence[tuple[OpenSink, CommitSink]]) -> Mapping[SinkId, Version]:
        """Let all these sinks, which are of this group, act on one decision; all or none.

        To each of them applies what `commit` and `restore` promise.

        Raises:
            Superseded: If one of them has acted on a later slot and never on this one.
            SinkError: If it cannot be done now; it names the sink that stands against it.
        """
        ...


@runtime_checkable
class KnowsSlots(Protocol):
    """What an open sink has besides if its target says which slot made a version.

    Versions of a target that was deleted and made anew begin again, and mean something else; the
    slots that made them only go forward.
    """

    def slot_at(self, version: Version) -> Slot | None:
        """Return the newest slot that had been acted on at a version; None if nobody can tell.

        Raises:
            SinkError: If the target cannot be looked at now.
        """
        ...


@runtime_checkable
class KnowsNewest(Protocol):
    """What an open sink has besides if its target says which slot it was written at last.

    With it, a target that lost a commit (a restored backup, a failover to a lagging replica, a
    table that was dropped) is refused before anything is committed on top (rule F43). Asked before
    every commit and at every start, so it must be cheap. A sink that cannot tell leaves it out.
    """

    def newest(self) -> Found:
        """Return the newest slot of this sink that the target holds, and what it shows now.

        A commit without rows may leave no trace. A commit with rows and a restore always do,
        unless they answered with `NO_TARGET`.

        Raises:
            SinkError: If the target cannot be looked at now.
        """
        ...


@runtime_checkable
class KeepsPast(Protocol):
    """What an open sink has besides if going back costs it room, which it can give up.

    A sink without this keeps what its running generation has staged and committed until `discard`.
    """

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Give up what no kept checkpoint can go back to any more.

        Called after every retention, after `discard` has succeeded. Like `discard` it may come from
        a process that was paused: nothing that a newer generation has staged may be deleted.

        Args:
            generation: The generation that runs now.
            shown: The versions that the kept cuts may go back to; None is before the first.
            keep: As for `discard`. Other staged rows that are committed may be deleted; those that
                are not committed yet belong to a checkpoint to come.

        Raises:
            SinkError: If it cannot be done now; a later call does it.
        """
        ...


class Rows(Protocol):
    """The rows of one batch, which nobody has computed yet."""

    @property
    def schema(self) -> "StructType":
        """Their columns."""
        ...

    @property
    def frame(self) -> "DataFrame":
        """The rows as a DataFrame."""
        ...

    def gathered(self) -> "Rows":
        """Return the same rows, to be written by one task into one file."""
        ...

    def count(self) -> int:
        """Compute them all, every column, with exactly one Spark action, and keep none."""
        ...

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Write them into a directory that does not exist yet, with exactly one Spark action.

        Args:
            directory: Path or address, as Hadoop reads it.
            options: Settings of Hadoop's for this write.
            partition_by: Columns that become directories.

        Returns:
            How many rows the executors wrote, as they counted them. Files that hold fewer rows
            have lost some on the way.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a DataFrame."""

    frame: "DataFrame"

    @property
    def schema(self) -> "StructType":
        """Their columns."""
        return self.frame.schema

    def gathered(self) -> "FrameRows":
        """Return the same rows, to be written by one task into one file."""
        return FrameRows(self.frame.coalesce(1))

    def count(self) -> int:
        """Compute them all and keep none."""
        # `DataFrame.count` would let Spark leave out whatever is not needed to count.
        return int(self.frame._jdf.queryExecution().toRdd().count())  # noqa: SLF001

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Write them."""
        counted, frame = observed(self.frame)
        frame.write.options(**options).partitionBy(*partition_by).parquet(directory)
        return int(counted.get["rows"])


def observed(frame: "DataFrame") -> "tuple[Observation, DataFrame]":
    """Return the same rows, and what counts them as `rows` while they are computed."""
    from pyspark.sql import Observation  # noqa: PLC0415 - only whoever stages needs it
    from pyspark.sql.functions import count, lit  # noqa: PLC0415

    counted = Observation()
    return counted, frame.observe(counted, count(lit(1)).alias("rows"))


def repeat_until_found(
    sink: SinkId,
    step: Callable[[], _T | None],
    failures: tuple[type[Exception], ...],
    on_failure: Callable[[], None] = lambda: None,
) -> _T:
    """Act on a target step by step until a step finds that everything is done.

    Whether a step has changed the target is never taken from the call that changes it: the next
    step reads the target. So a step may be repeated after any failure.

    Args:
        sink: The sink, for errors.
        step: Looks at the target; returns what it finds, or makes one change and returns None.
        failures: What a step may raise; it is followed by another step.
        on_failure: Called after every such failure.

    Raises:
        SinkError: If 20 steps were not enough.
    """
    reason = ""
    for _ in range(_STEPS_MAX):
        try:
            found = step()
            if found is not None:
                return found
        except failures as error:
            reason = reason_of(error)
            on_failure()
    raise SinkError(sink, f"gave up after {_STEPS_MAX} tries, at last because: {reason}")


def reason_of(error: Exception) -> str:
    """Say what went wrong as part of a sentence."""
    return str(error).strip().rstrip(".") or type(error).__name__


def share_disk(spark: "SparkSession | None") -> bool:
    """Say whether a session's executors see the driver's disk, whatever is mounted where.

    They do where they run on its machine: in its process (`local`, `local[4]`) or in processes of
    their own (`local-cluster[2,1,1024]`). Of any other master nobody can say.

    Args:
        spark: The session; None for whoever has no executors.
    """
    return spark is None or is_one_machine(str(spark.sparkContext.master))


def is_one_machine(master: str) -> bool:
    """Say whether a master runs executors on the driver's machine."""
    kind = master.partition("[")[0]
    return kind in {"local", "local-cluster"}
