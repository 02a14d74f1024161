"""Rewinds and forks over a real store and real Delta tables, without Spark.

What a pipeline made by hand must show after each move follows from the numbers in its tables.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.operations.handmade import (
    FIRST_AT_MS,
    NAME,
    SAVEPOINT,
    SINKS,
    SOURCE,
    STEP_MS,
    Made,
    below,
    make,
    stage_by_hand,
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
def made(tmp_path: Path) -> Made:
    return make(tmp_path)


def rewound(made: Made, to: str, *, leave_sinks: bool = False) -> Rewind:
    return cutwater.rewind(NAME, to=to, store=made.store, yes=True, leave_sinks=leave_sinks)


def preview(made: Made, to: str, *, leave_sinks: bool = False) -> Rewind:
    return cutwater.rewind(NAME, to=to, store=made.store, leave_sinks=leave_sinks)


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(directory)): one.read_bytes()
        for one in sorted(directory.rglob("*"))
        if one.is_file()
    }


# -- rewinding


@pytest.mark.parametrize(("to", "shows"), [("1", 10), ("2", 20), (SAVEPOINT, 30), ("5", 50)])
def test_a_rewind_takes_tables_and_pipeline_back_to_the_cut(
    made: Made, to: str, shows: int
) -> None:
    done = rewound(made, to)

    restored = made.recover()

    assert made.shown() == below(shows)
    assert done.done
    assert restored.cut is not None
    assert restored.cut.checkpoint_id == done.checkpoint_id == 6
    assert restored.cut.stream_positions == {"numbers/0": f'{{"sequence": {shows}}}'}
    assert restored.standing.visible == {
        sink: str(DeltaTable(made.table(sink)).version()) for sink in SINKS
    }


def test_a_rewind_to_a_recovery_point_shows_what_was_visible_and_carries_the_rest(
    made: Made,
) -> None:
    rewound(made, "4")

    restored = made.recover()

    assert made.shown() == below(30)
    assert restored.cut is not None
    assert {sink: [one.batch for one in found] for sink, found in restored.cut.carried.items()} == {
        LEFT: [3],
        RIGHT: [3],
    }


def test_going_back_and_forth_ends_where_it_was_told(made: Made) -> None:
    for to, shows in (("1", 10), ("5", 50), ("2", 20), ("6", 10), ("4", 30), ("7", 50)):
        rewound(made, to)
        assert made.shown() == below(shows), to
    log = made.opened().log.read()
    assert [one.kind for one in log.decisions[5:]] == [CheckpointKind.REWIND] * 6
    assert log.generation == 7


def test_a_preview_says_what_happens_to_every_step_source_and_sink_and_does_nothing(
    made: Made,
) -> None:
    before = files_below(made.directory)

    shown = preview(made, "2")

    assert files_below(made.directory) == before
    assert (shown.to, shown.head, shown.undone, shown.done) == (2, 5, (3, 4, 5), False)
    assert [(one.step, one.batch, one.batch_then) for one in shown.steps] == [(SOURCE, 4, 1)]
    assert shown.steps[0].state_bytes > len("the state of checkpoint 2")
    (source,) = shown.sources
    assert (source.position, source.position_then) == ('{"sequence": 50}', '{"sequence": 20}')
    assert [
        (one.sink, one.version, one.version_then, one.rows, one.rows_removed, one.obstacle)
        for one in shown.sinks
    ] == [(LEFT, "4", "2", 50, 30, None), (RIGHT, "4", "2", 50, 30, None)]
    assert shown.refused == ()


def test_a_time_stands_for_the_last_checkpoint_at_or_before_it(made: Made) -> None:
    at = time_text(FIRST_AT_MS + 2 * STEP_MS + 59_000)

    assert preview(made, at).to == 2
    assert preview(made, at.replace(" ", "T")).to == 2
    with pytest.raises(ConfigError, match="no checkpoint began at or before"):
        preview(made, "2001-01-01")


def test_a_rewind_is_taken_at_its_own_time(made: Made) -> None:
    began_ms = int(time.time() * 1000)

    rewound(made, "2")

    cut = made.opened().manifests.read(CheckpointId(6))
    assert began_ms <= cut.started_at_ms <= int(time.time() * 1000)
    assert preview(made, time_text(cut.started_at_ms + 1000)).to == 6


# -- what stands against it


def test_what_somebody_else_has_written_since_is_not_taken_away(made: Made) -> None:
    write_deltalake(str(made.table(RIGHT)), pa.table({"value": [-1]}), mode="append")
    before = made.opened().log.read().entries

    with pytest.raises(MoveRefused, match="right: version 5 was written by somebody else"):
        rewound(made, "2")

    assert made.opened().log.read().entries == before
    shown = preview(made, "2")
    assert "written by somebody else (WRITE at " in shown.refused[0]
    assert [one.obstacle is None for one in shown.sinks] == [True, False]


def test_what_somebody_else_wrote_before_the_cut_stays(made: Made) -> None:
    rewound(made, "1")
    write_deltalake(str(made.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    with pytest.raises(MoveRefused, match="somebody else"):
        rewound(made, "2")
    made.recover()
    assert made.shown() == [list(range(10)), [-1, *range(10)]]


def test_a_table_that_was_only_tidied_up_can_go_back(made: Made) -> None:
    DeltaTable(made.table(LEFT)).optimize.compact()

    rewound(made, "2")

    assert made.shown() == below(20)


def test_files_that_vacuum_has_deleted_are_missed_before_anything_happens(made: Made) -> None:
    left = DeltaTable(made.table(LEFT))
    left.optimize.compact()
    left.vacuum(0, dry_run=False, enforce_retention_duration=False)

    with pytest.raises(MoveRefused, match=r"left: part-.* of version 2 is gone .* VACUUM"):
        rewound(made, "2")


def test_a_table_that_is_gone_cannot_go_back(made: Made) -> None:
    shutil.rmtree(made.table(LEFT))

    with pytest.raises(MoveRefused, match="left: there is no directory"):
        rewound(made, "2")
    assert not made.table(LEFT).exists()
    made.table(LEFT).mkdir()
    with pytest.raises(MoveRefused, match="there is no table in"):
        rewound(made, "2")
    write_deltalake(str(made.table(LEFT)), pa.table({"value": [-1]}))
    with pytest.raises(MoveRefused, match="it has been made anew"):
        rewound(made, "2")


def test_a_table_that_the_pipeline_itself_made_anew_is_not_taken_for_the_old_one(
    made: Made,
) -> None:
    shutil.rmtree(made.table(LEFT))
    store = made.opened()
    sink = made.target(LEFT).open(SinkContext(None, store.pipeline, LEFT))
    for number in (7, 8, 9):
        store.log.create(Claim(Slot(number), Generation(number), "again"))
        staged = stage_by_hand(made, store, sink, LEFT, number)
        sink.commit(grant(store.pipeline, Slot(number), CheckpointId(number)), [staged])
    assert DeltaTable(made.table(LEFT)).version() == 3

    with pytest.raises(MoveRefused, match=r"left: .*left is another table than .* made anew"):
        rewound(made, "2")
    assert made.shown() == [list(range(60, 90)), list(range(50))]


def test_a_damaged_object_is_named(made: Made) -> None:
    cut = made.opened().manifests.read(CheckpointId(2))
    (blob,) = cut.snapshots[SOURCE].state
    (made.store / blob.name).write_text("something else")

    with pytest.raises(MoveRefused, match="objects of the checkpoint are missing or damaged"):
        rewound(made, "2")
    (made.store / blob.name).unlink()
    with pytest.raises(MoveRefused, match=blob.name):
        rewound(made, "2")
    rewound(made, "1")


def test_a_damaged_manifest_is_refused_and_the_others_are_not(made: Made) -> None:
    path = next(made.store.glob("pipelines/*/manifests/*2"))
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(MoveRefused, match="manifest is gone or cannot be read"):
        rewound(made, "2")
    rewound(made, "1")
    assert made.shown() == below(10)


def test_a_damaged_head_is_left_by_a_rewind(made: Made) -> None:
    (blob,) = made.opened().manifests.read(CheckpointId(5)).snapshots[SOURCE].state
    (made.store / blob.name).unlink()
    with pytest.raises(RecoveryError):
        made.recover()

    rewound(made, SAVEPOINT)

    made.recover()
    assert made.shown() == below(30)


def test_carried_rows_that_are_gone_are_named(made: Made) -> None:
    for schema in made.table(LEFT).glob("_cutwater/*/left/g000001/schema-*"):
        schema.unlink()

    with pytest.raises(MoveRefused, match="what sink left staged in batch 3"):
        rewound(made, "4")


def test_a_pipeline_that_somebody_runs_is_left_alone(made: Made) -> None:
    leases = Leases(LocalBackend(made.store), made.opened().pipeline)
    leases.beat(Lease("elsewhere", 7, "theirs", int(time.time() * 1000)))

    with pytest.raises(PipelineHeld, match="elsewhere"):
        rewound(made, "2")
    assert "elsewhere" in preview(made, "2").refused[0]
    done = cutwater.rewind(NAME, to="2", store=made.store, yes=True, takeover=True)
    assert done.done
    found = leases.read()
    assert found is not None
    assert (found.process, found.released) == (os.getpid(), True)


def test_a_sink_that_has_moved_since_cannot_go_back(made: Made) -> None:
    store = made.opened()
    elsewhere = {
        LEFT: StoredTarget("delta", str(made.directory / "elsewhere")),
        RIGHT: made.target(RIGHT).stored(),
    }
    (made.directory / "elsewhere").mkdir()
    store.targets.record(Generation(2), elsewhere)
    log = store.log.read()
    store.log.create(Claim(Slot(log.last_slot + 1), Generation(2), "moved"))
    assert log.head is not None
    store.log.create(replace(log.head, slot=Slot(log.last_slot + 2), generation=Generation(2)))

    with pytest.raises(MoveRefused, match=f"left: it wrote to {made.table(LEFT)} since then"):
        rewound(made, "2")


def test_a_target_that_only_the_users_file_can_open_is_refused_with_the_way_out(
    made: Made,
) -> None:
    targets = {LEFT: StoredTarget("queue", "x"), RIGHT: made.target(RIGHT).stored()}
    store = made.opened()
    store.backend.delete(PipelinePaths(store.pipeline).targets(Generation(1)))
    store.targets.record(Generation(1), targets)

    with pytest.raises(MoveRefused, match=r"left: .* `cutwater run FILE --from`"):
        rewound(made, "2")


def test_an_unfinished_rewind_never_takes_another_table_back(made: Made) -> None:
    store = made.opened()
    rewound(made, "2")
    (made.store / f"pipelines/{store.pipeline}/committed/{8:012d}").unlink()
    moved = Made(made.directory / "moved")
    moved.directory.mkdir()
    (moved.directory / "store").symlink_to(made.store)

    with pytest.raises(RecoveryError, match="takes back sink left at"):
        moved.recover()
    made.recover()
    assert made.shown() == below(20)


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
    made: Made, store: str, pipeline: str, to: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        cutwater.rewind(pipeline, to=to, store=made.directory / store, yes=True)
    assert not (made.directory / "nowhere").exists()


# -- leaving the sinks


def test_sinks_that_are_left_keep_their_rows_and_what_comes_twice_is_said(made: Made) -> None:
    write_deltalake(str(made.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    shown = preview(made, "2", leave_sinks=True)
    done = rewound(made, "2", leave_sinks=True)
    restored = made.recover()

    assert shown.refused == ()
    assert [(one.left, one.rows_removed) for one in shown.sinks] == [(True, 30), (True, None)]
    assert done.done
    assert made.shown() == [list(range(50)), [-1, *range(50)]]
    assert restored.cut is not None
    assert restored.cut.stream_positions == {"numbers/0": '{"sequence": 20}'}


def test_sinks_that_are_left_need_not_be_there(made: Made) -> None:
    shutil.rmtree(made.table(LEFT))

    assert rewound(made, "2", leave_sinks=True).done
    restored = made.recover()

    assert restored.cut is not None
    assert restored.cut.checkpoint_id == 6


def test_who_writes_between_decision_and_restore_keeps_its_rows(made: Made) -> None:
    """The decision stands, the table does not go back, and a second rewind is the way out."""
    store = made.opened()
    rewound(made, "2")
    for sink in SINKS:
        # As it was before the sinks had acted on the decision.
        (made.table(sink) / "_delta_log" / f"{5:020d}.json").unlink()
    (made.store / f"pipelines/{store.pipeline}/committed/{8:012d}").unlink()
    write_deltalake(str(made.table(RIGHT)), pa.table({"value": [-1]}), mode="append")

    with pytest.raises(SinkError, match=r"somebody else .* --leave-sinks"):
        made.recover()
    rewound(made, "2", leave_sinks=True)
    made.recover()

    assert made.shown() == [list(range(20)), [-1, *range(50)]]


# -- forks


def test_a_fork_begins_with_a_copy_of_everything_the_cut_needs(made: Made) -> None:
    before = files_below(made.directory)

    fork = cutwater.fork(NAME, "trial", start_from=SAVEPOINT, store=made.store)

    after = files_below(made.directory)
    assert before.items() <= after.items()
    new = {name for name in after if name not in before}
    assert all(fork.pipeline_id in name or name == "store/names/trial" for name in new)
    store = made.opened("trial")
    head = store.log.read().head
    assert head is not None
    cut = store.manifests.read(head.checkpoint_id, head.manifest_sha256)
    assert cut.stream_positions == {"numbers/0": '{"sequence": 30}'}
    assert (cut.kind, cut.name, cut.commit_point) == (CheckpointKind.CHECKPOINT, None, False)
    (blob,) = cut.snapshots[SOURCE].state
    assert blob.name.startswith(f"pipelines/{fork.pipeline_id}/blobs/")
    assert (made.store / blob.name).read_text().endswith("\nthe state of checkpoint 3")
    assert (fork.to, fork.objects, fork.size_bytes) == (3, 1, blob.size_bytes)


def test_a_fork_into_another_store_leaves_the_first_untouched(made: Made, tmp_path: Path) -> None:
    before = files_below(made.store)

    cutwater.fork(NAME, "trial", start_from="2", store=made.store, new_store=tmp_path / "other")

    assert files_below(made.store) == before
    assert list(list_pipelines(LocalBackend(tmp_path / "other"))) == ["trial"]


def test_a_fork_never_writes_to_its_originals_tables_nor_does_a_fork_of_it(made: Made) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=made.store)
    cutwater.fork("trial", "again", start_from="1", store=made.store)
    backend = LocalBackend(made.store)
    ours = {LEFT: made.target(LEFT).stored()}
    free = {LEFT: StoredTarget("delta", "/elsewhere")}

    for name in ("trial", "again"):
        identity = find_pipeline(backend, name)
        assert str(made.table(LEFT)) in str(shared_targets(backend, identity, ours))
        assert shared_targets(backend, identity, free) is None
    assert shared_targets(backend, find_pipeline(backend, NAME), ours) is None


def test_a_link_to_the_originals_table_is_the_originals_table(made: Made) -> None:
    (made.directory / "link").symlink_to(made.table(LEFT))
    target = Made(made.directory).target(SinkId("link")).stored()

    assert target.place == made.target(LEFT).stored().place


def test_a_fork_that_has_never_run_has_no_tables_to_take_back(made: Made) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=made.store)

    with pytest.raises(MoveRefused, match="does not say where its sinks write; run it once"):
        cutwater.rewind("trial", to="1", store=made.store)


def test_a_fork_outlives_what_its_original_deletes(made: Made) -> None:
    cutwater.fork(NAME, "trial", start_from="2", store=made.store)
    original = made.opened().pipeline
    shutil.rmtree(made.store / "pipelines" / original)

    store = made.opened("trial")
    head = store.log.read().head
    assert head is not None
    for one in store.manifests.read(head.checkpoint_id).snapshots.values():
        assert all(store.blobs(Generation(1)).problem(ref) is None for ref in one.blobs)


@pytest.mark.parametrize(
    ("new", "start_from", "said"),
    [
        (NAME, "2", "has a pipeline orders already"),
        ("trial", "9", "checkpoint 9 is not there"),
        ("", "2", "pipeline name"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_before_anything_is_copied(
    made: Made, new: str, start_from: str, said: str
) -> None:
    before = files_below(made.store)

    with pytest.raises(ConfigError, match=said):
        cutwater.fork(NAME, new, start_from=start_from, store=made.store)

    assert files_below(made.store) == before


def test_a_recovery_point_cannot_be_forked(made: Made) -> None:
    with pytest.raises(MoveRefused, match="recovery point"):
        cutwater.fork(NAME, "trial", start_from="4", store=made.store)
    assert list(list_pipelines(LocalBackend(made.store))) == [NAME]


def test_a_fork_of_a_manifest_that_cannot_be_read_is_refused(made: Made) -> None:
    path = next(made.store.glob("pipelines/*/manifests/*2"))
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(MoveRefused, match="manifest is gone or cannot be read"):
        cutwater.fork(NAME, "trial", start_from="2", store=made.store)


def test_a_pipeline_without_checkpoints_cannot_be_forked(tmp_path: Path) -> None:
    open_pipeline(LocalBackend(tmp_path / "store"), NAME)

    with pytest.raises(ConfigError, match="orders has never taken a checkpoint"):
        cutwater.fork(NAME, "trial", start_from="2", store=tmp_path / "store")


def test_a_fork_of_a_damaged_cut_is_refused_by_the_objects_name(made: Made) -> None:
    (blob,) = made.opened().manifests.read(CheckpointId(2)).snapshots[SOURCE].state
    (made.store / blob.name).write_text("something else")

    with pytest.raises(MoveRefused, match=blob.name):
        cutwater.fork(NAME, "trial", start_from="2", store=made.store)
    assert list(list_pipelines(LocalBackend(made.store))) == [NAME]
