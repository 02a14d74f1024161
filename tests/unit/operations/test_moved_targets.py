"""Sinks that write elsewhere than they did: what counts as having written, and where.

A record of targets is only an intention until its generation has decided something. Versions and
staged rows belong to the target they were made at, whatever the sink is called.
"""

from dataclasses import replace

import pytest
from tests.unit.operations.mortal import (
    SINKS,
    TARGETS,
    Table,
    World,
    begin,
    check_exact,
    go_on,
    position,
)

from cutwater.errors import MoveRefused, RecoveryError
from cutwater.ids import Generation, Slot
from cutwater.protocol.decisions import Claim
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.targets import StoredTarget

A, B = SINKS
ELSEWHERE = {**TARGETS, A: StoredTarget("memory", "elsewhere")}


def refused_start(world: World, generation: int) -> None:
    """Claim and record targets, and die before anything is decided, as a refused build does."""
    store = world.opened()
    log = store.log.read()
    store.log.create(Claim(Slot(log.last_slot + 1), Generation(generation), "refused"))
    store.targets.record(Generation(generation), ELSEWHERE)


def move(world: World) -> None:
    """Let the first sink write elsewhere from now on."""
    world.targets = ELSEWHERE
    world.tables[A] = Table(world.backend, A)


def test_a_start_that_was_refused_has_written_nowhere() -> None:
    world = begin([False, False])
    refused_start(world, 2)

    assert world.opened().targets.newest(world.opened().log.read()) == TARGETS
    world.rewind(0)

    restored = world.recover()
    check_exact(world, restored)
    assert position(restored.cut) == 3


def test_a_generation_that_committed_elsewhere_stands_against_going_back() -> None:
    world = begin([False, False])
    move(world)
    go_on(world, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then, and to another target"):
        world.rewind(0)
    world.targets = TARGETS
    with pytest.raises(MoveRefused, match="a: it wrote to elsewhere since then"):
        world.rewind(0)


def test_a_recovery_point_shows_what_the_targets_before_it_showed() -> None:
    """The version it names is one of another table, which must not be taken back by it."""
    world = begin([False, False])
    move(world)
    world.tables[A].versions = [(), (100,), (100, 101)]
    go_on(world, [True])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then"):
        world.rewind(2)
    assert world.tables[A].versions[-1] == (100, 101)


def test_what_only_carried_rows_elsewhere_does_not_stand_against_going_back() -> None:
    world = begin([False, False])
    before = world.tables[A]
    move(world)
    go_on(world, [True])
    world.targets = TARGETS
    world.tables[A] = before

    world.rewind(0)

    check_exact(world, world.recover())


@pytest.mark.parametrize("is_point", [True, False])
def test_what_was_staged_at_one_target_is_not_looked_for_at_another(is_point: bool) -> None:
    """Neither rows that are carried nor a commit that is not recorded yet."""
    world = begin([False, is_point])
    if not is_point:
        slot = world.opened().log.read().last_slot
        world.backend.delete(PipelinePaths(world.opened().pipeline).committed(slot))
    before = world.tables[A]
    move(world)
    world.tables[A].refuses = "problem"

    with pytest.raises(RecoveryError, match=r"sink a at a, and the sink writes to elsewhere now"):
        world.recover()

    assert world.tables[A].versions == [()]
    world.targets = TARGETS
    world.tables[A] = before
    check_exact(world, world.recover())


def test_a_commit_without_rows_is_not_finished_at_another_target() -> None:
    """The version it would record for the checkpoint is one of another table."""
    world = begin([False, False])
    world.rewind(1, leave_sinks=True)
    store = world.opened()
    world.backend.delete(PipelinePaths(store.pipeline).committed(store.log.read().last_slot))
    world.targets = ELSEWHERE

    with pytest.raises(RecoveryError, match="is not committed yet by sink a at a"):
        world.recover()


@pytest.mark.parametrize("is_point", [False, True])
def test_a_sink_that_was_not_there_just_then_goes_back_to_what_it_showed(is_point: bool) -> None:
    """Not to its beginning: the rows it had then were older than the checkpoint."""
    world = begin([False, False])
    table = world.tables.pop(A)
    world.targets = {B: TARGETS[B]}
    go_on(world, [False])
    world.tables[A] = table
    world.targets = TARGETS
    go_on(world, [is_point])
    shown = table.versions[2]

    if is_point:
        world.rewind(3)
        assert table.versions[-1] == shown == (0, 1, 2, 3, 4, 5)
    world.rewind(2)

    assert table.versions[-1] == shown
    assert world.tables[B].versions[-1] == tuple(range(9))


def test_a_sink_that_has_written_since_and_is_gone_stands_against_going_back() -> None:
    """Its rows would stay, and come again if it came back."""
    world = begin([False])
    table, alone = world.tables[A], {B: TARGETS[B]}
    for targets in (alone, TARGETS, alone):
        world.targets = targets
        world.tables = {sink: world.tables.get(sink, table) for sink in targets}
        go_on(world, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then, and is no longer part"):
        world.rewind(1)

    world.targets = TARGETS
    world.tables[A] = table
    world.rewind(1)
    assert table.versions[-1] == (0, 1, 2)


def test_what_it_showed_is_of_the_target_it_had_before() -> None:
    world = begin([False])
    del world.tables[A]
    world.targets = {B: TARGETS[B]}
    go_on(world, [False])
    world.targets = TARGETS
    move(world)
    go_on(world, [False])

    with pytest.raises(MoveRefused, match="a: it wrote to a since then"):
        world.rewind(1)


def test_targets_that_nobody_has_recorded_are_not_compared() -> None:
    """A store of the first versions."""
    world = begin([True])
    store = world.opened()
    world.backend.delete(PipelinePaths(store.pipeline).targets(Generation(1)))
    world.targets = {**TARGETS, A: replace(TARGETS[A], uri="elsewhere")}

    check_exact(world, world.recover())
