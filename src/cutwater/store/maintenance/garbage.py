"""Deletes what retention does not keep: during a run (`Collector`) and on demand (`prune`).

The collector reads the facts, lets the protocol plan, and deletes what is planned. The holder of
the claim runs it while no attempt is open (rule F7). The claim is read again before every delete,
so that a process that has been fenced out deletes nothing more.

`prospect` plans as if the pipeline had been claimed, and changes nothing. `prune` then claims the
pipeline, so that a driver that only seemed dead can neither decide nor delete, records the dropped
cuts, and lets the collector delete. A driver that starts at the same time claims the next
generation, and the collector stops before its next delete (PROTOCOL.md section 12). A process may
end after any step: the next prune or the next run deletes the rest. Upholds I9.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import Conflict, Corrupt, NotFound
from cutwater.ids import NO_SLOT, CheckpointId, Generation, Slot
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import Claim, Decision, DecisionOutcome, LogView
from cutwater.protocol.recovery import LOG_LOST
from cutwater.protocol.retention import RetentionPlan, StoredObject, kept, plan_retention
from cutwater.store.paths import ObjectPath, PipelinePaths, object_path
from cutwater.store.pipeline_store import PipelineStore


@dataclass(slots=True)
class Collector:
    """Collects for one generation; remembers the manifests it has read.

    Attributes:
        retained: How many checkpoints are kept besides savepoints.
        committed_through: The newest slot whose commit is recorded, as the caller knows it:
            records are never deleted, so finding it again would cost more every time.
    """

    store: PipelineStore
    generation: Generation
    retained: int
    committed_through: Slot = NO_SLOT
    _cuts: dict[CheckpointId, Cut] = field(default_factory=dict)
    _given_up: set[CheckpointId] = field(default_factory=set)

    def know(self, cut: Cut) -> None:
        """Remember a cut that was published or restored, so that it need not be read again."""
        self._cuts[cut.checkpoint_id] = cut

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are kept; an attempt may reuse their objects (rule F7).

        A cut whose deletion was planned never counts again, although its manifest may still be
        there: a delete can fail, be lost or happen late, after objects of the cut are gone.
        """
        # A copy in one step: another thread may note a cut meanwhile.
        known = tuple(self._cuts.items())
        return tuple(cut for number, cut in known if number not in self._given_up)

    def collect(self) -> RetentionPlan:
        """Plan and delete; return what was planned. A later call deletes what an error has left."""
        store = self.store
        plan = self.plan(store.log.read())
        self._given_up.update(plan.manifests)
        paths = PipelinePaths(store.pipeline)
        for checkpoint_id in plan.manifests:
            if not self._delete(paths.manifest(checkpoint_id)):
                return plan
            self._cuts.pop(checkpoint_id, None)
        for name in plan.objects:
            if not self._delete(object_path(name)):
                return plan
        # No checkpoint waits for this. Without it, reading the log becomes slow.
        store.log.compact()
        return plan

    def plan(self, log: LogView, drop: Collection[CheckpointId] = ()) -> RetentionPlan:
        """Plan what `collect` would delete if `drop` were dropped too, and delete nothing."""
        dropped = self.store.savepoints.dropped().union(drop)
        keep = kept(log, self.committed_through, self.retained, dropped)
        present = self._read_manifests()
        plan = plan_retention(
            log,
            keep,
            self._cuts,
            self._list_objects(),
            committed_through=self.committed_through,
            generation=self.generation,
        )
        if plan.unreadable or log.generation != self.generation:
            return plan
        # All kept manifests can be read, so a decided one that cannot be read is not kept: delete.
        decided = {decision.checkpoint_id for decision in log.decisions}
        unread = (present & decided) - set(self._cuts)
        return replace(plan, manifests=tuple(sorted({*plan.manifests, *unread})))

    def _delete(self, path: ObjectPath) -> bool:
        if self.store.log.read().generation != self.generation:
            return False
        self.store.backend.delete(path)
        return True

    def _read_manifests(self) -> set[CheckpointId]:
        """Read new manifests, forget deleted ones; return the numbers of all manifests."""
        present = set(self.store.manifests.ids())
        for checkpoint_id in present.difference(self._cuts):
            try:
                self._cuts[checkpoint_id] = self.store.manifests.read(checkpoint_id)
            except (Corrupt, NotFound):
                # Skipped: if it is to be kept, the plan reports it and deletes nothing.
                continue
        for checkpoint_id in set(self._cuts).difference(present):
            del self._cuts[checkpoint_id]
        self._given_up &= present
        return present

    def _list_objects(self) -> list[StoredObject]:
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


