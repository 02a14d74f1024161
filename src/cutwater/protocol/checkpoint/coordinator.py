"""The coordinator: starts attempts, collects acknowledgements, decides, runs the committer.

It only combines the parts (PROTOCOL.md section 7): `schedule` says when to start, `attempt` which
steps have acknowledged, `cut` whether the cut is consistent, `commit` what sinks do, `failure` what
follows from failures. Every attempt ends: by its decision, its deadline, a decline, a failure or a
cancellation; the end is sent to every step. Time arrives only with events.
Upholds I1, I2, I5, I6, I7, I8 and I10.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId, Generation, PipelineId, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import (
    ATTEMPT,
    AckResult,
    Attempt,
    CancelResult,
    Phase,
    PhaseTrigger,
    RequestResult,
)
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.checkpoint.ledger import Contradictions, Ledger
from cutwater.protocol.checkpoint.schedule import Schedule, TriggerFacts, Verdict, decide, due_ms
from cutwater.protocol.commit import Committer, CommitterState
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.topology import Topology

Commands = tuple[events.CoordinatorCommand, ...]


class Coordinator:
    """The checkpoint machine of one generation of one pipeline."""

    def __init__(
        self,
        pipeline: PipelineId,
        topology: Topology,
        options: CheckpointOptions,
        generation: Generation,
        standing: events.Standing,
    ) -> None:
        self._topology = topology
        self._options = options
        self._generation = generation
        self._ledger = Ledger(topology, options, generation, standing)
        self._last_id = standing.highest_id
        self._attempts: dict[CheckpointId, Attempt] = {}
        self._publishing: Cut | None = None
        self._schedule = Schedule(options)
        self._committer = Committer(pipeline, options.commit)
        self._mode = events.COORDINATOR.initial
        self._ending: events.CoordinatorCommand | None = None
        self._handlers: dict[type, Callable[[Any], Commands]] = {
            events.Clock: self._on_clock,
            events.Requested: self._on_requested,
            events.Reserved: self._on_reserved,
            events.ReserveFailed: self._on_store_failed,
            events.Acknowledged: self._on_acknowledged,
            events.Declined: self._on_declined,
            events.StepFailed: self._on_step_failed,
            events.Published: self._on_published,
            events.PublishFailed: self._on_store_failed,
            events.DecisionMade: self._on_decision,
            events.SinkCommitted: self._on_sink_committed,
            events.SinkFailed: self._on_sink_failed,
            events.SinkFenced: self._on_sink_fenced,
            events.SinkBehind: self._on_sink_behind,
            events.CommitRecorded: self._on_recorded,
            events.RecordFailed: self._on_record_failed,
            events.GarbageCollected: self._on_collected,
            events.Cancelled: self._on_cancelled,
            events.Drained: self._on_drained,
            events.Stop: self._on_stop,
        }

    def handle(self, event: events.CoordinatorEvent) -> Commands:
        """Return the commands to carry out, in order.

        Raises:
            ProtocolViolation: If the event is not possible now; the coordinator has not changed.
        """
        if self._mode is events.Mode.HALTED:
            return self._answer_halted(event)
        commands = self._handlers[type(event)](event)
        return commands + self._go_on(event.now_ms)

    def _answer_halted(self, event: events.CoordinatorEvent) -> Commands:
        if isinstance(event, events.Acknowledged):
            snapshot = event.snapshot
            return (events.AnswerAck(snapshot.step, snapshot.checkpoint_id, AckResult.LATE),)
        if isinstance(event, events.Requested):
            return (events.AnswerRequest(event.request, RequestResult.NOT_RUNNING),)
        if isinstance(event, events.Cancelled):
            return (events.AnswerCancel(event, CancelResult.NOT_OPEN, event.checkpoint_id),)
        return ()

    # -- starting

    def _on_clock(self, event: events.Clock) -> Commands:
        commands: Commands = ()
        for attempt in tuple(self._attempts.values()):
            if attempt.can_fail and event.now_ms >= attempt.deadline_ms:
                commands += self._fail(attempt, FailureReason.EXPIRED, event.now_ms)
            elif attempt.phase is Phase.DECIDING and event.now_ms >= self._last_moment(attempt):
                # A decision without an answer may or may not have been written (F15).
                attempt.move(PhaseTrigger.NOT_WRITTEN)
                return commands + self._halt(events.HaltReason.OUTCOME_UNKNOWN)
        return commands + self._committer.tick(event.now_ms)

    def _last_moment(self, attempt: Attempt) -> int:
        """Return until when the coordinator waits for the answer to an issued decision."""
        return attempt.deadline_ms + self._options.timeout_ms

    def _on_requested(self, event: events.Requested) -> Commands:
        if self._mode is not events.Mode.RUNNING:
            return (events.AnswerRequest(event.request, RequestResult.NOT_RUNNING),)
        result = self._schedule.enqueue(event.request, first=event.at_once)
        commands: Commands = (events.AnswerRequest(event.request, result),)
        if event.at_once and result is RequestResult.QUEUED:
            for attempt in tuple(self._attempts.values()):
                if attempt.can_fail:
                    commands += self._fail(attempt, FailureReason.GAVE_WAY, event.now_ms)
        return commands

    def _on_drained(self, event: events.Drained) -> Commands:
        # An early cut would be useless while no commit is due.
        self._schedule.drained = event.waiting and self._ledger.is_due(event.now_ms)
        return ()

    def _start(self, now_ms: int) -> Commands:
        request = self._schedule.started(now_ms)
        if self._ledger.recovery_points >= self._options.commit.recovery_points_max:
            # Sinks have waited long enough: no step overtakes, so this cut commits (F3).
            request = request.standing_alone()
        self._last_id = CheckpointId(self._last_id + 1)
        self._attempts[self._last_id] = Attempt(
            self._last_id,
            self._generation,
            request,
            self._topology.participants,
            now_ms,
            now_ms + request.timeout_ms(self._options),
        )
        return (events.ReserveId(self._last_id, request.kind, request),)

    def _on_reserved(self, event: events.Reserved) -> Commands:
        attempt = self._attempts.get(event.checkpoint_id)
        if attempt is None:
            return ()
        ATTEMPT.next(attempt.phase, PhaseTrigger.RESERVED)
        if not event.won:
            # A predecessor that still runs took the number; the request goes to the front again.
            self._schedule.put_back(attempt.request)
            return self._fail(attempt, FailureReason.ID_TAKEN, event.now_ms)
        attempt.move(PhaseTrigger.RESERVED)
        return (events.StartAttempt(attempt.barrier),)

    # -- collecting

    def _on_acknowledged(self, event: events.Acknowledged) -> Commands:
        snapshot = event.snapshot
        result = self._acknowledge(event)
        return (events.AnswerAck(snapshot.step, snapshot.checkpoint_id, result),)

    def _acknowledge(self, event: events.Acknowledged) -> AckResult:
        snapshot = event.snapshot
        if snapshot.generation != self._generation:
            return AckResult.STALE_GENERATION
        attempt = self._attempts.get(snapshot.checkpoint_id)
        if attempt is not None:
            return attempt.acknowledge(snapshot)
        known = snapshot.step in self._topology and snapshot.checkpoint_id <= self._last_id
        return AckResult.LATE if known else AckResult.UNKNOWN

    def _on_declined(self, event: events.Declined) -> Commands:
        attempt = self._attempts.get(event.checkpoint_id)
        ours = event.generation == self._generation and event.step in self._topology
        if attempt is None or not ours or not attempt.can_fail:
            return ()
        return self._fail(attempt, event.reason, event.now_ms, event.detail)

    def _on_cancelled(self, event: events.Cancelled) -> Commands:
        number = event.checkpoint_id
        if number is None and len(self._attempts) == 1:
            (number,) = self._attempts
        attempt = None if number is None else self._attempts.get(number)
        if attempt is None:
            several = number is None and len(self._attempts) > 1
            result = CancelResult.AMBIGUOUS if several else CancelResult.NOT_OPEN
            return (events.AnswerCancel(event, result, number),)
        if not attempt.can_fail:
            return (events.AnswerCancel(event, CancelResult.TOO_LATE, number),)
        ended = self._fail(attempt, FailureReason.CANCELLED, event.now_ms, event.reason)
        return (*ended, events.AnswerCancel(event, CancelResult.CANCELLED, number))

    # -- deciding

    def _publish(self, attempt: Attempt, now_ms: int) -> Commands:
        cut = self._ledger.build(attempt)
        if isinstance(cut, Contradictions):
            why = "; ".join(cut.sentences)
            return self._fail(attempt, FailureReason.INCONSISTENT_CUT, now_ms, why)
        attempt.move(PhaseTrigger.PUBLISH)
        self._publishing = cut
        return (events.PublishManifest(cut),)

    def _on_published(self, event: events.Published) -> Commands:
        attempt = self._attempts.get(event.checkpoint_id)
        if attempt is None:
            return ()
        attempt.move(PhaseTrigger.DECIDE)
        cut = self._publishing
        assert cut is not None
        return (events.CreateDecision(self._ledger.next_slot, cut, event.manifest_sha256),)

    def _on_store_failed(self, event: events.ReserveFailed | events.PublishFailed) -> Commands:
        attempt = self._attempts.get(event.checkpoint_id)
        if attempt is None:
            return ()
        ATTEMPT.next(attempt.phase, event.answers)
        return self._fail(attempt, FailureReason.STORE_FAILED, event.now_ms, event.detail)

    def _on_decision(self, event: events.DecisionMade) -> Commands:
        attempt = self._attempts.get(event.checkpoint_id)
        if attempt is None:
            message = f"checkpoint {event.checkpoint_id} was not being decided."
            raise ProtocolViolation(message)
        if event.outcome is not DecisionOutcome.WRITTEN:
            attempt.move(PhaseTrigger.NOT_WRITTEN)
            fenced = event.outcome is DecisionOutcome.TAKEN
            reason = events.HaltReason.FENCED if fenced else events.HaltReason.OUTCOME_UNKNOWN
            return self._halt(reason)
        attempt.move(PhaseTrigger.WRITTEN)
        cut, self._publishing = self._publishing, None
        assert cut is not None
        slot = self._ledger.decided(cut)
        self._schedule.completed()
        commands = self._end(attempt, event.now_ms, events.EndAttempt(attempt.checkpoint_id, True))
        for older in tuple(self._attempts.values()):
            if older.checkpoint_id < attempt.checkpoint_id and older.can_fail:
                commands += self._fail(older, FailureReason.SUBSUMED, event.now_ms)
        return commands + self._committer.decided(slot, cut, event.now_ms)

    # -- committing

    def _on_sink_committed(self, event: events.SinkCommitted) -> Commands:
        return self._committer.sink_done(event.slot, event.sink, event.version)

    def _on_sink_failed(self, event: events.SinkFailed) -> Commands:
        return self._committer.sink_failed(event.slot, event.sink, event.reason, event.now_ms)

    def _on_sink_fenced(self, event: events.SinkFenced) -> Commands:
        if not self._committer.waits_for(event.slot, event.sink):
            return ()
        return self._halt(events.HaltReason.FENCED)

    def _on_sink_behind(self, event: events.SinkBehind) -> Commands:
        if not self._committer.waits_for(event.slot, event.sink):
            return ()
        return self._halt(events.HaltReason.TARGET_BEHIND)

    def _on_recorded(self, event: events.CommitRecorded) -> Commands:
        self._ledger.committed(self._committer.recorded(event.slot))
        return ()

    def _on_record_failed(self, event: events.RecordFailed) -> Commands:
        return self._committer.record_failed(event.slot, event.reason, event.now_ms)

    def _on_collected(self, _: events.GarbageCollected) -> Commands:
        self._schedule.collected()
        return ()

    # -- ending

    def _fail(
        self, attempt: Attempt, reason: FailureReason, now_ms: int, detail: str = ""
    ) -> Commands:
        if reason is FailureReason.EXPIRED:
            detail = attempt.waits_for
        attempt.move(PhaseTrigger.FAIL)
        restart = self._schedule.failed(reason)
        end = events.EndAttempt(attempt.checkpoint_id, False, reason, detail)
        commands = self._end(attempt, now_ms, end)
        if restart:
            return commands + self._wind_down(events.RestartPipeline(reason, detail), now_ms)
        return commands

    def _end(self, attempt: Attempt, now_ms: int, end: events.EndAttempt) -> Commands:
        del self._attempts[attempt.checkpoint_id]
        self._schedule.ended(now_ms)
        return (end,)

    def _on_step_failed(self, event: events.StepFailed) -> Commands:
        restart = events.RestartPipeline(FailureReason.STEP_FAILED, f"{event.step} failed")
        return self._wind_down(restart, event.now_ms)

    def _on_stop(self, event: events.Stop) -> Commands:
        return self._wind_down(events.Halt(events.HaltReason.STOPPED), event.now_ms)

    def _wind_down(self, ending: events.CoordinatorCommand, now_ms: int) -> Commands:
        """Start nothing new; fail what may fail; end once nothing is being decided."""
        if self._mode is events.Mode.RUNNING:
            self._mode = events.COORDINATOR.next(self._mode, events.ModeTrigger.END)
            self._ending = ending
        elif isinstance(ending, events.Halt):
            self._ending = ending  # A stop takes precedence over a restart.
        stopped = isinstance(self._ending, events.Halt)
        reason = FailureReason.STOPPED if stopped else FailureReason.STEP_FAILED
        commands: Commands = self._schedule.dismiss()
        for attempt in tuple(self._attempts.values()):
            if attempt.can_fail:
                commands += self._fail(attempt, reason, now_ms)
        return commands

    def _halt(self, reason: events.HaltReason) -> Commands:
        self._mode = events.COORDINATOR.next(self._mode, events.ModeTrigger.HALT)
        return (*self._schedule.dismiss(), events.Halt(reason))

    # -- after every event

    def _go_on(self, now_ms: int) -> Commands:
        """Do what has become possible: decide, end, collect garbage, start."""
        commands: Commands = ()
        if self._mode is events.Mode.HALTED:
            return commands
        idle = self._committer.state is CommitterState.IDLE
        for attempt in tuple(self._attempts.values()) if idle else ():
            if attempt.phase is Phase.READY and not self._being_decided:
                commands += self._publish(attempt, now_ms)
        if self._mode is events.Mode.ENDING:
            return commands + self._finish()
        if idle and not self._attempts and self._schedule.collect():
            commands += (events.CollectGarbage(),)
        if decide(self._facts(now_ms), self._options) is Verdict.START:
            commands += self._start(now_ms)
        return commands

    @property
    def _being_decided(self) -> bool:
        busy = (Phase.PUBLISHING, Phase.DECIDING)
        return any(attempt.phase in busy for attempt in self._attempts.values())

    def _finish(self) -> Commands:
        if self._attempts or self._ending is None:
            return ()
        # Effects of this generation end before the next starts in the same process. A blocked
        # sink or record is not waited for: recovery repeats the commit.
        if self._committer.state is CommitterState.COMMITTING or self._schedule.collecting:
            return ()
        ending, self._ending = self._ending, None
        self._mode = events.COORDINATOR.next(self._mode, events.ModeTrigger.HALT)
        return (ending,)

    def _facts(self, now_ms: int | None) -> TriggerFacts:
        # Attempts start in the order of their numbers, so one at a time reserves its number.
        # Nothing starts next to a savepoint: a later checkpoint would subsume it (F30).
        alone = any(
            attempt.phase is Phase.RESERVING or attempt.request.flags
            for attempt in self._attempts.values()
        )
        open_attempts = self._options.max_concurrent if alone else len(self._attempts)
        ending = self._mode is not events.Mode.RUNNING
        return self._schedule.facts(now_ms, open_attempts, ending=ending)

    # -- facts

    @property
    def mode(self) -> events.Mode:
        return self._mode

    @property
    def committer_state(self) -> CommitterState:
        return self._committer.state

    @property
    def carries_output(self) -> bool:
        """Whether rows wait for the next commit point; a pipeline does not end before it."""
        return self._ledger.carries_output

    # No driver reads the next four: the property tests compare them with their model, and the
    # seed documents name `completed` and `completed_count` (PROTOCOL.md, seed features).

    @property
    def open_attempts(self) -> Mapping[CheckpointId, Phase]:
        """Every attempt that has not ended."""
        return {attempt.checkpoint_id: attempt.phase for attempt in self._attempts.values()}

    def missing(self, checkpoint_id: CheckpointId) -> tuple[StepId, ...]:
        return self._attempts[checkpoint_id].missing

    @property
    def completed(self) -> tuple[Cut, ...]:
        """The newest completed checkpoints of this generation, oldest first, at most `retained`."""
        return self._ledger.completed

    @property
    def completed_count(self) -> int:
        return self._ledger.completed_count

    @property
    def wake_at_ms(self) -> int | None:
        """When the next deadline or automatic start is due; None if nothing waits for time."""
        if self._mode is events.Mode.HALTED:
            return None
        times = [
            attempt.deadline_ms if attempt.can_fail else self._last_moment(attempt)
            for attempt in self._attempts.values()
        ]
        if self._committer.wake_at_ms is not None:
            times.append(self._committer.wake_at_ms)
        facts = self._facts(None)
        if decide(facts, self._options) in (Verdict.NOT_DUE, Verdict.START):
            times.append(due_ms(facts, self._options))
        return min(times, default=None)
