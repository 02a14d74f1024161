"""What a channel carries: Event, Watermark, Barrier and EndOfInput (PROTOCOL.md sections 2 and 3).

A channel is a log, so "buffered" means a range of the log and never a copy: there is no message
for holding or draining. The union is closed; readers use `match` on it.

A barrier names the attempt (generation and checkpoint id), says what the steps must do (flags) and
when the attempt started, so that every step measures the alignment timeout from the same moment
(rule F20). A barrier has a packed form of fixed size for channel logs. Upholds I1 and I8.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Final, NamedTuple

from cutwater.errors import ProtocolViolation
from cutwater.ids import BatchId, CheckpointId, Generation

_LAYOUT: Final = struct.Struct(">QQQQ")
_WIDEST: Final = 2**64 - 1

BARRIER_BYTES: Final = _LAYOUT.size
"""Size of a packed barrier: four unsigned 64-bit numbers, big-endian."""

REFERENCE: Final = "files.json"
"""The name of the only file of an Event that refers to rows elsewhere (docs/adr/0044)."""


class Place(NamedTuple):
    """A point between two Events of a channel.

    Attributes:
        position: Number of Events before the point, counted from the start of the channel.
        log_bytes: Number of bytes in those Events, so that the size of any range is one
            subtraction.
    """

    position: int
    log_bytes: int

    def after(self, size_bytes: int) -> "Place":
        return Place(self.position + 1, self.log_bytes + size_bytes)

    def __str__(self) -> str:
        """Return only the position, as traces show it."""
        return f"@{self.position}"


START = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """The result of one micro-batch of the channel's producer.

    Attributes:
        batch: The producer's batch. A channel holds at most one Event per batch.
        rows: Number of rows, at least 1: a batch without rows appends nothing (rule F23).
        files: The files with the rows, relative to the channel's directory (rule F29).
    """

    batch: BatchId
    rows: int
    size_bytes: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermark:
    """The producer's event-time watermark. It is shown and recorded; it gates nothing (F37)."""

    value_ms: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows. At its place it acts as the barrier of every later attempt (rule F2)."""


class Flag(IntFlag):
    """What a barrier requires of the steps it passes.

    FULL_SNAPSHOT: the snapshot must be self-contained: nothing of an older checkpoint is reused,
        and no step overtakes its input (a savepoint, rule F30).
    DRAIN: a source appends no Event after this barrier while the attempt is open.
    CANCEL: records that the attempt has ended without a checkpoint; holds no reader.
    UNALIGNED: the barrier has overtaken data; a step that receives it overtakes too or declines.
    """

    NONE = 0
    FULL_SNAPSHOT = 1
    DRAIN = 2
    CANCEL = 4
    UNALIGNED = 8


_ALL_FLAGS: Final = int(Flag.FULL_SNAPSHOT | Flag.DRAIN | Flag.CANCEL | Flag.UNALIGNED)
_ALIGNED_ONLY: Final = Flag.FULL_SNAPSHOT | Flag.DRAIN


@dataclass(frozen=True, slots=True)
class Barrier:
    """The marker of one attempt.

    Attributes:
        checkpoint_id: The attempt's number, at least 1.
        epoch: The generation that runs the attempt, at least 1. The coordinator sets it, never
            the source that polls.
        started_at_ms: On the coordinator's clock.
    """

    checkpoint_id: CheckpointId
    epoch: Generation
    flags: Flag = Flag.NONE
    started_at_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse a barrier that no step could interpret."""
        for name, value, lowest in (
            ("checkpoint id", self.checkpoint_id, 1),
            ("epoch", self.epoch, 1),
            ("start time", self.started_at_ms, 0),
        ):
            if not lowest <= value <= _WIDEST:
                message = f"barrier {name} {value} is outside {lowest}..2^64-1."
                raise ProtocolViolation(message)
        if int(self.flags) & ~_ALL_FLAGS:
            message = f"barrier has unknown flags {int(self.flags):#x}."
            raise ProtocolViolation(message)
        if Flag.CANCEL in self.flags and self.flags != Flag.CANCEL:
            message = "a CANCEL barrier carries no other flag."
            raise ProtocolViolation(message)
        if Flag.UNALIGNED in self.flags and self.flags & _ALIGNED_ONLY:
            message = "FULL_SNAPSHOT and DRAIN barriers are never UNALIGNED."
            raise ProtocolViolation(message)

    @property
    def is_full_snapshot(self) -> bool:
        return Flag.FULL_SNAPSHOT in self.flags

    @property
    def is_drain(self) -> bool:
        return Flag.DRAIN in self.flags

    @property
    def is_cancel(self) -> bool:
        return Flag.CANCEL in self.flags

    @property
    def is_unaligned(self) -> bool:
        return Flag.UNALIGNED in self.flags

    @property
    def may_overtake(self) -> bool:
        return not self.flags & (_ALIGNED_ONLY | Flag.CANCEL)

    def overtaking(self) -> "Barrier":
        return replace(self, flags=self.flags | Flag.UNALIGNED)

    def cancelled(self) -> "Barrier":
        """Return the record that this barrier's attempt has ended."""
        return replace(self, flags=Flag.CANCEL)

    def pack(self) -> bytes:
        return _LAYOUT.pack(self.checkpoint_id, self.epoch, int(self.flags), self.started_at_ms)

    @classmethod
    def unpack(cls, packed: bytes) -> "Barrier":
        if len(packed) != BARRIER_BYTES:
            message = f"a packed barrier has {BARRIER_BYTES} bytes, not {len(packed)}."
            raise ProtocolViolation(message)
        checkpoint_id, epoch, flags, started_at_ms = _LAYOUT.unpack(packed)
        if flags & ~_ALL_FLAGS:
            message = f"barrier has unknown flags {flags:#x}."
            raise ProtocolViolation(message)
        return cls(CheckpointId(checkpoint_id), Generation(epoch), Flag(flags), started_at_ms)


Control = Watermark | Barrier | EndOfInput
"""Messages that sit between Events."""

Message = Event | Control
"""Any entry of a channel."""
