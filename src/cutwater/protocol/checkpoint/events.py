"""The coordinator's events and commands. Values only; `coordinator.py` is the machine.

Every event that depends on time carries `now_ms`: the machine has no clock of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final

from cutwater.ids import NO_CHECKPOINT, BatchId, CheckpointId, Generation, SinkId, Slot, StepId
from cutwater.protocol.checkpoint.attempt import (
    AckResult,
    CancelResult,
    CheckpointRequest,
    PhaseTrigger,
    RequestResult,
)
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitCommand
from cutwater.protocol.cut import CheckpointKind, Committable, Cut, StepSnapshot, Version
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.protocol.messages import Barrier
from cutwater.protocol.transitions import TransitionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a generation starts: the result of recovery.

    Attributes:
        slot: The last slot of the log: this generation's claim.
        highest_id: The highest attempt id ever taken; the next attempt gets a higher one.
        decided: Each step's batch in the restored cut.
        carried: What sinks have prepared and not committed yet.
        last_writes: The last recorded decision that made each sink write.
        overtaken: Whether the restored cut has data in flight.
    """

    slot: Slot
    highest_id: CheckpointId = NO_CHECKPOINT
    decided: Mapping[StepId, BatchId] = field(default_factory=dict)
    carried: Mapping[SinkId, tuple[Committable, ...]] = field(default_factory=dict)
    visible: Mapping[SinkId, Version | None] = field(default_factory=dict)
    last_writes: Mapping[SinkId, Slot] = field(default_factory=dict)
    overtaken: bool = False


# -- events


@dataclass(frozen=True, slots=True)
class Clock:
    """Time has passed; sent also when nothing else happens."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Requested:
    """A checkpoint or savepoint is requested.

    With `at_once` the pipeline stops with it. The request comes before all waiting requests, and
    open attempts give way to it: each of them may be stuck until its deadline.
    """

    request: CheckpointRequest
    now_ms: int
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """The attempt's number was reserved by this process, or was already taken."""

    checkpoint_id: CheckpointId
    won: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class ReserveFailed:
    """The attempt's number could not be reserved and is not used again; `detail` says why."""

    answers: ClassVar[PhaseTrigger] = PhaseTrigger.RESERVED

    checkpoint_id: CheckpointId
    now_ms: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A step's snapshot is stored."""

    snapshot: StepSnapshot
    now_ms: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A step cannot take part in an attempt."""

    step: StepId
    generation: Generation
    checkpoint_id: CheckpointId
    reason: FailureReason
    now_ms: int
    cause: str = ""

    @property
    def detail(self) -> str:
        """Human-readable: which step has declined and, if known, why."""
        return f"{self.step}: {self.cause}" if self.cause else f"declined by {self.step}"


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step's query has died: the generation is over (rule F10)."""

    step: StepId
    now_ms: int


@dataclass(frozen=True, slots=True)
class Published:
    """The manifest is written."""

    checkpoint_id: CheckpointId
    manifest_sha256: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The manifest could not be written; `detail` says why in human-readable form."""

    answers: ClassVar[PhaseTrigger] = PhaseTrigger.DECIDE

    checkpoint_id: CheckpointId
    now_ms: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """The outcome of creating the slot: known, or known to be unknowable."""

    checkpoint_id: CheckpointId
    outcome: DecisionOutcome
    now_ms: int


@dataclass(frozen=True, slots=True)
class SinkCommitted:
    """A sink has acted on a decision."""

    slot: Slot
    sink: SinkId
    version: Version
    now_ms: int


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """A sink could not act on a decision."""

    slot: Slot
    sink: SinkId
    reason: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class SinkFenced:
    """A sink has acted on a later slot and never on this one: another process has rewound.

    Recording a version would name a state that never held this commit (rule F41).
    """

    slot: Slot
    sink: SinkId
    now_ms: int


@dataclass(frozen=True, slots=True)
class SinkBehind:
    """A sink's target lacks a recorded commit: nothing may be committed on top (F43)."""

    slot: Slot
    sink: SinkId
    now_ms: int


