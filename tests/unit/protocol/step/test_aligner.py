"""The aligner: when a step's barrier goes out, and that no input is held longer than an attempt."""

import pytest
from tests.unit.protocol.builders import (
    ALIGNED_ONLY,
    FORCED,
    GENERATION,
    PATIENT,
    A,
    B,
    aligner,
    barrier,
    cancel,
    channel,
    end_seen,
    event,
    only,
    place,
    reader,
    refusal_of,
    seen,
    tell,
)

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.messages import Flag
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    Advanced,
    AlignmentProgress,
    AlignmentState,
    Announced,
    AttemptOver,
    BarrierSeen,
    Captured,
    Cause,
    Decline,
    Emit,
    EndSeen,
    LogGrew,
    Protect,
    Release,
    Tick,
)
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.topology import inputs_of

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
(STRANGER,) = inputs_of("stranger")
SELF_JOIN = inputs_of("orders", "orders")
SMALL = UnalignedOptions(alignment_timeout_ms=100, max_inflight_bytes=30)


# -- aligned


def test_a_single_input_is_aligned_when_the_step_stands_at_its_barrier() -> None:
    step = aligner(A)

    commands = tell(step, seen(A, 0))

    assert commands == (
        Emit(barrier(1), Cause.ALIGNED),
        Captured(ONE, (), {A: place(0)}),
        Release(ONE),
    )


def test_a_barrier_ahead_of_the_position_waits_until_it_is_reached() -> None:
    step = aligner(A)

    before = tell(step, seen(A, 3), Advanced({A: place(2)}))
    at_barrier = tell(step, Advanced({A: place(3)}))

    assert before == ()
    assert only(Emit, at_barrier) == (Emit(barrier(1), Cause.ALIGNED),)


def test_a_step_is_not_aligned_while_any_input_is_before_its_barrier() -> None:
    """Rule F1: aligned means the last appended batch ends at the barrier on every input."""
    step = aligner(A, B)

    waiting = tell(step, seen(A, 0), seen(B, 2), Advanced({B: place(1)}))
    commands = tell(step, Advanced({B: place(2)}))

    assert waiting == ()
    assert only(Captured, commands) == (Captured(ONE, (), {A: place(0), B: place(2)}),)


def test_an_input_at_its_barrier_is_held_while_the_others_run_on() -> None:
    step = aligner(A, B)
    tell(step, seen(A, 1), Advanced({A: place(1)}), Advanced({B: place(7)}))

    message = refusal_of(step, Advanced({A: place(2)}))

    assert "held at @1" in message
    assert step.positions == {A: place(1), B: place(7)}


def test_a_batch_that_would_span_the_barrier_is_refused() -> None:
    """Rule F6."""
    step = aligner(A)
    tell(step, seen(A, 2))

    assert "held at @2" in refusal_of(step, Advanced({A: place(3)}))


def test_a_step_that_read_past_a_barrier_is_refused_it() -> None:
    """Rule F6: the barrier was noticed too late."""
    step = aligner(A)
    tell(step, Advanced({A: place(5)}))

    assert "was read past barrier 1" in refusal_of(step, seen(A, 4))


def test_a_step_never_moves_back() -> None:
    step = aligner(A)
    tell(step, Advanced({A: place(5)}))

    assert "cannot move to @4" in refusal_of(step, Advanced({A: place(4)}))


def test_a_batch_that_moves_nothing_is_no_progress() -> None:
    """Rule F23: a batch without new data counts nowhere twice."""
    step = aligner(A, B)
    tell(step, seen(A, 0), seen(B, 1))

    commands = tell(step, Advanced({}), Advanced({A: place(0)}), Advanced({A: place(0)}))

    assert commands == ()


def test_an_aligned_step_holds_nothing_any_more() -> None:
    """Seed 001 C3: after Aligned every event was still swallowed."""
    step = aligner(A)

    aligned = tell(step, seen(A, 0))
    tell(step, Advanced({A: place(9)}))

    assert Release(ONE) in aligned
    assert step.positions == {A: place(9)}


