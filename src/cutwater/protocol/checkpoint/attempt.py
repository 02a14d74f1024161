"""An attempt that has not ended: who must acknowledge, who has, and until when (section 7).

The set of participants is fixed when the attempt starts (I2). Answers to acknowledgements are an
enum: a duplicate, a stranger or a latecomer is answered, never counted. Once the decision is
issued the attempt cannot be failed any more, only resolved (rule F15). Upholds I1, I2, I6, I7.
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
    """Where an attempt is."""

    RESERVING = auto()
    """Its number is being taken, durably, so that it is never used twice."""
    COLLECTING = auto()
    """Barriers are on their way and acknowledgements come in."""
    READY = auto()
    """All have acknowledged; it waits for its turn to be decided."""
    PUBLISHING = auto()
    """Its manifest is being written."""
    DECIDING = auto()
    """The decision has been issued; only its outcome can end the attempt."""
    COMPLETED = auto()
    """The decision is written: it is a checkpoint."""
    FAILED = auto()
    """It ended without a checkpoint."""


class PhaseTrigger(Enum):
    """What moves an attempt on."""

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
    """What became of an acknowledgement."""

    ACCEPTED = auto()
    """It counts."""
    DUPLICATE = auto()
    """The step had acknowledged before; the first one stands."""
    UNKNOWN = auto()
    """No such step takes part, or no such attempt was ever started."""
    LATE = auto()
    """The attempt is over, or was already complete."""
    STALE_GENERATION = auto()
    """It comes from another incarnation of the pipeline."""


class CancelResult(Enum):
    """What became of a cancellation."""

    CANCELLED = auto()
    """The attempt has ended without a checkpoint."""
    TOO_LATE = auto()
    """The attempt's decision has been issued; only the outcome can end the attempt (F15)."""
    NOT_OPEN = auto()
    """The attempt is not open; without a number: no attempt is open."""
    AMBIGUOUS = auto()
    """No number was given, and more than one attempt is open."""


class RequestResult(Enum):
    """What became of a request."""

    QUEUED = auto()
    QUEUE_FULL = auto()
    NOT_RUNNING = auto()


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """What somebody asked for.

    Attributes:
        kind: CHECKPOINT, FULL or SAVEPOINT.
        name: The savepoint's name.
        drain: Whether sources stop behind the barrier (stop with a savepoint or checkpoint).
        is_last: Whether the run ends with it: sinks commit whatever `commit_every` says.
    """

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    name: str | None = None
    drain: bool = False
    is_last: bool = False

    def __post_init__(self) -> None:
        """Refuse a rewind: it is decided by `rewind`, not attempted.

        Raises:
            ProtocolViolation: For the kind REWIND.
        """
        if self.kind is CheckpointKind.REWIND:
            message = "a rewind is decided, not attempted."
            raise ProtocolViolation(message)

    def standing_alone(self) -> "CheckpointRequest":
        """Return the same request, standing alone: nobody overtakes."""
        plain = self.kind is CheckpointKind.CHECKPOINT
        return replace(self, kind=CheckpointKind.FULL) if plain else self

    @property
    def flags(self) -> Flag:
        """The flags of the barrier that serves the request."""
        full = Flag.NONE if self.kind is CheckpointKind.CHECKPOINT else Flag.FULL_SNAPSHOT
        return full | (Flag.DRAIN if self.drain else Flag.NONE)

    def timeout_ms(self, options: CheckpointOptions) -> int:
        """How long the attempt may take: one that never overtakes gets the longer deadline."""
        return options.savepoint_timeout_ms if self.flags else options.timeout_ms


@dataclass(slots=True)
class Attempt:
    """One attempt, from its number to its end."""

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
        """The barrier that starts the attempt at the sources."""
        return Barrier(self.checkpoint_id, self.generation, self.request.flags, self.started_at_ms)

    def move(self, trigger: PhaseTrigger) -> None:
        """Go to the next phase.

        Raises:
            ProtocolViolation: If the attempt table has no such move.
        """
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
        """Whether the attempt may still be ended without a checkpoint."""
        return ATTEMPT.allows(self.phase, PhaseTrigger.FAIL)

    @property
    def missing(self) -> tuple[StepId, ...]:
        """Who has not acknowledged, by name."""
        return tuple(sorted(self.participants - set(self._snapshots)))

    @property
    def waits_for(self) -> str:
        """What it waits for; for people. Steps that were never asked are not to blame."""
        if self.phase is Phase.RESERVING:
            return "the store had not answered whether its number is taken"
        silent = ", ".join(self.missing)
        return f"no acknowledgement from {silent}" if silent else self.phase.name

    @property
    def snapshots(self) -> Mapping[StepId, StepSnapshot]:
        """What has been acknowledged."""
        return dict(self._snapshots)
