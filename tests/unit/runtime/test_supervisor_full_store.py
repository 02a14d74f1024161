"""A store that takes nothing for a while: every request is answered, and a stop has an end.

The generation is real, and so is its store, in memory; only the steps stand still.
"""

import errno
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.protocol.builders import (
    LINE,
    ORDERS,
    PIPELINE,
    acknowledged,
    source_snapshot,
)
from tests.unit.store.checkpoint_writer import step_report
from tests.waiting import wait_until

from cutwater.config.options import RestartConfig
from cutwater.errors import OutcomeUnknown, StoreError, Unavailable
from cutwater.ids import CheckpointId, Generation, Slot, StepId
from cutwater.protocol import stopping
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest, Phase
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import RecordCommit, grant
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Claim
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.recovery import Restore
from cutwater.protocol.topology import StepSpec, Topology
from cutwater.runtime import effects, supervisor
from cutwater.runtime import event_loop as generation
from cutwater.runtime.context import RunContext
from cutwater.runtime.effects import Effects
from cutwater.runtime.engine import Built
from cutwater.runtime.outcome import End, Outcome
from cutwater.runtime.recovery import Recovery
from cutwater.runtime.reporting.attempt_history import AttemptHistory, Waiter
from cutwater.runtime.reporting.recovery_timing import Phases
from cutwater.runtime.supervisor import Supervisor
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Lease

DEADLINE_S = 20.0
ONE = Generation(1)
LEASE = Lease("here", 1, "ours", 0)
STANDING = Standing(slot=Slot(1), highest_id=CheckpointId(3))
TAKE_FOUR = events.ReserveId(CheckpointId(4), CheckpointKind.CHECKPOINT)
RECORD = RecordCommit(grant(PIPELINE, Slot(2), CheckpointId(4)), {})


