"""The heartbeat lease: which process runs a pipeline, and where that process answers.

A process that runs, rewinds or forks a pipeline holds its lease and renews it by a heartbeat, so
that a second process is refused instead of fencing the first one out by mistake. The lease does not
protect the data. The claim in the decision log does: a process that ignores a fresh lease fences
the other one out, exactly once (rule F5).

The process that holds the lease writes the address of its API. The record names the nonce of the
lease, so that an address left by a dead process is recognised. Nothing depends on the address; it
holds no secret, only the name of the file with the token.
"""

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.errors import Corrupt, HolderUnknown, NewerFormat, NotFound, PipelineHeld, StoreError
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import decode, encode, plain_record
from cutwater.tasks import THREADS, Task, Tasks

BEAT_MS: Final = 3_000
"""The interval between two heartbeats of a running process."""

STALE_MS: Final = 20_000
"""Without a heartbeat for this long, a process counts as dead."""

_LOG: Final = logging.getLogger(__name__)

_LIVE: Final[set[str]] = set()
"""The nonces of this process's leases: a lease with its process id and another nonce is dead."""

_GONE: Final[set[str]] = set()
"""The nonces of leases whose process had ended, or counted as dead, when this one took over."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The process that runs a pipeline.

    Attributes:
        nonce: Distinguishes this process from any other with the same id.
        released: Whether it has ended normally.
    """

    host: str
    process: int
    nonce: str
    beat_at_ms: int
    released: bool = False


def claim_nonce(lease_nonce: str) -> str:
    """Create the nonce of a claim; it contains the nonce of the process's lease."""
    return f"{lease_nonce}.{uuid.uuid4().hex}"


def claimant(nonce: str) -> str | None:
    """Return the lease nonce in the nonce of a claim; None if there is none."""
    lease_nonce, separator, _ = nonce.partition(".")
    return lease_nonce if separator else None


LEASE: Final = plain_record("lease", Lease)


class Holding(Enum):
    """Whether a pipeline may be started without taking it from another process."""

    FREE = auto()
    """No process has run it, or the last one has ended."""
    STALE = auto()
    """The last process that ran it has sent no heartbeat for a long time."""
    HELD = auto()
    """A process runs it."""
    UNKNOWN = auto()
    """A process may run it: the lease cannot be read."""


def holding(lease: Lease | None, now_ms: int, *, is_dead: bool) -> Holding:
    """Classify a lease; `is_dead`: its process is known to be dead, whatever the heartbeat says."""
    if lease is None or lease.released:
        return Holding.FREE
    if is_dead or now_ms - lease.beat_at_ms >= STALE_MS:
        return Holding.STALE
    return Holding.HELD


def process_is_dead(lease: Lease, live: Collection[str] = ()) -> bool:
    """Return whether the lease's process ran on this machine and is dead.

    `live` are the nonces of this process's own leases: another lease with this process's id belongs
    to a process that had the id before, as in a restarted container.
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
    """The lease of one pipeline. Every method raises `StoreError` if the store cannot do it."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        self._backend = backend
        self._path = PipelinePaths(pipeline).heartbeat

    @property
    def path(self) -> ObjectPath:
        return self._path

    def read(self) -> Lease | None:
        """Return None if no process ever held it; a record that is damaged or newer is an error."""
        try:
            return decode(LEASE, self._path, self._backend.read(self._path))
        except NotFound:
            return None

    def beat(self, lease: Lease) -> None:
        """Write the lease: a heartbeat, or its release."""
        self._backend.put(self._path, encode(LEASE, self._path, lease))

    def release(self, lease: Lease) -> None:
        """Mark the lease as released, unless another process holds it by now."""
        try:
            found = self.read()
        except Corrupt:
            # If another process holds the lease, its next heartbeat corrects this. If none does,
            # no other process would ever repair the record.
            found = lease
        if found is not None and found.nonce == lease.nonce:
            self.beat(replace(lease, released=True))


class Hold(NamedTuple):
    """The state of a pipeline's lease.

    Attributes:
        lease: The current or last lease; None if there never was one.
        problem: Why the state is unknown; empty if it is known.
    """

    lease: Lease | None
    holding: Holding
    age_s: int
    problem: str = ""


def look(backend: Backend, pipeline: PipelineId, clock: Clock = SYSTEM_CLOCK) -> Hold:
    """Find out whether a process holds a pipeline now; with a damaged lease it is unknown."""
    try:
        lease = Leases(backend, pipeline).read()
    except (Corrupt, NewerFormat) as error:
        return Hold(None, Holding.UNKNOWN, 0, error.reason)
    at_ms = clock.wall_ms()
    held = holding(lease, at_ms, is_dead=lease is not None and process_is_dead(lease, _LIVE))
    age_s = 0 if lease is None else max(0, at_ms - lease.beat_at_ms) // 1000
    return Hold(lease, held, age_s)


def holder_of(
    backend: Backend, pipeline: PipelineId, name: str
) -> PipelineHeld | HolderUnknown | None:
    """Return the error that names the holder of the pipeline; None if no process holds it."""
    return _held_by(look(backend, pipeline), backend, pipeline, name)


def _held_by(
    found: Hold, backend: Backend, pipeline: PipelineId, name: str
) -> PipelineHeld | HolderUnknown | None:
    if found.holding is Holding.UNKNOWN:
        return HolderUnknown(name, Leases(backend, pipeline).path, found.problem.rstrip("."))
    if found.lease is None or found.holding is not Holding.HELD:
        return None
    return PipelineHeld(name, found.lease.host, found.lease.process, found.age_s)


