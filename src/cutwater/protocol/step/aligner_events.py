"""The aligner's events and commands, and the transitions of an attempt at one step.

These are values only; `aligner.py` is the machine that takes and returns them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cutwater.ids import CheckpointId, InputId
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.messages import Barrier, Place
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.transitions import TransitionTable


class AlignmentState(Enum):
    ALIGNING = auto()
    """The barrier is awaited or held on some inputs; the step keeps reading the others."""
    ALIGNED = auto()
    """The step was at the barrier on every input and has emitted its own."""
    RECORDING = auto()
    """The step has overtaken; inputs whose barrier is not visible yet are still being recorded."""
    CAPTURED = auto()
    """The step has overtaken and everything in flight is known."""
    DECLINED = auto()
    """The step cannot take part; it holds nothing."""
    OVER = auto()
    """The attempt has ended, whatever the outcome."""


class AlignmentTrigger(Enum):
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
    """Why a step emitted its barrier. A store holds these values."""

    ALIGNED = "aligned"
    TIMEOUT = "timeout"
    FORCED = "forced"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class AlignmentProgress:
    """How far the inputs of a step are from the barrier of one open attempt; for reports.

    Attributes:
        aligned: The inputs that were read up to their barrier, sorted.
        behind_bytes: Bytes between the step's positions and the barriers that it has seen.
        recorded_bytes: Bytes that the barrier has overtaken so far; stored with the checkpoint.
    """

    state: AlignmentState
    aligned: tuple[InputId, ...]
    waiting: tuple[InputId, ...]
    behind_bytes: int
    recorded_bytes: int


# -- events


@dataclass(frozen=True, slots=True)
class Announced:
    """The attempt has started; sent to every step directly."""

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
    """An input's log has grown; needed only for inputs that are being recorded."""

    input: InputId
    end: Place


@dataclass(frozen=True, slots=True)
class Advanced:
    """A batch was appended; these inputs moved to these places."""

    moved: Mapping[InputId, Place]


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """The attempt has ended, whatever the outcome; sent to every step directly."""

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
    """Everything in flight is known: the ranges, and the place of the barrier on every input."""

    checkpoint_id: CheckpointId
    ranges: tuple[InFlightRange, ...]
    places: Mapping[InputId, Place]


@dataclass(frozen=True, slots=True)
class Decline:
    """The step cannot take part in this attempt."""

    checkpoint_id: CheckpointId
    reason: FailureReason


AlignerCommand = Emit | Release | Protect | Captured | Decline
