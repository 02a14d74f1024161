"""Two-phase commit: what a cut makes visible, and the machine that completes it (section 9).

Writers prepare; the decision is written once; only then do committers act, with a permit that
only the decision gives. With two or more sinks a cut with data in flight is a recovery point: the
prepared output is carried to the next cut with nothing in flight, so that tables never disagree
(rule F3). A cut before the next commit is due (`CommitPace`) is a recovery point too. A sink that
fails is retried until it succeeds. Past the budget the pipeline is COMMIT_BLOCKED and names the
sink; it resumes by itself when the cause is gone (F41). The pipeline is also COMMIT_BLOCKED while
the store does not accept the record of the commit. Upholds I7, I8 and I10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot, StepId
from cutwater.protocol.checkpoint.failure import backoff_ms
from cutwater.protocol.cut import Committable, Cut, StepSnapshot, Version
from cutwater.protocol.lost_commit import Recorded
from cutwater.protocol.options import CommitOptions
from cutwater.protocol.transitions import TransitionTable

Staged = Mapping[SinkId, tuple[Committable, ...]]


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What the sinks do at a cut."""

    commit_point: bool
    commit: Staged
    carried: Staged


def plan_commit(
    snapshots: Mapping[StepId, StepSnapshot],
    sinks: tuple[SinkId, ...],
    carried: Staged,
    decided: Mapping[StepId, BatchId],
    options: CommitOptions,
    *,
    due: bool = True,
) -> CommitPlan:
    """Choose between commit point and recovery point, and gather the staged output.

    Args:
        carried: What earlier cuts prepared and no sink has committed.
        decided: Each step's batch in the last decided cut: output staged up to that batch is
            already in that cut, whatever the snapshot lists (rule F8).
        due: Whether a commit is due (`CommitPace`).
    """
    pending = {sink: list(carried.get(sink, ())) for sink in sinks}
    for step, snapshot in sorted(snapshots.items()):
        for committable in snapshot.staged:
            if committable.batch > decided[step]:
                pending[committable.sink].append(committable)
    gathered = {sink: tuple(found) for sink, found in pending.items()}
    nothing = dict.fromkeys(sinks, ())
    aligned = not any(snapshot.in_flight for snapshot in snapshots.values())
    if due and (aligned or not waits_for_alignment(sinks, options)):
        return CommitPlan(True, gathered, nothing)
    return CommitPlan(False, nothing, gathered)


def waits_for_alignment(sinks: tuple[SinkId, ...], options: CommitOptions) -> bool:
    """Return whether sinks commit only at aligned cuts, so that tables never disagree (F3)."""
    return len(sinks) > 1 and not options.commit_unaligned


