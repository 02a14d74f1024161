"""Kafka's offsets in a checkpoint: read, and shown by partition."""

import pytest

from cutwater.kafka.offsets import TopicPartition, move_text, offset_text, read_offsets

TEXT = '{"orders":{"1":98,"0":120},"payments":{"0":7}}'


def test_offsets_are_read_by_partition_in_order() -> None:
    assert read_offsets(TEXT) == {
        TopicPartition("orders", 0): 120,
        TopicPartition("orders", 1): 98,
        TopicPartition("payments", 0): 7,
    }


@pytest.mark.parametrize(
    "text",
    [
        None,
        "-",
        "7",
        "{}",
        '{"logOffset":3}',
        '{"orders":{}}',
        '{"orders":{"a":1}}',
        '{"orders":{"0":true}}',
        '{"orders":{"0":1},"more":2}',
    ],
)
def test_an_offset_of_another_source_is_none_of_kafkas(text: str | None) -> None:
    assert read_offsets(text) is None


def test_offsets_are_shown_by_partition_and_others_as_they_are() -> None:
    assert offset_text(TEXT) == "orders-0 at 120, orders-1 at 98, payments-0 at 7"
    assert offset_text('{"logOffset":3}') == '{"logOffset":3}'


def test_a_move_names_the_partitions_that_moved_and_counts_the_others() -> None:
    later = '{"orders":{"0":120,"1":99,"2":1},"payments":{"0":7}}'

    assert move_text(TEXT, later) == "orders-1 98 -> 99, orders-2 - -> 1, 2 unmoved"
    assert move_text(TEXT, TEXT) == "3 unmoved"
    assert move_text(None, '{"orders":{"0":1}}') == "orders-0 - -> 1"
    assert move_text('{"orders":{"0":1}}', None) == "orders-0 1 -> -"


def test_a_move_of_another_source_is_not_shown_by_partition() -> None:
    assert move_text('{"logOffset":3}', TEXT) is None
    assert move_text(TEXT, "-") is None
    assert move_text(None, None) is None
