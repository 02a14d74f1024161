"""The sinks of the simulated world: the sink contract over simulated tables.

Staged rows are objects of the store, so that they are lost, damaged and out of reach as all other
objects are. A table commits in one instant; before and after it another task may run, or the
process may be killed.
"""

import hashlib
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cutwater.errors import NotFound, SinkError, StoreError, Superseded, TargetBehind
from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, CommitSink, ShowPermit
from cutwater.protocol.cut import BlobRef, Committable, Version
from cutwater.protocol.lost_commit import Found, is_behind
from cutwater.sinks.base import OpenSink, RestorePreview
from cutwater.store.paths import ObjectPath, object_path
from cutwater.store.records.targets import IDENTITY, VISIBILITY, StoredTarget
from cutwater.testing.simulation import tables
from cutwater.testing.simulation.history import History
from cutwater.testing.simulation.rows import Row
from cutwater.testing.simulation.store import SimulatedBackend
from cutwater.testing.simulation.tables import LOCKS, SimulatedTable, TableDown

STAGED = "staged"

Key = tuple[Generation, BatchId]


def pack(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def unpack(data: bytes) -> Any:  # noqa: ANN401 - the caller knows what it wrote
    return pickle.loads(data)


def staged_path(generation: Generation, sink: SinkId, batch: int) -> ObjectPath:
    return object_path(f"{STAGED}/{generation:04d}/{sink}/{batch:06d}")


def target_of(table: SimulatedTable) -> StoredTarget:
    """Return a table as the store records it: by its identity, whatever it is called."""
    options = {IDENTITY: (table.identity,)}
    if table.shows_batches:
        options[VISIBILITY] = ("batch",)
    return StoredTarget("simulated", f"simulated://{table.address}", options)


class SimulatedSink:
    """A table in use by one process; fills `OpenSink`, `KnowsNewest` and `KeepsPast`."""

    def __init__(
        self,
        table: SimulatedTable,
        backend: SimulatedBackend,
        switch: Callable[[], None],
        history: History,
    ) -> None:
        """Open a table; `switch` lets other tasks run and raises if the process is dead."""
        self.table = table
        self._backend = backend
        self._switch = switch
        self._history = history
        self._checked = table.last_slot

    @property
    def _sink(self) -> SinkId:
        return self.table.sink

    def _failure(self, error: Exception) -> SinkError:
        return SinkError(self._sink, f"cannot do it now: {type(error).__name__} {error}")

    # -- staging

    def stage(
        self,
        rows: Any,  # noqa: ANN401 - rows of the simulated engine
        generation: Generation,
        batch: BatchId,
    ) -> Committable | None:
        if not rows:
            return None
        path, data = staged_path(generation, self._sink, batch), pack(tuple(rows))
        try:
            self._backend.put(path, data)
        except StoreError as error:
            raise self._failure(error) from error
        blob = BlobRef(path, len(data), hashlib.sha256(data).hexdigest())
        return Committable(self._sink, generation, batch, len(rows), (blob,))

    def problem(self, committable: Committable) -> str | None:
        try:
            return next(filter(None, map(self._blob_problem, committable.blobs)), None)
        except StoreError as error:
            raise self._failure(error) from error

    def _blob_problem(self, blob: BlobRef) -> str | None:
        try:
            data = self._backend.read(ObjectPath(blob.name))
        except NotFound:
            return "is missing"
        intact = hashlib.sha256(data).hexdigest() == blob.sha256
        return None if intact else "has other content"

    def _read(self, committable: Committable) -> list[Row]:
        rows: list[Row] = []
        for blob in committable.blobs:
            try:
                data = self._backend.read(ObjectPath(blob.name))
            except StoreError as error:
                raise self._failure(error) from error
            if hashlib.sha256(data).hexdigest() != blob.sha256:
                raise SinkError(self._sink, f"has damaged staged rows: {blob.name}")
            rows += unpack(data)
        return rows

    def _read_all(self, committables: Sequence[Committable]) -> Mapping[Key, list[Row]]:
        return {(entry.generation, entry.batch): self._read(entry) for entry in committables}

    # -- the table

    def _act(self, slot: Slot, act: Callable[[], Version]) -> Version:
        """Let the table act in one instant."""
        self._switch()
        if self.table.last_slot < self._checked:
            # As a table with optimistic transactions finds out; the next try looks closer.
            self._checked = self.table.last_slot
            raise SinkError(self._sink, "has lost commits since it was checked")
        try:
            version = act()
        except (TableDown, KeyError) as error:
            raise self._failure(error) from error
        except tables.Superseded as error:
            raise Superseded(self._sink, slot, self.table.last_slot) from error
        self._switch()
        return version

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        table, slot = self.table, permit.slot
        if slot not in table.made:
            self.gather(slot, committables)
        version = self._act(slot, lambda: table.commit(slot, committables))
        self.committed(committables)
        return version

    def gather(self, slot: Slot, committables: Sequence[Committable]) -> None:
        """Gather staged batches, few enough in each transaction, however many there are."""
        for start in range(0, len(committables), LOCKS):
            self._gather(slot, committables[start : start + LOCKS])

    def _gather(self, slot: Slot, part: Sequence[Committable]) -> None:
        missing = [
            entry for entry in part if (entry.generation, entry.batch) not in self.table.gathered
        ]
        read = self._read_all(missing)

        def gather() -> Version:
            self.table.gather(part, lambda entry: read[entry.generation, entry.batch])
            return ""

        self._act(slot, gather)

    def committed(self, committables: Sequence[Committable]) -> None:
        """Note what the table has taken; it stays staged until no kept cut needs it."""
        for committable in committables:
            self.table.taken.update(blob.name for blob in committable.blobs)

    def look_back(self, version: Version | None) -> RestorePreview:
        self._switch()
        if self.table.down:
            raise self._failure(TableDown())
        obstacle = None if self.table.keeps(version) else "its files were deleted"
        return RestorePreview(str(self.table.current), obstacle=obstacle)

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        return self._act(permit.slot, lambda: self.table.restore(permit.slot, version))

    def newest(self) -> Found:
        self._switch()
        if self.table.down:
            raise self._failure(TableDown())
        self._checked = self.table.last_slot
        return self.table.newest()

    # -- retention

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        self._delete(keep, lambda owner, _: owner < generation)

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        del shown
        self._delete(keep, lambda owner, name: owner == generation and name in self.table.taken)

    def _delete(self, keep: Sequence[Committable], goes: Callable[[Generation, str], bool]) -> None:
        needed = {blob.name for committable in keep for blob in committable.blobs}
        try:
            for path in self._backend.list(object_path(STAGED)):
                _, owner, sink, _ = path.split("/")
                gone = sink == self._sink and goes(Generation(int(owner)), path)
                if gone and path not in needed:
                    self._backend.delete(path)
                    self._history.counts["staged batches deleted"] += 1
        except StoreError as error:
            raise self._failure(error) from error


class AtomicSimulatedSink(SimulatedSink):
    """A table that commits in one transaction with others; fills `CommitsAtomically`."""

    group = "database"

    def act_together(self, acts: Sequence[tuple[OpenSink, CommitSink]]) -> Mapping[SinkId, Version]:
        """Let all tables of the database act on one decision, or none."""
        members = [(sink, act) for sink, act in acts if isinstance(sink, AtomicSimulatedSink)]
        assert len(members) == len(acts)
        for sink, act in members:
            if not act.restore and act.permit.slot not in sink.table.made:
                sink.gather(act.permit.slot, act.committables)
        self._switch()
        for sink, act in members:
            sink.check(act)
        versions = {act.sink: sink.act_now(act) for sink, act in members}
        self._history.counts["tables committed together"] += len(members) > 1
        self._switch()
        return versions

    def check(self, act: CommitSink) -> None:
        """Raise what would prevent the table from acting."""
        table, slot = self.table, act.permit.slot
        if table.down:
            raise self._failure(TableDown())
        if is_behind(act.recorded, table.newest()):
            raise TargetBehind(self._sink, "less", "more", "")
        try:
            table.seen(slot)
        except tables.Superseded as error:
            raise Superseded(self._sink, slot, table.last_slot) from error

    def act_now(self, act: CommitSink) -> Version:
        """Act, after all members of the group were checked."""
        slot = act.permit.slot
        if act.restore:
            return self.table.restore(slot, act.version)
        version = self.table.commit(slot, act.committables)
        self.committed(act.committables)
        return version


class ShowingSimulatedSink(SimulatedSink):
    """A table that shows batches before their checkpoint; fills `ShowingSink`."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - those of the class above
        super().__init__(*args)
        self._unshown: list[Committable] = []

    def take_back(
        self, permit: ShowPermit, version: Version | None, carried: Sequence[Committable]
    ) -> Version:
        """Roll back what was shown after a version, and show what the cut carries."""
        table, slot = self.table, permit.slot
        kept = self._act(slot, lambda: table.take_back(slot, version))
        self._unshown = []
        for committable in carried:
            self._show(permit, committable)
        self._history.counts["tables taken back"] += 1
        return kept

    def take_over(self, permit: ShowPermit) -> Version:
        """Fence predecessors and leave the rows as they are."""
        current = str(self.table.current)
        return self._act(permit.slot, lambda: self.table.restore(permit.slot, current))

    def show(self, permit: ShowPermit, committable: Committable) -> None:
        """Show this batch and earlier unshown ones, in order."""
        self._unshown.append(committable)
        while self._unshown:
            try:
                self._show(permit, self._unshown[0])
            except SinkError:
                return
            except Superseded:
                self._history.counts["batches shown too late"] += 1
                raise
            self._history.counts["batches shown"] += 1
            self._unshown.pop(0)

    def _show(self, permit: ShowPermit, committable: Committable) -> None:
        rows, slot = self._read(committable), permit.slot

        def show() -> Version:
            self.table.show(slot, committable, lambda _: rows)
            return ""

        self._act(slot, show)

    def seal(
        self, permit: CommitPermit, committables: Sequence[Committable], shown: Version | None
    ) -> Version:
        """Show the batches of a decision that are not shown yet."""
        table, slot = self.table, permit.slot
        here = table.shown[table.last_slot] if table.last_slot <= slot else None
        missing = [
            entry
            for entry in committables
            if here is not None and (entry.generation, entry.batch) not in here
        ]
        read = self._read_all(missing)

        def rows_of(entry: Committable) -> list[Row]:
            return read[entry.generation, entry.batch]

        version = self._act(slot, lambda: table.seal(slot, committables, shown or "0", rows_of))
        self.committed(committables)
        return version


def open_sink(
    table: SimulatedTable,
    backend: SimulatedBackend,
    switch: Callable[[], None],
    history: History,
) -> OpenSink:
    if table.shows_batches:
        return ShowingSimulatedSink(table, backend, switch, history)
    kind = AtomicSimulatedSink if table.is_atomic else SimulatedSink
    return kind(table, backend, switch, history)
