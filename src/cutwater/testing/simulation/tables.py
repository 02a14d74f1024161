"""The sinks' side of the simulated world: tables with versions, outside of everything else.

A table commits atomically, remembers the slot of its last commit in the same transaction, and
ignores a slot it has seen. It can go back to any version. It may be out of order for a while. One
that shows batches before their checkpoint remembers the slot of a claim instead, and which batches
it has shown since (rule F33).
"""

from collections.abc import Callable, Sequence

from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.cut import Committable, Version
from cutwater.testing.simulation.rows import Row

Reader = Callable[[Committable], Sequence[Row]]


class TableDown(Exception):
    """The table cannot commit at the moment."""


class Superseded(Exception):
    """The table has acted on a later slot and never on this one."""


class SimulatedTable:
    """One table: its versions, and which slot made which."""

    def __init__(self, sink: SinkId, *, shows_batches: bool = False) -> None:
        """Begin with an empty version 0."""
        self.sink = sink
        self.shows_batches = shows_batches
        self.shown: dict[Slot, dict[tuple[Generation, BatchId], Version]] = {Slot(0): {}}
        self.versions: list[tuple[Row, ...]] = [()]
        self.made: dict[Slot, Version] = {}
        self.last_slot = Slot(0)
        self.down = False

    def commit(self, slot: Slot, rows: list[Row]) -> Version:
        """Append rows as one transaction; a slot that was seen changes nothing.

        Raises:
            TableDown: If it cannot commit now.
            Superseded: If a later slot came first.
        """
        return self._act(slot, (*self.versions[-1], *rows))

    def restore(self, slot: Slot, version: Version | None) -> Version:
        """Go back to what a version held, as a new version.

        Raises:
            TableDown: If it cannot commit now.
            Superseded: If a later slot came first.
        """
        return self._act(slot, self.versions[int(version or 0)])

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

    def _add(self, content: tuple[Row, ...]) -> Version:
        self.versions.append(content)
        return str(len(self.versions) - 1)

    # -- batches before their checkpoint

    def take_back(self, claim: Slot, version: Version | None) -> Version:
        """Go back to what a version held, in the name of a claim.

        Raises:
            TableDown: If it cannot commit now.
            Superseded: If a later slot came first.
        """
        return self.restore(claim, version)

    def show(self, claim: Slot, batch: Committable, read: Reader) -> None:
        """Append the rows of a batch, unless they are shown already.

        Raises:
            TableDown: If it cannot commit now.
            Superseded: If the claim is not the last that took the table back.
        """
        if self.down:
            raise TableDown
        if self.last_slot != claim:
            raise Superseded
        self._show(batch, read)

    def _show(self, batch: Committable, read: Reader) -> Version:
        shown = self.shown[self.last_slot]
        key = (batch.generation, batch.batch)
        if key not in shown:
            shown[key] = self._add((*self.versions[-1], *read(batch)))
        return shown[key]

    def seal(
        self, slot: Slot, batches: Sequence[Committable], before: Version, read: Reader
    ) -> Version:
        """Show what a decision holds and nobody has shown; say which version holds just that.

        Raises:
            TableDown: If it cannot commit now.
            Superseded: If somebody with a later slot has taken the table back.
        """
        if self.down:
            raise TableDown
        if self.last_slot > slot:
            return self._sealed(slot, batches, before)
        for batch in batches:
            before = self._show(batch, read)
        return before

    def _sealed(self, slot: Slot, batches: Sequence[Committable], before: Version) -> Version:
        """Say what a slot sealed before somebody took the table back: its record was lost."""
        then = self.shown[max(one for one in self.shown if one <= slot)]
        for batch in batches:
            if (batch.generation, batch.batch) not in then:
                raise Superseded
            before = then[batch.generation, batch.batch]
        return before

    def seen(self, slot: Slot) -> Version | None:
        """Return the version a slot made here; None if it is still to come.

        Raises:
            Superseded: If a later slot came first.
        """
        if slot < self.last_slot and slot not in self.made:
            raise Superseded
        return self.made.get(slot)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What a reader sees now."""
        return self.versions[-1]
