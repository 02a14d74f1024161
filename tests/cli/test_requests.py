"""`cutwater savepoint`, `checkpoint` and `stop`: the whole way through the store, without Spark.

A desk serves the requests, as in a running pipeline, on a fake run control.
"""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.offline_store import OfflineStore
from tests.unit.runtime.fake_run_control import FakeRunControl
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import RequestFailed
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.request_server import RequestServer
from cutwater.store.records.lease import Lease, Leases

GONE = "has ended"


class Running:
    """A pipeline that seems to run: its lease is fresh, and its desk serves requests."""

    def __init__(self, stored: OfflineStore) -> None:
        self.stored = stored
        # The parent lives as long as the test does, and is not this process.
        now_ms = int(time.time() * 1000)
        self.lease = Lease(socket.gethostname(), os.getppid(), "nonce", now_ms + 60_000)
        self.control = FakeRunControl()
        self.desk = RequestServer(stored.writer.store, self.lease.nonce, self.control)
        stored.hold(self.lease)
        self.desk.start()

    def release(self) -> None:
        Leases(self.stored.backend, PIPELINE).release(self.lease)

    def close(self) -> None:
        self.control.may_proceed.set()
        self.control.over.set()
        self.desk.close()


@pytest.fixture
def stored(tmp_path: Path) -> OfflineStore:
    return OfflineStore(tmp_path / "store")


@pytest.fixture
def running(stored: OfflineStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("cutwater.runtime.request_server.LOOK_MS", 20)
    monkeypatch.setattr("cutwater.cli.commands.requests._RELEASE_S", 0.1)
    found = Running(stored)
    yield found
    found.close()


def left_behind(stored: OfflineStore) -> tuple[str, ...]:
    return stored.writer.store.requests.tokens()


def test_a_savepoint_is_taken_and_its_progress_is_shown(running: Running) -> None:
    result = running.stored.run("savepoint", "orders", "--name", "before")

    assert result.exit_code == 0
    assert running.control.requested == [CheckpointRequest(CheckpointKind.SAVEPOINT, "before")]
    lines = result.output.splitlines()
    assert (
        lines[0] == f"requesting a savepoint from process {os.getppid()} on {socket.gethostname()}"
    )
    assert lines[-1] == ("savepoint before (checkpoint 1) completed in 250 ms, 2.0 KB uploaded.")
    assert left_behind(running.stored) == ()


def test_a_savepoint_without_a_name_gets_one(running: Running) -> None:
    taken = running.stored.json("savepoint", "orders")["checkpoint"]

    assert taken["name"].startswith("savepoint-20")
    assert (taken["checkpoint_type"], taken["status"]) == ("SAVEPOINT", "COMPLETED")


@pytest.mark.parametrize(
    ("flags", "kind"), [((), CheckpointKind.CHECKPOINT), (("--full",), CheckpointKind.FULL)]
)
def test_a_checkpoint_is_taken(
    running: Running, flags: tuple[str, ...], kind: CheckpointKind
) -> None:
    taken = running.stored.json("checkpoint", "orders", *flags)["checkpoint"]

    assert running.control.requested == [CheckpointRequest(kind)]
    assert (taken["id"], taken["kind"], taken["checkpointed_size"]) == (1, kind.name, 2048)


def test_a_stop_says_where_the_next_run_goes_on(running: Running) -> None:
    result = running.stored.run("stop", "orders")

    assert result.exit_code == 0
    assert "orders has stopped; the next run resumes from checkpoint 1." in result.output


def test_a_stop_with_a_savepoint_and_a_drain_asks_for_both(running: Running) -> None:
    stopped = running.stored.json("stop", "orders", "--savepoint", "last", "--drain")

    assert running.control.requested == [
        CheckpointRequest(CheckpointKind.SAVEPOINT, "last", drain=True)
    ]
    assert (stopped["stopped"], stopped["checkpoint"]["name"]) == (True, "last")
    assert left_behind(running.stored) == ()


def test_a_stop_whose_checkpoint_failed_is_a_stop(running: Running) -> None:
    running.control.outcome = "FAILED"

    result = running.stored.run("stop", "orders")

    assert result.exit_code == 0
    assert "its last checkpoint failed: a step declined it" in result.output


def test_what_fails_is_one_line_with_the_reason(running: Running) -> None:
    running.control.outcome = "FAILED"

    result = running.stored.run("savepoint", "orders", "--name", "before")

    assert result.exit_code == 1
    assert "[CW-612] pipeline orders: the savepoint failed: a step declined it." in result.stderr
    assert left_behind(running.stored) == ()


def test_a_command_whose_time_is_up_withdraws_a_request_that_has_not_begun(
    stored: OfflineStore,
) -> None:
    deaf = Lease(socket.gethostname(), os.getppid(), "nonce", int(time.time() * 1000))
    stored.hold(deaf)

    result = stored.run("checkpoint", "orders", "--timeout", "300ms")

    assert result.exit_code == 1
    assert "no answer within 300 ms: it was not started." in result.stderr
    assert left_behind(stored) == ()


def test_a_command_whose_time_is_up_says_that_it_has_begun(running: Running) -> None:
    running.control.may_proceed.clear()

    # Long enough for the desk to take it, whatever else the machine has to do.
    result = running.stored.run("checkpoint", "orders", "--timeout", "3s")

    assert result.exit_code == 1
    assert "may still be completed" in result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"released": True}, "ran it last and has ended"),
        ({"beat_at_ms": 0}, "sent its last heartbeat"),
        ({"process": 2**22 + 1}, "sent its last heartbeat"),
    ],
)
def test_a_pipeline_that_does_not_run_cannot_be_asked(
    stored: OfflineStore, change: dict[str, int], said: str
) -> None:
    lease = Lease(socket.gethostname(), os.getppid(), "nonce", int(time.time() * 1000))
    stored.hold(replace(lease, **change))  # type: ignore[arg-type]

    result = stored.run("savepoint", "orders", "--name", "before")

    assert result.exit_code == 1
    assert (
        f"[CW-611] pipeline orders does not run: process {change.get('process', os.getppid())}"
        in (result.stderr)
    )
    assert said in result.stderr
    assert left_behind(stored) == ()


