"""What the choice of when to start depends on: requests, past attempts, failures, garbage.

It remembers; `trigger` chooses. One schedule belongs to one coordinator. Upholds I6 and I12.
"""

from collections import deque

from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.events import AnswerRequest
from cutwater.protocol.checkpoint.failure import FailureReason, FailureStreak
from cutwater.protocol.checkpoint.trigger import RequestResult, TriggerFacts
from cutwater.protocol.options import CheckpointOptions


class Schedule:
    """The facts about past and wanted attempts of one generation."""

    def __init__(self, options: CheckpointOptions) -> None:
        """Begin a generation: nothing asked for, and a predecessor's garbage to collect."""
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

    def ask(self, request: CheckpointRequest, *, first: bool = False) -> RequestResult:
        """Let a request wait for its turn, if there is room.

        One that comes first finds room behind a full queue, once.
        """
        if len(self._requests) >= self._limit + first:
            return RequestResult.QUEUE_FULL
        if first:
            self._requests.appendleft(request)
        else:
            self._requests.append(request)
        return RequestResult.QUEUED

    def ask_again(self, request: CheckpointRequest) -> None:
        """Give a request its turn back."""
        self._requests.appendleft(request)

    def dismiss(self) -> tuple[AnswerRequest, ...]:
        """Let nobody wait any more: answer everybody who did, in order."""
        waiting = tuple(self._requests)
        self._requests.clear()
        return tuple(AnswerRequest(one, RequestResult.NOT_RUNNING) for one in waiting)

    def started(self, now_ms: int) -> CheckpointRequest:
        """Note the start of an attempt; return what it is to serve."""
        self._started_at_ms = now_ms
        self.drained = False
        return self._requests.popleft() if self._requests else CheckpointRequest()

    def ended(self, now_ms: int) -> None:
        """Note the end of an attempt, whatever the outcome."""
        self._ended_at_ms = now_ms

    def completed(self) -> None:
        """Note a checkpoint: failures are forgotten, what it replaces may be collected."""
        self._streak.completed()
        self._garbage_due = True

    def failed(self, reason: FailureReason) -> bool:
        """Note a failure; return whether the pipeline must restart because of it."""
        return self._streak.failed(reason)

    def collect(self) -> bool:
        """Begin to collect garbage if some is due; return whether to."""
        begin, self._garbage_due = self._garbage_due, False
        self._collecting = self._collecting or begin
        return begin

    @property
    def collecting(self) -> bool:
        """Whether garbage is being collected."""
        return self._collecting

    def collected(self) -> None:
        """Note that garbage is collected."""
        self._collecting = False

    def facts(self, now_ms: int | None, open_attempts: int, *, ending: bool) -> TriggerFacts:
        """Return the facts of this moment; without a time, those of the last start."""
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
