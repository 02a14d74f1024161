"""What a broker says of the records after a cut, with a broker that is a few values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import SourceUnavailable
from cutwater.ids import BatchId, CheckpointId, Generation, StepId
from cutwater.kafka.broker import Bounds, Broker
from cutwater.kafka.offsets import TopicPartition
from cutwater.operations.rewind.kafka_history import KafkaPast, kafka_past
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.evolution.identity import InputIdentity, InputKind, StepIdentity

STEP, STREAM = StepId("orders"), "orders/0:orders"
SOURCE = InputIdentity(
    InputKind.SOURCE, "orders", format="kafka", servers="here:9092", topics=(("orders", "id-1"),)
)


@dataclass
class StillBroker:
    """A broker whose topics never change."""

    ids: Mapping[str, str] = field(default_factory=lambda: {"orders": "id-1"})
    bounded: Mapping[TopicPartition, Bounds] = field(
        default_factory=lambda: {TopicPartition("orders", 0): Bounds(0, 100)}
    )
    places: list[str] = field(default_factory=list)
    closed: int = 0

    def open(self, place: str) -> Broker:
        self.places.append(place)
        return self

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        return {found: self.bounded[found] for found in partitions if found in self.bounded}

    def close(self) -> None:
        self.closed += 1


def cut_at(offset: int | str, source: InputIdentity | None = SOURCE) -> Cut:
    text = offset if isinstance(offset, str) else f'{{"orders":{{"0":{offset}}}}}'
    snapshot = StepSnapshot(
        STEP, CheckpointId(1), Generation(1), BatchId(0), offsets={"0:orders": text}
    )
    identities = {} if source is None else {STEP: StepIdentity(inputs=(source,))}
    return Cut(
        CheckpointId(1),
        Generation(1),
        CheckpointKind.CHECKPOINT,
        {STEP: snapshot},
        identities=identities,
    )


def test_the_offsets_that_are_read_again_are_counted() -> None:
    broker = StillBroker()

    assert kafka_past(cut_at(60), cut_at(20), broker.open) == KafkaPast(replayed={STREAM: 40})
    assert broker.closed == len(broker.places) == 1


def test_without_a_head_nothing_was_read_since() -> None:
    broker = StillBroker()

    assert kafka_past(None, cut_at(20), broker.open).replayed == {STREAM: 0}
    assert broker.places == ["here:9092"]


def test_a_source_is_asked_where_its_broker_is_now() -> None:
    broker = StillBroker()

    kafka_past(cut_at(60, replace(SOURCE, servers="there:9092")), cut_at(20), broker.open)

    assert broker.places == ["there:9092"]


def test_removed_records_and_a_recreated_topic_are_reasons_against_it() -> None:
    removed = StillBroker(bounded={TopicPartition("orders", 0): Bounds(30, 100)})
    other = StillBroker(ids={"orders": "id-2"})

    assert "has removed the 10 records" in kafka_past(None, cut_at(20), removed.open).lost[STREAM]
    assert kafka_past(None, cut_at(20), other.open).lost[STREAM] == (
        "topic orders was deleted and recreated since"
    )


def test_a_broker_that_cannot_be_asked_is_a_note() -> None:
    def refuse(place: str) -> Broker:
        raise SourceUnavailable(place, "no answer")

    found = kafka_past(None, cut_at(20), refuse)

    assert found == KafkaPast(
        unasked={STREAM: "the broker at here:9092 cannot be asked: no answer"}
    )


def test_a_manifest_without_an_address_is_a_note_too() -> None:
    broker = StillBroker()

    assert kafka_past(None, cut_at(20, None), broker.open).unasked == {
        STREAM: "its checkpoints do not say where its broker is"
    }
    assert broker.places == []


def test_other_sources_are_left_alone() -> None:
    assert kafka_past(None, cut_at('{"logOffset":3}'), StillBroker().open) == KafkaPast()
