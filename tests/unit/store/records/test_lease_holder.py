"""Holding a pipeline: other processes see it before anything is done, and as long as it is held."""

import logging
import os
import socket
import threading
import time

import pytest
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import HolderUnknown, PipelineHeld, Unavailable
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath
from cutwater.store.records.lease import (
    STALE_MS,
    Heartbeat,
    Holding,
    Lease,
    Leases,
    hold_pipeline,
    holder_of,
    is_gone,
    look,
    take_lease,
)

DEADLINE_S = 30


class Beaten(MemoryBackend):
    """Counts what is put, and can refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.down = False
        self.changed = threading.Condition()

    def put(self, path: ObjectPath, data: bytes) -> None:
        with self.changed:
            self.puts += 1
            self.changed.notify_all()
        if self.down:
            raise Unavailable(path, "the store is down")
        super().put(path, data)

    def wait_for_puts(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.puts >= count, DEADLINE_S)


def theirs(age_ms: int) -> Lease:
    return Lease("elsewhere", 7, "theirs", int(time.time() * 1000) - age_ms)


def test_the_holder_of_a_pipeline_is_known_to_others_before_it_does_anything() -> None:
    backend = MemoryBackend()
    leases = Leases(backend, PIPELINE)

    with hold_pipeline(backend, PIPELINE, "orders", takeover=False):
        found = leases.read()
        assert found is not None
        assert (found.host, found.process) == (socket.gethostname(), os.getpid())
        with (
            pytest.raises(PipelineHeld),
            hold_pipeline(backend, PIPELINE, "orders", takeover=False),
        ):
            pass

    ended = leases.read()
    assert ended is not None
    assert ended.released
    assert holder_of(backend, PIPELINE, "orders") is None


def test_a_fresh_lease_of_another_process_is_respected_without_takeover() -> None:
    backend = MemoryBackend()
    Leases(backend, PIPELINE).beat(theirs(0))

    with pytest.raises(PipelineHeld, match="elsewhere"):
        take_lease(backend, PIPELINE, "orders", takeover=False)
    assert take_lease(backend, PIPELINE, "orders", takeover=True).process == os.getpid()


@pytest.mark.parametrize("data", [b"something else", b""])
def test_a_lease_that_cannot_be_read_is_named_and_can_be_taken_over(data: bytes) -> None:
    backend = MemoryBackend()
    leases = Leases(backend, PIPELINE)
    backend.put(leases.path, data)

    assert look(backend, PIPELINE).holding is Holding.UNKNOWN
    with pytest.raises(HolderUnknown, match=leases.path):
        take_lease(backend, PIPELINE, "orders", takeover=False)
    with hold_pipeline(backend, PIPELINE, "orders", takeover=True):
        found = leases.read()
        assert found is not None
        assert found.process == os.getpid()


def test_a_lease_that_is_damaged_meanwhile_is_written_again() -> None:
    backend = Beaten()
    leases = Leases(backend, PIPELINE)
    lease = take_lease(backend, PIPELINE, "orders", takeover=False)
    heartbeat = Heartbeat(leases, lease, every_ms=1)

    heartbeat.start()
    backend.put(leases.path, b"something else")
    backend.wait_for_puts(backend.puts + 2)
    assert leases.read() is not None
    heartbeat.stop()
    backend.put(leases.path, b"something else")
    leases.release(lease)

    ended = leases.read()
    assert ended is not None
    assert ended.released


def test_a_heartbeat_that_never_started_can_be_stopped() -> None:
    backend = MemoryBackend()
    leases = Leases(backend, PIPELINE)
    lease = take_lease(backend, PIPELINE, "orders", takeover=False)
    leases.beat(lease)

    Heartbeat(leases, lease).stop()

    ended = leases.read()
    assert ended is not None
    assert ended.released


def test_a_stale_lease_is_taken_over() -> None:
    backend = MemoryBackend()
    Leases(backend, PIPELINE).beat(theirs(STALE_MS))

    assert holder_of(backend, PIPELINE, "orders") is None


def test_a_heartbeat_goes_on_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    backend = Beaten()
    lease = take_lease(backend, PIPELINE, "orders", takeover=False)
    heartbeat = Heartbeat(Leases(backend, PIPELINE), lease, every_ms=1)

    with caplog.at_level(logging.INFO):
        backend.down = True
        heartbeat.start()
        backend.wait_for_puts(10)
        backend.down = False
        # The first of them was begun after that, and the second when the first was over.
        backend.wait_for_puts(backend.puts + 2)
        backend.down = True
        heartbeat.stop()

    found = Leases(backend, PIPELINE).read()
    assert found is not None
    assert (found.nonce, found.released) == (lease.nonce, False)
    # Said once, however long it lasts, and once more by the end; and between that it is over.
    assert caplog.text.count("the store is down") in {2, 3}
    assert caplog.text.count("the store takes it again") == 1
    # The store did not take the release; this process still knows that it is not held.
    assert holder_of(backend, PIPELINE, "orders") is None


def test_a_heartbeat_ends_when_another_process_has_taken_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Beaten()
    leases = Leases(backend, PIPELINE)
    lease = take_lease(backend, PIPELINE, "orders", takeover=False)
    heartbeat = Heartbeat(leases, lease, every_ms=100)

    with caplog.at_level(logging.WARNING):
        heartbeat.start()
        leases.beat(theirs(0))
        assert heartbeat._task is not None
        heartbeat._task.join(DEADLINE_S)
        heartbeat.stop()

    found = leases.read()
    assert found is not None
    assert (found.nonce, found.released) == ("theirs", False)
    assert "process 7 on elsewhere has taken over" in caplog.text


def test_a_process_is_not_called_gone_without_waiting_for_a_sign_of_life() -> None:
    backend = MemoryBackend()
    Leases(backend, PIPELINE).beat(theirs(0))

    assert not is_gone(backend, PIPELINE, "theirs", lambda _: True)
    assert is_gone(backend, PIPELINE, "theirs", lambda _: False)
    assert not is_gone(backend, PIPELINE, "of another", lambda _: False)
