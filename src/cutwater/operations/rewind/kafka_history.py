"""Asks brokers whether the records after a cut still exist, and how many would be read again.

A manifest holds where the broker of a source is and which topics it read, by id. A topic that was
deleted and recreated has other records at the same offsets, and refuses a rewind like records that
retention has removed. A broker that cannot be asked refuses nothing: the preview gives the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.errors import SourceUnavailable
from cutwater.kafka.broker import Broker, find_lost, recreated
from cutwater.kafka.librdkafka import OpenBroker
from cutwater.kafka.offsets import Offsets, read_offsets
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.identity import InputIdentity

_NO_ADDRESS = "its checkpoints do not say where its broker is"


@dataclass(frozen=True, slots=True)
class KafkaPast:
    """What brokers say of the records after a cut, by step and stream.

    Attributes:
        lost: Streams that no longer have all of them, with the reason.
        unasked: Streams whose broker could not be asked, with the reason.
        replayed: How many offsets each of the others would read again.
    """

    lost: dict[str, str] = field(default_factory=dict)
    unasked: dict[str, str] = field(default_factory=dict)
    replayed: dict[str, int] = field(default_factory=dict)


def kafka_past(head: Cut | None, target: Cut, open_broker: OpenBroker) -> KafkaPast:
    """Ask the brokers of all Kafka sources that have a position in the target."""
    found = KafkaPast()
    now = {} if head is None else head.stream_positions
    servers = _servers(head) if head is not None else {}
    for stream, text in target.stream_positions.items():
        then = read_offsets(text)
        if then is None:
            continue
        identity = _identity(target, stream)
        place = servers.get(_name(stream)) or (identity.servers if identity else "")
        if not place:
            found.unasked[stream] = _NO_ADDRESS
            continue
        topics = {} if identity is None else dict(identity.topics)
        try:
            broker = open_broker(place)
            try:
                problem = _problem(broker, then, topics)
            finally:
                broker.close()
        except SourceUnavailable as error:
            found.unasked[stream] = error.message.rstrip(".")
            continue
        if problem:
            found.lost[stream] = problem
        else:
            found.replayed[stream] = _count(then, read_offsets(now.get(stream)) or {})
    return found


def _problem(broker: Broker, then: Offsets, topics: Mapping[str, str]) -> str:
    gone = recreated(topics, broker.topic_ids(topics.keys()))
    if gone:
        return f"topic {', '.join(gone)} was deleted and recreated since"
    return "; ".join(map(str, find_lost(then, broker.bounds(then.keys()))))


def _count(then: Offsets, now: Offsets) -> int:
    """Return how many offsets were read in between, of partitions that both know."""
    return sum(max(0, now.get(partition, offset) - offset) for partition, offset in then.items())


def _identity(cut: Cut, stream: str) -> InputIdentity | None:
    step, _, key = stream.partition("/")
    line = int(key.partition(":")[0])
    for name, identity in cut.identities.items():
        if name == step and line < len(identity.inputs):
            return identity.inputs[line]
    return None


def _servers(cut: Cut) -> dict[str, str]:
    """Return where the broker of each source is, by the source's name."""
    return {
        step_input.name: step_input.servers
        for identity in cut.identities.values()
        for step_input in identity.inputs
        if step_input.servers
    }


def _name(stream: str) -> str:
    return stream.partition(":")[2]
