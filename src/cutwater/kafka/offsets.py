"""Kafka's offsets as Spark writes them into a query's log, and how they are shown.

    {"orders":{"0":120,"1":98},"payments":{"0":7}}

An offset is the position of the next record to read. Other sources write other texts; those are
none of this module's, and `read_offsets` returns None for them.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = Mapping[TopicPartition, int]
"""For each partition, the next record to read."""


def read_offsets(text: str | None) -> Offsets | None:
    """Return the offsets in a text, sorted; None if the text is none of Kafka's."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(found, dict) or not found:
        return None
    if not all(_is_topic(partitions) for partitions in found.values()):
        return None
    offsets = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }
    return dict(sorted(offsets.items()))


def offset_text(text: str) -> str:
    """Return an offset as people read it: Kafka's by partition, any other as it is."""
    offsets = read_offsets(text)
    if offsets is None:
        return text
    return ", ".join(f"{partition} at {offset}" for partition, offset in offsets.items())


def move_text(before: str | None, after: str | None) -> str | None:
    """Return how offsets moved, by partition; None if one of the texts is none of Kafka's.

    A partition that one of them lacks is shown as `-`. Partitions that have not moved are counted.
    """
    old, new = read_offsets(before), read_offsets(after)
    if (old is None and before is not None) or (new is None and after is not None):
        return None
    if old is None and new is None:
        return None
    pairs = pairs_of(old or {}, new or {})
    moved = [
        f"{partition} {'-' if was is None else was} -> {'-' if now is None else now}"
        for partition, (was, now) in pairs.items()
        if was != now
    ]
    still = len(pairs) - len(moved)
    if still:
        moved.append(f"{still} unmoved")
    return ", ".join(moved)


def pairs_of(
    before: Offsets, after: Offsets
) -> Mapping[TopicPartition, tuple[int | None, int | None]]:
    """Return both offsets of each partition, None where one is missing."""
    found = sorted(before.keys() | after.keys())
    return {partition: (before.get(partition), after.get(partition)) for partition in found}


def _is_topic(partitions: object) -> bool:
    return (
        isinstance(partitions, dict)
        and bool(partitions)
        and all(key.isdecimal() and type(at) is int for key, at in partitions.items())
    )
