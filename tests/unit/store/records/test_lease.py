"""The heartbeat lease: which process runs a pipeline, and when another one may."""

import os
import socket
import subprocess
import sys

import pytest
from tests.unit.store.cuts import PIPELINE

from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.records.lease import (
    STALE_MS,
    Holding,
    Lease,
    Leases,
    holding,
    process_is_dead,
)

OURS = Lease("here", 7, "ours", 1_000)
THEIRS = Lease("there", 8, "theirs", 2_000)


def test_a_pipeline_that_never_ran_is_free() -> None:
    assert Leases(MemoryBackend(), PIPELINE).read() is None
    assert holding(None, 5, is_dead=False) is Holding.FREE


def test_a_process_with_heartbeats_holds_the_pipeline_until_it_is_silent_for_long() -> None:
    leases = Leases(MemoryBackend(), PIPELINE)
    leases.beat(OURS)
    found = leases.read()

    assert found == OURS
    assert holding(found, 1_000 + STALE_MS - 1, is_dead=False) is Holding.HELD
    assert holding(found, 1_000 + STALE_MS, is_dead=False) is Holding.STALE


def test_a_process_that_is_known_to_be_gone_holds_nothing() -> None:
    assert holding(OURS, 1_001, is_dead=True) is Holding.STALE


def test_a_process_that_has_ended_by_itself_holds_nothing() -> None:
    leases = Leases(MemoryBackend(), PIPELINE)
    leases.beat(OURS)
    leases.release(OURS)

    assert holding(leases.read(), 1_001, is_dead=False) is Holding.FREE


def test_a_process_does_not_release_what_another_one_holds_by_now() -> None:
    leases = Leases(MemoryBackend(), PIPELINE)
    leases.release(OURS)
    leases.beat(THEIRS)
    leases.release(OURS)

    assert leases.read() == THEIRS


def test_a_process_of_another_machine_is_not_known_to_be_dead() -> None:
    assert not process_is_dead(Lease("another machine", 1, "x", 0))


def test_a_process_of_this_machine_is_dead_when_it_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    here = socket.gethostname()

    assert process_is_dead(Lease(here, child.pid, "x", 0))
    assert not process_is_dead(Lease(here, os.getppid(), "x", 0))


def test_a_process_that_had_our_number_before_is_dead() -> None:
    lease = Lease(socket.gethostname(), os.getpid(), "nonce", 0)

    assert process_is_dead(lease)
    assert not process_is_dead(lease, {"nonce"})


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)

    assert not process_is_dead(Lease(socket.gethostname(), 1, "x", 0))
