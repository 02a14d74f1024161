"""Mutations of the driver: stopping, requests, and a store that takes no more writes.

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CancelResult, CheckpointRequest
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.step.events import EndReached
from cutwater.protocol.stopping import InputEnded, Stopping
from cutwater.runtime.effects import Effects
from cutwater.runtime.event_loop import Generation
from cutwater.runtime.reporting.attempt_history import AttemptHistory
from cutwater.runtime.step import RunningStep
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage

_FAILING_STOPS: Final = ("stop with savepoint", "attempt cancelled", "store full")
_FULL_STORE: Final = ("store full",)


@sabotage("a-failed-savepoint-stops-all-the-same", "section 13", faults=_FAILING_STOPS)
def a_failed_savepoint_stops_all_the_same() -> list[Patch]:
    """End the pipeline although the savepoint that it was to stop with has failed."""
    return [(Stopping, "_resume", lambda self: self._end("it failed"))]


@sabotage("a-failed-stop-is-not-resumed", "section 13", faults=_FAILING_STOPS)
def a_failed_stop_is_not_resumed() -> list[Patch]:
    """Refuse every later stop after one whose savepoint has failed, and never end."""
    return [(Stopping, "_resume", lambda _: ())]


@sabotage("finish-without-the-last-commit", "section 13")
def finish_without_the_last_commit() -> list[Patch]:
    """Take the run for finished when its input has ended, whatever still waits for a commit."""
    original = Stopping.handle

    def handle(self: Stopping, event: Any) -> Any:
        if not isinstance(event, InputEnded):
            return original(self, event)
        self.input_ended = self.is_saved = True
        return self._end("")

    return [(Stopping, "handle", handle)]


@sabotage("finish-when-a-source-pauses", "section 13")
def finish_when_a_source_pauses() -> list[Patch]:
    """Take a source that has nothing to read for one that has ended."""

    def try_to_end(self: RunningStep) -> bool:
        with self.lock:
            if self.machine.may_end and self.machine.aligner is None and not self.busy:
                self.tell(EndReached())
                return True
        return original(self)

    original = RunningStep.try_to_end
    return [(RunningStep, "try_to_end", try_to_end)]


@sabotage("requests-answered-when-they-start", "requests")
def requests_answered_when_they_start() -> list[Patch]:
    """Answer a request as completed when its attempt begins."""
    original = AttemptHistory._begin

    def begin(self: AttemptHistory, checkpoint_id: Any, request: Any) -> None:
        original(self, checkpoint_id, request)
        self._reports[checkpoint_id] = replace(self._reports[checkpoint_id], status="COMPLETED")
        self._resolve(checkpoint_id)

    return [(AttemptHistory, "_begin", begin)]


@sabotage("any-attempt-serves-a-request", "requests")
def any_attempt_serves_a_request() -> list[Patch]:
    """Answer a savepoint's request with whatever checkpoint comes next."""
    return [(CheckpointRequest, "is_served_by", lambda *_: True)]


@sabotage("an-aborted-checkpoint-is-decided", "requests")
def an_aborted_checkpoint_is_decided() -> list[Patch]:
    """Tell an operator that a checkpoint is aborted, and let it go on."""
    original = Generation.cancel

    def cancel(self: Generation, asked: Any) -> None:
        pending = [report.id for report in self.history.reports if report.status == "IN_PROGRESS"]
        if not pending:
            original(self, asked)
            return
        answer = events.AnswerCancel(asked, CancelResult.CANCELLED, pending[0])
        self.history.on_command(answer, {})

    return [(Generation, "cancel", cancel)]


def _answers(change: Callable[[Any], Any]) -> list[Patch]:
    """Change what effects answer to the coordinator."""
    original = Effects.__init__

    def init(self: Effects, context: Any, generation: Any, post: Any, failed: Any) -> None:
        original(self, context, generation, lambda event: post(change(event)), failed)

    return [(Effects, "__init__", init)]


@sabotage("a-full-store-takes-the-decision", "I5", faults=_FULL_STORE)
def a_full_store_takes_the_decision() -> list[Patch]:
    """Commit the sinks although the store did not take the decision."""

    def change(event: Any) -> Any:
        if isinstance(event, events.DecisionMade) and event.outcome is DecisionOutcome.UNKNOWN:
            return replace(event, outcome=DecisionOutcome.WRITTEN)
        return event

    return _answers(change)


@sabotage("a-full-store-has-the-record", "F8", faults=_FULL_STORE)
def a_full_store_has_the_record() -> list[Patch]:
    """Go on as if a commit were recorded when the store takes no record."""

    def change(event: Any) -> Any:
        if isinstance(event, events.RecordFailed):
            return events.CommitRecorded(event.slot, event.now_ms)
        return event

    return _answers(change)


@sabotage("a-full-store-takes-the-manifest", "I7", faults=("response lost", "store full"))
def a_full_store_takes_the_manifest() -> list[Patch]:
    """Decide a checkpoint whose manifest the store did not take."""

    def change(event: Any) -> Any:
        if isinstance(event, events.PublishFailed):
            return events.Published(event.checkpoint_id, "0" * 64, event.now_ms)
        return event

    return _answers(change)
