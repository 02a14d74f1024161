"""Deletes what retention does not keep: during a run (`Collector`) and by hand (`prune`).

The collector reads the facts, lets the protocol plan, and deletes what the plan says. It is run by
the holder of the claim while no attempt is open (rule F7). The claim is read again before every
delete, so that a process that has been fenced out meanwhile deletes nothing more.

`prospect` plans as if the pipeline had been claimed, and touches nothing. `prune` then claims it,
so that a driver which only seemed dead can neither decide nor delete, notes which cuts were given
up, and lets the collector delete; a driver that starts meanwhile claims the next generation, and
the collector stops before its next delete (PROTOCOL.md section 12). A process may end after any
step: what is left is deleted by the next prune, or by the next run. Upholds I9.
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
        store: The pipeline in its store.
        generation: The generation that collects.
        retained: How many checkpoints are kept beside savepoints.
        committed_through: The newest slot whose commit is recorded, as the caller knows it:
            records are never deleted, so finding it out anew would cost more every time.
    """

    store: PipelineStore
    generation: Generation
    retained: int
    committed_through: Slot = NO_SLOT
    _cuts: dict[CheckpointId, Cut] = field(default_factory=dict)
    _given_up: set[CheckpointId] = field(default_factory=set)

    def know(self, cut: Cut) -> None:
        """Note a cut that was published or restored, so that it need not be read again."""
        self._cuts[cut.checkpoint_id] = cut

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are kept; an attempt may reuse their objects (rule F7).

        A cut whose deletion was planned never counts again, although its manifest may still be
        there: a delete can fail, be lost or happen late, after objects of the cut are gone.
        """
        return tuple(cut for number, cut in self._cuts.items() if number not in self._given_up)

    def collect(self) -> RetentionPlan:
        """Plan and delete; return what was planned.

        Raises:
            StoreError: If the store cannot be read or written now; what is left is deleted by
                a later call.
        """
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
        # While nobody waits for anything: reading the log gets slow otherwise.
        store.log.compact()
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
        decided = {decision.checkpoint_id for decision in log.decisions}
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
        self._given_up &= present
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


@dataclass(frozen=True, slots=True)
class Prospect:
    """What pruning would do.

    Attributes:
        keep: The decisions that stay, oldest first.
        checkpoints: The cuts that go.
        attempts: Manifests of attempts that were never decided; they go too.
        objects: The objects that go, with their sizes.
        orphans: Those of them that no decided cut names: what failed attempts have left.
        unreadable: Cuts that stay and whose manifest cannot be read: nothing goes while there is
            one, since what it needs is unknown.
    """

    keep: tuple[Decision, ...]
    checkpoints: tuple[CheckpointId, ...]
    attempts: tuple[CheckpointId, ...]
    objects: Mapping[ObjectPath, int]
    orphans: frozenset[ObjectPath]
    unreadable: tuple[CheckpointId, ...]

    @property
    def freed_bytes(self) -> int:
        """How many bytes go, manifests not counted."""
        return sum(self.objects.values())


def prospect(store: PipelineStore, retained: int, drop: Collection[CheckpointId] = ()) -> Prospect:
    """Say what `prune` would do now.

    Args:
        store: The pipeline in its store.
        retained: How many checkpoints are kept beside savepoints.
        drop: Cuts to give up, savepoints among them.

    Raises:
        StoreError: If the store cannot be read now.
    """
    through = store.commits.through(store.log.read())
    log = _sound_log(store)
    dropped = store.savepoints.dropped().union(drop)
    # Planned as the holder of a claim that nobody has made yet.
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
    """Claim the pipeline and delete what does not stay; return what was planned.

    Args:
        store: The pipeline in its store.
        retained: How many checkpoints are kept beside savepoints.
        nonce: Made for this call alone; it is that of the claim.
        drop: Cuts to give up, savepoints among them.

    Raises:
        Conflict: If somebody else has claimed the pipeline at the same moment; nothing went.
        StoreError: If the store cannot be read or written now; what is left goes another time.
    """
    log = _sound_log(store)
    claim = Claim(Slot(log.last_slot + 1), Generation(log.generation + 1), nonce)
    if store.log.create(claim) is not DecisionOutcome.WRITTEN:
        path = PipelinePaths(store.pipeline).log_entry(claim.slot)
        raise Conflict(path, "somebody else may have claimed the pipeline just now")
    going = prospect(store, retained, drop)
    # All that goes is given up: a driver that keeps more would miss it otherwise.
    for checkpoint_id in sorted({*going.checkpoints, *drop}):
        store.savepoints.drop(checkpoint_id)
    through = store.commits.through(store.log.read())
    return Collector(store, claim.generation, retained, through).collect()


def _sound_log(store: PipelineStore) -> LogView:
    """Read the log; what it has lost would be deleted as never decided.

    Raises:
        Corrupt: If it has lost its end.
    """
    if store.lacks_decision():
        raise Corrupt(PipelinePaths(store.pipeline).log_entries, LOG_LOST)
    return store.log.read()


def _size(store: PipelineStore, path: ObjectPath) -> int:
    try:
        return store.backend.size(path)
    except NotFound:
        # Gone meanwhile, as everything here is meant to be.
        return 0
