"""The options of a Kafka source: what is read, and what is a matter of the connection."""

from cutwater.spark.analysis.kafka_options import identifying, kafka_source, read_kafka

SERVERS = ("kafka.bootstrap.servers", "broker:9092")


def test_a_source_is_described_by_what_it_reads() -> None:
    assert kafka_source([SERVERS, ("subscribe", "orders")]) == "kafka[orders]"
    assert kafka_source([SERVERS, ("subscribePattern", "or.*")]) == "kafka[or.*]"
    assert kafka_source([SERVERS]) is None
    assert kafka_source([("subscribe", "orders")]) is None


def test_topics_are_those_that_are_named() -> None:
    named = read_kafka([SERVERS, ("subscribe", "orders, refunds")])
    assigned = read_kafka([SERVERS, ("assign", '{"orders":[0,1]}')])
    like = read_kafka([SERVERS, ("subscribePattern", "or.*")])
    wrong = read_kafka([SERVERS, ("assign", "orders")])

    assert named is not None
    assert assigned is not None
    assert like is not None
    assert wrong is not None
    assert (named.topics, named.pattern) == (("orders", "refunds"), None)
    assert assigned.topics == ("orders",)
    assert (like.topics, like.pattern) == ((), "or.*")
    assert wrong.topics == ()


def test_the_options_of_the_client_are_kept_and_not_shown() -> None:
    options = [
        SERVERS,
        ("subscribe", "orders"),
        ("kafka.sasl.jaas.config", "do-not-tell"),
        ("Kafka.Isolation.Level", "read_committed"),
        ("failOnDataLoss", "False"),
    ]

    found = read_kafka(options)

    assert found is not None
    assert found.client["sasl.jaas.config"] == "do-not-tell"
    assert "do-not-tell" not in repr(found)
    assert found.reads_committed
    assert not found.fails_on_loss
    assert read_kafka([("path", "files")]) is None


def test_what_identifies_a_source_has_no_secret() -> None:
    options = {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.sasl.jaas.config": "do-not-tell",
        "kafka.isolation.level": "read_committed",
        "failondataloss": "false",
        "subscribe": "orders",
        "startingoffsets": "latest",
    }

    assert identifying(options) == {
        "kafka.isolation.level": "read_committed",
        "subscribe": "orders",
        "startingoffsets": "latest",
    }
    assert identifying({"path": "files"}) == {"path": "files"}
