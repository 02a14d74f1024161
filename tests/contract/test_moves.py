"""Rewinds and forks over a real store and real Delta tables, without Spark.

What a prepared pipeline must show after each rewind or fork follows from the numbers in its tables.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.operations.prepared_pipeline import (
    FIRST_AT_MS,
    NAME,
    SAVEPOINT,
    SINKS,
    SOURCE,
    STEP_MS,
    PreparedPipeline,
    below,
    prepare_pipeline,
    stage_parquet,
)

import cutwater
from cutwater.errors import ConfigError, MoveRefused, PipelineHeld, RecoveryError, SinkError
from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.operations.fork import shared_targets
from cutwater.operations.rewind.preview import Rewind
from cutwater.operations.rewind.target import time_text
from cutwater.protocol.commit import grant
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Claim
from cutwater.sinks.base import SinkContext
from cutwater.store.backends.local import LocalBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.catalog import find_pipeline, list_pipelines, open_pipeline
from cutwater.store.records.lease import Lease, Leases
from cutwater.store.records.targets import StoredTarget

LEFT, RIGHT = SINKS


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedPipeline:
    return prepare_pipeline(tmp_path)


def rewound(prepared: PreparedPipeline, to: str, *, leave_sinks: bool = False) -> Rewind:
    return cutwater.rewind(NAME, to=to, store=prepared.store, yes=True, leave_sinks=leave_sinks)


def preview(prepared: PreparedPipeline, to: str, *, leave_sinks: bool = False) -> Rewind:
    return cutwater.rewind(NAME, to=to, store=prepared.store, leave_sinks=leave_sinks)


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# -- rewinding


@pytest.mark.parametrize(("to", "shows"), [("1", 10), ("2", 20), (SAVEPOINT, 30), ("5", 50)])
def test_a_rewind_takes_tables_and_pipeline_back_to_the_cut(
    prepared: PreparedPipeline, to: str, shows: int
) -> None:
    done = rewound(prepared, to)

    restored = prepared.recover()

    assert prepared.shown() == below(shows)
    assert done.done
    assert restored.cut is not None
    assert restored.cut.checkpoint_id == done.checkpoint_id == 6
    assert restored.cut.stream_positions == {"numbers/0": f'{{"sequence": {shows}}}'}
    assert restored.standing.visible == {
        sink: str(DeltaTable(prepared.table(sink)).version()) for sink in SINKS
    }


def test_a_rewind_to_a_recovery_point_shows_what_was_visible_and_carries_the_rest(
    prepared: PreparedPipeline,
) -> None:
    rewound(prepared, "4")

    restored = prepared.recover()

    assert prepared.shown() == below(30)
    assert restored.cut is not None
    assert {
        sink: [committable.batch for committable in found]
        for sink, found in restored.cut.carried.items()
    } == {
        LEFT: [3],
        RIGHT: [3],
    }


def test_repeated_rewinds_end_at_the_requested_checkpoint(prepared: PreparedPipeline) -> None:
    for to, shows in (("1", 10), ("5", 50), ("2", 20), ("6", 10), ("4", 30), ("7", 50)):
        rewound(prepared, to)
        assert prepared.shown() == below(shows), to
    log = prepared.opened().log.read()
    assert [decision.kind for decision in log.decisions[5:]] == [CheckpointKind.REWIND] * 6
    assert log.generation == 7


def test_a_preview_says_what_happens_to_every_step_source_and_sink_and_does_nothing(
    prepared: PreparedPipeline,
) -> None:
    before = files_below(prepared.directory)

    shown = preview(prepared, "2")

    assert files_below(prepared.directory) == before
    assert (shown.to, shown.head, shown.undone, shown.done) == (2, 5, (3, 4, 5), False)
    assert [(step.step, step.batch, step.batch_then) for step in shown.steps] == [(SOURCE, 4, 1)]
    assert shown.steps[0].state_bytes > len("the state of checkpoint 2")
    (source,) = shown.sources
    assert (source.position, source.position_then) == ('{"sequence": 50}', '{"sequence": 20}')
    assert [
        (sink.sink, sink.version, sink.version_then, sink.rows, sink.rows_removed, sink.obstacle)
        for sink in shown.sinks
    ] == [(LEFT, "4", "2", 50, 30, None), (RIGHT, "4", "2", 50, 30, None)]
    assert shown.refused == ()


def test_a_time_stands_for_the_last_checkpoint_at_or_before_it(prepared: PreparedPipeline) -> None:
    at = time_text(FIRST_AT_MS + 2 * STEP_MS + 59_000)

    assert preview(prepared, at).to == 2
    assert preview(prepared, at.replace(" ", "T")).to == 2
    with pytest.raises(ConfigError, match="no checkpoint began at or before"):
        preview(prepared, "2001-01-01")


def test_a_rewind_is_taken_at_its_own_time(prepared: PreparedPipeline) -> None:
    began_ms = int(time.time() * 1000)

    rewound(prepared, "2")

    cut = prepared.opened().manifests.read(CheckpointId(6))
    assert began_ms <= cut.started_at_ms <= int(time.time() * 1000)
    assert preview(prepared, time_text(cut.started_at_ms + 1000)).to == 6


# -- what stands against it


def test_what_another_writer_has_written_since_is_not_removed(prepared: PreparedPipeline) -> None:
    write_deltalake(str(prepared.table(RIGHT)), pa.table({"value": [-1]}), mode="append")
    before = prepared.opened().log.read().entries

    with pytest.raises(MoveRefused, match="right: version 5 was written by another writer"):
        rewound(prepared, "2")

    assert prepared.opened().log.read().entries == before
    shown = preview(prepared, "2")
    assert "written by another writer (WRITE at " in shown.refused[0]
    assert [sink.obstacle is None for sink in shown.sinks] == [True, False]


def test_what_another_writer_wrote_before_the_cut_stays(prepared: PreparedPipeline) -> None:
    rewound(prepared, "1")
    write_deltalake(str(prepared.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    with pytest.raises(MoveRefused, match="another writer"):
        rewound(prepared, "2")
    prepared.recover()
    assert prepared.shown() == [list(range(10)), [-1, *range(10)]]


def test_a_table_that_was_only_compacted_can_be_rewound(prepared: PreparedPipeline) -> None:
    DeltaTable(prepared.table(LEFT)).optimize.compact()

    rewound(prepared, "2")

    assert prepared.shown() == below(20)


def test_files_that_vacuum_has_deleted_are_missed_before_anything_happens(
    prepared: PreparedPipeline,
) -> None:
    left = DeltaTable(prepared.table(LEFT))
    left.optimize.compact()
    left.vacuum(0, dry_run=False, enforce_retention_duration=False)

    with pytest.raises(MoveRefused, match=r"left: part-.* of version 2 is gone .* VACUUM"):
        rewound(prepared, "2")


def test_a_table_that_is_gone_cannot_be_rewound(prepared: PreparedPipeline) -> None:
    shutil.rmtree(prepared.table(LEFT))

    with pytest.raises(MoveRefused, match="left: there is no directory"):
        rewound(prepared, "2")
    assert not prepared.table(LEFT).exists()
    prepared.table(LEFT).mkdir()
    with pytest.raises(MoveRefused, match="there is no table in"):
        rewound(prepared, "2")
    write_deltalake(str(prepared.table(LEFT)), pa.table({"value": [-1]}))
    with pytest.raises(MoveRefused, match="it has been recreated"):
        rewound(prepared, "2")


def test_a_table_that_the_pipeline_itself_recreated_is_not_taken_for_the_old_one(
    prepared: PreparedPipeline,
) -> None:
    shutil.rmtree(prepared.table(LEFT))
    store = prepared.opened()
    sink = prepared.target(LEFT).open(SinkContext(None, store.pipeline, LEFT))
    for number in (7, 8, 9):
        store.log.create(Claim(Slot(number), Generation(number), "again"))
        staged = stage_parquet(prepared, store, sink, LEFT, number)
        sink.commit(grant(store.pipeline, Slot(number), CheckpointId(number)), [staged])
    assert DeltaTable(prepared.table(LEFT)).version() == 3

    with pytest.raises(MoveRefused, match=r"left: .*left is another table than .* recreated"):
        rewound(prepared, "2")
    assert prepared.shown() == [list(range(60, 90)), list(range(50))]


def test_a_damaged_object_is_named(prepared: PreparedPipeline) -> None:
    cut = prepared.opened().manifests.read(CheckpointId(2))
    (blob,) = cut.snapshots[SOURCE].state
    (prepared.store / blob.name).write_text("something else")

    with pytest.raises(MoveRefused, match="objects of the checkpoint are missing or damaged"):
        rewound(prepared, "2")
    (prepared.store / blob.name).unlink()
    with pytest.raises(MoveRefused, match=blob.name):
        rewound(prepared, "2")
    rewound(prepared, "1")


def test_a_damaged_manifest_is_refused_and_the_others_are_not(prepared: PreparedPipeline) -> None:
    path = next(prepared.store.glob("pipelines/*/manifests/*2"))
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(MoveRefused, match="manifest is gone or cannot be read"):
        rewound(prepared, "2")
    rewound(prepared, "1")
    assert prepared.shown() == below(10)


def test_a_damaged_head_is_left_by_a_rewind(prepared: PreparedPipeline) -> None:
    (blob,) = prepared.opened().manifests.read(CheckpointId(5)).snapshots[SOURCE].state
    (prepared.store / blob.name).unlink()
    with pytest.raises(RecoveryError):
        prepared.recover()

    rewound(prepared, SAVEPOINT)

    prepared.recover()
    assert prepared.shown() == below(30)


def test_carried_rows_that_are_gone_are_named(prepared: PreparedPipeline) -> None:
    for schema in prepared.table(LEFT).glob("_cutwater/*/left/g000001/schema-*"):
        schema.unlink()

    with pytest.raises(MoveRefused, match="what sink left staged in batch 3"):
        rewound(prepared, "4")


def test_a_pipeline_that_another_process_runs_is_left_alone(prepared: PreparedPipeline) -> None:
    leases = Leases(LocalBackend(prepared.store), prepared.opened().pipeline)
    leases.beat(Lease("elsewhere", 7, "theirs", int(time.time() * 1000)))

    with pytest.raises(PipelineHeld, match="elsewhere"):
        rewound(prepared, "2")
    assert "elsewhere" in preview(prepared, "2").refused[0]
    done = cutwater.rewind(NAME, to="2", store=prepared.store, yes=True, takeover=True)
    assert done.done
    found = leases.read()
    assert found is not None
    assert (found.process, found.released) == (os.getpid(), True)


def test_a_sink_that_has_moved_since_cannot_be_rewound(prepared: PreparedPipeline) -> None:
    store = prepared.opened()
    elsewhere = {
        LEFT: StoredTarget("delta", str(prepared.directory / "elsewhere")),
        RIGHT: prepared.target(RIGHT).stored(),
    }
    (prepared.directory / "elsewhere").mkdir()
    store.targets.record(Generation(2), elsewhere)
    log = store.log.read()
    store.log.create(Claim(Slot(log.last_slot + 1), Generation(2), "moved"))
    assert log.head is not None
    store.log.create(replace(log.head, slot=Slot(log.last_slot + 2), generation=Generation(2)))

    with pytest.raises(MoveRefused, match=f"left: it wrote to {prepared.table(LEFT)} since then"):
        rewound(prepared, "2")


def test_a_target_that_only_the_users_file_can_open_is_refused_with_the_way_out(
    prepared: PreparedPipeline,
) -> None:
    targets = {LEFT: StoredTarget("queue", "x"), RIGHT: prepared.target(RIGHT).stored()}
    store = prepared.opened()
    store.backend.delete(PipelinePaths(store.pipeline).targets(Generation(1)))
    store.targets.record(Generation(1), targets)

    with pytest.raises(MoveRefused, match=r"left: .* `cutwater run FILE --from`"):
        rewound(prepared, "2")


def test_an_unfinished_rewind_never_restores_another_table(prepared: PreparedPipeline) -> None:
    store = prepared.opened()
    rewound(prepared, "2")
    (prepared.store / f"pipelines/{store.pipeline}/committed/{8:012d}").unlink()
    moved = PreparedPipeline(prepared.directory / "moved")
    moved.directory.mkdir()
    (moved.directory / "store").symlink_to(prepared.store)

    with pytest.raises(RecoveryError, match="takes back sink left at"):
        moved.recover()
    prepared.recover()
    assert prepared.shown() == below(20)


@pytest.mark.parametrize(
    ("store", "pipeline", "to", "said"),
    [
        ("nowhere", NAME, "2", "there is no store with a pipeline in it at"),
        ("store", "order", "2", "it has orders"),
        ("store", NAME, "9", "checkpoint 9 is not there; there are checkpoints 1, 2, 3, 4, 5"),
        ("store", NAME, "after", "and savepoints before"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    prepared: PreparedPipeline, store: str, pipeline: str, to: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        cutwater.rewind(pipeline, to=to, store=prepared.directory / store, yes=True)
    assert not (prepared.directory / "nowhere").exists()


# -- leaving the sinks


def test_sinks_that_are_left_keep_their_rows_and_what_comes_twice_is_said(
    prepared: PreparedPipeline,
) -> None:
    write_deltalake(str(prepared.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    shown = preview(prepared, "2", leave_sinks=True)
    done = rewound(prepared, "2", leave_sinks=True)
    restored = prepared.recover()

    assert shown.refused == ()
    assert [(sink.left, sink.rows_removed) for sink in shown.sinks] == [(True, 30), (True, None)]
    assert done.done
    assert prepared.shown() == [list(range(50)), [-1, *range(50)]]
    assert restored.cut is not None
    assert restored.cut.stream_positions == {"numbers/0": '{"sequence": 20}'}


def test_sinks_that_are_left_need_not_be_there(prepared: PreparedPipeline) -> None:
    shutil.rmtree(prepared.table(LEFT))

    assert rewound(prepared, "2", leave_sinks=True).done
    restored = prepared.recover()

    assert restored.cut is not None
    assert restored.cut.checkpoint_id == 6


def test_another_writer_between_decision_and_restore_keeps_its_rows(
    prepared: PreparedPipeline,
) -> None:
    """The decision stands, the table does not go back, and a second rewind is the way out."""
    store = prepared.opened()
    rewound(prepared, "2")
    for sink in SINKS:
        # As it was before the sinks had acted on the decision.
        (prepared.table(sink) / "_delta_log" / f"{5:020d}.json").unlink()
    (prepared.store / f"pipelines/{store.pipeline}/committed/{8:012d}").unlink()
    write_deltalake(str(prepared.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    with pytest.raises(SinkError, match=r"another writer .* --leave-sinks"):
        prepared.recover()
    rewound(prepared, "2", leave_sinks=True)
    prepared.recover()

    assert prepared.shown() == [list(range(20)), [-1, *range(50)]]


# -- forks


def test_a_fork_begins_with_a_copy_of_everything_the_cut_needs(prepared: PreparedPipeline) -> None:
    before = files_below(prepared.directory)

    fork = cutwater.fork(NAME, "trial", start_from=SAVEPOINT, store=prepared.store)

    after = files_below(prepared.directory)
    assert before.items() <= after.items()
    new = {name for name in after if name not in before}
    assert all(fork.pipeline_id in name or name == "store/names/trial" for name in new)
    store = prepared.opened("trial")
    head = store.log.read().head
    assert head is not None
    cut = store.manifests.read(head.checkpoint_id, head.manifest_sha256)
    assert cut.stream_positions == {"numbers/0": '{"sequence": 30}'}
    assert (cut.kind, cut.name, cut.commit_point) == (CheckpointKind.CHECKPOINT, None, False)
    (blob,) = cut.snapshots[SOURCE].state
    assert blob.name.startswith(f"pipelines/{fork.pipeline_id}/blobs/")
    assert (prepared.store / blob.name).read_text().endswith("\nthe state of checkpoint 3")
    assert (fork.to, fork.objects, fork.size_bytes) == (3, 1, blob.size_bytes)


def test_a_fork_into_another_store_leaves_the_first_untouched(
    prepared: PreparedPipeline, tmp_path: Path
) -> None:
    before = files_below(prepared.store)

    cutwater.fork(NAME, "trial", start_from="2", store=prepared.store, new_store=tmp_path / "other")

    assert files_below(prepared.store) == before
    assert list(list_pipelines(LocalBackend(tmp_path / "other"))) == ["trial"]


def test_a_fork_never_writes_to_its_originals_tables_nor_does_a_fork_of_it(
    prepared: PreparedPipeline,
) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=prepared.store)
    cutwater.fork("trial", "again", start_from="1", store=prepared.store)
    backend = LocalBackend(prepared.store)
    ours = {LEFT: prepared.target(LEFT).stored()}
    free = {LEFT: StoredTarget("delta", "/elsewhere")}

    for name in ("trial", "again"):
        identity = find_pipeline(backend, name)
        assert str(prepared.table(LEFT)) in str(shared_targets(backend, identity, ours))
        assert shared_targets(backend, identity, free) is None
    assert shared_targets(backend, find_pipeline(backend, NAME), ours) is None


def test_a_link_to_the_originals_table_is_the_originals_table(prepared: PreparedPipeline) -> None:
    (prepared.directory / "link").symlink_to(prepared.table(LEFT))
    target = PreparedPipeline(prepared.directory).target(SinkId("link")).stored()

    assert target.place == prepared.target(LEFT).stored().place


def test_a_fork_that_has_never_run_has_no_tables_to_rewind(prepared: PreparedPipeline) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=prepared.store)

    with pytest.raises(MoveRefused, match="does not say where its sinks write; run it once"):
        cutwater.rewind("trial", to="1", store=prepared.store)


def test_a_fork_outlives_what_its_original_deletes(prepared: PreparedPipeline) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=prepared.store)
    original = prepared.opened().pipeline
    shutil.rmtree(prepared.store / "pipelines" / original)

    store = prepared.opened("trial")
    head = store.log.read().head
    assert head is not None
    for snapshot in store.manifests.read(head.checkpoint_id).snapshots.values():
        assert all(store.blobs(Generation(1)).problem(ref) is None for ref in snapshot.blobs)


@pytest.mark.parametrize(
    ("new", "start_from", "said"),
    [
        (NAME, "2", "has a pipeline orders already"),
        ("trial", "9", "checkpoint 9 is not there"),
        ("", "2", "pipeline name"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_before_anything_is_copied(
    prepared: PreparedPipeline, new: str, start_from: str, said: str
) -> None:
    before = files_below(prepared.store)

    with pytest.raises(ConfigError, match=said):
        cutwater.fork(NAME, new, start_from=start_from, store=prepared.store)

    assert files_below(prepared.store) == before


def test_a_recovery_point_cannot_be_forked(prepared: PreparedPipeline) -> None:
    with pytest.raises(MoveRefused, match="recovery point"):
        cutwater.fork(NAME, "trial", start_from="4", store=prepared.store)
    assert list(list_pipelines(LocalBackend(prepared.store))) == [NAME]


def test_a_fork_of_a_manifest_that_cannot_be_read_is_refused(prepared: PreparedPipeline) -> None:
    path = next(prepared.store.glob("pipelines/*/manifests/*2"))
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(MoveRefused, match="manifest is gone or cannot be read"):
        cutwater.fork(NAME, "trial", start_from="2", store=prepared.store)


def test_a_pipeline_without_checkpoints_cannot_be_forked(tmp_path: Path) -> None:
    open_pipeline(LocalBackend(tmp_path / "store"), NAME)

    with pytest.raises(ConfigError, match="orders has never taken a checkpoint"):
        cutwater.fork(NAME, "trial", start_from="2", store=tmp_path / "store")


def test_a_fork_of_a_damaged_cut_is_refused_by_the_objects_name(prepared: PreparedPipeline) -> None:
    (blob,) = prepared.opened().manifests.read(CheckpointId(2)).snapshots[SOURCE].state
    (prepared.store / blob.name).write_text("something else")

    with pytest.raises(MoveRefused, match=blob.name):
        cutwater.fork(NAME, "trial", start_from="2", store=prepared.store)
    assert list(list_pipelines(LocalBackend(prepared.store))) == [NAME]
