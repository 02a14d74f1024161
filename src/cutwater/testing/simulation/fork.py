"""Forks in the simulated world: a second pipeline that starts from a cut of the first.

The real fork copies the cut into another store. The fork gets tables of its own, which start as
copies of what the first pipeline's tables showed at that cut. It runs with its own faults, and must
end with the same rows as if it had run from the beginning; the first pipeline must not change.
"""

from cutwater.errors import MoveRefused
from cutwater.operations.fork import make_fork
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Decision
from cutwater.testing.simulation.history import Wrong
from cutwater.testing.simulation.process import NAME
from cutwater.testing.simulation.store import calm_backend
from cutwater.testing.simulation.tables import is_ours
from cutwater.testing.simulation.world import World

FORK_MS = 4_000


def forkable(world: World) -> list[Decision]:
    """Return the commit points of a finished run that are still there to fork from."""
    return [
        decision
        for decision in world.sound_decisions()
        if decision.commit_point and decision.kind is not CheckpointKind.REWIND
    ]


def run_fork(world: World, decision: Decision) -> World | None:
    """Fork a finished run from one of its cuts and run the fork to its end."""
    before = (dict(world.store.by_name), {sink: table.rows for sink, table in world.tables.items()})
    child = World(world.seed + 10**6, shape=world.shape.name, mode=world.scenario.mode)
    try:
        made = make_fork(
            (calm_backend(world.store), calm_backend(child.store)),
            NAME,
            "fork",
            start_from=str(decision.checkpoint_id),
            clock=child.clock,
        )
    except MoveRefused:
        return None
    child.use_pipeline(made.pipeline_id)
    _furnish(child, world, decision)
    child.run(FORK_MS)
    after = (dict(world.store.by_name), {sink: table.rows for sink, table in world.tables.items()})
    if before != after:
        message = "a fork has changed the pipeline it came from"
        raise Wrong(message)
    return child


def _furnish(child: World, parent: World, decision: Decision) -> None:
    """Give the fork its streams and its own tables."""
    versions = parent.shown_at(decision)
    for sink, table in child.tables.items():
        rows = parent.tables[sink].versions[int(versions[sink] or 0)]
        table.versions, table.foreign = [rows], [row for row in rows if not is_ours(row)]
        table.identity = f"{sink}#fork"
    cut = parent.read_cut(decision)
    assert cut is not None
    for name, stream in child.streams.items():
        stream.begin_at(int(cut.snapshots[name].offsets[name]))
