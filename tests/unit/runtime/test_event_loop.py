"""Aborts and stops of a real generation whose steps stand still, so that no attempt ever ends."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.protocol.builders import PIPELINE
from tests.unit.runtime.test_supervisor_full_store import ONE, Standstill, begun, wait_for
from tests.unit.runtime.test_supervisor_full_store import run_while as run_beside

from cutwater.clock import now_ms
from cutwater.config.options import RestartConfig
from cutwater.errors import RequestFailed
from cutwater.ids import BatchId, CheckpointId, Slot, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind, StepSnapshot
from cutwater.protocol.decisions import Claim
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.context import RunContext
from cutwater.runtime.event_loop import Generation
from cutwater.runtime.outcome import End, Outcome
from cutwater.runtime.supervisor import Supervisor
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Lease

LAST = CheckpointRequest(is_last=True)
SAVED = CheckpointRequest(CheckpointKind.SAVEPOINT, "saved")
WHY = "the bucket is being moved"
ABORTED = f"it was aborted on request ({WHY})"


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    store = PipelineStore.of(MemoryBackend(), PIPELINE)
    store.log.create(Claim(Slot(1), ONE, "ours"))
    return RunContext(
        plan=cast(Any, None),
        engine=cast(Any, None),
        store=store,
        sinks={},
        options=CheckpointOptions(interval_ms=3_600_000, tolerable_failed=0),
        bound=cast(Any, None),
        scratch=tmp_path,
    )


@pytest.fixture
def running(context: RunContext) -> Generation:
    return begun(context, Standstill())


def run_while(running: Generation, task: Callable[[], None]) -> Outcome:
    """Run it, and something beside it; end it at once if that fails."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            running.ask_to_stop(None)

    ended = run_beside(running, guarded)
    for error in errors:
        raise error
    return ended


def pending(running: Generation) -> list[CheckpointId]:
    return [report.id for report in running.history.reports if report.status == "IN_PROGRESS"]


def abort(running: Generation) -> str:
    """Abort what is pending; return why not, or nothing."""
    waiter = running.history.wait_for_abort(events.Cancelled(None, 0, WHY))
    running.cancel(waiter.cancel)
    wait_for(waiter.done.is_set)
    return waiter.refusal


def test_an_aborted_savepoint_gives_the_reason_and_the_pipeline_goes_on(
    running: Generation,
) -> None:
    """Also with `tolerable_failed=0`: an abort is no failure that counts."""
    refusals = []
    waiter = running.history.wait_for(SAVED)

    def abort_twice_and_end() -> None:
        wait_for(lambda: pending(running))
        refusals.append(abort(running))
        running.request(SAVED)
        wait_for(lambda: waiter.id is not None)
        refusals.append(abort(running))
        refusals.append(abort(running))
        running.ask_to_stop(None)

    ended = run_while(running, abort_twice_and_end)

    assert ended == Outcome(End.STOPPED)
    assert refusals == ["", "", "no checkpoint is pending"]
    assert waiter.report is not None
    assert (waiter.report.name, waiter.report.failure) == ("saved", ABORTED)
    assert [report.failure for report in running.history.reports] == [ABORTED, ABORTED]


def test_a_stop_whose_last_checkpoint_is_aborted_ends_without_it(running: Generation) -> None:
    def stop_and_abort() -> None:
        wait_for(lambda: pending(running))
        assert abort(running) == ""
        running.ask_to_stop(LAST)
        wait_for(lambda: pending(running))
        assert abort(running) == ""

    ended = run_while(running, stop_and_abort)

    assert ended == Outcome(End.STOPPED, detail=ABORTED)
    assert [report.failure for report in running.history.reports] == [ABORTED, ABORTED]


def test_a_pipeline_goes_on_if_the_savepoint_to_stop_with_is_aborted(running: Generation) -> None:
    goes_on = threading.Event()
    running.on_resume = goes_on.set
    last = replace(SAVED, is_last=True)
    waiter = running.history.wait_for(last)

    def stop_and_abort() -> None:
        wait_for(lambda: pending(running))
        assert abort(running) == ""
        running.ask_to_stop(last, insists=True)
        wait_for(lambda: waiter.id is not None)
        assert abort(running) == ""
        wait_for(goes_on.is_set)
        running.ask_to_stop(None)

    assert run_while(running, stop_and_abort) == Outcome(End.STOPPED)
    assert waiter.report is not None
    assert waiter.report.failure == ABORTED


def test_a_stop_that_fails_refuses_no_other_that_waits_for_the_same(running: Generation) -> None:
    resumed = threading.Event()
    running.on_resume = resumed.set
    last = replace(SAVED, is_last=True)
    first = running.history.wait_for(last)
    refused: list[bool] = []

    def stop_and_abort() -> None:
        wait_for(lambda: pending(running))
        assert abort(running) == ""
        running.ask_to_stop(last, insists=True)
        wait_for(lambda: first.id is not None)
        second = running.history.wait_for(last)
        assert abort(running) == ""
        wait_for(resumed.is_set)
        refused.append(second.done.is_set())
        running.ask_to_stop(None)

    assert run_while(running, stop_and_abort) == Outcome(End.STOPPED)
    assert first.done.is_set()
    assert refused == [False]


def test_a_pipeline_that_does_not_run_yet_aborts_nothing(context: RunContext) -> None:
    plan = cast(Any, type("Plan", (), {"pipeline": "orders"}))
    supervisor = Supervisor(
        replace(context, plan=plan), RestartConfig(), Lease("here", 1, "ours", 0)
    )

    with pytest.raises(RequestFailed, match=r"nothing was aborted: .* does not run now\."):
        supervisor.abort_checkpoint(None, WHY, 1.0)


