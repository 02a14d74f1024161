"""The contract of a sink: a writer that stages rows, and a committer that makes them visible.

A user names a target (`sinks.delta(...)`); a generation opens it. The writer stages the rows of
one batch outside scratch, as the batch's only Spark action (rule F32); readers of the target see no
change. The committer commits only written decisions, proven by a permit, and is called again until
it succeeds: committing a slot twice must change nothing (F8).

`Rows` are the rows of one batch as a sink gets them: not computed yet, and to be computed once. A
batch is either a DataFrame or a batch that Spark has planned already; written as Parquet, the
second kind is not planned again. A sink that needs anything else uses the DataFrame. `share_disk`
determines whether executors see the driver's disk, so that channels, scratch and staged files never
disagree about it. This module imports pyspark only when it is needed.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from cutwater.errors import SinkError
from cutwater.ids import BatchId, Generation, PipelineId, SinkId, Slot
from cutwater.pipeline.nodes import SinkTarget
from cutwater.protocol import cut
from cutwater.protocol.commit import CommitPermit, CommitSink, ShowPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

NO_TARGET: Final[Version] = cut.NO_TARGET
"""The version of a target that does not exist yet."""

STRICT_READING: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Spark's reader for files with our rows: a lost or damaged file is an error, whatever
the session's settings for files are."""

_STEPS_MAX: Final = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The process and sink for which a target is opened.

    Attributes:
        spark: The session whose executors write; None to commit and restore only.
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
        """Open the target for one generation; check that it can be written at all.

        Raises:
            ConfigError: If the target cannot work, naming the option and the reason.
            SinkError: If it cannot be reached now.
        """
        ...

    def stored(self) -> StoredTarget:
        """Return how to find the target again without the user's file; contains no secret."""
        ...


@runtime_checkable
class CheckedTarget(Protocol):
    """Optional part of a target that can be inspected while a pipeline is planned."""

    def check_target(self, sink: SinkId, rows: "StructType | None") -> str | None:
        """Return why the target, in its current state, cannot take the rows; change nothing.

        Nothing relies on this check: a problem that it does not find is refused later.

        Args:
            sink: The sink's name, for errors.
            rows: The columns of its rows; None if they are not known.

        Returns:
            The problem, and what to do, in words that follow the sink's name; None if no problem
            is known, also if there is no target yet.

        Raises:
            CutwaterError: If the target cannot be inspected now.
        """
        ...


@runtime_checkable
class SelectiveTarget(Protocol):
    """Optional part of a target whose kind cannot hold all rows."""

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:
        """Return why no target of this kind can hold such rows; inspect only the columns.

        Called at every start, before anything runs. As with `CheckedTarget`, nothing relies on it.

        Args:
            sink: The sink's name, for errors.
            rows: The columns of its rows.

        Returns:
            The problem, and what to do, in words that follow the sink's name; None if there is
            none.

        Raises:
            CutwaterError: If the check is not possible here.
        """
        ...


@runtime_checkable
class IdentifiedTarget(Protocol):
    """Optional part of a target whose address does not identify it uniquely."""

    def identity(self, sink: SinkId) -> str:
        """Return an identity: the same for all addresses of the target, and unique to it.

        The identity is written to the store, and must contain no secret.

        Args:
            sink: The sink's name, for errors.

        Raises:
            CutwaterError: If the target cannot be inspected now.
        """
        ...


@runtime_checkable
class IdentifiedSink(Protocol):
    """Optional part of an open sink: that of an `IdentifiedTarget`."""

    @property
    def identity(self) -> str:
        """The result of `IdentifiedTarget.identity` for the target that was opened."""
        ...


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """What restoring a target to a version would do; nothing has been done.

    Attributes:
        version: The current version of the target.
        rows: How many rows it shows now; None if unknown.
        rows_then: How many rows it showed at that version; None if unknown.
        obstacle: Why it cannot be restored, in words that follow the sink's name; None if it can.
    """

    version: Version
    rows: int | None = None
    rows_then: int | None = None
    obstacle: str | None = None


