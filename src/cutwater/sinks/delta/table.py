"""A Delta table in use by one generation: rows staged beside it, committed by their decision.

`slot_commits` ensures that a slot is committed once; `merge` computes the change to the table's
files. Everything that can be refused is refused when rows are staged: after the decision it would
block every later commit.
"""

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import RestorePreview, Rows, SinkContext, reason_of
from cutwater.sinks.columns import loose
from cutwater.sinks.delta.data_files import Copies, DataFile, files_of
from cutwater.sinks.delta.foreign_types import TableColumns, open_parquet
from cutwater.sinks.delta.merge import Change, append_files, overwrite_files, upsert_files
from cutwater.sinks.delta.merge_keys import Keys
from cutwater.sinks.delta.schema import (
    added_columns,
    foreign_files,
    spark_schema,
    stuck,
    stuck_files,
    table_obstacle,
    table_schema,
    unwritable,
)
from cutwater.sinks.delta.slot_commits import DeltaSlots
from cutwater.sinks.delta.storage import FAILURES, Staging, TableStorage
from cutwater.sinks.delta.target import DeltaWriteMode
from cutwater.sinks.delta.time_travel import NO_TABLE, foreign_commit, look_back, no_table
from cutwater.sinks.staging.parquet import partition_values


class OpenDeltaTable:
    """A table to write to; fills `OpenSink` and `KeepsPast`. Made by `DeltaTarget.open`.

    Every method except `problem` raises `SinkError` if it cannot be done now. `commit` and
    `restore` raise `Superseded` for a slot that was never committed, after a later slot was.
    """

    def __init__(
        self, storage: TableStorage, staging: Staging, writing: DeltaWriteMode, context: SinkContext
    ) -> None:
        """Refuse a table that cannot be written in this mode."""
        self._storage = storage
        self._writing = writing
        self._sink = context.sink
        self._files = staging
        self._spool = f"copies-{uuid.uuid4().hex[:8]}"
        self._slots = DeltaSlots(storage, context.pipeline, context.sink)
        where = storage.address
        try:
            storage.prepare()
            table = self._slots.load()
            foreign = None if table else foreign_files(storage, storage.entries())
        except FAILURES as error:
            raise ConfigError(
                "uri", f"{where} cannot be a Delta table: {reason_of(error)}"
            ) from error
        if foreign is not None:
            raise ConfigError("uri", foreign)
        if table is not None:
            why = table_obstacle(table, writing) or stuck_files(storage, table, writing)
            if why is not None:
                raise ConfigError("uri", unwritable(storage, writing, why))

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """Write the rows beside the table.

        Raises:
            ConfigError: If they have a column that no Delta table can have.
            SinkError: If they do not fit the table, or cannot be written now.
        """
        schema = table_schema(rows.schema, self._writing.partition_by, self._sink)
        # As `commit`, which runs concurrently, read it last.
        known = self._slots.schema
        if known is not None:
            added_columns(known, schema, self._sink)
        keys = self._keys(schema)

        def check(files: Sequence[Path]) -> None:
            if keys is not None:
                keys.refuse_twice(keys.read(_Written(file) for file in files), self._sink)

        try:
            place, divided_by = (generation, batch), self._writing.partition_by
            count, blobs = self._files.write(rows, place, divided_by, check)
            # A complete result without rows is a result too.
            if not blobs and self._writing.write != "overwrite":
                return None
            described = self._files.write_schema(schema.json(), generation)
        except FAILURES as error:
            raise SinkError(self._sink, f"cannot stage: {reason_of(error)}") from error
        return Committable(self._sink, generation, batch, count, (described, *blobs))

    def _keys(self, schema: StructType) -> Keys | None:
        names = self._writing.keys
        return Keys.of(schema, names, self._sink) if names else None

    def problem(self, committable: Committable) -> str | None:
        return self._files.problem(committable)

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        if not committables:
            return self._slots.find_unchanged(permit.slot)
        version = self._slots.commit_once(
            permit, lambda table: self._add(table, permit, committables)
        )
        try:
            self._recreate_missing(
                int(version), lambda then: self._change(then, permit, committables)
            )
        except FAILURES as error:
            self._slots.forget()
            raise SinkError(self._sink, reason_of(error)) from error
        self._files.note_committed(committables)
        return version

    def look_back(self, version: Version | None) -> RestorePreview:
        try:
            table = self._slots.load()
            if table is None:
                return no_table(self._storage, None if version == NO_TABLE else version)
            try:
                target = self._target(table, version)
            except SinkError as error:
                return RestorePreview(str(table.version()), obstacle=error.reason)
            return look_back(self._storage, self._slots.log, table, target)
        except FAILURES as error:
            self._slots.forget()
            raise SinkError(self._sink, reason_of(error)) from error

    def slot_at(self, version: Version) -> Slot | None:
        """Return the newest slot of this sink at or below a version; None if its log has none."""
        try:
            own = self._slots.log.own_commits(int(version)) if version != NO_TABLE else iter(())
            return next((commit.slot for commit in own), None)
        except FAILURES as error:
            raise SinkError(self._sink, reason_of(error)) from error

    def newest(self) -> Found:
        """Return the newest slot of this sink in the table, even if other programs wrote since."""
        try:
            table = self._slots.load()
            if table is None:
                return Found(None, NO_TABLE)
            slot = self._slots.newest(table)
            # A table that drops old slots can only be compared by its versions.
            unknown = slot is None and self._slots.forgets(table)
            return Found(slot, str(table.version()), counts_versions=unknown)
        except FAILURES as error:
            self._slots.forget()
            raise SinkError(self._sink, reason_of(error)) from error

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """SinkError also if log or files of that version are gone, or others wrote since."""
        if version in {None, NO_TABLE} and not self._slots.log.exists:
            return NO_TABLE
        return self._slots.commit_once(permit, lambda table: self._go_back(table, permit, version))

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        try:
            self._files.discard(generation, keep)
            self._files.clear_spools(self._spool)
        except FAILURES as error:
            raise SinkError(self._sink, f"cannot discard: {reason_of(error)}") from error

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete staged rows that are committed and no kept checkpoint carries.

        How far back the table can be restored depends on its own log and on VACUUM.
        """
        del generation, shown
        try:
            self._files.retain(keep)
        except FAILURES as error:
            raise SinkError(self._sink, f"cannot delete staged rows: {reason_of(error)}") from error

    def _add(
        self, table: DeltaTable | None, permit: CommitPermit, committables: Sequence[Committable]
    ) -> None:
        """Create the table, or its new columns, or the version with the rows, whichever is next."""
        schema = self._staged_schema(committables)
        if table is None:
            # An empty first version, to which a restore to the beginning returns.
            DeltaTable.create(
                self._storage.address,
                Schema.from_json(schema.json()),
                partition_by=list(self._writing.partition_by),
                storage_options=self._storage.options,
                commit_properties=self._slots.properties(permit, carries_slot=False),
            )
            return
        why = table_obstacle(table, self._writing)
        if why is not None:
            raise SinkError(self._sink, unwritable(self._storage, self._writing, why))
        new = added_columns(spark_schema(table), schema, self._sink)
        if new:
            fields = Schema.from_json(StructType(new).json()).fields
            table.alter.add_columns(
                fields, commit_properties=self._slots.properties(permit, carries_slot=False)
            )
            return
        change = self._change(table, permit, committables)
        unmoved = stuck(change.removed)
        if unmoved is not None:
            raise SinkError(self._sink, f"{self._storage.address}: {unmoved}")
        self._write(table, permit, change.actions(spark_schema(table)))

    def _recreate_missing(self, version: int, make: Callable[[DeltaTable], object]) -> None:
        """Recreate the files that a version added and that another program has deleted since.

        VACUUM deletes files that no version names. A VACUUM that started before the commit may
        have deleted files that the commit names. Their originals are still there then, and the
        names and contents of the files follow from the originals. Files that a later version has
        removed are ignored. `make` writes the files that a commit on top of the previous version
        adds. FileNotFoundError if a file cannot be recreated.
        """
        missing = set(self._slots.log.find_missing(version))
        table = self._slots.load() if missing else None
        if table is not None:
            missing &= {file.name for file in files_of(self._storage, table, None)}
        if not missing:
            return
        address, options = self._storage.address, self._storage.options
        then = DeltaTable(address, version=version - 1, storage_options=options)
        try:
            make(then)
            missing &= set(self._slots.log.find_missing(version))
        except FAILURES as error:
            raise FileNotFoundError(
                _describe_loss(address, version, missing, reason_of(error))
            ) from error
        if missing:
            reason = "its originals have changed"
            raise FileNotFoundError(_describe_loss(address, version, missing, reason))

    def _staged_schema(self, committables: Sequence[Committable]) -> StructType:
        schema = StructType()
        for text in dict.fromkeys(
            self._files.schema_text(committable) for committable in committables
        ):
            for field in added_columns(schema, StructType.fromJson(json.loads(text)), self._sink):
                schema = StructType([*schema, field])
        return schema

    def _change(
        self, table: DeltaTable, permit: CommitPermit, committables: Sequence[Committable]
    ) -> Change:
        staged = self._settle_batches(committables)
        schema = spark_schema(table)
        stored = [field for field in loose(schema) if field.name not in self._writing.partition_by]
        columns = TableColumns(StructType(stored), self._sink)
        spool = self._files.spool(self._spool)
        copies = Copies(self._storage, spool, permit.key(self._sink), columns)
        keys = self._keys(schema)
        if keys is not None:
            return upsert_files(staged, files_of(self._storage, table, keys), keys, copies)
        if self._writing.write == "overwrite":
            return overwrite_files(staged[-1], files_of(self._storage, table, None), copies)
        return append_files([file for files in staged for file in files], copies)

    def _settle_batches(self, committables: Sequence[Committable]) -> list[list[DataFile]]:
        """Move staged files to where the table may name them; return the files of each batch."""
        batches = [list(self._files.data([committable])) for committable in committables]
        settled = self._files.settle([blob for blobs in batches for blob in blobs])
        return [
            [
                DataFile(
                    self._storage,
                    settled[blob],
                    settled[blob],
                    blob.size_bytes,
                    partition_values(blob.name),
                )
                for blob in blobs
            ]
            for blobs in batches
        ]

    def _go_back(self, table: DeltaTable | None, permit: CommitPermit, to: Version | None) -> None:
        if table is None:
            raise SinkError(
                self._sink, f"there is no table in {self._storage.address} to take back"
            )
        target = self._target(table, to)
        foreign = foreign_commit(self._slots.log, target, table.version())
        if foreign is not None:
            # Usually found before the decision; rows that were written since then are kept.
            reason = f"{foreign}; rewind once more, with --leave-sinks, to leave it there"
            raise SinkError(self._sink, reason)
        if target == table.version():
            self._write(table, permit, [])
        else:
            self._refuse_stuck(table, target)
            table.restore(target, commit_properties=self._slots.properties(permit))

    def _refuse_stuck(self, table: DeltaTable, target: int) -> None:
        address, options = self._storage.address, self._storage.options
        then = DeltaTable(address, version=target, storage_options=options)
        kept = {file.logged for file in files_of(self._storage, then, None)}
        now = files_of(self._storage, table, None)
        unmoved = stuck([file for file in now if file.logged not in kept])
        if unmoved is not None:
            raise SinkError(self._sink, f"{address}: {unmoved}")

    def _target(self, table: DeltaTable, to: Version | None) -> int:
        return self._slots.find_beginning(table) if to in {None, NO_TABLE} else int(str(to))

    # -- deltalake

    def _write(
        self, table: DeltaTable, permit: CommitPermit, actions: list[AddAction | RemoveAction]
    ) -> None:
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(self._writing.partition_by),
            commit_properties=self._slots.properties(permit),
        )


def _describe_loss(address: str, version: int, missing: Collection[str], reason: str) -> str:
    what = (
        f"version {version} names {min(missing)}, which another program has deleted from {address}"
    )
    cause = "perhaps by VACUUM with a retention that is shorter than a commit takes"
    return f"{what}, {cause}; it cannot be recreated: {reason}; restore it from a backup"


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that Spark has just written; fills `KeyedFile`."""

    path: Path

    @property
    def values(self) -> dict[str, str | None]:
        return partition_values(str(self.path))

    @property
    def name(self) -> str:
        return self.path.name

    def open(self) -> pq.ParquetFile:
        return open_parquet(self.path)
