"""The sinks' side of the simulated world: tables with versions, outside of everything else.

A table commits atomically, remembers the slot of its last commit in the same transaction, and
ignores a slot it has seen. It can go back to any version. It may be out of order for a while.
"""

from cutwater.ids import SinkId, Slot
from cutwater.protocol.cut import Version
from cutwater.testing.simulation.rows import Row


class TableDown(Exception):
    """The table cannot commit at the moment."""


class Superseded(Exception):
    """The table has acted on a later slot and never on this one."""


class SimulatedTable:
    """One table: its versions, and which slot made which."""

    def __init__(self, sink: SinkId) -> None:
        """Begin with an empty version 0."""
        self.sink = sink
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
        self.versions.append(content)
        self.last_slot = slot
        self.made[slot] = str(len(self.versions) - 1)
        return self.made[slot]

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
