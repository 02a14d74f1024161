"""A Delta table in use by one generation: rows staged beside it, committed by their decision.

A commit is one version of the table, with the slot in its `txn` action under the key
`<pipeline>/<sink>`. deltalake may not repeat a commit by itself (`max_commit_retries=0`): when
another program was faster, everything is read again and decided anew, so that a slot which
somebody else has acted on in the meantime is seen.

A slot with nothing to commit makes no version, or a table would get thousands of empty ones a day.
That leaves no trace, and none is needed:

- Asked again while no later slot has acted, it answers with the table's version once more. Between
  two answers only other programs can have written: what this sink has in the table is the same.
- Asked again after a later slot has acted, it answers with the last version of this sink at or
  before the slot, found in the log: what the sink had in the table then. It is not `Superseded`,
  since nothing is all there was to do.
- A slot with rows is `Superseded` if a later one has acted and the log has no commit of it. Slots
  without rows cannot disturb that: they are neither the later one nor looked for.
- A restore always makes a version, even one that changes nothing: repeated later it would take
  away what others wrote since.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import Observation
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import BlobRef, Committable, Version
from cutwater.sinks.base import Retreat, SinkContext
from cutwater.sinks.delta_log import DeltaLog, statistics
from cutwater.sinks.delta_past import NO_TABLE, foreign_commit, look_back, no_table
from cutwater.sinks.delta_schema import added_columns, obstacle, spark_schema, table_schema
from cutwater.sinks.rows import FrameRows, Rows
from cutwater.sinks.staged_files import HIDDEN, StagedFiles
from cutwater.store.files import make_lasting

_TRIES: Final = 20
_NULL_IN_PATH: Final = "__HIVE_DEFAULT_PARTITION__"


class OpenDeltaTable:
    """A table to append to; fills `OpenSink`. Made by `DeltaTarget.open`."""

    def __init__(self, root: Path, partition_by: tuple[str, ...], context: SinkContext) -> None:
        """Look at the table, if there is one, and make sure that it can be written.

        Raises:
            ConfigError: If it is not a table that files can be added to.
        """
        self._root = root
        self._partition_by = partition_by
        self._sink = context.sink
        self._app_id = f"{context.pipeline}/{context.sink}"
        self._files = StagedFiles(root, context.pipeline, context.sink)
        self._log = DeltaLog(root, context.pipeline, context.sink)
        self._table: DeltaTable | None = None
        # The table's schema when it was last looked at; `stage` runs beside `commit`.
        self._schema: StructType | None = None
        # On a cluster the driver may see another disk than the executors, and no files.
        master = "local" if context.spark is None else str(context.spark.sparkContext.master)
        self._shares_disk = master.startswith("local")
        try:
            make_lasting(root / HIDDEN)
            table = self._load()
            foreign = (
                [] if table else [one.name for one in root.iterdir() if one.name[0] not in "._"]
            )
        except (DeltaError, OSError) as error:
            raise ConfigError("uri", f"{root} cannot be a Delta table: {_words(error)}") from error
        if foreign:
            reason = f"{root} holds {min(foreign)} and no Delta table; give a directory of its own"
            raise ConfigError("uri", reason)
        why = None if table is None else self._obstacle(table)
        if why:
            raise ConfigError("uri", f"{root} cannot be appended to: it {why}")

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """Write the rows of one batch beside the table, with exactly one Spark action.

        Raises:
            ConfigError: If they have a column that no Delta table can have.
            SinkError: If they do not fit the table, or cannot be written now.
        """
        schema = table_schema(rows.schema, self._partition_by, self._sink)
        if self._schema is not None:
            added_columns(self._schema, schema, self._sink)
        counted = None if self._shares_disk else Observation()
        if counted is not None:
            rows = FrameRows(rows.frame.observe(counted, count_of(lit(1)).alias("rows")))
        try:
            count, blobs = self._files.write(rows, (generation, batch), self._partition_by)
            if counted is not None:
                self._check_count(count, counted.get["rows"])
            if not blobs:
                return None
            described = self._files.write_schema(schema.json(), generation)
        except OSError as error:
            raise SinkError(self._sink, f"cannot stage: {_words(error)}") from error
        return Committable(self._sink, generation, batch, count, (described, *blobs))

    def _check_count(self, found: int, written: int) -> None:
        if found != written:
            reason = f"the executors wrote {written} rows and {found} are in {self._root}"
            raise SinkError(self._sink, f"{reason}; driver and executors need one file system")

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with something staged (missing, other size or hash); None if sound."""
        return self._files.problem(committable)

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Add what was staged to the table as one version; also when there is nothing.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now.
        """
        if not committables:
            return self._unchanged(permit.slot)
        version = self._act(permit, lambda table: self._add(table, permit, committables))
        self._files.forget(committables)
        return version

    def look_back(self, version: Version | None) -> Retreat:
        """Say what going back to a version would do, and whether it can be done.

        Raises:
            SinkError: If the table cannot be read now.
        """
        try:
            table = self._load()
            if table is None:
                return no_table(self._root, None if version == NO_TABLE else version)
            try:
                target = self._target(table, version)
            except SinkError as error:
                return Retreat(str(table.version()), obstacle=error.reason)
            return look_back(self._root, self._log, table, target)
        except (DeltaError, OSError) as error:
            self._table = None
            raise SinkError(self._sink, _words(error)) from error

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Take the table back to a version (None: as before the first commit), as a new one.

        Raises:
            Superseded: If a later slot was acted on and this one never was.
            SinkError: If it cannot be done now: the log or files of that version may be gone,
                or somebody else has written to the table since.
        """
        if version in {None, NO_TABLE} and not self._log.exists:
            return NO_TABLE
        return self._act(permit, lambda table: self._go_back(table, permit, version))

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what generations before this one staged and nobody will commit.

        Raises:
            SinkError: If it cannot be done now.
        """
        try:
            self._files.discard(generation, keep)
        except OSError as error:
            raise SinkError(self._sink, f"cannot discard: {_words(error)}") from error

    # -- one slot

    def _act(self, permit: CommitPermit, move: Callable[[DeltaTable | None], None]) -> Version:
        """Move the table on, one version at a time, until the slot is found in its log.

        Whether a version was made is never taken from the call that made it, but read back.
        """
        reason = ""
        for _ in range(_TRIES):
            try:
                table = self._load()
                version = self._made_by(permit.slot, table)
                if version is not None:
                    self._log.sync(version)
                    return str(version)
                move(table)
            except (DeltaError, OSError) as error:
                reason, self._table = _words(error), None
        raise SinkError(self._sink, f"gave up after {_TRIES} tries, at last because: {reason}")

    def _made_by(self, slot: Slot, table: DeltaTable | None) -> int | None:
        """Return the version that a slot made; None if it is still to come.

        Raises:
            Superseded: If a later slot came first.
        """
        last = None if table is None else table.transaction_version(self._app_id)
        if table is None or last is None or last < slot:
            return None
        for one in self._log.own_commits(table.version()):
            if one.slot == slot:
                return one.version
            if one.slot < slot:
                break
        raise Superseded(self._sink, slot, Slot(last))

    def _unchanged(self, slot: Slot) -> Version:
        """Return the version of a slot that has nothing to commit; see above."""
        try:
            table = self._load()
            if table is None:
                return NO_TABLE
            last = table.transaction_version(self._app_id)
            if last is None or last < slot:
                return str(table.version())
            before = None
            for one in self._log.own_commits(table.version()):
                if one.slot <= slot:
                    return str(one.version)
                before = one.version - 1
            if before is None or not self._log.is_whole:
                raise Superseded(self._sink, slot, Slot(last))
            return str(before)
        except (DeltaError, OSError) as error:
            self._table = None
            raise SinkError(self._sink, _words(error)) from error

    def _add(
        self, table: DeltaTable | None, permit: CommitPermit, committables: Sequence[Committable]
    ) -> None:
        """Make the table, or its new columns, or the version with the rows: whatever is next."""
        schema = StructType()
        for text in dict.fromkeys(self._files.schema_text(one) for one in committables):
            for field in added_columns(schema, StructType.fromJson(json.loads(text)), self._sink):
                schema = StructType([*schema, field])
        if table is None:
            # An empty first version: what the table is taken back to at its beginning.
            DeltaTable.create(
                str(self._root),
                Schema.from_json(schema.json()),
                partition_by=list(self._partition_by),
                commit_properties=self._properties(permit, acts=False),
            )
            return
        why = self._obstacle(table)
        if why:
            raise SinkError(self._sink, f"{self._root} cannot be appended to: it {why}")
        new = added_columns(spark_schema(table), schema, self._sink)
        if new:
            fields = Schema.from_json(StructType(new).json()).fields
            table.alter.add_columns(fields, commit_properties=self._properties(permit, acts=False))
            return
        blobs = tuple(self._files.data(committables))
        settled = self._files.settle(blobs)
        self._write(table, permit, [self._addition(*one, schema) for one in settled.items()])

    def _go_back(self, table: DeltaTable | None, permit: CommitPermit, to: Version | None) -> None:
        if table is None:
            raise SinkError(self._sink, f"there is no table in {self._root} to take back")
        target = self._target(table, to)
        foreign = foreign_commit(self._log, target, table.version())
        if foreign is not None:
            # Found before the decision, as a rule; who wrote since then keeps its rows.
            reason = f"{foreign}; rewind once more, with --leave-sinks, to leave it there"
            raise SinkError(self._sink, reason)
        if target == table.version():
            self._write(table, permit, [])
        else:
            table.restore(target, commit_properties=self._properties(permit))

    def _target(self, table: DeltaTable, to: Version | None) -> int:
        return self._beginning(table) if to in {None, NO_TABLE} else int(str(to))

    def _beginning(self, table: DeltaTable) -> int:
        """Return the version before the first commit of this sink."""
        if table.transaction_version(self._app_id) is None:
            return table.version()
        own = list(self._log.own_commits(table.version()))
        if not own or not self._log.is_whole:
            raise SinkError(self._sink, "the table's log no longer reaches back to its beginning")
        return own[-1].version - 1

    # -- deltalake

    def _load(self) -> DeltaTable | None:
        """Return the table as it is now; None if there is none."""
        if self._table is not None:
            self._table.update_incremental()
        elif self._log.exists:
            self._table = DeltaTable(str(self._root))
        self._schema = None if self._table is None else spark_schema(self._table)
        return self._table

    def _obstacle(self, table: DeltaTable) -> str | None:
        found = tuple(table.metadata().partition_columns)
        if found != self._partition_by:
            return f"is partitioned by {list(found)}, not by {list(self._partition_by)}"
        return obstacle(table)

    def _write(self, table: DeltaTable, permit: CommitPermit, files: list[AddAction]) -> None:
        table.create_write_transaction(
            list(files),
            "append",
            table.schema(),
            list(self._partition_by),
            commit_properties=self._properties(permit),
        )

    def _addition(self, blob: BlobRef, file: Path, schema: StructType) -> AddAction:
        values = {
            unquote(column): None if value == _NULL_IN_PATH else unquote(value)
            for column, value in self._files.partition_values(blob)
        }
        modified_ms = int(file.stat().st_mtime * 1000)
        stats = statistics(file, schema)
        return AddAction(file.name, blob.size_bytes, values, modified_ms, True, stats)

    def _properties(self, permit: CommitPermit, *, acts: bool = True) -> CommitProperties:
        """Say who commits; a version that acts on the slot carries the slot's key."""
        return CommitProperties(
            custom_metadata={
                "cutwater.pipeline": permit.pipeline,
                "cutwater.sink": self._sink,
                "cutwater.slot": str(permit.slot),
                "cutwater.checkpoint": str(permit.checkpoint_id),
            },
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, permit.slot)] if acts else None,
        )


def _words(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
