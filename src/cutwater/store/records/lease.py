"""The heartbeat lease: which process runs a pipeline, and where that process answers.

A process that runs a pipeline, or moves it in time, holds its lease and renews it by a heartbeat,
so that a second process is refused instead of fencing the first one out by mistake. The lease does
not keep data right. The claim in the decision log does: a process that ignores a fresh lease fences
the other one out, exactly once (rule F5).

The address of the running pipeline's API is written by the process that holds the lease and names
the nonce of that lease, so that an address left by a dead process is recognised. Nothing depends on
the address; it holds no secret, only the name of the file that has one.
"""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from cutwater.clock import wall_ms
from cutwater.errors import Corrupt, HolderUnknown, NewerFormat, NotFound, PipelineHeld, StoreError
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import decode, encode, plain_record

BEAT_MS: Final = 3_000
"""How often a running process shows that it is alive."""

STALE_MS: Final = 20_000
"""Without a sign for this long, a process counts as dead."""

_LOG: Final = logging.getLogger(__name__)

_LIVE: Final[set[str]] = set()
"""The nonces of all leases of this process: what has its number and none of these is dead."""

_GONE: Final[set[str]] = set()
"""The nonces of leases whose process had ended, or was given up, when this process took over."""


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


LEASE: Final = plain_record("lease", Lease)


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


class Hold(NamedTuple):
    """How a pipeline is held.

    Attributes:
        lease: Who holds it, or did last; None if nobody ever did.
        holding: Whether somebody holds it now.
        age_s: How long ago the holder showed a sign of life.
        problem: Why that is not known, if it is not; empty otherwise.
    """

    lease: Lease | None
    holding: Holding
    age_s: int
    problem: str = ""


def look(backend: Backend, pipeline: PipelineId) -> Hold:
    """See whether somebody holds a pipeline now; a damaged lease does not say.

    Raises:
        StoreError: If the store does not answer.
    """
    try:
        lease = Leases(backend, pipeline).read()
    except (Corrupt, NewerFormat) as error:
        return Hold(None, Holding.UNKNOWN, 0, error.reason)
    at_ms = wall_ms()
    held = holding(lease, at_ms, is_dead=lease is not None and process_is_dead(lease, _LIVE))
    age_s = 0 if lease is None else max(0, at_ms - lease.beat_at_ms) // 1000
    return Hold(lease, held, age_s)


def holder_of(
    backend: Backend, pipeline: PipelineId, name: str
) -> PipelineHeld | HolderUnknown | None:
    """Say who holds the pipeline, as the error that it is for others; None if nobody does.

    Raises:
        StoreError: If the store does not answer.
    """
    return _held_by(look(backend, pipeline), backend, pipeline, name)


def _held_by(
    found: Hold, backend: Backend, pipeline: PipelineId, name: str
) -> PipelineHeld | HolderUnknown | None:
    if found.holding is Holding.UNKNOWN:
        return HolderUnknown(name, Leases(backend, pipeline).path, found.problem.rstrip("."))
    if found.lease is None or found.holding is not Holding.HELD:
        return None
    return PipelineHeld(name, found.lease.host, found.lease.process, found.age_s)


def take_lease(backend: Backend, pipeline: PipelineId, name: str, *, takeover: bool) -> Lease:
    """Say who we are, unless somebody else holds the pipeline. Nothing is written yet.

    Raises:
        PipelineHeld: If somebody does, and it is not to be taken over.
        HolderUnknown: If nobody can tell, and it is not to be taken over.
        StoreError: If the store does not answer.
    """
    found = look(backend, pipeline)
    held = _held_by(found, backend, pipeline, name)
    if held is not None and not takeover:
        raise held
    if held is None and found.lease is not None:
        _GONE.add(found.lease.nonce)
    lease = Lease(socket.gethostname(), os.getpid(), uuid.uuid4().hex, wall_ms())
    _LIVE.add(lease.nonce)
    return lease


