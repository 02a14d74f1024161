"""What a coordinator may and must answer, event by event, as plainly as possible.

`NaiveCoordinator.judge` is given an event and the commands that came back. From the event it works
out what is owed; every command must be owed, or (an automatic start) at least be allowed, and at
the end nothing may be owed any more. It never looks inside the real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, SinkId, Slot, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import (
    AckResult,
    CancelResult,
    CheckpointRequest,
    RequestResult,
)
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitBlocked, CommitSink, RecordCommit
from cutwater.protocol.cut import CheckpointKind, Committable, StepSnapshot, Version
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.messages import Barrier, Flag
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.topology import Topology

UNCOUNTED = frozenset(
    {
        FailureReason.ID_TAKEN,
        FailureReason.SUBSUMED,
        FailureReason.CANCELLED,
        FailureReason.GAVE_WAY,
        FailureReason.STOPPED,
    }
)
"""Ends that say nothing about the health of the pipeline."""

Owed = tuple[object, ...]
"""A command as plain facts: its name, then what matters about it."""


class Stage(Enum):
    """How far an open attempt has come."""

    RESERVING = auto()
    COLLECTING = auto()
    PUBLISHING = auto()
    DECIDING = auto()


@dataclass
class NaiveAttempt:
    """An attempt that has not ended."""

    number: CheckpointId
    request: CheckpointRequest
    started_at_ms: int
    deadline_ms: int
    stage: Stage = Stage.RESERVING
    acknowledged: dict[StepId, StepSnapshot] = field(default_factory=dict)
    contradicts: bool = False

    @property
    def can_fail(self) -> bool:
        return self.stage is not Stage.DECIDING

    @property
    def stands_alone(self) -> bool:
        """Whether it was requested by name: a later checkpoint must not end it (F30)."""
        return self.request.drain or self.request.kind is not CheckpointKind.CHECKPOINT


@dataclass
class NaiveCommit:
    """A decision the sinks are acting on."""

    slot: Slot
    decided_at_ms: int
    waiting: dict[SinkId, tuple[BatchId, ...]]
    versions: dict[SinkId, Version] = field(default_factory=dict)
    failures: dict[SinkId, int] = field(default_factory=dict)
    reasons: dict[SinkId, str] = field(default_factory=dict)
    retry_at_ms: dict[SinkId, int] = field(default_factory=dict)
    record_at_ms: int | None = None
    record_failures: int = 0
    blocked: bool = False


@dataclass
class NaiveCoordinator:
    """All that a coordinator's answers depend on."""

    topology: Topology
    options: CheckpointOptions
    generation: Generation
    slot: Slot
    last_id: CheckpointId
    batches: dict[StepId, BatchId]
    carried: dict[SinkId, list[BatchId]]
    overtaken: bool = False
    now_ms: int = 0
    open: dict[CheckpointId, NaiveAttempt] = field(default_factory=dict)
    ended: dict[CheckpointId, int] = field(default_factory=dict)
    queue: list[CheckpointRequest] = field(default_factory=list)
    commit: NaiveCommit | None = None
    decided: list[CheckpointId] = field(default_factory=list)
    streak: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    drained: bool = False
    garbage_due: bool = True
    collecting: bool = False
    ending: events.RestartPipeline | events.Halt | None = None
    over: bool = False
    may_be_fenced: bool = False
    recovery_points: int | None = None
    gave_rows_at_ms: int | None = None
    owed: list[Owed] = field(default_factory=list)

    # -- judging

    def judge(
        self, event: events.CoordinatorEvent, commands: Sequence[events.CoordinatorCommand]
    ) -> None:
        self.now_ms = event.now_ms
        self.owed = []
        if self.over:
            self.expect_when_over(event)
        else:
            self.expect(event)
            self.expect_what_follows()
        may_start = self.may_start(self.earliest_start_ms())
        must_start = self.may_start(self.latest_start_ms())
        for command in commands:
            fact = facts_of(command)
            if isinstance(command, events.ReserveId):
                assert may_start, f"{command} must not start at {self.now_ms}"
                may_start = must_start = False
                assert fact == self.start()
            else:
                assert fact in self.owed, f"{fact} is not owed, but {self.owed}"
                self.owed.remove(fact)
        assert not self.owed, f"not done: {self.owed}"
        assert not must_start, f"nothing started at {self.now_ms}"

    def expect_when_over(self, event: events.CoordinatorEvent) -> None:
        if isinstance(event, events.Acknowledged):
            one = event.snapshot
            self.owed.append(("AnswerAck", one.step, one.checkpoint_id, AckResult.LATE))
        if isinstance(event, events.Requested):
            self.owed.append(("AnswerRequest", event.request, RequestResult.NOT_RUNNING))
        if isinstance(event, events.Cancelled):
            self.owed.append(("AnswerCancel", CancelResult.NOT_OPEN, event.checkpoint_id))

    def expect(self, event: events.CoordinatorEvent) -> None:
        match event:
            case events.Clock():
                self.on_clock()
            case events.Requested(request, _, at_once):
                self.on_requested(request, at_once=at_once)
            case events.Reserved(number, won):
                self.on_reserved(number, won=won)
            case events.Acknowledged(snapshot):
                result = self.on_acknowledged(snapshot)
                fact = ("AnswerAck", snapshot.step, snapshot.checkpoint_id, result)
                self.owed.append(fact)
            case events.Declined(step, generation, number, reason):
                if generation == self.generation and step in self.topology.participants:
                    self.fail_if_possible(number, reason)
            case events.Cancelled():
                self.on_cancelled(event)
            case events.Published(number, digest):
                self.on_published(number, digest)
            case events.ReserveFailed(number) | events.PublishFailed(number):
                self.fail_if_possible(number, FailureReason.STORE_FAILED)
            case events.DecisionMade(number, outcome):
                self.on_decision(number, outcome)
            case _:
                self.expect_rest(event)

    def expect_rest(self, event: events.CoordinatorEvent) -> None:
        match event:
            case events.SinkCommitted(slot, sink, version):
                self.on_sink_committed(slot, sink, version)
            case events.SinkFailed(slot, sink, reason):
                self.on_sink_failed(slot, sink, reason)
            case events.SinkFenced(slot, sink):
                if self.waits_for(slot, sink):
                    self.halt(events.HaltReason.FENCED)
            case events.SinkBehind(slot, sink):
                if self.waits_for(slot, sink):
                    self.halt(events.HaltReason.TARGET_BEHIND)
            case events.CommitRecorded(slot):
                if self.commit is not None and self.commit.slot == slot:
                    self.commit = None
            case events.RecordFailed(slot, reason):
                self.on_record_failed(slot, reason)
            case events.GarbageCollected():
                self.collecting = False
            case events.Drained(waiting):
                self.drained = waiting and self.sinks_turn(self.now_ms)
            case events.StepFailed():
                self.wind_down(events.RestartPipeline(FailureReason.STEP_FAILED, ""))
            case events.Stop():
                self.wind_down(events.Halt(events.HaltReason.STOPPED))

    # -- starting

    def on_requested(self, request: CheckpointRequest, *, at_once: bool) -> None:
        result = RequestResult.QUEUED
        if self.ending is not None:
            result = RequestResult.NOT_RUNNING
        elif len(self.queue) >= self.options.queue_limit + at_once:
            result = RequestResult.QUEUE_FULL
        elif at_once:
            self.queue.insert(0, request)
            for number in tuple(self.open):
                self.fail_if_possible(number, FailureReason.GAVE_WAY)
        else:
            self.queue.append(request)
        self.owed.append(("AnswerRequest", request, result))

    def may_start(self, due_ms: int) -> bool:
        return (
            not self.over
            and self.ending is None
            and not self.garbage_due
            and not self.collecting
            and self.has_room()
            and (bool(self.queue) or self.now_ms >= due_ms)
        )

    def has_room(self) -> bool:
        """Whether another attempt may be open.

        Numbers are taken one at a time, so that attempts start in their order, and nothing
        starts beside a savepoint.
        """
        exclusive = any(
            attempt.stage is Stage.RESERVING or attempt.stands_alone
            for attempt in self.open.values()
        )
        return not exclusive and len(self.open) < self.options.max_concurrent

    def pause_ms(self) -> int:
        doubled = self.options.retry_ms * 2 ** max(0, self.streak - 1)
        return min(doubled, self.options.retry_max_ms) if self.streak else 0

    def earliest_start_ms(self) -> int:
        """Before this an automatic start would ignore interval, pause or backoff."""
        return min(self.possible_starts_ms())

    def latest_start_ms(self) -> int:
        """From here on an automatic start is owed."""
        return max(self.possible_starts_ms())

    def possible_starts_ms(self) -> tuple[int, ...]:
        if self.started_at_ms is None:
            return (self.now_ms,)
        due_ms = self.started_at_ms + self.options.interval_ms
        if self.drained and self.options.flush_when_drained:
            due_ms = self.now_ms
        if self.ended_at_ms is None:
            return (due_ms,)
        rested_ms = self.ended_at_ms + self.options.min_pause_ms
        if self.streak == 0:
            return (max(due_ms, rested_ms),)
        # A failed attempt is repeated after the pause, unless another has started since then.
        repeated_ms = max(self.ended_at_ms + self.pause_ms(), rested_ms)
        if self.started_at_ms < self.ended_at_ms:
            return (repeated_ms,)
        if self.started_at_ms == self.ended_at_ms:
            return (repeated_ms, max(due_ms, rested_ms))
        return (max(due_ms, rested_ms), max(due_ms, repeated_ms))

    def start(self) -> Owed:
        request = self.queue.pop(0) if self.queue else CheckpointRequest()
        if self.recovery_points is None:
            kept_waiting = self.overtaken and self.commits_whole_cuts_only()
            waited = kept_waiting and any(self.carried.values())
            self.recovery_points = self.options.commit.recovery_points_max if waited else 0
        plain = request.kind is CheckpointKind.CHECKPOINT
        if plain and self.recovery_points >= self.options.commit.recovery_points_max:
            request = replace(request, kind=CheckpointKind.FULL)
        self.last_id = CheckpointId(self.last_id + 1)
        attempt = NaiveAttempt(self.last_id, request, self.now_ms, self.now_ms)
        alone, options = attempt.stands_alone, self.options
        attempt.deadline_ms += options.savepoint_timeout_ms if alone else options.timeout_ms
        self.open[self.last_id] = attempt
        self.started_at_ms = self.now_ms
        self.drained = False
        return ("ReserveId", self.last_id, request.kind)

    def on_reserved(self, number: CheckpointId, *, won: bool) -> None:
        attempt = self.open.get(number)
        if attempt is None:
            return
        if not won:
            self.queue.insert(0, attempt.request)
            self.fail(attempt, FailureReason.ID_TAKEN)
            return
        attempt.stage = Stage.COLLECTING
        flags = Flag.NONE
        if attempt.request.kind is not CheckpointKind.CHECKPOINT:
            flags |= Flag.FULL_SNAPSHOT
        if attempt.request.drain:
            flags |= Flag.DRAIN
        barrier = Barrier(number, self.generation, flags, attempt.started_at_ms)
        self.owed.append(("StartAttempt", barrier))

    # -- collecting

    def on_acknowledged(self, snapshot: StepSnapshot) -> AckResult:
        attempt = self.open.get(snapshot.checkpoint_id)
        known = snapshot.step in self.topology.participants
        if snapshot.generation != self.generation:
            return AckResult.STALE_GENERATION
        if attempt is None:
            return AckResult.LATE if known and self.was_started(snapshot) else AckResult.UNKNOWN
        if not known or attempt.stage is Stage.RESERVING:
            return AckResult.UNKNOWN
        if snapshot.step in attempt.acknowledged:
            return AckResult.DUPLICATE
        attempt.acknowledged[snapshot.step] = snapshot
        return AckResult.ACCEPTED

    def was_started(self, snapshot: StepSnapshot) -> bool:
        return snapshot.checkpoint_id <= self.last_id

    def is_ready(self, attempt: NaiveAttempt) -> bool:
        complete = set(attempt.acknowledged) == self.topology.participants
        return complete and attempt.stage is Stage.COLLECTING

    # -- deciding

    def on_published(self, number: CheckpointId, digest: str) -> None:
        attempt = self.open.get(number)
        if attempt is not None:
            attempt.stage = Stage.DECIDING
            self.owed.append(("CreateDecision", self.slot + 1, number, digest))

    def on_decision(self, number: CheckpointId, outcome: DecisionOutcome) -> None:
        attempt = self.open[number]
        if outcome is not DecisionOutcome.WRITTEN:
            fenced = outcome is DecisionOutcome.TAKEN
            reason = events.HaltReason.FENCED if fenced else events.HaltReason.OUTCOME_UNKNOWN
            self.halt(reason)
            return
        pending, commit_point = self.plan(attempt)
        self.slot = Slot(self.slot + 1)
        self.decided.append(number)
        self.batches = {step: snapshot.batch for step, snapshot in attempt.acknowledged.items()}
        self.streak = 0
        self.garbage_due = True
        self.end(attempt, decided=True, reason=None)
        for older in [attempt for attempt in self.open.values() if attempt.number < number]:
            assert not older.stands_alone
            self.fail(older, FailureReason.SUBSUMED)
        self.overtaken = any(snapshot.in_flight for snapshot in attempt.acknowledged.values())
        if commit_point:
            self.recovery_points = 0
        elif self.sinks_turn(attempt.started_at_ms):
            self.recovery_points = (self.recovery_points or 0) + 1
        if commit_point and any(pending.values()):
            self.gave_rows_at_ms = attempt.started_at_ms
        if not commit_point:
            self.carried = {sink: list(found) for sink, found in pending.items()}
            return
        self.carried = {sink: [] for sink in pending}
        self.commit = NaiveCommit(self.slot, self.now_ms, dict(pending))
        self.owed += [("CommitSink", self.slot, *row) for row in pending.items()]
        if not pending:
            self.owed.append(("RecordCommit", self.slot, ()))

    def plan(self, attempt: NaiveAttempt) -> tuple[Mapping[SinkId, tuple[BatchId, ...]], bool]:
        """Every staged batch up to the cut that no earlier cut committed, sink by sink."""
        pending: dict[SinkId, tuple[BatchId, ...]] = {}
        for spec in self.topology.steps:
            if spec.sink is not None:
                newest = attempt.acknowledged[spec.step].batch
                fresh = range(self.batches.get(spec.step, NO_BATCH) + 1, newest + 1)
                staged = [*self.carried.get(spec.sink, []), *(BatchId(number) for number in fresh)]
                pending[spec.sink] = tuple(staged)
        aligned = not any(snapshot.in_flight for snapshot in attempt.acknowledged.values())
        turn = attempt.stands_alone or attempt.request.is_last
        turn = turn or self.sinks_turn(attempt.started_at_ms)
        return pending, turn and (aligned or not self.commits_whole_cuts_only())

    def commits_whole_cuts_only(self) -> bool:
        sinks = [spec.sink for spec in self.topology.steps if spec.sink is not None]
        return len(sinks) >= 2 and not self.options.commit.commit_unaligned

    def sinks_turn(self, at_ms: int) -> bool:
        """Whether this long after the last rows sinks may be given more; at once at first."""
        if self.gave_rows_at_ms is None:
            return True
        return at_ms >= self.gave_rows_at_ms + self.options.commit.every_ms

    # -- committing

    def waits_for(self, slot: Slot, sink: SinkId) -> bool:
        commit = self.commit
        return commit is not None and commit.slot == slot and sink in commit.waiting

    def on_sink_committed(self, slot: Slot, sink: SinkId, version: Version) -> None:
        commit = self.commit
        if commit is None or not self.waits_for(slot, sink):
            return
        del commit.waiting[sink]
        commit.retry_at_ms.pop(sink, None)
        commit.versions[sink] = version
        commit.blocked = False
        if not commit.waiting:
            self.owed.append(("RecordCommit", slot, tuple(sorted(commit.versions.items()))))

    def on_sink_failed(self, slot: Slot, sink: SinkId, reason: str) -> None:
        commit = self.commit
        if commit is None or not self.waits_for(slot, sink):
            return
        failures = commit.failures[sink] = commit.failures.get(sink, 0) + 1
        commit.reasons[sink] = reason
        options = self.options.commit
        pause_ms = min(options.retry_ms * 2 ** (failures - 1), options.retry_max_ms)
        commit.retry_at_ms[sink] = self.now_ms + pause_ms
        self.block_if_late(commit, sink, reason)

    def on_record_failed(self, slot: Slot, reason: str) -> None:
        commit = self.commit
        if commit is None or commit.slot != slot:
            return
        commit.record_failures += 1
        options = self.options.commit
        pause_ms = min(options.retry_ms * 2 ** (commit.record_failures - 1), options.retry_max_ms)
        commit.record_at_ms = self.now_ms + pause_ms
        if not commit.blocked:
            commit.blocked = True
            self.owed.append(("CommitBlocked", slot, None, reason))

    def block_if_late(self, commit: NaiveCommit, sink: SinkId, reason: str) -> None:
        """Name a sink once when the budget is spent, and again after another one has acted."""
        spent = self.now_ms - commit.decided_at_ms >= self.options.commit.budget_ms
        if spent and not commit.blocked:
            commit.blocked = True
            self.owed.append(("CommitBlocked", commit.slot, sink, reason))

    # -- ending

    def on_clock(self) -> None:
        for attempt in tuple(self.open.values()):
            if self.now_ms >= attempt.deadline_ms:
                self.fail_if_possible(attempt.number, FailureReason.EXPIRED)
            last_ms = attempt.deadline_ms + self.options.timeout_ms
            if attempt.stage is Stage.DECIDING and self.now_ms >= last_ms:
                self.halt(events.HaltReason.OUTCOME_UNKNOWN)
                return
        commit = self.commit
        if commit is not None and not commit.waiting:
            self.record_again(commit)
        if commit is not None and commit.waiting:
            worst = max(commit.waiting, key=lambda sink: commit.failures.get(sink, 0))
            self.block_if_late(commit, worst, commit.reasons.get(worst, "no answer yet"))
            for sink, at_ms in sorted(commit.retry_at_ms.items()):
                if self.now_ms >= at_ms:
                    del commit.retry_at_ms[sink]
                    self.owed.append(("CommitSink", commit.slot, sink, commit.waiting[sink]))

    def record_again(self, commit: NaiveCommit) -> None:
        """Request a record again that is not confirmed."""
        due_ms = commit.record_at_ms
        if due_ms is None or self.now_ms >= due_ms:
            commit.record_at_ms = self.now_ms + self.options.commit.retry_max_ms
        if due_ms is not None and self.now_ms >= due_ms:
            versions = tuple(sorted(commit.versions.items()))
            self.owed.append(("RecordCommit", commit.slot, versions))

    def on_cancelled(self, event: events.Cancelled) -> None:
        number = event.checkpoint_id
        if number is None:
            number = next(iter(self.open)) if len(self.open) == 1 else None
        attempt = None if number is None else self.open.get(number)
        result = CancelResult.NOT_OPEN
        if attempt is not None:
            result = CancelResult.CANCELLED if attempt.can_fail else CancelResult.TOO_LATE
            self.fail_if_possible(attempt.number, FailureReason.CANCELLED)
        elif number is None and self.open:
            result = CancelResult.AMBIGUOUS
        self.owed.append(("AnswerCancel", result, number))

    def fail_if_possible(self, number: CheckpointId, reason: FailureReason) -> None:
        attempt = self.open.get(number)
        if attempt is not None and attempt.can_fail:
            self.fail(attempt, reason)

    def fail(self, attempt: NaiveAttempt, reason: FailureReason) -> None:
        self.end(attempt, decided=False, reason=reason)
        if reason in UNCOUNTED:
            return
        self.streak += 1
        tolerable = self.options.tolerable_failed
        if tolerable is not None and self.streak > tolerable:
            self.wind_down(events.RestartPipeline(reason, ""))

    def end(self, attempt: NaiveAttempt, *, decided: bool, reason: FailureReason | None) -> None:
        del self.open[attempt.number]
        self.ended[attempt.number] = self.ended.get(attempt.number, 0) + 1
        self.ended_at_ms = self.now_ms
        self.owed.append(("EndAttempt", attempt.number, decided, reason))

    def wind_down(self, ending: events.RestartPipeline | events.Halt) -> None:
        if self.ending is None or isinstance(ending, events.Halt):
            self.ending = ending
        stopped = isinstance(self.ending, events.Halt)
        reason = FailureReason.STOPPED if stopped else FailureReason.STEP_FAILED
        self.dismiss()
        for attempt in tuple(self.open.values()):
            self.fail_if_possible(attempt.number, reason)

    def dismiss(self) -> None:
        """Refuse all requests that wait for their turn."""
        while self.queue:
            self.owed.append(("AnswerRequest", self.queue.pop(), RequestResult.NOT_RUNNING))

    def halt(self, reason: events.HaltReason) -> None:
        """Leave everything as it is, because another process may have decided."""
        self.dismiss()
        self.owed.append(("Halt", reason))
        self.over = self.may_be_fenced = True

    # -- after every event

    def expect_what_follows(self) -> None:
        """Decide, end or collect garbage as soon as it is possible."""
        if self.over:
            return
        while self.commit is None and not self.is_deciding():
            ready = [attempt for attempt in self.open.values() if self.is_ready(attempt)]
            if not ready:
                break
            oldest = min(ready, key=lambda one: one.number)
            if oldest.contradicts:
                self.fail(oldest, FailureReason.INCONSISTENT_CUT)
                continue
            oldest.stage = Stage.PUBLISHING
            self.owed.append(("PublishManifest", oldest.number, *self.plan(oldest)))
        if self.ending is not None:
            self.expect_the_end()
        elif self.garbage_due and self.commit is None and not self.open:
            self.garbage_due, self.collecting = False, True
            self.owed.append(("CollectGarbage",))

    def is_deciding(self) -> bool:
        busy = (Stage.PUBLISHING, Stage.DECIDING)
        return any(attempt.stage in busy for attempt in self.open.values())

    def expect_the_end(self) -> None:
        busy = self.commit is not None and not self.commit.blocked
        if self.open or busy or self.collecting:
            return
        match self.ending:
            case events.RestartPipeline(reason):
                self.owed.append(("RestartPipeline", reason))
            case events.Halt(reason):
                self.owed.append(("Halt", reason))
        self.over = True

    def waits_until_ms(self) -> list[int]:
        """When something is due that only the clock can bring about."""
        due = [
            attempt.deadline_ms + (0 if attempt.can_fail else self.options.timeout_ms)
            for attempt in self.open.values()
        ]
        if self.commit is not None:
            if not self.commit.waiting:
                due.append(self.commit.record_at_ms or self.commit.decided_at_ms)
            due += self.commit.retry_at_ms.values()
            if self.commit.waiting and not self.commit.blocked:
                due.append(self.commit.decided_at_ms + self.options.commit.budget_ms)
        held_up = self.garbage_due or self.collecting or self.ending is not None
        if self.started_at_ms is not None and self.has_room() and not held_up:
            due.append(self.latest_start_ms())
        return due