def test_what_is_appended_during_an_alignment_is_read_after_it_in_order() -> None:
    """Invariant 3 and seed 002 C2: the aligned path cleared everything it had held back."""
    left, right = reader("join", 0), reader("join", 1)
    held, late = channel(left, events_held=1), channel(right)
    step = aligner(left.input, right.input)
    held.append(barrier(1))
    held.advance(left, place(1))
    tell(step, Advanced({left.input: place(1)}), seen(left.input, 1))
    held.append(event(1))
    held.append(event(2))
    while_held = held.read(held.position(left), held.limit(left))

    (release,) = only(Release, tell(step, seen(right.input, 0)))
    held.release(left, release.checkpoint_id)

    assert while_held == ()
    assert held.read(held.position(left), held.limit(left)) == (event(1), event(2))
    assert late.backlog(right) == Bound(0, 0)


def test_a_barrier_that_is_seen_again_is_answered_once() -> None:
    """Seed 001 H11: a re-delivered barrier made a second snapshot."""
    step = aligner(A)
    tell(step, seen(A, 0))

    assert tell(step, seen(A, 0)) == ()


def test_one_barrier_at_two_places_of_an_input_is_refused() -> None:
    """Rule F1: appended at most once per channel."""
    step = aligner(A, B)
    tell(step, seen(A, 2))

    assert "appears twice" in refusal_of(step, seen(A, 3))


def test_barriers_of_different_attempts_never_align() -> None:
    """Seed 001 C1 and 002 C5: barrier 1 of A and barrier 2 of B counted as aligned."""
    step = aligner(A, B)

    commands = tell(step, seen(A, 0, 1), seen(B, 0, 2))

    assert only(Emit, commands) == ()
    assert only(Captured, commands) == ()


def test_a_barrier_of_a_stranger_is_refused() -> None:
    """Seed 001 C2 and 002 C8: inputs were counted, not known."""
    step = aligner(A, B)
    tell(step, seen(A, 0))

    assert "not an input" in refusal_of(step, seen(STRANGER, 0))


@pytest.mark.parametrize(
    "news",
    [
        EndSeen(STRANGER, place(0)),
        LogGrew(STRANGER, place(0)),
        Advanced({STRANGER: place(0)}),
    ],
)
def test_anything_about_a_stranger_is_refused(news: EndSeen | LogGrew | Advanced) -> None:
    """Seed 002 C6: an event of an unknown input was taken and dropped."""
    assert "not an input" in refusal_of(aligner(A), news)


@pytest.mark.parametrize(
    "news",
    [
        BarrierSeen(A, barrier(1, epoch=Generation(2)), place(0)),
        BarrierSeen(A, barrier(1, Flag.CANCEL, epoch=Generation(2)), place(0)),
        Announced(barrier(1, epoch=Generation(4))),
    ],
)
def test_a_barrier_of_another_generation_is_refused(news: BarrierSeen | Announced) -> None:
    """Seed 000 C3: nothing distinguished two incarnations."""
    assert "this is generation 3" in refusal_of(aligner(A), news)


def test_an_aligner_without_inputs_is_refused() -> None:
    """Seed 002 C8: with no inputs it never completed."""
    with pytest.raises(ProtocolViolation, match="at least one input"):
        Aligner({}, ALIGNED_ONLY, generation=GENERATION)


def test_two_hundred_inputs_align() -> None:
    """Seed 002 C8: more than 128 inputs panicked or never aligned."""
    sources = inputs_of(*(f"input-{number}" for number in range(200)))
    step = aligner(*sources)

    commands = tell(step, *(seen(source, 0) for source in sources))

    assert only(Emit, commands) == (Emit(barrier(1), Cause.ALIGNED),)


def test_two_inputs_of_one_channel_are_two_inputs() -> None:
    """Rule F38: a self-join."""
    left, right = SELF_JOIN
    step = aligner(left, right)

    first = tell(step, seen(left, 1), Advanced({left: place(1)}))
    second = tell(step, seen(right, 1), Advanced({right: place(1)}))

    assert first == ()
    assert only(Captured, second) == (Captured(ONE, (), {left: place(1), right: place(1)}),)


# -- announcements and ends of attempts


