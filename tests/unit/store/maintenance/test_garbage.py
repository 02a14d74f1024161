"""Collection: what retention plans is deleted, by the holder of the claim alone."""

from dataclasses import replace

import pytest
from tests.unit.store.cuts import PIPELINE
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import NotFound, Unavailable
from cutwater.ids import NO_SLOT, BatchId, CheckpointId, Generation, SinkId, Slot, StepId
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.decisions import Claim, Decision
from cutwater.store.maintenance.garbage import Collector
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Committed

ONE = Generation(1)
PATHS = PipelinePaths(PIPELINE)
STEP = StepId("totals")


@pytest.fixture
def store() -> PipelineStore:
    opened = PipelineStore.of(FaultyBackend(), PIPELINE)
    opened.log.create(Claim(Slot(1), ONE, "claim"))
    return opened


def blob(store: PipelineStore, number: int, generation: Generation = ONE) -> BlobRef:
    path = PATHS.blob(generation, f"{number:064x}")
    store.backend.put(path, b"state")
    return BlobRef(path, 5, f"{number:064x}")


def decide(store: PipelineStore, number: int, *, commit: bool = True) -> Cut:
    """Take a checkpoint whose state is one object of its own."""
    snapshot = StepSnapshot(STEP, CheckpointId(number), ONE, BatchId(number))
    cut = Cut(
        CheckpointId(number),
        ONE,
        CheckpointKind.CHECKPOINT,
        {STEP: replace(snapshot, state=(blob(store, number),))},
    )
    sha256 = store.manifests.publish(cut)
    slot = Slot(store.log.read().last_slot + 1)
    store.log.create(
        Decision(slot, ONE, f"decision {number}", cut.kind, cut.checkpoint_id, sha256, True)
    )
    if commit:
        store.commits.record(Committed(slot, cut.checkpoint_id, {SinkId("table"): str(number)}))
    return cut


def last(store: PipelineStore) -> Slot:
    """The newest slot whose commit is recorded."""
    return max(store.commits.slots(), default=NO_SLOT)


def blobs_left(store: PipelineStore) -> list[int]:
    return [int(name.rsplit("/", 1)[-1], 16) for name in store.backend.list(PATHS.blobs)]


def test_the_newest_checkpoints_stay_and_the_others_go(store: PipelineStore) -> None:
    for number in range(1, 6):
        decide(store, number)

    plan = Collector(store, ONE, 2, last(store)).collect()

    assert plan.manifests == (1, 2, 3)
    assert store.manifests.ids() == (4, 5)
    assert blobs_left(store) == [4, 5]


def test_nothing_is_deleted_before_anything_was_committed(store: PipelineStore) -> None:
    for number in range(1, 4):
        decide(store, number, commit=False)

    Collector(store, ONE, 1, last(store)).collect()

    assert store.manifests.ids() == (1, 2, 3)


def test_what_no_cut_names_goes_and_staged_rows_of_this_generation_stay(
    store: PipelineStore,
) -> None:
    decide(store, 1)
    blob(store, 99)
    staged = PATHS.staged_file(ONE, SinkId("table"), BatchId(3), "part")
    store.backend.put(staged, b"rows")

    Collector(store, ONE, 1, last(store)).collect()

    assert blobs_left(store) == [1]
    assert store.backend.exists(staged)


def test_a_manifest_that_is_known_is_not_read_again(store: PipelineStore) -> None:
    backend = store.backend
    assert isinstance(backend, FaultyBackend)
    cut = decide(store, 1)
    collector = Collector(store, ONE, 1, last(store))
    collector.know(cut)
    backend.reads.clear()

    collector.collect()

    assert PATHS.manifest(cut.checkpoint_id) not in backend.reads
    assert collector.cuts == (cut,)


def test_a_kept_manifest_that_cannot_be_read_keeps_everything(store: PipelineStore) -> None:
    decide(store, 1)
    decide(store, 2)
    store.backend.put(PATHS.manifest(CheckpointId(2)), b"damaged")

    plan = Collector(store, ONE, 1, last(store)).collect()

    assert plan.unreadable == (2,)
    assert blobs_left(store) == [1, 2]


def test_a_manifest_that_is_gone_is_forgotten(store: PipelineStore) -> None:
    decide(store, 2)
    collector = Collector(store, ONE, 1, last(store))
    collector.know(replace(decide(store, 3), checkpoint_id=CheckpointId(1)))

    collector.collect()

    assert [cut.checkpoint_id for cut in collector.cuts] == [3]


def test_a_cut_whose_deletion_was_planned_is_never_reused_although_its_manifest_stays(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete is lost, its objects are gone, and the next collection stops at its first delete."""
    decide(store, 1)
    decide(store, 2)
    collector = Collector(store, ONE, 1, last(store))
    delete = store.backend.delete
    lost = PATHS.manifest(CheckpointId(1))
    monkeypatch.setattr(store.backend, "delete", lambda path: path == lost or delete(path))
    collector.collect()
    assert (store.manifests.ids(), blobs_left(store)) == ((1, 2), [2])

    def refuse(path: ObjectPath) -> None:
        raise Unavailable(path, "down")

    monkeypatch.setattr(store.backend, "delete", refuse)
    with pytest.raises(Unavailable):
        collector.collect()

    assert [cut.checkpoint_id for cut in collector.cuts] == [2]


@pytest.mark.parametrize("deletes", [0, 1, 2, 3])
def test_a_process_that_is_fenced_out_deletes_nothing_more(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch, deletes: int
) -> None:
    for number in (1, 2, 3):
        decide(store, number)
    blob(store, 99)
    collector = Collector(store, ONE, 1, last(store))
    done: list[ObjectPath] = []
    backend = store.backend
    delete = backend.delete
    fencing = PipelineStore.of(backend, PIPELINE)

    def delete_and_be_fenced(path: ObjectPath) -> None:
        delete(path)
        done.append(path)
        if len(done) == deletes:
            claim_next(fencing)

    monkeypatch.setattr(backend, "delete", delete_and_be_fenced)
    if deletes == 0:
        claim_next(fencing)

    collector.collect()

    assert len(done) == deletes


def claim_next(store: PipelineStore) -> None:
    slot = Slot(store.log.read().last_slot + 1)
    store.log.create(Claim(slot, Generation(2), "newer"))


def test_an_open_store_reads_what_its_generation_wrote(store: PipelineStore) -> None:
    blobs = store.blobs(ONE)

    assert blobs.problem(BlobRef(PATHS.blob(ONE, "0" * 64), 1, "0" * 64)) is not None
    with pytest.raises(NotFound):
        store.backend.read(PATHS.blob(ONE, "0" * 64))
