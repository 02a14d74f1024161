"""Forks in the simulated world: a second pipeline that starts from a cut of the first.

The fork gets its own store, its own uuid and its own tables, which start as copies of what the
first pipeline's tables showed at that cut. The fork runs with its own faults, and must end with
the same rows as if it had run from the beginning; the first pipeline must not change.
"""

from cutwater.ids import Generation, Slot
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Decision
from cutwater.protocol.rewind import Refused, plan_fork
from cutwater.testing.simulation.history import Wrong
from cutwater.testing.simulation.store import (
    committed_name,
    digest,
    log_name,
    manifest_name,
    pack,
    unpack,
)
from cutwater.testing.simulation.tables import is_ours
from cutwater.testing.simulation.world import World

FORK_TURNS = 500


def forkable(world: World) -> list[Decision]:
    """Return the commit points of a finished run that are still there to fork from."""
    return [
        decision
        for decision in world.sound_decisions()
        if decision.commit_point and decision.kind is not CheckpointKind.REWIND
    ]


def run_fork(world: World, decision: Decision) -> World | None:
    """Fork a finished run from one of its cuts and run the fork to its end.

    Returns:
        The world of the fork, after its run; None if the cut cannot be forked.

    Raises:
        Wrong: If the fork ends with wrong rows or the first pipeline has changed.
    """
    cut = world.judged.read_cut(decision.checkpoint_id)
    planned = Refused if cut is None else plan_fork(cut)
    if cut is None or not isinstance(planned, Cut):
        return None
    before = (dict(world.store.objects), {sink: table.rows for sink, table in world.tables.items()})
    child = World(world.seed + 10**6, shape=world.shape.name, mode=world.scenario.mode)
    _furnish(child, world, decision, planned)
    child.run(FORK_TURNS)
    after = (dict(world.store.objects), {sink: table.rows for sink, table in world.tables.items()})
    if before != after:
        message = "a fork has changed the pipeline it came from"
        raise Wrong(message)
    return child


def _furnish(child: World, parent: World, decision: Decision, cut: Cut) -> None:
    """Give the fork its first cut, the objects it names, its streams and its own tables."""
    for blob in cut.blobs(committed=True):
        child.judged.put(blob.name, parent.judged.checked(blob))
    data = pack(cut)
    child.judged.put(manifest_name(cut.checkpoint_id), data)
    entry = Decision(
        Slot(1), Generation(1), "fork", cut.kind, cut.checkpoint_id, digest(data), cut.commit_point
    )
    child.judged.create(log_name(entry.slot), pack(entry))
    versions = unpack(parent.store.objects[committed_name(decision.slot)])
    for sink, table in child.tables.items():
        rows = parent.tables[sink].versions[int(versions[sink])]
        table.versions, table.foreign = [rows], [row for row in rows if not is_ours(row)]
    for name, stream in child.streams.items():
        stream.begin_at(int(cut.snapshots[name].offsets[name]))
