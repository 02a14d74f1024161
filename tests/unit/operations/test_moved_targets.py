"""Sinks that write elsewhere than they did: what counts as having written, and where.

A record of targets is only an intention until its generation has decided something. Versions and
staged rows belong to the target they were made at, whatever the sink is called.
"""

from dataclasses import replace

import pytest
from tests.unit.operations.crashing_pipeline import (
    SINKS,
    TARGETS,
    CrashingPipeline,
    VersionedTable,
    check_exactly_once,
    position,
    run_generation,
    start_pipeline,
)

from cutwater.errors import MoveRefused, RecoveryError
from cutwater.ids import Generation, Slot
from cutwater.protocol.decisions import Claim
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.targets import StoredTarget

A, B = SINKS
ELSEWHERE = {**TARGETS, A: StoredTarget("memory", "elsewhere")}


def refused_start(pipeline: CrashingPipeline, generation: int) -> None:
    """Claim and record targets, and die before anything is decided, as a refused build does."""
    store = pipeline.opened()
    log = store.log.read()
    store.log.create(Claim(Slot(log.last_slot + 1), Generation(generation), "refused"))
    store.targets.record(Generation(generation), ELSEWHERE)


def move(pipeline: CrashingPipeline) -> None:
    """Let the first sink write elsewhere from now on."""
    pipeline.targets = ELSEWHERE
    pipeline.tables[A] = VersionedTable(pipeline.backend, A)


def test_a_start_that_was_refused_has_written_nowhere() -> None:
    pipeline = start_pipeline([False, False])
    refused_start(pipeline, 2)

    assert pipeline.opened().targets.newest(pipeline.opened().log.read()) == TARGETS
    pipeline.rewind(0)

    restored = pipeline.recover()
    check_exactly_once(pipeline, restored)
    assert position(restored.cut) == 3


def test_a_generation_that_committed_elsewhere_prevents_a_rewind() -> None:
    pipeline = start_pipeline([False, False])
    move(pipeline)
    run_generation(pipeline, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then, and to another target"):
        pipeline.rewind(0)
    pipeline.targets = TARGETS
    with pytest.raises(MoveRefused, match="a: it wrote to elsewhere since then"):
        pipeline.rewind(0)


def test_a_recovery_point_shows_what_the_targets_before_it_showed() -> None:
    """The version it names is one of another table, which must not be restored to it."""
    pipeline = start_pipeline([False, False])
    move(pipeline)
    pipeline.tables[A].versions = [(), (100,), (100, 101)]
    run_generation(pipeline, [True])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then"):
        pipeline.rewind(2)
    assert pipeline.tables[A].versions[-1] == (100, 101)


def test_what_only_carried_rows_elsewhere_does_not_prevent_a_rewind() -> None:
    pipeline = start_pipeline([False, False])
    before = pipeline.tables[A]
    move(pipeline)
    run_generation(pipeline, [True])
    pipeline.targets = TARGETS
    pipeline.tables[A] = before

    pipeline.rewind(0)

    check_exactly_once(pipeline, pipeline.recover())


@pytest.mark.parametrize("is_point", [True, False])
def test_what_was_staged_at_one_target_is_not_looked_for_at_another(is_point: bool) -> None:
    """Neither rows that are carried nor a commit that is not recorded yet."""
    pipeline = start_pipeline([False, is_point])
    if not is_point:
        slot = pipeline.opened().log.read().last_slot
        pipeline.backend.delete(PipelinePaths(pipeline.opened().pipeline).committed(slot))
    before = pipeline.tables[A]
    move(pipeline)
    pipeline.tables[A].refuses = "problem"

    with pytest.raises(RecoveryError, match=r"sink a at a, and the sink writes to elsewhere now"):
        pipeline.recover()

    assert pipeline.tables[A].versions == [()]
    pipeline.targets = TARGETS
    pipeline.tables[A] = before
    check_exactly_once(pipeline, pipeline.recover())


def test_a_commit_without_rows_is_not_finished_at_another_target() -> None:
    """The version it would record for the checkpoint is one of another table."""
    pipeline = start_pipeline([False, False])
    pipeline.rewind(1, leave_sinks=True)
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).committed(store.log.read().last_slot))
    pipeline.targets = ELSEWHERE

    with pytest.raises(RecoveryError, match="is not committed yet by sink a at a"):
        pipeline.recover()


@pytest.mark.parametrize("is_point", [False, True])
def test_a_sink_that_was_not_there_just_then_is_rewound_to_what_it_showed(is_point: bool) -> None:
    """Not to its beginning: the rows it had then were older than the checkpoint."""
    pipeline = start_pipeline([False, False])
    table = pipeline.tables.pop(A)
    pipeline.targets = {B: TARGETS[B]}
    run_generation(pipeline, [False])
    pipeline.tables[A] = table
    pipeline.targets = TARGETS
    run_generation(pipeline, [is_point])
    shown = table.versions[2]

    if is_point:
        pipeline.rewind(3)
        assert table.versions[-1] == shown == (0, 1, 2, 3, 4, 5)
    pipeline.rewind(2)

    assert table.versions[-1] == shown
    assert pipeline.tables[B].versions[-1] == tuple(range(9))


def test_a_sink_that_has_written_since_and_is_gone_prevents_a_rewind() -> None:
    """Its rows would stay, and come again if it came back."""
    pipeline = start_pipeline([False])
    table, alone = pipeline.tables[A], {B: TARGETS[B]}
    for targets in (alone, TARGETS, alone):
        pipeline.targets = targets
        pipeline.tables = {sink: pipeline.tables.get(sink, table) for sink in targets}
        run_generation(pipeline, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then, and is no longer part"):
        pipeline.rewind(1)

    pipeline.targets = TARGETS
    pipeline.tables[A] = table
    pipeline.rewind(1)
    assert table.versions[-1] == (0, 1, 2)


def test_what_it_showed_is_of_the_target_it_had_before() -> None:
    pipeline = start_pipeline([False])
    del pipeline.tables[A]
    pipeline.targets = {B: TARGETS[B]}
    run_generation(pipeline, [False])
    pipeline.targets = TARGETS
    move(pipeline)
    run_generation(pipeline, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then"):
        pipeline.rewind(1)


def test_targets_that_are_not_recorded_are_not_compared() -> None:
    """A store of the first versions."""
    pipeline = start_pipeline([True])
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).targets(Generation(1)))
    pipeline.targets = {**TARGETS, A: replace(TARGETS[A], uri="elsewhere")}

    check_exactly_once(pipeline, pipeline.recover())
