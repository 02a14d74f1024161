"""The heartbeat lease: who runs a pipeline, so that nobody takes it over by mistake.

The lease protects people from themselves; it is not what keeps data right. That is the claim in
the decision log: whoever ignores a fresh lease fences the other out, exactly once (rule F5).
"""

import os
import socket
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

import msgspec

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import RecordKind, decode, encode

BEAT_MS: Final = 3_000
"""How often a running process shows that it is alive."""

STALE_MS: Final = 20_000
"""Without a sign for this long, a process counts as dead."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a pipeline.

    Attributes:
        host: The machine.
        process: The process id on that machine.
        nonce: Tells this process from any other of the same number.
        beat_at_ms: When it last showed that it is alive.
        released: Whether it has ended by itself.
    """

    host: str
    process: int
    nonce: str
    beat_at_ms: int
    released: bool = False


def claim_nonce(lease_nonce: str) -> str:
    """Make the nonce of a claim, from which others see by which lease its process is known."""
    return f"{lease_nonce}.{uuid.uuid4().hex}"


def claimant(nonce: str) -> str | None:
    """Return the nonce of the lease of a claim's process; None if the claim does not tell."""
    lease_nonce, separator, _ = nonce.partition(".")
    return lease_nonce if separator else None


class LeaseForm(msgspec.Struct, frozen=True):
    """A `Lease`."""

    host: str
    process: int
    nonce: str
    beat_at_ms: int
    released: bool


LEASE: Final = RecordKind(
    "lease",
    lambda lease: LeaseForm(
        lease.host, lease.process, lease.nonce, lease.beat_at_ms, lease.released
    ),
    msgspec.json.Decoder(LeaseForm),
    lambda form: Lease(form.host, form.process, form.nonce, form.beat_at_ms, form.released),
)


class Holding(Enum):
    """Whether a pipeline may be started without taking it from somebody."""

    FREE = auto()
    """Nobody has run it, or whoever did has ended."""
    STALE = auto()
    """Whoever ran it has shown no sign for long."""
    HELD = auto()
    """Somebody runs it."""
    UNKNOWN = auto()
    """Somebody may run it: what says so cannot be read."""


def holding(lease: Lease | None, now_ms: int, *, is_dead: bool) -> Holding:
    """Say whether a lease stands in the way.

    Args:
        lease: What the store holds.
        now_ms: The time now.
        is_dead: Whether its process is known to be gone, whatever the heartbeat says.
    """
    if lease is None or lease.released:
        return Holding.FREE
    if is_dead or now_ms - lease.beat_at_ms >= STALE_MS:
        return Holding.STALE
    return Holding.HELD


def process_is_dead(lease: Lease, live: Collection[str] = ()) -> bool:
    """Say whether the lease's process is on this machine and gone.

    Args:
        lease: The lease.
        live: The nonces of this process's own leases: another one with this process's number
            belongs to a process that had the number before, as in a restarted container.
    """
    if lease.host != socket.gethostname():
        return False
    if lease.process == os.getpid():
        return lease.nonce not in live
    try:
        os.kill(lease.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class Leases:
    """The lease of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._path = PipelinePaths(pipeline).heartbeat

    @property
    def path(self) -> ObjectPath:
        """Where it is."""
        return self._path

    def read(self) -> Lease | None:
        """Read who runs the pipeline; None if nobody ever did.

        Raises:
            Corrupt: If the record is damaged.
            NewerFormat: If it is of a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        try:
            return decode(LEASE, self._path, self._backend.read(self._path))
        except NotFound:
            return None

    def beat(self, lease: Lease) -> None:
        """Show that the holder is alive, or has ended.

        Raises:
            StoreError: If that could not be written.
        """
        self._backend.put(self._path, encode(LEASE, self._path, lease))

    def release(self, lease: Lease) -> None:
        """Say that the holder has ended by itself, unless somebody else holds it by now.

        Raises:
            StoreError: If that could not be written.
        """
        try:
            found = self.read()
        except Corrupt:
            # Whoever holds it by now shows so again in a moment; nobody else would ever mend it.
            found = lease
        if found is not None and found.nonce == lease.nonce:
            self.beat(replace(lease, released=True))