_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to act on one decision. Only `grant` creates it; sinks require it."""

    pipeline: PipelineId
    slot: Slot
    checkpoint_id: CheckpointId
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            message = "a commit permit comes from a written decision only."
            raise ProtocolViolation(message)

    def key(self, sink: SinkId) -> str:
        return f"{self.pipeline}/{sink}/{self.slot}"


def grant(pipeline: PipelineId, slot: Slot, checkpoint_id: CheckpointId) -> CommitPermit:
    """Create the permit of a written decision. Called after the decision was read back."""
    return CommitPermit(pipeline, slot, checkpoint_id, _SEAL)


@dataclass(frozen=True, slots=True)
class ShowPermit:
    """The right of one generation to publish batches before their checkpoint (F33, ADR 0021).

    With `visibility="batch"` a sink publishes every batch as soon as it is staged. Published rows
    may be revised: after a failure the sink is rolled back to the cut, before anything is replayed.
    Recovery grants the permit after it has rolled the sink back in the name of its claim. The
    rollback writes the claim's slot, higher than any slot of its predecessors, into the target, and
    a batch is published only while that slot is the newest one there. A paused predecessor finds
    its successor's slot and publishes nothing more.
    """

    pipeline: PipelineId
    slot: Slot
    generation: Generation
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            message = "a permit to publish batches comes from a written claim only."
            raise ProtocolViolation(message)


def grant_shows(pipeline: PipelineId, claim: Slot, generation: Generation) -> ShowPermit:
    """Create the permit of a claim that was read back from the log, by its slot."""
    return ShowPermit(pipeline, claim, generation, _SEAL)


class CommitterState(Enum):
    IDLE = auto()
    """Every decision has been committed and recorded."""
    COMMITTING = auto()
    """Sinks are acting on a decision; the next decision waits."""
    COMMIT_BLOCKED = auto()
    """A sink has not acted within the budget, or the store has not accepted the record of the
    commit; it is retried until it succeeds."""


class CommitterTrigger(Enum):
    DECIDED = auto()
    BUDGET_SPENT = auto()
    SINK_DONE = auto()
    RECORD_FAILED = auto()
    RECORDED = auto()


_C, _T = CommitterState, CommitterTrigger

COMMITTER: Final = TransitionTable(
    "committer",
    _C.IDLE,
    {
        (_C.IDLE, _T.DECIDED): _C.COMMITTING,
        (_C.COMMITTING, _T.SINK_DONE): _C.COMMITTING,
        (_C.COMMITTING, _T.BUDGET_SPENT): _C.COMMIT_BLOCKED,
        (_C.COMMIT_BLOCKED, _T.SINK_DONE): _C.COMMITTING,
        (_C.COMMITTING, _T.RECORD_FAILED): _C.COMMIT_BLOCKED,
        (_C.COMMIT_BLOCKED, _T.RECORD_FAILED): _C.COMMIT_BLOCKED,
        (_C.COMMITTING, _T.RECORDED): _C.IDLE,
        (_C.COMMIT_BLOCKED, _T.RECORDED): _C.IDLE,
    },
)


@dataclass(frozen=True, slots=True)
class CommitSink:
    """Let one sink act on the decision: commit in order, or roll back to a version.

    Attributes:
        version: The version to roll back to; None for the beginning.
        shown: What the sink showed before a checkpoint's decision; None if unknown.
        last_write: The last recorded decision that made the sink write; None if unknown.
    """

    permit: CommitPermit
    sink: SinkId
    committables: tuple[Committable, ...]
    restore: bool = False
    version: Version | None = None
    shown: Version | None = None
    last_write: Slot | None = None

    @property
    def recorded(self) -> Recorded | None:
        """What the target must already hold; None if nothing is known about it (rule F43)."""
        return None if self.last_write is None else Recorded(self.last_write, self.shown)


@dataclass(frozen=True, slots=True)
class RecordCommit:
    """All sinks are done: record what each made visible. Retried until it is written."""

    permit: CommitPermit
    versions: Mapping[SinkId, Version]


@dataclass(frozen=True, slots=True)
class CommitBlocked:
    """A sink, or the record, has failed for longer than the budget; retries continue.

    Without a sink all sinks have acted and the store does not accept the record.
    """

    slot: Slot
    sink: SinkId | None
    reason: str


CommitCommand = CommitSink | RecordCommit | CommitBlocked


@dataclass(slots=True)
class _Retry:
    failures: int = 0
    at_ms: int | None = None
    reason: str = "no answer yet"


class Committer:
    """Carries one decision at a time through all sinks.

    A decision before the previous one is finished, or a record before all sinks have acted, is a
    `ProtocolViolation`.
    """

    def __init__(self, pipeline: PipelineId, options: CommitOptions) -> None:
        self._pipeline = pipeline
        self._options = options
        self._state = COMMITTER.initial
        self._permit: CommitPermit | None = None
        self._work: dict[SinkId, CommitSink] = {}
        self._retries: dict[SinkId, _Retry] = {}
        self._versions: dict[SinkId, Version] = {}
        self._began_ms = 0
        self._record_at_ms: int | None = None
        self._record_failures = 0

    def decided(self, slot: Slot, cut: Cut, now_ms: int) -> tuple[CommitCommand, ...]:
        """Start with a written decision; a recovery point needs no action."""
        if not cut.commit_point:
            if self._state is not CommitterState.IDLE:
                COMMITTER.next(self._state, CommitterTrigger.DECIDED)
            return ()
        self._state = COMMITTER.next(self._state, CommitterTrigger.DECIDED)
        permit = grant(self._pipeline, slot, cut.checkpoint_id)
        self._permit = permit
        self._began_ms = now_ms
        self._record_at_ms = None
        self._record_failures = 0
        self._versions = {}
        rewinds = bool(cut.restores)
        self._work = {
            sink: CommitSink(
                permit,
                sink,
                cut.commit[sink],
                rewinds,
                cut.restores.get(sink),
                # A rewind that leaves a sink as it is does not know what the sink shows.
                None if cut.origin is not None else cut.visible.get(sink),
                None if cut.origin is not None else cut.last_writes.get(sink),
            )
            for sink in cut.commit
        }
        self._retries = {sink: _Retry() for sink in self._work}
        if not self._work:
            return (RecordCommit(permit, {}),)
        return tuple(self._work.values())

    def sink_done(self, slot: Slot, sink: SinkId, version: Version) -> tuple[CommitCommand, ...]:
        """Note that a sink has acted. A repeated answer changes nothing."""
        permit = self._current(slot)
        if permit is None or sink not in self._work:
            return ()
        self._state = COMMITTER.next(self._state, CommitterTrigger.SINK_DONE)
        del self._work[sink]
        self._versions[sink] = version
        return () if self._work else (RecordCommit(permit, dict(self._versions)),)

    def sink_failed(
        self, slot: Slot, sink: SinkId, reason: str, now_ms: int
    ) -> tuple[CommitCommand, ...]:
        """Note that a sink could not act; it is retried after a pause."""
        if self._current(slot) is None or sink not in self._work:
            return ()
        options, retry = self._options, self._retries[sink]
        retry.failures += 1
        retry.reason = reason
        retry.at_ms = now_ms + backoff_ms(retry.failures, options.retry_ms, options.retry_max_ms)
        return self._block_if_late(slot, sink, reason, now_ms)

    def _block_if_late(
        self, slot: Slot, sink: SinkId, reason: str, now_ms: int
    ) -> tuple[CommitCommand, ...]:
        late = now_ms - self._began_ms >= self._options.budget_ms
        if not late or self._state is not CommitterState.COMMITTING:
            return ()
        self._state = COMMITTER.next(self._state, CommitterTrigger.BUDGET_SPENT)
        return (CommitBlocked(slot, sink, reason),)

    def tick(self, now_ms: int) -> tuple[CommitCommand, ...]:
        """Retry the sinks whose pause is over; name a sink that has not answered at all."""
        again: list[CommitCommand] = []
        if self._permit is not None and self._work:
            worst = max(self._work, key=lambda sink: self._retries[sink].failures)
            reason = self._retries[worst].reason
            again += self._block_if_late(self._permit.slot, worst, reason, now_ms)
        elif self._permit is not None:
            again += self._record_again(self._permit, now_ms)
        for sink, command in self._work.items():
            retry = self._retries[sink]
            if retry.at_ms is not None and now_ms >= retry.at_ms:
                retry.at_ms = None
                again.append(command)
        return tuple(again)

    def _record_again(self, permit: CommitPermit, now_ms: int) -> tuple[CommitCommand, ...]:
        """Retry an unconfirmed record; writing the record twice changes nothing."""
        due_ms = self._record_at_ms
        if due_ms is None or now_ms >= due_ms:
            self._record_at_ms = now_ms + self._options.retry_max_ms
        return (
            ()
            if due_ms is None or now_ms < due_ms
            else (RecordCommit(permit, dict(self._versions)),)
        )

    def recorded(self, slot: Slot) -> Mapping[SinkId, Version] | None:
        """Note that the record is written; return what is visible now, or None for another slot."""
        if self._current(slot) is None:
            return None
        self._check_all_have_acted(slot)
        self._state = COMMITTER.next(self._state, CommitterTrigger.RECORDED)
        self._permit = None
        return self._versions

    def record_failed(self, slot: Slot, reason: str, now_ms: int) -> tuple[CommitCommand, ...]:
        """Note that the record could not be written; it is retried after a pause.

        Nothing can be decided until the record is written, and a stop does not wait for it:
        recovery repeats the commit. Therefore it is reported at once, and only once.
        """
        if self._current(slot) is None:
            return ()
        self._check_all_have_acted(slot)
        is_news = self._state is not CommitterState.COMMIT_BLOCKED
        self._state = COMMITTER.next(self._state, CommitterTrigger.RECORD_FAILED)
        options = self._options
        self._record_failures += 1
        pause_ms = backoff_ms(self._record_failures, options.retry_ms, options.retry_max_ms)
        self._record_at_ms = now_ms + pause_ms
        return (CommitBlocked(slot, None, reason),) if is_news else ()

    def _check_all_have_acted(self, slot: Slot) -> None:
        if self._work:
            message = f"slot {slot} cannot be recorded: {sorted(self._work)} have not committed."
            raise ProtocolViolation(message)

    def _current(self, slot: Slot) -> CommitPermit | None:
        permit = self._permit
        return permit if permit is not None and permit.slot == slot else None

    def waits_for(self, slot: Slot, sink: SinkId) -> bool:
        return self._current(slot) is not None and sink in self._work

    @property
    def wake_at_ms(self) -> int | None:
        """When a sink is to be retried or the budget ends; None if nothing waits for time."""
        times = [retry.at_ms for sink, retry in self._retries.items() if sink in self._work]
        known = [at_ms for at_ms in times if at_ms is not None]
        if self._work and self._state is CommitterState.COMMITTING:
            known.append(self._began_ms + self._options.budget_ms)
        if self._permit is not None and not self._work:
            known.append(self._record_at_ms or self._began_ms)
        return min(known, default=None)

    @property
    def state(self) -> CommitterState:
        return self._state
