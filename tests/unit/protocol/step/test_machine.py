"""One step: what it appends, what its snapshot is, and when it acknowledges."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.protocol.builders import (
    CONCURRENT,
    FORCED,
    GENERATION,
    LINE,
    ORDERS,
    PATIENT,
    TABLE,
    A,
    B,
    T,
    appended,
    barrier,
    cancel,
    committable,
    committed,
    consumer_step,
    end_seen,
    event,
    only,
    place,
    refusal,
    refusal_of,
    seen,
    source_step,
    tell,
)

from cutwater.errors import CutwaterError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, InputId
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import StepSnapshot, faults
from cutwater.protocol.evolution.identity import NO_OFFSET
from cutwater.protocol.messages import Barrier, EndOfInput, Event, Flag, Watermark
from cutwater.protocol.options import CheckpointOptions, UnalignedOptions
from cutwater.protocol.step.aligner_events import (
    Announced,
    BarrierSeen,
    Cause,
    Decline,
    EndSeen,
    LogGrew,
    Protect,
    Release,
    Tick,
)
from cutwater.protocol.step.events import (
    Acknowledge,
    Append,
    BatchAppended,
    BatchCommitted,
    Close,
    CloseGate,
    Ended,
    EndReached,
    Forget,
    OpenGate,
    Pin,
    Poll,
    StepCommand,
    StepEvent,
    Stored,
    Upload,
)
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec

ONE, TWO = CheckpointId(1), CheckpointId(2)
DRAIN = Flag.DRAIN | Flag.FULL_SNAPSHOT


def uploaded(commands: tuple[StepCommand, ...]) -> StepSnapshot:
    """The one snapshot that is to be stored."""
    (upload,) = only(Upload, commands)
    return upload.snapshot


# -- batches


def test_a_batch_appends_one_event_and_becomes_the_last() -> None:
    step = source_step()

    commands = tell(step, appended(0))

    assert commands == (Append(event(0)),)
    assert step.last == 0


def test_a_batch_without_rows_becomes_the_last_and_appends_nothing() -> None:
    """Rule F23."""
    step = source_step()

    commands = tell(step, appended(0, rows=0))

    assert commands == ()
    assert step.last == 0


def test_a_snapshot_after_a_batch_without_rows_is_of_that_batch() -> None:
    """Rule F1 and F23: the last appended batch, and the barrier after the last Event."""
    step = source_step()
    tell(step, appended(0), committed(0), appended(1, rows=0), committed(1))

    commands = tell(step, Announced(barrier(1)), Poll())

    snapshot = uploaded(commands)
    assert (snapshot.batch, snapshot.output, snapshot.output_batch) == (1, place(1), 0)


def test_a_batch_cannot_be_appended_again() -> None:
    """Rule F10: a query that restarts in place would run it a second time."""
    step = source_step()
    tell(step, appended(0), committed(0))

    assert "does not follow batch 0" in refusal_of(step, appended(0))


def test_a_batch_cannot_be_left_out() -> None:
    assert "does not follow batch -1" in refusal_of(source_step(), appended(1))


def test_a_batch_waits_for_the_commit_of_the_one_before() -> None:
    step = source_step()
    tell(step, appended(0))

    assert "before batch 0 was committed" in refusal_of(step, appended(1))


def test_an_event_belongs_to_its_batch() -> None:
    wrong = replace(appended(0), event=event(7))

    assert "names batch 7" in refusal_of(source_step(), wrong)


def test_an_event_has_rows() -> None:
    wrong = replace(appended(0), event=event(0, rows=0))

    assert "has no rows" in refusal_of(source_step(), wrong)


@pytest.mark.parametrize("batch", [0, 2])
def test_only_the_last_appended_batch_can_be_committed(batch: int) -> None:
    step = source_step()
    tell(step, appended(0), committed(0), appended(1))

    assert "cannot be committed" in refusal_of(step, committed(batch))


def test_a_batch_is_committed_once() -> None:
    step = source_step()
    tell(step, appended(0), committed(0))

    assert "cannot be committed" in refusal_of(step, committed(0))


def test_a_batch_that_spans_a_barrier_is_refused_whole() -> None:
    """Rule F6: nothing of it is appended, no position moves."""
    step = consumer_step(A)
    tell(step, seen(A, 2))

    assert "held at @2" in refusal_of(step, appended(0, {A: 3}))


def test_a_watermark_follows_its_batch_and_only_grows() -> None:
    """Seed 002 H14: watermarks were unhandled."""
    step = source_step()

    first = tell(step, appended(0, watermark_ms=50), committed(0))
    older = tell(step, appended(1, watermark_ms=40), committed(1))
    same = tell(step, appended(2, watermark_ms=50), committed(2))
    newer = tell(step, appended(3, rows=0, watermark_ms=60))

    assert first == (Append(event(0)), Append(Watermark(50)))
    assert older == (Append(event(1)),)
    assert same == (Append(event(2)),)
    assert newer == (Append(Watermark(60)),)


# -- sources


def test_a_source_appends_the_barrier_it_polls_and_snapshots_its_last_batch() -> None:
    """Rule F1 and seed 001 C7: state and offsets of one instant."""
    step = source_step()
    tell(step, appended(0, watermark_ms=9, owes_batch=True), committed(0), Announced(barrier(1)))

    commands = tell(step, Poll())

    assert commands[0] == Append(barrier(1))
    assert uploaded(commands) == StepSnapshot(
        ORDERS,
        ONE,
        GENERATION,
        BatchId(0),
        output=place(1),
        output_batch=BatchId(0),
        offsets={"kafka/0": "0"},
        watermark_ms=9,
        owes_batch=True,
    )


def test_a_source_without_a_waiting_barrier_goes_on() -> None:
    step = source_step()

    waiting = step.barrier_waiting

    assert not waiting
    assert tell(step, Poll()) == ()


def test_a_source_knows_that_a_barrier_waits() -> None:
    step = source_step()

    tell(step, Announced(barrier(1)))

    assert step.barrier_waiting


def test_a_snapshot_is_of_the_last_appended_batch_and_waits_for_its_commit() -> None:
    """Rule F1: the barrier is after batch 1, so the snapshot is batch 1, not the committed 0."""
    step = source_step()
    tell(step, appended(0), committed(0), appended(1), Announced(barrier(1)))

    polled = tell(step, Poll())
    commands = tell(step, committed(1))

    assert polled == (Append(barrier(1)),)
    assert commands[0] == Pin(ONE, BatchId(1))
    assert (uploaded(commands).batch, uploaded(commands).output) == (1, place(2))


def test_a_step_says_while_an_attempt_waits_for_a_commit() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), appended(1), Announced(barrier(1)))
    waits = [step.awaits_commit]
    for event_ in (Poll(), committed(1)):
        tell(step, event_)
        waits.append(step.awaits_commit)

    assert waits == [False, True, False]


def test_a_batch_that_was_still_computing_comes_after_the_barrier() -> None:
    """Rule F1: the critical section decides, not the clock."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)))

    commands = tell(step, Poll(), appended(1))

    assert [append.message for append in only(Append, commands)] == [barrier(1), event(1)]
    assert uploaded(commands).batch == 0


