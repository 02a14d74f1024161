"""`cutwater savepoint`, `checkpoint`, `stop`, `checkpoints abort`: requests to a running pipeline.

A request goes through the store, so it works from every machine that can reach the store. The
command waits for the answer and shows the progress. If it is interrupted or times out, it withdraws
a request that has not been started.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.lookup import FoundPipeline, find, look_up
from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import SUCCESS, Output, bytes_text, duration_text, say, say_json
from cutwater.cli.render import report_json
from cutwater.errors import NotRunning, RequestFailed, StoreError
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.records.lease import Holding
from cutwater.store.records.reports import AttemptReport
from cutwater.store.records.requests import (
    Abort,
    Answer,
    AnswerState,
    Request,
    RequestKind,
    Wanted,
    abort_reason,
)
from cutwater.store.records.savepoints import default_savepoint_name, savepoint_name
from cutwater.units import milliseconds

SAVEPOINT_HELP: Final = """Take a savepoint of a running pipeline.

A savepoint has a name, is self-contained and is kept until you drop it
(`cutwater checkpoints prune --savepoint NAME`). Waits until it is decided and all sinks have
committed.

\b
  cutwater savepoint orders --name before-upgrade --store /data/orders
"""
CHECKPOINT_HELP: Final = """Take a checkpoint of a running pipeline now.

Waits until it is decided and all sinks have committed. With --full it reuses nothing of an older
checkpoint.
"""
STOP_HELP: Final = """Stop a running pipeline, with a last checkpoint.

Waits until it has ended. With --savepoint or --drain the pipeline keeps running if that
checkpoint fails; otherwise it ends anyway, and the next run resumes from the last checkpoint.

--drain stops the sources at the last barrier: everything they have read before it has reached the
sinks, and nothing after it has been processed. It does not close windows: Spark cannot move a
watermark to the end of time.

\b
  cutwater stop orders
  cutwater stop orders --savepoint before-upgrade --drain
"""

ABORT_HELP: Final = """Abort a pending checkpoint or savepoint of a running pipeline.

Without an ID it aborts the pending checkpoint. The reason is stored with the attempt: `checkpoints
list` and `show`, the API and the dashboard show it, and a command that waits for that checkpoint
gets it. The pipeline keeps running, and takes its next checkpoint when that is due; an abort does
not count against `tolerable_failed`. Refused if nothing is pending, or if the checkpoint is already
being decided.

If the checkpoint is the last one of a plain stop, the pipeline ends without it. If it belongs to a
stop with --savepoint or --drain, the pipeline keeps running.

\b
  cutwater checkpoints abort orders --reason "the bucket is being moved"
