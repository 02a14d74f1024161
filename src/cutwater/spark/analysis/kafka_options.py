"""The options of Spark's Kafka source: what it reads, and how it reaches its broker.

A user gives them to `readStream.format("kafka")`; they are in the analysed plan. Options with the
prefix `kafka.` belong to Kafka's own client and may hold secrets: they stay in this process, and no
hash of them is stored.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

Options = Iterable[tuple[str, str]]

_CLIENT: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_PLACES: Final = ("subscribe", "subscribepattern", "assign")
_ON_LOSS: Final = "failondataloss"


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """What is known of a Kafka source from its options.

    Attributes:
        servers: Where its broker is.
        topics: The topics that it names.
        pattern: The pattern of topics that it reads instead; None if it names them.
        client: The settings of Kafka's client, which may hold secrets: never shown or stored.
        reads_committed: Whether records of open and aborted transactions are left out.
        fails_on_loss: Whether records that were removed before they were read are an error.
    """

    servers: str
    topics: tuple[str, ...]
    pattern: str | None
    client: Mapping[str, str] = field(repr=False)
    reads_committed: bool
    fails_on_loss: bool


def kafka_source(options: Options) -> str | None:
    """Return what a Kafka source reads, such as `kafka[orders]`; None for another source."""
    known = _lower(options)
    places = [known[name] for name in _PLACES if name in known]
    return f"kafka[{places[0]}]" if places and _SERVERS in known else None


def read_kafka(options: Options) -> KafkaSource | None:
    """Return what the options of a Kafka source tell; None for another source."""
    known = _lower(options)
    if kafka_source(known.items()) is None:
        return None
    return KafkaSource(
        servers=known[_SERVERS],
        topics=_topics(known),
        pattern=known.get("subscribepattern"),
        client={
            name.removeprefix(_CLIENT): value
            for name, value in known.items()
            if name.startswith(_CLIENT)
        },
        reads_committed=known.get(_ISOLATION) == "read_committed",
        fails_on_loss=known.get(_ON_LOSS, "true").lower() != "false",
    )


def _topics(known: Mapping[str, str]) -> tuple[str, ...]:
    names = known.get("subscribe", "").split(",")
    try:
        assigned = json.loads(known.get("assign", "{}"))
    except ValueError:
        # Spark refuses the option when the query starts.
        assigned = {}
    return tuple(sorted({name.strip() for name in (*names, *assigned)} - {""}))


def identifying(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options that say what is read; those of other sources are returned unchanged.

    Left out are how the broker is reached, with what secrets, and what to do about lost records.
    """
    if kafka_source(options.items()) is None:
        return options
    return {
        name: value
        for name, value in options.items()
        if name.lower() == _ISOLATION
        or not (name.lower().startswith(_CLIENT) or name.lower() == _ON_LOSS)
    }


def _lower(options: Options) -> dict[str, str]:
    return {name.lower(): value for name, value in options}
