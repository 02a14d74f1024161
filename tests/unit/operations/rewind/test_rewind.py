"""Rewinds beside other processes: concurrent claims, and the report of an unknown outcome."""

from collections.abc import Callable

import pytest
from tests.unit.operations.crashing_pipeline import (
    SINKS,
    TARGETS,
    CrashingBackend,
    CrashingPipeline,
    VersionedTable,
    check_exactly_once,
    position,
    start_pipeline,
)

from cutwater.errors import (
    ConfigError,
    Fenced,
    MoveRefused,
    OutcomeUnknown,
    SinkError,
    Superseded,
    Unavailable,
)
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.operations.offline_pipeline import OfflinePipeline, candidates
from cutwater.operations.rewind.facts import observe
from cutwater.operations.rewind.preview import preview_of
from cutwater.operations.rewind.rewind import find_target, perform
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Version
from cutwater.protocol.decisions import Claim, LogView
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import NO_TARGET, RestorePreview
from cutwater.sinks.delta.time_travel import NO_TABLE
from cutwater.sinks.lost_commits import newest_writes
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import open_pipeline
from cutwater.store.records.codecs import Attempt


class Meddled(CrashingBackend):
    """A store in which something happens right before a write to one place, once."""

    place = "nowhere"
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def create(self, path: ObjectPath, data: bytes) -> bool:
        if f"/{self.place}" in path:
            act, self.place = self.meanwhile, "nowhere"
            act()
        return super().create(path, data)


def meddled(place: str, meanwhile: Callable[[CrashingPipeline], object]) -> CrashingPipeline:
    """A pipeline with three checkpoints, and what happens before a rewind's write."""
    pipeline = start_pipeline([False, False, False], Meddled())
    assert isinstance(pipeline.backend, Meddled)
    pipeline.backend.place = place
    pipeline.backend.meanwhile = lambda: meanwhile(pipeline)
    return pipeline


def claim(pipeline: CrashingPipeline) -> None:
    log = pipeline.opened().log.read()
    claimed = Claim(Slot(log.last_slot + 1), Generation(log.generation + 1), "theirs")
    pipeline.opened().log.create(claimed)


def test_a_checkpoint_whose_manifest_alone_has_survived_its_deletion_is_refused() -> None:
    def delete_objects(pipeline: CrashingPipeline) -> None:
        decision = pipeline.opened().log.read().decisions[0]
        cut = pipeline.opened().manifests.read(decision.checkpoint_id, decision.manifest_sha256)
        for snapshot in cut.snapshots.values():
            for ref in snapshot.blobs:
                pipeline.backend.delete(ObjectPath(ref.name))

    pipeline = meddled("log/", delete_objects)
    decided = len(pipeline.opened().log.read().decisions)

    with pytest.raises(MoveRefused, match=r"checkpoint 1 is no longer kept: .* it is missing"):
        pipeline.rewind(0)
    assert len(pipeline.opened().log.read().decisions) == decided


def test_a_process_that_is_fenced_before_its_rewind_decides_nothing() -> None:
    pipeline = meddled("log/", claim)

    with pytest.raises(Fenced):
        pipeline.rewind(0)
    check_exactly_once(pipeline, pipeline.recover())
    assert len(pipeline.opened().log.read().decisions) == 3


def test_a_process_that_is_fenced_after_its_own_claim_decides_nothing_either() -> None:
    pipeline = meddled("manifests/", claim)

    with pytest.raises(Fenced):
        pipeline.rewind(0)
    restored = pipeline.recover()
    check_exactly_once(pipeline, restored)
    assert position(restored.cut) == 9


@pytest.mark.parametrize("successor", [True, False])
def test_a_rewind_that_a_sink_refuses_is_fenced_if_the_log_shows_a_successor(
    successor: bool,
) -> None:
    class Late(VersionedTable):
        def restore(self, permit: CommitPermit, version: Version | None) -> Version:
            # The decision is written, and a successor has acted on a later slot already.
            if successor:
                claim(pipeline)
            self.slots[Slot(99)] = 0
            return super().restore(permit, version)

    pipeline = start_pipeline([False, False, False])
    table = pipeline.tables[SINKS[0]]
    pipeline.tables[SINKS[0]] = Late(pipeline.backend, SINKS[0], table.versions, table.slots)

    with pytest.raises(Fenced if successor else Superseded):
        pipeline.rewind(0)
    assert len(pipeline.opened().log.read().decisions) == 4


def test_there_is_no_rewind_to_a_checkpoint_that_was_deleted_meanwhile() -> None:
    def delete(pipeline: CrashingPipeline) -> None:
        paths = PipelinePaths(pipeline.opened().pipeline)
        pipeline.backend.delete(paths.manifest(CheckpointId(1)))

    pipeline = meddled("log/", delete)

    with pytest.raises(MoveRefused, match="checkpoint 1 is no longer kept, and was deleted"):
        pipeline.rewind(0)
    check_exactly_once(pipeline, pipeline.recover())


def test_objects_that_went_with_their_manifest_are_not_called_damaged() -> None:
    """Retention of a pipeline that runs, while another process reads an older checkpoint of it."""
    pipeline = start_pipeline([False, False])
    store = pipeline.opened()
    log = store.log.read()
    target = candidates(store, log)[0]
    movable = OfflinePipeline("p", store, TARGETS, pipeline.sinks)
    for path in pipeline.backend.list(PipelinePaths(store.pipeline).blobs):
        pipeline.backend.delete(path)

    assert "objects of the checkpoint are missing or damaged" in str(
        preview_of(observe(movable, log, target, leave_sinks=False, held=None)).refused
    )
    pipeline.backend.delete(PipelinePaths(store.pipeline).manifest(CheckpointId(1)))
    with pytest.raises(MoveRefused, match="checkpoint 1 is no longer kept"):
        observe(movable, log, target, leave_sinks=False, held=None)