def test_an_announcement_alone_lets_nothing_out() -> None:
    step = aligner(A)

    assert tell(step, Announced(barrier(1)), Announced(barrier(1))) == ()
    assert only(Emit, tell(step, seen(A, 0))) == (Emit(barrier(1), Cause.ALIGNED),)


def test_the_end_of_an_attempt_releases_what_it_held() -> None:
    """Seed 001 C4 and rule F18: cancelling an alignment dropped what was buffered."""
    step = aligner(A, B)
    tell(step, seen(A, 1), Advanced({A: place(1)}))

    commands = tell(step, AttemptOver(ONE))
    tell(step, Advanced({A: place(5)}))

    assert commands == (Release(ONE),)
    assert step.positions[A] == place(5)


def test_a_repeated_end_of_an_attempt_only_releases_again() -> None:
    step = aligner(A, B)
    tell(step, seen(A, 1), AttemptOver(ONE))

    assert tell(step, AttemptOver(ONE)) == (Release(ONE),)


def test_the_end_of_an_unseen_attempt_releases_its_future_barriers() -> None:
    """Rule F18."""
    step = aligner(A, B)

    assert tell(step, AttemptOver(ONE)) == (Release(ONE),)


def test_a_cancel_in_the_log_ends_the_attempt_too() -> None:
    """Seed 002 C5: CANCEL was ignored."""
    step = aligner(A, B)
    tell(step, seen(A, 1))

    assert tell(step, BarrierSeen(B, cancel(1), place(4))) == (Release(ONE),)
    assert tell(step, AttemptOver(ONE)) == (Release(ONE),)


def test_a_late_barrier_of_an_ended_attempt_starts_nothing() -> None:
    """Rule F18: ids up to the last ended one are ignored."""
    step = aligner(A)
    tell(step, AttemptOver(ONE), Advanced({A: place(4)}))

    commands = tell(step, Announced(barrier(1)), seen(A, 2, 1))

    assert set(commands) <= {Release(ONE)}
    assert step.deadline_ms is None


def test_the_end_of_a_later_attempt_does_not_swallow_an_earlier_one() -> None:
    """Seed 001 C8: what concerned one attempt was credited to another."""
    step = aligner(A, max_concurrent=2)
    tell(step, Announced(barrier(1)), Announced(barrier(2)), AttemptOver(TWO))

    commands = tell(step, seen(A, 0, 1))

    assert only(Emit, commands) == (Emit(barrier(1), Cause.ALIGNED),)


def test_the_end_of_an_attempt_releases_it_whatever_has_ended_before() -> None:
    """Rule F18: a reader that waits at a barrier of an ended attempt would wait for ever."""
    step = aligner(A, max_concurrent=2)
    commands = tell(step, AttemptOver(TWO), seen(A, 3, 1), AttemptOver(ONE))

    assert set(commands) == {Release(TWO), Release(ONE)}


def test_ended_attempts_are_forgotten() -> None:
    step = aligner(A)
    tell(step, *(AttemptOver(CheckpointId(number)) for number in range(1, 100)))

    assert not step._over
    assert step._floor == 99


# -- concurrent attempts


def test_a_newer_attempt_ends_the_oldest_when_no_more_may_be_open() -> None:
    """Rule F28 and seed 002 C5: the barrier n+1 of a fast input was swallowed."""
    step = aligner(A, B)
    tell(step, seen(A, 1, 1))

    commands = tell(step, seen(A, 2, 2))

    assert commands == (Release(ONE),)
    assert only(Emit, tell(step, seen(B, 0, 1))) == ()


def test_an_older_attempt_than_those_open_is_passed_by() -> None:
    """Rule F28: an aborted attempt's barrier comes after the next one's."""
    step = aligner(A, B)
    tell(step, seen(A, 1, 2))

    commands = tell(step, seen(B, 0, 1))

    assert commands == (Release(ONE),)


def test_an_announcement_of_an_older_attempt_than_those_open_is_passed_by() -> None:
    step = aligner(A, B)
    tell(step, Announced(barrier(2)))

    assert tell(step, Announced(barrier(1))) == (Release(ONE),)


