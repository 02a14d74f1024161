"""An open attempt: which steps must acknowledge, which have, and the deadline (section 7).

The set of participants is fixed when the attempt starts (I2). Answers to acknowledgements are an
enum: a duplicate, unknown or late acknowledgement is answered, never counted. Once the decision is
issued the attempt can no longer fail; it can only be resolved (rule F15).
Upholds I1, I2, I6 and I7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId, Generation, StepId
from cutwater.protocol.cut import CheckpointKind, StepSnapshot
from cutwater.protocol.messages import Barrier, Flag
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.transitions import TransitionTable


class Phase(Enum):
    RESERVING = auto()
    """The number is being reserved durably, so that it is never used twice."""
    COLLECTING = auto()
    """Barriers flow and acknowledgements arrive."""
    READY = auto()
    """All steps have acknowledged; the attempt waits for its turn to be decided."""
    PUBLISHING = auto()
    """The manifest is being written."""
    DECIDING = auto()
    """The decision has been issued; only its outcome can end the attempt."""
    COMPLETED = auto()
    """The decision is written: the attempt is a checkpoint."""
    FAILED = auto()
    """The attempt ended without a checkpoint."""


class PhaseTrigger(Enum):
    RESERVED = auto()
    ALL_ACKNOWLEDGED = auto()
    PUBLISH = auto()
    DECIDE = auto()
    WRITTEN = auto()
    NOT_WRITTEN = auto()
    FAIL = auto()


_P, _T = Phase, PhaseTrigger

ATTEMPT: Final = TransitionTable(
    "checkpoint attempt",
    _P.RESERVING,
    {
        (_P.RESERVING, _T.RESERVED): _P.COLLECTING,
        (_P.COLLECTING, _T.ALL_ACKNOWLEDGED): _P.READY,
        (_P.READY, _T.PUBLISH): _P.PUBLISHING,
        (_P.PUBLISHING, _T.DECIDE): _P.DECIDING,
        (_P.DECIDING, _T.WRITTEN): _P.COMPLETED,
        (_P.DECIDING, _T.NOT_WRITTEN): _P.FAILED,
        (_P.RESERVING, _T.FAIL): _P.FAILED,
        (_P.COLLECTING, _T.FAIL): _P.FAILED,
        (_P.READY, _T.FAIL): _P.FAILED,
        (_P.PUBLISHING, _T.FAIL): _P.FAILED,
    },
)


class AckResult(Enum):
    ACCEPTED = auto()
    """The acknowledgement counts."""
    DUPLICATE = auto()
    """The step had acknowledged before; only the first acknowledgement counts."""
    UNKNOWN = auto()
    """The step is not a participant, or no such attempt was ever started."""
    LATE = auto()
    """The attempt is over, or was already complete."""
    STALE_GENERATION = auto()
    """The acknowledgement comes from another generation of the pipeline."""


class CancelResult(Enum):
    CANCELLED = auto()
    """The attempt has ended without a checkpoint."""
    TOO_LATE = auto()
    """The attempt's decision has been issued; only the outcome can end the attempt (F15)."""
    NOT_OPEN = auto()
    """The attempt is not open; without a number: no attempt is open."""
    AMBIGUOUS = auto()
    """No number was given, and more than one attempt is open."""


class RequestResult(Enum):
    QUEUED = auto()
    QUEUE_FULL = auto()
    NOT_RUNNING = auto()


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint or savepoint; never for a REWIND, which no attempt serves.

    Attributes:
        drain: Whether sources stop after the barrier (stop with a savepoint or checkpoint).
        is_last: Whether the run ends with it: sinks commit whatever `commit_every` says.
    """

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    name: str | None = None
    drain: bool = False
    is_last: bool = False

    def __post_init__(self) -> None:
        if self.kind is CheckpointKind.REWIND:
            message = "a rewind is decided, not attempted."
            raise ProtocolViolation(message)

    def is_served_by(self, started: "CheckpointRequest") -> bool:
        """Say whether an attempt that starts now for another request serves this one too.

        A plain checkpoint is served by a self-contained one. The last checkpoint of a run is served
        by a last one only: another may not be a commit point.
        """
        if CheckpointKind.SAVEPOINT in {self.kind, started.kind}:
            return self == started
        if self.is_last and not started.is_last:
            return False
        return self.drain == started.drain and self.kind in {
            CheckpointKind.CHECKPOINT,
            started.kind,
        }

    def standing_alone(self) -> "CheckpointRequest":
        """Return the same request as a self-contained one: no step overtakes."""
        plain = self.kind is CheckpointKind.CHECKPOINT
        return replace(self, kind=CheckpointKind.FULL) if plain else self

    @property
    def flags(self) -> Flag:
        full = Flag.NONE if self.kind is CheckpointKind.CHECKPOINT else Flag.FULL_SNAPSHOT
        return full | (Flag.DRAIN if self.drain else Flag.NONE)

    def timeout_ms(self, options: CheckpointOptions) -> int:
        """Return how long the attempt may take; `savepoint_timeout` if it never overtakes."""
        return options.savepoint_timeout_ms if self.flags else options.timeout_ms


@dataclass(slots=True)
class Attempt:
    """One attempt, from the reservation of its number to its end."""

    checkpoint_id: CheckpointId
    generation: Generation
    request: CheckpointRequest
    participants: frozenset[StepId]
    started_at_ms: int
    deadline_ms: int
    phase: Phase = ATTEMPT.initial
    _snapshots: dict[StepId, StepSnapshot] = field(default_factory=dict)

    @property
    def barrier(self) -> Barrier:
        return Barrier(self.checkpoint_id, self.generation, self.request.flags, self.started_at_ms)

    def move(self, trigger: PhaseTrigger) -> None:
        self.phase = ATTEMPT.next(self.phase, trigger)

    def acknowledge(self, snapshot: StepSnapshot) -> AckResult:
        """Count one acknowledgement; the last one makes the attempt READY."""
        if snapshot.generation != self.generation:
            return AckResult.STALE_GENERATION
        if snapshot.step not in self.participants or self.phase is Phase.RESERVING:
            return AckResult.UNKNOWN
        if snapshot.step in self._snapshots:
            return AckResult.DUPLICATE
        self._snapshots[snapshot.step] = snapshot
        if not self.missing:
            self.move(PhaseTrigger.ALL_ACKNOWLEDGED)
        return AckResult.ACCEPTED

    @property
    def can_fail(self) -> bool:
        return ATTEMPT.allows(self.phase, PhaseTrigger.FAIL)

    @property
    def missing(self) -> tuple[StepId, ...]:
        return tuple(sorted(self.participants - set(self._snapshots)))

    @property
    def waits_for(self) -> str:
        """Human-readable: what the attempt waits for. Names no step before the barriers start."""
        if self.phase is Phase.RESERVING:
            return "the store had not answered whether its number is taken"
        silent = ", ".join(self.missing)
        return f"no acknowledgement from {silent}" if silent else self.phase.name

    @property
    def snapshots(self) -> Mapping[StepId, StepSnapshot]:
        return dict(self._snapshots)
