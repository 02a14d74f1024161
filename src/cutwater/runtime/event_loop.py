"""One generation of a running pipeline: one event loop that feeds the machines.

Everything that concerns the coordinator happens on the thread of this loop: events arrive through
one inbox, commands are carried out here or handed to the effects. Steps have their own threads and
locks; the loop announces attempts to them, lets them read control messages on their inputs, and
passes the time to them. The loop ends with an outcome. The supervisor decides what follows.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cutwater.errors import RunError
from cutwater.ids import BatchId, ChannelId, StepId
from cutwater.protocol import stopping
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.commit import CommitBlocked, CommitSink, CommitterState, RecordCommit
from cutwater.protocol.recovery import Restore
from cutwater.protocol.step.aligner_events import Announced, Tick
from cutwater.protocol.step.events import Ended
from cutwater.protocol.stopping import Stopping
from cutwater.runtime.context import RunContext
from cutwater.runtime.effects import Effects
from cutwater.runtime.engine import Built
from cutwater.runtime.outcome import End, Outcome
from cutwater.runtime.reporting.attempt_history import AttemptHistory
from cutwater.runtime.reporting.recovery_timing import FirstBatch, Phase, Phases
from cutwater.runtime.step import DriverCallbacks, RunningStep
from cutwater.store.records.reports import RecoveryReport
from cutwater.tasks import Inbox

_LOG: Final = logging.getLogger(__name__)
_LOOK_MS: Final = 500
"""How often the loop checks whether steps are done. It wakes earlier for a deadline."""

_PAUSE_MS: Final = 20
"""The min time between two deadlines: they must not starve the inbox."""

_OVERDUE_MS: Final = 100
"""How often a step is reminded of an alignment timeout that has passed."""

_FIRST_BATCH_MS: Final = 100
"""How often the loop looks for the first batch of a generation, for the report of a recovery."""

_HEALTH_MS: Final = 2_000
"""How often the loop checks that queries are alive: one call into the JVM each. A failure inside a
batch is reported at once."""


@dataclass(frozen=True, slots=True)
class _Noticed:
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class _Failed:
    step: StepId | None
    error: BaseException


@dataclass(frozen=True, slots=True)
class _StopAsked:
    request: CheckpointRequest | None
    insists: bool


_Item = events.CoordinatorEvent | _Noticed | _Failed | _StopAsked


class Generation:
    """A generation, from its build to its outcome."""

    def __init__(
        self,
        context: RunContext,
        restore: Restore,
        history: AttemptHistory,
        phases: Phases,
        tell: Callable[[RecoveryReport], None],
    ) -> None:
        """Build the generation; nothing runs yet. RecoveryError for a cut of another pipeline."""
        self._context = context
        self.number = restore.generation
        self.history = history
        history.generation = restore.generation
        self.phases = phases
        self.blocked = ""
        self.on_resume: Callable[[], None] = lambda: None
        self._clock = context.clock
        self._inbox: Inbox[_Item] = context.tasks.inbox()
        self._effects = Effects(context, restore.generation, self._inbox.put, self._report_defect)
        callbacks = DriverCallbacks(
            post=self._inbox.put,
            upload=self._effects.upload,
            failed=self._report_step_failure,
            generation=restore.generation,
            pipeline=context.pipeline,
            clock=context.clock,
            tasks=context.tasks,
        )
        try:
            with phases.during(Phase.START):
                noticed = lambda channel: self._inbox.put(_Noticed(channel))  # noqa: E731
                self.built: Built = context.engine.build(
                    context, restore, callbacks, noticed, phases
                )
        except BaseException:
            self._effects.close()
            raise
        if restore.cut is not None:
            self._effects.note_restored(restore.cut, restore.standing.slot)
        standing = self.built.standing
        self._coordinator = Coordinator(
            context.pipeline,
            self.built.topology,
            context.options,
            restore.generation,
            # Also above numbers that the store did not accept: they have been reported.
            replace(standing, highest_id=max(standing.highest_id, history.highest)),
        )
        self._pending_events: deque[events.CoordinatorEvent] = deque()
        self._outcome: Outcome | None = None
        self._failure: _Failed | None = None
        self._stopping = Stopping()
        self._batches: list[BatchId] = []
        self._woken_ms = self._look_at_ms = self._health_at_ms = 0
        self.recovery = FirstBatch(phases, restore, self.built.steps.values(), tell)

    # -- from any thread

    def ask_to_stop(self, request: CheckpointRequest | None, *, insists: bool = False) -> None:
        """Stop, after a last checkpoint if one is given; with `insists` resume if that fails."""
        self._inbox.put(_StopAsked(request, insists))

    def request(self, request: CheckpointRequest) -> None:
        """Request a checkpoint; the history reports its result."""
        self._inbox.put(events.Requested(request, self._clock.now_ms()))

    def cancel(self, cancel: events.Cancelled) -> None:
        """Abort an attempt; the history reports the result."""
        self._inbox.put(cancel)

    def _report_step_failure(self, step: RunningStep, error: BaseException) -> None:
        self._inbox.put(_Failed(step.name, error))

    def _report_defect(self, error: BaseException) -> None:
        self._inbox.put(_Failed(None, error))

    # -- the loop

    def run(self) -> Outcome:
        """Start all steps, run until the end, and leave nothing running."""
        try:
            with self.phases.during(Phase.START):
                for step in self.built.steps.values():
                    step.start()
            self._coordinate(events.Clock(self._clock.now_ms()))
            self._loop()
        except BaseException as error:  # noqa: BLE001 - the loop's own defects end a generation
            self._outcome = Outcome(End.FAILED, error=error, detail="the driver failed")
        self.close()
        assert self._outcome is not None
        return self._outcome

    def _loop(self) -> None:
        while self._outcome is None:
            wait_ms = self._wake_at_ms() - self._clock.now_ms()
            item = self._inbox.get(wait_ms / 1000) if wait_ms > 0 else None
            if item is not None:
                self._take(item)
            else:
                self._wake()

    def _wake_at_ms(self) -> int:
        """Return when the loop must act without an item: at a deadline, or for its next look."""
        times = [self._look_at_ms]
        if self.recovery.waits:
            times.append(self._woken_ms + _FIRST_BATCH_MS)
        if self._coordinator.wake_at_ms is not None:
            times.append(self._coordinator.wake_at_ms)
        # A deadline may be over and have no effect yet: the backlog is too large to overtake.
        earliest_ms = self._woken_ms + _OVERDUE_MS
        times += [
            max(deadline_ms, earliest_ms)
            for step in self.built.steps.values()
            if (deadline_ms := step.deadline_ms) is not None
        ]
        return max(min(times), self._woken_ms + _PAUSE_MS)

    def _take(self, item: _Item) -> None:
        match item:
            case _Noticed(channel):
                for reader in self.built.topology.readers(channel):
                    self.built.steps[reader.step].notice()
            case _Failed():
                self._fail(item)
            case _StopAsked(request, insists):
                self._stop(stopping.StopRequested(request, insists, self.blocked))
            case _:
                self._coordinate(item)

    def _wake(self) -> None:
        at_ms = self._clock.now_ms()
        self._coordinate(events.Clock(at_ms))
        for step in self.built.steps.values():
            if step.deadline_ms is not None:
                step.tell(Tick(at_ms))
        if self._outcome is None and at_ms >= self._look_at_ms:
            self._look_at_ms = at_ms + _LOOK_MS
            self._look()
        self.recovery.look()
        self._woken_ms = self._clock.now_ms()

    def _look(self) -> None:
        """Check which steps have failed or are done, and whether all channels are drained."""
        now_ms = self._clock.now_ms()
        checks = now_ms >= self._health_at_ms
        if checks:
            self._health_at_ms = now_ms + _HEALTH_MS
        for step in self.built.steps.values():
            if step.machine.finished:
                continue
            error = step.problem() if checks else None
            if error is not None and self._failure is None:
                self._fail(_Failed(step.name, error))
                return
            if step.try_to_end():
                # The engine is not needed any more; a query that only polls would waste resources.
                step.wiring.signal.close()
                self._context.tasks.start(partial(_halt, step), "halt")
        self._stop(stopping.RetryDue())
        if all(step.machine.finished for step in self.built.steps.values()):
            self._stop(stopping.InputEnded(self.blocked))
        batches = [step.machine.last for step in self.built.steps.values()]
        still, self._batches = batches == self._batches, batches
        idle = still and not any(step.busy for step in self.built.steps.values())
        drained = self._output_waits and idle and not self.built.has_backlog
        self._coordinate(events.Drained(drained, self._clock.now_ms()))

    @property
    def _output_waits(self) -> bool:
        return self._coordinator.carries_output or self.built.has_staged

    # -- ending

    def _fail(self, failure: _Failed) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        name = failure.step or StepId("driver")
        self._coordinate(events.StepFailed(name, self._clock.now_ms()))

    def _stop(self, event: stopping.StopEvent) -> None:
        for command in self._stopping.handle(event):
            match command:
                case stopping.RequestLast(request, at_once):
                    self._coordinate(events.Requested(request, self._clock.now_ms(), at_once))
                case stopping.RefuseStop(request, why):
                    self.history.refuse(request, why)
                case stopping.ResumePipeline():
                    _LOG.warning("resuming: the checkpoint to stop with failed")
                    self.on_resume()
                case stopping.EndPipeline(unsaved):
                    if unsaved and not self._stopping.is_saved:
                        _LOG.warning("stopping without a last checkpoint: %s", unsaved)
                    self._coordinate(events.Stop(self._clock.now_ms()))
                case stopping.FailPipeline(why):
                    self._fail(_Failed(None, RunError(why)))

    def close(self) -> None:
        self.recovery.close()
        for step in self.built.steps.values():
            step.close()
        for channel in self.built.channels.values():
            channel.close()
        halts = [
            self._context.tasks.start(partial(_halt, step), "halt")
            for step in self.built.steps.values()
        ]
        for halt in halts:
            halt.join()
        self.built.close()
        self._effects.close()

    # -- the coordinator

    def _coordinate(self, event: events.CoordinatorEvent) -> None:
        """Pass an event to the coordinator; events from its commands follow after all of them."""
        self._pending_events.append(event)
        if len(self._pending_events) > 1:
            return
        while self._pending_events:
            self._handle(self._pending_events[0])
            self._pending_events.popleft()

    def _handle(self, event: events.CoordinatorEvent) -> None:
        self._context.observe(event)
        self.history.on_event(event)
        if isinstance(event, events.Acknowledged):
            snapshot = event.snapshot
            step = self.built.steps.get(snapshot.step)
            if step is not None:
                report = partial(step.times.report, snapshot)
                self.history.on_acknowledged(snapshot.checkpoint_id, snapshot.step, report)
        commands = self._coordinator.handle(event)
        for command in commands:
            self._carry_out(command)
        self._effects.commit_sinks([act for act in commands if isinstance(act, CommitSink)])
        if self._coordinator.committer_state is CommitterState.IDLE:
            self.blocked = ""

    def _carry_out(self, command: events.CoordinatorCommand) -> None:
        self._context.observe(command)
        self.history.on_command(command, self._effects.uploaded)
        match command:
            case events.StartAttempt(barrier):
                self._effects.begin_attempt(barrier)
                for step in self.built.steps.values():
                    step.tell(Announced(barrier))
                    step.poll()
            case events.EndAttempt(checkpoint_id, decided, reason):
                for step in self.built.steps.values():
                    if decided:
                        step.decided(checkpoint_id)
                    step.tell(Ended(checkpoint_id, decided))
                why = "" if decided else self.history.failure_of(checkpoint_id)
                self._stop(
                    stopping.AttemptEnded(checkpoint_id, decided, reason, why, self._output_waits)
                )
            case CommitBlocked(_, sink, reason):
                self.blocked = self.history.on_blocked(sink, reason)
                self._stop(stopping.SinksBlocked(self.blocked))
            case events.RestartPipeline(reason, detail):
                failure = self._failure
                detail = detail if failure else f"{reason.sentence} ({detail})"
                failed_step, error = (failure.step, failure.error) if failure else (None, None)
                self._outcome = Outcome(End.FAILED, failed_step, error, detail)
            case events.Halt(reason):
                self._outcome = self._conclude_halt(reason)
            case events.AnswerRequest(request, result):
                self.history.on_reply(command)
                if result is RequestResult.QUEUE_FULL:
                    self._stop(stopping.RequestRefused(request))
            case events.AnswerAck() | events.AnswerCancel():
                pass
            case CommitSink():
                # All sinks of one event together, in `_handle`.
                pass
            case _:
                if isinstance(command, events.ReserveId):
                    began = stopping.AttemptBegan(command.checkpoint_id, command.request)
                    self._stop(began)
                state = self._coordinator.committer_state
                if isinstance(command, RecordCommit) and state is CommitterState.COMMITTING:
                    self.blocked = ""
                self._effects.start(command)

    def _conclude_halt(self, reason: events.HaltReason) -> Outcome:
        match reason:
            case events.HaltReason.STOPPED:
                return self._conclude_stop()
            case events.HaltReason.FENCED:
                return Outcome(End.FENCED, error=self._effects.superseded, detail=reason.value)
            case events.HaltReason.TARGET_BEHIND:
                return Outcome(End.FAILED, error=self._effects.behind, detail=reason.value)
            case events.HaltReason.OUTCOME_UNKNOWN:
                return Outcome(End.FAILED, error=self._effects.doubt, detail=reason.value)

    def _conclude_stop(self) -> Outcome:
        failure, stop = self._failure, self._stopping
        if failure is not None and (stop.input_ended or not stop.is_requested):
            return Outcome(End.FAILED, failure.step, failure.error)
        if not stop.input_ended:
            return Outcome(End.STOPPED, detail=stop.unsaved)
        if self._coordinator.committer_state is not CommitterState.IDLE:
            error = RunError(f"{self.blocked or 'a sink has not committed'}.")
            return Outcome(End.FAILED, error=error)
        return Outcome(End.FINISHED if stop.is_saved else End.STOPPED)


def _halt(step: RunningStep) -> None:
    error = step.try_to_halt()
    if error is not None:
        _LOG.warning("step %s did not end cleanly: %s", step.name, error)
