"""What a channel keeps on disk while nothing but barriers goes through it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START, Barrier, Event, Place
from cutwater.runtime import channel_file
from cutwater.runtime.channel import Channel, ChannelSchema
from cutwater.runtime.channel_file import read_entries

CHANNEL = ChannelId("rows")
FAST, SLOW = (ReaderId(StepId(name), InputId(0, CHANNEL)) for name in ("fast", "slow"))
FORM = ChannelSchema(StructType([StructField("value", LongType())]))


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    monkeypatch.setattr(channel_file, "SEGMENT_ENTRIES", 10)
    log = ChannelLog(CHANNEL, {FAST: START, SLOW: START})
    made = Channel(log, tmp_path, FORM, Bound(100, 10**9), lambda _: None)
    yield made
    made.close()


def barrier(channel: Channel, number: int) -> None:
    channel.append(Barrier(CheckpointId(number), Generation(1)))


def passes(channel: Channel, reader: ReaderId, number: int) -> None:
    """What a step does with a barrier when there is nothing else to read."""
    channel.news(reader)
    channel.release(reader, CheckpointId(number))
    channel.unprotect(CheckpointId(number), reader)


def kept(channel: Channel) -> list[object]:
    """The barriers that are still in the log on disk."""
    entries = read_entries(channel.directory / "log")
    return [entry["barrier"] for entry in entries if "barrier" in entry]


def files(channel: Channel) -> int:
    return sum(path.is_file() for path in channel.directory.rglob("*"))


def test_barriers_of_a_silent_pipeline_do_not_pile_up(channel: Channel) -> None:
    most = 0
    for number in range(1, 1001):
        barrier(channel, number)
        passes(channel, FAST, number)
        passes(channel, SLOW, number)
        most = max(most, files(channel))

    assert most <= 2
    assert kept(channel) == list(range(991, 1001))


def test_barriers_are_kept_for_the_slowest_reader(channel: Channel) -> None:
    for number in range(1, 101):
        barrier(channel, number)
        passes(channel, FAST, number)
    for number in range(1, 36):
        passes(channel, SLOW, number)

    # In segments of ten: the one with the first barrier that it has not passed, and all behind.
    assert kept(channel) == list(range(31, 101))


def test_an_event_that_a_reader_needs_keeps_the_barriers_after_it(channel: Channel) -> None:
    channel.append(Event(BatchId(0), 1, 10, ("b0/part.parquet",)))
    channel.advance(FAST, Place(1, 10))
    channel.settle(FAST)
    for number in range(1, 101):
        barrier(channel, number)
        passes(channel, FAST, number)
        passes(channel, SLOW, number)
    assert "event" in read_entries(channel.directory / "log")[0]

    channel.advance(SLOW, Place(1, 10))
    channel.settle(SLOW)

    assert kept(channel) == [100]


def test_a_reader_gets_a_notice_of_what_is_recorded_and_of_nothing_else(tmp_path: Path) -> None:
    noticed: list[ChannelId] = []
    log = ChannelLog(CHANNEL, {FAST: START, SLOW: START})
    channel = Channel(log, tmp_path, FORM, Bound(100, 10**9), noticed.append)
    seen = []
    acts: tuple[Callable[[], None], ...] = (
        lambda: channel.append(Event(BatchId(0), 1, 10, ("b0/rows",))),
        lambda: channel.protect(CheckpointId(1), FAST, START),
        lambda: channel.append(Event(BatchId(1), 1, 10, ("b1/rows",))),
        lambda: channel.unprotect(CheckpointId(1), FAST),
        lambda: channel.append(Event(BatchId(2), 1, 10, ("b2/rows",))),
        lambda: barrier(channel, 1),
    )
    for act in acts:
        act()
        seen.append(len(noticed))
    channel.close()

    assert seen == [0, 1, 2, 2, 2, 3]
