"""The index of a channel: how far each reader may read, where there is room, what may be freed."""

import pytest
from tests.unit.protocol.builders import (
    barrier,
    cancel,
    channel,
    event,
    place,
    reader,
    refusal,
)

from cutwater.errors import ProtocolViolation
from cutwater.ids import ChannelId, CheckpointId
from cutwater.protocol.channel_log import Bound, ChannelLog, Placed
from cutwater.protocol.messages import START, EndOfInput, Message, Place, Watermark

FAST, SLOW = reader("fast"), reader("slow")
ONE, TWO = CheckpointId(1), CheckpointId(2)


# -- appending


def test_events_are_read_in_the_order_they_were_appended() -> None:
    """Invariant 4 and seed 001 C5: sorting by time broke the order of one input."""
    log = channel(FAST)

    log.append(event(0, size_bytes=30))
    log.append(event(1, size_bytes=5))
    end = log.append(event(2, size_bytes=1))

    assert log.read(START, end) == (
        event(0, size_bytes=30),
        event(1, size_bytes=5),
        event(2, size_bytes=1),
    )
    assert end == log.end == Place(3, 36)


def test_appending_a_batch_again_changes_nothing() -> None:
    log = channel(FAST, events_held=2)

    log.append(event(1, rows=9))

    assert log.end == place(2)


def test_a_batch_that_comes_again_after_the_end_changes_nothing() -> None:
    log = channel(FAST, events_held=1)
    log.append(EndOfInput())

    assert log.append(event(0)) == place(1)


def test_an_event_without_rows_is_refused() -> None:
    """Rule F23: an empty batch would wake everything downstream."""
    log = channel(FAST)

    assert "has no rows" in refusal(log, lambda: log.append(event(0, rows=0)))


def test_control_messages_do_not_count_as_positions() -> None:
    """Rule F23: passing a barrier must not look like new data."""
    log = channel(FAST, events_held=1)

    log.append(Watermark(5))
    log.append(barrier(1))
    log.append(EndOfInput())

    assert log.end == place(1)


def test_a_barrier_is_appended_once_per_channel() -> None:
    """Rule F1."""
    log = channel(FAST)
    log.append(barrier(2))

    assert "already has barrier 2" in refusal(log, lambda: log.append(barrier(2)))


def test_an_older_barrier_cannot_follow_a_newer_one() -> None:
    log = channel(FAST)
    log.append(barrier(2))

    assert "is not newer" in refusal(log, lambda: log.append(barrier(1)))


def test_a_cancel_may_follow_the_barrier_it_cancels() -> None:
    log = channel(FAST)
    log.append(barrier(1))

    log.append(cancel(1))

    assert [new.message for new in log.news(FAST)] == [barrier(1), cancel(1)]


@pytest.mark.parametrize("message", [event(5), Watermark(1), barrier(1), cancel(1), EndOfInput()])
def test_nothing_follows_the_end_of_input(message: Message) -> None:
    log = channel(FAST, events_held=1)
    log.append(EndOfInput())

    assert "has ended" in refusal(log, lambda: log.append(message))
    assert log.ended


def test_a_barrier_follows_what_was_appended_before_it() -> None:
    """Seed 001 C6: barriers did not flow through the event queues."""
    log = channel(FAST, events_held=2)

    log.append(barrier(1))
    log.append(event(2))

    assert log.news(FAST) == (Placed(place(2), barrier(1)),)
    assert log.limit(FAST) == place(2)


# -- room


def test_a_producer_waits_when_its_slowest_reader_is_too_many_messages_behind() -> None:
    """Invariant 12 and seed 001 H10: buffering had no bound."""
    log = channel(FAST, SLOW, events_held=2)
    log.advance(FAST, place(2))

    assert not log.has_room(Bound(2, 1_000))
    assert log.has_room(Bound(3, 1_000))


