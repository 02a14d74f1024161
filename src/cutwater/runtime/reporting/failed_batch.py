"""What a batch that failed was reading, so that a batch that fails again and again has a name.

A restart goes back to the last checkpoint and meets the same rows. When the restarts are used up,
whoever reads the error needs the file or the offsets, not another stack trace. Batches may be cut
differently the second time: files that every failure in a row has read are the ones to look at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cutwater.errors import CutwaterError, StepError
from cutwater.ids import BatchId, StepId

_SHOWN_MAX: Final = 3
_OFFSET_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """What one batch read of one stream.

    Attributes:
        name: The source or the channel.
        what: What stands between the bounds: `Events` of a channel, or `offsets`.
        start: Where it began, as the source writes it.
        end: Where it ended.
        files: The files, if the stream is of files.
    """

    name: str
    what: str
    start: str
    end: str
    files: tuple[str, ...] = ()

    def text(self) -> str:
        """Say it in a sentence, after "reads"."""
        if self.files:
            shown = ", ".join(self.files[:_SHOWN_MAX])
            more = len(self.files) - _SHOWN_MAX
            rest = f" and {more} more" if more > 0 else ""
            noun = "the file" if len(self.files) == 1 else f"{len(self.files)} files:"
            return f"{noun} {shown}{rest} ({self.name})"
        start, end = _short(self.start), _short(self.end)
        return f"{self.what} of {self.name} from {start} to {end}"


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A batch that failed, and what it was reading."""

    step: StepId
    batch: BatchId
    readings: tuple[Reading, ...] = ()

    def meets(self, other: "FailedBatch") -> bool:
        """Say whether both failed over the same input."""
        if self.step != other.step:
            return False
        mine, others = self.files, other.files
        return bool(mine & others) if mine and others else self.batch == other.batch

    @property
    def files(self) -> frozenset[str]:
        """All files that it was reading."""
        return frozenset(file for one in self.readings for file in one.files)

    def only(self, files: frozenset[str]) -> "FailedBatch":
        """Return the same with the files that are among these, where that leaves any."""
        left = tuple(
            Reading(
                one.name,
                one.what,
                one.start,
                one.end,
                tuple(file for file in one.files if file in files) or one.files,
            )
            for one in self.readings
        )
        return FailedBatch(self.step, self.batch, left)


@dataclass(slots=True)
class Failures:
    """The failures of a run, as far as they come one after another at the same input."""

    _row: list[FailedBatch] = field(default_factory=list)

    def note(self, failed: FailedBatch | None) -> None:
        """Take down a failure; None if nobody knows what was being read."""
        if failed is None or not (self._row and failed.meets(self._row[-1])):
            self._row.clear()
        if failed is not None:
            self._row.append(failed)

    def explain(self, error: CutwaterError) -> CutwaterError:
        """Return the error with the input that the last batch failed at, if that is known."""
        if not self._row or not isinstance(error, StepError) or not self._row[-1].readings:
            return error
        last = self._row[-1]
        common = frozenset.intersection(*(one.files for one in self._row))
        reads = "; ".join(one.text() for one in last.only(common).readings)
        times = f", at which it failed {len(self._row)} times in a row," if self._row[1:] else ""
        reason = f"{error.reason} Batch {last.batch}{times} reads {reads}."
        return StepError(error.step, error.where, reason)


def _short(text: str) -> str:
    return text if len(text) <= _OFFSET_MAX else f"{text[:_OFFSET_MAX]}…"


def events_of(channel: str, start: int, end: int) -> Reading:
    """Return what a batch reads of a channel."""
    return Reading(channel, "Events", str(start), str(end))


def readings(found: Sequence[Reading | None]) -> tuple[Reading, ...]:
    """Leave out the streams that a batch does not read."""
    return tuple(one for one in found if one is not None)
