"""What an aligner is told and what it answers, and the legal moves of an attempt at one step.

These are values only; `alignment.py` is the machine that takes and returns them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cutwater.ids import CheckpointId, InputId
from cutwater.protocol.barrier import Barrier
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.messages import Place
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.transitions import TransitionTable


class AlignmentState(Enum):
    """Where one attempt is at one step."""

    ALIGNING = auto()
    """The barrier is awaited or held on some inputs; the step reads on where it may."""
    ALIGNED = auto()
    """The step stood at the barrier on every input and has passed it on."""
    RECORDING = auto()
    """The step has overtaken; inputs whose barrier is not visible yet are still recorded."""
    CAPTURED = auto()
    """The step has overtaken and everything in flight is known."""
    DECLINED = auto()
    """The step cannot take part; it holds nothing."""
    OVER = auto()
    """The attempt has ended, whatever the outcome."""


class AlignmentTrigger(Enum):
    """What moves an attempt on at one step."""

    ALL_REACHED = auto()
    OVERTAKE = auto()
    ALL_RECORDED = auto()
    OVERFLOW = auto()
    REFUSE = auto()
    END = auto()


_S, _T = AlignmentState, AlignmentTrigger

ALIGNMENT: Final = TransitionTable(
    "alignment of one attempt at one step",
    _S.ALIGNING,
    {
        (_S.ALIGNING, _T.ALL_REACHED): _S.ALIGNED,
        (_S.ALIGNING, _T.OVERTAKE): _S.RECORDING,
        (_S.ALIGNING, _T.REFUSE): _S.DECLINED,
        (_S.RECORDING, _T.ALL_RECORDED): _S.CAPTURED,
        (_S.RECORDING, _T.OVERFLOW): _S.DECLINED,
        (_S.ALIGNING, _T.END): _S.OVER,
        (_S.ALIGNED, _T.END): _S.OVER,
        (_S.RECORDING, _T.END): _S.OVER,
        (_S.CAPTURED, _T.END): _S.OVER,
        (_S.DECLINED, _T.END): _S.OVER,
    },
)


class Cause(Enum):
    """Why a step's barrier went out when it did. The values are what a store holds."""

    ALIGNED = "aligned"
    TIMEOUT = "timeout"
    FORCED = "forced"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class AlignmentProgress:
    """How the inputs of a step meet the barrier of one open attempt; for people.

    Attributes:
        state: Where the attempt is at this step.
        aligned: The inputs that were read up to their barrier, in order.
        waiting: The others.
        behind_bytes: What lies between the step's positions and the barriers that it has seen.
        recorded_bytes: What the barrier has overtaken so far; stored with the checkpoint.
    """

    state: AlignmentState
    aligned: tuple[InputId, ...]
    waiting: tuple[InputId, ...]
    behind_bytes: int
    recorded_bytes: int


# -- events


@dataclass(frozen=True, slots=True)
class Announced:
    """The attempt has begun; told to every step directly."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class BarrierSeen:
    """A barrier has become visible in an input's log, at or ahead of the step's position."""

    input: InputId
    barrier: Barrier
    place: Place


@dataclass(frozen=True, slots=True)
class EndSeen:
    """EndOfInput has become visible in an input's log."""

    input: InputId
    place: Place


@dataclass(frozen=True, slots=True)
class LogGrew:
    """An input's log has grown; only inputs that are being recorded need to be told."""

    input: InputId
    end: Place


@dataclass(frozen=True, slots=True)
class Advanced:
    """A batch was appended; these inputs moved to these places."""

    moved: Mapping[InputId, Place]


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """The attempt has ended, whatever the outcome; told to every step directly."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now_ms: int


AlignerEvent = Announced | BarrierSeen | EndSeen | LogGrew | Advanced | AttemptOver | Tick


# -- commands


@dataclass(frozen=True, slots=True)
class Emit:
    """Append this barrier to the step's own channel now; the snapshot is the last batch."""

    barrier: Barrier
    cause: Cause


@dataclass(frozen=True, slots=True)
class Release:
    """Let every input of the step pass the barrier of this attempt."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Protect:
    """Keep an input's Events from `start` on until the attempt is over."""

    checkpoint_id: CheckpointId
    input: InputId
    start: Place


@dataclass(frozen=True, slots=True)
class Captured:
    """Everything in flight is known: these ranges, and nothing else.

    Attributes:
        checkpoint_id: The attempt.
        ranges: What lies between the step's positions and the barriers.
        places: Where the barrier was on every input, for the cut equation.
    """

    checkpoint_id: CheckpointId
    ranges: tuple[InFlightRange, ...]
    places: Mapping[InputId, Place]


@dataclass(frozen=True, slots=True)
class Decline:
    """The step cannot take part in this attempt."""

    checkpoint_id: CheckpointId
    reason: FailureReason


AlignerCommand = Emit | Release | Protect | Captured | Decline
