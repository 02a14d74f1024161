"""Deletes what retention does not keep: reads the facts, lets the protocol plan, does as it says.

Run by the holder of the claim while no attempt is open (rule F7). The claim is read again before
every delete, so that a process that has been fenced out meanwhile deletes nothing more.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import NO_SLOT, CheckpointId, Generation, Slot
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import LogView
from cutwater.protocol.retention import RetentionPlan, StoredObject, kept, plan_retention
from cutwater.store.paths import ObjectPath, PipelinePaths, object_path
from cutwater.store.pipeline_store import OpenStore


@dataclass(slots=True)
class Collector:
    """Collects for one generation; remembers the manifests it has read.

    Attributes:
        store: The pipeline in its store.
        generation: The generation that collects.
        retained: How many checkpoints are kept beside savepoints.
        committed_through: The newest slot whose commit is recorded, as the caller knows it:
            records are never deleted, so finding it out anew would cost more every time.
    """

    store: OpenStore
    generation: Generation
    retained: int
    committed_through: Slot = NO_SLOT
    _cuts: dict[CheckpointId, Cut] = field(default_factory=dict)

    def know(self, cut: Cut) -> None:
        """Note a cut that was published or restored, so that it need not be read again."""
        self._cuts[cut.checkpoint_id] = cut

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are known and were not deleted."""
        return tuple(self._cuts.values())

    def collect(self) -> RetentionPlan:
        """Plan and delete; return what was planned.

        Raises:
            StoreError: If the store cannot be read or written now; what is left is deleted by
                a later call.
        """
        store = self.store
        plan = self.plan(store.log.read())
        paths = PipelinePaths(store.pipeline)
        for checkpoint_id in plan.manifests:
            if not self._delete(paths.manifest(checkpoint_id)):
                return plan
            self._cuts.pop(checkpoint_id, None)
        for name in plan.objects:
            if not self._delete(object_path(name)):
                return plan
        # While nobody waits for anything: reading the log gets slow otherwise.
        store.log.bind()
        return plan

    def plan(self, log: LogView, drop: Collection[CheckpointId] = ()) -> RetentionPlan:
        """Plan what `collect` would delete, and delete nothing.

        Args:
            log: The log.
            drop: Cuts to give up, beside those that were.

        Raises:
            StoreError: If the store cannot be read now.
        """
        dropped = self.store.savepoints.dropped().union(drop)
        keep = kept(log, self.committed_through, self.retained, dropped)
        present = self._read_manifests()
        plan = plan_retention(
            log,
            keep,
            self._cuts,
            self._found(),
            committed_through=self.committed_through,
            generation=self.generation,
        )
        if plan.unreadable or log.generation != self.generation:
            return plan
        # All that is kept can be read, so what was decided and cannot be is not kept: it goes.
        decided = {one.checkpoint_id for one in log.decisions}
        unread = (present & decided) - set(self._cuts)
        return replace(plan, manifests=tuple(sorted({*plan.manifests, *unread})))

    def _delete(self, path: ObjectPath) -> bool:
        if self.store.log.read().generation != self.generation:
            return False
        self.store.backend.delete(path)
        return True

    def _read_manifests(self) -> set[CheckpointId]:
        """Read what is new, forget what is gone; return the numbers of all manifests."""
        present = set(self.store.manifests.ids())
        for checkpoint_id in present.difference(self._cuts):
            try:
                self._cuts[checkpoint_id] = self.store.manifests.read(checkpoint_id)
            except (Corrupt, NotFound):
                # Left out: if it is one that is kept, the plan says so and deletes nothing.
                continue
        for checkpoint_id in set(self._cuts).difference(present):
            del self._cuts[checkpoint_id]
        return present

    def _found(self) -> list[StoredObject]:
        paths = PipelinePaths(self.store.pipeline)
        backend = self.store.backend
        return [
            *(
                StoredObject(name, paths.generation_of_blob(name))
                for name in backend.list(paths.blobs)
            ),
            *(
                StoredObject(name, paths.generation_of_staged_file(name), staged=True)
                for name in backend.list(paths.staged_files)
            ),
        ]