@dataclass(frozen=True, slots=True)
class Prospect:
    """What pruning would do.

    Attributes:
        keep: The decisions that are kept, oldest first.
        attempts: The manifests to delete of attempts that were never decided.
        objects: The objects to delete, with their sizes.
        orphans: Those of the objects that no decided cut names: leftovers of failed attempts.
        unreadable: Kept cuts whose manifest cannot be read. While there is one, nothing is
            deleted, since the objects that it needs are unknown.
    """

    keep: tuple[Decision, ...]
    checkpoints: tuple[CheckpointId, ...]
    attempts: tuple[CheckpointId, ...]
    objects: Mapping[ObjectPath, int]
    orphans: frozenset[ObjectPath]
    unreadable: tuple[CheckpointId, ...]

    @property
    def freed_bytes(self) -> int:
        """Manifests are not counted."""
        return sum(self.objects.values())


def prospect(store: PipelineStore, retained: int, drop: Collection[CheckpointId] = ()) -> Prospect:
    """Return what `prune` would do now; `drop` may have savepoints."""
    through = store.commits.through(store.log.read())
    log = _sound_log(store)
    dropped = store.savepoints.dropped().union(drop)
    # Planned as if this process already held the next claim.
    generation = Generation(log.generation + 1)
    claimed = LogView((*log.entries, Claim(Slot(log.last_slot + 1), generation, "")))
    collector = Collector(store, generation, retained, through)
    plan = collector.plan(claimed, drop)
    decided = {decision.checkpoint_id for decision in log.decisions}
    named = {
        blob.name
        for cut in collector.cuts
        if cut.checkpoint_id in decided
        for blob in cut.blobs(committed=False)
    }
    objects = {path: _size(store, path) for path in map(object_path, plan.objects)}
    return Prospect(
        keep=kept(claimed, through, retained, dropped),
        checkpoints=tuple(
            checkpoint_id for checkpoint_id in plan.manifests if checkpoint_id in decided
        ),
        attempts=tuple(
            checkpoint_id for checkpoint_id in plan.manifests if checkpoint_id not in decided
        ),
        objects=objects,
        orphans=frozenset(path for path in objects if path not in named),
        unreadable=plan.unreadable,
    )


def prune(
    store: PipelineStore, retained: int, nonce: str, drop: Collection[CheckpointId] = ()
) -> RetentionPlan:
    """Claim the pipeline and delete what is not kept; return what was planned.

    `drop` may have savepoints. The nonce of the claim is created for this call alone. Conflict if
    another process claimed the pipeline at the same time; then nothing was deleted. After another
    error, a later call deletes the rest.
    """
    log = _sound_log(store)
    claim = Claim(Slot(log.last_slot + 1), Generation(log.generation + 1), nonce)
    if store.log.create(claim) is not DecisionOutcome.WRITTEN:
        path = PipelinePaths(store.pipeline).log_entry(claim.slot)
        raise Conflict(path, "another process may have claimed the pipeline just now")
    going = prospect(store, retained, drop)
    # Everything to delete is recorded as dropped; a driver that keeps more would miss it otherwise.
    for checkpoint_id in sorted({*going.checkpoints, *drop}):
        store.savepoints.drop(checkpoint_id)
    through = store.commits.through(store.log.read())
    return Collector(store, claim.generation, retained, through).collect()


def _sound_log(store: PipelineStore) -> LogView:
    """Read the log; refuse a truncated one, whose lost decisions would be deleted as undecided."""
    if store.lacks_decision():
        raise Corrupt(PipelinePaths(store.pipeline).log_entries, LOG_LOST)
    return store.log.read()


def _size(store: PipelineStore, path: ObjectPath) -> int:
    try:
        return store.backend.size(path)
    except NotFound:
        # Deleted since it was listed, as it was going to be.
        return 0
