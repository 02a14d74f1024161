"""The decision log in the store: consecutive slots, each created once (PROTOCOL.md section 9).

This module reads entries and creates slots; `protocol.decisions` determines what they mean and
which process may decide. Nothing is ever overwritten or deleted here. Upholds I7 and I8.

A log grows with every checkpoint: with one every five seconds by 17,000 entries a day, each in a
separate object. A segment is a copy of consecutive entries in one object, so that a long log is not
read entry by entry; in the store it is called a volume. The entries stay where they are and stay
authoritative: a segment that is missing or damaged only costs time. Entries never change, so it
does not matter which process writes a segment, when, or how often (docs/adr/0017).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound, OutcomeUnknown, StoreError
from cutwater.ids import NO_SLOT, PipelineId, Slot
from cutwater.protocol.decisions import DecisionOutcome, LogEntry, LogView
from cutwater.protocol.transitions import invariant
from cutwater.store.backends.backend import Backend, each, write_once
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.codecs import (
    LOG_ENTRY,
    ClaimForm,
    DecisionForm,
    pack_entry,
    unpack_entry,
)
from cutwater.store.records.envelope import RecordKind, decode, encode

SEGMENT_ENTRIES: Final = 500
"""How many entries of the log a segment holds."""

COMPACTED_AT_ONCE_MAX: Final = 20
"""How many segments one call writes, so that a pipeline with an old log does not wait long."""


class SegmentForm(msgspec.Struct, frozen=True):
    entries: tuple[ClaimForm | DecisionForm, ...]


def _pack(entries: Sequence[LogEntry]) -> SegmentForm:
    return SegmentForm(tuple(pack_entry(entry) for entry in entries))


def _unpack(form: SegmentForm) -> Sequence[LogEntry]:
    return tuple(unpack_entry(entry) for entry in form.entries)


SEGMENT: Final = RecordKind("volume", _pack, msgspec.json.Decoder(SegmentForm), _unpack)


class LogSegments:
    def __init__(
        self, backend: Backend, pipeline: PipelineId, entries: int = SEGMENT_ENTRIES
    ) -> None:
        self._backend = backend
        self._paths = PipelinePaths(pipeline)
        self._entries = entries

    def read(self) -> list[LogEntry]:
        """Return the entries in segments, from the first slot up to the first gap."""
        listed = self._backend.list(self._paths.log_segments)
        last_slots = [self._paths.slot_of_log_segment(path) for path in listed]
        compacted: list[LogEntry] = []
        for found in each(self._backend, self._segment, last_slots):
            if found is None or found[0].slot != len(compacted) + 1:
                break
            compacted += found
        return compacted

    def _segment(self, last: Slot) -> Sequence[LogEntry] | None:
        """Return the entries of the segment that ends with a slot; None if it is unusable."""
        path = self._paths.log_segment(last)
        try:
            found = decode(SEGMENT, path, self._backend.read(path))
        except (Corrupt, NewerFormat, NotFound):
            return None
        slots = [entry.slot for entry in found]
        return found if slots and slots == list(range(slots[0], last + 1)) else None

    def compact(self, entries: Sequence[LogEntry], compacted: Slot) -> Slot:
        """Write the next few segments that are due; may be repeated after any error.

        Takes the whole log and the last slot that is in a segment; returns that slot as it is now.
        """
        for _ in range(COMPACTED_AT_ONCE_MAX):
            last = Slot(compacted + self._entries)
            if last > len(entries):
                break
            path = self._paths.log_segment(last)
            write_once(self._backend, path, encode(SEGMENT, path, entries[compacted:last]))
            compacted = last
        return compacted


def recent(slot: Slot) -> Slot:
    """Return a slot far enough before another that the newest record is almost always after it."""
    return Slot(max(NO_SLOT, slot - SEGMENT_ENTRIES))


class DecisionLog:
    """The log of one pipeline, as one process reads and writes it."""

    def __init__(
        self, backend: Backend, pipeline: PipelineId, segments: LogSegments | None = None
    ) -> None:
        self._backend = backend
        self._paths = PipelinePaths(pipeline)
        self._segments = segments or LogSegments(backend, pipeline)
        self._view: LogView | None = None
        self._written = NO_SLOT
        self._compacted = NO_SLOT
        self._problem: StoreError | None = None

    def read(self) -> LogView:
        """Read the log from its first slot to the first free slot.

        Entries never change, so later calls read only new slots. The first call reads the segments
        and lists the rest of the log, to detect a slot that is missing in the middle (`Corrupt`).
        """
        view = self._view or LogView()
        entries = list(view.entries)
        last = self._written
        if self._view is None:
            entries = self._segments.read()
            self._compacted = Slot(len(entries))
            # List before reading: a listed slot was created after all slots before it.
            last = max(last, self._last_listed(self._compacted))
        # Listed slots are read several at a time, because a log grows with every checkpoint.
        new = each(
            self._backend,
            self._entry,
            [Slot(number) for number in range(len(entries) + 1, last + 1)],
        )
        while True:
            entry = new.pop(0) if new else self._entry(Slot(len(entries) + 1))
            if entry is None:
                break
            entries.append(entry)
        if last > len(entries):
            path = self._paths.log_entry(Slot(len(entries) + 1))
            raise Corrupt(path, f"the slot is empty, but the log continues to slot {last}")
        if self._view is None or len(entries) > len(view.entries):
            self._view = LogView(tuple(entries))
        return self._view

    def compact(self) -> None:
        """Write segments if enough entries have been read; an optional optimization."""
        if self._view is not None:
            self._compacted = self._segments.compact(self._view.entries, self._compacted)

    def create(self, entry: LogEntry) -> DecisionOutcome:
        """Create exactly this slot, once; the entry's nonce is one that no other entry has.

        Unless the store answers "created", the slot is read back and the nonce is compared: an
        answer may have been lost although the slot is ours (rule F15). InvariantBroken if the slot
        does not follow the last one. StoreError if the log had to be read first and could not be;
        then nothing was written.
        """
        if entry.slot > self._reached + 1:
            self.read()
        last = self._reached
        invariant(1 <= entry.slot <= last + 1, "I7", f"slot {entry.slot} does not follow {last}")
        path = self._paths.log_entry(entry.slot)
        data = encode(LOG_ENTRY, path, entry)
        created, self._problem = False, None
        try:
            created = self._backend.create(path, data)
        except StoreError as error:
            self._problem = error
        outcome = DecisionOutcome.WRITTEN if created else self._read_back(entry)
        if outcome is DecisionOutcome.WRITTEN:
            self._written = max(self._written, entry.slot)
        return outcome

    def doubt(self, slot: Slot) -> OutcomeUnknown:
        """Return the error for the last create if its outcome is unknown."""
        why = f"{self._problem.reason}; " if self._problem else ""
        reason = f"{why}it may or may not be written"
        doubt = OutcomeUnknown(self._paths.log_entry(slot), reason)
        doubt.__cause__ = self._problem
        return doubt

    @property
    def _reached(self) -> Slot:
        """The last slot that is known to be filled."""
        return max(self._written, self._view.last_slot if self._view else NO_SLOT)

    def _last_listed(self, compacted: Slot) -> Slot:
        after = self._paths.log_entry(compacted) if compacted else None
        listed = self._backend.list(self._paths.log_entries, after)
        return max((self._paths.slot_of_log_entry(path) for path in listed), default=compacted)

    def _entry(self, slot: Slot) -> LogEntry | None:
        path = self._paths.log_entry(slot)
        try:
            data = self._backend.read(path)
        except NotFound:
            return None
        return decode(LOG_ENTRY, path, data)

    def _read_back(self, entry: LogEntry) -> DecisionOutcome:
        try:
            found = self._entry(entry.slot)
        except StoreError as error:
            self._problem = self._problem or error
            return DecisionOutcome.UNKNOWN
        if found is None:
            # A create that is still in transit may yet arrive.
            return DecisionOutcome.UNKNOWN
        return DecisionOutcome.WRITTEN if found.nonce == entry.nonce else DecisionOutcome.TAKEN
