"""Recovery: claim, verify, repeat commits in order, restore; and stop rather than guess."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    ORDERS,
    PIPELINE,
    TABLE,
    T,
    claim,
    committable,
    cut,
    decision,
    source_snapshot,
)

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_CHECKPOINT, NO_SLOT, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.commit import ShowPermit, grant_shows
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import LogEntry, LogView
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.lost_commit import Recorded
from cutwater.protocol.recovery import (
    CheckTargets,
    ClaimGeneration,
    Damage,
    ReadManifest,
    RecoveryFacts,
    RefusalReason,
    Refuse,
    RepeatCommit,
    Restore,
    StepAside,
    TakeBack,
    VerifyObjects,
    next_action,
    own_claim,
    taken_over,
)

MINE = claim(3, 2, "mine")
MINE_FIRST = claim(1, 1, "mine")
LOG = LogView((claim(1, 1), decision(2), MINE))
"""One decision of generation 1, and our claim."""

SOUND = {CheckpointId(2): ()}
HEAD = {CheckpointId(2): cut(2)}


def facts(
    log: LogView = LOG,
    *,
    manifests: dict[CheckpointId, Cut | None] | None = None,
    verified: dict[CheckpointId, tuple[Damage, ...]] | None = None,
    committed_through: int = 2,
    highest_id: int = 2,
) -> RecoveryFacts:
    return RecoveryFacts(
        log=log,
        nonce="mine",
        committed_through=Slot(committed_through),
        committed={T: "v2"} if committed_through else {},
        highest_id=CheckpointId(highest_id),
        manifests=dict(HEAD) if manifests is None else manifests,
        verified=dict(SOUND) if verified is None else verified,
    )


# -- claiming


def test_the_first_thing_is_a_claim_of_the_next_slot() -> None:
    """Rule F4 and F5: claim, verify, repeat, build."""
    log = LogView((claim(1, 1), decision(2)))

    assert next_action(facts(log)) == ClaimGeneration(claim(3, 2, "mine"))


def test_an_empty_log_is_claimed_as_the_first_generation() -> None:
    known = facts(LogView(), committed_through=0)

    assert next_action(known) == ClaimGeneration(claim(1, 1, "mine"))


def test_a_claim_that_lost_the_race_is_made_again_after_the_winners() -> None:
    log = LogView((claim(1, 1), decision(2), claim(3, 2, "theirs")))

    assert next_action(facts(log)) == ClaimGeneration(claim(4, 3, "mine"))


def test_a_claim_is_found_by_its_nonce() -> None:
    """Rule F15: a repeated create may find its own entry."""
    assert own_claim(LOG, "mine") == MINE
    assert own_claim(LOG, "yours") is None


def test_a_process_that_was_taken_over_knows_its_successor() -> None:
    log = LogView((claim(1, 1), claim(2, 2, "mine"), decision(3), claim(4, 3, "theirs")))

    mine, theirs = claim(2, 2, "mine"), claim(4, 3, "theirs")
    assert taken_over(log, [mine]) == (2, 3)
    assert taken_over(log, [claim(4, 3, "too late")]) == (2, 3)
    assert taken_over(log, [mine, theirs]) is None
    assert taken_over(log, []) is None
    assert taken_over(LogView(), [mine]) is None


def test_a_predecessor_has_taken_over_nothing() -> None:
    """The store did not take our claim: we come after the last claim in the log."""
    log = LogView((claim(1, 1, "before"), claim(2, 2, "last")))

    assert taken_over(log, [claim(3, 3, "never written")]) is None
    assert taken_over(log, [claim(3, 3, "never written"), claim(4, 4, "nor this")]) is None


def test_a_process_that_was_claimed_away_steps_aside() -> None:
    """Rule F5: a paused driver wakes and finds the log has gone on."""
    log = LogView((*LOG.entries, claim(4, 3, "theirs")))

    assert next_action(facts(log)) == StepAside(Generation(3))


# -- the head


def test_without_any_decision_the_pipeline_starts_empty() -> None:
    """Seed 000 C2: "nothing to recover" is an outcome, and ids still go forward."""
    log = LogView((claim(1, 1, "mine"),))

    assert next_action(facts(log, committed_through=0, highest_id=7)) == Restore(
        Generation(1), None, Standing(slot=Slot(1), highest_id=CheckpointId(7))
    )


def test_the_manifest_of_the_head_is_read_before_anything_else() -> None:
    assert next_action(facts(manifests={})) == ReadManifest(decision(2))


def test_the_objects_of_the_head_are_verified_before_sinks_act() -> None:
    """Rule F4: verify every blob of the head, then repeat commits."""
    assert next_action(facts(verified={}, committed_through=0)) == VerifyObjects(
        decision(2), cut(2), committed=False
    )


def test_a_committed_head_is_verified_without_what_its_sinks_have() -> None:
    assert next_action(facts(verified={})) == VerifyObjects(decision(2), cut(2), committed=True)


def test_a_manifest_that_cannot_be_read_stops_recovery() -> None:
    """Invariant 7: unreadable is an error, never "not there"."""
    assert next_action(facts(manifests={CheckpointId(2): None})) == Refuse(
        RefusalReason.MANIFEST_UNREADABLE, decision(2)
    )


def test_a_damaged_head_is_never_left_silently() -> None:
    """Rule F4: falling back past committed sinks duplicates the interval."""
    bad = Damage("blobs/x", "hash differs")

    action = next_action(facts(verified={CheckpointId(2): (bad,)}, committed_through=0))

    assert action == Refuse(RefusalReason.OBJECTS_DAMAGED, decision(2), (bad,))


def test_a_head_that_was_decided_without_the_state_of_a_query_is_refused() -> None:
    """Invariant 5: older versions could decide one; the queries could not begin from it."""
    bare = replace(
        cut(2),
        snapshots={ORDERS: replace(source_snapshot(batch=2), state=())},
        identities={ORDERS: StepIdentity(is_query=True)},
    )

    action = next_action(facts(manifests={CheckpointId(2): bare}, verified={CheckpointId(2): ()}))

    missing = Damage("the state of step orders", "no file was stored, and batch 2 was committed")
    assert action == Refuse(RefusalReason.OBJECTS_DAMAGED, decision(2), (missing,))


def test_the_head_follows_the_log_and_not_the_highest_id() -> None:
    """Rule F5: the zombie's attempt 12 is older than the head's 9."""
    log = LogView((claim(1, 1), decision(2, 12), claim(3, 2), decision(4, 9), claim(5, 3, "mine")))

    action = next_action(
        facts(
            log,
            manifests={CheckpointId(9): cut(9)},
            verified={CheckpointId(9): ()},
            committed_through=4,
            highest_id=9,
        )
    )

    assert isinstance(action, Restore)
    assert action.cut == cut(9)
    assert action.standing.highest_id == 12


# -- repeating commits


def test_a_decided_cut_is_committed_before_it_is_restored() -> None:
    """Rule F8 (b) and lesson 250: rows that were decided are not skipped."""
    assert next_action(facts(committed_through=0)) == RepeatCommit(decision(2), cut(2))


def test_all_unfinished_commits_are_repeated_oldest_first() -> None:
    """Rule F8 (b)."""
    log = LogView((claim(1, 1), decision(2), decision(3), claim(4, 2, "mine")))
    known = facts(
        log,
        manifests={CheckpointId(2): cut(2), CheckpointId(3): cut(3)},
        verified={CheckpointId(2): (), CheckpointId(3): ()},
        committed_through=0,
    )

    first = next_action(known)
    second = next_action(replace(known, committed_through=Slot(2)))

    assert first == RepeatCommit(decision(2), cut(2))
    assert second == RepeatCommit(decision(3), cut(3))


def test_an_older_unfinished_commit_is_read_and_verified_too() -> None:
    log = LogView((claim(1, 1), decision(2), decision(3), claim(4, 2, "mine")))
    known = facts(
        log,
        manifests={CheckpointId(3): cut(3)},
        verified={CheckpointId(3): ()},
        committed_through=0,
    )

    first = next_action(known)
    second = next_action(replace(known, manifests={CheckpointId(2): cut(2), **known.manifests}))

    assert first == ReadManifest(decision(2))
    assert second == VerifyObjects(decision(2), cut(2), committed=False)


def test_no_sink_acts_while_the_head_is_damaged() -> None:
    """Rule F4: an older unfinished commit waits for the head's verification."""
    log = LogView((claim(1, 1), decision(2), decision(3), claim(4, 2, "mine")))
    bad = Damage("blobs/x", "missing")

    action = next_action(
        facts(
            log,
            manifests={CheckpointId(2): cut(2), CheckpointId(3): cut(3)},
            verified={CheckpointId(2): (), CheckpointId(3): (bad,)},
            committed_through=0,
        )
    )

    assert action == Refuse(RefusalReason.OBJECTS_DAMAGED, decision(3), (bad,))


