"""Looks at a pipeline's checkpoints without running it, and without changing anything.

What there is follows from the decision log; manifests tell what a checkpoint consists of, and
reports fill in what nobody needs for recovery: durations, uploaded bytes, why an attempt failed.
An attempt without a decision has failed, unless the process that took its number still runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import NO_CHECKPOINT, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, Version
from cutwater.protocol.decisions import Decision, LogView
from cutwater.protocol.recovery import Damage, state_damages
from cutwater.protocol.retention import kept
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.reports import AttemptReport

_VANISHED: Final = "the process that took it ended before it was decided"


class Status(StrEnum):
    """What has become of an attempt."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_PROGRESS = "IN_PROGRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One attempt, or a rewind, as the store tells of it.

    Attributes:
        id: Its number.
        status: What has become of it.
        kind: What was asked for; None if not even that can be read.
        generation: Who took it.
        started_at_ms: When it began; None if nobody can say.
        decision: Its decision, if it was decided.
        cut: Its manifest, if it is there and can be read.
        problem: Why the manifest of a decided one cannot be read; empty otherwise.
        discarded: Whether it was decided and its manifest is gone: it cannot be gone back to.
        is_head: Whether the pipeline stands on it.
        versions: What the sinks showed right after it; None if that is not recorded.
        rewinds_to: For a rewind, the number of the checkpoint it made current again.
        report: How it went, if its driver told.
        failure: Why it failed; empty otherwise.
    """

    id: CheckpointId
    status: Status
    kind: CheckpointKind | None
    generation: Generation | None
    started_at_ms: int | None
    decision: Decision | None = None
    cut: Cut | None = None
    problem: str = ""
    discarded: bool = False
    is_head: bool = False
    versions: dict[SinkId, Version] | None = None
    rewinds_to: CheckpointId | None = None
    report: AttemptReport | None = None
    failure: str = ""

    @property
    def name(self) -> str | None:
        """The savepoint's name, from its manifest or else from its report."""
        if self.cut is not None:
            return self.cut.name
        return None if self.report is None else self.report.name


@dataclass(frozen=True, slots=True)
class Overview:
    """Which attempts and decisions a pipeline has, at one look.

    Attributes:
        attempts: The numbers that attempts have taken, in order.
        log: The decision log.
        present: The numbers of the manifests that are there.
        decided: What was decided, by number.
    """

    attempts: tuple[CheckpointId, ...]
    log: LogView
    present: frozenset[CheckpointId]
    decided: Mapping[CheckpointId, Decision] = field(init=False)

    def __post_init__(self) -> None:
        """Index the decisions, once for all that is asked of it."""
        decided = {decision.checkpoint_id: decision for decision in self.log.decisions}
        object.__setattr__(self, "decided", decided)

    @property
    def ids(self) -> tuple[CheckpointId, ...]:
        """The numbers of all attempts and decisions, in order."""
        return tuple(sorted({*self.attempts, *self.decided}))


