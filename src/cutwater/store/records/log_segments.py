"""The decision log bound into volumes, so that a long log is not read entry by entry.

A log grows with every checkpoint: at one every five seconds by 17,000 entries a day, each an object
of its own. A volume is a copy of consecutive entries in one object. The entries stay where they
are and stay the truth: a volume that is missing or damaged costs time and nothing else, and since
entries never change, it does not matter who binds them, when, or how often (docs/adr/0017).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import NO_SLOT, PipelineId, Slot
from cutwater.protocol.decisions import LogEntry
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.backends.parallel import each
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.codecs import ClaimForm, DecisionForm, pack_entry, unpack_entry
from cutwater.store.records.envelope import RecordKind, decode, encode

VOLUME_ENTRIES: Final = 500
"""How many entries of the log a volume holds."""

BOUND_AT_ONCE_MAX: Final = 20
"""How many volumes are written by one call: an old log must not keep its pipeline waiting."""


class VolumeForm(msgspec.Struct, frozen=True):
    """Consecutive entries of a log."""

    entries: tuple[ClaimForm | DecisionForm, ...]


def _pack(entries: Sequence[LogEntry]) -> VolumeForm:
    return VolumeForm(tuple(pack_entry(one) for one in entries))


def _unpack(form: VolumeForm) -> Sequence[LogEntry]:
    return tuple(unpack_entry(one) for one in form.entries)


VOLUME: Final = RecordKind("volume", _pack, msgspec.json.Decoder(VolumeForm), _unpack)


class Volumes:
    """The volumes of one pipeline's log."""

    def __init__(
        self, backend: Backend, pipeline: PipelineId, entries: int = VOLUME_ENTRIES
    ) -> None:
        """Read and write in this store; a volume holds that many entries."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)
        self._entries = entries

    def read(self) -> list[LogEntry]:
        """Return what is bound from the first slot on, up to the first gap.

        Raises:
            Unavailable: If the store does not answer.
        """
        listed = self._backend.list(self._paths.volumes)
        last_slots = [self._paths.slot_of_volume(path) for path in listed]
        bound: list[LogEntry] = []
        for found in each(self._volume, last_slots):
            if found is None or found[0].slot != len(bound) + 1:
                break
            bound += found
        return bound

    def _volume(self, last: Slot) -> Sequence[LogEntry] | None:
        """Return the entries of the volume that ends with a slot; None if it is of no use."""
        path = self._paths.volume(last)
        try:
            found = decode(VOLUME, path, self._backend.read(path))
        except (Corrupt, NewerFormat, NotFound):
            return None
        slots = [one.slot for one in found]
        return found if slots and slots == list(range(slots[0], last + 1)) else None

    def bind(self, entries: Sequence[LogEntry], bound: Slot) -> Slot:
        """Write the volumes that are due, a few of them; may be repeated after any error.

        Args:
            entries: The whole log, as it was read.
            bound: The last slot that is bound.

        Returns:
            The last slot that is bound now.

        Raises:
            StoreError: As `write_once` does.
        """
        for _ in range(BOUND_AT_ONCE_MAX):
            last = Slot(bound + self._entries)
            if last > len(entries):
                break
            path = self._paths.volume(last)
            write_once(self._backend, path, encode(VOLUME, path, entries[bound:last]))
            bound = last
        return bound


def recent(slot: Slot) -> Slot:
    """Return a slot so far before another that what is newest is hardly ever older."""
    return Slot(max(NO_SLOT, slot - VOLUME_ENTRIES))