def test_two_attempts_may_be_open_and_go_out_in_order() -> None:
    step = aligner(A, B, max_concurrent=2)
    tell(step, seen(A, 1, 1), seen(A, 2, 2), seen(B, 1, 1), seen(B, 2, 2))
    tell(step, Advanced({A: place(1)}))

    first = tell(step, Advanced({B: place(1)}))
    second = tell(step, Advanced({A: place(2), B: place(2)}))

    assert only(Emit, first) == (Emit(barrier(1), Cause.ALIGNED),)
    assert only(Emit, second) == (Emit(barrier(2), Cause.ALIGNED),)


def test_two_barriers_at_one_place_go_out_together_in_order() -> None:
    step = aligner(A, max_concurrent=2)

    commands = tell(step, seen(A, 1, 1), seen(A, 1, 2), Advanced({A: place(1)}))

    assert [emit.barrier.checkpoint_id for emit in only(Emit, commands)] == [1, 2]
    assert only(Release, commands) == (Release(ONE), Release(TWO))


def test_a_later_attempt_waits_for_an_earlier_one_that_cannot_align_here() -> None:
    step = aligner(A, B, max_concurrent=2)
    tell(step, seen(B, 0, 1), seen(A, 0, 2), seen(B, 0, 2))

    commands = tell(step, AttemptOver(ONE))

    assert commands[0] == Release(ONE)
    assert only(Emit, commands) == (Emit(barrier(2), Cause.ALIGNED),)


def test_the_attempts_stay_ordered_when_the_older_one_is_seen_later() -> None:
    step = aligner(A, B, max_concurrent=2)
    tell(step, seen(A, 0, 2), seen(B, 0, 1), seen(B, 0, 2))

    commands = tell(step, AttemptOver(ONE))

    assert commands[0] == Release(ONE)
    assert only(Emit, commands) == (Emit(barrier(2), Cause.ALIGNED),)


# -- the end of input


def test_the_end_of_an_input_is_the_barrier_of_an_open_attempt() -> None:
    """Seed 003 H6: a finished source stalled every alignment downstream."""
    step = aligner(A, B)
    tell(step, seen(A, 0))

    commands = tell(step, end_seen(B, 0))

    assert only(Captured, commands) == (Captured(ONE, (), {A: place(0), B: place(0)}),)


def test_the_unread_tail_before_an_end_must_be_read_first() -> None:
    """Rule F2: "always aligned" would lose it."""
    step = aligner(A, B)
    tell(step, end_seen(B, 100), Advanced({B: place(40)}))

    early = tell(step, seen(A, 0))
    late = tell(step, Advanced({B: place(100)}))

    assert early == ()
    assert only(Captured, late) == (Captured(ONE, (), {A: place(0), B: place(100)}),)


def test_the_unread_tail_before_an_end_is_recorded_when_the_step_overtakes() -> None:
    """Rule F2: hold until p == e, or record p..e."""
    step = aligner(A, B, options=PATIENT)
    tell(step, end_seen(B, 100), Advanced({B: place(40)}), seen(A, 0))

    commands = tell(step, Tick(100))

    assert only(Captured, commands) == (
        Captured(ONE, (InFlightRange(B, place(40), place(100)),), {A: place(0), B: place(100)}),
    )


def test_an_end_is_the_barrier_of_every_later_attempt() -> None:
    """Rule F2."""
    step = aligner(A, B)
    tell(step, end_seen(B, 0), seen(A, 0, 1), AttemptOver(ONE))

    commands = tell(step, seen(A, 0, 2))

    assert only(Captured, commands) == (Captured(TWO, (), {A: place(0), B: place(0)}),)


def test_a_step_whose_inputs_have_all_ended_answers_the_announcement() -> None:
    step = aligner(A)
    tell(step, end_seen(A, 2), Advanced({A: place(2)}))

    commands = tell(step, Announced(barrier(1)))

    assert only(Emit, commands) == (Emit(barrier(1), Cause.ALIGNED),)
    assert step.drained


def test_an_end_after_the_barrier_does_not_move_the_barrier() -> None:
    step = aligner(A, B)
    tell(step, seen(A, 1), end_seen(A, 4), seen(B, 0))

    commands = tell(step, Advanced({A: place(1)}))

    assert only(Captured, commands) == (Captured(ONE, (), {A: place(1), B: place(0)}),)


