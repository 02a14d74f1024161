"""The retention of sinks: what checkpoints that are kept need stays, and everything else goes.

The store is real, in memory; the sinks are directories of files. The collector is the
holder of the claim, or a process that held it before and was paused.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.sinks.files_sink import PIPELINE, SINK, open_sink, permit, stage_rows
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import SinkError
from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.cut import CheckpointKind, Committable, Cut, Version
from cutwater.protocol.decisions import Claim, Decision
from cutwater.sinks.base import OpenSink
from cutwater.sinks.files.table import OpenFiles
from cutwater.sinks.retention import SinkRetention
from cutwater.store.maintenance.garbage import Collector
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Committed

ONE, TWO = Generation(1), Generation(2)


@pytest.fixture
def store() -> PipelineStore:
    found = PipelineStore.of(FaultyBackend(), PIPELINE)
    found.log.create(Claim(Slot(1), ONE, "claim 1"))
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(root: Path) -> OpenSink:
    return open_sink(root, write="overwrite")


def decide(
    store: PipelineStore,
    number: int,
    *,
    carried: Sequence[Committable] = (),
    commit: Sequence[Committable] = (),
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
) -> Slot:
    """Decide a cut: a commit point if it commits something, else a recovery point."""
    log = store.log.read()
    is_commit = bool(commit)
    cut = Cut(CheckpointId(number), log.generation, kind, {})
    cut = replace(cut, commit={SINK: tuple(commit)}, carried={SINK: tuple(carried)})
    cut = replace(cut, commit_point=is_commit, visible={SINK: None})
    sha256 = store.manifests.publish(cut)
    slot, name = Slot(log.last_slot + 1), f"decision {number}"
    store.log.create(
        Decision(slot, log.generation, name, kind, cut.checkpoint_id, sha256, is_commit)
    )
    return slot


def commit(
    store: PipelineStore, sink: OpenSink, slot: Slot, committables: Sequence[Committable]
) -> None:
    version: Version = sink.commit(permit(slot), committables)
    number = store.log.read().decisions[-1].checkpoint_id
    store.commits.record(Committed(slot, number, {SINK: version}))


def retention(store: PipelineStore, sink: OpenSink, generation: Generation = ONE) -> SinkRetention:
    through = max(store.commits.slots(), default=Slot(0))
    return SinkRetention(Collector(store, generation, 2, through), {SINK: sink})


def staged_batches(root: Path) -> list[str]:
    found = (root / "_cutwater" / PIPELINE).rglob("*.parquet")
    return sorted("/".join(path.relative_to(root).parts[3:5]) for path in found)


def test_what_a_kept_recovery_point_carries_stays_until_the_point_is_given_up(
    store: PipelineStore, sink: OpenSink, root: Path
) -> None:
    carried, last = stage_rows(sink, 1, 1), stage_rows(sink, 2, 2)
    decide(store, 1, carried=carried)
    slot = decide(store, 2, commit=(*carried, *last))
    commit(store, sink, slot, (*carried, *last))
    retention(store, sink).collect()
    assert staged_batches(root) == ["g000001/b000000000001"]

    for number in (3, 4):
        result = stage_rows(sink, number, number)
        commit(store, sink, decide(store, number, commit=result), result)
    retention(store, sink).collect()

    assert store.manifests.ids() == (3, 4)
    assert staged_batches(root) == []


def test_a_savepoint_keeps_what_it_carries_until_it_is_dropped(
    store: PipelineStore, sink: OpenSink, root: Path
) -> None:
    carried, last = stage_rows(sink, 1, 1), stage_rows(sink, 2, 2)
    decide(store, 1, carried=carried, kind=CheckpointKind.SAVEPOINT)
    slot = decide(store, 2, commit=(*carried, *last))
    commit(store, sink, slot, (*carried, *last))
    for number in range(3, 7):
        result = stage_rows(sink, number, number)
        commit(store, sink, decide(store, number, commit=result), result)
    retention(store, sink).collect()
    assert store.manifests.ids() == (1, 5, 6)
    assert staged_batches(root) == ["g000001/b000000000001"]

    store.savepoints.drop(CheckpointId(1))
    retention(store, sink).collect()

    assert staged_batches(root) == []


def test_rows_of_a_decision_stay_until_its_commit_is_recorded(
    store: PipelineStore, sink: OpenSink
) -> None:
    """Recovery looks at them before it repeats the commit, also if the sink has acted already."""
    both = (*stage_rows(sink, 1, 1), *stage_rows(sink, 2, 2))
    slot = decide(store, 1, commit=both)
    sink.commit(permit(slot), both)

    retention(store, sink).collect()

    assert [sink.problem(committable) for committable in both] == [None, None]


def test_a_process_that_has_a_successor_lets_no_sink_delete(
    store: PipelineStore, sink: OpenSink, root: Path
) -> None:
    """It was paused before its retention; what it knows of checkpoints is old."""
    carried, last = stage_rows(sink, 1, 1), stage_rows(sink, 2, 2)
    slot = decide(store, 1, commit=(*carried, *last))
    commit(store, sink, slot, (*carried, *last))
    paused = retention(store, sink)
    store.log.create(Claim(Slot(3), TWO, "claim 2"))
    decide(store, 2, carried=carried)

    paused.collect()

    assert staged_batches(root) == ["g000001/b000000000001"]
    assert sink.problem(carried[0]) is None


class Noting(OpenFiles):
    """A real sink that also notes which generation deletes, and may be unable to."""

    asked: list[str]
    failures: int
    failure: Exception

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        self.asked.append(f"discard {generation}")
        if self.failures:
            self.failures -= 1
            raise self.failure
        super().discard(generation, keep)


@pytest.fixture
def noting(sink: OpenSink) -> Noting:
    assert isinstance(sink, OpenFiles)
    sink.__class__ = Noting
    assert isinstance(sink, Noting)
    sink.asked, sink.failures = [], 0
    return sink


def test_a_claim_between_two_sinks_stops_the_second(
    store: PipelineStore, noting: Noting, tmp_path: Path
) -> None:
    class TakenOver(Noting):
        def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
            super().discard(generation, keep)
            store.log.create(Claim(Slot(2), TWO, "claim 2"))

    noting.__class__ = TakenOver
    second = open_sink(tmp_path / "second", write="overwrite")
    left = stage_rows(second, 1, 1, generation=0)
    sinks = {SINK: noting, SinkId("second"): second}

    SinkRetention(Collector(store, ONE, 2), sinks).collect()

    assert noting.asked == ["discard 1"]
    assert second.problem(left[0]) is None


@pytest.mark.parametrize(
    "failure",
    [SinkError(SINK, "cannot discard: it is away"), sqlite3.OperationalError("it is locked")],
    ids=["as it should", "as it comes"],
)
def test_discarding_is_tried_again_until_it_succeeds_and_then_no_more(
    store: PipelineStore, noting: Noting, root: Path, tmp_path: Path, failure: Exception
) -> None:
    """A sink may be the user's own: whatever it raises, no rows depend on deleting."""
    noting.failure = failure
    stage_rows(noting, 1, 1, generation=0)
    other = open_sink(tmp_path / "second", write="overwrite")
    left = stage_rows(other, 1, 1, generation=0)
    noting.failures = 2
    found = SinkRetention(Collector(store, ONE, 2), {SINK: noting, SinkId("second"): other})

    found.collect()
    assert staged_batches(root) == ["g000000/b000000000001"]
    # One sink that is away does not keep the others from it.
    assert other.problem(left[0]) is not None
    for _ in range(3):
        found.collect()

    assert noting.asked == ["discard 1"] * 3
    assert staged_batches(root) == []


def test_sinks_delete_nothing_while_a_kept_checkpoint_cannot_be_read(
    store: PipelineStore, noting: Noting
) -> None:
    """What it carries is not known."""
    carried = stage_rows(noting, 1, 1, generation=0)
    decide(store, 1, carried=carried)
    path = PipelinePaths(PIPELINE).manifest(CheckpointId(1))
    whole = store.backend.read(path)
    store.backend.put(path, whole[:-1])
    found = retention(store, noting)

    found.collect()
    assert noting.asked == []
    store.backend.put(path, whole)
    found.collect()

    assert noting.asked == ["discard 1"]
    assert noting.problem(carried[0]) is None
