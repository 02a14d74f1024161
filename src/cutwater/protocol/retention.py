"""Retention: what may be deleted, planned before anything is deleted (PROTOCOL.md section 12).

Kept are the head, every decision whose sinks may not have acted, the newest `retained` others, all
savepoints, and every object any of them needs. The order follows the log, never the id, so the
target of a rewind cannot be lost (rule F13). Plans are made and carried out while no attempt is
open, only by the holder of the claim (F7). Upholds I9.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.cut import BlobRef, CheckpointKind, Committable, Cut
from cutwater.protocol.decisions import Decision, LogView, uncommitted
from cutwater.protocol.messages import Barrier


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the store: the generation that wrote it, and whether it is staged output."""

    name: str
    generation: Generation
    staged: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What to delete, in this order: manifests oldest first, then unreferenced objects.

    `unreadable` are kept cuts whose manifest cannot be read. What they need is unknown, so nothing
    is deleted while there is such a cut.
    """

    manifests: tuple[CheckpointId, ...]
    objects: tuple[str, ...]
    unreadable: tuple[CheckpointId, ...] = ()


def kept(
    log: LogView,
    committed_through: Slot,
    retained: int,
    dropped: Collection[CheckpointId] = (),
) -> tuple[Decision, ...]:
    """Return the decisions whose cuts must stay, oldest first.

    A dropped cut stays only while it is the head, or while its sinks may not have acted.
    """
    decisions = log.decisions
    waiting = uncommitted(log, committed_through)
    wanted = [decision for decision in decisions if decision.checkpoint_id not in dropped]
    savepoints = [decision for decision in wanted if decision.kind is CheckpointKind.SAVEPOINT]
    others = [decision for decision in wanted if decision.kind is not CheckpointKind.SAVEPOINT]
    keep = {*decisions[-1:], *waiting, *savepoints, *others[-retained:]}
    return tuple(decision for decision in decisions if decision in keep)


def plan_retention(
    log: LogView,
    keep: Collection[Decision],
    cuts: Mapping[CheckpointId, Cut],
    found: Iterable[StoredObject],
    *,
    committed_through: Slot,
    generation: Generation,
) -> RetentionPlan:
    """Return what may be deleted.

    `cuts` and `found` are all readable manifests and all objects of the store, staged output
    included. Output that the collecting generation's own writers have staged is not deleted until a
    decided cut has held it: an undecided manifest may name rows that the next cut has yet to hold.
    """
    unreadable = tuple(
        decision.checkpoint_id for decision in keep if decision.checkpoint_id not in cuts
    )
    if unreadable or log.generation != generation:
        # A fenced process plans nothing: the objects may belong to its successor.
        return RetentionPlan((), (), unreadable)
    decided_ids = {decision.checkpoint_id for decision in log.decisions}
    keep_ids = {decision.checkpoint_id for decision in keep}
    needed = {
        blob.name
        for decision in keep
        for blob in cuts[decision.checkpoint_id].blobs(committed=decision.slot <= committed_through)
    }
    named = {
        blob.name
        for checkpoint_id, cut in cuts.items()
        if checkpoint_id in decided_ids - keep_ids
        for blob in cut.blobs(committed=False)
    }
    objects = sorted(
        stored.name
        for stored in found
        if stored.name not in needed
        and stored.generation <= generation
        and (not stored.staged or stored.name in named or stored.generation < generation)
    )
    manifests = sorted(
        checkpoint_id
        for checkpoint_id, cut in cuts.items()
        if checkpoint_id not in keep_ids and cut.generation <= generation
    )
    return RetentionPlan(tuple(manifests), tuple(objects))


def staged_to_keep(
    log: LogView, cuts: Iterable[Cut], committed_through: Slot
) -> Mapping[SinkId, tuple[Committable, ...]]:
    """Return the staged output that sinks must not delete.

    That is what a cut carries, also if a later cut has committed it: a rewind to the first cut
    commits it again. It is also what a cut commits, until the commit is recorded: recovery repeats
    the commit. Everything of an undecided cut is kept.
    """
    recorded = {
        decision.checkpoint_id for decision in log.decisions if decision.slot <= committed_through
    }
    keep: dict[SinkId, dict[Committable, None]] = {}
    for cut in cuts:
        pending = [cut.carried] if cut.checkpoint_id in recorded else [cut.carried, cut.commit]
        for staged in pending:
            for sink, committables in staged.items():
                keep.setdefault(sink, {}).update(dict.fromkeys(committables))
    return {sink: tuple(found) for sink, found in keep.items()}


def reusable(cuts: Iterable[Cut], barrier: Barrier, *, incremental: bool) -> Mapping[str, BlobRef]:
    """Return the objects that an attempt need not store again, by content hash.

    Only what a kept cut names counts; the mere existence of an object proves nothing (rule F7). A
    self-contained attempt reuses nothing.
    """
    if barrier.is_full_snapshot or not incremental:
        return {}
    return {
        blob.sha256: blob
        for cut in cuts
        for snapshot in cut.snapshots.values()
        for blob in snapshot.blobs
    }