def test_a_producer_waits_when_its_slowest_reader_is_too_many_bytes_behind() -> None:
    log = channel(FAST, SLOW, events_held=2)
    log.advance(FAST, place(2))

    assert not log.has_room(Bound(100, 20))
    assert log.has_room(Bound(100, 21))


def test_room_is_counted_from_where_the_slowest_reader_stands() -> None:
    log = channel(SLOW, events_held=6)
    log.advance(SLOW, place(5))

    assert log.has_room(Bound(2, 11))
    assert not log.has_room(Bound(1, 11))
    assert not log.has_room(Bound(2, 10))


def test_a_refused_event_is_still_the_producers() -> None:
    """Invariant 12 and seed 002 C6: an event that found the buffer full was dropped."""
    log = channel(SLOW, events_held=2)

    assert not log.has_room(Bound(2, 1_000))
    assert log.read(START, log.end) == (event(0), event(1))


def test_an_event_larger_than_the_bound_gets_in_when_there_is_room_before_it() -> None:
    """Rule F24."""
    log = channel(SLOW)

    assert log.has_room(Bound(10, 100))

    log.append(event(0, size_bytes=5_000))
    assert not log.has_room(Bound(10, 100))


def test_the_one_event_that_lets_a_barrier_out_may_exceed_the_bound() -> None:
    """Rule F24: cheap, and removes most unaligned cuts."""
    log = channel(SLOW, events_held=2)
    bound = Bound(2, 20)

    before = log.has_room(bound, lets_barrier_out=True)
    log.append(event(2, size_bytes=20))
    after = log.has_room(bound, lets_barrier_out=True)

    assert not log.has_room(bound)
    assert before
    assert not after


def test_an_empty_channel_has_room_whatever_the_bound_says() -> None:
    """Rule F24: under the bound, or empty."""
    log = channel(SLOW)

    assert log.has_room(Bound(0, 0))


def test_reading_makes_room_before_anything_is_committed() -> None:
    """Rule F17: an idle reader commits nothing, and the producer would wait for ever."""
    log = channel(SLOW, events_held=2)

    log.advance(SLOW, place(2))

    assert log.has_room(Bound(2, 20))
    assert log.free() == ()


def test_a_barrier_is_appended_whatever_the_bound_says() -> None:
    log = channel(SLOW, events_held=5)

    log.append(barrier(1))

    assert not log.has_room(Bound(1, 1))
    assert log.news(SLOW) == (Placed(place(5), barrier(1)),)


def test_a_channel_without_readers_always_has_room() -> None:
    log = channel(events_held=3)

    assert log.has_room(Bound(1, 1))
    assert log.free() == (event(0), event(1), event(2))


# -- the limit


def test_a_reader_stops_before_a_barrier_that_was_not_released() -> None:
    """Rule F6: a limit that is open by default lets a batch span the barrier."""
    log = channel(FAST, events_held=1)
    log.append(barrier(1))
    log.append(event(1))

    assert log.limit(FAST) == place(1)


def test_a_reader_goes_on_once_the_barrier_is_released() -> None:
    log = channel(FAST, events_held=1)
    log.append(barrier(1))
    log.append(event(1))

    log.release(FAST, ONE)

    assert log.limit(FAST) == place(2)


def test_a_release_before_the_barrier_is_there_counts_when_it_comes() -> None:
    """Rule F28: the late barrier of an ended attempt holds no reader."""
    log = channel(FAST)
    log.release(FAST, ONE)

    log.append(barrier(1))
    log.append(event(0))

    assert log.limit(FAST) == place(1)


def test_a_release_frees_one_attempt_and_one_reader_only() -> None:
    """Seed 001 C1 and 002 C5: ids were never compared."""
    log = channel(FAST, SLOW, events_held=1)
    log.append(barrier(1))
    log.append(event(1))
    log.append(barrier(2))
    log.append(event(2))

    log.release(FAST, ONE)

    assert log.limit(FAST) == place(2)
    assert log.limit(SLOW) == place(1)


