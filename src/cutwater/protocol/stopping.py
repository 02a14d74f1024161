"""How a generation stops: with a last checkpoint, without one, or not at all.

A stop requests a last checkpoint and waits for its attempt. If the attempt is decided, the pipeline
ends. If it fails, a plain stop tries again and then ends without a checkpoint; a stop with a
savepoint or a drain resumes the pipeline; a run whose input has ended fails, because its last rows
are not committed. The machine receives what happened as events and returns commands, which the
driver carries out. See PROTOCOL.md section 13.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from cutwater.ids import CheckpointId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.transitions import TransitionTable

TRIES_MAX: Final = 3
"""How many attempts a stop makes to end with a checkpoint."""

STOPPING_ALREADY: Final = "the pipeline is stopping already"
_FINAL: Final = frozenset({FailureReason.CANCELLED, FailureReason.EXPIRED})
"""A plain stop does not try again after these: the end was requested without it, or one deadline
has passed."""


class StopState(Enum):
    """Where a generation is between running and its end."""

    RUNNING = auto()
    """No stop was requested, or the last one was resumed from."""
    LAST_CHECKPOINT = auto()
    """The last checkpoint was requested; its attempt is pending."""
    NO_ROOM = auto()
    """The coordinator's queue was full; the request is repeated."""
    ENDING = auto()
    """The coordinator was stopped; only the end can follow."""


class StopTrigger(Enum):
    STOP = auto()
    SUPERSEDE = auto()
    QUEUE_FULL = auto()
    REPEAT = auto()
    RESUME = auto()
    END = auto()


STOPPING: Final = TransitionTable(
    "stop",
    StopState.RUNNING,
    {
        (StopState.RUNNING, StopTrigger.STOP): StopState.LAST_CHECKPOINT,
        (StopState.RUNNING, StopTrigger.END): StopState.ENDING,
        (StopState.LAST_CHECKPOINT, StopTrigger.SUPERSEDE): StopState.LAST_CHECKPOINT,
        (StopState.LAST_CHECKPOINT, StopTrigger.REPEAT): StopState.LAST_CHECKPOINT,
        (StopState.LAST_CHECKPOINT, StopTrigger.QUEUE_FULL): StopState.NO_ROOM,
        (StopState.LAST_CHECKPOINT, StopTrigger.RESUME): StopState.RUNNING,
        (StopState.LAST_CHECKPOINT, StopTrigger.END): StopState.ENDING,
        (StopState.NO_ROOM, StopTrigger.REPEAT): StopState.LAST_CHECKPOINT,
        (StopState.NO_ROOM, StopTrigger.END): StopState.ENDING,
        (StopState.ENDING, StopTrigger.END): StopState.ENDING,
    },
)


