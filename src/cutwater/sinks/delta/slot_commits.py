"""One version of a Delta table for each decision slot, however often a commit is repeated.

A commit is one version of the table, with the slot in its `txn` action under the key
`<pipeline>/<sink>`. deltalake may not repeat a commit by itself (`max_commit_retries=0`): after a
conflict with another writer, the table is read again and the change is computed again, so that a
slot that another process has committed in the meantime is seen.

A slot with nothing to commit makes no version, or a table would get thousands of empty ones a day.
It leaves no trace, and needs none:

- If it is repeated before a later slot is committed, it returns the table's current version.
  Between two calls only other programs can have written: the rows of this sink are the same.
- If it is repeated after a later slot was committed, it returns the last version of this sink at or
  before the slot, found in the log: the version with the rows that the sink had then. It is not
  `Superseded`, since there was nothing to commit.
- A slot with rows is `Superseded` if a later slot was committed and the log has no commit of it.
  Slots without rows do not affect this: they are neither the later slot nor searched for.
- A restore always makes a version, even if it changes nothing: repeated later, it would remove rows
  that other programs wrote since.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql.types import StructType

from cutwater.errors import SinkError, Superseded
from cutwater.ids import PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Version
from cutwater.sinks.base import reason_of, repeat_until_found
from cutwater.sinks.delta.schema import spark_schema
from cutwater.sinks.delta.storage import FAILURES, FileFacts, TableStorage
from cutwater.sinks.delta.time_travel import NO_TABLE
from cutwater.sinks.delta.transaction_log import DeltaLog

_FORGETTING: Final = "delta.setTransactionRetentionDuration"
T = TypeVar("T")


class DeltaSlots:
    """The versions of one table that one sink has made and makes.

    Attributes:
        schema: The table's columns when it was last read; None without a table.
    """

    def __init__(self, storage: TableStorage, pipeline: PipelineId, sink: SinkId) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._sink = sink
        self._app_id = f"{pipeline}/{sink}"
        self.log = DeltaLog(storage, pipeline, sink)
        self._table: DeltaTable | None = None
        self._facts: FileFacts | None = None
        self.schema: StructType | None = None

    def load(self) -> DeltaTable | None:
        """Return the table as it is now; None if there is none."""
        if self._table is not None and self.log.facts(self._table.version()) != self._facts:
            # The table was rolled back or recreated: earlier reads are no longer valid.
            self._table = None
        known = None if self._table is None else self._table.version()
        if self._table is not None:
            self._table.update_incremental()
        elif self.log.exists:
            self._table = DeltaTable(self._storage.address, storage_options=self._storage.options)
        if self._table is not None and self._table.version() != known:
            self._facts = self.log.facts(self._table.version())
        self.schema = None if self._table is None else spark_schema(self._table)
        return self._table

    def forget(self) -> None:
        """Read the table from its beginning the next time, after a failure."""
        self._table = None

    def commit_once(
        self, permit: CommitPermit, move: Callable[[DeltaTable | None], None]
    ) -> Version:
        """Write one version at a time until the slot is found in the table's log.

        Whether a version was made is never inferred from the call that made it, but read back.
        """

        def step(table: DeltaTable | None) -> Version | None:
            version = self.made_by(permit.slot, table)
            if version is None:
                move(table)
                return None
            self.log.sync(version)
            return str(version)

        return self.until(step)

    def until(self, step: Callable[[DeltaTable | None], T | None]) -> T:
        """Run a step on the current table again and again, until it returns a result."""
        return repeat_until_found(
            self._sink, lambda: step(self.load()), FAILURES, on_failure=self.forget
        )

    def made_by(self, slot: Slot, table: DeltaTable | None) -> int | None:
        """Return the version that a slot made, None if it may still come; else `Superseded`."""
        last = None if table is None else self.newest(table)
        if table is None or last is None or last < slot:
            return None
        for commit in self.log.own_commits(table.version()):
            if commit.slot == slot:
                return commit.version
            if commit.slot < slot:
                break
        raise Superseded(self._sink, slot, last)

    def newest(self, table: DeltaTable) -> Slot | None:
        """Return the newest slot that this sink has committed; None if there is none."""
        found = table.transaction_version(self._app_id)
        return None if found is None else Slot(found)

    def forgets(self, table: DeltaTable) -> bool:
        """Return whether a table drops the slots of sinks that have not written for some time."""
        return _FORGETTING in table.metadata().configuration

    def find_unchanged(self, slot: Slot) -> Version:
        """Return the version of a slot that has nothing to commit; see the module docstring."""
        try:
            table = self.load()
            if table is None:
                return NO_TABLE
            last = self.newest(table)
            if last is None or last < slot:
                return str(table.version())
            before = None
            for commit in self.log.own_commits(table.version()):
                if commit.slot <= slot:
                    return str(commit.version)
                before = commit.version - 1
            if before is None or not self.log.is_whole:
                raise Superseded(self._sink, slot, last)
            return str(before)
        except FAILURES as error:
            self._table = None
            raise SinkError(self._sink, reason_of(error)) from error

    def find_beginning(self, table: DeltaTable) -> int:
        """Return the version before the first commit of this sink."""
        if self.newest(table) is None:
            return table.version()
        own = list(self.log.own_commits(table.version()))
        if not own or not self.log.is_whole:
            raise SinkError(self._sink, "the table's log no longer reaches back to its beginning")
        return own[-1].version - 1

    def properties(self, permit: CommitPermit, *, carries_slot: bool = True) -> CommitProperties:
        """Return the properties of a commit; the version that commits the slot carries its key."""
        named = {
            "cutwater.slot": str(permit.slot),
            "cutwater.checkpoint": str(permit.checkpoint_id),
        }
        return self.build_properties(named, permit.slot if carries_slot else None)

    def build_properties(
        self, named: Mapping[str, str], slot: Slot | None = None
    ) -> CommitProperties:
        """Return commit properties with metadata; with a slot, the version carries its key."""
        return CommitProperties(
            custom_metadata={
                "cutwater.pipeline": self._pipeline,
                "cutwater.sink": self._sink,
                **named,
            },
            max_commit_retries=0,
            app_transactions=None if slot is None else [Transaction(self._app_id, slot)],
        )
