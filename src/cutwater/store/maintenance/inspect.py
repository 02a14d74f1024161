"""Inspects a pipeline's checkpoints without running it, and without changing anything.

The decision log determines which checkpoints exist. Manifests contain what a checkpoint consists
of. Reports add information that recovery does not need: durations, uploaded bytes, why an attempt
failed. An attempt without a decision has failed, unless the process that reserved its number still
runs.
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
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_PROGRESS = "IN_PROGRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One attempt, or a rewind, as recorded in the store.

    Attributes:
        kind: What was requested; None if it cannot be read.
        generation: The generation that reserved the number.
        started_at_ms: When it started; None if unknown.
        cut: Its manifest, if it exists and can be read.
        problem: Why the manifest of a decided checkpoint cannot be read; empty otherwise.
        discarded: Whether it was decided and its manifest was deleted: it cannot be restored.
        is_head: Whether it is the pipeline's current checkpoint.
        versions: The versions of the sinks right after it; None if they are not recorded.
        rewinds_to: For a rewind, the number of the checkpoint that it made current again.
        report: Its report, if its driver wrote one.
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
    """The attempts and decisions of a pipeline at one moment.

    Attributes:
        attempts: The numbers that attempts have reserved, in order.
        present: The numbers of the existing manifests.
        decided: The decisions, by number.
    """

    attempts: tuple[CheckpointId, ...]
    log: LogView
    present: frozenset[CheckpointId]
    decided: Mapping[CheckpointId, Decision] = field(init=False)

    def __post_init__(self) -> None:
        """Index the decisions once."""
        decided = {decision.checkpoint_id: decision for decision in self.log.decisions}
        object.__setattr__(self, "decided", decided)

    @property
    def ids(self) -> tuple[CheckpointId, ...]:
        return tuple(sorted({*self.attempts, *self.decided}))


@dataclass(slots=True)
class Inspector:
    """Inspects one pipeline once: everything is read when it is first needed.

    Every public method raises `StoreError` if the store cannot be read.

    Attributes:
        is_running: Whether some process runs it, so that its last attempt may be in progress.
    """

    store: PipelineStore
    is_running: bool = False
    _problems: dict[BlobRef, str | None] = field(default_factory=dict)

    def look(self, since: CheckpointId = NO_CHECKPOINT) -> Overview:
        """Return attempts since a number, and all decisions, from three listings and the log."""
        # Attempts first: one that is decided after that is missing, and never shown as failed.
        attempts = self.store.attempts.ids(since)
        log = self.store.log.read()
        return Overview(attempts, log, frozenset(self.store.manifests.ids()))

    def view(self, checkpoint_id: CheckpointId, overview: Overview) -> CheckpointView | None:
        """Return what `look` has found of a number; None if there is no such number."""
        decision = overview.decided.get(checkpoint_id)
        if decision is not None:
            is_there = checkpoint_id in overview.present
            return self._view_decision(decision, overview.log, is_there=is_there)
        if checkpoint_id not in overview.attempts:
            return None
        is_last = checkpoint_id == overview.attempts[-1]
        return self._view_attempt(checkpoint_id, overview.log, is_last=is_last)

    def checkpoints(self, *, everything: bool = False) -> tuple[CheckpointView, ...]:
        """Return all checkpoints that can be restored, and the attempts between them.

        Args:
            everything: Also return deleted checkpoints, and attempts before the oldest checkpoint
                that still exists. Costs a few reads for every attempt there ever was.
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
        """Return the number of the oldest checkpoint that still exists, ignoring savepoints."""
        present = frozenset(self.store.manifests.ids())
        left = (
            decision.checkpoint_id
            for decision in self.store.log.read().decisions
            if decision.checkpoint_id in present and decision.kind is not CheckpointKind.SAVEPOINT
        )
        return min(left, default=NO_CHECKPOINT)

    def one(self, checkpoint_id: CheckpointId) -> CheckpointView | None:
        return self.view(checkpoint_id, self.look(checkpoint_id))

    def _view_decision(self, decision: Decision, log: LogView, *, is_there: bool) -> CheckpointView:
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
            # A rewind repeats the manifest of another checkpoint; its attempt has its own time.
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

    def _view_attempt(
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
        """Read the report of an attempt.

        A report of another generation belongs to an attempt that failed to reserve the number.
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

    def verify(self, view: CheckpointView) -> tuple[CheckpointView, tuple[Damage, ...]]:
        """Read every object of a decided checkpoint; return it as it is now, with its damages.

        A running pipeline deletes what it no longer keeps, manifests first. So a checkpoint that
        seems damaged is inspected a second time: if its manifest is gone too, and retention did
        not have to keep it, it was deleted by retention and is not damaged.
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
        # At least one checkpoint is kept, whatever retention is configured.
        stays = kept(log, self.store.commits.through(log), 1, self.store.savepoints.dropped())
        return view.decision not in stays

    def damages(self, view: CheckpointView) -> tuple[Damage, ...]:
        """Read every object of a decided checkpoint; return the missing and damaged ones.

        Rows that a sink has staged outside the store are not checked: the sink checks them during
        recovery.
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
            # Reading works with any generation.
            self._problems[ref] = self.store.blobs(Generation(0)).problem(ref)
        return self._problems[ref]