def test_an_end_closes_an_open_recording() -> None:
    step = aligner(A, B, options=FORCED)
    tell(step, seen(A, 0))

    commands = tell(step, end_seen(B, 3))

    assert commands == (
        Captured(ONE, (InFlightRange(B, place(0), place(3)),), {A: place(0), B: place(3)}),
    )


def test_an_input_ends_once() -> None:
    step = aligner(A)
    tell(step, end_seen(A, 2))

    assert "cannot end" in refusal_of(step, end_seen(A, 2))


def test_no_barrier_follows_the_end_of_an_input() -> None:
    """It would count twice, and the step would be aligned without its other input."""
    step = aligner(A, B)
    tell(step, end_seen(A, 0))

    assert refusal_of(step, seen(A, 0))


def test_a_step_cannot_read_past_the_end_of_an_input() -> None:
    step = aligner(A)
    tell(step, end_seen(A, 2))

    assert refusal_of(step, Advanced({A: place(3)}))


def test_an_input_cannot_end_before_the_step_stands() -> None:
    step = aligner(A)
    tell(step, Advanced({A: place(3)}))

    assert "cannot end" in refusal_of(step, end_seen(A, 2))


def test_a_step_is_drained_when_all_inputs_have_ended_and_are_read() -> None:
    step = aligner(A, B)

    stages = [step.drained]
    tell(step, end_seen(A, 0), end_seen(B, 2))
    stages.append(step.drained)
    tell(step, Advanced({B: place(2)}))
    stages.append(step.drained)

    assert stages == [False, False, True]


# -- overtaking


def test_patience_is_counted_from_the_start_of_the_attempt() -> None:
    """Rule F20: per-step timeouts add up."""
    step = aligner(A, B, options=PATIENT)
    tell(step, seen(A, 0, started_at_ms=1_000))

    early = tell(step, Tick(1_099))
    due = step.deadline_ms
    late = tell(step, Tick(1_100))

    assert early == ()
    assert due == 1_100
    assert only(Emit, late)[0].cause is Cause.TIMEOUT


def test_patience_ends_without_any_traffic() -> None:
    """Seed 002 H14: the timeout worked only if the step was polled, on a clock of its own."""
    step = aligner(A, options=PATIENT)
    tell(step, seen(A, 5))

    commands = tell(step, Tick(100))

    assert commands == (
        Emit(barrier(1, Flag.UNALIGNED), Cause.TIMEOUT),
        Protect(ONE, A, place(0)),
        Release(ONE),
        Captured(ONE, (InFlightRange(A, place(0), place(5)),), {A: place(5)}),
    )


def test_what_is_in_flight_is_captured_not_dropped() -> None:
    """Seed 002 C1: the events were taken out and replaced by an empty list."""
    step = aligner(A, B, options=PATIENT)
    tell(step, Advanced({A: place(1), B: place(2)}), seen(A, 4), seen(B, 3))

    commands = tell(step, Tick(100))

    assert only(Captured, commands)[0].ranges == (
        InFlightRange(A, place(1), place(4)),
        InFlightRange(B, place(2), place(3)),
    )


def test_recording_goes_on_until_the_inputs_own_barrier() -> None:
    """Seed 002 C4: recording stopped at the snapshot."""
    step = aligner(A, B, options=PATIENT)
    tell(step, seen(A, 0), Advanced({B: place(2)}))
    overtaken = tell(step, Tick(100))
    open_before = step.is_recording(B)
    tell(step, Advanced({B: place(6)}))

    commands = tell(step, seen(B, 8))

    assert only(Captured, overtaken) == ()
    assert open_before
    assert commands == (
        Captured(ONE, (InFlightRange(B, place(2), place(8)),), {A: place(0), B: place(8)}),
    )
    assert not step.is_recording(B)


def test_what_is_in_flight_is_captured_once() -> None:
    step = aligner(A, options=FORCED)
    tell(step, seen(A, 3))

    assert tell(step, LogGrew(A, place(9)), seen(A, 3), Tick(1_000_000)) == ()