def test_a_stored_snapshot_is_acknowledged() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)))
    snapshot = uploaded(tell(step, Poll()))

    assert tell(step, Stored(ONE)) == (Acknowledge(snapshot),)


def test_a_source_without_a_pinned_start_takes_no_barrier_before_its_first_batch() -> None:
    """Rule F12: "latest" would be resolved again after a restore."""
    step = source_step(pinned_start=False)

    early = tell(step, Announced(barrier(1)), Poll())
    late = tell(step, appended(0), committed(0), Poll())

    assert early == ()
    assert uploaded(late).batch == 0


@pytest.mark.parametrize("pinned_start", [False, True])
def test_a_swapped_source_has_not_begun_whatever_ran_before_it(pinned_start: bool) -> None:
    """Rule F12: it is restored after batches of the source whose place it takes."""
    restored = Restored(batch=BatchId(6), offsets={"0:orders": NO_OFFSET})
    step = source_step(pinned_start=pinned_start, restored=restored)

    early = tell(step, Announced(barrier(1)), Poll())

    assert bool(early) is pinned_start
    if not pinned_start:
        assert uploaded(tell(step, appended(7), committed(7), Poll())).batch == 7


def test_a_source_with_a_pinned_start_takes_a_barrier_before_its_first_batch() -> None:
    """Rule F12."""
    step = source_step()

    snapshot = uploaded(tell(step, Announced(barrier(1)), Poll()))

    assert (snapshot.batch, snapshot.output) == (NO_BATCH, place(0))


