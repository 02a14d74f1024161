"""Requests to a running pipeline through its store, where no port of it can be reached.

A command creates `asked`, addressed to the process that holds the lease; that process looks once a
second, says that it has taken the request, carries it out and writes the last answer; the command
reads it and removes both. Nothing here is needed for recovery. A request is carried out at most
once, by the process it was addressed to, and never after its time: whoever has died leaves
nothing behind that a later process would act on.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from cutwater.errors import ConfigError, Corrupt, NewerFormat, NotFound
from cutwater.ids import CheckpointId, PipelineId
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.envelope import decode, encode, plain_record
from cutwater.store.records.reports import AttemptReport

LOOK_MS: Final = 1_000
"""How often a running process looks for requests."""

FORGET_MS: Final = 600_000
"""How long an answer that nobody reads is kept."""


REASON_MAX: Final = 500
"""How many characters the reason of an abort may have."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Wish(Enum):
    """What is asked for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    ABORT = "abort"


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be aborted, and why.

    Attributes:
        checkpoint_id: The attempt; None for the only one that is pending.
        reason: Why; stored with the attempt.
    """

    checkpoint_id: CheckpointId | None = None
    reason: str


class Wanted(NamedTuple):
    """What is asked for, in detail.

    Attributes:
        wish: What it is.
        full: For a checkpoint: whether it must stand alone.
        name: For a savepoint, or a stop with one: its name.
        drain: For a stop: whether sources stop first.
        abort: For an abort: of what, and why.
    """

    wish: Wish
    full: bool = False
    name: str | None = None
    drain: bool = False
    abort: Abort | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks of the process that runs a pipeline.

    Attributes:
        token: Nobody else's.
        wish: What is asked for.
        holder: The nonce of the lease of the process that is asked.
        asked_by: Who asks, for people.
        asked_at_ms: When, on the clock of whoever asks.
        expires_at_ms: When nobody waits any more; it is not taken after that.
        full: For a checkpoint: whether it must stand alone.
        name: For a savepoint, or a stop with one: its name.
        drain: For a stop: whether sources stop first.
        abort: For an abort: of what, and why. Other requests are written without it, as they were
            before there were aborts.
    """

    token: str
    wish: Wish
    holder: str
    asked_by: str
    asked_at_ms: int
    expires_at_ms: int
    full: bool = False
    name: str | None = None
    drain: bool = False
    abort: Abort | msgspec.UnsetType = msgspec.UNSET


class AnswerState(Enum):
    """How far a request is."""

    TAKEN = "taken"
    """The process has taken it and works on it."""
    DONE = "done"
    FAILED = "failed"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request, so far.

    Attributes:
        token: The request's.
        state: How far it is.
        holder: The nonce of the process that answers.
        answered_at_ms: When.
        message: What there is to say; for a failure, why.
        report: The checkpoint that was taken for it, if there was one.
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

    Args:
        text: What the person wrote.
        option: The option's name as the person knows it, for the error.

    Raises:
        ConfigError: If it is empty, too long, or has control characters.
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
    """What the running process does about a request that it finds."""

    TAKE = auto()
    """Carry it out."""
    REFUSE = auto()
    """Say that it was meant for another process, or was taken by one that is gone."""
    LEAVE = auto()
    """It has its answer; whoever asked may still read it."""
    REMOVE = auto()
    """Nobody waits any more."""


def treatment(
    request: Request | None, answer: Answer | None, holder: str, now_ms: int
) -> Treatment:
    """Say what to do about a request that this process is not working on.

    Args:
        request: It, if it is there and can be read.
        answer: The answer so far, if there is one that can be read.
        holder: The nonce of this process's lease.
        now_ms: The time.
    """
    if answer is not None and (request is None or answer.state is not AnswerState.TAKEN):
        over = now_ms >= answer.answered_at_ms + FORGET_MS
        return Treatment.REMOVE if over else Treatment.LEAVE
    if request is None or now_ms >= request.expires_at_ms:
        return Treatment.REMOVE
    if request.holder != holder or answer is not None:
        return Treatment.REFUSE
    return Treatment.TAKE


class Requests:
    """The requests of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def ask(self, request: Request) -> None:
        """Ask. May be repeated after any error.

        Raises:
            StoreError: If it was not written, or may not have been.
        """
        path = self._paths.asked(request.token)
        write_once(self._backend, path, encode(REQUEST, path, request))

    def tokens(self) -> tuple[str, ...]:
        """Return the tokens of all that is asked or answered; one list, however many there were.

        Raises:
            Unavailable: If the store does not answer.
        """
        found = {self._paths.token_of(path) for path in self._backend.list(self._paths.requests)}
        return tuple(sorted(found))

    def request(self, token: str) -> Request | None:
        """Read a request; None if it is not there or cannot be read.

        Raises:
            Unavailable: If the store does not answer.
        """
        path = self._paths.asked(token)
        try:
            return decode(REQUEST, path, self._backend.read(path))
        except (NotFound, Corrupt, NewerFormat):
            return None

    def answer(self, token: str) -> Answer | None:
        """Read the answer so far; None if there is none that can be read.

        Raises:
            Unavailable: If the store does not answer.
        """
        path = self._paths.answer(token)
        try:
            return decode(ANSWER, path, self._backend.read(path))
        except (NotFound, Corrupt, NewerFormat):
            return None

    def tell(self, answer: Answer) -> None:
        """Answer, replacing an earlier answer; after a last one the request is removed.

        Raises:
            StoreError: If that could not be written.
        """
        path = self._paths.answer(answer.token)
        self._backend.put(path, encode(ANSWER, path, answer))
        if answer.state is not AnswerState.TAKEN:
            self._backend.delete(self._paths.asked(answer.token))

    def remove(self, token: str) -> None:
        """Remove a request, so that nobody takes it any more, and its answer.

        Raises:
            StoreError: If that could not be done now.
        """
        self._backend.delete(self._paths.asked(token))
        self._backend.delete(self._paths.answer(token))