def test_a_late_barrier_may_lie_before_where_the_step_has_read_since() -> None:
    """Rule F28: a step that overtook passes late barriers without holding."""
    step = aligner(A, B, options=PATIENT)
    tell(step, seen(A, 0), Tick(100), Advanced({B: place(9)}))

    commands = tell(step, seen(B, 4))

    assert only(Captured, commands)[0].ranges == (InFlightRange(B, place(0), place(4)),)


def test_a_late_barrier_before_the_start_of_the_recording_is_refused() -> None:
    step = aligner(A, B, options=PATIENT)
    tell(step, Advanced({B: place(5)}), seen(A, 0), Tick(100))

    assert "was read past barrier 1" in refusal_of(step, seen(B, 4))


def test_an_overtaking_step_holds_no_input() -> None:
    """Seed 002 H14: late barriers answered "hold events"."""
    step = aligner(A, B, options=FORCED)
    tell(step, seen(A, 2))

    tell(step, Advanced({A: place(7), B: place(7)}))

    assert step.positions == {A: place(7), B: place(7)}


def test_the_end_of_an_attempt_ends_its_recording() -> None:
    """Seed 002 H12: waiting for late barriers had no timeout."""
    step = aligner(A, B, options=FORCED)
    tell(step, seen(A, 2))

    commands = tell(step, AttemptOver(ONE))

    assert commands == (Release(ONE),)
    assert not step.is_recording(B)


def test_forced_overtaking_records_what_is_there() -> None:
    """Seed 002 C9: forced mode had nothing in flight by construction and lied about its cause."""
    step = aligner(A, options=FORCED)

    commands = tell(step, seen(A, 3))

    assert only(Emit, commands) == (Emit(barrier(1, Flag.UNALIGNED), Cause.FORCED),)
    assert only(Captured, commands)[0].ranges == (InFlightRange(A, place(0), place(3)),)


def test_a_step_that_is_aligned_anyway_is_not_forced_to_overtake() -> None:
    step = aligner(A, options=FORCED)

    commands = tell(step, seen(A, 0))

    assert only(Emit, commands) == (Emit(barrier(1), Cause.ALIGNED),)


def test_nothing_is_overtaken_before_a_barrier_is_seen() -> None:
    step = aligner(A, options=FORCED)

    assert tell(step, Announced(barrier(1)), Tick(1_000_000)) == ()
    assert step.deadline_ms is None


def test_a_step_that_may_not_overtake_waits_as_long_as_the_attempt() -> None:
    """Seed 002 H10: `enabled` was never read."""
    step = aligner(A, options=ALIGNED_ONLY)

    assert tell(step, seen(A, 5), Tick(1_000_000)) == ()
    assert step.deadline_ms is None


def test_a_step_that_takes_whole_cuts_never_overtakes() -> None:
    """Rule F19."""
    step = aligner(A, options=FORCED, is_sink=True)

    assert tell(step, seen(A, 5), Tick(1_000_000)) == ()


def test_a_dead_input_of_a_step_that_cannot_overtake_is_let_go_with_the_attempt() -> None:
    """Seed 002 H11: a sink with one dead input waited for ever."""
    step = aligner(A, B, options=PATIENT, is_sink=True)
    tell(step, seen(A, 0), Tick(1_000_000))

    assert tell(step, AttemptOver(ONE)) == (Release(ONE),)


@pytest.mark.parametrize("flags", [Flag.FULL_SNAPSHOT, Flag.DRAIN])
def test_a_savepoint_is_never_overtaken(flags: Flag) -> None:
    """Rule F30 and seed 003 M7: the flags had no interpreter."""
    step = aligner(A, options=FORCED)

    assert tell(step, seen(A, 5, 1, flags), Tick(1_000_000)) == ()


def test_a_savepoints_barrier_that_claims_to_have_overtaken_is_refused() -> None:
    """Rule F30: a barrier cannot contradict its own attempt."""
    step = aligner(A, B, options=FORCED)
    tell(step, Announced(barrier(1, Flag.FULL_SNAPSHOT)))

    assert refusal_of(step, seen(A, 5, 1, Flag.UNALIGNED))


def test_a_cancel_cannot_be_announced() -> None:
    assert refusal_of(aligner(A), Announced(cancel(1)))


