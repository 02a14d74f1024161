"""Rewind and fork: proven before they are decided, and forward in the log like everything else."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    ORDERS,
    PIPELINE,
    T,
    claim,
    committable,
    cut,
    decision,
    source_snapshot,
)

from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.commit import CommitSink, Committer
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import LogView
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.options import CommitOptions
from cutwater.protocol.recovery import Damage
from cutwater.protocol.rewind import (
    Refused,
    RewindFacts,
    RewindRefusal,
    plan_fork,
    plan_rewind,
    why_unrecorded,
)

TARGET = decision(5, 4)
FACTS = RewindFacts(target=TARGET, cut=cut(4), committed={T: "v4"})
BARE = replace(
    cut(4),
    snapshots={ORDERS: replace(source_snapshot(batch=2), state=())},
    identities={ORDERS: StepIdentity(is_query=True)},
)
"""A cut that was decided without the files of a query."""
AT_RECOVERY_POINT = RewindFacts(
    target=decision(5, 4, commit_point=False), cut=cut(4, commit_point=False)
)


def planned(facts: RewindFacts) -> Cut:
    plan = plan_rewind(facts, CheckpointId(10), Generation(9))
    assert isinstance(plan, Cut)
    return plan


def refused(facts: RewindFacts) -> Refused:
    plan = plan_rewind(facts, CheckpointId(10), Generation(9))
    assert isinstance(plan, Refused)
    return plan


def test_why_a_commit_is_not_recorded_is_said_as_it_is() -> None:
    rewind = decision(4, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1), decision(2), decision(3), rewind, decision(5)))

    assert why_unrecorded(log, decision(5), Slot(4)) is RewindRefusal.NOT_COMMITTED
    assert why_unrecorded(log, decision(3), Slot(2)) is RewindRefusal.NEVER_COMMITTED
    assert why_unrecorded(log, decision(2), Slot(4)) is RewindRefusal.RECORD_LOST
    unrecorded = replace(FACTS, committed=None, unrecorded=RewindRefusal.NEVER_COMMITTED)
    assert refused(unrecorded).reason is RewindRefusal.NEVER_COMMITTED


def test_a_sink_that_the_cut_does_not_know_is_rewound_to_what_it_showed_before() -> None:
    known = replace(FACTS, sinks=(T, SinkId("u"), SinkId("v")), before={SinkId("u"): "u3"})

    assert planned(known).restores == {T: "v4", SinkId("u"): "u3", SinkId("v"): None}


def test_a_rewind_is_a_new_decision_with_the_content_of_the_old() -> None:
    """Rule F13: 10 := content of 4."""
    rewind = planned(FACTS)

    assert (rewind.checkpoint_id, rewind.generation) == (10, 9)
    assert rewind.kind is CheckpointKind.REWIND
    assert rewind.origin == TARGET.slot
    assert rewind.snapshots == cut(4).snapshots


def test_a_rewind_takes_the_sinks_back_to_what_they_showed() -> None:
    """Rule F13: the version in the record of the old commit."""
    rewind = planned(FACTS)

    assert rewind.restores == rewind.visible == {T: "v4"}
    assert rewind.commit == {T: ()}
    assert rewind.commit_point


def test_the_decision_of_a_rewind_makes_sinks_restore() -> None:
    """Rule F13, through the committer."""
    rewind = planned(FACTS)

    commands = Committer(PIPELINE, CommitOptions()).decided(TARGET.slot, rewind, 0)

    assert [
        (command.restore, command.version, command.committables)
        for command in commands
        if isinstance(command, CommitSink)
    ] == [(True, "v4", ())]


def test_a_rewind_to_a_recovery_point_restores_what_was_visible_then() -> None:
    """Rule F3 and F13: and keeps what it carried."""
    rewind = planned(AT_RECOVERY_POINT)

    assert rewind.restores == {T: "v3"}
    assert rewind.carried == {T: (committable(T, 0),)}
    assert rewind.commit_point


def test_a_rewind_to_a_savepoint_is_no_savepoint() -> None:
    named = replace(cut(4, kind=CheckpointKind.SAVEPOINT), name="before-upgrade")

    rewind = planned(replace(FACTS, cut=named))

    assert rewind.name is None


def test_a_rewind_may_leave_the_sinks_as_they_are() -> None:
    """Rule F13: `--leave-sinks`, which says "duplicates"."""
    stuck = replace(FACTS, cannot_restore={T: "vacuumed"}, leave_sinks=True)

    rewind = planned(stuck)

    assert rewind.restores == {}
    assert rewind.commit == {T: ()}


@pytest.mark.parametrize(
    ("facts", "refusal"),
    [
        (replace(FACTS, cut=None), Refused(RewindRefusal.MANIFEST_UNREADABLE)),
        (
            replace(FACTS, cut=BARE),
            Refused(
                RewindRefusal.OBJECTS_DAMAGED,
                ("the state of step orders: no file was stored, and batch 2 was committed",),
            ),
        ),
        (
            replace(FACTS, damages=(Damage("blobs/x", "missing"),)),
            Refused(RewindRefusal.OBJECTS_DAMAGED, ("blobs/x: missing",)),
        ),
        (
            replace(FACTS, forgotten={"kafka/0": "expired"}),
            Refused(RewindRefusal.SOURCE_FORGOT, ("kafka/0: expired",)),
        ),
        (replace(FACTS, committed=None), Refused(RewindRefusal.NOT_COMMITTED)),
        (
            replace(FACTS, cannot_restore={T: "vacuumed"}),
            Refused(RewindRefusal.SINK_CANNOT_RESTORE, ("t: vacuumed",)),
        ),
    ],
    ids=["unreadable", "without state", "damaged", "forgotten", "uncommitted", "cannot restore"],
)
def test_a_rewind_that_cannot_be_finished_is_not_begun(
    facts: RewindFacts, refusal: Refused
) -> None:
    """Rule F13: everything is proven before the decision."""
    assert refused(facts) == refusal


def test_nothing_is_forked_from_a_cut_without_the_state_of_a_query() -> None:
    assert plan_fork(BARE) == refused(replace(FACTS, cut=BARE))


def test_leaving_the_sinks_does_not_help_a_source_that_forgot() -> None:
    facts = replace(FACTS, forgotten={"kafka/0": "expired"}, leave_sinks=True)

    assert refused(facts).reason is RewindRefusal.SOURCE_FORGOT


def test_a_sink_that_is_gone_does_not_stand_against_a_rewind_that_leaves_sinks() -> None:
    """Rule F13: nothing would be rolled back."""
    other = SinkId("other")
    gone = replace(FACTS, sinks=(other,), leave_sinks=True)

    assert planned(gone).commit == {other: ()}


def test_a_sink_that_is_gone_and_whose_output_is_carried_stands_against_any_rewind() -> None:
    """Rule F3: it would never be committed."""
    gone = replace(AT_RECOVERY_POINT, sinks=(SinkId("other"),), leave_sinks=True)

    assert refused(gone).reason is RewindRefusal.SINK_GONE


# -- forks


def forked(of: Cut) -> Cut:
    plan = plan_fork(of)
    assert isinstance(plan, Cut)
    return plan


def test_a_fork_begins_from_the_same_cut_with_nothing_to_commit() -> None:
    """Rule F14: it must never touch its parent's tables."""
    fork = forked(cut(4))

    assert fork.snapshots == cut(4).snapshots
    assert (fork.commit, fork.carried, fork.restores) == ({}, {}, {})
    assert fork.visible == {T: None}
    assert not fork.commit_point