class SmallBackend(MemoryBackend):
    """Takes nothing new while it is full, or nothing of a kind; counts what it refused."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.full_of = "/"
        self.refused = 0
        self.lost: list[StoreError] = []
        self.without_files = 0

    def create(self, path: ObjectPath, data: bytes) -> bool:
        if self.full and self.full_of in path:
            self.refused += 1
            assert self.refused < 1_000, "it is asked for ever, without a pause"
            raise Unavailable(path, "No space left on device")
        if self.without_files and "/log/" in path:
            self.without_files -= 1
            lack = OSError(errno.EMFILE, "Too many open files")
            raise Unavailable(path, "Too many open files") from lack
        created = super().create(path, data)
        if self.lost:
            raise self.lost.pop()
        return created


class Standstill:
    """A step that does nothing, and never ends."""

    name = StepId("orders")
    busy = False
    deadline_ms = None

    def __init__(self) -> None:
        self.machine = SimpleNamespace(aligner=None, finished=False, staged=(), last=0, committed=0)
        self.times = SimpleNamespace(report=lambda *_: step_report())

    def nothing(self, *_: object) -> None:
        pass

    start = poll = notice = tell = decided = problem = try_to_end = nothing
    try_to_halt = close = nothing


@pytest.fixture
def backend() -> SmallBackend:
    return SmallBackend()


@pytest.fixture
def context(backend: SmallBackend, tmp_path: Path) -> RunContext:
    store = PipelineStore.of(backend, PIPELINE)
    store.log.create(Claim(Slot(1), ONE, "ours"))
    return RunContext(
        plan=cast(Any, None),
        engine=cast(Any, None),
        store=store,
        sinks={},
        options=CheckpointOptions(interval_ms=3_600_000),
        bound=cast(Any, None),
        scratch=tmp_path,
    )


@pytest.fixture
def posted() -> "queue.Queue[object]":
    return queue.Queue()


@pytest.fixture
def working(context: RunContext, posted: "queue.Queue[object]") -> Effects:
    return Effects(context, ONE, posted.put, posted.put)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "_RETRY_S", 0.01)


# -- effects


def test_a_number_that_is_not_taken_in_time_is_answered_with_the_reason(
    backend: SmallBackend, working: Effects, posted: "queue.Queue[object]"
) -> None:
    backend.full = True

    working.start(TAKE_FOUR)
    answer = posted.get(timeout=DEADLINE_S)

    assert isinstance(answer, events.ReserveFailed)
    assert answer.checkpoint_id == 4
    assert "No space left on device" in answer.detail
    assert backend.refused == 6
    working.close()


def test_a_number_whose_answer_was_lost_is_ours(
    backend: SmallBackend, working: Effects, posted: "queue.Queue[object]"
) -> None:
    backend.lost.append(Unavailable(ObjectPath("attempts"), "it seemed"))

    working.start(TAKE_FOUR)
    answer = posted.get(timeout=DEADLINE_S)

    assert isinstance(answer, events.Reserved)
    assert (answer.checkpoint_id, answer.won) == (4, True)
    working.close()


@pytest.mark.parametrize("command", [TAKE_FOUR, RECORD])
def test_a_store_that_is_patient_itself_is_not_asked_many_times(
    backend: SmallBackend,
    working: Effects,
    posted: "queue.Queue[object]",
    monkeypatch: pytest.MonkeyPatch,
    command: events.CoordinatorCommand,
) -> None:
    """A bucket tries for a minute before it says no; six times that is too late for people."""
    monkeypatch.setattr(effects, "_TRYING_MS", 0)
    backend.full = True

    working.start(command)
    posted.get(timeout=DEADLINE_S)

    assert backend.refused == 1
    working.close()


def test_a_record_that_is_requested_again_is_written_by_one_thread_only(
    backend: SmallBackend, working: Effects, posted: "queue.Queue[object]"
) -> None:
    """A store that is away for long must not fill the pool with threads that wait for it."""
    backend.full = True
    for _ in range(20):
        working.start(RECORD)
    answer = posted.get(timeout=DEADLINE_S)
    backend.full = False
    working.start(RECORD)
    healed = posted.get(timeout=DEADLINE_S)
    working.close()

    assert isinstance(answer, events.RecordFailed)
    assert (answer.slot, backend.refused) == (2, 6)
    assert "No space left on device" in answer.reason
    assert isinstance(healed, events.CommitRecorded)
    assert posted.empty()


# -- recovery


def test_a_claim_that_finds_no_room_is_reported_and_not_tried_for_ever(
    backend: SmallBackend, context: RunContext
) -> None:
    backend.full = True
    claims: list[Claim] = []

    with pytest.raises(OutcomeUnknown, match=r"log/.*: No space left on device; it may or may not"):
        Recovery(context, claims).run()

    backend.full = False
    # Nor does the earlier holder count as a process that has taken it over.
    assert Recovery(context, claims).run().generation == 2


def test_a_start_that_finds_no_room_is_repeated_as_often_as_any_and_says_why(
    backend: SmallBackend, context: RunContext
) -> None:
    backend.full = True
    named = replace(context, plan=cast(Any, SimpleNamespace(pipeline="orders")))
    restarts = RestartConfig(attempts=2, delay="10ms")

    with pytest.raises(OutcomeUnknown, match="No space left on device"):
        Supervisor(named, restarts, LEASE).run()

    assert backend.refused == 3


def test_a_restart_that_finds_no_file_descriptor_is_tried_until_there_is_one(
    backend: SmallBackend, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = replace(with_steps(context), plan=cast(Any, SimpleNamespace(pipeline="orders")))
    monkeypatch.setattr(supervisor, "_STARVED_PAUSE_MS", 1)
    running = Supervisor(named, RestartConfig(attempts=1, delay="1ms"), LEASE)
    running._generation = begun(context)
    backend.without_files = 7

    def stop() -> None:
        wait_until(running.started.is_set, "a generation runs")
        running.stop(checkpoint=False)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    result = running.run()
    stopping.join(DEADLINE_S)

    assert (backend.without_files, result.restarts) == (0, 7)


def test_a_first_start_that_finds_no_file_descriptor_fails_like_any(
    backend: SmallBackend, context: RunContext
) -> None:
    named = replace(context, plan=cast(Any, SimpleNamespace(pipeline="orders")))
    backend.without_files = 7

    with pytest.raises(OutcomeUnknown, match="Too many open files"):
        Supervisor(named, RestartConfig(attempts=1, delay="1ms"), LEASE).run()

    assert backend.without_files == 5


# -- a generation


def with_steps(context: RunContext, *steps: Standstill, topology: Topology = LINE) -> RunContext:
    """The same with an engine that builds these steps; without any all have ended."""
    built = Built(topology, cast(Any, {step.name: step for step in steps}), {}, STANDING, None)
    return replace(context, engine=cast(Any, SimpleNamespace(build=lambda *_: built)))


def begun(
    context: RunContext,
    *steps: Standstill,
    book: AttemptHistory | None = None,
    topology: Topology = LINE,
) -> generation.Generation:
    """A generation of these steps; without any all have ended."""
    return generation.Generation(
        with_steps(context, *steps, topology=topology),
        Restore(ONE, None, STANDING),
        book or AttemptHistory(),
        Phases(""),
        lambda _: None,
    )


def run_while(one: generation.Generation, task: Callable[[], None]) -> Outcome:
    """Run it, and something beside it."""
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    ended = one.run()
    thread.join(DEADLINE_S)
    return ended


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "it has not come"
        time.sleep(0.01)


def test_a_stop_ends_although_no_number_is_taken_and_others_wait_for_their_turn(
    backend: SmallBackend, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the last try must not meet an attempt that has not begun yet."""
    monkeypatch.setattr(stopping, "TRIES_MAX", 1)
    backend.full = True
    one = begun(context, Standstill())
    one.ask_to_stop(CheckpointRequest(is_last=True))
    waiters = [one.history.wait_for(CheckpointRequest(CheckpointKind.FULL)) for _ in range(3)]
    for waiter in waiters:
        one.request(waiter.request)

    ended = run_while(one, lambda: None)

    assert ended.end is End.STOPPED
    assert "No space left on device" in ended.detail
    assert all(waiter.done.is_set() for waiter in waiters)
    assert {report.status for report in one.history.reports} == {"FAILED"}


