"""Retention: what may be deleted, and that what is still needed never is."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    GENERATION,
    T,
    barrier,
    blob,
    claim,
    committable,
    cut,
    decision,
)

from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Decision, LogView
from cutwater.protocol.messages import Flag
from cutwater.protocol.retention import (
    RetentionPlan,
    StoredObject,
    kept,
    plan_retention,
    reusable,
    staged_to_keep,
)

OLDER = Generation(GENERATION - 1)


def log(*entries: Decision) -> LogView:
    """A log that begins with a claim in slot 1."""
    return LogView((claim(1, generation=GENERATION), *entries))


def cuts(*checkpoint_ids: int) -> dict[CheckpointId, Cut]:
    """Cuts of which each has its own state and its own committable."""
    return {
        CheckpointId(checkpoint_id): cut(checkpoint_id, batch=checkpoint_id)
        for checkpoint_id in checkpoint_ids
    }


HISTORY = log(*(decision(slot) for slot in range(2, 7)))
"""Checkpoints 2 to 6, decided in the slots of the same numbers."""


def blobs(*names: str, generation: Generation = GENERATION) -> tuple[StoredObject, ...]:
    """Objects of snapshots."""
    return tuple(StoredObject(name, generation) for name in names)


def staged(*names: str, generation: Generation = GENERATION) -> tuple[StoredObject, ...]:
    """Objects that a sink's writer has staged."""
    return tuple(StoredObject(name, generation, staged=True) for name in names)


def plan(
    keep: tuple[Decision, ...],
    stored: dict[CheckpointId, Cut],
    objects: tuple[StoredObject, ...] = (),
    *,
    history: LogView = HISTORY,
    committed_through: int = 99,
) -> RetentionPlan:
    return plan_retention(
        history,
        keep,
        stored,
        objects,
        committed_through=Slot(committed_through),
        generation=GENERATION,
    )


# -- what stays


def test_the_newest_decisions_stay() -> None:
    entries = [decision(slot) for slot in range(2, 7)]

    assert kept(log(*entries), Slot(6), 2) == (decision(5), decision(6))


def test_savepoints_stay_for_ever_and_do_not_count() -> None:
    saved = decision(2, kind=CheckpointKind.SAVEPOINT)
    entries = (saved, decision(3), decision(4), decision(5))

    assert kept(log(*entries), Slot(5), 2) == (saved, decision(4), decision(5))


def test_a_savepoint_that_was_given_up_stays_only_as_long_as_it_is_needed() -> None:
    saved = decision(2, kind=CheckpointKind.SAVEPOINT)
    given_up = (saved.checkpoint_id,)

    assert kept(log(saved), Slot(2), 1, given_up) == (saved,)
    assert kept(log(saved, decision(3)), Slot(3), 1, given_up) == (decision(3),)
    assert kept(log(saved, decision(3)), Slot(1), 1, given_up) == (saved, decision(3))


def test_the_decision_the_pipeline_stands_on_stays_also_as_a_savepoint() -> None:
    """Invariant 9."""
    head = decision(4, kind=CheckpointKind.SAVEPOINT)

    assert kept(log(decision(2), decision(3), head), Slot(4), 1) == (decision(3), head)


def test_a_decision_whose_sinks_may_not_have_acted_stays() -> None:
    """Rule F8: prune never passes the commit floor."""
    entries = (decision(2), decision(3), decision(4))

    assert kept(log(*entries), Slot(2), 1) == (decision(3), decision(4))


def test_a_rewind_stays_because_it_is_the_newest_not_because_of_its_number() -> None:
    """Rule F13: retention follows the log; the pipeline stands on the rewind."""
    rewind = decision(5, 9, kind=CheckpointKind.REWIND, origin=2)
    entries = (decision(2, 5), decision(3, 7), decision(4, 8), rewind)

    assert kept(log(*entries), Slot(5), 1) == (rewind,)


def test_a_decision_superseded_by_a_rewind_does_not_stay_for_its_sinks() -> None:
    rewind = decision(4, kind=CheckpointKind.REWIND, origin=2)
    entries = (decision(2), decision(3), rewind)

    assert kept(log(*entries), Slot(2), 1) == (rewind,)


def test_nothing_stays_of_an_empty_log() -> None:
    assert kept(LogView(), Slot(0), 3) == ()


# -- what goes


def test_manifests_of_other_cuts_go_oldest_first() -> None:
    removal = plan((decision(5),), cuts(2, 5, 4, 3))

    assert removal.manifests == (2, 3, 4)


def test_objects_that_no_kept_cut_names_go_in_a_fixed_order() -> None:
    objects = blobs("table-2", "orders-5", "table-5", "orders-2", "of-an-attempt-that-failed")

    removal = plan((decision(5),), cuts(2, 5), objects)

    assert removal.objects == ("of-an-attempt-that-failed", "orders-2", "table-2")


def test_an_object_that_a_kept_cut_shares_stays() -> None:
    """Invariant 9: the lineage of incremental checkpoints."""
    shared = replace(cut(2, batch=2), checkpoint_id=CheckpointId(5))
    stored = {**cuts(2), CheckpointId(5): shared}

    assert plan((decision(5),), stored, blobs("orders-2", "table-2")).objects == ()