def take_lease(
    backend: Backend,
    pipeline: PipelineId,
    name: str,
    *,
    takeover: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> Lease:
    """Create a lease for this process, unless another one holds the pipeline; write nothing yet.

    Without a takeover, PipelineHeld if another process holds it, HolderUnknown if that is unknown.
    """
    found = look(backend, pipeline, clock)
    held = _held_by(found, backend, pipeline, name)
    if held is not None and not takeover:
        raise held
    if held is None and found.lease is not None:
        _GONE.add(found.lease.nonce)
    lease = Lease(socket.gethostname(), os.getpid(), uuid.uuid4().hex, clock.wall_ms())
    _LIVE.add(lease.nonce)
    return lease


def is_gone(
    backend: Backend, pipeline: PipelineId, nonce: str, pause: Callable[[float], bool]
) -> bool:
    """Return whether a process that has claimed the pipeline is certainly dead.

    It is dead if it held the lease before this process and had ended by then; or if it holds the
    lease and sends no heartbeat for as long as every start would wait. A missing process id on this
    machine is not enough: containers may share a host name, and the process ids of another
    container mean nothing here. If two processes wrongly took each other for dead, each would claim
    the pipeline back forever. A process that has released its lease was stopped on purpose: its
    pipeline is not resumed.

    `pause` waits the given number of seconds, and returns whether to stop waiting.
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
    """Renews a lease periodically, so that other processes see that its holder is alive."""

    def __init__(
        self,
        leases: Leases,
        lease: Lease,
        every_ms: int = BEAT_MS,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tasks: Tasks = THREADS,
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._every_s = every_ms / 1000
        self._clock = clock
        self._tasks = tasks
        self._over = tasks.event()
        self._has_beaten = False
        self._problem = ""
        self._task: Task | None = None

    def start(self) -> None:
        """Send one heartbeat, before anything else is done; then continue in a thread."""
        self._beat()
        self._task = self._tasks.start(self._beat_until_stopped, "heartbeat")

    def begin_again(self) -> None:
        """Restart the heartbeat, even if another process has written the lease since."""
        self._end_task()
        self._over = self._tasks.event()
        self._has_beaten = False
        self.start()

    def stop(self) -> None:
        """Stop, and release the lease if the store answers."""
        self._end_task()
        # Even if the release cannot be written, this process may start the pipeline again.
        _LIVE.discard(self._lease.nonce)
        try:
            self._leases.release(replace(self._lease, beat_at_ms=self._clock.wall_ms()))
        except StoreError as error:
            _LOG.warning("heartbeat: %s", error)

    def _end_task(self) -> None:
        self._over.set()
        if self._task is not None:
            self._task.join()

    def _beat_until_stopped(self) -> None:
        while not self._over.wait(self._every_s):
            if not self._beat():
                return

    def _beat(self) -> bool:
        """Send a heartbeat; return whether the lease is still ours, as far as is known."""
        try:
            found = self._read_unless_damaged()
            if found is not None and found.nonce != self._lease.nonce:
                # Another process has taken over; this process is fenced at its next decision.
                _LOG.warning("process %s on %s has taken over", found.process, found.host)
                return False
            self._leases.beat(replace(self._lease, beat_at_ms=self._clock.wall_ms()))
            self._has_beaten = True
        except StoreError as error:
            self._tell(str(error))
        else:
            self._tell("")
        return True

    def _tell(self, problem: str) -> None:
        """Log a problem once, and once that it is over: a store may be full for hours."""
        if problem and problem != self._problem:
            _LOG.warning("heartbeat: %s", problem)
        elif self._problem and not problem:
            _LOG.info("heartbeat: the store takes it again")
        self._problem = problem

    def _read_unless_damaged(self) -> Lease | None:
        """Read the lease; None if it is missing or damaged, and is to be written again."""
        if not self._has_beaten:
            return None
        try:
            return self._leases.read()
        except Corrupt as error:
            _LOG.warning("heartbeat: %s", error)
            return None


@contextmanager
def hold_pipeline(
    backend: Backend,
    pipeline: PipelineId,
    name: str,
    *,
    takeover: bool,
    clock: Clock = SYSTEM_CLOCK,
    tasks: Tasks = THREADS,
) -> Iterator[None]:
    """Hold a pipeline while working on it; refused as by `take_lease`."""
    lease = take_lease(backend, pipeline, name, takeover=takeover, clock=clock)
    heartbeat = Heartbeat(Leases(backend, pipeline), lease, clock=clock, tasks=tasks)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a process's API.

    Attributes:
        holder: The nonce of its lease.
        url: The URL of its API and dashboard, without any secret.
        host: The machine on which the URL is valid, if it is a loopback address.
        token_file: The file with the token on that machine; None if the token came from elsewhere.
    """

    holder: str
    url: str
    host: str
    token_file: str | None = None


ADDRESS: Final = plain_record("address", Address)


class Addresses:
    """The address of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        self._backend = backend
        self._path = PipelinePaths(pipeline).address

    def tell(self, address: Address) -> None:
        """Write the address of this process, replacing an earlier address."""
        self._backend.put(self._path, encode(ADDRESS, self._path, address))

    def of(self, holder: str) -> Address | None:
        """None if the address of the process with that lease is unknown."""
        try:
            found = decode(ADDRESS, self._path, self._backend.read(self._path))
        except (NotFound, Corrupt, NewerFormat):
            return None
        return found if found.holder == holder else None
