"""The history of attempts: observes the coordinator's events and commands, for status and waiters.

It decides nothing. It outlives generations, so that a status can show attempts from before a
restart. The loop's thread writes it; any thread may read it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import NO_CHECKPOINT, CheckpointId, Generation, SinkId, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CancelResult, CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.runtime.reporting.event_log import EventLog, EventName
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.store.records.reports import StepReport
from cutwater.tasks import THREADS, Event, Tasks

KEPT: Final = 20
_REFUSALS: Final = {
    RequestResult.QUEUE_FULL: "too many requests wait already",
    RequestResult.NOT_RUNNING: "the pipeline ends or begins again just now",
}


@dataclass(slots=True)
class Waiter:
    """Waits for a requested checkpoint; `id` is None before its attempt has started."""

    request: CheckpointRequest
    done: Event
    id: CheckpointId | None = None
    report: CheckpointReport | None = None

    def fail(self, reason: str) -> None:
        self.report = CheckpointReport(
            CheckpointId(0),
            "FAILED",
            0,
            self.request.kind.name,
            failure=reason,
            name=self.request.name,
        )
        self.done.set()


@dataclass(slots=True)
class AbortWaiter:
    """Waits for the result of one abort: the aborted attempt, or why nothing was aborted."""

    cancel: events.Cancelled
    done: Event
    report: CheckpointReport | None = None
    refusal: str = ""

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        self.done.set()


class AttemptHistory:
    """The newest attempts and their results."""

    def __init__(
        self,
        report: Callable[[CheckpointReport], None] = lambda _: None,
        event_log: EventLog | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tasks: Tasks = THREADS,
    ) -> None:
        """Start empty; `report` gets the report of each ended attempt and must not block."""
        self._report = report
        self._event_log = event_log or EventLog("", "")
        self._clock = clock
        self._tasks = tasks
        self._lock = tasks.lock()
        self._reports: OrderedDict[CheckpointId, CheckpointReport] = OrderedDict()
        self._cuts: dict[CheckpointId, Cut] = {}
        self._slots: dict[int, CheckpointId] = {}
        self._waiters: list[Waiter] = []
        self._aborts: list[AbortWaiter] = []
        self.generation = Generation(0)
        self.highest = NO_CHECKPOINT
        self.completed = 0
        self.failed = 0
        self.last_completed: CheckpointId | None = None

    @property
    def reports(self) -> tuple[CheckpointReport, ...]:
        """The newest attempts, oldest first."""
        with self._lock:
            return tuple(
                replace(report, duration_ms=self._clock.now_ms() - report.started_at_ms)
                if report.status == "IN_PROGRESS"
                else report
                for report in self._reports.values()
            )

    # -- waiting

    def wait_for(self, request: CheckpointRequest) -> Waiter:
        """Create a waiter for the next attempt that serves a request; send the request after."""
        waiter = Waiter(request, self._tasks.event())
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def wait_for_abort(self, cancel: events.Cancelled) -> AbortWaiter:
        """Create a waiter for the result of an abort; send the abort after."""
        waiter = AbortWaiter(cancel, self._tasks.event())
        with self._lock:
            self._aborts.append(waiter)
        return waiter

    def refuse_abort(self, waiter: AbortWaiter, reason: str) -> None:
        """Refuse an abort that is never sent."""
        with self._lock:
            if waiter in self._aborts:
                self._aborts.remove(waiter)
                waiter.refuse(reason)

    def refuse(self, request: CheckpointRequest, reason: str) -> None:
        """Fail the newest waiter for exactly this request that has no attempt yet."""
        with self._lock:
            for waiter in reversed(self._waiters):
                if waiter.id is None and waiter.request == request:
                    waiter.fail(reason)
                    self._waiters.remove(waiter)
                    return

    def failure_of(self, checkpoint_id: CheckpointId) -> str:
        report = self._reports.get(checkpoint_id)
        return (report.failure if report else None) or "the reason is not known"

    def abandon(self, reason: str) -> None:
        """Fail all waiters and all open attempts."""
        with self._lock:
            for checkpoint_id, report in list(self._reports.items()):
                if report.status == "IN_PROGRESS":
                    self._end(checkpoint_id, replace(report, status="FAILED", failure=reason))
            for waiter in self._waiters:
                # A decided checkpoint stays completed: recovery repeats its commits.
                known = self._reports.get(waiter.id) if waiter.id is not None else None
                if known is None:
                    waiter.fail(reason)
                else:
                    waiter.report = known
                    waiter.done.set()
            for abort in self._aborts:
                abort.refuse(reason)
            for checkpoint_id in self._slots.values():
                self._publish(checkpoint_id)
            self._aborts.clear()
            self._waiters.clear()
            self._slots.clear()

    # -- observing the coordinator

    def on_event(self, event: events.CoordinatorEvent) -> None:
        with self._lock:
            match event:
                case events.DecisionMade(checkpoint_id, DecisionOutcome.WRITTEN):
                    self._on_decided(checkpoint_id)
                case events.CommitRecorded(slot):
                    self._on_committed(self._slots.pop(slot, None))
                case _:
                    pass

    def on_command(
        self, command: events.CoordinatorCommand, uploaded: Mapping[CheckpointId, int]
    ) -> None:
        with self._lock:
            match command:
                case events.ReserveId(checkpoint_id, _, request):
                    self._begin(checkpoint_id, request)
                case events.CreateDecision(slot, cut):
                    self._cuts[cut.checkpoint_id] = cut
                    if cut.commit_point:
                        self._slots[slot] = cut.checkpoint_id
                    report = self._reports[cut.checkpoint_id]
                    self._reports[cut.checkpoint_id] = replace(
                        report,
                        unaligned=not cut.is_aligned,
                        uploaded_bytes=uploaded.get(cut.checkpoint_id, 0),
                        state_bytes=cut.size_bytes,
                        in_flight_bytes=cut.in_flight_bytes,
                        commit_point=cut.commit_point,
                    )
                case events.EndAttempt(checkpoint_id, False, reason, detail):
                    sentence = reason.sentence if reason else "ended"
                    failure = f"{sentence} ({detail})" if detail else sentence
                    report = replace(self._reports[checkpoint_id], status="FAILED", failure=failure)
                    if reason is FailureReason.ID_TAKEN:
                        # The request keeps its place in the queue, and its waiters keep waiting.
                        for waiter in self._waiters:
                            waiter.id = None if waiter.id == checkpoint_id else waiter.id
                    self._end(checkpoint_id, report)
                case events.AnswerCancel():
                    self._answer_abort(command)
                case _:
                    pass

    def _answer_abort(self, answer: events.AnswerCancel) -> None:
        for waiter in self._aborts:
            if waiter.cancel is answer.cancel:
                self._aborts.remove(waiter)
                if answer.result is not CancelResult.CANCELLED:
                    waiter.refuse(self._abort_refusal(answer))
                elif answer.checkpoint_id is not None:
                    waiter.report = self._reports.get(answer.checkpoint_id)
                waiter.done.set()
                return

    def _abort_refusal(self, answer: events.AnswerCancel) -> str:
        number = answer.checkpoint_id
        pending = [
            str(known) for known, report in self._reports.items() if report.status == "IN_PROGRESS"
        ]
        if answer.result is CancelResult.AMBIGUOUS:
            return f"checkpoints {' and '.join(pending)} are pending; name one of them"
        if answer.result is CancelResult.TOO_LATE:
            return f"checkpoint {number} is being decided, and only the outcome can end it now"
        now = f"pending is {' and '.join(pending)}" if pending else "no checkpoint is pending"
        known = None if number is None else self._reports.get(number)
        if number is None:
            return now
        if known is None:
            return f"checkpoint {number} is not pending; {now}"
        if known.status == "COMPLETED":
            return f"checkpoint {number} has already completed; {now}"
        return f"checkpoint {number} has already failed: {known.failure}; {now}"

    def on_reply(self, command: events.AnswerRequest) -> None:
        """Observe the reply to a request: the waiter of a refused request fails."""
        if command.result is not RequestResult.QUEUED:
            self.refuse(command.request, _REFUSALS[command.result])

    def on_blocked(self, sink: SinkId | None, reason: str) -> str:
        """Log that a sink cannot commit, or that no commit can be recorded; return the sentence."""
        what = f"sink {sink} cannot commit" if sink else "the store takes no record of a commit"
        self._event_log.note(
            EventName.BLOCKED,
            f"COMMIT_BLOCKED: {what}: {reason}",
            generation=self.generation,
            level=logging.ERROR,
            sink=sink,
            reason=reason,
        )
        return f"{what}: {reason}"

    def on_acknowledged(
        self, checkpoint_id: CheckpointId, step: StepId, report: Callable[[int], StepReport]
    ) -> None:
        """Record a step's acknowledgement; times count from the start of the attempt."""
        with self._lock:
            known = self._reports.get(checkpoint_id)
            if known is not None and known.status == "IN_PROGRESS":
                made = report(known.started_at_ms)
                self._reports[checkpoint_id] = replace(known, steps={**known.steps, step: made})
                times = msgspec.structs.asdict(made)
                self._note(EventName.ACKNOWLEDGED, known, f"{step} has acknowledged", step, **times)

    def _note(
        self,
        event: EventName,
        report: CheckpointReport,
        what: str,
        step: StepId | None = None,
        **fields: object,
    ) -> None:
        self._event_log.note(
            event,
            f"checkpoint {report.id}: {what}",
            generation=report.generation,
            level=logging.WARNING if event is EventName.FAILED else logging.INFO,
            checkpoint=int(report.id),
            step=step,
            name=report.name,
            **fields,
        )

    def _begin(self, checkpoint_id: CheckpointId, request: CheckpointRequest) -> None:
        self.highest = max(self.highest, checkpoint_id)
        self._reports[checkpoint_id] = CheckpointReport(
            checkpoint_id,
            "IN_PROGRESS",
            0,
            request.kind.name,
            started_at_ms=self._clock.now_ms(),
            name=request.name,
            generation=self.generation,
        )
        self._note(
            EventName.STARTED, self._reports[checkpoint_id], "started", kind=request.kind.name
        )
        while len(self._reports) > KEPT:
            self._reports.popitem(last=False)
        for waiter in self._waiters:
            if waiter.id is None and waiter.request.is_served_by(request):
                waiter.id = checkpoint_id

    def _on_decided(self, checkpoint_id: CheckpointId) -> None:
        report = self._reports.get(checkpoint_id)
        if report is None:
            return
        self.completed += 1
        self.last_completed = checkpoint_id
        took = self._clock.now_ms() - report.started_at_ms
        report = replace(report, status="COMPLETED", duration_ms=took)
        self._reports[checkpoint_id] = report
        self._note(
            EventName.COMPLETED,
            report,
            f"completed in {took} ms",
            duration_ms=took,
            uploaded_bytes=report.uploaded_bytes,
            state_bytes=report.state_bytes,
            in_flight_bytes=report.in_flight_bytes,
            unaligned=report.unaligned,
            commit_point=report.commit_point,
        )
        cut = self._cuts.pop(checkpoint_id)
        if not cut.commit_point:
            self._publish(checkpoint_id)
            self._resolve(checkpoint_id)

    def _on_committed(self, checkpoint_id: CheckpointId | None) -> None:
        report = self._reports.get(checkpoint_id) if checkpoint_id is not None else None
        if report is None:
            return
        took = self._clock.now_ms() - report.started_at_ms
        self._reports[report.id] = replace(report, committed_ms=took)
        self._note(EventName.COMMITTED, report, f"committed after {took} ms", committed_ms=took)
        self._publish(report.id)
        self._resolve(report.id)

    def _end(self, checkpoint_id: CheckpointId, report: CheckpointReport) -> None:
        took = self._clock.now_ms() - report.started_at_ms
        self.failed += 1
        self._reports[checkpoint_id] = replace(report, duration_ms=took)
        why = report.failure
        self._note(EventName.FAILED, report, f"failed: {why}", duration_ms=took, failure=why)
        self._cuts.pop(checkpoint_id, None)
        self._publish(checkpoint_id)
        self._resolve(checkpoint_id)

    def _publish(self, checkpoint_id: CheckpointId) -> None:
        report = self._reports.get(checkpoint_id)
        if report is not None:
            self._report(report)

    def _resolve(self, checkpoint_id: CheckpointId) -> None:
        """End the waits for an attempt whose result, commits included, is known."""
        for waiter in [waiter for waiter in self._waiters if waiter.id == checkpoint_id]:
            waiter.report = self._reports.get(checkpoint_id)
            waiter.done.set()
            self._waiters.remove(waiter)
