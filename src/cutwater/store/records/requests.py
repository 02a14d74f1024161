"""Requests to a running pipeline through its store, where its API cannot be reached.

A command creates `asked`, addressed to the process that holds the lease. That process looks for
requests once a second, marks the request as taken, executes it and writes the final answer. The
command reads the answer and removes both. Nothing here is needed for recovery. A request is
executed at most once, by the process it is addressed to, and never after it has expired: no later
process executes the request of a command that has died.
"""

import os
import re
import socket
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from cutwater.clock import wall_ms
from cutwater.errors import ConfigError
from cutwater.ids import CheckpointId
from cutwater.store.backends.backend import write_once
from cutwater.store.records.envelope import PipelineRecords, encode, plain_record
from cutwater.store.records.reports import AttemptReport

LOOK_MS: Final = 1_000
"""The interval at which a running process looks for requests."""

FORGET_MS: Final = 600_000
"""How long an unread answer is kept."""


REASON_MAX: Final = 500
"""How many characters the reason of an abort may have."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class RequestKind(Enum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    ABORT = "abort"


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt to abort, None for the only pending one; the reason is stored with it."""

    checkpoint_id: CheckpointId | None = None
    reason: str


class Wanted(NamedTuple):
    """The details of a request.

    Attributes:
        full: For a checkpoint: whether it must be self-contained.
        name: For a savepoint, or a stop with a savepoint: its name.
        drain: For a stop: whether sources stop first.
    """

    kind: RequestKind
    full: bool = False
    name: str | None = None
    drain: bool = False
    abort: Abort | None = None

    def addressed(self, token: str, holder: str, wait_ms: int, sender: str = "") -> "Request":
        """Return the request to the process that holds the lease, sent by this process now.

        `sender` says to users what sends it, after the process and the machine.
        """
        at_ms = wall_ms()
        return Request(
            token=token,
            kind=self.kind,
            holder=holder,
            asked_by=f"process {os.getpid()} on {socket.gethostname()}{sender}",
            asked_at_ms=at_ms,
            expires_at_ms=at_ms + wait_ms,
            full=self.full,
            name=self.name,
            drain=self.drain,
            abort=self.abort or msgspec.UNSET,
        )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the process that runs a pipeline; the last fields are as in `Wanted`.

    Attributes:
        holder: The nonce of the lease of the process that it is addressed to.
        asked_at_ms: When it was sent, on the sender's clock.
        expires_at_ms: When the sender stops waiting; the request is not taken after that.
        abort: Other requests are written without this field, as they were before aborts existed.
    """

    token: str
    kind: RequestKind = msgspec.field(name="wish")  # its name in stores, which never changes
    holder: str
    asked_by: str
    asked_at_ms: int
    expires_at_ms: int
    full: bool = False
    name: str | None = None
    drain: bool = False
    abort: Abort | msgspec.UnsetType = msgspec.UNSET


class AnswerState(Enum):
    TAKEN = "taken"
    """The process has taken the request and is executing it."""
    DONE = "done"
    FAILED = "failed"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The latest answer to a request.

    Attributes:
        holder: The nonce of the process that answers.
        message: The result; for a failure, the reason.
    """

    token: str
    state: AnswerState
    holder: str
    answered_at_ms: int
    message: str = ""
    report: AttemptReport | None = None


REQUEST: Final = plain_record("request", Request)
ANSWER: Final = plain_record("answer", Answer)


def abort_reason(text: str, option: str = "reason") -> str:
    """Return the reason of an abort as it is stored and shown: one line, without outer blanks.

    ConfigError, with the option's name, if it is empty, too long, or has control characters.
    """
    reason = text.strip()
    if not reason:
        raise ConfigError(option, "is empty; say in a few words why the checkpoint is aborted")
    if len(reason) > REASON_MAX:
        raise ConfigError(option, f"has {len(reason)} characters; at most {REASON_MAX} are kept")
    if _CONTROL.search(reason):
        raise ConfigError(option, "has control characters; write it in one line of plain text")
    return reason


class Treatment(Enum):
    """What the running process does with a request that it finds."""

    TAKE = auto()
    """Execute it."""
    REFUSE = auto()
    """Answer that it was addressed to, or taken by, another process."""
    LEAVE = auto()
    """It has its final answer, which the sender may still read."""
    REMOVE = auto()
    """The sender no longer waits."""


def choose_treatment(
    request: Request | None, answer: Answer | None, holder: str, now_ms: int
) -> Treatment:
    """Decide what to do with a request that this process is not executing.

    A request or an answer is None if it is missing or cannot be read.
    """
    if answer is not None and (request is None or answer.state is not AnswerState.TAKEN):
        over = now_ms >= answer.answered_at_ms + FORGET_MS
        return Treatment.REMOVE if over else Treatment.LEAVE
    if request is None or now_ms >= request.expires_at_ms:
        return Treatment.REMOVE
    if request.holder != holder or answer is not None:
        return Treatment.REFUSE
    return Treatment.TAKE


class Requests(PipelineRecords):
    """The requests of one pipeline. A request or an answer that cannot be read counts as absent.

    Every method that reads raises `Unavailable` if the store does not answer. Every method that
    writes raises `StoreError` if the write failed or its outcome is not known.
    """

    def ask(self, request: Request) -> None:
        """Write a request. May be repeated after any error."""
        path = self._paths.asked(request.token)
        write_once(self._backend, path, encode(REQUEST, path, request))

    def tokens(self) -> tuple[str, ...]:
        """Return the tokens of all requests and answers, with a single listing."""
        found = {self._paths.token_of(path) for path in self._backend.list(self._paths.requests)}
        return tuple(sorted(found))

    def request(self, token: str) -> Request | None:
        """Read a request; None if it is missing or unreadable."""
        return self._read_if_usable(REQUEST, self._paths.asked(token))

    def answer(self, token: str) -> Answer | None:
        """Read the latest answer; None if it is missing or unreadable."""
        return self._read_if_usable(ANSWER, self._paths.answer(token))

    def tell(self, answer: Answer) -> None:
        """Write an answer, replacing an earlier one; a final answer also removes the request."""
        path = self._paths.answer(answer.token)
        self._backend.put(path, encode(ANSWER, path, answer))
        if answer.state is not AnswerState.TAKEN:
            self._backend.delete(self._paths.asked(answer.token))

    def remove(self, token: str) -> None:
        """Remove a request, so that no process takes it any more, and its answer."""
        self._backend.delete(self._paths.asked(token))
        self._backend.delete(self._paths.answer(token))