def is_gone(
    backend: Backend, pipeline: PipelineId, nonce: str, pause: Callable[[float], bool]
) -> bool:
    """Say whether it is certain that a process which has claimed the pipeline does not run it.

    It is gone if it held the lease before this process and had ended by then; or if it holds the
    lease and shows no sign of life for as long as every start would wait. That it is not among the
    processes of this machine is not enough: containers may have a host name in common, and the
    number of a process in another one says nothing here. If both believed so of each other, each
    would claim the pipeline back for ever. A process that has released its lease was stopped:
    nobody goes on for it.

    Args:
        backend: The store.
        pipeline: The pipeline.
        nonce: That of the lease of the process.
        pause: Waits so many seconds; returns whether to wait no more.

    Raises:
        StoreError: If the store does not answer.
    """
    if nonce in _GONE:
        return True
    leases, first = Leases(backend, pipeline), None
    for _ in range(STALE_MS // BEAT_MS + 2):
        lease = leases.read()
        if lease is None or lease.nonce != nonce or lease.released:
            return False
        if lease.host == socket.gethostname() and not process_is_dead(lease, _LIVE):
            return False
        if first is not None and lease.beat_at_ms != first:
            return False
        first = lease.beat_at_ms
        if pause(BEAT_MS / 1000):
            return False
    return True


class Heartbeat:
    """Shows others, again and again, that the holder of a lease is alive."""

    def __init__(self, leases: Leases, lease: Lease, every_ms: int = BEAT_MS) -> None:
        """Prepare; nothing is written yet."""
        self._leases = leases
        self._lease = lease
        self._every_s = every_ms / 1000
        self._over = threading.Event()
        self._has_beaten = False
        self._problem = ""
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Show it once, so that others know before anything is done; then go on in a thread."""
        self._beat()
        self._thread.start()

    def begin_again(self) -> None:
        """Show it again, also if another process has shown in the meantime that it holds it."""
        self._over.set()
        self._thread.join()
        self._over = threading.Event()
        self._has_beaten = False
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self.start()

    def stop(self) -> None:
        """End, and say so in the store if it answers."""
        self._over.set()
        self._thread.join()
        # Also if the store does not take the release: this process may start it again at once.
        _LIVE.discard(self._lease.nonce)
        try:
            self._leases.release(replace(self._lease, beat_at_ms=wall_ms()))
        except StoreError as error:
            _LOG.warning("heartbeat: %s", error)

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            if not self._beat():
                return

    def _beat(self) -> bool:
        """Show it; return whether the lease is still ours, as far as one can tell."""
        try:
            found = self._found()
            if found is not None and found.nonce != self._lease.nonce:
                # Somebody has taken over; this process finds out at its next decision.
                _LOG.warning("process %s on %s has taken over", found.process, found.host)
                return False
            self._leases.beat(replace(self._lease, beat_at_ms=wall_ms()))
            self._has_beaten = True
        except StoreError as error:
            self._tell(str(error))
        else:
            self._tell("")
        return True

    def _tell(self, problem: str) -> None:
        """Say once what is wrong, and once that it is over: a store may be full for hours."""
        if problem and problem != self._problem:
            _LOG.warning("heartbeat: %s", problem)
        elif self._problem and not problem:
            _LOG.info("heartbeat: the store takes it again")
        self._problem = problem

    def _found(self) -> Lease | None:
        """Read the lease; None if it is not there, or damaged: then it is written anew."""
        if not self._has_beaten:
            return None
        try:
            return self._leases.read()
        except Corrupt as error:
            _LOG.warning("heartbeat: %s", error)
            return None


@contextmanager
def held(backend: Backend, pipeline: PipelineId, name: str, *, takeover: bool) -> Iterator[None]:
    """Hold a pipeline while working on it.

    Raises:
        PipelineHeld: If somebody else does, and it is not to be taken over.
        HolderUnknown: If nobody can tell, and it is not to be taken over.
        StoreError: If the store does not answer.
    """
    lease = take_lease(backend, pipeline, name, takeover=takeover)
    heartbeat = Heartbeat(Leases(backend, pipeline), lease)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process answers.

    Attributes:
        holder: The nonce of its lease.
        url: Its API and dashboard, without any secret.
        host: The machine on which that address means something, if it is a loopback address.
        token_file: Where the token for changes is, on that machine; None if it came otherwise.
    """

    holder: str
    url: str
    host: str
    token_file: str | None = None


ADDRESS: Final = plain_record("address", Address)


class Addresses:
    """The address of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._path = PipelinePaths(pipeline).address

    def tell(self, address: Address) -> None:
        """Say where this process answers, in place of whatever was said before.

        Raises:
            StoreError: If that could not be written.
        """
        self._backend.put(self._path, encode(ADDRESS, self._path, address))

    def of(self, holder: str) -> Address | None:
        """Return where the process with that lease answers; None if nobody can say.

        Raises:
            Unavailable: If the store does not answer.
        """
        try:
            found = decode(ADDRESS, self._path, self._backend.read(self._path))
        except (NotFound, Corrupt, NewerFormat):
            return None
        return found if found.holder == holder else None