def test_a_stop_ends_although_the_commit_before_it_is_blocked_meanwhile(
    backend: SmallBackend, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was requested before it was known that no checkpoint can be taken any more."""
    monkeypatch.setattr(effects, "_RETRY_S", 0.2)
    backend.full, backend.full_of = True, "/committed/"
    one = begun(context, Standstill(), topology=Topology((StepSpec(ORDERS),)))
    last = CheckpointRequest(is_last=True)
    too_late = threading.Timer(DEADLINE_S, one.ask_to_stop, (None,))

    def decide_and_stop() -> None:
        wait_for(lambda: one._coordinator.open_attempts.get(CheckpointId(4)) is Phase.COLLECTING)
        one._inbox.put(acknowledged(replace(source_snapshot(4), generation=ONE)))
        wait_for(lambda: backend.refused)
        assert not one.blocked
        one.ask_to_stop(last)

    too_late.start()
    ended = run_while(one, decide_and_stop)
    came = too_late.is_alive()
    too_late.cancel()

    assert came
    assert ended == Outcome(End.STOPPED, detail=one.blocked)
    assert "the store takes no record of a commit" in one.blocked
    assert [report.status for report in one.history.reports] == ["COMPLETED"]


def test_a_pipeline_goes_on_if_the_savepoint_to_stop_with_finds_no_room(
    backend: SmallBackend, context: RunContext
) -> None:
    """The requester gets the reason and may retry, even without having waited for the result."""
    backend.full = True
    one = begun(context, Standstill())
    request = CheckpointRequest(CheckpointKind.SAVEPOINT, "end", drain=True, is_last=True)
    waiters: list[Waiter] = []
    goes_on = threading.Semaphore(0)
    one.on_resume = goes_on.release

    def ask_twice() -> None:
        for _ in range(2):
            waiters.append(one.history.wait_for(request))
            one.ask_to_stop(request, insists=True)
            assert goes_on.acquire(timeout=DEADLINE_S)
        one.ask_to_stop(None)

    ended = run_while(one, ask_twice)

    assert (ended.end, len(waiters)) == (End.STOPPED, 2)
    for waiter in waiters:
        assert waiter.report is not None
        assert "No space left on device" in (waiter.report.failure or "")


def test_a_pipeline_that_is_killed_before_its_last_checkpoint_has_not_finished(
    backend: SmallBackend, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input has ended, but what was read is not committed."""
    monkeypatch.setattr(effects, "_RETRY_S", 0.5)
    backend.full = True
    one = begun(context)

    def kill() -> None:
        wait_for(lambda: one.history.reports)
        one.ask_to_stop(None)

    assert run_while(one, kill) == Outcome(End.STOPPED)


def test_a_pipeline_whose_last_checkpoint_finds_no_room_fails_and_says_why(
    backend: SmallBackend, context: RunContext
) -> None:
    backend.full = True
    one = begun(context)

    ended = run_while(one, lambda: None)

    assert ended.end is End.FAILED
    assert "failed 3 times" in str(ended.error)
    assert "No space left on device" in str(ended.error)


def test_a_number_that_was_reported_to_users_is_not_reported_again(
    backend: SmallBackend, context: RunContext
) -> None:
    """The store did not take it, so the next generation would find it free."""
    backend.full = True
    book = AttemptHistory()
    for number in (4, 5):
        book.on_command(events.ReserveId(CheckpointId(number), CheckpointKind.CHECKPOINT), {})
        failed = events.EndAttempt(CheckpointId(number), False, FailureReason.STORE_FAILED)
        book.on_command(failed, {})
    one = begun(context, Standstill(), book=book)

    def stop() -> None:
        wait_for(lambda: any(report.generation for report in book.reports))
        one.ask_to_stop(None)

    run_while(one, stop)

    assert [(report.id, report.generation) for report in book.reports][:3] == [
        (4, 0),
        (5, 0),
        (6, 1),
    ]
