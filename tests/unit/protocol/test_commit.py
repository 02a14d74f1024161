"""Two-phase commit: what a cut makes visible, and that a decision is seen through once."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    LEFT,
    ORDERS,
    PIPELINE,
    RIGHT,
    T1,
    T2,
    T,
    committable,
    cut,
    fan_snapshots,
    refusal,
    sink_snapshot,
)

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, PipelineId, Slot
from cutwater.protocol.commit import (
    CommitBlocked,
    CommitPermit,
    CommitPlan,
    CommitSink,
    Committer,
    CommitterState,
    RecordCommit,
    grant,
    plan_commit,
)
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.options import CommitOptions

BOTH = (T1, T2)
NEW = {ORDERS: NO_BATCH, LEFT: NO_BATCH, RIGHT: NO_BATCH}
NOTHING = {T1: (), T2: ()}
PREPARED = {T1: (committable(T1, 2),), T2: (committable(T2, 2),)}
SLOT = Slot(5)
OPTIONS = CommitOptions(retry_ms=100, retry_max_ms=300, budget_ms=1_000)
PERMIT = grant(PIPELINE, SLOT, CheckpointId(1))


def two_sinks() -> Cut:
    return replace(cut(), commit=PREPARED)


def committing(options: CommitOptions = OPTIONS) -> Committer:
    """A committer that began at 0 to see the decision in slot 5 through two sinks."""
    committer = Committer(PIPELINE, options)
    committer.decided(SLOT, two_sinks(), 0)
    return committer


# -- the plan


def test_an_aligned_cut_commits_what_all_sinks_prepared() -> None:
    plan = plan_commit(fan_snapshots(batch=2), BOTH, {}, NEW, CommitOptions())

    assert plan == CommitPlan(True, PREPARED, NOTHING)


def test_two_sinks_commit_nothing_at_a_cut_with_data_in_flight() -> None:
    """Rule F3: one table would show what the other does not."""
    plan = plan_commit(fan_snapshots(batch=2, right_read=1), BOTH, {}, NEW, CommitOptions())

    assert plan == CommitPlan(False, NOTHING, PREPARED)


def test_what_was_carried_is_committed_before_what_is_new() -> None:
    """Rule F3: at the next cut with nothing in flight."""
    carried = {T1: (committable(T1, 1),)}

    plan = plan_commit(fan_snapshots(batch=2), BOTH, carried, NEW, CommitOptions())

    assert plan.commit == {
        T1: (committable(T1, 1), committable(T1, 2)),
        T2: (committable(T2, 2),),
    }


def test_what_was_carried_stays_carried_while_data_is_in_flight() -> None:
    carried = {T1: (committable(T1, 1),)}

    plan = plan_commit(fan_snapshots(batch=2, right_read=1), BOTH, carried, NEW, CommitOptions())

    assert plan.carried[T1] == (committable(T1, 1), committable(T1, 2))


def test_unaligned_cuts_commit_when_the_user_says_so() -> None:
    """Rule F3."""
    said_so = CommitOptions(commit_unaligned=True)

    plan = plan_commit(fan_snapshots(batch=2, right_read=1), BOTH, {}, NEW, said_so)

    assert plan == CommitPlan(True, PREPARED, NOTHING)


def test_a_single_sink_commits_at_any_cut() -> None:
    """Rule F3."""
    snapshots = {LEFT: sink_snapshot(step=LEFT, batch=2, read=1, staged=(committable(T, 2),))}

    plan = plan_commit(snapshots, (T,), {}, NEW, CommitOptions())

    assert plan == CommitPlan(True, {T: (committable(T, 2),)}, {T: ()})


def test_what_a_decided_cut_holds_is_not_committed_again() -> None:
    """Rule F8: (batch of the last decided cut, batch of this one]."""
    staged = (committable(T, 1), committable(T, 2), committable(T, 3))
    snapshots = {LEFT: sink_snapshot(step=LEFT, batch=3, staged=staged)}

    plan = plan_commit(snapshots, (T,), {}, {LEFT: BatchId(1)}, CommitOptions())

    assert plan.commit == {T: (committable(T, 2), committable(T, 3))}


def test_a_sink_with_nothing_new_still_takes_part() -> None:
    snapshots = {LEFT: sink_snapshot(step=LEFT)}

    plan = plan_commit(snapshots, (T,), {}, NEW, CommitOptions())

    assert plan.commit == {T: ()}


# -- permits


def test_nothing_but_a_decision_gives_a_permit() -> None:
    """Invariant 7: decide before sinks act."""
    with pytest.raises(ProtocolViolation, match="written decision only"):
        CommitPermit(PIPELINE, SLOT, CheckpointId(1), object())


def test_the_key_of_a_commit_is_pipeline_sink_and_slot() -> None:
    """Rule F5 and F14: not the attempt's number, and never another pipeline's."""
    mine = grant(PIPELINE, SLOT, CheckpointId(9))
    forks = grant(PipelineId("f0rk"), SLOT, CheckpointId(9))

    assert mine.key(T1) == "5ca1ab1e/t1/5"
    assert len({mine.key(T1), mine.key(T2), forks.key(T1)}) == 3


# -- the committer


def test_a_decision_lets_every_sink_act() -> None:
    committer = Committer(PIPELINE, OPTIONS)

    commands = committer.decided(SLOT, two_sinks(), 0)

    assert commands == (
        CommitSink(PERMIT, T1, PREPARED[T1]),
        CommitSink(PERMIT, T2, PREPARED[T2]),
    )
    assert committer.state is CommitterState.COMMITTING
    assert all(committer.waits_for(PERMIT.slot, sink) for sink in (T1, T2))


def test_a_recovery_point_asks_nothing_of_the_sinks() -> None:
    """Rule F3."""
    committer = Committer(PIPELINE, OPTIONS)

    assert committer.decided(SLOT, cut(commit_point=False), 0) == ()
    assert committer.state is CommitterState.IDLE


def test_a_rewind_restores_every_sink() -> None:
    """Rule F13, also a sink that had shown nothing."""
    rewind = replace(two_sinks(), kind=CheckpointKind.REWIND, restores={T1: "v3", T2: None})
    rewind = replace(rewind, commit=NOTHING)

    commands = Committer(PIPELINE, OPTIONS).decided(SLOT, rewind, 0)

    assert commands == (
        CommitSink(PERMIT, T1, (), True, "v3"),
        CommitSink(PERMIT, T2, (), True, None),
    )


def test_a_pipeline_without_sinks_records_the_decision_at_once() -> None:
    committer = Committer(PIPELINE, OPTIONS)

    commands = committer.decided(SLOT, replace(cut(), commit={}), 0)

    assert commands == (RecordCommit(PERMIT, {}),)
    assert committer.recorded(SLOT) == {}


@pytest.mark.parametrize("commit_point", [True, False])
def test_a_decision_waits_until_the_one_before_is_committed(commit_point: bool) -> None:
    """Rule F8 (b): recovery would repeat the newer one only."""
    committer = committing()

    message = refusal(
        committer, lambda: committer.decided(Slot(6), cut(2, commit_point=commit_point), 0)
    )

    assert "not allowed in COMMITTING" in message


def test_a_commit_is_recorded_when_the_last_sink_is_done() -> None:
    committer = committing()

    first = committer.sink_done(SLOT, T2, "v8")
    last = committer.sink_done(SLOT, T1, "v7")

    assert first == ()
    assert last == (RecordCommit(PERMIT, {T1: "v7", T2: "v8"}),)
    assert committer.state is CommitterState.COMMITTING


def test_a_recorded_commit_frees_the_committer() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")
    committer.sink_done(SLOT, T2, "v8")

    visible = committer.recorded(SLOT)

    assert visible == {T1: "v7", T2: "v8"}
    assert committer.state is CommitterState.IDLE
    assert committer.recorded(SLOT) is None


def test_a_commit_is_not_recorded_before_every_sink_is_done() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")

    assert "['t2'] have not committed" in refusal(committer, lambda: committer.recorded(SLOT))


def recording() -> Committer:
    """A committer whose sinks have both acted on the decision in slot 5."""
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")
    committer.sink_done(SLOT, T2, "v8")
    return committer


def test_a_record_that_the_store_refuses_is_reported_once_and_requested_again() -> None:
    """With growing pauses, like a sink; nothing can be decided until it is there."""
    committer = recording()

    first = committer.record_failed(SLOT, "the disk is full", 50)
    state = committer.state
    asked_at = []
    for at_ms in range(50, 1_051, 50):
        if committer.tick(at_ms) == (RecordCommit(PERMIT, {T1: "v7", T2: "v8"}),):
            asked_at.append(at_ms)
            assert committer.record_failed(SLOT, "the disk is full", at_ms) == ()

    assert first == (CommitBlocked(SLOT, None, "the disk is full"),)
    assert state is CommitterState.COMMIT_BLOCKED
    assert asked_at == [150, 350, 650, 950]
    assert committer.wake_at_ms == 1_250


def test_a_record_that_the_store_takes_at_last_frees_the_committer() -> None:
    committer = recording()
    committer.record_failed(SLOT, "the disk is full", 50)

    assert committer.recorded(SLOT) == {T1: "v7", T2: "v8"}
    assert committer.state is CommitterState.IDLE
    assert committer.record_failed(SLOT, "the disk is full", 60) == ()


def test_failures_of_one_record_say_nothing_about_the_next() -> None:
    committer = recording()
    committer.record_failed(SLOT, "the disk is full", 50)
    committer.record_failed(SLOT, "the disk is full", 150)
    committer.recorded(SLOT)
    committer.decided(Slot(6), replace(cut(2), commit={T1: ()}), 200)
    committer.sink_done(Slot(6), T1, "v9")

    assert committer.record_failed(Slot(6), "full again", 200) == (
        CommitBlocked(Slot(6), None, "full again"),
    )
    assert committer.wake_at_ms == 300


def test_a_record_cannot_fail_before_every_sink_is_done() -> None:
    committer = committing()

    message = refusal(committer, lambda: committer.record_failed(SLOT, "the disk is full", 0))

    assert "['t1', 't2'] have not committed" in message


def test_the_version_of_the_first_commit_stands() -> None:
    """Rule F41: also when a repeated commit answers late."""
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")

    repeated = committer.sink_done(SLOT, T1, "v99")

    assert repeated == ()
    assert committer.sink_done(SLOT, T2, "v8") == (RecordCommit(PERMIT, {T1: "v7", T2: "v8"}),)


def test_answers_about_another_decision_change_nothing() -> None:
    committer = committing()
    other = Slot(4)

    answers = (
        committer.sink_done(other, T1, "v7"),
        committer.sink_failed(other, T1, "locked", 0),
        committer.record_failed(other, "full", 0),
        committer.recorded(other),
    )

    assert answers == ((), (), (), None)
    assert all(committer.waits_for(PERMIT.slot, sink) for sink in (T1, T2))


def test_answers_to_an_idle_committer_change_nothing() -> None:
    committer = Committer(PIPELINE, OPTIONS)

    assert committer.sink_done(SLOT, T1, "v7") == ()
    assert committer.sink_failed(SLOT, T1, "locked", 0) == ()
    assert committer.tick(1_000_000) == ()


def test_a_failure_of_a_sink_that_is_done_changes_nothing() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")

    assert committer.sink_failed(SLOT, T1, "locked", 5_000) == ()
    assert committer.state is CommitterState.COMMITTING


def test_a_sink_that_failed_is_asked_again_after_a_pause() -> None:
    committer = committing()
    failed = committer.sink_failed(SLOT, T1, "locked", 10)

    early = committer.tick(109)
    due = committer.tick(110)
    again = committer.tick(111)

    assert failed == ()
    assert early == ()
    assert due == (CommitSink(PERMIT, T1, PREPARED[T1]),)
    assert again == ()


def test_the_pause_between_repetitions_doubles_up_to_the_longest() -> None:
    committer = committing()

    committer.sink_failed(SLOT, T1, "locked", 0)
    committer.tick(100)
    committer.sink_failed(SLOT, T1, "locked", 100)
    too_early = committer.tick(299)
    committer.tick(300)
    committer.sink_failed(SLOT, T1, "locked", 300)
    at_longest = committer.tick(600)

    assert too_early == ()
    assert len(at_longest) == 1


def test_a_sink_that_fails_past_the_budget_blocks_and_is_named() -> None:
    """Rule F41."""
    committer = committing()
    within = committer.sink_failed(SLOT, T1, "locked", 999)

    past = committer.sink_failed(SLOT, T1, "still locked", 1_000)

    assert within == ()
    assert past == (CommitBlocked(SLOT, T1, "still locked"),)
    assert committer.state is CommitterState.COMMIT_BLOCKED


def test_the_budget_is_counted_from_the_decision() -> None:
    committer = Committer(PIPELINE, OPTIONS)
    committer.decided(SLOT, two_sinks(), 500)

    within = committer.sink_failed(SLOT, T1, "locked", 1_499)
    past = committer.sink_failed(SLOT, T1, "locked", 1_500)

    assert within == ()
    assert past == (CommitBlocked(SLOT, T1, "locked"),)


def test_a_commit_that_is_only_being_recorded_is_not_blocked() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")
    committer.sink_done(SLOT, T2, "v8")

    assert committer.tick(1_000_000) == ()
    assert committer.state is CommitterState.COMMITTING


def test_a_record_names_the_sinks_of_its_own_decision() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")
    committer.sink_done(SLOT, T2, "v8")
    committer.recorded(SLOT)
    committer.decided(Slot(6), replace(cut(2), commit={T1: ()}), 0)

    (record,) = committer.sink_done(Slot(6), T1, "v9")

    assert record == RecordCommit(grant(PIPELINE, Slot(6), CheckpointId(2)), {T1: "v9"})


def test_a_sink_that_never_answers_is_named_when_the_budget_is_spent() -> None:
    """Rule F41 and invariant 6: driven by a clock, not by traffic."""
    committer = committing()

    commands = committer.tick(1_000)

    assert [type(command) for command in commands] == [CommitBlocked]
    assert committer.state is CommitterState.COMMIT_BLOCKED


def test_a_sink_that_failed_before_the_budget_was_spent_is_named_with_its_reason() -> None:
    """Rule F41: the person who reads it needs the cause."""
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")
    committer.sink_failed(SLOT, T2, "locked", 999)

    commands = committer.tick(1_000)

    assert commands == (CommitBlocked(SLOT, T2, "locked"),)


def test_a_silent_committer_is_woken_when_its_budget_is_spent() -> None:
    """Rule F41."""
    committer = committing()

    before = committer.wake_at_ms
    committer.tick(1_000)

    assert (before, committer.wake_at_ms) == (1_000, None)


def test_a_committer_is_woken_for_the_first_sink_to_be_asked_again() -> None:
    committer = committing()
    committer.sink_failed(SLOT, T1, "locked", 0)
    committer.sink_failed(SLOT, T2, "locked", 40)

    first = committer.wake_at_ms
    committer.sink_done(SLOT, T1, "v7")

    assert (first, committer.wake_at_ms) == (100, 140)


def test_an_idle_committer_waits_for_nothing() -> None:
    assert Committer(PIPELINE, OPTIONS).wake_at_ms is None


def test_a_committer_knows_which_sinks_have_still_to_act() -> None:
    committer = committing()
    committer.sink_done(SLOT, T1, "v7")

    assert [committer.waits_for(SLOT, T1), committer.waits_for(SLOT, T2)] == [False, True]
    assert not committer.waits_for(Slot(4), T2)


def test_a_blocked_sink_is_repeated_and_reported_once() -> None:
    """Rule F41: the pipeline goes on by itself when the cause is gone."""
    committer = committing()
    committer.sink_failed(SLOT, T1, "locked", 1_000)

    failed_again = committer.sink_failed(SLOT, T1, "locked", 1_100)
    repeated = committer.tick(1_300)

    assert failed_again == ()
    assert repeated == (CommitSink(PERMIT, T1, PREPARED[T1]),)


def test_a_blocked_commit_goes_on_when_the_sink_succeeds() -> None:
    committer = committing()
    committer.sink_done(SLOT, T2, "v8")
    committer.sink_failed(SLOT, T1, "locked", 1_000)

    commands = committer.sink_done(SLOT, T1, "v7")

    assert commands == (RecordCommit(PERMIT, {T1: "v7", T2: "v8"}),)
    assert committer.state is CommitterState.COMMITTING