def test_a_pipeline_whose_sources_have_not_begun_can_be_checkpointed() -> None:
    """Rule F12: a pinned start makes a snapshot without any batch sound."""
    source, table = source_step(), Step(LINE[TABLE], CheckpointOptions(), GENERATION)
    (from_orders,) = LINE[TABLE].inputs
    of_source = uploaded(tell(source, Announced(barrier(1)), Poll()))
    of_table = uploaded(tell(table, BarrierSeen(from_orders, barrier(1), place(0))))

    assert faults(LINE, {ORDERS: of_source, TABLE: of_table}) == ()


def test_a_source_sees_no_barriers_in_inputs() -> None:
    """Rule F11: a step has an injector or an aligner, never both."""
    step = source_step()

    assert "has no inputs" in refusal_of(step, seen(A, 0))
    assert step.aligner is None


def test_a_batch_of_a_source_moves_no_inputs() -> None:
    """Rule F11."""
    assert refusal_of(source_step(), appended(0, {A: 1}))


def test_a_step_with_inputs_has_nothing_to_poll() -> None:
    """Rule F11."""
    step = consumer_step(A)

    assert "is not a source" in refusal_of(step, Poll())
    assert step.injector is None
    assert not step.barrier_waiting


@pytest.mark.parametrize("wrong", [cancel(1), barrier(1, epoch=Generation(2))])
@pytest.mark.parametrize("make", [source_step, lambda: consumer_step(A)], ids=["source", "other"])
def test_an_announcement_that_begins_no_attempt_leaves_no_trace(
    make: Callable[[], Step], wrong: Barrier
) -> None:
    """Invariant 1 and seed 000 C3."""
    assert "does not start an attempt" in refusal_of(make(), Announced(wrong))


def test_an_attempt_announced_twice_to_a_source_is_refused() -> None:
    step = source_step()
    tell(step, Announced(barrier(1)))

    assert "is not newer" in refusal_of(step, Announced(barrier(1)))


def test_an_attempt_that_is_over_is_not_begun_by_a_late_announcement() -> None:
    """Invariant 1: a late message of an ended attempt is ignored."""
    step = source_step()
    tell(step, appended(0), committed(0), Ended(ONE, decided=False))

    commands = tell(step, Announced(barrier(1)), Poll())

    assert commands == ()


def test_a_finished_source_does_not_answer_for_an_attempt_that_is_over() -> None:
    """Invariant 1: nothing would ever unpin that snapshot."""
    step = source_step()
    tell(step, appended(0), committed(0), EndReached(), Ended(ONE, decided=False))

    assert tell(step, Announced(barrier(1))) == ()


def test_concurrent_attempts_leave_a_source_in_order() -> None:
    step = source_step(CONCURRENT)
    tell(step, appended(0), committed(0), Announced(barrier(1)), Announced(barrier(2)))

    commands = tell(step, Poll(), Poll())

    assert [append.message for append in only(Append, commands)] == [barrier(1), barrier(2)]


# -- consumers


def test_a_consumer_emits_after_the_batch_that_reaches_the_barrier() -> None:
    step = consumer_step(A)
    tell(step, seen(A, 1))

    commands = tell(step, appended(0, {A: 1}))

    assert [append.message for append in only(Append, commands)] == [event(0), barrier(1)]
    assert Release(ONE) in commands
    assert only(Upload, commands) == ()


