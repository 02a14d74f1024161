"""How the inputs of a step meet a barrier, and the count of late rows; without Spark."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START, Barrier, Event, Place
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import Advanced, AttemptOver, BarrierSeen, Tick
from cutwater.runtime.channel import Channel, ChannelSchema, Signal
from cutwater.runtime.reporting.rates import LateRows, alignment_of
from cutwater.runtime.reporting.status import AlignmentStatus
from cutwater.runtime.step import RunningStep

LEFT, RIGHT = InputId(0, ChannelId("left")), InputId(1, ChannelId("right"))
JOIN = StepId("join")
FORM = ChannelSchema(StructType([StructField("value", LongType())]))
ONE = CheckpointId(1)
BARRIER = Barrier(ONE, Generation(1))
PATIENCE_MS = 100


class Joined:
    """A step that reads two channels, each with two Events of ten bytes, a barrier between."""

    def __init__(self, directory: Path) -> None:
        self.channels = {row: self._channel(directory / row.channel, row) for row in (LEFT, RIGHT)}
        options = UnalignedOptions(alignment_timeout_ms=PATIENCE_MS)
        starts = {LEFT: START, RIGHT: START}
        self.aligner = Aligner(starts, options, generation=Generation(1))

    @staticmethod
    def _channel(directory: Path, source: InputId) -> Channel:
        reader = ReaderId(JOIN, source)
        log = ChannelLog(source.channel, {reader: START})
        channel = Channel(log, directory, FORM, Bound(100, 10**9), lambda _: None)
        channel.subscribe(reader, Signal())
        channel.append(Event(BatchId(0), 1, 10, ("b0/part.parquet",)))
        channel.append(BARRIER)
        channel.append(Event(BatchId(1), 1, 10, ("b1/part.parquet",)))
        return channel

    def reads(self, source: InputId, place: Place) -> None:
        self.aligner.handle(Advanced({source: place}))
        self.channels[source].advance(ReaderId(JOIN, source), place)

    def sees(self, source: InputId) -> None:
        self.aligner.handle(BarrierSeen(source, BARRIER, Place(1, 10)))

    @property
    def status(self) -> AlignmentStatus | None:
        step = SimpleNamespace(
            machine=SimpleNamespace(aligner=self.aligner),
            wiring=SimpleNamespace(inputs=self.channels),
            reader=lambda source: ReaderId(JOIN, source),
        )
        return alignment_of(cast(RunningStep, cast(Any, step)), ONE)


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Joined]:
    made = Joined(tmp_path)
    yield made
    for channel in made.channels.values():
        channel.close()


def test_an_aligned_input_holds_what_has_arrived_behind_its_barrier(join: Joined) -> None:
    join.sees(LEFT)
    before = join.status
    join.reads(LEFT, Place(1, 10))
    join.sees(RIGHT)

    assert before == AlignmentStatus((), ("0:left", "1:right"), behind_bytes=10)
    assert join.status == AlignmentStatus(("0:left",), ("1:right",), held_bytes=10, behind_bytes=10)
    assert join.status.inputs == 2


def test_a_step_that_has_sent_its_barrier_holds_nothing(join: Joined) -> None:
    for source in (LEFT, RIGHT):
        join.sees(source)
        join.reads(source, Place(1, 10))

    assert join.status == AlignmentStatus(("0:left", "1:right"), ())


def test_what_a_barrier_overtakes_is_counted_as_recorded(join: Joined) -> None:
    join.sees(LEFT)
    join.reads(LEFT, Place(1, 10))
    join.sees(RIGHT)
    join.aligner.handle(Tick(PATIENCE_MS))

    found = join.status
    assert found is not None
    assert (found.held_bytes, found.recorded_bytes) == (0, 10)


def test_an_attempt_that_is_over_is_not_shown(join: Joined) -> None:
    join.sees(LEFT)
    join.aligner.handle(AttemptOver(ONE))

    assert join.status is None


class Counted:
    """A step that counts the calls; its query is just ending at the first one."""

    def __init__(self) -> None:
        self.calls = 0
        self.counted_again = threading.Event()

    def count_late_rows(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the query has ended")
        self.counted_again.set()


def test_a_step_that_fails_to_count_is_tried_again() -> None:
    step = Counted()
    late = LateRows(lambda: [step], every_s=0.001)
    late.start()
    try:
        assert step.counted_again.wait(30)
    finally:
        late.close()
