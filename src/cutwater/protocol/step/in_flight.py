"""What an overtaking barrier overtakes: the in-flight range of each input (section 5).

A range runs from the step's position to the barrier's place on that input. Where the barrier is
not visible yet, the recording stays open until it is: the channel state of Chandy and Lamport ends
at the channel's own marker, not at the snapshot (rule F1 and sabotage "recording stops"). Nothing
is copied here; a range names Events of a log. Upholds I3, I4 and I12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.errors import ProtocolViolation
from cutwater.ids import InputId
from cutwater.protocol.messages import Place


@dataclass(frozen=True, slots=True)
class InFlightRange:
    """The Events of one input that belong to the cut but not to the step's state.

    It reaches from the step's position when it let the barrier overtake to the barrier's place.
    """

    input: InputId
    start: Place
    end: Place

    @property
    def count(self) -> int:
        return self.end.position - self.start.position

    @property
    def size_bytes(self) -> int:
        return self.end.log_bytes - self.start.log_bytes


@dataclass(slots=True)
class Recording:
    """The recording of one attempt at one step; its size includes open inputs."""

    _open: dict[InputId, tuple[Place, Place]] = field(default_factory=dict)
    _closed: list[InFlightRange] = field(default_factory=list)
    size_bytes: int = 0

    @classmethod
    def begin(
        cls, positions: Mapping[InputId, Place], places: Mapping[InputId, Place]
    ) -> "Recording":
        """Start recording every input from the step's position to its barrier, if already seen."""
        recording = cls()
        for source, start in positions.items():
            recording._open[source] = (start, start)
            end = places.get(source)
            if end is not None:
                recording.close(source, end)
        return recording

    def grow(self, source: InputId, end: Place) -> None:
        """Note that an open input's log has grown to `end`."""
        if source in self._open and end.position > self._open[source][1].position:
            start, known = self._open[source]
            self._open[source] = (start, end)
            self.size_bytes += end.log_bytes - known.log_bytes

    def close(self, source: InputId, end: Place) -> None:
        """End the recording of one input at its barrier, which is never before its start."""
        if source not in self._open:
            message = f"input {source} is not being recorded."
            raise ProtocolViolation(message)
        start, known = self._open[source]
        if end.position < start.position:
            message = f"the barrier of input {source} at {end} lies before position {start}."
            raise ProtocolViolation(message)
        del self._open[source]
        self.size_bytes += end.log_bytes - known.log_bytes
        if end.position > start.position:
            self._closed.append(InFlightRange(source, start, end))

    def start(self, source: InputId) -> Place:
        """Return where the recording of an open input starts."""
        return self._open[source][0]

    def is_open(self, source: InputId) -> bool:
        return source in self._open

    def starts(self) -> tuple[tuple[InputId, Place], ...]:
        """Return where the recording of each input starts, to protect its files."""
        return (
            *((closed.input, closed.start) for closed in self._closed),
            *((source, start) for source, (start, _) in self._open.items()),
        )

    @property
    def complete(self) -> bool:
        """Whether every input's barrier has been seen."""
        return not self._open

    def ranges(self) -> tuple[InFlightRange, ...]:
        """Return the finished ranges in input order; inputs with nothing in flight are absent."""
        return tuple(sorted(self._closed, key=_ordinal))


def _ordinal(part: InFlightRange) -> int:
    return part.input.ordinal