# -- barriers that have overtaken


def test_a_barrier_that_has_overtaken_is_never_held() -> None:
    """Rule F18b: holding it closes a circle of waiting steps."""
    step = aligner(A, B, options=UnalignedOptions(alignment_timeout_ms=1_000_000))

    commands = tell(step, seen(A, 4, 1, Flag.UNALIGNED))

    assert commands == (
        Emit(barrier(1, Flag.UNALIGNED), Cause.UPSTREAM),
        Protect(ONE, A, place(0)),
        Protect(ONE, B, place(0)),
        Release(ONE),
    )


def test_one_input_that_was_overtaken_ends_the_patience_with_all() -> None:
    step = aligner(A, B, options=UnalignedOptions(alignment_timeout_ms=1_000_000))
    tell(step, seen(A, 4))

    commands = tell(step, seen(B, 2, 1, Flag.UNALIGNED))

    assert only(Emit, commands) == (Emit(barrier(1, Flag.UNALIGNED), Cause.UPSTREAM),)


def test_a_barrier_that_overtook_upstream_stays_flagged_where_the_step_is_aligned() -> None:
    """Rule F18b: a holder further down would close the same circle."""
    step = aligner(A, options=PATIENT)

    commands = tell(step, seen(A, 0, 1, Flag.UNALIGNED))

    assert only(Emit, commands) == (Emit(barrier(1, Flag.UNALIGNED), Cause.ALIGNED),)


@pytest.mark.parametrize(
    ("options", "is_sink"), [(FORCED, True), (ALIGNED_ONLY, False)], ids=["sink", "disabled"]
)
def test_a_step_that_may_not_overtake_declines_at_once(
    options: UnalignedOptions, is_sink: bool
) -> None:
    """Rule F18b and F19: overtake or decline, never hold."""
    step = aligner(A, options=options, is_sink=is_sink)

    commands = tell(step, seen(A, 4, 1, Flag.UNALIGNED))

    assert commands == (Decline(ONE, FailureReason.SINK_CANNOT_OVERTAKE), Release(ONE))


def test_a_declined_attempt_holds_nothing_and_answers_no_more() -> None:
    step = aligner(A, B, options=ALIGNED_ONLY)
    tell(step, seen(A, 4, 1, Flag.UNALIGNED))

    commands = tell(step, seen(B, 0), Advanced({A: place(9)}), Tick(1_000_000), end_seen(B, 0))

    assert commands == ()
    assert tell(step, AttemptOver(ONE)) == (Release(ONE),)


# -- the bound on what is recorded


def test_a_backlog_too_large_to_record_keeps_the_step_aligning() -> None:
    step = aligner(A, options=SMALL)

    refused = tell(step, seen(A, 4), Tick(100))
    smaller = tell(step, Advanced({A: place(1)}), Tick(101))

    assert refused == ()
    assert only(Captured, smaller)[0].ranges == (InFlightRange(A, place(1), place(4)),)


def test_a_backlog_too_large_to_record_declines_a_barrier_that_has_overtaken() -> None:
    """Rule F18b: it may not be held."""
    step = aligner(A, options=SMALL)

    commands = tell(step, seen(A, 4, 1, Flag.UNALIGNED))

    assert commands == (Decline(ONE, FailureReason.INFLIGHT_TOO_LARGE), Release(ONE))


def test_an_input_that_grows_past_the_bound_while_recorded_declines() -> None:
    """Rule F21: the barrier is out and its other input is endless."""
    step = aligner(A, B, options=SMALL)
    tell(step, seen(A, 0), Tick(100))

    at_bound = tell(step, LogGrew(B, place(3)))
    past_bound = tell(step, LogGrew(B, place(4)))

    assert at_bound == ()
    assert past_bound == (Decline(ONE, FailureReason.INFLIGHT_TOO_LARGE), Release(ONE))


def test_a_late_barrier_past_the_bound_declines_and_truncates_nothing() -> None:
    """Seed 002 C7: overflow pretended to be aligned."""
    step = aligner(A, B, options=SMALL)
    tell(step, seen(A, 0), Tick(100))

    commands = tell(step, seen(B, 4))

    assert commands == (Decline(ONE, FailureReason.INFLIGHT_TOO_LARGE), Release(ONE))


