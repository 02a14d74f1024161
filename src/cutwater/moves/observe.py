"""Observing what a rewind is decided by: the cut, its objects, and what every sink says.

Only reads. Everything that can stand against a rewind is found here, before anybody has claimed
the pipeline (PROTOCOL.md section 11).
"""

from collections.abc import Collection, Mapping

from cutwater.errors import Corrupt, NotFound, SinkError
from cutwater.ids import SinkId
from cutwater.moves.choose import Candidate
from cutwater.moves.opening import Movable, read_cut
from cutwater.moves.preview import Observed, shown_then
from cutwater.moves.sources import forgotten
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import LogView
from cutwater.protocol.recovery import Damage
from cutwater.protocol.rewind import RewindFacts
from cutwater.sinks.base import Retreat


def observe(
    movable: Movable, log: LogView, target: Candidate, *, leave_sinks: bool, held: str | None
) -> Observed:
    """Observe everything that a rewind to a checkpoint depends on.

    Args:
        movable: The pipeline.
        log: Its log, as it was read.
        target: The checkpoint to go back to.
        leave_sinks: Whether the sinks are left as they are.
        held: Who runs the pipeline, if that stands against it.

    Raises:
        StoreError: If the store cannot be read.
    """
    head = log.head
    assert head is not None
    facts = RewindFacts(
        target=target.decision,
        cut=target.cut,
        committed=_committed(movable, target),
        sinks=tuple(sorted(movable.targets)),
        leave_sinks=leave_sinks,
    )
    shown = shown_then(facts) or {}
    moved = _moved(movable, log, target)
    retreats, obstacles = _retreats(movable, shown, moved)
    head_cut = target.cut if head == target.decision else read_cut(movable.store, head)
    return Observed(
        pipeline=movable.name,
        target=target,
        head=head_cut,
        head_id=head.checkpoint_id,
        undone=tuple(one.checkpoint_id for one in log.decisions if one.slot > target.decision.slot),
        facts=RewindFacts(
            target=facts.target,
            cut=facts.cut,
            damages=() if facts.cut is None else _damages(movable, facts.cut, moved),
            committed=facts.committed,
            cannot_restore=obstacles,
            forgotten=_forgotten(movable, head_cut, target),
            leave_sinks=leave_sinks,
            sinks=facts.sinks,
        ),
        retreats=retreats,
        targets=movable.targets,
        held=held,
    )


def _forgotten(movable: Movable, head: Cut | None, target: Candidate) -> Mapping[str, str]:
    if target.cut is None:
        return {}
    try:
        return forgotten(movable.store, head, target.cut)
    except (Corrupt, NotFound):
        # The head is damaged, which is why somebody goes back; what it has read is not known.
        return {}


def _committed(movable: Movable, target: Candidate) -> Mapping[SinkId, Version] | None:
    try:
        return movable.store.commits.read(target.decision.slot).versions
    except NotFound:
        return None


def _damages(movable: Movable, cut: Cut, moved: Collection[SinkId]) -> tuple[Damage, ...]:
    """Check every object of the state, of what was in flight, and of what waits for a sink.

    What waits for a sink that has moved lies elsewhere, and that is what is wrong with it.
    """
    blobs = movable.store.blobs(cut.generation)
    found = []
    for ref in sorted({ref for one in cut.snapshots.values() for ref in one.blobs}):
        problem = blobs.problem(ref)
        if problem is not None:
            found.append(Damage(ref.name, problem))
    for sink, committables in cut.carried.items():
        opened = None if sink in moved else movable.sinks.get(sink)
        for one in committables if opened is not None else ():
            assert opened is not None
            problem = opened.problem(one)
            if problem is not None:
                found.append(Damage(f"what sink {sink} staged in batch {one.batch}", problem))
    return tuple(found)


def _retreats(
    movable: Movable, shown: Mapping[SinkId, Version | None], moved: Mapping[SinkId, str]
) -> tuple[dict[SinkId, Retreat], dict[SinkId, str]]:
    """Ask every sink what going back would do, and gather what stands against it."""
    retreats: dict[SinkId, Retreat] = {}
    obstacles: dict[SinkId, str] = dict(movable.unopened)
    for sink, opened in movable.sinks.items():
        try:
            retreats[sink] = opened.look_back(shown.get(sink))
        except SinkError as error:
            obstacles[sink] = error.reason
            continue
        obstacle = retreats[sink].obstacle
        if obstacle is not None:
            obstacles[sink] = obstacle
    for sink, place in moved.items():
        obstacles[sink] = f"it wrote to {place} since then, and to another target today"
    return retreats, obstacles


def _moved(movable: Movable, log: LogView, target: Candidate) -> dict[SinkId, str]:
    """Find sinks that have had another target since the checkpoint: its version is of that one."""
    moved = {}
    for then in movable.store.targets.since(log, log.shown_at(target.decision)):
        for sink, one in then.items():
            today = movable.targets.get(sink)
            if today is not None and today.place != one.place:
                moved[sink] = one.uri
    return moved