def test_a_fork_begins_a_history_of_its_own() -> None:
    """Rule F14."""
    rewind = planned(FACTS)

    fork = forked(rewind)

    assert (fork.checkpoint_id, fork.generation, fork.origin) == (1, 1, None)


def test_a_fork_of_a_savepoint_begins_with_a_checkpoint_that_may_be_pruned() -> None:
    """The savepoint belongs to the user who took it, in the original pipeline."""
    savepoint = replace(cut(4), kind=CheckpointKind.SAVEPOINT, name="before the change")

    fork = forked(savepoint)

    assert (fork.kind, fork.name) == (CheckpointKind.CHECKPOINT, None)


def test_a_fork_into_the_same_tables_is_refused() -> None:
    """Rule F14."""
    assert plan_fork(cut(4), (SinkId("t"),)) == Refused(RewindRefusal.SAME_TARGET, ("t",))


def test_a_fork_of_a_cut_that_still_carries_output_is_refused() -> None:
    """Rule F3 and F14: its rows would be in neither pipeline's tables."""
    assert plan_fork(cut(4, commit_point=False)) == Refused(RewindRefusal.CARRIES_OUTPUT)


def test_a_rewind_takes_a_sink_that_came_later_back_to_its_beginning() -> None:
    """Rule F13: it would show the rows after the cut twice."""
    later = SinkId("later")

    rewind = planned(replace(FACTS, sinks=(T, later)))

    assert rewind.restores == {T: "v4", later: None}
    assert set(rewind.commit) == {T, later}


def test_a_rewind_that_would_restore_a_sink_that_is_gone_is_refused() -> None:
    """Rule F13: a decided rewind can only be finished, and this one could not."""
    assert refused(replace(FACTS, sinks=())) == Refused(RewindRefusal.SINK_GONE, (T,))