def test_an_unfinished_rewind_is_finished_first() -> None:
    """Rule F13: a crash between the decision and the last sink."""
    rewind = decision(4, 9, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1, 1), decision(2), decision(3), rewind, claim(5, 2, "mine")))
    back = replace(cut(9), restores={T: "v2"}, kind=CheckpointKind.REWIND)

    action = next_action(
        facts(
            log,
            manifests={CheckpointId(9): back},
            verified={CheckpointId(9): ()},
            committed_through=2,
        )
    )

    assert action == RepeatCommit(rewind, back)


def test_a_finished_rewind_is_not_undone() -> None:
    """Rule F13: recovery would have taken the newest of the old cuts."""
    rewind = decision(4, 9, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1, 1), decision(2), decision(3, 8), rewind, claim(5, 2, "mine")))

    action = next_action(
        facts(
            log,
            manifests={CheckpointId(9): cut(9)},
            verified={CheckpointId(9): ()},
            committed_through=4,
        )
    )

    assert isinstance(action, Restore)
    assert action.cut == cut(9)


def test_a_decided_commit_of_a_sink_that_is_gone_is_refused_and_not_skipped() -> None:
    """Rule F8 (b): its rows were decided, and nothing else can commit them."""
    known = replace(facts(committed_through=0), sinks=frozenset())

    waiting = (Damage("t", "it has not committed its 1 rows"),)
    assert next_action(known) == Refuse(RefusalReason.SINK_MISSING, decision(2), waiting)


