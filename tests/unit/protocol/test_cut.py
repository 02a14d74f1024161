"""The cut equation: position plus in flight is the barrier's place, in every channel."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    FAN,
    FROM_ORDERS,
    LINE,
    ORDERS,
    RIGHT,
    TABLE,
    A,
    T,
    blob,
    committable,
    cut,
    fan_snapshots,
    in_flight,
    line_snapshots,
    place,
    sink_snapshot,
)

from cutwater.ids import NO_BATCH, BatchId, StepId
from cutwater.protocol.cut import BlobRef, Cut, StepSnapshot, faults
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.recovery import Damage, state_damages
from cutwater.protocol.topology import StepSpec, Topology, inputs_of

STRANGER = StepId("stranger")
NO_FILES = Damage("the state of step table", "no file was stored, and batch 2 was committed")


def changed(step: StepId, snapshot: StepSnapshot) -> dict[StepId, StepSnapshot]:
    """The consistent cut through `LINE` after three batches, with one snapshot replaced."""
    return {**line_snapshots(batch=2), step: snapshot}


def test_an_aligned_cut_satisfies_the_equation() -> None:
    assert faults(LINE, line_snapshots(batch=2)) == ()


def test_a_cut_with_everything_in_flight_recorded_satisfies_the_equation() -> None:
    assert faults(FAN, fan_snapshots(batch=4, right_read=1)) == ()


@pytest.mark.parametrize(
    ("identity", "batch", "state", "found"),
    [
        (StepIdentity(is_query=True), 2, (), 1),
        (StepIdentity(is_query=True), 2, (blob("logs"),), 0),
        # Nothing is committed yet, so that there may be no files.
        (StepIdentity(is_query=True), NO_BATCH, (), 0),
        # The whole state of a batch step is its positions.
        (StepIdentity(is_query=False), 2, (), 0),
        (None, 2, (), 0),
    ],
)
def test_a_query_that_has_committed_a_batch_has_files(
    identity: StepIdentity | None, batch: BatchId, state: tuple[BlobRef, ...], found: int
) -> None:
    """Invariant 5: a listing that failed must not become a snapshot without state."""
    table = replace(LINE[TABLE], identity=identity)
    topology = Topology((LINE[ORDERS], table))
    snapshots = changed(TABLE, replace(sink_snapshot(batch=2), batch=batch, state=state))
    decided = replace(cut(1), snapshots=snapshots, identities=topology.identities)

    wrong = faults(topology, snapshots)

    fault = "table: batch 2 is committed and no file of its query is stored"
    assert wrong == (fault,) * found
    assert decided.without_state == (TABLE,) * found
    assert state_damages(decided) == (NO_FILES,) * found


def test_an_event_that_is_neither_read_nor_recorded_is_a_fault() -> None:
    """Rule F1 and F2, seed 002 C1 and C4: it would be lost."""
    lost = replace(sink_snapshot(batch=2, read=1), in_flight=(in_flight(FROM_ORDERS, 1),))

    (fault,) = faults(LINE, changed(TABLE, lost))

    assert fault == (
        "table: input 0:orders at @1 with 1 in flight does not reach the barrier at @3"
    )


def test_an_event_that_is_both_read_and_recorded_is_a_fault() -> None:
    """Rule F1: it would come twice."""
    twice = replace(sink_snapshot(batch=2), in_flight=(in_flight(FROM_ORDERS, 2),))

    assert len(faults(LINE, changed(TABLE, twice))) == 1


def test_a_step_that_has_read_past_the_barrier_is_a_fault() -> None:
    """Rule F6: an event from behind the barrier in its state would come twice."""
    beyond = replace(sink_snapshot(batch=2), positions={FROM_ORDERS: place(4)})

    assert len(faults(LINE, changed(TABLE, beyond))) == 1


def test_recorded_events_out_of_order_are_a_fault() -> None:
    """Rule F29 and seed 001 C5."""
    mixed = replace(sink_snapshot(batch=2, read=1), in_flight=(in_flight(FROM_ORDERS, 2, 1),))

    assert len(faults(LINE, changed(TABLE, mixed))) == 1


def test_two_recordings_of_one_input_are_a_fault() -> None:
    """Rule F29: the first of them would be restored unseen."""
    doubled = replace(
        sink_snapshot(batch=2, read=1),
        in_flight=(in_flight(FROM_ORDERS, 0), in_flight(FROM_ORDERS, 1, 2)),
    )

    assert faults(LINE, changed(TABLE, doubled)) != ()


def test_a_recording_of_an_unknown_input_is_a_fault() -> None:
    """Seed 000 C4: in-flight data without its channel cannot be put back."""
    foreign = replace(sink_snapshot(batch=2), in_flight=(in_flight(A, 0),))

    assert faults(LINE, changed(TABLE, foreign)) == ("table: in-flight data of unknown input 0:a",)


def test_a_barrier_elsewhere_than_its_producer_put_it_is_a_fault() -> None:
    moved = replace(
        sink_snapshot(batch=1), positions={FROM_ORDERS: place(2)}, barriers={FROM_ORDERS: place(2)}
    )

    found = faults(LINE, changed(TABLE, moved))

    assert found[0] == ("table: barrier of input 0:orders at @2, but its producer put it at @3")


def test_an_event_before_the_barrier_that_the_snapshot_does_not_have_is_a_fault() -> None:
    """Rule F1: the last committed batch instead of the last appended one."""
    behind = replace(line_snapshots(batch=2)[ORDERS], batch=BatchId(1))

    assert faults(LINE, changed(ORDERS, behind)) == (
        "orders: batch 2 lies before the barrier but the snapshot is of batch 1",
    )


def test_a_source_without_offsets_is_a_fault() -> None:
    """Seed 000 C1 and 001 C7: every completed checkpoint had none."""
    blind = replace(line_snapshots(batch=2)[ORDERS], offsets={})

    assert faults(LINE, changed(ORDERS, blind)) == ("orders: a source's snapshot has no offsets",)


def test_a_pinned_source_without_any_batch_needs_no_offsets() -> None:
    """Rule F12: it begins at the same place again."""
    fresh = {
        ORDERS: replace(
            line_snapshots()[ORDERS],
            batch=NO_BATCH,
            output=place(0),
            output_batch=NO_BATCH,
            offsets={},
        ),
        TABLE: replace(
            line_snapshots()[TABLE],
            batch=NO_BATCH,
            positions={FROM_ORDERS: place(0)},
            barriers={FROM_ORDERS: place(0)},
            staged=(),
        ),
    }

    assert faults(LINE, fresh) == ()


def test_a_source_that_ended_without_any_batch_needs_no_offsets() -> None:
    """Rule F2: an empty source that is not pinned can still end."""
    unpinned = Topology((replace(LINE.steps[0], pinned_start=False), LINE.steps[1]))
    empty = replace(
        line_snapshots()[ORDERS],
        batch=NO_BATCH,
        output=place(0),
        output_batch=NO_BATCH,
        offsets={},
    )
    table = replace(
        line_snapshots()[TABLE],
        batch=NO_BATCH,
        positions={FROM_ORDERS: place(0)},
        barriers={FROM_ORDERS: place(0)},
        staged=(),
    )

    assert faults(unpinned, {ORDERS: replace(empty, finished=True), TABLE: table}) == ()
    assert len(faults(unpinned, {ORDERS: empty, TABLE: table})) == 1


def test_output_of_a_later_batch_in_a_snapshot_is_a_fault() -> None:
    """Rule F8: it would be committed now and again with its own cut."""
    snapshots = line_snapshots()
    snapshots[TABLE] = replace(snapshots[TABLE], staged=(committable(T, 99),))

    assert len(faults(LINE, snapshots)) == 1


@pytest.mark.parametrize(
    "partial",
    [replace(sink_snapshot(batch=2), positions={}), replace(sink_snapshot(batch=2), barriers={})],
    ids=["no position", "no barrier"],
)
def test_a_snapshot_that_lacks_an_input_is_a_fault(partial: StepSnapshot) -> None:
    """Invariant 5: a checkpoint lacking any part is invalid, not a crash of the coordinator."""
    assert faults(LINE, changed(TABLE, partial)) != ()


def test_a_missing_step_is_a_fault() -> None:
    assert faults(LINE, {ORDERS: line_snapshots()[ORDERS]}) == ("table has no snapshot",)


def test_an_unknown_step_is_a_fault() -> None:
    """Seed 000 H7 and 001 C8: a ghost landed in the global snapshot."""
    assert faults(LINE, {**line_snapshots(), STRANGER: sink_snapshot()}) == (
        "stranger is not a step of this pipeline",
    )


def test_every_input_of_a_self_join_is_counted_by_itself() -> None:
    """Rule F38."""
    left, right = inputs_of("orders", "orders")
    topology = Topology((StepSpec(ORDERS), StepSpec(TABLE, (left, right), T)))
    joined = replace(
        sink_snapshot(batch=2),
        positions={left: place(3), right: place(1)},
        barriers={left: place(3), right: place(3)},
        in_flight=(in_flight(right, 1, 2),),
    )

    complete = faults(topology, changed(TABLE, joined))
    lacking = faults(topology, changed(TABLE, replace(joined, in_flight=())))

    assert complete == ()
    assert len(lacking) == 1
    assert "1:orders" in lacking[0]


def test_one_sentence_is_given_for_every_contradiction() -> None:
    blind = replace(line_snapshots(batch=2)[ORDERS], offsets={}, batch=BatchId(1))
    lost = replace(sink_snapshot(batch=2, read=1), in_flight=())

    assert len(faults(LINE, {ORDERS: blind, TABLE: lost})) == 3


# -- sizes and blobs


def test_a_snapshot_counts_its_state_and_what_is_in_flight() -> None:
    one = sink_snapshot(batch=2, read=1)

    assert one.in_flight_bytes == 20
    assert one.size_bytes == 27
    assert one.blobs == {blob("table-2", 7), blob("orders-1", 10), blob("orders-2", 10)}


def test_a_cut_counts_every_step_once() -> None:
    """Seed 000 H8: a repeated report was counted twice."""
    whole = Cut(
        cut().checkpoint_id, cut().generation, cut().kind, fan_snapshots(batch=2, right_read=1)
    )

    assert whole.size_bytes == 5 + 7 + 7 + 20
    assert whole.in_flight_bytes == 20
    assert not whole.is_aligned


def test_a_cut_without_anything_in_flight_is_aligned() -> None:
    assert cut().is_aligned
    assert cut().in_flight_bytes == 0


def test_a_cut_has_the_positions_of_all_streams_and_partitions() -> None:
    """Seed 000 C1: one number per stream, and never set."""
    snapshots = line_snapshots()
    snapshots[ORDERS] = replace(snapshots[ORDERS], offsets={"kafka/1": "9", "kafka/0": "8"})
    snapshots[TABLE] = replace(snapshots[TABLE], offsets={"files": "3"})

    assert replace(cut(), snapshots=snapshots).stream_positions == {
        "orders/kafka/0": "8",
        "orders/kafka/1": "9",
        "table/files": "3",
    }


def test_a_cut_whose_sinks_have_not_acted_needs_what_they_prepared() -> None:
    """Rule F8: staging that is lost after the decision cannot be committed."""
    one = cut(commit_point=True)

    assert blob("t-0") in one.blobs(committed=False)
    assert blob("t-0") not in one.blobs(committed=True)


def test_a_recovery_point_needs_what_it_carries_until_a_later_cut_commits_it() -> None:
    """Rule F3."""
    one = cut(commit_point=False)

    assert blob("t-0") in one.blobs(committed=True)


def test_a_cut_needs_state_and_in_flight_data_of_all_steps() -> None:
    whole = replace(cut(), snapshots=fan_snapshots(batch=1, right_read=1))

    assert whole.blobs(committed=True) == {
        blob("orders-1", 5),
        blob("left-1", 7),
        blob("right-1", 7),
        blob("orders-1", 10),
    }


def test_state_belongs_to_a_step_by_name() -> None:
    """Seed 001 M13: state was keyed by a positional number."""
    assert set(cut().snapshots) == {ORDERS, TABLE}
    assert fan_snapshots()[RIGHT].step == RIGHT
