"""A Kafka sink on a broker with TLS, which demands a password and has permissions for each user."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType
from tests.contract.kafka_rows import PIPELINE, SINK, Orders, permit, visible
from tests.servers.kafka_security import SecuredKafka, secured_kafka

from cutwater.errors import ConfigError, SinkError, SourceUnavailable
from cutwater.kafka.librdkafka import open_broker
from cutwater.sinks.registry import reopen

SECRET = "do-not-show"
WRITE = (AclOperation.WRITE, AclOperation.DESCRIBE)
ALLOWED = (
    (ResourceType.TOPIC, "allowed", WRITE),
    (ResourceType.TOPIC, "seen", (AclOperation.DESCRIBE,)),
    (
        ResourceType.TOPIC,
        "cutwater.",
        (*WRITE, AclOperation.CREATE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS),
    ),
    (ResourceType.TRANSACTIONAL_ID, "cutwater.", WRITE),
)
"""What docs/reference/sink-kafka.md says that a sink needs."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with secured_kafka({"shop": SECRET}) as secured:
        for topic in ("allowed", "seen", "hidden", "encrypted"):
            secured.cluster.make_topic(topic)
        for kind, name, operations in ALLOWED:
            secured.allow("shop", kind, name, operations)
        yield secured


def orders(kafka: SecuredKafka, staging: Path, topic: str = "allowed") -> Orders:
    options = kafka.login_options("shop", "env:SHOP_PASSWORD")
    return Orders(kafka.login, topic, staging, {"options": options})


def test_rows_are_written_with_a_password_from_the_environment(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    shop = orders(kafka, tmp_path)
    stored = shop.target().stored()

    reopen(stored, PIPELINE, SINK).commit(permit(1), shop.stage(1, "1", "2"))

    assert visible(kafka.cluster, "allowed") == ["1", "2"]
    assert SECRET not in f"{stored} {shop.target()!r} {shop.target().describe()}"


def test_rows_are_written_over_tls_alone(kafka: SecuredKafka, tmp_path: Path) -> None:
    extras = {"options": kafka.tls_options(), "progress": "encrypted-progress"}
    shop = Orders(kafka.tls, "encrypted", tmp_path, extras)  # type: ignore[arg-type]

    shop.open().commit(permit(1), shop.stage(1, "1"))

    assert visible(kafka.cluster, "encrypted") == ["1"]


def test_a_topic_that_may_not_be_written_to_is_named(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    shop = orders(kafka, tmp_path)

    with pytest.raises(SinkError, match=r"topics? .*seen.*: not authorised to write"):
        shop.open().commit(permit(2), shop.stage(2, "1", topic="seen"))
    with pytest.raises(ConfigError, match="hidden"):
        orders(kafka, tmp_path, "hidden").open()


def test_a_wrong_password_is_the_reason_and_is_not_shown(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    shop = orders(kafka, tmp_path)
    opened = shop.open()
    monkeypatch.setenv("SHOP_PASSWORD", "not-the-right-one")

    with pytest.raises(SinkError, match="invalid credentials") as refused:
        shop.open()
    with pytest.raises(SinkError, match="invalid credentials") as later:
        opened.commit(permit(3), shop.stage(3, "1"))

    assert "not-the-right-one" not in f"{refused.value} {later.value}"


def test_a_certificate_that_is_not_trusted_is_the_reason(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    options = {"security.protocol": "SSL"}

    with pytest.raises(SinkError, match="certificate could not be verified"):
        Orders(kafka.tls, "encrypted", tmp_path, {"options": options}).open()


def test_a_command_says_why_it_cannot_log_in(kafka: SecuredKafka) -> None:
    given = {
        f"CUTWATER_KAFKA_{name.upper().replace('.', '_')}": value
        for name, value in kafka.login_options("shop", "not-the-right-one").items()
    }

    with pytest.raises(SourceUnavailable, match="invalid credentials") as refused:
        open_broker(kafka.login, given).topic_ids(["allowed"])

    assert "not-the-right-one" not in str(refused.value)