@pytest.mark.parametrize(
    ("restores", "said"),
    [({}, "it has not acted yet (no rows)"), ({T: "3"}, "a rewind has not rolled it back")],
)
def test_what_a_sink_that_is_gone_has_left_undone_is_said_as_it_is(
    restores: dict[SinkId, str], said: str
) -> None:
    waiting = replace(cut(2), commit={T: ()}, restores=restores)
    known = replace(facts(committed_through=0), manifests={CheckpointId(2): waiting})

    refusal = next_action(replace(known, sinks=frozenset()))

    assert isinstance(refusal, Refuse)
    assert said in refusal.damages[0].problem


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((claim(1, 1),), id="before the claim"),
        pytest.param((claim(1, 1), claim(2, 2, "mine")), id="the claim took its place"),
    ],
)
def test_a_commit_whose_decision_is_gone_is_no_reason_to_start_empty(
    entries: tuple[LogEntry, ...],
) -> None:
    """The rows that sinks have committed would come again."""
    known = facts(LogView(entries), committed_through=2)

    assert next_action(known) == Refuse(RefusalReason.LOG_LOST, None)


# -- targets


def test_targets_are_checked_before_anything_is_rolled_back_or_restored() -> None:
    """Rule F43."""
    unchecked = replace(facts(), targets_checked=False, showing=frozenset({T}))

    assert next_action(unchecked) == CheckTargets({T: Recorded(Slot(2), "v2")})
    assert isinstance(next_action(replace(unchecked, targets_checked=True)), TakeBack)


def test_nothing_is_asked_of_a_target_that_the_sink_has_never_written_to() -> None:
    moved = replace(facts(), targets_checked=False, moved=frozenset({T}))

    restore = next_action(moved)

    assert isinstance(restore, Restore)
    assert restore.standing.last_writes == {}


# -- restoring


def test_a_sound_and_committed_head_is_restored() -> None:
    """Seed 000 C2: nothing could be restored at all."""
    action = next_action(facts(highest_id=6))

    assert action == Restore(
        Generation(2),
        cut(2),
        Standing(
            slot=Slot(3),
            highest_id=CheckpointId(6),
            decided={ORDERS: cut(2).snapshots[ORDERS].batch, TABLE: cut(2).snapshots[TABLE].batch},
            carried={T: ()},
            visible={T: "v2"},
            last_writes={T: Slot(2)},
        ),
    )


