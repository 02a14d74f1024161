"""Whether a target lacks a recorded commit (rule F43), and which checkpoint it still shows."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import LINE, PIPELINE, T, committable, cut, line_snapshots
from tests.unit.protocol.checkpoint.test_ledger import acknowledged, ledger

from cutwater.ids import CheckpointId, SinkId, Slot
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.commit import CommitPermit, CommitSink, grant
from cutwater.protocol.cut import NO_TARGET, Cut
from cutwater.protocol.lost_commit import (
    Found,
    Past,
    Recorded,
    is_behind,
    last_writes,
    recorded_of,
    still_held,
)


def recorded(slot: int, version: str | None = "v") -> Recorded:
    return Recorded(Slot(slot), version)


def found(slot: int | None, version: str = "v") -> Found:
    return Found(None if slot is None else Slot(slot), version)


@pytest.mark.parametrize(
    ("known", "seen", "behind"),
    [
        (recorded(5), found(5), False),
        (recorded(5), found(9), False),
        (recorded(5), found(4), True),
        (recorded(5), found(None), True),
        (recorded(5, NO_TARGET), found(None), False),
        (None, found(None), False),
    ],
    ids=["as recorded", "newer", "older", "never written", "no target was made", "not known"],
)
def test_a_target_is_behind_if_its_newest_slot_is_older_than_the_recorded_one(
    known: Recorded | None, seen: Found, behind: bool
) -> None:
    assert is_behind(known, seen) is behind


@pytest.mark.parametrize(
    ("version", "shown", "behind"),
    [
        ("7", "7", False),
        ("7", "8", False),
        ("7", "6", True),
        ("7", "none", True),
        (None, "0", False),
    ],
)
def test_where_no_slot_is_known_versions_are_compared(
    version: str | None, shown: str, behind: bool
) -> None:
    seen = Found(None, shown, counts_versions=True)

    assert is_behind(recorded(5, version), seen) is behind


def test_the_last_write_of_a_sink_is_the_last_commit_with_rows_or_rewind() -> None:
    before = {SinkId("other"): Slot(3)}
    with_rows = replace(cut(2), commit={T: (committable(T, 1),)}, last_writes=before)
    without = replace(cut(2), commit={T: ()}, last_writes={T: Slot(4)})

    assert last_writes(Slot(6), with_rows) == {T: 6, SinkId("other"): 3}
    assert last_writes(Slot(6), without) == {T: 4}
    assert last_writes(Slot(6), replace(without, restores={T: None})) == {T: 6}


def test_what_is_recorded_of_a_target_is_its_slot_and_its_version() -> None:
    assert recorded_of({T: Slot(4)}, {T: "7"}) == {T: recorded(4, "7")}
    assert recorded_of({}, {T: "7"}) == {}


def test_a_checkpoint_whose_commits_are_in_the_target_is_still_held() -> None:
    past = [
        Past(cut(9), recorded(8), "v"),
        Past(cut(6), recorded(5), "v"),
        Past(cut(5), recorded(4), "v"),
        Past(cut(1), None, None),
    ]

    def held(slot: int | None) -> list[int]:
        return [one.cut.checkpoint_id for one in still_held(past, found(slot))]

    assert held(6) == [6, 5, 1]
    assert held(4) == [5, 1]
    assert held(None) == [1]


def permitted() -> CommitPermit:
    return grant(PIPELINE, Slot(6), CheckpointId(2))


def test_a_commit_tells_its_sink_what_the_target_must_hold() -> None:
    command = CommitSink(permitted(), T, (), shown="7", last_write=Slot(4))

    assert command.recorded == recorded(4, "7")
    assert CommitSink(permitted(), T, (), shown="7").recorded is None


def test_a_ledger_carries_the_last_writes_from_cut_to_cut_once_they_are_committed() -> None:
    standing = Standing(slot=Slot(7), last_writes={T: Slot(3), SinkId("gone"): Slot(2)})
    machine = ledger(LINE, standing)
    first = machine.build(acknowledged(line_snapshots(1, batch=1)))
    assert isinstance(first, Cut)
    assert first.last_writes == {T: 3}

    slot = machine.decided(replace(first, commit={T: (committable(T, 1),)}))
    unrecorded = machine.build(acknowledged(line_snapshots(2, batch=1)))
    machine.committed({T: "v8"})
    after = machine.build(acknowledged(line_snapshots(2, batch=1)))
    machine.committed(None)

    assert isinstance(unrecorded, Cut)
    assert unrecorded.last_writes == {T: 3}
    assert isinstance(after, Cut)
    assert after.last_writes == {T: slot}