def test_a_reader_knows_which_attempts_would_stop_it() -> None:
    log = channel(FAST)
    log.append(barrier(2))

    before = [log.holds(FAST, ONE), log.holds(FAST, TWO)]
    log.release(FAST, TWO)
    released = [log.holds(FAST, ONE), log.holds(FAST, TWO)]
    log.limit(FAST)
    passed = [log.holds(FAST, ONE), log.holds(FAST, TWO)]

    assert before == [True, True]
    assert released == [True, False]
    assert passed == [False, False]


def test_a_later_release_does_not_open_an_earlier_barrier() -> None:
    log = channel(FAST, events_held=1)
    log.append(barrier(1))
    log.append(event(1))
    log.append(barrier(2))

    log.release(FAST, TWO)

    assert log.limit(FAST) == place(1)


def test_releases_for_a_channel_that_has_ended_are_not_kept() -> None:
    """Everything is bounded: no barrier will ever spend them, and attempts go on for months."""
    log = channel(FAST)
    log.append(EndOfInput())

    log.release(FAST, ONE)
    log.release(FAST, TWO)

    assert not log._readers[FAST].released


def test_the_last_barrier_before_an_end_can_still_be_released() -> None:
    log = channel(FAST)
    log.append(barrier(1))
    log.append(event(0))
    log.append(EndOfInput())

    log.release(FAST, ONE)

    assert log.limit(FAST) == place(1)


def test_a_barrier_that_was_passed_never_holds_again() -> None:
    log = channel(FAST)
    log.append(barrier(1))
    log.release(FAST, ONE)
    log.limit(FAST)

    log.append(event(0))
    log.release(FAST, TWO)
    log.append(barrier(2))
    log.append(event(1))

    assert log.limit(FAST) == place(2)


def test_watermarks_cancels_and_the_end_hold_no_reader() -> None:
    """Rule F37 and F18: they gate nothing."""
    log = channel(FAST)
    log.append(Watermark(1))
    log.append(event(0))
    log.append(cancel(7))
    log.append(event(1))
    log.append(EndOfInput())

    assert log.limit(FAST) == place(2)


def test_an_event_after_a_released_barrier_is_neither_lost_nor_moved() -> None:
    """Seed 001 C3 and 002 C3: post-barrier events were swallowed by the buffer and cleared."""
    log = channel(FAST, events_held=1)
    log.append(barrier(1))
    log.append(event(1))
    log.advance(FAST, place(1))

    log.release(FAST, ONE)

    assert log.read(log.position(FAST), log.limit(FAST)) == (event(1),)


# -- positions


def test_a_reader_advances_to_its_limit() -> None:
    log = channel(FAST, events_held=3)

    log.advance(FAST, place(2))

    assert log.position(FAST) == place(2)
    assert log.backlog(FAST) == Bound(1, 10)


def test_a_reader_may_stay_where_it_is() -> None:
    """Rule F23: a batch without new data moves nothing."""
    log = channel(FAST, events_held=1)
    log.advance(FAST, place(1))

    log.advance(FAST, place(1))

    assert log.position(FAST) == place(1)


@pytest.mark.parametrize("target", [0, 3])
def test_a_reader_moves_neither_back_nor_past_its_limit(target: int) -> None:
    log = channel(FAST, events_held=2)
    log.append(barrier(1))
    log.append(event(2))
    log.advance(FAST, place(1))

    assert "cannot move" in refusal(log, lambda: log.advance(FAST, place(target)))


def test_two_inputs_of_one_step_read_the_same_channel_at_their_own_pace() -> None:
    """Rule F38: a self-join."""
    left, right = reader("self-join", 0), reader("self-join", 1)
    log = channel(left, right, events_held=2)

    log.advance(left, place(2))

    assert (log.position(left), log.position(right)) == (place(2), START)


def test_control_messages_are_reported_once_however_far_behind_the_reader_is() -> None:
    """Rule F18: the record of the end is found ahead of the position."""
    log = channel(SLOW, events_held=4)
    log.append(barrier(1))
    log.append(cancel(1))

    first, second = log.news(SLOW), log.news(SLOW)

    assert [row.message for row in first] == [barrier(1), cancel(1)]
    assert second == ()


