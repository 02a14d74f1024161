"""The sinks of the simulated world: tables with versions, which outlive processes.

A table commits atomically, records the slot of its last commit in the same transaction, and ignores
a slot that it has already committed. It can be restored to any version. It may be down for a while.
A table that shows batches before their checkpoint records the slot of a claim instead, and which
batches it has shown since (rule F33).
"""

from collections.abc import Callable, Sequence
from typing import Final

from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.testing.simulation.rows import Row

LOCKS: Final = 2
"""How many staged batches one transaction of a table may touch."""

FOREIGN: Final = "foreign"
"""The origin of rows that another program has written."""

Reader = Callable[[Committable], Sequence[Row]]


def is_ours(row: Row) -> bool:
    """Return whether the pipeline wrote a row, and not another program."""
    return row.origin != FOREIGN


class TableDown(Exception):
    """The table cannot commit at the moment."""


class TooManyLocks(TableDown):
    """A transaction touches more staged batches than the table has locks for."""


class Superseded(Exception):
    """The table has committed a later slot and never this one."""


class SimulatedTable:
    """One table: its versions, and the slot of each.

    It raises `TableDown` if it cannot commit now or has not enough locks, and `Superseded` if a
    later slot came first.
    """

    def __init__(
        self, sink: SinkId, *, shows_batches: bool = False, is_atomic: bool = False
    ) -> None:
        """Begin with an empty version 0."""
        self.sink = sink
        self.is_atomic = is_atomic
        self.shows_batches = shows_batches
        self.shown: dict[Slot, dict[tuple[Generation, BatchId], Version]] = {Slot(0): {}}
        self.versions: list[tuple[Row, ...]] = [()]
        self.made: dict[Slot, Version] = {}
        self.last_slot = Slot(0)
        self.down = False
        self.foreign: list[Row] = []
        self.vacuumed_through = -1
        self.current = 0
        self.lost: set[int] = set()
        # What the table is called, and what it is: a name may change.
        self.address = f"host/{sink}"
        self.identity = f"{sink}#1"
        self.gathered: dict[tuple[Generation, BatchId], list[Row]] = {}
        # The names of staged batches that the table has committed at least once.
        self.taken: set[str] = set()

    def gather(self, batches: Sequence[Committable], read: Reader) -> None:
        """Collect staged batches in one place, in a separate transaction; may be repeated."""
        if self.down:
            raise TableDown
        if len(batches) > LOCKS:
            raise TooManyLocks
        for batch in batches:
            key = (batch.generation, batch.batch)
            if key not in self.gathered:
                self.gathered[key] = list(read(batch))

    def commit(self, slot: Slot, batches: Sequence[Committable]) -> Version:
        """Append collected rows in one transaction; repeating a slot changes nothing."""
        if self.seen(slot) is not None:
            batches = ()
        keys = [(batch.generation, batch.batch) for batch in batches]
        rows = [row for key in keys for row in self.gathered[key]]
        version = self._act(slot, (*self.rows, *rows))
        for key in keys:
            self.gathered.pop(key, None)
        return version

    def newest(self) -> Found:
        """Return what the table holds, as a sink that `KnowsNewest` does."""
        if self.shows_batches:
            return Found(None, str(self.current), counts_versions=True)
        return Found(max(self.made, default=None), str(self.current))

    def restore(self, slot: Slot, version: Version | None) -> Version:
        """Restore the content of a version, as a new version."""
        rows = tuple(row for row in self.versions[int(version or 0)] if is_ours(row))
        return self._act(slot, (*rows, *self.foreign))

    def _act(self, slot: Slot, content: tuple[Row, ...]) -> Version:
        if self.down:
            raise TableDown
        known = self.seen(slot)
        if known is not None:
            return known
        self.made[slot] = self._add(content)
        self.last_slot = slot
        self.shown[slot] = {}
        return self.made[slot]

    # -- other programs

    def append_foreign(self, number: int) -> None:
        """Append a row as another program would, in a version of its own."""
        row = Row(FOREIGN, number)
        self.foreign.append(row)
        self._add((*self.rows, row))

    def vacuum(self, before: int) -> bool:
        """Delete the versions before a given one; return whether any was deleted."""
        deleted = self.vacuumed_through < before - 1
        self.vacuumed_through = max(self.vacuumed_through, before - 1)
        return deleted

    def keeps(self, version: Version | None) -> bool:
        return int(version or 0) > self.vacuumed_through and int(version or 0) not in self.lost

    def lose_last_commit(self) -> None:
        """Become what it was before its last commit, as a failover to a lagging replica does."""
        slot = max(self.made)
        first = int(self.made.pop(slot))
        self.lost.update(range(first, len(self.versions)))
        self.current = max(version for version in range(first) if version not in self.lost)
        self.last_slot = max(self.made, default=Slot(0))
        del self.shown[slot]
        self.foreign = [row for row in self.rows if not is_ours(row)]

    def _add(self, content: tuple[Row, ...]) -> Version:
        self.versions.append(content)
        self.current = len(self.versions) - 1
        return str(self.current)

    # -- batches before their checkpoint

    def take_back(self, claim: Slot, version: Version | None) -> Version:
        """Restore the content of a version, on behalf of a claim."""
        return self.restore(claim, version)

    def show(self, claim: Slot, batch: Committable, read: Reader) -> None:
        """Append the rows of a batch, unless they are shown already, for the last claim only."""
        if self.down:
            raise TableDown
        if self.last_slot != claim:
            raise Superseded
        self._show(batch, read)

    def _show(self, batch: Committable, read: Reader) -> Version:
        shown = self.shown[self.last_slot]
        key = (batch.generation, batch.batch)
        if key not in shown:
            shown[key] = self._add((*self.rows, *read(batch)))
        return shown[key]

    def seal(
        self, slot: Slot, batches: Sequence[Committable], before: Version, read: Reader
    ) -> Version:
        """Show the batches of a decision that are not shown yet; return the decision's version."""
        if self.down:
            raise TableDown
        if self.last_slot > slot:
            return self._sealed(slot, batches, before)
        for batch in batches:
            before = self._show(batch, read)
        return before

    def _sealed(self, slot: Slot, batches: Sequence[Committable], before: Version) -> Version:
        """Return the version that a slot sealed before a rollback: its record was lost."""
        then = self.shown[max(known for known in self.shown if known <= slot)]
        for batch in batches:
            if (batch.generation, batch.batch) not in then:
                raise Superseded
            before = then[batch.generation, batch.batch]
        return before

    def seen(self, slot: Slot) -> Version | None:
        """Return the version of a slot; None if the slot is not committed yet."""
        if slot < self.last_slot and slot not in self.made:
            raise Superseded
        return self.made.get(slot)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What a reader sees now."""
        return self.versions[self.current]
