"""Rewind and fork: making an older cut current again, here or in another pipeline (section 11).

A rewind is a decision with a number of its own. Its manifest repeats the older cut, and its
"commit" rolls every sink back to what it showed at that cut (rule F13). Everything is proven
before the decision is written; after that the rewind can only be finished. A fork starts another
pipeline from the same cut and never touches the sinks of the original (F14).
Upholds I7, I8 and I9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.cut import CheckpointKind, Cut, Version
from cutwater.protocol.decisions import Decision, LogView, uncommitted
from cutwater.protocol.recovery import Damage, state_damages


class RewindRefusal(Enum):
    """Why a rewind or fork cannot be done."""

    MANIFEST_UNREADABLE = "the checkpoint's manifest is gone or cannot be read"
    OBJECTS_DAMAGED = "objects of the checkpoint are missing or damaged"
    NOT_COMMITTED = "its sinks have not committed it yet; recover the pipeline first"
    NEVER_COMMITTED = "its sinks never committed it: a later rewind undid it before"
    RECORD_LOST = "the record of what its sinks showed is gone"
    SINK_CANNOT_RESTORE = "a sink cannot go back to what it showed then"
    SINK_GONE = "a sink it would roll back is no longer part of the pipeline"
    SOURCE_FORGOT = "a source no longer has what came after it"
    CARRIES_OUTPUT = "it is a recovery point whose output is committed later; take a savepoint"
    SAME_TARGET = "a sink of the fork writes to the original's target"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindFacts:
    """What was observed about the cut to rewind to.

    Attributes:
        cut: Its manifest; None if it cannot be read.
        committed: What its commit made visible; None while that is not recorded.
        before: What sinks showed then that the cut does not know, because they were not part of
            the pipeline at that time: what they had committed last.
        cannot_restore: Sinks that cannot return to that version, with the reason.
        forgotten: Sources that no longer have the data after the cut, with the reason.
        leave_sinks: Leave the sinks as they are; rows after the cut will arrive again.
        sinks: The pipeline's current sinks; None if they are those of the cut. A sink that the
            cut does not know is rolled back to what it showed `before`, or to its beginning.
    """

    target: Decision
    cut: Cut | None
    damages: tuple[Damage, ...] = ()
    committed: Mapping[SinkId, Version] | None = None
    unrecorded: RewindRefusal = RewindRefusal.NOT_COMMITTED
    before: Mapping[SinkId, Version] = field(default_factory=dict)
    cannot_restore: Mapping[SinkId, str] = field(default_factory=dict)
    forgotten: Mapping[str, str] = field(default_factory=dict)
    leave_sinks: bool = False
    sinks: tuple[SinkId, ...] | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A rewind or fork that cannot be done, and the things that prevent it."""

    reason: RewindRefusal
    things: tuple[str, ...] = ()


def plan_rewind(
    facts: RewindFacts, checkpoint_id: CheckpointId, generation: Generation
) -> Cut | Refused:
    """Return the cut to decide, or why not; its number is higher than all earlier ones."""
    cut = facts.cut
    if cut is None:
        return Refused(RewindRefusal.MANIFEST_UNREADABLE)
    damages = (*state_damages(cut), *facts.damages)
    if damages:
        return _damaged(damages)
    if facts.forgotten:
        return Refused(RewindRefusal.SOURCE_FORGOT, _listed(facts.forgotten))
    shown: Mapping[SinkId, Version | None] | None = cut.visible
    if facts.target.commit_point:
        shown = facts.committed
    if shown is None:
        return Refused(facts.unrecorded)
    known = set(shown if facts.sinks is None else facts.sinks)
    carrying = {sink for sink, staged in cut.carried.items() if staged}
    gone = sorted((carrying if facts.leave_sinks else set(shown) | carrying) - known)
    if gone:
        return Refused(RewindRefusal.SINK_GONE, tuple(gone))
    if facts.sinks is not None:
        shown = {sink: shown.get(sink) or facts.before.get(sink) for sink in facts.sinks}
    if facts.cannot_restore and not facts.leave_sinks:
        return Refused(RewindRefusal.SINK_CANNOT_RESTORE, _listed(facts.cannot_restore))
    return replace(
        cut,
        checkpoint_id=checkpoint_id,
        generation=generation,
        kind=CheckpointKind.REWIND,
        name=None,
        commit=dict.fromkeys(shown, ()),
        commit_point=True,
        restores={} if facts.leave_sinks else dict(shown),
        visible=dict(shown),
        # A sink that is rolled back writes at this decision; a sink left alone is accepted.
        last_writes={},
        origin=facts.target.slot,
    )


def why_unrecorded(log: LogView, decision: Decision, committed_through: Slot) -> RewindRefusal:
    if decision in uncommitted(log, committed_through):
        return RewindRefusal.NOT_COMMITTED
    left_behind = any(
        later.origin is not None and later.origin < decision.slot < later.slot
        for later in log.decisions
    )
    return RewindRefusal.NEVER_COMMITTED if left_behind else RewindRefusal.RECORD_LOST


def plan_fork(cut: Cut, shared_targets: tuple[SinkId, ...] = ()) -> Cut | Refused:
    """Return the first cut of a new pipeline, or why not.

    The fork carries no committables, and its sinks show nothing yet: they write to other tables,
    and the fork's uuid gives other idempotence keys. A fork of a savepoint starts with a
    checkpoint: the savepoint stays with the original.
    """
    if shared_targets:
        return Refused(RewindRefusal.SAME_TARGET, tuple(shared_targets))
    if any(cut.carried.values()):
        return Refused(RewindRefusal.CARRIES_OUTPUT)
    damages = state_damages(cut)
    if damages:
        return _damaged(damages)
    return replace(
        cut,
        checkpoint_id=CheckpointId(1),
        generation=Generation(1),
        kind=CheckpointKind.CHECKPOINT,
        name=None,
        commit={},
        carried={},
        visible=dict.fromkeys(cut.visible),
        last_writes={},
        restores={},
        commit_point=False,
        origin=None,
    )


def _damaged(damages: tuple[Damage, ...]) -> Refused:
    things = tuple(f"{damage.name}: {damage.problem}" for damage in damages)
    return Refused(RewindRefusal.OBJECTS_DAMAGED, things)


def _listed(things: Mapping[SinkId, str] | Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {reason}" for name, reason in sorted(things.items()))
