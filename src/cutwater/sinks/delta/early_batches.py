"""A Delta table that shows batches before their checkpoint: `visibility="batch"` (rule F33).

Every batch is a separate version, named by generation and batch in its `commitInfo`. The `txn`
action holds a slot, as in every table of ours; here it is the slot of a claim, and batches that
were shown since the newest slot may be revised. A batch is shown only if the permit's slot is the
newest one in the version that the new version builds on. A rollback writes a version, so the
version that a predecessor was about to write is refused, and the predecessor reads its successor's
slot.

A table that does not exist has no version that could fence a predecessor. So nothing is shown until
the first commit point has created the table, which requires a decision.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from deltalake import CommitProperties, DeltaTable, Schema
from pyspark.sql.types import StructType

from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.commit import CommitPermit, ShowPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import SinkContext
from cutwater.sinks.delta.merge import Change
from cutwater.sinks.delta.schema import added_columns, spark_schema, table_obstacle, unwritable
from cutwater.sinks.delta.storage import Staging, TableStorage
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.sinks.delta.target import DeltaWriteMode
from cutwater.sinks.delta.time_travel import NO_TABLE, foreign_commit
from cutwater.sinks.delta.transaction_log import DeltaLog

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED: Final = 10_000

_Key = tuple[Generation, BatchId]


class ShownBatches:
    """The batches that this sink has shown since the newest slot in a table's log."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._read_to: int | None = None
        self.since = -1
        self.versions: dict[_Key, int] = {}

    def read(self, newest: int) -> None:
        """Continue reading up to a version."""
        if self._read_to is None or newest < self._read_to:
            self._read_to = self._before_the_newest_slot(newest)
        for version in range(self._read_to + 1, newest + 1):
            slot, batch = self._log.own_entry(version)
            if slot is not None:
                self.since, self.versions = version, {}
            if batch is not None:
                self.versions[batch] = version
        self._read_to = newest
        while len(self.versions) > _REMEMBERED:
            # Sealed long ago, and never needed again.
            del self.versions[next(iter(self.versions))]

    def until(self, slot: Slot, newest: int) -> dict[_Key, int]:
        """Return the batches shown before a later slot: the record of their commit was lost."""
        found: dict[_Key, int] = {}
        for version in range(newest, -1, -1):
            try:
                mark, batch = self._log.own_entry(version)
            except FileNotFoundError:
                return found
            if batch is not None:
                found.setdefault(batch, version)
            if mark is not None and mark <= slot:
                return found
            if mark is not None:
                found = {}
        return found

    def _before_the_newest_slot(self, newest: int) -> int:
        self.since, self.versions = -1, {}
        for version in range(newest, -1, -1):
            try:
                slot, _ = self._log.own_entry(version)
            except FileNotFoundError:
                return version
            if slot is not None:
                return version - 1
        return -1

    def first_after(self, version: int) -> int | None:
        """Return the first version after this one that shows a batch."""
        return min((shown for shown in self.versions.values() if shown > version), default=None)


