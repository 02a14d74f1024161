"""Commit records: the versions that sinks made visible for each decision (PROTOCOL.md section 9).

A record is written after every sink has committed, so no slot up to the newest record needs to be
repeated. A record holds the versions of the original commit and never changes (rule F41), however
often and by whichever process it is written. Upholds I8.
"""

from cutwater.ids import NO_SLOT, Slot
from cutwater.protocol.decisions import LogView
from cutwater.store.backends.backend import write_once
from cutwater.store.records.codecs import COMMITTED, Committed
from cutwater.store.records.decision_log import recent
from cutwater.store.records.envelope import PipelineRecords, encode


class Commits(PipelineRecords):
    def record(self, committed: Committed) -> None:
        """Record that all sinks have committed a decision. May be repeated after any error.

        Raises:
            Conflict: If the slot is recorded with other versions: a sink that repeats a commit
                must return the version of its original commit, and a sink did not.
        """
        path = self._paths.committed(committed.slot)
        write_once(self._backend, path, encode(COMMITTED, path, committed))

    def read(self, slot: Slot) -> Committed:
        """NotFound if the commit is not recorded."""
        return self._read(COMMITTED, self._paths.committed(slot))

    def slots(self, after: Slot = NO_SLOT) -> tuple[Slot, ...]:
        """Return all slots after `after` whose commit is recorded, in order."""
        start = self._paths.committed(after) if after else None
        found = self._backend.list(self._paths.commits, start)
        return tuple(sorted(self._paths.slot_of_commit(path) for path in found))

    def through(self, log: LogView | None = None) -> Slot:
        """Return the newest slot whose commit is recorded; `NO_SLOT` if there is none.

        In a log that has been read, the newest record is searched near its end, and further back
        only if there is none.
        """
        near = NO_SLOT if log is None else recent(log.last_slot)
        return max(self.slots(near) or self.slots(), default=NO_SLOT)

    def newest(self, log: LogView | None = None) -> Committed | None:
        """Read the record of the newest slot; None if nothing was ever committed."""
        slot = self.through(log)
        return self.read(slot) if slot else None
