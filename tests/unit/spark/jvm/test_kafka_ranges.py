"""Offsets of several Events become one range for each partition."""

from cutwater.spark.jvm.by_reference.kafka_ranges import _PLANNED, merge_records
from cutwater.spark.jvm.by_reference.source_ranges import Range, RecordRange, SourceFile


def test_ranges_of_a_partition_are_joined() -> None:
    found = merge_records(
        [
            RecordRange("orders", 1, 5, 9),
            RecordRange("orders", 0, 0, 4),
            RecordRange("orders", 0, 4, 7),
            RecordRange("people", 0, 2, 3),
        ]
    )

    assert found == (
        RecordRange("orders", 0, 0, 7),
        RecordRange("orders", 1, 5, 9),
        RecordRange("people", 0, 2, 3),
    )


def test_a_topic_may_have_dashes_and_dots() -> None:
    text = "KafkaBatchInputPartition(KafkaOffsetRange(shop.orders-2-0,10,25,None),{},…)"

    assert _PLANNED.findall(text) == [("shop.orders-2", "0", "10", "25")]


def test_a_range_counts_its_files_or_its_records() -> None:
    assert Range(files=(SourceFile("a", 1, 2), SourceFile("b", 1, 2))).parts == 2
    assert Range(records=(RecordRange("orders", 0, 5, 9), RecordRange("o", 1, 0, 1))).parts == 5