# -- events


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user, a program or a signal requests the end.

    Attributes:
        request: The last checkpoint; None to end without one.
        insists: Whether the pipeline resumes if the last checkpoint fails.
        blocked: Why sinks cannot commit now; empty if they can. No checkpoint is decided then.
    """

    request: CheckpointRequest | None
    insists: bool = False
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class InputEnded:
    """Every step has ended by itself; `blocked` as in `StopRequested`."""

    blocked: str = ""


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The coordinator had no room for a request."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Time to repeat a request that found no room."""


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """The coordinator began an attempt for a request."""

    checkpoint_id: CheckpointId
    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt was decided or failed.

    Attributes:
        reason: Why it failed; None if it did not.
        failure: The same as a sentence.
        output_waits: Whether sinks hold output that no commit includes yet.
    """

    checkpoint_id: CheckpointId
    decided: bool
    reason: FailureReason | None = None
    failure: str = ""
    output_waits: bool = False


@dataclass(frozen=True, slots=True)
class SinksBlocked:
    """A sink cannot commit, or the store takes no record of a commit."""

    why: str


StopEvent = (
    StopRequested
    | InputEnded
    | RequestRefused
    | RetryDue
    | AttemptBegan
    | AttemptEnded
    | SinksBlocked
)


# -- commands


@dataclass(frozen=True, slots=True)
class RequestLast:
    """Request the last checkpoint; with `at_once` pending attempts give way to it."""

    request: CheckpointRequest
    at_once: bool


@dataclass(frozen=True, slots=True)
class RefuseStop:
    """Report that this stop was refused to its requester; the state does not change."""

    request: CheckpointRequest
    why: str


@dataclass(frozen=True, slots=True)
class ResumePipeline:
    """Run as before the stop: its last checkpoint failed."""


@dataclass(frozen=True, slots=True)
class EndPipeline:
    """Stop the coordinator; `unsaved` says why there is no last checkpoint, if one was wanted."""

    unsaved: str = ""


@dataclass(frozen=True, slots=True)
class FailPipeline:
    """End as a failure: the input has ended and its last rows cannot be committed."""

    why: str


StopCommand = RequestLast | RefuseStop | ResumePipeline | EndPipeline | FailPipeline
Commands = tuple[StopCommand, ...]


class Stopping:
    """The stop of one generation.

    Attributes:
        input_ended: Whether the steps ended by themselves.
        is_saved: Whether the last checkpoint was decided.
        unsaved: Why the pipeline ends without the checkpoint that was wanted; empty otherwise.
    """

    def __init__(self) -> None:
        self.state = STOPPING.initial
        self.input_ended = False
        self.is_saved = False
        self.unsaved = ""
        self._request: CheckpointRequest | None = None
        self._insists = False
        self._tries = 0
        self._attempt: CheckpointId | None = None

    @property
    def is_requested(self) -> bool:
        """Whether a last checkpoint was requested and the pipeline was not resumed since."""
        return self._request is not None

    def handle(self, event: StopEvent) -> Commands:
        match event:
            case StopRequested():
                return self._stop(event)
            case InputEnded(blocked):
                if self.state is not StopState.RUNNING:
                    return ()
                self.input_ended = True
                return self._stop(StopRequested(CheckpointRequest(is_last=True), blocked=blocked))
            case RequestRefused(request):
                return self._on_refused(request)
            case RetryDue():
                return self._request_last() if self.state is StopState.NO_ROOM else ()
            case AttemptBegan(checkpoint_id, request):
                self._follow(checkpoint_id, request)
                return ()
            case AttemptEnded():
                return self._on_ended(event)
            case SinksBlocked(why):
                return self._on_blocked(why)
            case _:
                assert_never(event)

    def _stop(self, event: StopRequested) -> Commands:
        request = event.request
        running = self.state is StopState.RUNNING
        if request is not None and event.insists and (event.blocked or not running):
            return (RefuseStop(request, event.blocked or STOPPING_ALREADY),)
        if request is None or event.blocked:
            if self._insists:
                # The savepoint that the pipeline would have ended with is given up.
                self._request = None
            # While a sink is blocked no checkpoint can be decided; recovery repeats the commit.
            return self._end(event.blocked if request is not None else "")
        if running:
            trigger = StopTrigger.STOP
        elif self._insists and self.state is StopState.LAST_CHECKPOINT:
            # A plain stop must end: the savepoint of an earlier stop gives way.
            trigger = StopTrigger.SUPERSEDE
        else:
            return ()
        self.state = STOPPING.next(self.state, trigger)
        self._request, self._insists, self._tries = request, event.insists, 0
        return self._ask(request)

    def _request_last(self) -> Commands:
        assert self._request is not None
        self.state = STOPPING.next(self.state, StopTrigger.REPEAT)
        return self._ask(self._request)

    def _ask(self, request: CheckpointRequest) -> Commands:
        self._tries += 1
        self._attempt = None
        # A stop does not wait for a pending attempt that may be stuck. A run whose input has ended
        # is in no hurry: what is pending completes by itself.
        return (RequestLast(request, at_once=not self.input_ended),)

    def _on_refused(self, request: CheckpointRequest) -> Commands:
        if self.state is not StopState.LAST_CHECKPOINT or request != self._request:
            return ()
        if self._insists:
            return self._resume()
        # Only attempts count as tries.
        self._tries -= 1
        self.state = STOPPING.next(self.state, StopTrigger.QUEUE_FULL)
        return ()

    def _follow(self, checkpoint_id: CheckpointId, request: CheckpointRequest) -> None:
        waits = self.state is StopState.LAST_CHECKPOINT and self._attempt is None
        if waits and self._request is not None and self._request.is_served_by(request):
            self._attempt = checkpoint_id

    def _on_ended(self, event: AttemptEnded) -> Commands:
        request = self._request
        if event.checkpoint_id != self._attempt or request is None:
            return ()
        self._attempt = None
        if self.state is not StopState.LAST_CHECKPOINT or event.reason is FailureReason.ID_TAKEN:
            # A number that was taken is no failure: the request keeps its turn.
            return ()
        if self._must_repeat(event):
            return self._request_last()
        if event.decided:
            self.is_saved = True
            return self._end("")
        if self._insists:
            return self._resume()
        if self.input_ended:
            return (
                FailPipeline(f"the last checkpoint failed {self._tries} times: {event.failure}."),
            )
        return self._end(event.failure)

    def _must_repeat(self, event: AttemptEnded) -> bool:
        if event.decided:
            # What the steps put out while the checkpoint was taken needs another commit.
            return self.input_ended and event.output_waits
        if self._insists or self._tries >= TRIES_MAX:
            return False
        return self.input_ended or event.reason not in _FINAL

    def _on_blocked(self, why: str) -> Commands:
        if self._request is None or self._insists or self.input_ended:
            return ()
        # No attempt starts any more, so the one to stop with would never come.
        return self._end(why)

    def _resume(self) -> Commands:
        self.state = STOPPING.next(self.state, StopTrigger.RESUME)
        self._request = None
        return (ResumePipeline(),)

    def _end(self, unsaved: str) -> Commands:
        self.state = STOPPING.next(self.state, StopTrigger.END)
        self.unsaved = unsaved
        return (EndPipeline(unsaved),)
