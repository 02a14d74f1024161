"""What a channel carries: Event, Watermark, Barrier and EndOfInput (PROTOCOL.md section 2).

A channel is a log, so "buffered" is a range of it and never a copy: there is no message for
holding or draining. The union is closed; readers take it apart with `match`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from cutwater.ids import BatchId
from cutwater.protocol.barrier import Barrier


class Place(NamedTuple):
    """A point between two Events of a channel.

    Attributes:
        position: How many Events of the channel lie before it, counted from its beginning.
        log_bytes: How many bytes those Events have, so that the size of any range is one
            subtraction.
    """

    position: int
    log_bytes: int

    def after(self, size_bytes: int) -> "Place":
        """Return the place behind one more Event of that size."""
        return Place(self.position + 1, self.log_bytes + size_bytes)

    def __str__(self) -> str:
        """Give the position alone, as traces show it."""
        return f"@{self.position}"


START = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """The result of one micro-batch of the channel's producer.

    Attributes:
        batch: The producer's batch. A channel holds at most one Event per batch.
        rows: How many rows, at least 1: a batch without rows appends nothing (rule F23).
        size_bytes: How many bytes its files have.
        files: Where the rows are, relative to the channel's directory (rule F29).
    """

    batch: BatchId
    rows: int
    size_bytes: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far event time has come at the producer. Shown and recorded; it gates nothing (F37)."""

    value_ms: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows. Acts as the barrier of every later attempt at its place (rule F2)."""


Control = Watermark | Barrier | EndOfInput
"""Messages that sit between Events."""

Message = Event | Control
"""Any entry of a channel."""