# -- a stop behind something that is stuck

STUCK = "it gave way to the last checkpoint of a stop"


def test_a_stop_does_not_wait_for_an_attempt_that_is_stuck(running: Generation) -> None:
    waiter = running.history.wait_for(SAVED)
    running.request(SAVED)

    def stop() -> None:
        wait_for(lambda: waiter.id is not None)
        running.ask_to_stop(LAST)
        wait_for(lambda: waiter.done.is_set() and pending(running))
        assert abort(running) == ""

    ended = run_while(running, stop)

    assert ended == Outcome(End.STOPPED, detail=ABORTED)
    assert waiter.report is not None
    assert waiter.report.failure == STUCK
    assert [report.failure for report in running.history.reports[-2:]] == [STUCK, ABORTED]


def test_a_stop_does_not_wait_for_the_savepoint_of_another_stop(running: Generation) -> None:
    last = replace(SAVED, is_last=True)
    waiter = running.history.wait_for(last)

    def stop_twice() -> None:
        running.ask_to_stop(last, insists=True)
        wait_for(lambda: waiter.id is not None)
        running.ask_to_stop(LAST)
        wait_for(lambda: waiter.done.is_set() and pending(running))
        assert abort(running) == ""

    ended = run_while(running, stop_twice)

    assert ended == Outcome(End.STOPPED, detail=ABORTED)
    assert waiter.report is not None
    assert waiter.report.failure == STUCK


def test_a_stop_comes_before_all_that_wait_for_their_turn(running: Generation) -> None:
    """Each of them may be stuck for as long as its deadline allows."""
    waiters = [running.history.wait_for(replace(SAVED, name=f"n{at}")) for at in range(16)]

    def stop() -> None:
        wait_for(lambda: pending(running))
        for waiter in waiters:
            running.request(waiter.request)
        running.ask_to_stop(LAST)
        wait_for(lambda: len(running.history.reports) == 2 and pending(running))
        assert abort(running) == ""

    ended = run_while(running, stop)

    assert ended == Outcome(End.STOPPED, detail=ABORTED)
    assert [report.failure for report in running.history.reports[:2]] == [STUCK, ABORTED]
    assert all(waiter.done.is_set() for waiter in waiters)


def test_a_stop_whose_last_checkpoint_expires_ends_without_it(context: RunContext) -> None:
    """It has waited as long as a checkpoint may take; twice more would be of no use."""
    impatient = replace(context.options, timeout_ms=300, tolerable_failed=None)
    running = begun(replace(context, options=impatient), Standstill())

    def stop() -> None:
        running.ask_to_stop(LAST)
        wait_for(lambda: any("deadline" in report.failure for report in running.history.reports))

    ended = run_while(running, stop)

    assert ended.end is End.STOPPED
    assert "deadline" in ended.detail
    (report,) = running.history.reports
    assert "the deadline passed" in report.failure


def test_a_run_whose_input_has_ended_lets_a_pending_savepoint_complete_first(
    context: RunContext,
) -> None:
    """There is no request to stop, so nothing has to give way."""
    step = Standstill()
    running = begun(context, step)
    waiter = running.history.wait_for(SAVED)
    running.request(SAVED)

    def end_input() -> None:
        wait_for(lambda: waiter.id is not None)
        step.machine.finished = True
        wait_for(lambda: running._stopping.input_ended)
        assert pending(running) == [waiter.id]
        running.ask_to_stop(None)

    run_while(running, end_input)

    assert waiter.report is not None
    assert "the pipeline stopped" in waiter.report.failure


def test_an_acknowledgement_of_an_unknown_step_changes_nothing(running: Generation) -> None:
    stranger = StepSnapshot(StepId("stranger"), CheckpointId(1), running.number, BatchId(0))

    def acknowledge_and_stop() -> None:
        running._inbox.put(events.Acknowledged(stranger, 0))
        running.ask_to_stop(None)

    assert run_while(running, acknowledge_and_stop) == Outcome(End.STOPPED)


def test_a_loop_without_deadlines_wakes_for_its_next_look_and_no_sooner(
    running: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    waited, get = threading.Event(), running._inbox.get

    def get_and_note(timeout_s: float) -> object:
        item = get(timeout_s)
        if item is None:
            waits_s.append(timeout_s)
        if len(waits_s) == 3:
            waited.set()
        return item

    running.recovery.close()
    monkeypatch.setattr(running._inbox, "get", get_and_note)

    def stop_after_three_waits() -> None:
        wait_for(waited.is_set)
        running.ask_to_stop(None)

    assert run_while(running, stop_after_three_waits) == Outcome(End.STOPPED)
    # The first wait may be the rest of a look that an event has interrupted.
    assert all(wait_s > 0.4 for wait_s in waits_s[1:3])


def test_a_loop_wakes_at_the_deadline_of_a_step(running: Generation) -> None:
    running.recovery.close()
    running._woken_ms = running._look_at_ms = now_ms()
    running._look_at_ms += 500
    step = running.built.steps[StepId("orders")]
    step.deadline_ms = running._woken_ms + 100  # type: ignore[misc]

    assert running._wake_at_ms() == running._woken_ms + 100


def test_deadlines_that_are_over_do_not_starve_the_inbox(running: Generation) -> None:
    running._woken_ms = now_ms()
    step = running.built.steps[StepId("orders")]
    step.deadline_ms = running._woken_ms - 1000  # type: ignore[misc]

    assert running._wake_at_ms() > running._woken_ms