def test_a_reader_gets_only_news_that_it_has_not_had() -> None:
    log = channel(FAST, SLOW)
    log.append(barrier(1))
    log.news(FAST)

    log.append(barrier(2))

    assert [new.message for new in log.news(FAST)] == [barrier(2)]
    assert [new.message for new in log.news(SLOW)] == [barrier(1), barrier(2)]


@pytest.mark.parametrize(("start", "end"), [(0, 3), (2, 1)])
def test_a_range_that_the_log_does_not_hold_cannot_be_read(start: int, end: int) -> None:
    log = channel(FAST, events_held=2)

    assert "holds @0..@2" in refusal(log, lambda: log.read(place(start), place(end)))


def test_the_place_of_an_ordinal_is_where_its_event_begins() -> None:
    log = channel(FAST)
    log.append(event(0, size_bytes=30))
    log.append(event(1, size_bytes=5))

    assert [log.place(0), log.place(1), log.place(2)] == [Place(0, 0), Place(1, 30), Place(2, 35)]


# -- watermarks


def test_a_reader_has_no_watermark_before_it_passes_one() -> None:
    log = channel(FAST, events_held=1)
    log.append(Watermark(100))

    assert log.watermark_ms(FAST) is None


def test_a_watermark_is_passed_with_the_events_before_it() -> None:
    """Seed 002 H14: watermarks had no interpreter."""
    log = channel(FAST, events_held=1)
    log.append(Watermark(100))
    log.append(event(1))
    log.append(Watermark(200))

    log.advance(FAST, place(1))

    assert log.watermark_ms(FAST) == 100


def test_the_watermark_at_a_position_is_known_before_the_reader_moves_there() -> None:
    log = channel(FAST, events_held=1)
    log.append(Watermark(100))
    log.append(event(1))
    log.append(Watermark(200))

    assert [log.watermark_ms(FAST, position) for position in (0, 1, 2)] == [None, 100, 200]
    assert log.watermark_ms(FAST) is None


def test_a_watermark_after_a_held_barrier_is_passed_with_the_release() -> None:
    log = channel(FAST, events_held=1)
    log.append(barrier(1))
    log.append(Watermark(100))
    log.advance(FAST, place(1))

    held = log.watermark_ms(FAST)
    log.release(FAST, ONE)

    assert held is None
    assert log.watermark_ms(FAST) == 100


def test_a_watermark_that_comes_to_an_idle_reader_is_passed_at_once() -> None:
    log = channel(FAST, events_held=1)
    log.advance(FAST, place(1))

    log.append(Watermark(100))

    assert log.watermark_ms(FAST) == 100


# -- freeing


def test_events_are_freed_when_every_reader_has_committed_them() -> None:
    log = channel(FAST, SLOW, events_held=3)
    log.advance(FAST, place(3))
    log.settle(FAST)
    log.advance(SLOW, place(1))
    log.settle(SLOW)

    assert log.free() == (event(0),)
    assert log.base == place(1)


def test_an_event_of_an_uncommitted_batch_is_kept() -> None:
    """Rule F26: a retried read still needs it."""
    log = channel(FAST, events_held=2)
    log.advance(FAST, place(2))

    assert log.free() == ()


def test_an_event_that_an_attempt_records_is_kept_until_the_attempt_is_over() -> None:
    """Rule F26 and F27."""
    log = channel(FAST, events_held=3)
    log.protect(ONE, FAST, place(1))
    log.advance(FAST, place(3))
    log.settle(FAST)

    during = log.free()
    log.unprotect(ONE, FAST)
    after = log.free()

    assert during == (event(0),)
    assert after == (event(1), event(2))


