"""Pruning by hand: what would go, then what goes, while nobody runs the pipeline.

A prospect plans as if the pipeline had been claimed, and touches nothing. Pruning then claims it,
so that a driver which only seemed dead can neither decide nor delete, notes which cuts were given
up, and lets the collector delete; a driver that starts meanwhile claims the next generation, and
the collector stops before its next delete (PROTOCOL.md section 12). Every step may be the last one
of its process: what is left goes with the next prune, or with the next run. Upholds I9.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cutwater.errors import Conflict, Corrupt, NotFound
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.decisions import Claim, Decision, DecisionOutcome, LogView
from cutwater.protocol.recovery import LOG_LOST
from cutwater.protocol.retention import RetentionPlan, kept
from cutwater.store.maintenance.garbage import Collector
from cutwater.store.paths import ObjectPath, PipelinePaths, object_path
from cutwater.store.pipeline_store import OpenStore


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


def prospect(store: OpenStore, retained: int, drop: Collection[CheckpointId] = ()) -> Prospect:
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
    decided = {one.checkpoint_id for one in log.decisions}
    named = {
        blob.name
        for cut in collector.cuts
        if cut.checkpoint_id in decided
        for blob in cut.blobs(committed=False)
    }
    objects = {path: _size(store, path) for path in map(object_path, plan.objects)}
    return Prospect(
        keep=kept(claimed, through, retained, dropped),
        checkpoints=tuple(one for one in plan.manifests if one in decided),
        attempts=tuple(one for one in plan.manifests if one not in decided),
        objects=objects,
        orphans=frozenset(path for path in objects if path not in named),
        unreadable=plan.unreadable,
    )


def prune(
    store: OpenStore, retained: int, nonce: str, drop: Collection[CheckpointId] = ()
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


def _sound_log(store: OpenStore) -> LogView:
    """Read the log; what it has lost would be deleted as never decided.

    Raises:
        Corrupt: If it has lost its end.
    """
    if store.lacks_decision():
        raise Corrupt(PipelinePaths(store.pipeline).log_entries, LOG_LOST)
    return store.log.read()


def _size(store: OpenStore, path: ObjectPath) -> int:
    try:
        return store.backend.size(path)
    except NotFound:
        # Gone meanwhile, as everything here is meant to be.
        return 0
