"""The request server of a running pipeline: reads requests from the store, writes reports to it.

One thread polls about once a second; without requests a poll is one listing of an empty directory.
Each request is carried out in its own thread, so that a stop is served while a savepoint is being
taken. No decision depends on this module: if the store refuses a report or an answer, only that
report or answer is lost.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec import UNSET

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.errors import CutwaterError, StoreError
from cutwater.ids import CheckpointId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.reporting.status import CheckpointReport, RunStatus
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.reports import AttemptReport, RecoveryReport
from cutwater.store.records.requests import (
    FORGET_MS,
    LOOK_MS,
    Answer,
    AnswerState,
    Request,
    RequestKind,
    Treatment,
    choose_treatment,
)
from cutwater.tasks import THREADS, Inbox, Task, Tasks

_LOG: Final = logging.getLogger(__name__)
_OTHER: Final = "it was meant for another process, or taken by one that has ended; ask again"
_ENDED: Final = "the pipeline has ended"
_NOT_IN_TIME: Final = "it is not known in time what became of it; it may still be completed"
_ABORT_NOT_IN_TIME: Final = "it is not known in time what became of it"
_STILL_ENDING: Final = "it has not ended in time; it will, as soon as its batches have"
_CLOSING_S: Final = 10.0


class RunControl(Protocol):
    """The requests that a running pipeline serves. Every method blocks."""

    def checkpoint(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Take a checkpoint or savepoint; None if its result is not known in time."""
        ...

    def stop(self, *, checkpoint: bool) -> None:
        """Request a stop."""
        ...

    def stop_with(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Take a last checkpoint and stop; resume if the checkpoint fails."""
        ...

    def abort_checkpoint(
        self, checkpoint_id: CheckpointId | None, reason: str, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Abort a pending checkpoint; None if the result is not known in time.

        Raises:
            RequestFailed: If it was not aborted; the message says why.
        """
        ...

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the pipeline has ended; return whether it has."""
        ...

    def status(self) -> RunStatus:
        """Return the current status."""
        ...


class RequestServer:
    """Serves the requests of one run of one pipeline."""

    def __init__(
        self,
        store: PipelineStore,
        holder: str,
        control: RunControl,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tasks: Tasks = THREADS,
    ) -> None:
        """Prepare to serve requests addressed to `holder`, the nonce of this process's lease."""
        self._store = store
        self._holder = holder
        self._control = control
        self._clock = clock
        self._tasks = tasks
        self._reports: Inbox[AttemptReport | RecoveryReport] = tasks.inbox()
        self._served: dict[str, Task] = {}
        self._left_until_ms: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._closing = tasks.event()
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._tasks.start(self._run, "requests")

    def report(self, report: AttemptReport | RecoveryReport) -> None:
        """Queue a report to be written; may be called from any thread, never blocks."""
        self._reports.put(report)

    def close(self) -> None:
        """Answer the remaining requests, write the remaining reports, and wait for both."""
        self._closing.set()
        if self._task is not None:
            self._task.join()

    # -- the thread

    def _run(self) -> None:
        self._quietly("old reports", self._store.reports.trim)
        while not self._closing.wait(LOOK_MS / 1000):
            self._write()
            self._quietly("requests", self._look)
        self._quietly("requests", self._look)
        for task in list(self._served.values()):
            task.join(_CLOSING_S)
        self._write()

    def _write(self) -> None:
        while True:
            report = self._reports.get(0)
            if report is None:
                return
            self._quietly("report", partial(self._store.reports.write, report))

    def _quietly(self, what: str, task: Callable[[], object]) -> None:
        try:
            task()
        except (StoreError, OSError) as error:
            # Logged once: it is tried every second, and a store may be unavailable for hours.
            if self._problems.get(what) != str(error):
                _LOG.warning("%s: %s", what, error)
            self._problems[what] = str(error)
        else:
            self._problems.pop(what, None)

    def _look(self) -> None:
        requests, at_ms = self._store.requests, self._clock.wall_ms()
        for token in requests.tokens():
            if token in self._served or at_ms < self._left_until_ms.get(token, 0):
                continue
            request = requests.request(token)
            match choose_treatment(request, requests.answer(token), self._holder, at_ms):
                case Treatment.TAKE:
                    assert request is not None
                    self._take(request)
                case Treatment.REFUSE:
                    self._answer(token, _Result(AnswerState.FAILED, _OTHER))
                case Treatment.REMOVE:
                    requests.remove(token)
                case Treatment.LEAVE:
                    # The answer has not been read yet; if the client has died, it never will be.
                    self._left_until_ms[token] = at_ms + FORGET_MS

    # -- carrying out

    def _take(self, request: Request) -> None:
        _LOG.info("%s requests: %s", request.asked_by, request.kind.value)
        if self._closing.is_set():
            self._answer(request.token, _Result(AnswerState.FAILED, _ENDED))
            return
        self._answer(request.token, _Result(AnswerState.TAKEN))
        name = f"request-{request.token[:8]}"
        self._served[request.token] = self._tasks.start(partial(self._serve, request), name)

    def _serve(self, request: Request) -> None:
        try:
            result = self._carry_out(request)
        except CutwaterError as error:
            result = _Result(AnswerState.FAILED, error.message)
        except Exception as error:  # noqa: BLE001 - the client gets it
            result = _Result(AnswerState.FAILED, f"{type(error).__name__}: {error}")
        self._quietly("answer", lambda: self._answer(request.token, result))

    def _carry_out(self, request: Request) -> "_Result":
        timeout_s = max(0.0, (request.expires_at_ms - self._clock.wall_ms()) / 1000)
        abort = request.abort
        if request.kind is RequestKind.ABORT:
            if abort is UNSET:
                return _Result(AnswerState.FAILED, "it does not say what to abort, nor why")
            aborted = self._control.abort_checkpoint(abort.checkpoint_id, abort.reason, timeout_s)
            return _Result(
                AnswerState.FAILED if aborted is None else AnswerState.DONE,
                _ABORT_NOT_IN_TIME if aborted is None else aborted.failure,
                aborted,
            )
        wanted = checkpoint_request(request)
        if request.kind is not RequestKind.STOP:
            return _judge(self._control.checkpoint(wanted, timeout_s))
        if request.name is None and not request.drain:
            self._control.stop(checkpoint=True)
            result = _Result(AnswerState.DONE)
        else:
            result = _judge(self._control.stop_with(wanted, timeout_s))
        if result.state is not AnswerState.DONE:
            return result
        if not self._control.wait_for_end(timeout_s):
            return _Result(AnswerState.FAILED, _STILL_ENDING, result.report)
        return self._describe_end(result.report)

    def _describe_end(self, asked_for: CheckpointReport | None) -> "_Result":
        """Describe how the pipeline ended, and with which checkpoint."""
        status = self._control.status()
        if status.state == "FAILED":
            return _Result(AnswerState.FAILED, status.detail, asked_for)
        last = asked_for or next(iter(status.checkpoints[-1:]), None)
        if last is not None and last.status != "COMPLETED":
            return _Result(AnswerState.DONE, f"its last checkpoint failed: {last.failure}")
        return _Result(AnswerState.DONE, "", last)

    def _answer(self, token: str, result: "_Result") -> None:
        report = result.report
        self._store.requests.tell(
            Answer(
                token=token,
                state=result.state,
                holder=self._holder,
                answered_at_ms=self._clock.wall_ms(),
                message=result.message,
                report=report.record() if report is not None and report.id else None,
            )
        )


class _Result(NamedTuple):
    state: AnswerState
    message: str = ""
    report: CheckpointReport | None = None


def _judge(report: CheckpointReport | None) -> _Result:
    if report is None:
        return _Result(AnswerState.FAILED, _NOT_IN_TIME)
    if report.status == "COMPLETED":
        return _Result(AnswerState.DONE, "", report)
    return _Result(AnswerState.FAILED, report.failure)


def checkpoint_request(request: Request) -> CheckpointRequest:
    if request.name is not None:
        kind = CheckpointKind.SAVEPOINT
    else:
        kind = CheckpointKind.FULL if request.full else CheckpointKind.CHECKPOINT
    return CheckpointRequest(kind, request.name, request.drain)