def test_a_consumers_snapshot_has_its_positions_and_the_barriers_places() -> None:
    """Seed 000 C1 and 001 C7: a checkpoint without positions cannot be restored."""
    step = consumer_step(A, B)
    tell(step, seen(A, 1), seen(B, 0), appended(0, {A: 1}, staged=1))

    snapshot = uploaded(tell(step, committed(0)))

    assert snapshot.positions == snapshot.barriers == {A: place(1), B: place(0)}
    assert snapshot.staged == (committable(T, 0),)
    assert snapshot.cause is Cause.ALIGNED


def test_an_overtaking_consumer_protects_and_stores_what_is_in_flight() -> None:
    """Seed 002 C1 and rule F1: positions come from the last appended batch."""
    step = consumer_step(A, unaligned=PATIENT)
    tell(step, appended(0, {A: 1}), committed(0), seen(A, 3))

    commands = tell(step, Tick(100))

    assert commands[:3] == (
        Append(barrier(1, Flag.UNALIGNED)),
        Pin(ONE, BatchId(0)),
        Protect(ONE, A, place(1)),
    )
    (upload,) = only(Upload, commands)
    assert upload.ranges == (InFlightRange(A, place(1), place(3)),)
    assert upload.snapshot.positions == {A: place(1)}
    assert upload.snapshot.cause is Cause.TIMEOUT


def test_a_timer_that_fires_between_append_and_commit_takes_the_appended_batch() -> None:
    """Rule F1, the execution itself: last appended, not last committed."""
    step = consumer_step(A, unaligned=PATIENT)
    tell(step, appended(0, {A: 1}), committed(0), seen(A, 5), appended(1, {A: 3}))

    fired = tell(step, Tick(100))
    commands = tell(step, committed(1))

    assert only(Upload, fired) == ()
    (upload,) = only(Upload, commands)
    assert (upload.snapshot.batch, upload.snapshot.positions) == (1, {A: place(3)})
    assert upload.ranges == (InFlightRange(A, place(3), place(5)),)


def test_a_recording_consumer_is_not_stored_before_its_last_barrier() -> None:
    """Seed 002 C4."""
    step = consumer_step(A, B, unaligned=PATIENT)
    tell(step, seen(A, 0))

    overtaken = tell(step, Tick(100), LogGrew(B, place(1)))
    commands = tell(step, seen(B, 2))

    assert only(Upload, overtaken) == ()
    assert only(Upload, commands)[0].ranges == (InFlightRange(B, place(0), place(2)),)


def test_a_consumer_that_declines_after_recording_forgets_its_snapshot() -> None:
    """Rule F21: abort, unpin, never truncate."""
    step = consumer_step(
        A, B, unaligned=UnalignedOptions(alignment_timeout_ms=100, max_inflight_bytes=10)
    )
    tell(step, seen(A, 0), Tick(100))

    commands = tell(step, LogGrew(B, place(2)))

    assert commands == (
        Forget(ONE),
        Decline(ONE, FailureReason.INFLIGHT_TOO_LARGE),
        Release(ONE),
    )
    assert tell(step, seen(B, 2), Stored(ONE)) == ()


def test_a_consumer_that_declines_at_once_has_nothing_to_forget() -> None:
    """Rule F19: a step that takes whole cuts only."""
    step = consumer_step(A, unaligned=FORCED, is_sink=True)

    commands = tell(step, seen(A, 2, 1, Flag.UNALIGNED))

    assert commands == (Decline(ONE, FailureReason.SINK_CANNOT_OVERTAKE), Release(ONE))


def test_a_sinks_writer_may_overtake_its_input() -> None:
    """Rule F19: only what is prepared is never partial."""
    step = consumer_step(A, unaligned=FORCED)

    commands = tell(step, seen(A, 2))

    assert commands[0] == Append(barrier(1, Flag.UNALIGNED))
    assert step.spec.sink == T


