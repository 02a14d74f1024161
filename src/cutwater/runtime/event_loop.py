"""One generation of a running pipeline: one event loop that feeds the machines.

Everything that concerns the coordinator happens on this loop's thread: events come through one
inbox, commands are carried out or handed to the effects. Steps have their own threads and locks;
the loop tells them what attempts begin and end, lets them see what is new on their inputs, and
tells everybody the time. It ends with an outcome: the next generation, if there is one, is somebody
else's decision.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cutwater.errors import RunError
from cutwater.ids import BatchId, ChannelId, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitBlocked, CommitterState, RecordCommit
from cutwater.protocol.recovery import Restore
from cutwater.protocol.step.aligner_events import Announced, Tick
from cutwater.protocol.step.events import Ended
from cutwater.runtime.clock import now_ms
from cutwater.runtime.context import RunContext
from cutwater.runtime.effects import Effects
from cutwater.runtime.outcome import End, LastCheckpoint, Outcome
from cutwater.runtime.reporting.attempt_history import AttemptBook
from cutwater.runtime.reporting.recovery_timing import FirstBatch, Phase, Phases
from cutwater.runtime.step import RunningStep, Services
from cutwater.spark.engine.build import Build, Built
from cutwater.spark.engine.commit_watch import CommitWatch
from cutwater.store.records.reports import RecoveryReport

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.1
_LOOK_S: Final = 0.5
"""How often steps are asked whether they are done."""

_ASK_S: Final = 2.0
"""How often queries are asked whether they live: a call into the JVM each. What fails inside a
batch is told at once."""


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
        book: AttemptBook,
        phases: Phases,
        tell: Callable[[RecoveryReport], None],
    ) -> None:
        """Build the generation; nothing runs yet.

        Raises:
            PlanError: If a step cannot run on Spark.
            RecoveryError: If the cut is of another pipeline.
            StoreError: If state cannot be fetched.
        """
        self._context = context
        self.number = restore.generation
        self.book = book
        book.generation = restore.generation
        self.phases = phases
        self.blocked = ""
        self.on_going_on: Callable[[], None] = lambda: None
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._effects = Effects(context, restore.generation, self._inbox.put, self._defect)
        self._watch = CommitWatch(self._step_failed)
        services = Services(
            post=self._inbox.put,
            upload=self._effects.upload,
            failed=self._step_failed,
            watch=self._watch.watch,
            generation=restore.generation,
            pipeline=context.pipeline,
        )
        try:
            with phases.during(Phase.START):
                noticed = lambda channel: self._inbox.put(_Noticed(channel))  # noqa: E731
                self.built: Built = Build(context, restore, services, noticed, phases).run()
        except BaseException:
            self._watch.close()
            self._effects.close()
            raise
        if restore.cut is not None:
            self._effects.restored(restore.cut, restore.standing.slot)
        standing = self.built.standing
        self._coordinator = Coordinator(
            context.pipeline,
            self.built.topology,
            context.options,
            restore.generation,
            # Also above numbers that the store did not take: people have been told of them.
            replace(standing, highest_id=max(standing.highest_id, book.highest)),
        )
        self._told: deque[events.CoordinatorEvent] = deque()
        self._outcome: Outcome | None = None
        self._failure: _Failed | None = None
        self._finishing = False
        self._seen_through = False
        self._unsaved = ""
        self._last: LastCheckpoint | None = None
        self._batches: list[BatchId] = []
        self._asked_s = 0.0
        self.recovery = FirstBatch(phases, restore, self.built.steps.values(), tell)

    # -- from any thread

    def ask_to_stop(self, request: CheckpointRequest | None, *, insists: bool = False) -> None:
        """Ask for the end, with a last checkpoint or without.

        Args:
            request: The last checkpoint; None for none.
            insists: Do not end without it: if it fails, go on as before.
        """
        self._inbox.put(_StopAsked(request, insists))

    def request(self, request: CheckpointRequest) -> None:
        """Ask for a checkpoint; the book tells what becomes of it."""
        self._inbox.put(events.Requested(request, now_ms()))

    def cancel(self, cancel: events.Cancelled) -> None:
        """Abort an attempt; the book tells what becomes of it."""
        self._inbox.put(cancel)

    def _step_failed(self, step: RunningStep, error: BaseException) -> None:
        self._inbox.put(_Failed(step.name, error))

    def _defect(self, error: BaseException) -> None:
        self._inbox.put(_Failed(None, error))

    # -- the loop

    def run(self) -> Outcome:
        """Start all steps, run until the end, and leave nothing running."""
        try:
            with self.phases.during(Phase.START):
                for step in self.built.steps.values():
                    step.start()
            self._coordinate(events.Clock(now_ms()))
            self._loop()
        except BaseException as error:  # noqa: BLE001 - the loop's own defects end a generation
            self._outcome = Outcome(End.FAILED, error=error, detail="the driver failed")
        self.close()
        assert self._outcome is not None
        return self._outcome

    def _loop(self) -> None:
        next_tick = next_look = 0.0
        while self._outcome is None:
            wait_s = max(0.0, next_tick - time.monotonic())
            try:
                item: _Item | None = self._inbox.get(timeout=wait_s) if wait_s else None
            except queue.Empty:
                item = None
            if item is not None:
                self._take(item)
            elif self._outcome is None:
                now = time.monotonic()
                self._tick()
                if now >= next_look:
                    next_look = now + _LOOK_S
                    self._look()
                # Counted from the end: a slow tick must not keep the inbox from being read.
                next_tick = time.monotonic() + _TICK_S

    def _take(self, item: _Item) -> None:
        match item:
            case _Noticed(channel):
                for reader in self.built.topology.readers(channel):
                    self.built.steps[reader.step].notice()
            case _Failed():
                self._fail(item)
            case _StopAsked(request, insists):
                self._begin_to_stop(request, insists=insists)
            case _:
                self._coordinate(item)

    def _tick(self) -> None:
        at_ms = now_ms()
        self._coordinate(events.Clock(at_ms))
        for step in self.built.steps.values():
            step.poll()
            step.notice()
            if step.machine.aligner is not None:
                step.tell(Tick(at_ms))
        self.recovery.look()

    def _look(self) -> None:
        """Look after steps: who has died, who is done, and whether sinks wait for nothing."""
        now = time.monotonic()
        asks = now - self._asked_s >= _ASK_S
        if asks:
            self._asked_s = now
        for step in self.built.steps.values():
            if step.machine.finished:
                continue
            error = step.problem() if asks else None
            if error is not None and self._failure is None:
                self._fail(_Failed(step.name, error))
                return
            if step.try_to_end():
                # Its engine has nothing more to do; a query that only polls would cost.
                step.wiring.signal.close()
                threading.Thread(target=step.try_to_halt, name="halt", daemon=True).start()
        finished = all(one.machine.finished for one in self.built.steps.values())
        if finished and self._last is None:
            self._finishing = True
            self._begin_to_stop(CheckpointRequest(is_last=True))
        elif self._last is not None and self._last.found_no_room:
            self._ask_for(self._last)
        batches = [one.machine.last for one in self.built.steps.values()]
        still, self._batches = batches == self._batches, batches
        idle = still and not any(one.busy for one in self.built.steps.values())
        drained = self._output_waits and idle and not self.built.has_backlog
        self._coordinate(events.Drained(drained, now_ms()))

    @property
    def _output_waits(self) -> bool:
        return self._coordinator.carries_output or self.built.has_staged

    # -- ending

    def _fail(self, failure: _Failed) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        name = failure.step or StepId("driver")
        self._coordinate(events.StepFailed(name, now_ms()))

    def _begin_to_stop(self, request: CheckpointRequest | None, *, insists: bool = False) -> None:
        if request is not None and insists and (self.blocked or self._last):
            self.book.refuse(request, self.blocked or "the pipeline is stopping already")
        elif request is None or self.blocked:
            # While a sink is stuck no checkpoint can be decided; what was decided is repeated
            # by the next start.
            self._unsaved = self.blocked if request is not None else ""
            self._coordinate(events.Stop(now_ms()))
        elif self._last is None or self._last.insists:
            # A plain stop wants the end: the savepoint of an earlier stop gives way as well.
            self._last = LastCheckpoint(request, insists)
            self._ask_for(self._last)

    def _ask_for(self, last: LastCheckpoint) -> None:
        last.tries += 1
        last.found_no_room = False
        self.book.follow_last(last.request)
        # A stop does not wait behind an attempt that may be stuck. A run whose input has ended
        # is in no hurry: what is pending completes by itself.
        at_once = not self._finishing
        self._coordinate(events.Requested(last.request, now_ms(), at_once))

    def _found_no_room(self, last: LastCheckpoint) -> None:
        last.found_no_room = True
        if last.insists:
            self._go_on(last)

    def _go_on(self, last: LastCheckpoint) -> None:
        _LOG.warning("going on: the checkpoint to stop with failed")
        self.book.refuse(last.request, "too many requests wait already")
        self._last = None
        self.on_going_on()

    def _after_last_checkpoint(self, *, decided: bool, reason: FailureReason | None) -> None:
        """Go on with a stop once an attempt it asked for has ended."""
        last = self._last
        if last is None or not self.book.last_has_ended:
            return
        left = self._finishing and self._output_waits
        # A run whose input has ended is not done without this checkpoint. A stop is: whoever
        # aborts its last checkpoint wants the end without it, and one deadline is enough.
        final = {FailureReason.CANCELLED, FailureReason.EXPIRED}
        repeats = last.may_repeat and (self._finishing or reason not in final)
        if left if decided else repeats:
            self._ask_for(last)
        elif last.insists and not decided:
            self._go_on(last)
        elif self._finishing and not decided:
            # What was processed is not committed: the work is not done, whatever the steps say.
            why = self.book.last_failure
            error = RunError(f"the last checkpoint failed {last.tries} times: {why}.")
            self._fail(_Failed(None, error))
        else:
            self._seen_through = decided
            if not decided:
                self._unsaved = self.book.last_failure
                _LOG.warning("stopping without a last checkpoint: it failed")
            self._coordinate(events.Stop(now_ms()))

    def close(self) -> None:
        """End everything of this generation and wait for it."""
        self.recovery.close()
        for step in self.built.steps.values():
            step.close()
        for channel in self.built.channels.values():
            channel.close()
        steps = list(self.built.steps.values())
        with ThreadPoolExecutor(max(1, len(steps)), thread_name_prefix="halt") as pool:
            for step, error in zip(steps, pool.map(RunningStep.try_to_halt, steps), strict=True):
                if error is not None:
                    _LOG.warning("step %s did not end cleanly: %s", step.name, error)
        self._watch.close()
        self._effects.close()

    # -- the coordinator

    def _coordinate(self, event: events.CoordinatorEvent) -> None:
        """Tell the coordinator; what carrying out its commands tells it comes after them all."""
        self._told.append(event)
        if len(self._told) > 1:
            return
        while self._told:
            self._coordinate_one(self._told[0])
            self._told.popleft()

    def _coordinate_one(self, event: events.CoordinatorEvent) -> None:
        self.book.heard(event)
        if isinstance(event, events.Acknowledged):
            snapshot = event.snapshot
            report = partial(self.built.steps[snapshot.step].times.report, snapshot)
            self.book.acknowledged(snapshot.checkpoint_id, snapshot.step, report)
        for command in self._coordinator.handle(event):
            self._carry_out(command)
        self._effects.commit_asked()
        if self._coordinator.committer_state is CommitterState.IDLE:
            self.blocked = ""

    def _carry_out(self, command: events.CoordinatorCommand) -> None:
        self.book.ordered(command, self._effects.uploaded)
        match command:
            case events.StartAttempt(barrier):
                self._effects.begin_attempt(barrier)
                for step in self.built.steps.values():
                    step.tell(Announced(barrier))
                    step.poll()
            case events.EndAttempt(checkpoint_id, decided, reason):
                for step in self.built.steps.values():
                    step.tell(Ended(checkpoint_id, decided))
                self._after_last_checkpoint(decided=decided, reason=reason)
            case CommitBlocked(_, sink, reason):
                self.blocked = self.book.blocked(sink, reason)
                if self._last is not None and not (self._last.insists or self._finishing):
                    # No attempt starts any more, so the one to stop with would never come.
                    self._unsaved = self.blocked
                    self._coordinate(events.Stop(now_ms()))
            case events.RestartPipeline(reason, detail):
                failure = self._failure
                detail = detail if failure else f"{reason.sentence} ({detail})"
                who, error = (failure.step, failure.error) if failure else (None, None)
                self._outcome = Outcome(End.FAILED, who, error, detail)
            case events.Halt(reason):
                self._outcome = self._halted(reason)
            case events.AnswerRequest(request, result):
                self.book.answered(command)
                last, full = self._last, result is RequestResult.QUEUE_FULL
                if full and last is not None and request == last.request:
                    self._found_no_room(last)
            case events.AnswerAck() | events.AnswerCancel():
                pass
            case _:
                state = self._coordinator.committer_state
                if isinstance(command, RecordCommit) and state is CommitterState.COMMITTING:
                    self.blocked = ""
                self._effects.start(command)

    def _halted(self, reason: events.HaltReason) -> Outcome:
        match reason:
            case events.HaltReason.STOPPED:
                failure = self._failure
                if failure is not None and (self._finishing or self._last is None):
                    return Outcome(End.FAILED, failure.step, failure.error)
                if not self._finishing:
                    return Outcome(End.STOPPED, detail=self._unsaved)
                if self._coordinator.committer_state is not CommitterState.IDLE:
                    error = RunError(f"{self.blocked or 'a sink has not committed'}.")
                    return Outcome(End.FAILED, error=error)
                return Outcome(End.FINISHED if self._seen_through else End.STOPPED)
            case events.HaltReason.FENCED:
                return Outcome(End.FENCED, error=self._effects.superseded, detail=reason.value)
            case events.HaltReason.TARGET_BEHIND:
                return Outcome(End.FAILED, error=self._effects.behind, detail=reason.value)
            case events.HaltReason.OUTCOME_UNKNOWN:
                return Outcome(End.FAILED, error=self._effects.doubt, detail=reason.value)