class OpenSink(Protocol):
    """A target in use by one generation. `stage` and `commit` are called by different threads.

    A method that cannot do its work now raises `SinkError`; the call is repeated.
    """

    def stage(self, rows: "Rows", generation: Generation, batch: BatchId) -> Committable | None:
        """Write the rows of one batch where no reader sees them, with exactly one Spark action.

        May be called again for a (generation, batch) whose first call failed: leftovers of that
        call are replaced.

        Returns:
            What was staged: explicit files with size and hash, named relative to the target;
            None if the batch has no rows.
        """
        ...

    def problem(self, committable: Committable) -> str | None:
        """Return what is wrong with staged rows (missing, other size or hash); None if intact.

        Intact means: `commit` could make the rows visible now, or could after a `restore` to a
        version without them. It is not enough that the rows were committed once.
        """
        ...

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Make staged rows visible, all or nothing; also called when there are none.

        Committing a slot again changes nothing and returns the version of the first time.

        Staged rows stay, unless the target itself has taken them over for good: a checkpoint that
        is kept may carry the same rows, and a rewind to it commits them again. `retain` and
        `discard` determine when they may be deleted.

        Raises:
            Superseded: If a later slot was committed and this one never was.
        """
        ...

    def look_back(self, version: Version | None) -> RestorePreview:
        """Return what `restore` would do, and whether it is possible; change nothing."""
        ...

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Restore a version (None: the state before the first commit) as a new version.

        Restoring with the same slot again changes nothing and returns the version of the first
        time. Rows that other programs have written since that version are never removed: the
        restore fails instead.

        Raises:
            Superseded: If a later slot was committed and this one never was.
        """
        ...

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what earlier generations staged and will never be committed.

        Called once by each generation, and again if it fails. Only rows of earlier generations may
        be deleted: a process that was paused may call this long after a newer generation has
        started to stage.

        Args:
            generation: The generation that runs now.
            keep: Rows that a kept checkpoint carries, or that are decided and not committed yet;
                never deleted, regardless of the generation that staged them.
        """
        ...


@runtime_checkable
class ShowingSink(OpenSink, Protocol):
    """A target that can show batches before their checkpoint, and be rolled back (rule F33).

    A rollback writes the slot of the claim into the target. While that is the last slot in the
    target, the holder of its permit may show batches, in order. Batches that were shown since can
    be rolled back. Every method that cannot do its work now raises `SinkError`, except `show`.
    Every method raises `Superseded` if a process with a later slot has written to the target.
    """

    def take_back(
        self, permit: ShowPermit, version: Version | None, carried: Sequence[Committable]
    ) -> Version:
        """Roll back batches that were shown after a version (None: all); fence predecessors.

        Calling it again with the same permit changes nothing. Rows that other programs wrote
        before the first batch to roll back stay; it is an error if they wrote rows after it.

        Args:
            permit: The permit of the generation that starts.
            version: The version of the target at the last commit.
            carried: Rows that the cut carries beyond that version; shown again before this returns.

        Returns:
            The version with the rows of the last commit, without the carried rows.
        """
        ...

    def take_over(self, permit: ShowPermit) -> Version:
        """Fence predecessors and leave the target as it is: none of its rows may be revised."""
        ...

    def show(self, permit: ShowPermit, committable: Committable) -> None:
        """Make a batch visible before its checkpoint; showing it again changes nothing.

        A batch that cannot be shown now is shown before the next batch, or by `seal`.
        """
        ...

    def seal(
        self, permit: CommitPermit, committables: Sequence[Committable], shown: Version | None
    ) -> Version:
        """Finalize a decision: publish its missing batches. Used instead of `commit`.

        Args:
            permit: The permit of the decision.
            committables: The batches of the decision, in order, shown or not.
            shown: The version of the target at the previous decision; None if unknown.

        Returns:
            The version that contains all batches of the decision and no batch shown after them.
        """
        ...


@runtime_checkable
class CommitsAtomically(Protocol):
    """Optional part of an open sink that can commit in one transaction with others (ADR 0018).

    Sinks of one pipeline with equal `group` commit a decision together: all of them or none.
    """

    @property
    def group(self) -> Hashable:
        """What sinks share that can commit in one transaction, for example a database."""
        ...

    def act_together(self, acts: Sequence[tuple[OpenSink, CommitSink]]) -> Mapping[SinkId, Version]:
        """Let all these sinks of one group commit or restore one decision; all or none.

        The promises of `commit` and `restore` apply to each of them.

        Raises:
            Superseded: If one of them has committed a later slot and never this one.
            SinkError: If it cannot be done now; the error names the sink that prevents it.
        """
        ...


@runtime_checkable
class KnowsSlots(Protocol):
    """Optional part of an open sink whose target records which slot made a version.

    The versions of a target that was deleted and recreated start again, and mean something else;
    the slots that made them only increase.
    """

    def slot_at(self, version: Version) -> Slot | None:
        """Return the newest slot that was committed at a version; None if unknown.

        Raises:
            SinkError: If the target cannot be inspected now.
        """
        ...


@runtime_checkable
class StaysInPlace(Protocol):
    """Optional part of a sink whose place must not change between two runs of a pipeline."""

    @property
    def stays_in_place(self) -> bool:
        """Whether another place is a mistake that ends the start."""
        ...


@runtime_checkable
class KnowsNewest(Protocol):
    """Optional part of an open sink whose target records the newest slot.

    With it, a target that lost a commit (a restored backup, a failover to a lagging replica, a
    table that was dropped) is refused before anything is committed on top (rule F43). It is called
    before every commit and at every start, so it must be cheap.
    """

    def newest(self) -> Found:
        """Return the newest slot of this sink that the target holds, and what it shows now.

        A commit without rows may leave no trace. A commit with rows and a restore always do,
        unless they returned `NO_TARGET`.

        Raises:
            SinkError: If the target cannot be inspected now.
        """
        ...


@runtime_checkable
class LooksUnnoticed(Protocol):
    """Optional part of an open sink whose `newest` would disturb a process that commits now.

    A preview may run beside the pipeline. It calls `newest_unnoticed` instead of `newest`.
    """

    def newest_unnoticed(self) -> Found:
        """Return what `newest` returns, without any effect on another process.

        It may wait longer, for a commit that another process has begun.

        Raises:
            SinkError: If the target cannot be inspected now.
        """
        ...


@runtime_checkable
class KeepsEveryRow(Protocol):
    """Optional part of an open sink whose target cannot remove rows.

    It can be rewound only if it has written nothing since, which its target must know: a rewind is
    refused if the target has lost a recorded commit, even a later one.
    """

    @property
    def keeps_every_row(self) -> bool:
        """True: rows are never removed."""
        ...


@runtime_checkable
class KeepsPast(Protocol):
    """Optional part of an open sink that keeps data for restores, and can delete it.

    A sink without this keeps what its running generation has staged and committed until `discard`.
    """

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete what no restore to a kept checkpoint needs any more.

        Called after every retention, after `discard` has succeeded. Like `discard`, it may be
        called by a process that was paused: nothing that a newer generation has staged may be
        deleted.

        Args:
            generation: The generation that runs now.
            shown: The versions that the kept cuts may be restored to; None is before the first.
            keep: As for `discard`. Other staged rows that are committed may be deleted; staged rows
                that are not committed yet belong to a future checkpoint.

        Raises:
            SinkError: If it cannot be done now; a later call does it.
        """
        ...


