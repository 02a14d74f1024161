"""Requests to a pipeline: a checkpoint, a savepoint, a stop, an abort; and their results.

Submitting returns an id at once, and the result is read with that id, as in Flink. The process that
runs the pipeline executes a request in a thread of its own. Any other process sends the request
through the store, as the commands do. Both limit the open requests and the results they keep.
"""

import threading
import uuid
from collections import OrderedDict
from typing import Final, Protocol

from cutwater.errors import CutwaterError, NotRunning
from cutwater.runtime.reporting.status import CheckpointReport, RunResult, RunStatus
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Holding, look
from cutwater.store.records.reports import AttemptStatus
from cutwater.store.records.requests import Answer, AnswerState, RequestKind, Wanted
from cutwater.views.models import FailureCause, Operation, OperationState, OperationStatus

OPEN_MAX: Final = 16
"""How many requests may be open at a time."""

_KEPT: Final = 256
_EXPIRES_S: Final = 86_400.0
"""How long to wait for a result. An attempt ends by its own deadline, `timeout` or
`savepoint_timeout`; this is longer than any sensible deadline."""


class TooMany(Exception):
    """Too many requests are open; try again later."""


class Operations(Protocol):
    """Accepts requests to one pipeline."""

    def submit(self, wanted: Wanted, trigger_id: str | None = None) -> str:
        """Submit a request; return its id. Submitting an id again has no effect.

        Raises:
            TooMany: If too many requests are open.
            NotRunning: If no process runs the pipeline.
            StoreError: If the request could not be written to the store.
        """
        ...

    def state(self, trigger_id: str) -> OperationState | None:
        """Return the state of a request; None if the id is unknown.

        Raises:
            StoreError: If the result cannot be read from the store.
        """
        ...


class Running(Protocol):
    """A pipeline that runs in this process, such as `cutwater.run.PipelineRun`."""

    @property
    def state(self) -> str:
        """Its state, without waiting for a lock."""
        ...

    def status(self) -> RunStatus:
        """Return its status; cheap."""
        ...

    def checkpoint(self, timeout_s: float | None = None, *, full: bool = False) -> CheckpointReport:
        """Take a checkpoint and wait for it."""
        ...

    def savepoint(self, name: str, timeout_s: float | None = None) -> CheckpointReport:
        """Take a savepoint and wait for it."""
        ...

    def abort_checkpoint(
        self, reason: str, checkpoint_id: int | None = None, timeout_s: float | None = None
    ) -> CheckpointReport:
        """Abort a pending checkpoint."""
        ...

    def stop(
        self, *, checkpoint: bool = True, savepoint: str | None = None, drain: bool = False
    ) -> None:
        """Request a stop."""
        ...

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        """Wait for the end."""
        ...


class LiveOperations:
    """Executes requests in the process that runs the pipeline."""

    def __init__(self, running: Running, location: str) -> None:
        """Send requests to this run; `location` is the address of the pipeline's manifests."""
        self._running = running
        self._location = location
        self._lock = threading.Lock()
        self._states: OrderedDict[str, OperationState | None] = OrderedDict()

    def submit(self, wanted: Wanted, trigger_id: str | None = None) -> str:
        chosen = trigger_id or uuid.uuid4().hex
        with self._lock:
            if chosen in self._states:
                return chosen
            if sum(state is None for state in self._states.values()) >= _limit(wanted):
                raise TooMany
            self._states[chosen] = None
            over = [
                operation_id for operation_id, state in self._states.items() if state is not None
            ]
            for operation_id in over[: max(0, len(self._states) - _KEPT)]:
                del self._states[operation_id]
        work = threading.Thread(
            target=self._carry_out, args=(chosen, wanted), name=f"api-{chosen[:8]}", daemon=True
        )
        work.start()
        return chosen

    def state(self, trigger_id: str) -> OperationState | None:
        with self._lock:
            if trigger_id not in self._states:
                return None
            found = self._states[trigger_id]
        return found or _IN_PROGRESS

    def _carry_out(self, trigger_id: str, wanted: Wanted) -> None:
        try:
            operation = self._execute(wanted)
        except CutwaterError as error:
            operation = _failure(error.message)
        except Exception as error:  # noqa: BLE001 - it becomes the result
            operation = _failure(f"{type(error).__name__}: {error}")
        with self._lock:
            self._states[trigger_id] = _complete(operation)

    def _execute(self, wanted: Wanted) -> Operation:
        match wanted.kind:
            case RequestKind.CHECKPOINT:
                return self._operation_for(self._running.checkpoint(_EXPIRES_S, full=wanted.full))
            case RequestKind.SAVEPOINT:
                assert wanted.name is not None
                return self._operation_for(self._running.savepoint(wanted.name, _EXPIRES_S))
            case RequestKind.ABORT:
                abort = wanted.abort
                assert abort is not None
                aborted = self._running.abort_checkpoint(
                    abort.reason, abort.checkpoint_id, _EXPIRES_S
                )
                return Operation(checkpoint_id=aborted.id, message=aborted.failure)
            case RequestKind.STOP:
                self._running.stop(savepoint=wanted.name, drain=wanted.drain)
                if self._running.wait(_EXPIRES_S) is None:
                    return _failure("it has not ended in time; it will end after its batches")
                done = [
                    report
                    for report in self._running.status().checkpoints
                    if report.status == "COMPLETED"
                ]
                return self._operation_for(done[-1]) if done else Operation(message="it has ended")

    def _operation_for(self, report: CheckpointReport) -> Operation:
        if report.status != "COMPLETED":
            return _failure(report.failure)
        return Operation(
            checkpoint_id=report.id, location=f"{self._location}/{report.id:012d}", name=report.name
        )