def facts_of(command: events.CoordinatorCommand) -> Owed:
    """Reduce a command to what matters about it."""
    match command:
        case events.EndAttempt(number, decided, reason):
            return ("EndAttempt", number, decided, reason)
        case events.PublishManifest(cut):
            staged = cut.commit if cut.commit_point else cut.carried
            pending = {sink: batches_of(found) for sink, found in staged.items()}
            return ("PublishManifest", cut.checkpoint_id, pending, cut.commit_point)
        case events.CreateDecision(slot, cut, digest):
            return ("CreateDecision", slot, cut.checkpoint_id, digest)
        case CommitSink(permit, sink, committables):
            return ("CommitSink", permit.slot, sink, batches_of(committables))
        case RecordCommit(permit, versions):
            return ("RecordCommit", permit.slot, tuple(sorted(versions.items())))
        case CommitBlocked(slot, sink, why):
            return ("CommitBlocked", slot, sink, why)
        case events.RestartPipeline(reason):
            return ("RestartPipeline", reason)
        case events.Halt(halt):
            return ("Halt", halt)
        case _:
            return facts_of_answer(command)


def facts_of_answer(command: events.CoordinatorCommand) -> Owed:
    match command:
        case events.AnswerAck(step, number, answer):
            return ("AnswerAck", step, number, answer)
        case events.AnswerRequest(request, result):
            return ("AnswerRequest", request, result)
        case events.AnswerCancel(_, cancelled, number):
            return ("AnswerCancel", cancelled, number)
        case events.ReserveId(number, kind):
            return ("ReserveId", number, kind)
        case events.StartAttempt(barrier):
            return ("StartAttempt", barrier)
        case _:
            return (type(command).__name__,)


def batches_of(committables: Sequence[Committable]) -> tuple[BatchId, ...]:
    return tuple(committable.batch for committable in committables)