class Rows(Protocol):
    """The rows of one batch, not computed yet."""

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
        """Compute all rows, every column, with exactly one Spark action; return their number."""
        ...

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Write the rows into a directory that does not exist yet, with exactly one Spark action.

        Args:
            directory: Path or address, as Hadoop reads it.
            options: Hadoop settings for this write.
            partition_by: Columns that become directories.

        Returns:
            How many rows the executors wrote, as they counted them. If the files hold fewer rows,
            rows were lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrameRows:
    frame: "DataFrame"

    @property
    def schema(self) -> "StructType":
        return self.frame.schema

    def gathered(self) -> "FrameRows":
        return FrameRows(self.frame.coalesce(1))

    def count(self) -> int:
        # `DataFrame.count` would let Spark skip everything that is not needed to count.
        return int(self.frame._jdf.queryExecution().toRdd().count())  # noqa: SLF001

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        counted, frame = observed(self.frame)
        frame.write.options(**options).partitionBy(*partition_by).parquet(directory)
        return int(counted.get["rows"])


def observed(frame: "DataFrame") -> "tuple[Observation, DataFrame]":
    """Return the same rows, and an observation that counts them as `rows` when computed."""
    from pyspark.sql import Observation  # noqa: PLC0415 - only staging needs it
    from pyspark.sql.functions import count, lit  # noqa: PLC0415

    counted = Observation()
    return counted, frame.observe(counted, count(lit(1)).alias("rows"))


def repeat_until_found(
    sink: SinkId,
    step: Callable[[], _T | None],
    failures: tuple[type[Exception], ...],
    on_failure: Callable[[], None] = lambda: None,
) -> _T:
    """Change a target step by step until a step finds that everything is done.

    The result of a change is never taken from the call that makes it: the next step reads the
    target. So a step may be repeated after any failure. `step` returns what it finds, or makes one
    change and returns None. SinkError if 20 steps were not enough.
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
    """Return the message of an error as part of a sentence."""
    return str(error).strip().rstrip(".") or type(error).__name__


def share_disk(spark: "SparkSession | None") -> bool:
    """Return whether a session's executors certainly see the driver's disk.

    They do if there are none (no session), or if they run on the driver's machine: in its process
    (`local`, `local[4]`) or in separate processes (`local-cluster[2,1,1024]`). For any other master
    it is unknown.
    """
    return spark is None or is_one_machine(str(spark.sparkContext.master))


def is_one_machine(master: str) -> bool:
    kind = master.partition("[")[0]
    return kind in {"local", "local-cluster"}
