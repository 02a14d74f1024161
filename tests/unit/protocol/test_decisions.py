"""The decision log: consecutive slots are the only truth, and a rewind supersedes."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import GENERATION, claim, decision

from cutwater.errors import InvariantBroken
from cutwater.ids import NO_CHECKPOINT, NO_SLOT, CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import LogEntry, LogView, repeated_checkpoint, uncommitted


def test_an_empty_log_has_no_head_and_no_generation() -> None:
    log = LogView()

    assert (log.last_slot, log.generation, log.head) == (NO_SLOT, 0, None)
    assert log.highest_id == NO_CHECKPOINT


def test_the_head_is_the_newest_decision_whatever_its_number() -> None:
    """Rule F5: never the highest id."""
    log = LogView((claim(1), decision(2, 12), claim(3, 2), decision(4, 9)))

    assert log.head == decision(4, 9)
    assert log.highest_id == 12


def test_the_newest_claim_says_whose_pipeline_it_is() -> None:
    """Rule F5: a claim takes the slot that a paused predecessor wanted."""
    log = LogView((claim(1, 1), decision(2), claim(3, 2)))

    assert log.generation == 2
    assert log.last_slot == 3
    assert log.decisions == (decision(2),)


@pytest.mark.parametrize(
    ("entries", "missing"),
    [
        ((claim(2),), 1),
        ((claim(1), decision(3)), 2),
        ((claim(1), decision(2), decision(2)), 3),
    ],
)
def test_a_log_with_a_hole_is_damaged(entries: tuple[LogEntry, ...], missing: int) -> None:
    """Invariant 7: what cannot be read is not "not there"."""
    with pytest.raises(InvariantBroken, match=f"I7 does not hold: slot {missing} of the log"):
        LogView(entries)


def test_only_generations_with_a_decision_count_and_a_recovery_point_shows_what_was_before() -> (
    None
):
    point = replace(decision(4, commit_point=False), generation=Generation(3))
    later = replace(decision(6, commit_point=False), generation=Generation(4))
    log = LogView((claim(1), decision(2), claim(3, 3), point, claim(5, 4), later, claim(7, 5)))

    assert log.deciding == {GENERATION, 3, 4}
    assert log.committing == {GENERATION}
    assert [log.shown_at(decision) for decision in log.decisions] == [GENERATION] * 3
    assert (
        LogView((claim(1), replace(point, slot=Slot(2)))).shown_at(replace(point, slot=Slot(2)))
        == 3
    )


def test_an_entry_is_found_by_its_slot() -> None:
    log = LogView((claim(1), decision(2), decision(3)))

    assert log.at(Slot(3)) == decision(3)


def test_all_decisions_behind_the_last_recorded_commit_are_repeated_in_order() -> None:
    """Rule F8 (b): not the newest one only."""
    log = LogView((claim(1), decision(2), decision(3), claim(4, 2), decision(5)))

    assert uncommitted(log, Slot(2)) == (decision(3), decision(5))
    assert uncommitted(log, Slot(5)) == ()


def test_a_recovery_point_has_nothing_to_repeat() -> None:
    """Rule F3."""
    log = LogView((claim(1), decision(2, commit_point=False)))

    assert uncommitted(log, NO_SLOT) == ()


def test_a_decision_that_a_rewind_goes_back_behind_is_not_repeated() -> None:
    """Rule F13: the rewind restores its sinks, and its staged rows may be what is damaged."""
    rewind = decision(5, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1), decision(2), decision(3), decision(4), rewind))

    assert uncommitted(log, Slot(3)) == (rewind,)


def test_a_decision_before_the_target_of_a_rewind_is_still_repeated() -> None:
    rewind = decision(4, kind=CheckpointKind.REWIND, origin=3)
    log = LogView((claim(1), decision(2), decision(3, commit_point=False), rewind))

    assert uncommitted(log, NO_SLOT) == (decision(2), rewind)


def test_the_target_of_a_rewind_itself_is_still_repeated() -> None:
    rewind = decision(4, kind=CheckpointKind.REWIND, origin=3)
    log = LogView((claim(1), decision(2), decision(3), rewind))

    assert uncommitted(log, Slot(2)) == (decision(3), rewind)


def test_a_decision_after_a_rewind_is_repeated() -> None:
    rewind = decision(4, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1), decision(2), decision(3), rewind, decision(5)))

    assert uncommitted(log, Slot(3)) == (rewind, decision(5))


def test_a_rewind_that_a_later_rewind_goes_back_behind_is_not_repeated() -> None:
    first = decision(4, kind=CheckpointKind.REWIND, origin=3)
    second = decision(5, kind=CheckpointKind.REWIND, origin=2)
    log = LogView((claim(1), decision(2), decision(3), first, second))

    assert uncommitted(log, Slot(3)) == (second,)


def test_a_rewind_of_a_rewind_repeats_the_checkpoint_that_was_taken() -> None:
    first = decision(4, 41, kind=CheckpointKind.REWIND, origin=2)
    second = decision(5, 51, kind=CheckpointKind.REWIND, origin=4)
    log = LogView((claim(1), decision(2, 21), decision(3, 31), first, second))

    for slot, origin, taken in ((51, 4, 21), (41, 2, 21), (31, None, 31), (61, 9, 61)):
        found = repeated_checkpoint(
            log, CheckpointId(slot), None if origin is None else Slot(origin)
        )
        assert found == taken
