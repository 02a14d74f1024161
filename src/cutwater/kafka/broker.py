"""What is asked of a Kafka broker, and what its answers mean for a checkpoint.

`Broker` is a port with two implementations: `librdkafka` for commands, which start no Spark, and
`spark.jvm.kafka_admin` for a running pipeline, which uses the client that the source itself uses.
The comparison of a checkpoint with the answers is pure (`find_lost`).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from cutwater.kafka.offsets import Offsets, TopicPartition

_NO_ID: Final = "A" * 22
"""How Kafka prints the id of a topic that has none: brokers before 2.8 gave none."""


def known_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of those topics that have one."""
    return {topic: id_ for topic, id_ in ids.items() if id_ != _NO_ID}


class Bounds(NamedTuple):
    """The records that a partition has: from `first` up to, and without, `end`."""

    first: int
    end: int


class Broker(Protocol):
    """A cluster of brokers, by one connection.

    Each call returns within seconds. SourceUnavailable if the broker does not answer, refuses the
    request, or cannot be reached with the settings at hand.
    """

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the id of each topic; one that does not exist, or has no id, is left out."""
        ...

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Return which records there are; a partition that does not exist is left out."""
        ...

    def close(self) -> None:
        """Close the connection; the object is not used afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class LostRecords:
    """A partition that no longer has the record that a checkpoint resumes with.

    Attributes:
        offset: Where the checkpoint resumes.
        bounds: What the partition has; None if the partition is gone.
    """

    partition: TopicPartition
    offset: int
    bounds: Bounds | None

    def __str__(self) -> str:
        start = f"{self.partition} resumes at offset {self.offset}, and the broker"
        if self.bounds is None:
            return f"{start} has no such partition"
        first, end = self.bounds
        if self.offset > end:
            return f"{start} has only records up to {end}"
        left = f"{first} to {end - 1} are left" if end > first else "none is left"
        return f"{start} has removed the {first - self.offset:,} records before {first}; {left}"


def find_lost(offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> tuple[LostRecords, ...]:
    """Return the partitions that cannot be read from these offsets, in order."""
    return tuple(_lost(offsets, bounds))


def _lost(offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> Iterator[LostRecords]:
    for partition, offset in sorted(offsets.items()):
        found = bounds.get(partition)
        if found is None or not found.first <= offset <= found.end:
            yield LostRecords(partition, offset, found)


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the topics that were deleted and created again: the same name, another id."""
    return tuple(sorted(topic for topic, id_ in before.items() if now.get(topic, id_) != id_))
