"""The durable store of the simulated world: objects that survive crashes, and their faults.

Puts are atomic and creates are create-if-absent; `faults` damages objects from outside. A store
that is out of reach never responds. Names follow one layout, which only this module knows.
"""

import hashlib
import pickle
from collections.abc import Iterable
from typing import Any, Final, Protocol

from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.cut import BlobRef, Cut
from cutwater.protocol.decisions import LogEntry, LogView
from cutwater.protocol.retention import StoredObject

_BLOBS: Final = "blobs"
_STAGED: Final = "staged"


class OutOfReach(Exception):
    """The store does not answer at the moment."""


class StoreFull(OutOfReach):
    """The store has no room: it answers reads and deletes, and certainly takes no write."""


class ListingFailed(OutOfReach):
    """A listing failed midway; the names found so far are not complete."""


class Damaged(Exception):
    """An object is missing or is not what it should be."""


def pack(value: object) -> bytes:
    """Turn a value into bytes."""
    return pickle.dumps(value, protocol=5)


def unpack(data: bytes) -> Any:  # noqa: ANN401 - the caller knows what it wrote
    """Turn bytes back into a value."""
    return pickle.loads(data)


def digest(data: bytes) -> str:
    """Return the content hash."""
    return hashlib.sha256(data).hexdigest()[:24]


def files_of(state: bytes) -> tuple[bytes, ...]:
    """Split a step's state into its files, one for each of its parts."""
    parts: dict[str, Any] = unpack(state)
    return tuple(pack((name, parts[name])) for name in sorted(parts))


def state_from(files: Iterable[bytes]) -> bytes:
    """Put a step's state together from its files."""
    return pack(dict(unpack(file) for file in files))


def state_digest(state: bytes) -> str:
    """Return the content hash of a step's state, as the hashes of its files."""
    return " ".join(digest(file) for file in files_of(state))


def log_name(slot: Slot) -> str:
    """Return the name of a decision log entry."""
    return f"log/{slot:06d}"


def manifest_name(checkpoint_id: CheckpointId) -> str:
    """Return the name of a manifest."""
    return f"manifests/{checkpoint_id:06d}"


def attempt_name(checkpoint_id: CheckpointId) -> str:
    """Return the name that reserves an attempt's number."""
    return f"attempts/{checkpoint_id:06d}"


def committed_name(slot: Slot) -> str:
    """Return the name of the record of a commit."""
    return f"committed/{slot:06d}"


def blob_name(generation: Generation, checkpoint_id: CheckpointId, sha256: str) -> str:
    """Return the name of a state or in-flight object.

    The name includes the generation, so a fenced process can never delete an object that its
    successor has just written (docs/adr/0004). It also includes the attempt, so a late delete never
    removes the same content written again (docs/adr/0039).
    """
    return f"{_BLOBS}/{generation:04d}/{checkpoint_id:06d}-{sha256}"


def target_name(sink: SinkId) -> str:
    """Return the name of the record of which table a sink writes to."""
    return f"targets/{sink}"


def staged_name(generation: Generation, sink: SinkId, batch: int) -> str:
    """Return the name of the staged rows of one batch of a sink."""
    return f"{_STAGED}/{generation:04d}/{sink}/{batch:06d}"


class Mishaps(Protocol):
    """What may happen to a single request on its way to the store or back."""

    def write_hangs(self, name: str, data: bytes, *, create: bool, failed: bool) -> bool:
        """Return whether a write gets no response in time; it may still arrive later.

        Args:
            name: The object.
            data: Its content.
            create: Whether the write leaves an existing object alone.
            failed: Whether the store is out of reach anyway.
        """
        ...

    def delete_astray(self, name: str) -> bool:
        """Return whether an acknowledged delete is lost, or happens later."""
        ...

    def listing_fails(self) -> bool:
        """Return whether a listing fails midway."""
        ...