def test_a_step_overtakes_by_its_own_options_and_not_by_those_of_the_run() -> None:
    patient = CheckpointOptions(unaligned=PATIENT)
    forced = CheckpointOptions(unaligned=FORCED)
    eager = Step(StepSpec(TABLE, (A,), T, forced=True), patient, GENERATION)
    waiting = Step(StepSpec(TABLE, (A,), T, forced=False), forced, GENERATION)

    assert tell(eager, seen(A, 2))[0] == Append(barrier(1, Flag.UNALIGNED))
    assert only(Append, tell(waiting, seen(A, 2))) == ()


def test_a_step_restored_without_a_position_for_every_input_does_not_start() -> None:
    """Rule F16: it would align without the input it does not know."""
    with pytest.raises(CutwaterError):
        consumer_step(A, B, restored=Restored(positions={A: place(1)}))


def test_a_self_join_has_a_position_for_each_of_its_inputs() -> None:
    """Rule F38."""
    left, right = InputId(0, A.channel), InputId(1, A.channel)
    step = consumer_step(left, right)
    tell(step, seen(left, 1), seen(right, 1))

    commands = tell(step, appended(0, {left: 1, right: 1}), committed(0))

    assert uploaded(commands).positions == {left: place(1), right: place(1)}


# -- the end of an attempt


def test_a_decided_attempt_takes_its_output_out_of_the_staging() -> None:
    """Rule F8: what no decided cut holds stays staged."""
    step = consumer_step(A)
    tell(step, seen(A, 1), appended(0, {A: 1}, staged=1), committed(0))
    tell(step, appended(1, {A: 2}, staged=1), committed(1))

    tell(step, Ended(ONE, decided=True))

    assert step.staged == (committable(T, 1),)


def test_an_attempt_that_fails_discards_nothing_that_is_staged() -> None:
    """Invariant 10 and rule F8: the rows since the last decided cut belong to the next one."""
    step = consumer_step(A)
    tell(step, seen(A, 1), appended(0, {A: 1}, staged=1), committed(0), Ended(ONE, decided=False))

    commands = tell(step, appended(1, {A: 2}, staged=1), committed(1), seen(A, 2, 2))

    assert uploaded(commands).staged == (committable(T, 0), committable(T, 1))


def test_a_batch_after_the_barrier_is_not_in_the_snapshot() -> None:
    """Rule F8 (c): staged is not prepared."""
    step = consumer_step(A)
    first = tell(step, seen(A, 1), appended(0, {A: 1}, staged=1), committed(0))

    tell(step, appended(1, {A: 2}, staged=1))

    assert uploaded(first).staged == (committable(T, 0),)


def test_an_attempt_that_fails_leaves_its_record_in_the_log() -> None:
    """Rule F18 and seed 003 M7: CANCEL is the record of an end."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)), Poll())

    commands = tell(step, Ended(ONE, decided=False))

    assert commands == (Forget(ONE), Append(cancel(1)))


def test_an_attempt_whose_barrier_never_went_out_leaves_no_record() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)))

    commands = tell(step, Ended(ONE, decided=False), Poll())

    assert commands == ()
    assert not step.barrier_waiting


def test_a_decided_attempt_leaves_no_cancel() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)), Poll())

    assert tell(step, Ended(ONE, decided=True)) == (Forget(ONE),)


def test_the_end_of_an_attempt_is_sent_and_releases_directly() -> None:
    """Rule F18: not carried by data that a full channel keeps back."""
    step = consumer_step(A, B)
    tell(step, seen(A, 0))

    assert tell(step, Ended(ONE, decided=False)) == (Release(ONE),)


def test_the_end_of_one_attempt_lets_the_next_go_out_after_the_cancel() -> None:
    step = consumer_step(A, B, max_concurrent=2)
    tell(step, seen(B, 0, 1), seen(A, 0, 2), seen(B, 0, 2))

    commands = tell(step, Ended(ONE, decided=False))

    assert commands[0] == Release(ONE)
    assert [append.message for append in only(Append, commands)] == [barrier(2)]


def test_a_snapshot_stored_after_its_attempt_ended_is_not_acknowledged() -> None:
    step = source_step()
    tell(step, Announced(barrier(1)), Poll(), Ended(ONE, decided=False))

    assert tell(step, Stored(ONE)) == ()


# -- draining


def test_a_draining_barrier_closes_the_gate_in_its_critical_section() -> None:
    """Rule F30 and seed 003 M7: DRAIN had no interpreter."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1, DRAIN)))

    commands = tell(step, Poll())

    assert commands[:2] == (Append(barrier(1, DRAIN)), CloseGate(ONE))
    assert not step.may_append
    assert "drains the source" in refusal_of(step, appended(1))


