"""The ledger: what a generation has decided, and the cut that can follow from it."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.protocol.builders import (
    FAN,
    GENERATION,
    LEFT,
    LINE,
    ORDERS,
    RIGHT,
    T1,
    T2,
    TABLE,
    T,
    committable,
    cut,
    fan_snapshots,
    line_snapshots,
    savepoint,
)

from cutwater.ids import BatchId, CheckpointId, Slot, StepId
from cutwater.protocol.checkpoint.attempt import Attempt, CheckpointRequest, Phase
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.checkpoint.ledger import Contradictions, Ledger
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.options import CheckpointOptions, CommitOptions
from cutwater.protocol.topology import Topology


def ledger(
    topology: Topology = LINE,
    standing: Standing | None = None,
    options: CheckpointOptions | None = None,
) -> Ledger:
    return Ledger(
        topology, options or CheckpointOptions(), GENERATION, standing or Standing(slot=Slot(7))
    )


def acknowledged(
    snapshots: dict[StepId, StepSnapshot], request: CheckpointRequest | None = None
) -> Attempt:
    """An attempt that these snapshots have completed."""
    (checkpoint_id,) = {snapshot.checkpoint_id for snapshot in snapshots.values()}
    attempt = Attempt(
        checkpoint_id,
        GENERATION,
        request or CheckpointRequest(),
        frozenset(snapshots),
        started_at_ms=40,
        deadline_ms=640,
        phase=Phase.COLLECTING,
    )
    for snapshot in snapshots.values():
        attempt.acknowledge(snapshot)
    return attempt


def built(of: Ledger, attempt: Attempt) -> Cut:
    cut = of.build(attempt)
    assert isinstance(cut, Cut)
    return cut


def test_a_cut_describes_all_that_recovery_needs() -> None:
    """Seed 000 C1 and 001 C7: positions, offsets and what sinks prepared, in one value."""
    standing = Standing(slot=Slot(7), visible={T: "v4"})

    cut = built(ledger(standing=standing), acknowledged(line_snapshots(3), savepoint()))

    assert (cut.checkpoint_id, cut.generation) == (3, GENERATION)
    assert (cut.kind, cut.name) == (CheckpointKind.SAVEPOINT, "before-upgrade")
    assert cut.started_at_ms == 40
    assert cut.commit == {T: (committable(T, 0),)}
    assert cut.visible == {T: "v4"}
    assert cut.stream_positions == {"orders/kafka/0": "0"}


def test_what_was_staged_is_in_a_cut_once() -> None:
    cut = built(ledger(), acknowledged(line_snapshots()))

    assert all(snapshot.staged == () for snapshot in cut.snapshots.values())


def test_contradicting_snapshots_make_no_cut() -> None:
    """The cut equation comes before the manifest."""
    snapshots = line_snapshots()
    snapshots[ORDERS] = replace(snapshots[ORDERS], offsets={})

    assert ledger().build(acknowledged(snapshots)) == Contradictions(
        ("orders: a source's snapshot has no offsets",)
    )


def test_each_decision_takes_the_slot_after_the_last() -> None:
    """Rule F5: exactly last-read + 1."""
    one = ledger()
    cut = built(one, acknowledged(line_snapshots()))

    slots = [one.next_slot, one.decided(cut), one.next_slot]

    assert slots == [8, 8, 9]


def test_what_a_decided_cut_holds_is_not_in_the_next() -> None:
    """Rule F8."""
    one = ledger()
    one.decided(built(one, acknowledged(line_snapshots(1, batch=1))))
    snapshots = line_snapshots(2, batch=2)
    staged = (committable(T, 1), committable(T, 2))
    snapshots[TABLE] = replace(snapshots[TABLE], staged=staged)

    cut = built(one, acknowledged(snapshots))

    assert cut.commit == {T: (committable(T, 2),)}


def test_what_the_cut_of_an_earlier_generation_holds_is_not_in_the_next() -> None:
    """Rule F8: the ledger begins where recovery left off."""
    standing = Standing(slot=Slot(7), decided={TABLE: BatchId(0)})

    cut = built(ledger(standing=standing), acknowledged(line_snapshots()))

    assert cut.commit == {T: ()}


def test_what_a_recovery_point_carries_is_committed_at_the_next_aligned_cut() -> None:
    """Rule F3."""
    one = ledger(FAN)
    unaligned = built(one, acknowledged(fan_snapshots(1, batch=1, right_read=0)))
    one.decided(unaligned)

    aligned = built(one, acknowledged(fan_snapshots(2, batch=2)))

    assert not unaligned.commit_point
    assert one.carries_output
    assert aligned.commit == {
        T1: (committable(T1, 1), committable(T1, 2)),
        T2: (committable(T2, 1), committable(T2, 2)),
    }


def test_what_an_earlier_generation_carried_is_not_lost() -> None:
    """Rule F3 across a restart."""
    standing = Standing(slot=Slot(7), carried={T: (committable(T, 9),)})

    one = ledger(standing=standing)

    carrying = one.carries_output
    cut = built(one, acknowledged(line_snapshots()))
    one.decided(cut)

    assert (carrying, one.carries_output) == (True, False)
    assert cut.commit == {T: (committable(T, 9), committable(T, 0))}


def test_a_cut_knows_what_sinks_showed_before_it() -> None:
    """Rule F13: what a rewind to a recovery point restores."""
    one = ledger(FAN)
    before = built(one, acknowledged(fan_snapshots(1)))
    one.committed({T1: "v1"})
    one.committed(None)

    after = built(one, acknowledged(fan_snapshots(1)))

    assert before.visible == {T1: None, T2: None}
    assert after.visible == {T1: "v1", T2: None}


def test_the_newest_cuts_are_listed_and_all_are_counted() -> None:
    one = ledger(options=CheckpointOptions(retained=2))

    one.decided(built(one, acknowledged(line_snapshots(1, batch=1))))
    one.decided(built(one, acknowledged(line_snapshots(2, batch=2))))
    one.decided(built(one, acknowledged(line_snapshots(3, batch=3))))

    assert [cut.checkpoint_id for cut in one.completed] == [2, 3]
    assert one.completed_count == 3


def test_every_step_is_in_the_cut_by_name() -> None:
    """Seed 001 M13: state was keyed by a positional number."""
    cut = built(ledger(FAN), acknowledged(fan_snapshots(CheckpointId(1))))

    assert {step: snapshot.step for step, snapshot in cut.snapshots.items()} == {
        ORDERS: ORDERS,
        LEFT: LEFT,
        RIGHT: RIGHT,
    }


def test_recovery_points_in_a_row_are_counted() -> None:
    """Rule F3: sinks may not wait for ever."""
    book = Ledger(LINE, CheckpointOptions(), GENERATION, Standing(slot=Slot(1)))
    book.decided(cut(1, commit_point=False))
    book.decided(cut(2, commit_point=False))
    waiting = book.recovery_points
    book.decided(cut(3))

    assert (waiting, book.recovery_points) == (2, 0)


# -- commit_every (docs/adr/0020)

PACED = CheckpointOptions(commit=CommitOptions(every_ms=1_000))


def paced(topology: Topology = LINE, **standing: Any) -> Ledger:  # noqa: ANN401
    """A ledger that gave rows to its sinks at an attempt of 40 ms."""
    one = ledger(topology, Standing(slot=Slot(7), **standing), PACED)
    snapshots = line_snapshots(1) if topology is LINE else fan_snapshots(1)
    one.decided(built(one, acknowledged(snapshots)))
    return one


def at(attempt: Attempt, started_at_ms: int) -> Attempt:
    attempt.started_at_ms = started_at_ms
    return attempt


def test_the_first_cut_of_a_generation_is_the_sinks_turn() -> None:
    """How long rows have waited before a restart is not known: long enough."""
    one = ledger(options=PACED)

    assert built(one, acknowledged(line_snapshots())).commit_point


def test_a_cut_before_the_sinks_turn_carries_what_was_staged() -> None:
    one = paced()
    early = built(one, at(acknowledged(line_snapshots(2, batch=1)), 1_039))
    one.decided(early)
    due = built(one, at(acknowledged(line_snapshots(3, batch=2)), 1_040))

    assert (early.commit_point, due.commit_point) == (False, True)
    assert early.commit == {T: ()}
    assert early.carried == {T: (committable(T, 1),)}
    assert due.commit == {T: (committable(T, 1), committable(T, 2))}
    assert due.carried == {T: ()}


@pytest.mark.parametrize(
    "request_",
    [
        savepoint(),
        CheckpointRequest(CheckpointKind.FULL),
        CheckpointRequest(drain=True),
        CheckpointRequest(is_last=True),
    ],
)
def test_what_ends_something_is_never_before_the_sinks_turn(request_: CheckpointRequest) -> None:
    cut_ = built(paced(), at(acknowledged(line_snapshots(2, batch=1), request_), 50))

    assert cut_.commit_point


def test_a_cut_in_which_every_source_has_finished_is_the_sinks_turn() -> None:
    snapshots = line_snapshots(2, batch=1)
    snapshots[ORDERS] = replace(snapshots[ORDERS], finished=True)

    assert built(paced(), at(acknowledged(snapshots), 50)).commit_point


def test_a_commit_without_rows_is_not_the_sinks_turn() -> None:
    """A table gets no version of it, and the next rows need not wait for one."""
    one = ledger(options=PACED)
    one.decided(replace(cut(1), commit={T: ()}, started_at_ms=40))

    assert one.is_due(41)


def test_cuts_before_the_sinks_turn_do_not_count_as_overtaken() -> None:
    """Nothing keeps the next one from committing, so it need not stand alone."""
    one = paced()
    one.decided(built(one, at(acknowledged(line_snapshots(2, batch=1)), 50)))
    early = one.recovery_points
    one.decided(replace(cut(3, commit_point=False), started_at_ms=2_000))

    assert (early, one.recovery_points) == (0, 1)


def test_it_is_data_in_flight_that_makes_the_first_cut_stand_alone() -> None:
    """Rule F3: output carried for other reasons is committed by any cut that is due."""
    carried = {T1: (committable(T1, 9),)}
    limit = PACED.commit.recovery_points_max

    def waited(topology: Topology, *, overtaken: bool) -> int:
        standing = Standing(slot=Slot(7), carried=carried, overtaken=overtaken)
        return ledger(topology, standing, PACED).recovery_points

    assert waited(FAN, overtaken=True) == limit
    assert waited(FAN, overtaken=False) == 0
    assert waited(LINE, overtaken=True) == 0