def test_a_pipeline_that_has_never_run_cannot_be_asked(stored: OfflineStore) -> None:
    assert "it has never run with this store" in stored.run("stop", "orders").stderr


def test_a_process_that_dies_while_it_is_asked_is_noticed(running: Running) -> None:
    running.control.may_proceed.clear()
    running.stored.hold(
        replace(running.lease, nonce="another", beat_at_ms=running.lease.beat_at_ms)
    )
    taken_over = running.stored.run("checkpoint", "orders", "--timeout", "20s")
    assert taken_over.exit_code == 1
    assert "another process" in taken_over.stderr

    running.release()
    running.stored.hold(replace(running.lease, released=True))
    gone = running.stored.run("checkpoint", "orders")

    assert (gone.exit_code, GONE in gone.stderr) == (1, True)


@pytest.mark.parametrize(("numbers", "meant"), [((), "None"), (("7",), "7")])
def test_a_pending_checkpoint_is_aborted_with_a_reason(
    running: Running, numbers: tuple[str, ...], meant: str
) -> None:
    result = running.stored.run("checkpoints", "abort", "orders", *numbers, "--reason", " too slow")

    assert (result.exit_code, result.stderr) == (0, "")
    assert running.control.requested == [f"abort {meant}: too slow"]
    first, *_, last = result.output.splitlines()
    assert first.startswith("requesting an abort from process ")
    assert last == f"checkpoint {meant if numbers else 1} aborted after 250 ms."
    assert left_behind(running.stored) == ()


def test_an_abort_tells_programs_what_was_aborted(running: Running) -> None:
    told = running.stored.json("checkpoints", "abort", "orders", "--reason", "too slow")

    assert told["aborted"] is True
    assert told["checkpoint"]["failure_message"] == "it was aborted on request (too slow)"


def test_an_abort_that_is_refused_says_why(running: Running) -> None:
    running.control.error = RequestFailed("nothing was aborted: no checkpoint is pending.")

    result = running.stored.run("checkpoints", "abort", "orders", "--reason", "too slow")

    assert result.exit_code == 1
    assert "[CW-612] pipeline orders: the abort failed: nothing was aborted: no checkpoint is " in (
        result.stderr
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoints", "abort", "orders"),
        ("checkpoints", "abort", "orders", "--reason", "  "),
        ("checkpoints", "abort", "orders", "--reason", "a\nb"),
        ("checkpoints", "abort", "orders", "0", "--reason", "why"),
        ("checkpoints", "abort", "orders", "before", "--reason", "why"),
        ("savepoint", "orders", "--name", "12"),
        ("stop", "orders", "--savepoint", "latest"),
        ("checkpoint", "orders", "--timeout", "5"),
        ("checkpoint", "nothing"),
    ],
)
def test_wrong_usage_sends_no_request(running: Running, arguments: tuple[str, ...]) -> None:
    assert running.stored.run(*arguments).exit_code == 2
    assert running.control.requested == []