@dataclass(slots=True)
class Inspector:
    """Looks at one pipeline, once: everything is read when it is first needed.

    Attributes:
        store: The pipeline in its store.
        is_running: Whether some process runs it, so that its last attempt may be in progress.
    """

    store: PipelineStore
    is_running: bool = False
    _problems: dict[BlobRef, str | None] = field(default_factory=dict)

    def look(self, since: CheckpointId = NO_CHECKPOINT) -> Overview:
        """Return which attempts and decisions there are, from three lists and the log.

        Args:
            since: Attempts before this one are left aside.

        Raises:
            StoreError: If the store cannot be read.
        """
        # Attempts first: what is decided after that is missing, never "failed".
        attempts = self.store.attempts.ids(since)
        log = self.store.log.read()
        return Overview(attempts, log, frozenset(self.store.manifests.ids()))

    def view(self, checkpoint_id: CheckpointId, overview: Overview) -> CheckpointView | None:
        """Return one of what `look` has found, whatever became of it; None if it is not there.

        Raises:
            StoreError: If the store cannot be read.
        """
        decision = overview.decided.get(checkpoint_id)
        if decision is not None:
            is_there = checkpoint_id in overview.present
            return self._decided(decision, overview.log, is_there=is_there)
        if checkpoint_id not in overview.attempts:
            return None
        is_last = checkpoint_id == overview.attempts[-1]
        return self._attempt(checkpoint_id, overview.log, is_last=is_last)

    def checkpoints(self, *, everything: bool = False) -> tuple[CheckpointView, ...]:
        """Return all checkpoints that can be gone back to, and the attempts among them.

        Args:
            everything: Also what was deleted since, and attempts before the oldest checkpoint
                that is left. Costs a few reads for every attempt there ever was.

        Raises:
            StoreError: If the store cannot be read.
        """
        since = NO_CHECKPOINT if everything else self._oldest_left()
        overview = self.look(since)
        log, present, decided = overview.log, overview.present, overview.decided
        wanted = set(overview.ids)
        if not everything:
            head = log.head and log.head.checkpoint_id
            wanted = {
                checkpoint_id
                for checkpoint_id in wanted
                if (
                    checkpoint_id in present or checkpoint_id == head
                    if checkpoint_id in decided
                    else checkpoint_id >= since
                )
            }
        found = (self.view(checkpoint_id, overview) for checkpoint_id in sorted(wanted))
        return tuple(view for view in found if view is not None)

    def _oldest_left(self) -> CheckpointId:
        """Return the number of the oldest checkpoint that is left, savepoints left aside."""
        present = frozenset(self.store.manifests.ids())
        left = (
            decision.checkpoint_id
            for decision in self.store.log.read().decisions
            if decision.checkpoint_id in present and decision.kind is not CheckpointKind.SAVEPOINT
        )
        return min(left, default=NO_CHECKPOINT)

    def one(self, checkpoint_id: CheckpointId) -> CheckpointView | None:
        """Return one of them, whatever became of it; None if there never was one.

        Raises:
            StoreError: If the store cannot be read.
        """
        return self.view(checkpoint_id, self.look(checkpoint_id))

    def _decided(self, decision: Decision, log: LogView, *, is_there: bool) -> CheckpointView:
        checkpoint_id = decision.checkpoint_id
        cut, problem = None, ""
        if is_there:
            try:
                cut = self.store.manifests.read(checkpoint_id, decision.manifest_sha256)
            except (Corrupt, NewerFormat, NotFound) as error:
                problem = error.reason
        report = self._report(checkpoint_id, decision.generation)
        started_at_ms = cut.started_at_ms if cut is not None else None
        if decision.kind is CheckpointKind.REWIND or started_at_ms is None:
            # A rewind repeats the manifest of another; when it was decided, its attempt tells.
            started_at_ms = self._started_at_ms(checkpoint_id, started_at_ms)
        origin = None if decision.origin is None else log.at(decision.origin)
        return CheckpointView(
            id=checkpoint_id,
            status=Status.COMPLETED,
            kind=decision.kind,
            generation=decision.generation,
            started_at_ms=started_at_ms,
            decision=decision,
            cut=cut,
            problem=problem,
            discarded=not is_there,
            is_head=decision == log.head,
            versions=self._versions(decision.slot),
            rewinds_to=origin.checkpoint_id if isinstance(origin, Decision) else None,
            report=report,
        )

    def _attempt(
        self, checkpoint_id: CheckpointId, log: LogView, *, is_last: bool
    ) -> CheckpointView:
        try:
            attempt = self.store.attempts.read(checkpoint_id)
        except (Corrupt, NewerFormat, NotFound):
            attempt = None
        generation = attempt.generation if attempt else None
        report = self._report(checkpoint_id, generation)
        open_now = self.is_running and is_last and report is None and generation == log.generation
        failure = report.failure if report else _VANISHED
        return CheckpointView(
            id=checkpoint_id,
            status=Status.IN_PROGRESS if open_now else Status.FAILED,
            kind=attempt.kind if attempt else None,
            generation=generation,
            started_at_ms=attempt.started_at_ms if attempt else None,
            report=report,
            failure="" if open_now else failure or _VANISHED,
        )

    def _report(
        self, checkpoint_id: CheckpointId, generation: Generation | None
    ) -> AttemptReport | None:
        """Read what its driver told of an attempt.

        One of another generation is of an attempt whose number the store did not take then.
        """
        report = self.store.reports.attempt(checkpoint_id)
        is_another = report is not None and generation not in {None, report.generation}
        return None if is_another else report

    def _started_at_ms(self, checkpoint_id: CheckpointId, otherwise: int | None) -> int | None:
        try:
            return self.store.attempts.read(checkpoint_id).started_at_ms
        except (Corrupt, NewerFormat, NotFound):
            return otherwise

    def _versions(self, slot: Slot) -> dict[SinkId, Version] | None:
        try:
            return dict(self.store.commits.read(slot).versions)
        except (Corrupt, NewerFormat, NotFound):
            return None

    # -- verifying

    def verified(self, view: CheckpointView) -> tuple[CheckpointView, tuple[Damage, ...]]:
        """Read every object of a decided checkpoint; return it as it is now, with its damages.

        A pipeline that runs deletes what it no longer keeps, manifests first. So what seems
        damaged is looked at once more: a checkpoint whose manifest is gone as well, and that
        nobody had to keep, has been let go and is not damaged.

        Raises:
            StoreError: If the store does not answer.
        """
        damages = self.damages(view)
        if not damages:
            return view, ()
        now = self.one(view.id) or view
        return now, () if self._is_let_go(now) else self.damages(now)

    def _is_let_go(self, view: CheckpointView) -> bool:
        if not view.discarded:
            return False
        log = self.store.log.read()
        # Nobody keeps less than one, whatever this pipeline has been told to keep.
        stays = kept(log, self.store.commits.through(log), 1, self.store.savepoints.dropped())
        return view.decision not in stays

    def damages(self, view: CheckpointView) -> tuple[Damage, ...]:
        """Read every object of a decided checkpoint, and say which are missing or damaged.

        What a sink has staged outside the store is not looked at: recovery asks the sink.

        Raises:
            StoreError: If the store does not answer.
        """
        cut = view.cut
        if cut is None:
            path = PipelinePaths(self.store.pipeline).manifest(view.id)
            return (Damage(path, view.problem or "it is gone"),)
        staged = f"{PipelinePaths(self.store.pipeline).staged_files}/"
        state = {ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs}
        pending = cut.blobs(committed=view.versions is not None) - state
        refs = sorted({*state, *(ref for ref in pending if ref.name.startswith(staged))})
        problems = ((ref.name, self._problem(ref)) for ref in refs)
        found = (Damage(name, problem) for name, problem in problems if problem is not None)
        return (*state_damages(cut), *found)

    def _problem(self, ref: BlobRef) -> str | None:
        if ref not in self._problems:
            # Reading needs no generation of its own.
            self._problems[ref] = self.store.blobs(Generation(0)).problem(ref)
        return self._problems[ref]