def test_the_objects_of_a_rewinds_target_stay_while_the_pipeline_stands_on_it() -> None:
    """Rule F13: keeping "the newest 3" deleted what the pipeline stood on."""
    rewind = decision(4, 9, kind=CheckpointKind.REWIND, origin=2)
    history = log(decision(2), decision(3), rewind)
    again = replace(cut(2, batch=2), checkpoint_id=CheckpointId(9))
    stored = {**cuts(2, 3), CheckpointId(9): again}

    removal = plan(
        kept(history, Slot(4), 1),
        stored,
        blobs("orders-2", "table-2", "orders-3"),
        history=history,
    )

    assert removal == RetentionPlan((CheckpointId(2), CheckpointId(3)), ("orders-3",))


def test_what_sinks_have_not_committed_stays() -> None:
    """Rule F8 (d), whichever generation staged it."""
    objects = (*staged("t-5"), *staged("t-5", generation=OLDER))

    assert plan((decision(5),), cuts(5), objects, committed_through=4).objects == ()


def test_what_sinks_have_committed_is_theirs() -> None:
    objects = staged("t-5", generation=OLDER)

    assert plan((decision(5),), cuts(5), objects, committed_through=5).objects == ("t-5",)


def test_what_a_recovery_point_carries_stays() -> None:
    """Rule F3."""
    carrying = {CheckpointId(5): cut(5, batch=5, commit_point=False)}

    assert plan((decision(5),), carrying, staged("t-5", generation=OLDER)).objects == ()


def test_what_a_rewind_carries_stays() -> None:
    """Rule F3 and F13."""
    rewind = decision(4, 9, kind=CheckpointKind.REWIND, origin=2)
    again = replace(cut(9, batch=2, commit_point=False), commit_point=True)

    removal = plan(
        (rewind,),
        {CheckpointId(9): again},
        staged("t-2", generation=OLDER),
        history=log(decision(2), decision(3), rewind),
    )

    assert removal.objects == ()


def test_what_a_committed_and_pruned_cut_staged_goes() -> None:
    assert plan((decision(5),), cuts(2, 5), staged("t-2")).objects == ("t-2",)


def test_what_the_running_generation_has_staged_is_left_to_the_next_cut() -> None:
    """Rule F8: no decided cut has held these rows, whatever an undecided manifest names."""
    undecided = {CheckpointId(8): cut(8, batch=8)}

    removal = plan((decision(5),), {**cuts(5), **undecided}, staged("t-8", "t-9"))

    assert removal == RetentionPlan((CheckpointId(8),), ())


def test_staged_rows_of_an_earlier_generation_are_deleted_if_no_cut_needs_them() -> None:
    assert plan((decision(5),), cuts(5), staged("t-9", generation=OLDER)).objects == ("t-9",)


def test_nothing_is_deleted_while_the_manifest_of_a_kept_cut_cannot_be_read() -> None:
    """Invariant 7 and 9: unreadable is not "names nothing"."""
    objects = blobs("orders-5", "table-5", generation=OLDER)

    assert plan((decision(5),), cuts(2), objects) == RetentionPlan((), (), (CheckpointId(5),))


def test_a_fenced_generation_plans_nothing() -> None:
    """Rule F7: what it sees may be its successor's."""
    history = LogView((*HISTORY.entries, claim(7, generation=GENERATION + 1)))

    assert plan((decision(6),), cuts(2, 6), blobs("x"), history=history) == RetentionPlan((), ())


def test_what_a_later_generation_wrote_is_left_alone() -> None:
    """Rule F7."""
    later = Generation(GENERATION + 1)
    stored = {**cuts(6), CheckpointId(9): replace(cut(9), generation=later)}

    planned = plan((decision(6),), stored, blobs("theirs", generation=later))

    assert planned == RetentionPlan((), ())


# -- what need not be stored again


def test_objects_that_kept_cuts_name_are_reused_by_content() -> None:
    """Rule F7: a reference set, not an existence test."""
    found_again = reusable(cuts(2).values(), barrier(), incremental=True)

    assert found_again == {
        "sha-orders-2": blob("orders-2", 5),
        "sha-table-2": blob("table-2", 7),
    }


@pytest.mark.parametrize("flags", [Flag.FULL_SNAPSHOT, Flag.FULL_SNAPSHOT | Flag.DRAIN])
def test_a_checkpoint_that_stands_alone_reuses_nothing(flags: Flag) -> None:
    """Rule F30 and seed 003 M7: FULL_SNAPSHOT had no interpreter."""
    assert reusable(cuts(2).values(), barrier(flags=flags), incremental=True) == {}


def test_nothing_is_reused_when_checkpoints_are_not_incremental() -> None:
    """Seed 001 H9: `incremental` was never read."""
    assert reusable(cuts(2).values(), barrier(), incremental=False) == {}


def test_nothing_is_reused_before_the_first_cut() -> None:
    assert reusable((), barrier(), incremental=True) == {}


# -- what sinks have staged


def test_sinks_keep_what_a_cut_carries_although_a_later_cut_has_committed_it() -> None:
    carries = cut(2, commit_point=False, batch=2)
    commits = replace(cut(3, batch=3), commit={T: (*carries.carried[T], committable(T, 3))})

    keep = staged_to_keep(HISTORY, [carries, commits], Slot(3))

    assert keep == {T: carries.carried[T]}


def test_sinks_keep_what_is_decided_until_it_is_recorded() -> None:
    recorded, waiting, undecided = cut(2, batch=2), cut(3, batch=3), cut(40, batch=40)

    keep = staged_to_keep(HISTORY, [recorded, waiting, undecided], Slot(2))

    assert keep == {T: (committable(T, 3), committable(T, 40))}