def test_a_number_that_another_process_took_is_not_used() -> None:
    def take(pipeline: CrashingPipeline) -> None:
        pipeline.opened().attempts.reserve(
            Attempt(
                CheckpointId(4), Generation(1), pipeline.opened().log.read().decisions[0].kind, 0
            )
        )

    pipeline = meddled("attempts/", take)

    pipeline.rewind(0)

    head = pipeline.opened().log.read().head
    assert head is not None
    assert head.checkpoint_id == 5
    check_exactly_once(pipeline, pipeline.recover())


def test_a_decision_that_may_or_may_not_be_written_is_left_to_recovery() -> None:
    def vanish(_: CrashingPipeline) -> None:
        raise Unavailable("log", "it is away")

    pipeline = meddled("log/", vanish)

    with pytest.raises(OutcomeUnknown, match="the next run finds out"):
        pipeline.rewind(0)
    check_exactly_once(pipeline, pipeline.recover())


def test_a_sink_that_cannot_act_now_leaves_a_decision_that_recovery_finishes() -> None:
    pipeline = start_pipeline([False, False])
    table = pipeline.tables[next(iter(pipeline.tables))]
    table.refuses = "restore"

    with pytest.raises(SinkError, match=r"is away\. The rewind is decided, and the next run"):
        pipeline.rewind(0)
    table.refuses = ""
    restored = pipeline.recover()

    check_exactly_once(pipeline, restored)
    assert position(restored.cut) == 3


def test_a_sink_that_cannot_be_looked_at_now_cannot_be_rewound() -> None:
    pipeline = start_pipeline([False, False])
    pipeline.tables[next(iter(pipeline.tables))].refuses = "look back"

    with pytest.raises(MoveRefused, match="a: is away"):
        pipeline.rewind(0)


class Topic(VersionedTable):
    """A target that cannot remove rows, and has lost its records of commits."""

    keeps_every_row = True

    def newest(self) -> Found:
        return Found(None, "0")


def test_a_target_that_keeps_rows_and_forgot_its_commits_is_not_rewound_to_its_beginning() -> None:
    pipeline = start_pipeline([True, False])
    store = pipeline.opened()
    pipeline.tables.update({sink: Topic(pipeline.backend, sink) for sink in pipeline.tables})

    with pytest.raises(MoveRefused, match="holds no commit of this sink"):
        pipeline.rewind(0)
    assert newest_writes(store, store.log.read())


class Unmade(VersionedTable):
    """A table that is made by its first commit."""

    def look_back(self, version: Version | None) -> RestorePreview:
        return (
            RestorePreview(NO_TARGET, 0, 0)
            if len(self.versions) == 1
            else super().look_back(version)
        )


def test_a_table_that_an_older_process_may_still_make_is_not_rewound() -> None:
    """A process that was paused in its first commit would find nothing that tells it to stop."""
    pipeline = start_pipeline([True, False])
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).committed(Slot(3)))
    pipeline.tables.update({sink: Unmade(pipeline.backend, sink) for sink in pipeline.tables})

    assert NO_TABLE == NO_TARGET
    with pytest.raises(MoveRefused, match="checkpoint 2 has rows for it that may still be commit"):
        pipeline.rewind(0)

    pipeline.recover()
    pipeline.rewind(0)
    restored = pipeline.recover()
    check_exactly_once(pipeline, restored)
    assert position(restored.cut) == 3


def test_a_table_that_never_had_rows_is_rewound_to_nothing() -> None:
    pipeline = start_pipeline([True])
    pipeline.tables.update({sink: Unmade(pipeline.backend, sink) for sink in pipeline.tables})

    pipeline.rewind(0)

    check_exactly_once(pipeline, pipeline.recover())


def test_a_pipeline_without_checkpoints_has_nowhere_to_go() -> None:
    backend = MemoryBackend()
    store = PipelineStore.of(backend, open_pipeline(backend, "p"))

    with pytest.raises(ConfigError, match="p has never taken a checkpoint"):
        find_target(OfflinePipeline("p", store, TARGETS, {}), LogView(), "1", "--to")


def test_there_is_no_rewind_to_a_commit_that_was_never_finished() -> None:
    pipeline = start_pipeline([False, False])
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).committed(Slot(2)))
    log = store.log.read()

    with pytest.raises(MoveRefused, match="the record of what its sinks showed is gone"):
        perform(
            OfflinePipeline("p", store, TARGETS, pipeline.sinks),
            log,
            candidates(store, log)[0],
            leave_sinks=False,
        )


def test_there_is_no_rewind_in_a_log_that_lost_its_end() -> None:
    """What the tables show is then not known, and the lost slots would be used again."""
    pipeline = start_pipeline([False, False])
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).log_entry(store.log.read().last_slot))
    store = PipelineStore.of(pipeline.backend, store.pipeline)
    movable = OfflinePipeline("p", store, TARGETS, pipeline.sinks)

    with pytest.raises(MoveRefused, match="its log lacks its last entries"):
        find_target(movable, store.log.read(), "1", "--to")
