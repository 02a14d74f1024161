"""Effects of several attempts at once: each stores by what was known when it began."""

import queue
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.protocol.builders import ORDERS, PIPELINE, source_snapshot

from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut
from cutwater.protocol.decisions import Claim
from cutwater.protocol.messages import Barrier, Flag
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.step.events import Stored
from cutwater.runtime.context import RunContext
from cutwater.runtime.effects import Effects
from cutwater.runtime.step import PinnedFiles
from cutwater.store.backends.directories import files_below
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.pipeline_store import PipelineStore

DEADLINE_S = 20.0
ONE = Generation(1)


class Pinned:
    """A step whose state is one directory, and that keeps what it is told."""

    name = ORDERS
    wiring = None

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: queue.Queue[Stored] = queue.Queue()
        self.times = SimpleNamespace(on_uploaded=lambda *_: None)

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles:
        del checkpoint_id
        names = (str(file.relative_to(self.directory)) for file in files_below(self.directory))
        return PinnedFiles(self.directory, tuple(names))

    def tell(self, stored: Stored) -> None:
        self.told.put(stored)


@pytest.fixture
def working(tmp_path: Path) -> Effects:
    store = PipelineStore.of(MemoryBackend(), PIPELINE)
    store.log.create(Claim(Slot(1), ONE, "ours"))
    context = RunContext(
        plan=cast(Any, None),
        engine=cast(Any, None),
        store=store,
        sinks={},
        options=CheckpointOptions(),
        bound=cast(Any, None),
        scratch=tmp_path,
    )
    posted: list[object] = []
    return Effects(context, ONE, posted.append, posted.append)


def test_a_savepoint_whose_upload_starts_late_reuses_nothing_all_the_same(
    working: Effects, tmp_path: Path
) -> None:
    """Another attempt has begun by then, which may leave out what older checkpoints hold."""
    state = tmp_path / "work" / "state"
    state.mkdir(parents=True)
    (state / "big").write_bytes(b"x" * 2_000_000)
    step = Pinned(state)
    barriers = {
        number: Barrier(CheckpointId(number), ONE, flags, 0)
        for number, flags in (
            (1, Flag.NONE),
            (2, Flag.FULL_SNAPSHOT),
            (3, Flag.NONE),
        )
    }

    def upload(number: int) -> tuple[BlobRef, ...]:
        working.upload(cast(Any, step), source_snapshot(number), ())
        return step.told.get(timeout=DEADLINE_S).state

    working.begin_attempt(barriers[1])
    first = upload(1)
    whole = replace(source_snapshot(1), state=first)
    cut = Cut(CheckpointId(1), ONE, CheckpointKind.CHECKPOINT, {ORDERS: whole})
    working.collector.know(cut)
    for number in (2, 3):
        working.begin_attempt(barriers[number])

    upload(2)
    upload(3)
    working.close()

    assert working.uploaded[CheckpointId(2)] > 2_000_000
    assert working.uploaded[CheckpointId(3)] < 2_000_000
