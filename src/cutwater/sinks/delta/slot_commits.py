"""One version of a Delta table for each decision slot, whoever asks and however often.

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
        log: The table's log.
        schema: The table's columns when it was last read; None without a table.
    """

    def __init__(self, storage: TableStorage, pipeline: PipelineId, sink: SinkId) -> None:
        """Look at nothing yet."""
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
            # Taken back or made anew: what was read before is not part of it any more.
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
        """Read the table from its beginning the next time, since something has gone wrong."""
        self._table = None

    def commit_once(
        self, permit: CommitPermit, move: Callable[[DeltaTable | None], None]
    ) -> Version:
        """Move the table on, one version at a time, until the slot is found in its log.

        Whether a version was made is never taken from the call that made it, but read back.
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
        """Take step after step, each upon the table as it is then, until one has an answer."""
        return repeat_until_found(
            self._sink, lambda: step(self.load()), FAILURES, on_failure=self.forget
        )

    def made_by(self, slot: Slot, table: DeltaTable | None) -> int | None:
        """Return the version that a slot made; None if it is still to come.

        Raises:
            Superseded: If a later slot came first.
        """
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
        """Return the newest slot that this sink has acted on; None if it never has."""
        found = table.transaction_version(self._app_id)
        return None if found is None else Slot(found)

    def forgets(self, table: DeltaTable) -> bool:
        """Say whether a table drops the slots of sinks that have not written for some time."""
        return _FORGETTING in table.metadata().configuration

    def find_unchanged(self, slot: Slot) -> Version:
        """Return the version of a slot that has nothing to commit; see above."""
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
        """Say who commits; a version that acts on the slot carries the slot's key."""
        named = {
            "cutwater.slot": str(permit.slot),
            "cutwater.checkpoint": str(permit.checkpoint_id),
        }
        return self.build_properties(named, permit.slot if carries_slot else None)

    def build_properties(
        self, named: Mapping[str, str], slot: Slot | None = None
    ) -> CommitProperties:
        """Say who commits, and more; a version that acts on a slot carries the slot's key."""
        return CommitProperties(
            custom_metadata={
                "cutwater.pipeline": self._pipeline,
                "cutwater.sink": self._sink,
                **named,
            },
            max_commit_retries=0,
            app_transactions=None if slot is None else [Transaction(self._app_id, slot)],
        )
