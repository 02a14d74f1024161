"""Whether a target lacks a commit that the store has recorded (PROTOCOL.md section 9, rule F43).

A failover to a lagging replica, a restored backup or a dropped table rolls a target back without a
decision. The next commit on top of it would leave a gap, so the newest slot that a target holds is
compared with the slot of the last decision that made its sink write. Only an older target is
refused: if a target holds later slots, another process rewound past this one, and the sink reports
`Superseded`. This module decides; sinks observe and effects refuse. Upholds I8 and I10.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cutwater.ids import SinkId, Slot
from cutwater.protocol.cut import NO_TARGET, Cut, Version


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the store has recorded about a target: the last slot that made the sink write.

    The version is what the target showed then or later; None if unknown.
    """

    slot: Slot
    version: Version | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a target itself holds.

    Attributes:
        slot: The newest slot of this sink that the target holds; None if it holds none.
        version: The version it shows now.
        counts_versions: Whether slots are unknown and versions are numbers that only increase:
            then versions are compared instead.
    """

    slot: Slot | None
    version: Version
    counts_versions: bool = False


def is_behind(recorded: Recorded | None, found: Found) -> bool:
    """Return whether a target lacks what is recorded; False if nothing is known about it."""
    if recorded is None or recorded.version == NO_TARGET:
        return False
    if found.counts_versions:
        return _number(found.version) < _number(recorded.version)
    return found.slot is None or found.slot < recorded.slot


def _number(version: Version | None) -> int:
    return int(version) if version is not None and version.isdecimal() else -1


def last_writes(slot: Slot, cut: Cut) -> dict[SinkId, Slot]:
    """Return, for each sink, the last decision that made it write, once a cut is committed.

    A rewind that leaves the sinks as they are accepts what they show: nothing is known of them.
    """
    wrote = {sink for sink, staged in cut.commit.items() if staged} | cut.restores.keys()
    return {**cut.last_writes, **dict.fromkeys(wrote, slot)}


def recorded_of(
    writes: Mapping[SinkId, Slot], visible: Mapping[SinkId, Version | None]
) -> dict[SinkId, Recorded]:
    """Combine what is known about each target; a sink that never wrote is absent."""
    return {sink: Recorded(slot, visible.get(sink)) for sink, slot in sorted(writes.items())}


@dataclass(frozen=True, slots=True)
class Past:
    """A kept, committed checkpoint, and what one sink had written at that time.

    Without `recorded` it held nothing; without a version it showed its beginning.
    """

    cut: Cut
    recorded: Recorded | None
    version: Version | None


def still_held(past: Iterable[Past], found: Found) -> Iterator[Past]:
    """Yield the checkpoints whose commits a target still holds, in the given order."""
    return (checkpoint for checkpoint in past if not is_behind(checkpoint.recorded, found))
