"""What can be said of a Kafka target without a broker."""

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.types import StructType

from cutwater import sinks
from cutwater.errors import ConfigError
from cutwater.ids import SinkId
from cutwater.sinks.kafka.settings import KafkaSettings
from cutwater.sinks.kafka.target import KafkaTarget

SINK = SinkId("orders")


def columns_of(text: str) -> StructType:
    columns = StructType()
    for column in text.split(", "):
        name, _, kind = column.partition(" ")
        columns.add(name, {"int": "integer"}.get(kind, kind))
    return columns


def target(**given: Any) -> KafkaTarget:  # noqa: ANN401
    return sinks.kafka("broker:9092", **{"topic": "orders", "staging": "staged", **given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"key": "id", "value": "json"}, "write a list of names"),
        ({"key": ["id"]}, "needs value='json'"),
        ({"value": "avro"}, "write 'json'"),
        ({"value": "json", "topic": None}, "needs topic="),
        ({"topic": "a b"}, "no topic's name"),
        ({"progress": ".."}, "no topic's name"),
        ({"header": True}, "no such option"),
        ({"staging": "s3://bucket/staged"}, "file systems only"),
        ({"options": {"acks": "1"}}, "acks is set by the sink"),
        ({"options": {"transactional.id": "x"}}, "transactional.id is set by the sink"),
        ({"options": {"sasl.password": "plain"}}, "write env:NAME"),
        (
            {"options": {"sasl.oauthbearer.client.credentials.client.secret": "plain"}},
            "write env:NAME",
        ),
        ({"options": {"transaction.timeout.ms": "10"}}, "at least 1000"),
    ],
)
def test_an_option_that_cannot_work_is_refused(given: Mapping[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        target(**given)


def test_an_address_is_required() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        KafkaSettings(" ")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("value string", None),
        ("key binary, value binary, partition int", None),
        ("key string", "no column value"),
        ("value long", "column value is bigint and must be binary or string"),
        ("value string, id long", "column id is none of key, value"),
        ("value string, partition long", "must be int"),
        ("value string, headers string", "column headers is string"),
    ],
)
def test_rows_need_the_columns_of_a_record(columns: str, reason: str | None) -> None:
    found = target().check_rows(SINK, columns_of(columns))

    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_rows_without_a_topic_need_its_column() -> None:
    open_topic = target(topic=None)

    assert "no column topic" in str(open_topic.check_rows(SINK, columns_of("value string")))
    assert open_topic.check_rows(SINK, columns_of("value string, topic string")) is None


def test_json_takes_all_columns_and_needs_those_of_the_key() -> None:
    as_json = target(value="json", key=["id"])

    assert as_json.check_rows(SINK, columns_of("id long, at timestamp")) is None
    found = as_json.check_rows(SINK, columns_of("at timestamp"))
    assert found == "there is no column id to be the key"


def test_secrets_are_names_everywhere_but_in_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "do-not-show")
    given = target(options={"sasl.username": "shop", "sasl.password": "env:KAFKA_PASSWORD"})

    assert "do-not-show" not in f"{given!r} {given.describe()} {given.stored()}"
    assert given.settings.producer_config("x")["sasl.password"] == "do-not-show"
    assert given.settings.redact("with do-not-show in it") == "with *** in it"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    given = target(options={"sasl.password": "env:KAFKA_PASSWORD"})

    with pytest.raises(ConfigError, match="the environment has no KAFKA_PASSWORD"):
        given.settings.producer_config("x")


def test_a_producer_is_safe_whatever_else_is_given() -> None:
    config = target(options={"compression.type": "zstd"}).settings.producer_config("cutwater.p.s")

    assert config["transactional.id"] == "cutwater.p.s"
    assert config["partitioner"] == "murmur2_random"
    assert config["compression.type"] == "zstd"
