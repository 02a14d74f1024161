"""What a broker's answers mean for a checkpoint, and how a command reaches a broker."""

import sys

import pytest

from cutwater.errors import SourceUnavailable
from cutwater.kafka.broker import Bounds, find_lost, known_ids, recreated
from cutwater.kafka.librdkafka import open_broker
from cutwater.kafka.offsets import TopicPartition

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_records_between_the_bounds_are_not_lost() -> None:
    bounds = {ZERO: Bounds(5, 9), ONE: Bounds(0, 0)}

    assert find_lost({ZERO: 5, ONE: 0}, bounds) == ()
    assert find_lost({ZERO: 9}, bounds) == ()


@pytest.mark.parametrize(
    ("offset", "bounds", "text"),
    [
        (3, Bounds(5, 9), "has removed the 2 records before 5; 5 to 8 are left"),
        (3, Bounds(5, 5), "has removed the 2 records before 5; none is left"),
        (10, Bounds(5, 9), "has only records up to 9"),
        (3, None, "has no such partition"),
    ],
)
def test_lost_records_are_named_with_what_is_left(
    offset: int, bounds: Bounds | None, text: str
) -> None:
    (lost,) = find_lost({ZERO: offset}, {} if bounds is None else {ZERO: bounds})

    assert str(lost) == f"orders-0 resumes at offset {offset}, and the broker {text}"


def test_a_topic_with_another_id_was_recreated() -> None:
    before = {"orders": "a", "gone": "b", "same": "c"}

    assert recreated(before, {"orders": "x", "same": "c", "new": "d"}) == ("orders",)


def test_a_command_without_the_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(SourceUnavailable, match=r"pip install 'cutwater\[kafka\]'"):
        open_broker("broker:9092", {})


def test_settings_of_the_environment_are_used_and_not_shown() -> None:
    environment = {"CUTWATER_KAFKA_SASL_PASSWORD": "do-not-tell", "CUTWATER_KAFKA_NONSENSE": "1"}

    with pytest.raises(SourceUnavailable, match="nonsense") as refused:
        open_broker("broker:9092", environment)

    assert "do-not-tell" not in str(refused.value)


def test_a_topic_without_an_id_has_none() -> None:
    ids = {"old": "AAAAAAAAAAAAAAAAAAAAAA", "new": "u2yXlL1sTmG0YEvFCVD3bQ"}

    assert known_ids(ids) == {"new": ids["new"]}