class SimulatedStore:
    """All objects, by name."""

    def __init__(self) -> None:
        """Begin empty and in reach."""
        self.objects: dict[str, bytes] = {}
        self.out_of_reach = False
        self.full = False
        self.mishaps: Mishaps | None = None
        self.writes = 0
        # What was once written as a manifest: a reader never unpickles anything else.
        self.known_manifests: dict[str, bytes] = {}

    def judged(self) -> "SimulatedStore":
        """Return the same objects for the checkers: always in reach."""
        view = SimulatedStore()
        view.objects = self.objects
        view.known_manifests = self.known_manifests
        return view

    def read_cut(self, checkpoint_id: CheckpointId, sha256: str | None = None) -> Cut | None:
        """Read a manifest; None if it is missing, damaged or not the expected one."""
        data = self.get(manifest_name(checkpoint_id))
        if data is None or (sha256 is not None and digest(data) != sha256):
            return None
        known = self.known_manifests.get(digest(data))
        cut: Cut | None = None if known is None else unpack(known)
        return cut

    def _check(self) -> None:
        if self.out_of_reach:
            raise OutOfReach

    def _check_write(self, name: str, data: bytes, *, create: bool) -> None:
        lost = self.out_of_reach
        if self.mishaps is not None:
            lost = self.mishaps.write_hangs(name, data, create=create, failed=lost)
        if lost:
            raise OutOfReach
        if self.full:
            raise StoreFull

    def put(self, name: str, data: bytes) -> BlobRef:
        """Write an object, whole or not at all."""
        self._check_write(name, data, create=False)
        self.objects[name] = data
        self.writes += 1
        if name.startswith("manifests/"):
            self.known_manifests[digest(data)] = data
        return BlobRef(name, len(data), digest(data))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless the name exists; return whether it was written."""
        self._check_write(name, data, create=True)
        if name in self.objects:
            return False
        self.objects[name] = data
        self.writes += 1
        return True

    def get(self, name: str) -> bytes | None:
        """Read an object; None if there is none."""
        self._check()
        return self.objects.get(name)

    def checked(self, blob: BlobRef) -> bytes:
        """Read an object and compare it with what its name promises.

        Raises:
            Damaged: If it is missing or differs.
        """
        problem = self.problem(blob)
        if problem is not None:
            message = f"{blob.name}: {problem}"
            raise Damaged(message)
        return self.objects[blob.name]

    def problem(self, blob: BlobRef) -> str | None:
        """Return what is wrong with an object; None if nothing is."""
        data = self.get(blob.name)
        if data is None:
            return "missing"
        if len(data) != blob.size_bytes:
            return f"{len(data)} bytes instead of {blob.size_bytes}"
        return None if digest(data) == blob.sha256 else "other content"

    def delete(self, name: str) -> None:
        """Delete an object if it is there."""
        self._check()
        if self.mishaps is None or not self.mishaps.delete_astray(name):
            self.objects.pop(name, None)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind, sorted.

        Raises:
            ListingFailed: If the listing broke off.
        """
        self._check()
        if self.mishaps is not None and self.mishaps.listing_fails():
            raise ListingFailed
        return sorted(name for name in self.objects if name.startswith(f"{kind}/"))

    def read_log(self) -> LogView:
        """Read the decision log from its first slot to the first free slot."""
        entries: list[LogEntry] = []
        while (data := self.get(log_name(Slot(len(entries) + 1)))) is not None:
            entries.append(unpack(data))
        return LogView(tuple(entries))

    def found(self) -> list[StoredObject]:
        """List state and in-flight objects with the generation that wrote each."""
        return [
            StoredObject(name, Generation(int(name.split("/")[1]))) for name in self.names(_BLOBS)
        ]

    def staged(self, sink: SinkId) -> list[tuple[Generation, str]]:
        """List what a sink has staged, with the generation that staged it."""
        parts = [name.split("/") for name in self.names(_STAGED)]
        return [(Generation(int(path[1])), "/".join(path)) for path in parts if path[2] == sink]

    def highest_attempt(self) -> CheckpointId:
        """Return the max reserved attempt number."""
        names = self.names("attempts")
        return CheckpointId(int(names[-1].split("/")[1]) if names else 0)

    def manifests(self) -> list[CheckpointId]:
        """Return the numbers of all manifests, sorted."""
        return [CheckpointId(int(name.split("/")[1])) for name in self.names("manifests")]

    def committed_slots(self) -> list[Slot]:
        """Return the slots of all commit records, sorted."""
        return [Slot(int(name.split("/")[1])) for name in self.names("committed")]
