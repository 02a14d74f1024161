"""Records of commits: what the sinks made visible for each decision (PROTOCOL.md section 9).

Written when every sink has acted, so the newest record says through which slot nothing is left to
repeat. A record holds the versions of the original commit and never changes (rule F41), whoever
writes it and however often. Upholds I8.
"""

from cutwater.ids import NO_SLOT, PipelineId, Slot
from cutwater.protocol.decisions import LogView
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.codecs import COMMITTED, Committed
from cutwater.store.records.decision_log import recent
from cutwater.store.records.envelope import decode, encode


class Commits:
    """The records of commits of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def record(self, committed: Committed) -> None:
        """Record that all sinks have acted on a decision. May be repeated after any error.

        Raises:
            Conflict: If the slot is recorded with other versions: a sink that acts again must
                name the version of its original commit, and one did not.
            Unavailable: If it was certainly not recorded.
            OutcomeUnknown: If it may or may not have been recorded.
        """
        path = self._paths.committed(committed.slot)
        write_once(self._backend, path, encode(COMMITTED, path, committed))

    def read(self, slot: Slot) -> Committed:
        """Read what the sinks made visible for a decision.

        Raises:
            NotFound: If that is not recorded.
            Corrupt: If the record is damaged.
            NewerFormat: If it is of a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        path = self._paths.committed(slot)
        return decode(COMMITTED, path, self._backend.read(path))

    def slots(self, after: Slot = NO_SLOT) -> tuple[Slot, ...]:
        """Return all slots after one whose commit is recorded, in order.

        Raises:
            Corrupt: If there is something else among them.
            Unavailable: If the store does not answer.
        """
        behind = self._paths.committed(after) if after else None
        found = self._backend.list(self._paths.commits, behind)
        return tuple(sorted(self._paths.slot_of_commit(path) for path in found))

    def through(self, log: LogView | None = None) -> Slot:
        """Return the newest slot whose commit is recorded; `NO_SLOT` for none.

        Args:
            log: The log, if it has been read: the newest record is looked for near its end, and
                further back only if there is none.

        Raises:
            StoreError: As `slots` does.
        """
        near = NO_SLOT if log is None else recent(log.last_slot)
        return max(self.slots(near) or self.slots(), default=NO_SLOT)

    def newest(self, log: LogView | None = None) -> Committed | None:
        """Read the record of the newest slot; None if nothing was ever committed.

        Args:
            log: The log, as for `through`.

        Raises:
            StoreError: As `slots` and `read` do.
        """
        slot = self.through(log)
        return self.read(slot) if slot else None