@dataclass(frozen=True, slots=True)
class CommitRecorded:
    """What the sinks made visible is recorded."""

    slot: Slot
    now_ms: int


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """What the sinks made visible could not be recorded; `reason` says why.

    Whether the record was written does not matter: the write is retried until it succeeds.
    """

    slot: Slot
    reason: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class GarbageCollected:
    """The work of `CollectGarbage` is done."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A user aborts an attempt, None for the only open one; answered with `AnswerCancel`.

    The reason becomes the detail of the attempt's end.
    """

    checkpoint_id: CheckpointId | None
    now_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    """Whether everything is drained and sinks wait for a commit."""

    waiting: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The pipeline stops: no new attempts; open ones fail unless their decision is issued."""

    now_ms: int


CoordinatorEvent = (
    Clock
    | Requested
    | Reserved
    | ReserveFailed
    | Acknowledged
    | Declined
    | StepFailed
    | Published
    | PublishFailed
    | DecisionMade
    | SinkCommitted
    | SinkFailed
    | SinkFenced
    | SinkBehind
    | CommitRecorded
    | RecordFailed
    | GarbageCollected
    | Cancelled
    | Drained
    | Stop
)


# -- commands


@dataclass(frozen=True, slots=True)
class ReserveId:
    """Reserve this number durably; answer with `Reserved` or `ReserveFailed`.

    The request it serves is for reports and not part of the comparison.
    """

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    request: CheckpointRequest = field(default_factory=CheckpointRequest, compare=False)


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Announce the barrier to every step; sources inject it."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Notify every step directly that the attempt is over.

    `detail` is human-readable: which steps were missing, which facts contradict each other.
    """

    checkpoint_id: CheckpointId
    decided: bool
    reason: FailureReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PublishManifest:
    """Write the description of the cut; answer with `Published` or `PublishFailed`."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class CreateDecision:
    """Create exactly this slot; answer with `DecisionMade`."""

    slot: Slot
    cut: Cut
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """Plan and delete what retention does not keep; answer with `GarbageCollected`."""


@dataclass(frozen=True, slots=True)
class AnswerAck:
    """The answer to an acknowledgement."""

    step: StepId
    checkpoint_id: CheckpointId
    result: AckResult


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """The answer to a request."""

    request: CheckpointRequest
    result: RequestResult


@dataclass(frozen=True, slots=True)
class AnswerCancel:
    """The answer to a cancellation; the attempt's `EndAttempt` comes before it.

    `checkpoint_id` is None if no attempt, or more than one, was open.
    """

    cancel: Cancelled
    result: CancelResult
    checkpoint_id: CheckpointId | None


@dataclass(frozen=True, slots=True)
class RestartPipeline:
    """End this generation and start the next from the last decided checkpoint."""

    reason: FailureReason
    detail: str


class HaltReason(Enum):
    """Why a process must end at once."""

    FENCED = "another generation has claimed the pipeline"
    OUTCOME_UNKNOWN = "it is unknown whether the decision was written"
    STOPPED = "the pipeline was stopped on request"
    TARGET_BEHIND = "a sink's target lacks a recorded commit"


@dataclass(frozen=True, slots=True)
class Halt:
    """End the process; a new process reads the log and resumes from it."""

    reason: HaltReason


CoordinatorCommand = (
    ReserveId
    | StartAttempt
    | EndAttempt
    | PublishManifest
    | CreateDecision
    | CollectGarbage
    | AnswerAck
    | AnswerRequest
    | AnswerCancel
    | RestartPipeline
    | Halt
    | CommitCommand
)


class Mode(Enum):
    """Whether the coordinator may start attempts."""

    RUNNING = auto()
    """Attempts start when they are due."""
    ENDING = auto()
    """Nothing new starts; issued decisions and their commits are completed."""
    HALTED = auto()
    """Nothing more happens; only a new generation continues."""


class ModeTrigger(Enum):
    """What moves the coordinator from one mode to another."""

    END = auto()
    HALT = auto()


COORDINATOR: Final = TransitionTable(
    "coordinator",
    Mode.RUNNING,
    {
        (Mode.RUNNING, ModeTrigger.END): Mode.ENDING,
        (Mode.RUNNING, ModeTrigger.HALT): Mode.HALTED,
        (Mode.ENDING, ModeTrigger.HALT): Mode.HALTED,
    },
)
