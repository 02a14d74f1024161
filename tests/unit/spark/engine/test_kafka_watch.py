"""Which offsets of a decided checkpoint are committed to consumer groups."""

from typing import Any, cast

from cutwater.kafka.offsets import TopicPartition
from cutwater.runtime.reporting.status import PartitionLag
from cutwater.spark.engine.kafka_watch import KafkaWatch, WatchedSource


class FakeStep:
    lag: tuple[PartitionLag, ...] = ()

    def offset_at(self, line: int) -> str | None:
        raise AssertionError(f"line {line} is not read here")


def watched(step: FakeStep, line: int, group: str | None) -> WatchedSource:
    return WatchedSource(step, line, f"source{line}", cast(Any, None), {}, group)


def test_a_step_may_have_fewer_streams_than_another() -> None:
    one, two = FakeStep(), FakeStep()
    watch = KafkaWatch(cast(Any, None), print)
    for source in (watched(one, 0, "g"), watched(two, 1, "h"), watched(two, 2, None)):
        watch.add(source)

    watch.decided(one, ['{"orders":{"0":5}}'])
    watch.decided(two, [None, '{"people":{"0":7}}', '{"none":{"0":1}}'])

    waiting = {name: offsets for (name, _), (_, offsets) in watch._commits.items()}
    assert waiting == {
        "source0": {TopicPartition("orders", 0): 5},
        "source1": {TopicPartition("people", 0): 7},
    }
