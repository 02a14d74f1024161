"""One running step: what it does with barriers, without an engine."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType
from tests.unit.protocol.builders import (
    CONCURRENT,
    GENERATION,
    ORDERS,
    PIPELINE,
    appended,
    barrier,
    source_step,
)

from cutwater.ids import BatchId, ChannelId, CheckpointId, InputId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START, Barrier
from cutwater.protocol.step.aligner_events import Announced
from cutwater.runtime.channel import Channel, ChannelSchema, Signal
from cutwater.runtime.output import Written
from cutwater.runtime.step import DriverCallbacks, PinnedFiles, RunningStep, StepConnections

READER = ReaderId(StepId("totals"), InputId(0, ChannelId(ORDERS)))


class StillStep(RunningStep):
    """A step whose batches the test makes."""

    def start(self) -> None:
        pass

    def halt(self) -> None:
        pass

    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        pass

    def unpin(self, checkpoint_id: CheckpointId) -> None:
        pass

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:
        del checkpoint_id
        return None

    def source_ended(self) -> bool:
        return False


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    log = ChannelLog(ChannelId(ORDERS), {READER: START})
    made = Channel(log, tmp_path, ChannelSchema(StructType()), Bound(9, 10**9), lambda _: None)
    yield made
    made.close()


def test_all_barriers_that_waited_for_the_first_batch_of_a_source_follow_it(
    channel: Channel, tmp_path: Path
) -> None:
    nothing = cast(Any, SimpleNamespace(appended=lambda _: None))
    connections = StepConnections({}, channel, nothing, tmp_path, Signal())
    callbacks = DriverCallbacks(
        post=lambda _: None,
        upload=lambda *_: None,
        failed=lambda *_: None,
        generation=GENERATION,
        pipeline=PIPELINE,
    )
    plan = cast(Any, SimpleNamespace(name=ORDERS))
    machine = source_step(CONCURRENT, pinned_start=False)
    step = StillStep(plan, machine, connections, callbacks)
    for number in (1, 2):
        step.tell(Announced(barrier(number)))
        step.poll()
    _, before = channel.news(READER)

    batch = appended(0)
    step.append(Written(1, batch.event), batch)

    _, after = channel.news(READER)
    assert before == ()
    emitted = [placed.message for placed in after if isinstance(placed.message, Barrier)]
    assert [sent.checkpoint_id for sent in emitted] == [1, 2]