"""

_LOOK_S: Final = 0.2
_RELEASE_S: Final = 30.0

Timeout = Annotated[
    str, typer.Option(metavar="TIME", help="How long to wait for it, such as 30s or 10m.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointArguments:
    pipeline: PipelineName
    full: Annotated[
        bool, typer.Option("--full", help="Self-contained: reuse nothing of an older checkpoint.")
    ] = False
    store: StoreUrl = DEFAULT_STORE
    timeout: Timeout = "10m"
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointArguments:
    pipeline: PipelineName
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name.", show_default="savepoint- and the time"),
    ] = None
    store: StoreUrl = DEFAULT_STORE
    timeout: Timeout = "30m"
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortArguments:
    pipeline: PipelineName
    checkpoint: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", min=1, help="Its number.", show_default="the pending checkpoint"
        ),
    ] = None
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is stored with the attempt.")]
    store: StoreUrl = DEFAULT_STORE
    timeout: Timeout = "1m"
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopArguments:
    pipeline: PipelineName
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="End with a savepoint of this name.",
            show_default="with a checkpoint",
        ),
    ] = None
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", help="Stop the sources first, and process everything they have read."
        ),
    ] = False
    store: StoreUrl = DEFAULT_STORE
    timeout: Timeout = "30m"
    output: OutputForm = Output.TEXT
    debug: Debug = False


RequestArguments = CheckpointArguments | SavepointArguments | AbortArguments | StopArguments


def checkpoint_command(arguments: CheckpointArguments) -> int:
    answer = RequestClient.of(arguments).send(Wanted(RequestKind.CHECKPOINT, full=arguments.full))
    kind = CheckpointKind.FULL if arguments.full else CheckpointKind.CHECKPOINT
    return _show_checkpoint(answer, kind, arguments.output)


def savepoint_command(arguments: SavepointArguments) -> int:
    name = arguments.name or default_savepoint_name()
    savepoint_name(name, "--name")
    answer = RequestClient.of(arguments).send(Wanted(RequestKind.SAVEPOINT, name=name))
    return _show_checkpoint(answer, CheckpointKind.SAVEPOINT, arguments.output)


def abort_command(arguments: AbortArguments) -> int:
    reason = abort_reason(arguments.reason, "--reason")
    number = None if arguments.checkpoint is None else CheckpointId(arguments.checkpoint)
    abort = Abort(checkpoint_id=number, reason=reason)
    report = RequestClient.of(arguments).send(Wanted(RequestKind.ABORT, abort=abort)).report
    assert report is not None
    savepoint = CheckpointKind.SAVEPOINT if report.name else CheckpointKind.CHECKPOINT
    if arguments.output is Output.JSON:
        say_json({"aborted": True, "checkpoint": report_json(report, savepoint)})
    else:
        title = _checkpoint_title(report, savepoint)
        say(f"{title} aborted after {duration_text(report.duration_ms)}.")
    return SUCCESS


def stop_command(arguments: StopArguments) -> int:
    if arguments.savepoint is not None:
        savepoint_name(arguments.savepoint, "--savepoint")
    client = RequestClient.of(arguments)
    answer = client.send(Wanted(RequestKind.STOP, name=arguments.savepoint, drain=arguments.drain))
    client.wait_for_release()
    savepoint = CheckpointKind.SAVEPOINT if arguments.savepoint else CheckpointKind.CHECKPOINT
    if arguments.output is Output.JSON:
        checkpoint = answer.report and report_json(answer.report, savepoint)
        say_json({"stopped": True, "checkpoint": checkpoint, "message": answer.message})
        return SUCCESS
    report = answer.report
    last = (
        f"the next run resumes from {_checkpoint_title(report, savepoint)}"
        if report
        else answer.message
    )
    say(f"{client.pipeline} has stopped; {last or 'it had taken no checkpoint'}.")
    return SUCCESS


def _show_checkpoint(answer: Answer, kind: CheckpointKind, output: Output) -> int:
    report = answer.report
    assert report is not None
    if output is Output.JSON:
        say_json({"checkpoint": report_json(report, kind)})
    else:
        took = duration_text(report.duration_ms)
        sizes = f"{bytes_text(report.uploaded_bytes)} uploaded"
        say(f"{_checkpoint_title(report, kind)} completed in {took}, {sizes}.")
    return SUCCESS


def _checkpoint_title(report: AttemptReport, kind: CheckpointKind) -> str:
    if kind is CheckpointKind.SAVEPOINT:
        return f"savepoint {report.name} (checkpoint {report.checkpoint_id})"
    return f"checkpoint {report.checkpoint_id}"


class RequestClient:
    """Sends a request to the process that runs a pipeline, and waits for the answer."""

    def __init__(self, found: FoundPipeline, output: Output, timeout_ms: int) -> None:
        self._found = found
        self._says = output is Output.TEXT
        self._timeout_ms = timeout_ms
        self._requests = found.store.requests

    @classmethod
    def of(cls, arguments: RequestArguments) -> "RequestClient":
        timeout_ms = milliseconds(arguments.timeout, "--timeout")
        return cls(find(arguments.store, arguments.pipeline), arguments.output, timeout_ms)

    @property
    def pipeline(self) -> str:
        return self._found.name

    def send(self, wanted: Wanted) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            NotRunning: If no process runs the pipeline, or the process has ended.
            RequestFailed: If the request was refused, failed or timed out.
        """
        lease = self._found.lease
        if lease is None or not self._found.is_running:
            raise self._not_running(_holder_text(self._found))
        request = wanted.addressed(uuid.uuid4().hex, lease.nonce, self._timeout_ms)
        what = wanted.kind.value
        article = "an" if wanted.kind is RequestKind.ABORT else "a"
        self._report(f"requesting {article} {what} from process {lease.process} on {lease.host}")
        try:
            self._requests.ask(request)
            answer = self._wait(request)
        finally:
            # No longer awaited, so it must not be started any more; otherwise it expires.
            with suppress(StoreError):
                self._requests.remove(request.token)
        if answer.state is AnswerState.FAILED:
            raise self._failed(f"the {what} failed: {answer.message}")
        return answer

    def _wait(self, request: Request) -> Answer:
        is_taken = False
        end_s = time.monotonic() + self._timeout_ms / 1000
        while True:
            answer = self._requests.answer(request.token)
            if answer is not None and answer.state is not AnswerState.TAKEN:
                return answer
            if answer is not None and not is_taken:
                is_taken = True
                self._report("it has started; waiting")
            if answer is None or is_taken:
                self._check_alive(request)
            if time.monotonic() >= end_s:
                # The answer may have arrived during the checks above.
                last = self._requests.answer(request.token)
                if last is not None and last.state is not AnswerState.TAKEN:
                    return last
                begun = (
                    "it has started and may still complete" if is_taken else "it was not started"
                )
                raise self._failed(f"no answer within {duration_text(self._timeout_ms)}: {begun}")
            time.sleep(_LOOK_S)

    def _check_alive(self, request: Request) -> None:
        """Check that the same process still runs; its last answer may have arrived just before."""
        now = look_up(self._found.name, self._found.store)
        if now.is_running and now.lease is not None and now.lease.nonce == request.holder:
            return
        answer = self._requests.answer(request.token)
        if answer is None or answer.state is AnswerState.TAKEN:
            raise self._not_running(f"{_holder_text(now)}, before it had answered")

    def wait_for_release(self) -> None:
        """Wait until the ended process has released the lease, 30 seconds at most."""
        end_s = time.monotonic() + _RELEASE_S
        while look_up(self._found.name, self._found.store).is_running:
            if time.monotonic() >= end_s:
                return
            time.sleep(_LOOK_S)

    def _not_running(self, reason: str) -> NotRunning:
        return NotRunning(f"pipeline {self._found.name} does not run: {reason}.")

    def _failed(self, reason: str) -> RequestFailed:
        return RequestFailed(f"pipeline {self._found.name}: {reason.rstrip('.')}.")

    def _report(self, text: str) -> None:
        if self._says:
            say(text)


def _holder_text(found: FoundPipeline) -> str:
    lease = found.lease
    if found.holding is Holding.UNKNOWN:
        return f"as far as is known; its lease cannot be read: {found.problem}"
    if lease is None:
        return "it has never run with this store"
    process = f"process {lease.process} on {lease.host}"
    match found.holding:
        case Holding.FREE:
            return f"{process} ran it last and has ended"
        case Holding.STALE:
            return f"{process} ran it last and sent its last heartbeat {found.age_s} s ago"
        case _:
            return f"{process} runs it now; the request was for another process"
