"""Decide when an attempt starts: interval, pause, backoff, concurrency, requests (section 7).

`decide` is a pure function of `TriggerFacts`. `Schedule` remembers what the facts depend on:
requests, past attempts, failures and garbage. A user's request does not wait for the interval, the
pause or the backoff; it waits for room as every attempt does. A failed attempt is repeated after
the backoff, not after a whole interval (rule F39). One schedule belongs to one coordinator.
Upholds I6 and I12.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from cutwater.protocol.checkpoint.attempt import CheckpointRequest, RequestResult
from cutwater.protocol.checkpoint.events import AnswerRequest
from cutwater.protocol.checkpoint.failure import FailureReason, FailureStreak
from cutwater.protocol.options import CheckpointOptions


class Verdict(Enum):
    """Whether to start an attempt now, and if not, why not."""

    START = auto()
    NOT_DUE = auto()
    TOO_MANY_OPEN = auto()
    COLLECTING_GARBAGE = auto()
    ENDING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFacts:
    """Everything that the decision depends on.

    Attributes:
        started_at_ms: When the last attempt started; None before the first.
        ended_at_ms: When the last attempt ended; None before the first end.
        drained: Whether everything is drained and sinks wait for a commit.
        garbage: Whether garbage is being or must be collected first.
    """

    now_ms: int
    open_attempts: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    failure_pause_ms: int = 0
    requested: bool = False
    drained: bool = False
    garbage: bool = False
    ending: bool = False


def decide(facts: TriggerFacts, options: CheckpointOptions) -> Verdict:
    if facts.ending:
        return Verdict.ENDING
    if facts.garbage:
        return Verdict.COLLECTING_GARBAGE
    if facts.open_attempts >= options.max_concurrent:
        return Verdict.TOO_MANY_OPEN
    if facts.requested or facts.now_ms >= due_ms(facts, options):
        return Verdict.START
    return Verdict.NOT_DUE


def due_ms(facts: TriggerFacts, options: CheckpointOptions) -> int:
    """Return when the next automatic attempt is due; the first one is due at once."""
    if facts.started_at_ms is None:
        return facts.now_ms
    due = facts.started_at_ms + options.interval_ms
    if facts.drained and options.flush_when_drained:
        due = facts.now_ms
    if facts.ended_at_ms is None:
        return due
    if facts.failure_pause_ms and facts.started_at_ms <= facts.ended_at_ms:
        due = facts.ended_at_ms + facts.failure_pause_ms
    return max(due, facts.ended_at_ms + options.min_pause_ms)


class Schedule:
    """The facts about past and requested attempts of one generation."""

    def __init__(self, options: CheckpointOptions) -> None:
        """Start a generation: no requests, and the predecessor's garbage is due."""
        self._limit = options.queue_limit
        self._requests: deque[CheckpointRequest] = deque()
        self._started_at_ms: int | None = None
        self._ended_at_ms: int | None = None
        self._streak = FailureStreak(
            options.tolerable_failed, options.retry_ms, options.retry_max_ms
        )
        self._garbage_due = True
        self._collecting = False
        self.drained = False

    def enqueue(self, request: CheckpointRequest, *, first: bool = False) -> RequestResult:
        """Queue a request, if there is room.

        A request with `first` goes to the front; it fits into a full queue, once.
        """
        if len(self._requests) >= self._limit + first:
            return RequestResult.QUEUE_FULL
        if first:
            self._requests.appendleft(request)
        else:
            self._requests.append(request)
        return RequestResult.QUEUED

    def put_back(self, request: CheckpointRequest) -> None:
        self._requests.appendleft(request)

    def dismiss(self) -> tuple[AnswerRequest, ...]:
        """Empty the queue and answer the waiting requests in order."""
        waiting = tuple(self._requests)
        self._requests.clear()
        return tuple(AnswerRequest(request, RequestResult.NOT_RUNNING) for request in waiting)

    def started(self, now_ms: int) -> CheckpointRequest:
        """Note the start of an attempt; return the request it serves."""
        self._started_at_ms = now_ms
        self.drained = False
        return self._requests.popleft() if self._requests else CheckpointRequest()

    def ended(self, now_ms: int) -> None:
        self._ended_at_ms = now_ms

    def completed(self) -> None:
        self._streak.completed()
        self._garbage_due = True

    def failed(self, reason: FailureReason) -> bool:
        """Note a failure; return whether the pipeline must restart because of it."""
        return self._streak.failed(reason)

    def collect(self) -> bool:
        """Start to collect garbage if it is due; return whether to collect."""
        begin, self._garbage_due = self._garbage_due, False
        self._collecting = self._collecting or begin
        return begin

    @property
    def collecting(self) -> bool:
        return self._collecting

    def collected(self) -> None:
        self._collecting = False

    def facts(self, now_ms: int | None, open_attempts: int, *, ending: bool) -> TriggerFacts:
        """Return the current facts; without a time, those at the last start."""
        return TriggerFacts(
            now_ms=(self._started_at_ms or 0) if now_ms is None else now_ms,
            open_attempts=open_attempts,
            started_at_ms=self._started_at_ms,
            ended_at_ms=self._ended_at_ms,
            failure_pause_ms=self._streak.pause_ms,
            requested=bool(self._requests),
            drained=self.drained,
            garbage=self._garbage_due or self._collecting,
            ending=ending,
        )
