"""Where sources began that no checkpoint covers yet."""

from dataclasses import replace

import pytest
from tests.unit.store.cuts import ORDERS, PIPELINE, TOTALS

from cutwater.ids import NO_CHECKPOINT, CheckpointId
from cutwater.protocol.evolution.identity import InputIdentity, InputKind
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.records.starts import Starts

SOURCE = InputIdentity(
    InputKind.SOURCE, "orders", 0, "kafka", "kafka[orders]", "5ca1ab1e", 0, "broker", (("o", "1"),)
)


@pytest.fixture
def starts() -> Starts:
    return Starts(MemoryBackend(), PIPELINE)


def test_the_first_start_is_the_one_that_counts(starts: Starts) -> None:
    starts.record(NO_CHECKPOINT, ORDERS, 0, SOURCE, "first")
    starts.record(NO_CHECKPOINT, ORDERS, 0, SOURCE, "second")

    assert starts.find(NO_CHECKPOINT, ORDERS, 0, SOURCE) == "first"


def test_a_start_belongs_to_a_cut_a_stream_and_what_it_reads(starts: Starts) -> None:
    starts.record(CheckpointId(5), ORDERS, 0, SOURCE, "there")

    assert starts.find(NO_CHECKPOINT, ORDERS, 0, SOURCE) is None
    assert starts.find(CheckpointId(5), TOTALS, 0, SOURCE) is None
    assert starts.find(CheckpointId(5), ORDERS, 1, SOURCE) is None
    assert starts.find(CheckpointId(5), ORDERS, 0, replace(SOURCE, settings="other")) is None
    # The broker may move.
    assert starts.find(CheckpointId(5), ORDERS, 0, replace(SOURCE, servers="there")) == "there"


def test_a_topic_that_is_not_known_or_new_does_not_lose_a_start(starts: Starts) -> None:
    unknown = replace(SOURCE, topics=())
    more = replace(SOURCE, topics=(("new", "7"), ("o", "1")))
    starts.record(NO_CHECKPOINT, ORDERS, 0, SOURCE, "first")
    starts.record(NO_CHECKPOINT, ORDERS, 0, unknown, "second")

    assert starts.find(NO_CHECKPOINT, ORDERS, 0, unknown) == "first"
    assert starts.find(NO_CHECKPOINT, ORDERS, 0, more) == "first"


def test_a_recreated_topic_has_a_start_of_its_own(starts: Starts) -> None:
    recreated = replace(SOURCE, topics=(("o", "2"),))
    starts.record(NO_CHECKPOINT, ORDERS, 0, SOURCE, "first")

    assert starts.find(NO_CHECKPOINT, ORDERS, 0, recreated) is None
    starts.record(NO_CHECKPOINT, ORDERS, 0, recreated, "second")
    assert starts.find(NO_CHECKPOINT, ORDERS, 0, recreated) == "second"
    assert starts.find(NO_CHECKPOINT, ORDERS, 0, SOURCE) == "first"


def test_a_start_is_looked_for_a_bounded_number_of_times(starts: Starts) -> None:
    for number in range(200):
        other = replace(SOURCE, topics=(("o", str(number)),))
        starts.record(NO_CHECKPOINT, ORDERS, 0, other, str(number))

    last = replace(SOURCE, topics=(("o", "199"),))
    assert starts.find(NO_CHECKPOINT, ORDERS, 0, last) is None