def test_a_declined_recording_takes_no_further_notice() -> None:
    step = aligner(A, B, options=SMALL)
    tell(step, seen(A, 0), Tick(100), LogGrew(B, place(4)))

    commands = tell(step, LogGrew(B, place(9)), seen(B, 9), Tick(200))

    assert commands == ()
    assert not step.is_recording(B)


def test_growth_matters_only_where_something_is_recorded() -> None:
    step = aligner(A, B, options=SMALL)
    tell(step, seen(A, 0))

    assert tell(step, LogGrew(B, place(100))) == ()


def test_growth_after_a_barrier_that_was_seen_is_not_recorded() -> None:
    step = aligner(A, B, options=SMALL)
    tell(step, seen(A, 1), Tick(100))

    assert tell(step, LogGrew(A, place(100))) == ()
    assert step.is_recording(B)


# -- facts


def test_a_batch_that_ends_at_the_last_missing_barrier_would_align() -> None:
    """Rule F24: such a batch is admitted beyond the bound."""
    step = aligner(A, B)
    tell(step, seen(A, 0), seen(B, 2))

    assert step.would_align({B: place(2)})
    assert not step.would_align({B: place(1)})
    assert not step.would_align({A: place(0)})


def test_a_batch_would_not_align_while_another_input_is_behind() -> None:
    step = aligner(A, B)
    tell(step, seen(A, 1), seen(B, 2))

    assert not step.would_align({B: place(2)})
    assert step.would_align({A: place(1), B: place(2)})


def test_without_a_held_barrier_no_batch_would_align() -> None:
    step = aligner(A)
    tell(step, seen(A, 0))

    assert not step.would_align({A: place(1)})


def test_an_attempt_that_is_over_here_has_no_deadline() -> None:
    step = aligner(A, options=PATIENT)
    tell(step, seen(A, 0))

    assert step.deadline_ms is None


def test_positions_are_a_copy() -> None:
    step = aligner(A)

    assert step.positions is not step.positions
    assert step.positions == {A: place(0)}


def test_where_several_may_be_open_only_an_explicit_end_ends_an_attempt() -> None:
    """Rule F28: the newest may have been cancelled, and the oldest is still wanted."""
    step = aligner(A, max_concurrent=2)
    tell(step, seen(A, 1, 1), seen(A, 2, 2), seen(A, 3, 3))

    commands = tell(step, Advanced({A: place(1)}))

    assert only(Emit, commands) == (Emit(barrier(1), Cause.ALIGNED),)


# -- what people see of it


def test_progress_names_the_inputs_that_have_reached_their_barrier() -> None:
    step = aligner(A, B)
    before = step.progress(ONE)
    tell(step, seen(A, 1), seen(B, 3), Advanced({A: place(1), B: place(1)}))

    assert before is None
    assert step.progress(ONE) == AlignmentProgress(
        AlignmentState.ALIGNING, (A,), (B,), place(3).log_bytes - place(1).log_bytes, 0
    )


def test_progress_of_an_attempt_that_is_announced_waits_for_every_input() -> None:
    step = aligner(A, B)
    tell(step, Announced(barrier(1)))

    assert step.progress(ONE) == AlignmentProgress(AlignmentState.ALIGNING, (), (A, B), 0, 0)


def test_progress_counts_what_a_barrier_has_overtaken() -> None:
    step = aligner(A, B, options=FORCED)
    tell(step, seen(A, 2))

    recording = step.progress(ONE)
    tell(step, Advanced({A: place(5)}))
    later = step.progress(ONE)

    two_bytes = place(2).log_bytes
    assert recording == AlignmentProgress(
        AlignmentState.RECORDING, (), (A, B), two_bytes, two_bytes
    )
    assert later == AlignmentProgress(AlignmentState.RECORDING, (A,), (B,), 0, two_bytes)


def test_an_attempt_that_is_over_has_no_progress() -> None:
    step = aligner(A, B)
    tell(step, seen(A, 1), AttemptOver(ONE))

    assert step.progress(ONE) is None