def test_the_lowest_of_several_protections_counts() -> None:
    log = channel(FAST, SLOW, events_held=3)
    log.protect(ONE, FAST, place(2))
    log.protect(TWO, SLOW, place(1))
    log.advance(FAST, place(3))
    log.settle(FAST)
    log.advance(SLOW, place(3))
    log.settle(SLOW)

    assert log.free() == (event(0),)


def test_ending_a_protection_that_does_not_exist_changes_nothing() -> None:
    log = channel(FAST)

    log.unprotect(ONE, FAST)

    assert log.free() == ()


def test_a_freed_event_cannot_be_read() -> None:
    log = channel(FAST, events_held=2)
    log.advance(FAST, place(1))
    log.settle(FAST)
    log.free()

    assert "holds @1..@2" in refusal(log, lambda: log.read(START, place(2)))
    assert log.read(place(1), place(2)) == (event(1),)


def test_control_messages_that_every_reader_has_passed_are_freed() -> None:
    log = channel(FAST)
    log.append(barrier(1))
    log.release(FAST, ONE)
    log.news(FAST)
    log.limit(FAST)

    held = log.controls
    log.free()

    assert (held, log.controls, log.controls_freed) == (1, 0, 1)


def test_a_watermark_that_was_passed_with_its_events_is_freed() -> None:
    log = channel(FAST, events_held=1)
    log.append(Watermark(100))
    log.news(FAST)
    log.advance(FAST, place(1))

    log.free()

    assert log.controls == 0


def test_a_release_is_forgotten_when_its_barrier_is_passed() -> None:
    """Everything is bounded."""
    log = channel(FAST)
    log.append(barrier(1))
    log.release(FAST, ONE)
    log.release(FAST, TWO)

    log.limit(FAST)

    assert log._readers[FAST].released == {TWO}


def test_a_control_message_that_holds_a_reader_is_kept() -> None:
    log = channel(FAST)
    log.append(barrier(1))
    log.news(FAST)
    log.limit(FAST)

    log.free()
    log.append(event(0))

    assert log.limit(FAST) == START


# -- restoring


def test_a_restored_channel_holds_the_range_with_every_reader_at_its_own_place() -> None:
    """Rule F29: per channel [lowest position, barrier], events only."""
    log = ChannelLog(
        ChannelId("orders"),
        {FAST: place(7), SLOW: place(5)},
        base=place(5),
        events=(event(40), event(41)),
    )

    assert log.end == place(7)
    assert log.read(log.position(SLOW), log.limit(SLOW)) == (event(40), event(41))
    assert log.backlog(FAST) == Bound(0, 0)


def test_a_restored_channel_is_open_and_has_no_batch_of_this_generation() -> None:
    """Rule F2: the end of input is never restored."""
    log = ChannelLog(ChannelId("orders"), {FAST: place(5)}, base=place(5), events=(event(40),))

    assert not log.ended
    assert log.append(event(41)) == place(7)


@pytest.mark.parametrize("position", [4, 7])
def test_a_reader_outside_a_restored_range_is_refused(position: int) -> None:
    """Rule F29: low <= p <= b is checked."""
    with pytest.raises(ProtocolViolation, match=r"outside @5\.\.@6"):
        ChannelLog(ChannelId("orders"), {FAST: place(position)}, base=place(5), events=(event(0),))


def test_what_lies_after_a_barrier_that_was_not_announced_is_not_recorded() -> None:
    """Rule F21: it would be counted against the bound although it is not in flight."""
    log = ChannelLog(ChannelId("orders"), {FAST: START})
    log.append(event(0))
    before = log.recordable(FAST)
    log.append(cancel(1))
    log.append(barrier(2))
    barrier_at = log.end
    log.append(event(1))

    assert before == barrier_at == log.recordable(FAST)
    log.news(FAST)
    assert log.recordable(FAST) == log.end


def test_an_event_that_is_not_in_the_log_has_no_place() -> None:
    log = channel(reader(), events_held=3)

    assert log.place(3) == log.end
    with pytest.raises(ProtocolViolation, match="not @4"):
        log.place(4)
