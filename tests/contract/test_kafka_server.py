"""The broker that tests run on is a real one: it keeps rows, isolates transactions, and fences."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from tests.servers.kafka import KafkaCluster, kafka_cluster


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


def test_rows_survive_a_killed_broker(kafka: KafkaCluster) -> None:
    topic = kafka.make_topic("kept", partitions=2)
    kafka.produce(topic, [("a", "1"), (None, "2")], partition=1)

    kafka.restart()

    found = [(message.key(), message.value()) for message in kafka.read(topic)]
    assert found == [(b"a", b"1"), (None, b"2")]


def test_rows_of_an_open_transaction_are_hidden_and_its_producer_is_fenced(
    kafka: KafkaCluster,
) -> None:
    topic = kafka.make_topic("hidden")
    zombie = _producer(kafka)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    zombie.flush(60)

    successor = _producer(kafka)

    with pytest.raises(KafkaException):
        zombie.commit_transaction(60)
    successor.begin_transaction()
    successor.produce(topic, b"successor")
    successor.commit_transaction(60)
    assert [message.value() for message in kafka.read(topic)] == [b"successor"]
    everything = [message.value() for message in kafka.read(topic, "read_uncommitted")]
    assert everything == [b"zombie", b"successor"]


def _producer(kafka: KafkaCluster) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "one"})
    producer.init_transactions(60)
    return producer
