"""What prevents a fork: rows that a source no longer has, targets that are not known.

The pipeline reads three files; its first checkpoint has seen one of them, its second all three.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.operations.rewind.test_source_history import cut_at, files

from cutwater.errors import MoveRefused
from cutwater.ids import CheckpointId, Generation, PipelineId, SinkId
from cutwater.operations.fork import Fork, _copy_objects, fork
from cutwater.operations.offline_pipeline import candidates
from cutwater.operations.rewind.rewind import resolve_rewind_target
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.store.backends.local import LocalBackend
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import list_pipelines, open_pipeline
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.targets import StoredTarget

TABLE = StoredTarget("delta", "/tables/files")


@pytest.fixture
def read(tmp_path: Path) -> list[Path]:
    return files(tmp_path, "a", "b", "c")


@pytest.fixture
def store(tmp_path: Path, read: list[Path]) -> PipelineStore:
    backend = LocalBackend(tmp_path / "store")
    opened = PipelineStore.of(backend, open_pipeline(backend, "files"))
    decided(opened, cut_at(opened, tmp_path, 0, read[:1]))
    decided(opened, cut_at(opened, tmp_path, 2, read))
    return opened


def decided(store: PipelineStore, cut: Cut) -> None:
    def numbered(attempt: Attempt) -> Cut:
        return replace(
            cut,
            checkpoint_id=attempt.checkpoint_id,
            generation=attempt.generation,
            commit_point=False,
        )

    claim = claim_next(store, store.log.read())
    store.targets.record(claim.generation, {SinkId("table"): TABLE})
    decide_cut(store, claim, CheckpointKind.CHECKPOINT, numbered)


def forked(directory: Path, start_from: str = "1", *, allow_forgotten: bool = False) -> Fork:
    return fork(
        "files",
        "trial",
        start_from=start_from,
        store=directory / "store",
        allow_forgotten=allow_forgotten,
    )


def test_rows_that_a_source_no_longer_has_stand_against_a_fork(
    store: PipelineStore, read: list[Path], tmp_path: Path
) -> None:
    read[1].unlink()

    with pytest.raises(MoveRefused, match=rf"{read[1]} was read since and is gone; with --allow"):
        forked(tmp_path)

    assert list(list_pipelines(store.backend)) == ["files"]
    assert forked(tmp_path, "2").forgotten == {}


def test_a_fork_may_go_on_without_them_and_says_so(
    store: PipelineStore, read: list[Path], tmp_path: Path
) -> None:
    read[1].unlink()

    made = forked(tmp_path, allow_forgotten=True)

    assert list(made.forgotten.values()) == [f"{read[1]} was read since and is gone"]
    assert made.forbidden == (TABLE.uri,)
    assert list(list_pipelines(store.backend)) == ["files", "trial"]


def test_without_the_originals_targets_there_is_no_fork(
    store: PipelineStore, tmp_path: Path
) -> None:
    """A pipeline that was adopted by an older Cutwater and never ran."""
    paths = PipelinePaths(store.pipeline)
    for generation in (1, 2):
        store.backend.delete(paths.targets(Generation(generation)))

    with pytest.raises(MoveRefused, match=r"does not say where its sinks write.*; run it once"):
        forked(tmp_path)
    assert list(list_pipelines(store.backend)) == ["files"]


def test_a_pipeline_that_never_ran_can_start_from_where_it_stands(
    store: PipelineStore, tmp_path: Path
) -> None:
    """The targets of its sinks are not recorded yet, and are not needed."""
    for generation in (1, 2):
        store.backend.delete(PipelinePaths(store.pipeline).targets(Generation(generation)))

    assert resolve_rewind_target("files", to="2", store=tmp_path / "store") is None
    older = resolve_rewind_target("files", to="1", store=tmp_path / "store")
    assert older is not None
    assert older.title == "checkpoint 1"


def test_objects_that_went_with_their_manifest_are_not_called_damaged(store: PipelineStore) -> None:
    target = candidates(store, store.log.read())[0]
    assert target.cut is not None
    made = PipelineStore.of(store.backend, PipelineId("made"))
    for snapshot in target.cut.snapshots.values():
        for ref in snapshot.blobs:
            store.backend.delete(ObjectPath(ref.name))

    with pytest.raises(MoveRefused, match="objects of the checkpoint are missing or damaged"):
        _copy_objects("files", store, made, target, target.cut)
    store.backend.delete(PipelinePaths(store.pipeline).manifest(CheckpointId(1)))
    with pytest.raises(MoveRefused, match="checkpoint 1 is no longer kept, and was deleted"):
        _copy_objects("files", store, made, target, target.cut)
