"""Snapshots on their way: pinned when committed, stored when captured, reported when stored."""

from dataclasses import replace

from tests.unit.protocol.builders import FROM_ORDERS, blob, in_flight, place, refusal, sink_snapshot

from cutwater.ids import BatchId, CheckpointId
from cutwater.protocol.step.aligner_events import Captured
from cutwater.protocol.step.events import Acknowledge, Forget, Pin, Stored, Upload
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.step.snapshots import SnapshotBook

ONE, TWO = CheckpointId(1), CheckpointId(2)
SNAPSHOT = replace(sink_snapshot(1, batch=4), barriers={}, state=())
RANGES = (InFlightRange(FROM_ORDERS, place(3), place(5)),)
CAPTURED = Captured(ONE, RANGES, {FROM_ORDERS: place(5)})
LOCATED = replace(SNAPSHOT, barriers={FROM_ORDERS: place(5)})


def test_a_committed_snapshot_with_nothing_to_capture_is_stored_at_once() -> None:
    book = SnapshotBook()

    commands = book.note(SNAPSHOT, committed=True, captured=True)

    assert commands == (Pin(ONE, BatchId(4)), Upload(SNAPSHOT, ()))
    assert ONE in book


def test_a_snapshot_is_pinned_as_soon_as_its_batch_is_committed() -> None:
    """Rule F27: before its files can be deleted, also while data is still in flight."""
    book = SnapshotBook()
    noted = book.note(SNAPSHOT, committed=False, captured=False)

    commands = book.batch_committed(BatchId(4))

    assert noted == ()
    assert commands == (Pin(ONE, BatchId(4)),)


def test_a_snapshot_is_stored_when_its_batch_is_committed_after_the_capture() -> None:
    """Rule F1: the acknowledgement waits for the last appended batch."""
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=False, captured=False)
    captured = book.captured(CAPTURED)

    commands = book.batch_committed(BatchId(4))

    assert captured == ()
    assert commands == (Pin(ONE, BatchId(4)), Upload(LOCATED, RANGES))


def test_a_snapshot_is_stored_when_the_capture_comes_after_the_commit() -> None:
    """Seed 002 C4: what arrives after the snapshot belongs to it too."""
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=False)

    assert book.captured(CAPTURED) == (Upload(LOCATED, RANGES),)


def test_the_commit_of_another_batch_moves_nothing() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=False, captured=True)

    assert book.batch_committed(BatchId(3)) == ()


def test_a_batch_is_committed_once_for_a_snapshot() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=True)

    assert book.batch_committed(BatchId(4)) == ()


def test_two_attempts_may_take_the_same_batch() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=False, captured=True)
    book.note(replace(SNAPSHOT, checkpoint_id=TWO), committed=False, captured=True)

    commands = book.batch_committed(BatchId(4))

    assert [command for command in commands if isinstance(command, Pin)] == [
        Pin(ONE, BatchId(4)),
        Pin(TWO, BatchId(4)),
    ]


def test_a_stored_snapshot_is_acknowledged_with_what_was_stored() -> None:
    """Seed 000 C4 and 001 M13: in-flight data names its input, state its size and hash."""
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=False)
    book.captured(CAPTURED)
    recorded = (in_flight(FROM_ORDERS, 3, 4),)

    commands = book.stored(Stored(ONE, (blob("s"),), recorded))

    assert commands == (Acknowledge(replace(LOCATED, state=(blob("s"),), in_flight=recorded)),)


def test_a_snapshot_that_is_not_being_stored_cannot_be_stored() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=False)

    assert "was not being stored" in refusal(book, lambda: book.stored(Stored(ONE)))


def test_a_snapshot_is_acknowledged_once() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=True)
    book.stored(Stored(ONE))

    assert "was not being stored" in refusal(book, lambda: book.stored(Stored(ONE)))


def test_a_snapshot_that_was_forgotten_while_being_stored_is_ignored() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=True, captured=True)
    forgotten = book.forget(ONE)

    assert forgotten == (Forget(ONE),)
    assert book.stored(Stored(ONE)) == ()
    assert ONE not in book


def test_forgetting_an_unknown_snapshot_changes_nothing() -> None:
    assert SnapshotBook().forget(ONE) == ()


def test_the_batch_of_an_open_snapshot_can_be_asked() -> None:
    book = SnapshotBook()
    book.note(SNAPSHOT, committed=False, captured=True)

    assert book.batch_of(ONE) == 4
    assert book.batch_of(TWO) is None