class ShowingDeltaTable(OpenDeltaTable):
    """A table that shows batches before their checkpoint; fills `ShowingSink`.

    Every method raises `SinkError` if it cannot be done now, except `show`, which tries again with
    the next batch. Every method that takes a permit raises `Superseded` after a later slot was
    written to the table.
    """

    def __init__(
        self, storage: TableStorage, staging: Staging, writing: DeltaWriteMode, context: SinkContext
    ) -> None:
        super().__init__(storage, staging, writing, context)
        self._shown = ShownBatches(self._slots.log)
        self._waiting: list[Committable] = []
        self._lock = threading.RLock()
        # The permit of the running generation; there may be no table yet to write its slot into.
        self._claim: ShowPermit | None = None
        # Whether that slot was seen in the table: if it is gone later, the table was rolled back.
        self._claimed = False

    def newest(self) -> Found:
        """Return the table's version: its slots are those of claims, and batches have none."""
        with self._lock:
            found = super().newest()
            claim = self._claim if self._claimed else None
            if claim is not None and (found.slot is None or found.slot < claim.slot):
                return Found(None, found.version)
            return Found(None, found.version, counts_versions=True)

    # -- beginning

    def take_back(
        self, permit: ShowPermit, version: Version | None, carried: Sequence[Committable]
    ) -> Version:
        """SinkError also if another program has written to the table since."""
        with self._lock:
            taken = self._begin(permit, lambda table: self._go_back_to(table, permit, version))
            self._waiting = list(carried)
            self._show_waiting(permit)
            return taken

    def take_over(self, permit: ShowPermit) -> Version:
        with self._lock:
            return self._begin(permit, lambda table: self._mark(table, permit.slot))

    def _begin(self, permit: ShowPermit, move: Callable[[DeltaTable], None]) -> Version:
        self._waiting = []
        self._claim, self._claimed = permit, False

        def begin(table: DeltaTable | None) -> Version | None:
            if table is None:
                return NO_TABLE
            found = self._slots.made_by(permit.slot, table)
            if found is not None:
                self._slots.log.sync(found)
                self._claimed = True
                return str(found)
            move(table)
            return None

        return self._slots.until(begin)

    def _go_back_to(self, table: DeltaTable, permit: ShowPermit, version: Version | None) -> None:
        self._shown.read(table.version())
        cut = max(self._target(table, version), self._shown.since)
        first = self._shown.first_after(cut)
        if first is None:
            self._mark(table, permit.slot)
            return
        foreign = foreign_commit(self._slots.log, first - 1, table.version())
        if foreign is not None:
            reason = (
                f"shows rows from version {first} on that no checkpoint holds, and they cannot "
                f"be taken back: {foreign}. Undo that, or rewind with --leave-sinks to keep both: "
                "those rows come again then"
            )
            raise SinkError(self._sink, reason)
        self._refuse_stuck(table, first - 1)
        table.restore(first - 1, commit_properties=self._slot_properties(permit.slot))

    # -- showing

    def show(self, permit: ShowPermit, committable: Committable) -> None:
        """Each batch is a separate version."""
        with self._lock:
            if self._claim is None or self._claim.slot != permit.slot:
                newer = Slot(0) if self._claim is None else self._claim.slot
                raise Superseded(self._sink, permit.slot, newer)
            self._waiting.append(committable)
            try:
                self._show_waiting(permit)
            except SinkError as error:
                _LOG.warning("%s; it is tried again with the next batch", error)

    def _show_waiting(self, permit: ShowPermit) -> None:
        while self._waiting:
            committable = self._waiting[0]
            if self._slots.until(partial(self._show_batch, permit, committable)) == NO_TABLE:
                return
            self._waiting.remove(committable)

    def _show_batch(
        self, permit: ShowPermit, committable: Committable, table: DeltaTable | None
    ) -> Version | None:
        """Return the version that shows a batch; None after one step towards it."""
        if table is None:
            return NO_TABLE
        last = self._slots.newest(table)
        if last != permit.slot:
            self._claim_late(table, permit.slot, last)
            return None
        self._claimed = True
        return self._version_of(table, committable)

    def seal(
        self, permit: CommitPermit, committables: Sequence[Committable], shown: Version | None
    ) -> Version:
        """Publish the missing batches of a decision; return the version with exactly its rows."""
        with self._lock:
            if not committables:
                return self._slots.find_unchanged(permit.slot) if shown is None else shown
            version = NO_TABLE
            for committable in committables:
                version = self._slots.until(partial(self._seal_batch, permit, committable))
            self._files.note_committed(committables)
            sealed = {(committable.generation, committable.batch) for committable in committables}
            self._waiting = [
                committable
                for committable in self._waiting
                if (committable.generation, committable.batch) not in sealed
            ]
            return version

    def _seal_batch(
        self, permit: CommitPermit, committable: Committable, table: DeltaTable | None
    ) -> Version | None:
        if table is None:
            self._add(None, permit, [committable])
            return None
        last = self._slots.newest(table)
        if last is not None and last > permit.slot:
            before = self._shown.until(permit.slot, table.version())
            if (committable.generation, committable.batch) not in before:
                raise Superseded(self._sink, permit.slot, last)
            return str(before[committable.generation, committable.batch])
        if last is None or (self._claim is not None and last < self._claim.slot):
            claim = permit.slot if self._claim is None else self._claim.slot
            self._claim_late(table, claim, last)
            return None
        return self._version_of(table, committable)

    def _claim_late(self, table: DeltaTable, slot: Slot, last: Slot | None) -> None:
        """Write a slot into a table that did not exist at the time of the claim."""
        if last is not None and last > slot:
            raise Superseded(self._sink, slot, last)
        if self._claimed:
            reason = f"another program took the table back to version {table.version()}"
            way_out = "stop the pipeline and start it again, which says what is missing"
            raise SinkError(self._sink, f"{reason}, before the start of this run; {way_out}")
        self._mark(table, slot)

    def _version_of(self, table: DeltaTable, committable: Committable) -> Version | None:
        self._shown.read(table.version())
        found = self._shown.versions.get((committable.generation, committable.batch))
        if found is None:
            self._add_batch(table, committable)
            return None
        self._slots.log.sync(found)
        self._recreate_missing(found, lambda _: self._settle_batches([committable]))
        return str(found)

    def _add_batch(self, table: DeltaTable, committable: Committable) -> None:
        """Add the table's new columns, or the version with the rows, whichever is next."""
        why = table_obstacle(table, self._writing)
        if why is not None:
            raise SinkError(self._sink, unwritable(self._storage, self._writing, why))
        schema = self._staged_schema([committable])
        new = added_columns(spark_schema(table), schema, self._sink)
        if new:
            fields = Schema.from_json(StructType(new).json()).fields
            table.alter.add_columns(fields, commit_properties=self._slots.build_properties({}))
            return
        change = Change(*self._settle_batches([committable]))
        named = {
            "cutwater.generation": str(committable.generation),
            "cutwater.batch": str(committable.batch),
        }
        table.create_write_transaction(
            change.actions(spark_schema(table)),
            "append",
            table.schema(),
            list(self._writing.partition_by),
            commit_properties=self._slots.build_properties(named),
        )

    # -- versions

    def _mark(self, table: DeltaTable, slot: Slot) -> None:
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            list(self._writing.partition_by),
            commit_properties=self._slot_properties(slot),
        )

    def _slot_properties(self, slot: Slot) -> CommitProperties:
        return self._slots.build_properties({"cutwater.slot": str(slot)}, slot)