def test_the_batch_before_a_draining_barrier_can_still_be_committed() -> None:
    step = source_step()
    tell(step, appended(0), Announced(barrier(1, DRAIN)), Poll())

    assert uploaded(tell(step, committed(0))).batch == 0


def test_the_gate_opens_again_when_the_draining_attempt_fails() -> None:
    """Rule F30."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1, DRAIN)), Poll())

    commands = tell(step, Ended(ONE, decided=False), appended(1))

    assert OpenGate(ONE) in commands
    assert Append(event(1)) in commands


def test_the_gate_stays_closed_when_the_draining_attempt_is_decided() -> None:
    """Rule F30: rows after the savepoint would be committed and then come again."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1, DRAIN)), Poll())

    commands = tell(step, Ended(ONE, decided=True))

    assert only(OpenGate, commands) == ()
    assert not step.may_append


def test_a_later_drain_that_fails_does_not_open_the_gate_of_a_decided_one() -> None:
    """Rule F30: two stop requests, of which the first succeeded."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1, DRAIN)), Poll())
    tell(step, Ended(ONE, decided=True), Announced(barrier(2, DRAIN)), Poll())

    commands = tell(step, Ended(TWO, decided=False))

    assert only(OpenGate, commands) == ()
    assert not step.may_append


def test_the_gate_stays_closed_while_any_draining_attempt_is_open() -> None:
    """Rule F30: the first of two concurrent drains fails, the second is decided."""
    step = source_step(CONCURRENT)
    tell(step, appended(0), committed(0))
    tell(step, Announced(barrier(1, DRAIN)), Announced(barrier(2, DRAIN)), Poll(), Poll())

    commands = tell(step, Ended(ONE, decided=False))

    assert only(OpenGate, commands) == ()
    assert not step.may_append


def test_the_gate_opens_when_the_last_of_several_draining_attempts_fails() -> None:
    """Rule F30."""
    step = source_step(CONCURRENT)
    tell(step, appended(0), committed(0))
    tell(step, Announced(barrier(1, DRAIN)), Announced(barrier(2, DRAIN)), Poll(), Poll())

    tell(step, Ended(ONE, decided=False), Ended(TWO, decided=False))

    assert step.may_append


def test_a_draining_barrier_closes_no_gate_of_a_consumer() -> None:
    step = consumer_step(A)

    commands = tell(step, seen(A, 0, 1, DRAIN))

    assert only(CloseGate, commands) == ()
    assert step.may_append


# -- the end of input


def test_a_source_that_ends_appends_the_end_of_input() -> None:
    """Seed 003 H6."""
    step = source_step()
    tell(step, appended(0), committed(0))

    assert tell(step, EndReached()) == (Append(EndOfInput()),)
    assert step.finished
    assert not step.may_append


def test_the_final_snapshot_of_a_finished_source_answers_every_later_attempt() -> None:
    """Rule F2: a finished step stays a participant."""
    step = source_step()
    tell(step, appended(0), committed(0), EndReached())

    first = tell(step, Announced(barrier(1)))
    tell(step, Ended(ONE, decided=True))
    second = tell(step, Announced(barrier(2)))

    assert only(Append, first + second) == ()
    assert (uploaded(first).finished, uploaded(first).output) == (True, place(1))
    assert uploaded(second).checkpoint_id == 2


def test_a_source_that_ends_answers_for_a_barrier_it_had_not_taken() -> None:
    """Rule F2: a query that is gone is not polled."""
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)))

    commands = tell(step, EndReached())

    assert commands[0] == Append(EndOfInput())
    assert uploaded(commands).finished
    assert not step.barrier_waiting


def test_a_source_that_ends_answers_for_every_barrier_it_had_not_taken() -> None:
    step = source_step(CONCURRENT)
    tell(step, appended(0), committed(0), Announced(barrier(1)), Announced(barrier(2)))

    commands = tell(step, EndReached())

    assert [upload.snapshot.checkpoint_id for upload in only(Upload, commands)] == [1, 2]
    assert [append.message for append in only(Append, commands)] == [EndOfInput()]


def test_a_source_that_ends_after_its_barrier_has_answered_already() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)), Poll())

    commands = tell(step, EndReached())

    assert commands == (Append(EndOfInput()),)
    assert tell(step, Poll()) == ()


def test_a_finished_step_writes_no_cancel_after_the_end() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Announced(barrier(1)), Poll(), EndReached())

    commands = tell(step, Ended(ONE, decided=False))

    assert only(Append, commands) == ()


def test_a_finished_source_keeps_answering_an_attempt_once() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), EndReached(), Announced(barrier(1)))

    assert tell(step, Announced(barrier(1))) == ()


def test_a_finished_consumer_answers_later_attempts_without_a_barrier() -> None:
    """Rule F2."""
    step = consumer_step(A)
    tell(step, end_seen(A, 1), appended(0, {A: 1}), committed(0), EndReached())

    commands = tell(step, Announced(barrier(1)))

    assert only(Append, commands) == ()
    snapshot = uploaded(commands)
    assert (snapshot.finished, snapshot.barriers) == (True, {A: place(1)})


def test_a_consumer_that_ends_has_emitted_the_barrier_of_an_open_attempt_before() -> None:
    step = consumer_step(A)
    tell(step, Announced(barrier(1)), end_seen(A, 1))

    commands = tell(step, appended(0, {A: 1}), committed(0), EndReached())

    assert [append.message for append in only(Append, commands)] == [
        event(0),
        barrier(1),
        EndOfInput(),
    ]


def test_a_step_cannot_end_with_an_uncommitted_batch() -> None:
    step = source_step()
    tell(step, appended(0))

    assert "uncommitted batch" in refusal_of(step, EndReached())


def test_a_step_cannot_end_while_it_owes_a_batch() -> None:
    """Rule F22: the open window would never be emitted."""
    step = source_step()
    tell(step, appended(0, owes_batch=True), committed(0))

    assert "batch is owed" in refusal_of(step, EndReached())


def test_a_consumer_cannot_end_before_its_inputs_are_drained() -> None:
    """Rule F2: the tail would be lost."""
    step = consumer_step(A)
    tell(step, end_seen(A, 2))

    assert "inputs are drained" in refusal_of(step, EndReached())


def test_a_step_ends_once() -> None:
    step = source_step()
    tell(step, EndReached())

    assert "has ended already" in refusal_of(step, EndReached())


def test_no_batch_comes_after_the_end() -> None:
    step = source_step()
    tell(step, EndReached())

    assert "after the end" in refusal_of(step, appended(0))


# -- restoring and closing


def test_a_restored_step_goes_on_where_its_snapshot_was() -> None:
    step = consumer_step(
        A,
        restored=Restored(
            batch=BatchId(7),
            positions={A: place(4)},
            output=place(9),
            offsets={"kafka/0": "31"},
            watermark_ms=80,
        ),
    )
    tell(step, BatchAppended(BatchId(8), Event(BatchId(8), 1, 10), {A: place(5)}), committed(8))

    snapshot = uploaded(tell(step, seen(A, 5)))

    assert (snapshot.batch, snapshot.positions) == (8, {A: place(5)})
    assert (snapshot.output, snapshot.offsets) == (place(10), {"kafka/0": "31"})
    assert snapshot.watermark_ms == 80


def test_a_step_begins_exactly_where_its_snapshot_stood() -> None:
    """Rule F2 and F22: the owed batch comes back, the end of input does not."""
    snapshot = StepSnapshot(
        TABLE,
        ONE,
        GENERATION,
        BatchId(7),
        positions={A: place(4)},
        barriers={A: place(6)},
        output=place(9),
        output_batch=BatchId(7),
        offsets={"kafka/0": "31"},
        watermark_ms=80,
        owes_batch=True,
        finished=True,
    )

    assert Restored.from_snapshot(snapshot) == Restored(
        batch=BatchId(7),
        positions={A: place(4)},
        output=place(9),
        offsets={"kafka/0": "31"},
        watermark_ms=80,
        owes_batch=True,
    )


def test_a_step_that_had_finished_goes_on_after_a_restore() -> None:
    """Rule F2: new files may have arrived; the source finds its own end again."""
    finished = source_step()
    tell(finished, appended(0), committed(0), EndReached())
    snapshot = uploaded(tell(finished, Announced(barrier(1))))

    step = source_step(restored=Restored.from_snapshot(snapshot))

    assert step.may_append
    assert tell(step, appended(1)) == (Append(event(1)),)


def test_a_restored_step_still_owes_the_batch_it_owed() -> None:
    """Rule F22: a batch that is due is not run by itself after a restore."""
    step = source_step(restored=Restored(batch=BatchId(3), owes_batch=True))

    assert "batch is owed" in refusal_of(step, EndReached())

    tell(step, appended(4, rows=0), committed(4))
    assert tell(step, EndReached()) == (Append(EndOfInput()),)


def test_a_step_restored_after_its_barrier_can_be_checkpointed_before_a_batch() -> None:
    step = source_step(restored=Restored(batch=BatchId(3), output=place(4), offsets={"k": "1"}))

    snapshot = uploaded(tell(step, Announced(barrier(1)), Poll()))

    assert (snapshot.batch, snapshot.output, snapshot.output_batch) == (3, place(4), NO_BATCH)


def test_a_batch_cannot_be_appended_in_a_closed_generation() -> None:
    """Rule F25: a wait that ends must raise, or Spark commits a batch without its Event."""
    step = source_step()
    tell(step, appended(0), committed(0), Close())

    assert "is closed" in refusal_of(step, appended(1))
    assert not step.may_append


@pytest.mark.parametrize("told", [Poll(), Announced(barrier(1)), EndReached(), Stored(ONE)])
def test_what_comes_late_in_a_closed_generation_is_ignored(told: StepEvent) -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Close())

    assert tell(step, told) == ()


def test_a_batch_stages_only_what_is_its_own() -> None:
    """Rule F8."""
    step = Step(LINE[TABLE], CheckpointOptions(), GENERATION)
    foreign = replace(appended(0, rows=0), staged=(committable(T, 7),))

    assert "not its own" in refusal_of(step, foreign)


def test_a_generation_may_be_closed_twice() -> None:
    step = source_step()

    assert tell(step, Close(), Close()) == ()


@pytest.mark.parametrize("told", [EndSeen(A, place(0)), LogGrew(A, place(0)), Tick(0)])
def test_a_source_refuses_what_concerns_inputs(told: StepEvent) -> None:
    """Rule F11."""
    assert "has no inputs" in refusal_of(source_step(), told)


def test_an_illegal_event_of_an_input_leaves_the_step_as_it_was() -> None:
    step = consumer_step(A, B)
    tell(step, seen(A, 1), appended(0, {A: 1}))

    assert refusal(step, lambda: step.handle(seen(A, 2)))
    assert refusal_of(step, end_seen(A, 0))


def test_a_step_that_may_owe_a_batch_may_not_end() -> None:
    step = source_step()
    tell(step, appended(0, owes_batch=True))

    assert step.owes_batch
    assert not step.may_end


def test_what_is_owed_is_known_for_sure_when_the_batch_is_committed() -> None:
    step = source_step()
    tell(step, appended(0, watermark_ms=5, owes_batch=True))
    tell(step, BatchCommitted(BatchId(0), owes_batch=False))

    assert not step.owes_batch
    assert step.may_end
    assert step.committed == 0
    assert step.watermark_ms == 5


def test_a_closed_step_may_not_end() -> None:
    step = source_step()
    tell(step, appended(0), committed(0), Close())

    assert not step.may_end
