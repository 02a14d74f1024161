"""What a progress record remembers, and what it concludes."""

import pytest

from cutwater.errors import SinkError, Superseded
from cutwater.ids import SinkId, Slot
from cutwater.sinks.kafka.progress import SLOTS_MAX, Progress

SINK = SinkId("orders")


def finished(*slots: int) -> Progress:
    """Each slot has ten rows."""
    progress = Progress()
    for slot in slots:
        progress = progress.finish(Slot(slot), 10)
    return progress


def test_a_record_survives_its_way_through_kafka() -> None:
    progress = finished(1, 4).advance(Slot(6), 3)

    assert Progress.unpack(progress.pack(), SINK) == progress


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(SinkError, match="has the format 2"):
        Progress.unpack(b'{"format": 2}', SINK)
    with pytest.raises(SinkError, match="is damaged"):
        Progress.unpack(b"{", SINK)


def test_a_slot_is_done_open_or_passed_over() -> None:
    progress = finished(1, 4)

    assert progress.is_done(Slot(1), SINK)
    assert not progress.is_done(Slot(5), SINK)
    with pytest.raises(Superseded):
        progress.is_done(Slot(3), SINK)


def test_a_slot_that_is_written_in_parts_is_not_done_and_supersedes_older_ones() -> None:
    progress = finished(1).advance(Slot(4), 7)

    assert not progress.is_done(Slot(4), SINK)
    assert progress.written_of(Slot(4)) == 7
    assert progress.rows == 17
    with pytest.raises(Superseded):
        progress.is_done(Slot(3), SINK)


def test_rows_of_a_slot_that_is_abandoned_still_count() -> None:
    progress = finished(1).advance(Slot(4), 7).finish(Slot(5), 2)

    assert progress.totals == ((1, 10), (4, 17), (5, 19))
    assert progress.written_of(Slot(5)) == 0


def test_a_finished_slot_counts_all_its_parts_once() -> None:
    progress = finished(1).advance(Slot(4), 7).finish(Slot(4), 9)

    assert progress.totals == ((1, 10), (4, 19))
    assert progress.partial is None


def test_a_slot_that_a_rewind_left_unfinished_is_counted_and_never_done() -> None:
    progress = finished(1).advance(Slot(4), 7).finish(Slot(6), 9)

    assert progress.totals == ((1, 10), (4, 17), (6, 26))
    assert Progress.unpack(progress.pack(), SINK) == progress
    assert progress.is_done(Slot(6), SINK)
    with pytest.raises(Superseded):
        progress.is_done(Slot(4), SINK)


def test_rows_at_a_slot_are_those_of_all_slots_up_to_it() -> None:
    progress = finished(2, 5)

    assert [progress.rows_at(slot) for slot in (0, 1, 2, 4, 5, 9)] == [0, 0, 10, 10, 20, 20]


def test_old_slots_are_forgotten_and_their_number_is_then_unknown() -> None:
    progress = finished(*range(1, SLOTS_MAX + 3))

    assert len(progress.totals) == SLOTS_MAX
    assert progress.rows_at(2) is None
    assert progress.rows_at(3) == 30
