"""The events and commands of a step. Values only; `machine.py` is the machine.

A step also takes the aligner's events (`Announced`, `BarrierSeen`, `EndSeen`, `LogGrew`, `Tick`)
and passes on the aligner's commands `Release`, `Protect` and `Decline`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.ids import BatchId, CheckpointId, InputId
from cutwater.protocol.cut import BlobRef, Committable, InFlight, StepSnapshot
from cutwater.protocol.messages import Event, Message, Place
from cutwater.protocol.step.aligner_events import (
    Announced,
    BarrierSeen,
    Decline,
    EndSeen,
    LogGrew,
    Protect,
    Release,
    Tick,
)
from cutwater.protocol.step.in_flight import InFlightRange

# -- events


@dataclass(frozen=True, slots=True)
class BatchAppended:
    """A batch has computed its result and is appended now, in this critical section.

    Attributes:
        event: The result; None when it has no rows (rule F23).
        moved: The end of the batch on the inputs it read, taken from the batch's own offsets.
        offsets: The end of the batch in outside streams; None when it read none.
        owes_batch: Whether a batch without new data is due after it.
    """

    batch: BatchId
    event: Event | None = None
    moved: Mapping[InputId, Place] = field(default_factory=dict)
    offsets: Mapping[str, str] | None = None
    watermark_ms: int | None = None
    owes_batch: bool = False
    staged: tuple[Committable, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The engine has made the last appended batch durable in scratch.

    `owes_batch` is None if the value given when the batch was appended still holds.
    """

    batch: BatchId
    owes_batch: bool | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """A source is between batches or idle: take a waiting barrier, if there is one."""


@dataclass(frozen=True, slots=True)
class EndReached:
    """Nothing will follow: the outside source has ended, or all inputs are drained."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of a snapshot are in the store."""

    checkpoint_id: CheckpointId
    state: tuple[BlobRef, ...] = ()
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over: decided, or not."""

    checkpoint_id: CheckpointId
    decided: bool


@dataclass(frozen=True, slots=True)
class Close:
    """The generation is over; nothing more may be appended (rule F25)."""


StepEvent = (
    BatchAppended
    | BatchCommitted
    | Poll
    | EndReached
    | Stored
    | Ended
    | Close
    | Announced
    | BarrierSeen
    | EndSeen
    | LogGrew
    | Tick
)


# -- commands


@dataclass(frozen=True, slots=True)
class Append:
    """Append this message to the step's channel, now, in the same critical section."""

    message: Message


@dataclass(frozen=True, slots=True)
class Pin:
    """The snapshot's batch is committed: keep its files from being deleted (rule F27)."""

    checkpoint_id: CheckpointId
    batch: BatchId


@dataclass(frozen=True, slots=True)
class Upload:
    """Store the pinned files and the in-flight ranges, then answer with `Stored`."""

    snapshot: StepSnapshot
    ranges: tuple[InFlightRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Send the coordinator the step's stored part of the checkpoint."""

    snapshot: StepSnapshot


@dataclass(frozen=True, slots=True)
class Forget:
    """The attempt is over for this step: drop its pins and protections."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CloseGate:
    """A source must not append after this barrier while the attempt is open (rule F30)."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class OpenGate:
    """The draining attempt failed: the source resumes."""

    checkpoint_id: CheckpointId


StepCommand = (
    Append
    | Pin
    | Upload
    | Acknowledge
    | Forget
    | CloseGate
    | OpenGate
    | Release
    | Protect
    | Decline
)