class StoreOperations:
    """Sends requests through the store to the process that runs the pipeline."""

    def __init__(self, store: PipelineStore, name: str, location: str) -> None:
        """Write requests into this store; `location` is the address of the manifests."""
        self._store = store
        self._name = name
        self._location = location
        self._lock = threading.Lock()
        self._holders: OrderedDict[str, str] = OrderedDict()

    def submit(self, wanted: Wanted, trigger_id: str | None = None) -> str:
        chosen = trigger_id or uuid.uuid4().hex
        hold = look(self._store.backend, self._store.pipeline)
        if hold.lease is None or hold.holding is not Holding.HELD:
            raise NotRunning(f"pipeline {self._name} does not run.")
        with self._lock:
            if chosen in self._holders:
                return chosen
            if len(self._store.requests.tokens()) >= _limit(wanted):
                raise TooMany
            self._holders[chosen] = hold.lease.nonce
            while len(self._holders) > _KEPT:
                self._holders.popitem(last=False)
        wait_ms = round(_EXPIRES_S * 1000)
        request = wanted.addressed(chosen, hold.lease.nonce, wait_ms, ", a dashboard")
        self._store.requests.ask(request)
        return chosen

    def state(self, trigger_id: str) -> OperationState | None:
        with self._lock:
            if trigger_id not in self._holders:
                return None
            holder = self._holders[trigger_id]
        answer = self._store.requests.answer(trigger_id)
        if answer is not None and answer.state is not AnswerState.TAKEN:
            return _complete(self._operation_from(answer))
        hold = look(self._store.backend, self._store.pipeline)
        is_there = hold.lease is not None and hold.lease.nonce == holder
        if is_there and hold.holding is Holding.HELD:
            return _IN_PROGRESS
        return _complete(_failure("the process has ended before it answered the request"))

    def _operation_from(self, answer: Answer) -> Operation:
        if answer.state is AnswerState.FAILED:
            return _failure(answer.message)
        report = answer.report
        if report is None:
            return Operation(message=answer.message or "done")
        if report.status is AttemptStatus.FAILED:
            # An abort has succeeded when the attempt has failed; it has no location.
            return Operation(checkpoint_id=report.checkpoint_id, message=answer.message)
        where = f"{self._location}/{report.checkpoint_id:012d}"
        return Operation(checkpoint_id=report.checkpoint_id, location=where, name=report.name)


_IN_PROGRESS: Final = OperationState(status=OperationStatus(id="IN_PROGRESS"))


def _limit(wanted: Wanted) -> int:
    # An abort must get through when the open requests wait for the pending checkpoint.
    return 2 * OPEN_MAX if wanted.kind is RequestKind.ABORT else OPEN_MAX


def _complete(operation: Operation) -> OperationState:
    return OperationState(status=OperationStatus(id="COMPLETED"), operation=operation)


def _failure(reason: str) -> Operation:
    text = reason[:2_000] or "no reason was given"
    return Operation(failure_cause=FailureCause(message=text), message=text)
