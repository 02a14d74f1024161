"""Holding a pipeline: taking its lease, and a heartbeat for as long as somebody works on it.

Whoever runs a pipeline or moves it in time holds it meanwhile, so that a second process is told
instead of fencing the first one out. What keeps data right is the claim, not this (rule F5).
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cutwater.errors import PipelineHeld, StoreError
from cutwater.ids import PipelineId
from cutwater.store.backend import Backend
from cutwater.store.lease import BEAT_MS, Holding, Lease, Leases, holding, process_is_dead

_LOG: Final = logging.getLogger(__name__)

_LIVE: Final[set[str]] = set()
"""The nonces of all leases of this process: what has its number and none of these is dead."""


def holder_of(backend: Backend, pipeline: PipelineId, name: str) -> PipelineHeld | None:
    """Say who holds the pipeline, as the error that it is for others; None if nobody does.

    Raises:
        StoreError: If the lease cannot be read.
    """
    found = Leases(backend, pipeline).read()
    at_ms = _wall_ms()
    held = holding(found, at_ms, is_dead=found is not None and process_is_dead(found, _LIVE))
    if found is None or held is not Holding.HELD:
        return None
    age_s = max(0, at_ms - found.beat_at_ms) // 1000
    return PipelineHeld(name, found.host, found.process, age_s)


def take_lease(backend: Backend, pipeline: PipelineId, name: str, *, takeover: bool) -> Lease:
    """Say who we are, unless somebody else holds the pipeline. Nothing is written yet.

    Raises:
        PipelineHeld: If somebody does, and it is not to be taken over.
        StoreError: If the lease cannot be read.
    """
    held = holder_of(backend, pipeline, name)
    if held is not None and not takeover:
        raise held
    lease = Lease(socket.gethostname(), os.getpid(), uuid.uuid4().hex, _wall_ms())
    _LIVE.add(lease.nonce)
    return lease


class Heartbeat:
    """Shows others, again and again, that the holder of a lease is alive."""

    def __init__(self, leases: Leases, lease: Lease, every_ms: int = BEAT_MS) -> None:
        """Prepare; nothing is written yet."""
        self._leases = leases
        self._lease = lease
        self._every_s = every_ms / 1000
        self._over = threading.Event()
        self._has_beaten = False
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Show it once, so that others know before anything is done; then go on in a thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End, and say so in the store if it answers."""
        self._over.set()
        self._thread.join()
        try:
            self._leases.release(replace(self._lease, beat_at_ms=_wall_ms()))
        except StoreError as error:
            _LOG.warning("heartbeat: %s", error)

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            if not self._beat():
                return

    def _beat(self) -> bool:
        """Show it; return whether the lease is still ours, as far as one can tell."""
        try:
            found = self._leases.read() if self._has_beaten else None
            if found is not None and found.nonce != self._lease.nonce:
                # Somebody has taken over; this process finds out at its next decision.
                _LOG.warning("process %s on %s has taken over", found.process, found.host)
                return False
            self._leases.beat(replace(self._lease, beat_at_ms=_wall_ms()))
            self._has_beaten = True
        except StoreError as error:
            _LOG.warning("heartbeat: %s", error)
        return True


@contextmanager
def held(backend: Backend, pipeline: PipelineId, name: str, *, takeover: bool) -> Iterator[None]:
    """Hold a pipeline while working on it.

    Raises:
        PipelineHeld: If somebody else does, and it is not to be taken over.
        StoreError: If the lease cannot be read.
    """
    lease = take_lease(backend, pipeline, name, takeover=takeover)
    heartbeat = Heartbeat(Leases(backend, pipeline), lease)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


def _wall_ms() -> int:
    """Return the time on the wall, for others to compare: it goes on while a machine sleeps."""
    return int(time.time() * 1000)