def test_what_a_recovery_point_carries_is_handed_on() -> None:
    """Rule F3 across a restart: and what was visible stays known."""
    log = LogView((claim(1, 1), decision(2, commit_point=False), claim(3, 2, "mine")))

    action = next_action(
        facts(log, manifests={CheckpointId(2): cut(2, commit_point=False)}, committed_through=0)
    )

    assert isinstance(action, Restore)
    assert action.standing.carried == {T: (committable(T, 0),)}
    assert action.standing.visible == {T: "v1"}


def test_a_recovery_point_as_head_repeats_no_commit() -> None:
    log = LogView((claim(1, 1), decision(2, commit_point=False), claim(3, 2, "mine")))

    action = next_action(
        facts(
            log,
            manifests={CheckpointId(2): cut(2, commit_point=False)},
            verified={},
            committed_through=0,
        )
    )

    assert isinstance(action, VerifyObjects)
    assert action.committed


@pytest.mark.parametrize("highest_id", [0, 1])
def test_ids_never_fall_behind_the_log(highest_id: int) -> None:
    """Invariant 8: ids only go forward across restarts."""
    action = next_action(facts(highest_id=highest_id))

    assert isinstance(action, Restore)
    assert action.standing.highest_id == 2


def test_facts_begin_empty() -> None:
    fresh = RecoveryFacts(log=LogView(), nonce="mine")

    assert (fresh.committed_through, fresh.highest_id) == (NO_SLOT, NO_CHECKPOINT)
    assert (fresh.manifests, fresh.verified, fresh.committed) == ({}, {}, {})


def test_a_cut_that_carries_output_of_a_sink_that_is_gone_is_refused() -> None:
    """Rule F3: its rows would be in no table and in no later cut."""
    carrying = replace(cut(2), carried={T: (committable(T, 1),)})
    known = replace(facts(), manifests={CheckpointId(2): carrying}, verified={CheckpointId(2): ()})

    refusal = next_action(replace(known, sinks=frozenset()))

    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.SINK_MISSING
    assert isinstance(next_action(replace(known, sinks=frozenset({T}))), Restore)


# -- sinks that show batches before their checkpoint (rule F33)


def test_what_a_sink_shows_beyond_the_cut_is_rolled_back_before_the_restore() -> None:
    """Verify, repeat, roll back, build."""
    showing = replace(facts(), showing=frozenset({T}))
    repeats = next_action(replace(showing, committed_through=NO_SLOT))
    taking = next_action(showing)
    restores = next_action(replace(showing, taken_back={T: "v7"}))

    assert isinstance(repeats, VerifyObjects | RepeatCommit)
    assert taking == TakeBack(MINE, T, "v2", ())
    assert isinstance(restores, Restore)
    assert restores.standing.visible == {T: "v7"}


def test_what_a_cut_carries_is_shown_again() -> None:
    log = LogView((claim(1, 1), replace(decision(2), commit_point=False), MINE))
    carried = replace(cut(2, commit_point=False), visible={T: "v1"})
    found = facts(log, manifests={CheckpointId(2): carried}, committed_through=0)

    action = next_action(replace(found, showing=frozenset({T})))

    assert action == TakeBack(MINE, T, "v1", (committable(T, 0),))


def test_a_sink_that_never_committed_is_rolled_back_to_its_beginning() -> None:
    """Its first generation died before the first decision, and had shown rows."""
    empty = facts(LogView((MINE_FIRST,)), manifests={}, verified={}, committed_through=0)
    showing = replace(empty, showing=frozenset({T}))

    taking = next_action(showing)
    restores = next_action(replace(showing, taken_back={T: "none"}))

    assert taking == TakeBack(MINE_FIRST, T, None, ())
    assert isinstance(restores, Restore)
    assert restores.standing.visible == {T: "none"}


def test_a_sink_that_is_gone_is_rolled_back_all_the_same() -> None:
    """What it showed is seen by others, whatever has become of the code."""
    gone = SinkId("gone")

    assert next_action(replace(facts(), showing=frozenset({gone}))) == TakeBack(
        MINE, gone, None, ()
    )


def test_a_permit_to_show_comes_from_a_claim_only() -> None:
    given = grant_shows(PIPELINE, Slot(3), Generation(2))

    assert (given.slot, given.generation) == (3, 2)
    with pytest.raises(ProtocolViolation, match="claim"):
        ShowPermit(PIPELINE, Slot(3), Generation(2), object())
