"""What changed code makes of a cut: the values that say it.

`map_cut` decides; a restore carries it out, a person reads it first (PROTOCOL.md section 15).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from cutwater.ids import InputId, StepId
from cutwater.protocol.cut import Cut
from cutwater.protocol.messages import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What somebody has allowed a restore to do.

    Attributes:
        new: Steps with state, sources and sinks that the cut does not know may begin.
        dropped: Steps with state, sources and sinks that are gone may be forgotten.
        swap: Sources that are other ones now, and begin at their own beginning.
    """

    new: bool = False
    dropped: bool = False
    swap: frozenset[str] = frozenset()


class Fate(Enum):
    """What becomes of a step."""

    KEPT = "kept"
    """It goes on where it stood."""
    MOVED = "moved"
    """It was part of other steps, and goes on from what they were."""
    NEW = "new"
    """It begins without a past."""
    MERGED = "merged"
    """It is gone; what it did is done by other steps, which go on from where it stood."""
    DROPPED = "dropped"
    """It is gone, and its past with it."""


@dataclass(frozen=True, slots=True)
class StepFate:
    """What becomes of one step, with what is worth knowing about it."""

    step: StepId
    fate: Fate
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that stands against a restore: what, why, and what can be done."""

    subject: str
    reason: str
    next_step: str

    def __str__(self) -> str:
        """Give it as two sentences."""
        return f"{self.subject} {self.reason}. {self.next_step}."


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the offsets that a changed query begins with.

    Attributes:
        text: The offset of a source, or None if it begins at its beginning.
        channel: For a channel instead: which input it is, and where the step stands on it.
        log: The number under which the source keeps files now, if it does.
        origin: The step of the cut that the offset was of; None without one.
        origin_log: The number under which the source kept files there, if it did.
    """

    text: str | None = None
    channel: tuple[InputId, Place] | None = None
    log: int | None = None
    origin: StepId | None = None
    origin_log: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A cut as changed code sees it.

    Attributes:
        fates: What becomes of every step, old and new.
        refusals: What stands against it; empty if it can be done.
        cut: The cut with a snapshot and an identity for every step that there is now, no more
            and no fewer; an identity has the number of partitions of the state that is kept.
        queries: The steps whose query must be rebuilt, each with all lines of its offsets.
    """

    fates: tuple[StepFate, ...]
    refusals: tuple[Refusal, ...]
    cut: Cut
    queries: Mapping[StepId, tuple[Line, ...]] = field(default_factory=dict)

    @property
    def is_change(self) -> bool:
        """Whether anything but the inside of steps has changed."""
        return any(one.fate is not Fate.KEPT or one.notes for one in self.fates)
