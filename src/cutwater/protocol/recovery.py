"""Recovery: the next action, chosen from the observed facts (PROTOCOL.md section 10).

`next_action` is called again after every effect with the facts so far; it keeps no state. The
order is fixed: claim, verify the head, repeat unfinished commits in order, check that targets hold
what is recorded (F43), roll back what sinks show beyond the cut (F33), restore. A damaged head is
never skipped silently: a user decides a rewind, which rolls the sinks back too (F4). What cannot be
read is an error, never "absent".
Upholds I5, I7, I8 and I9.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from cutwater.ids import NO_CHECKPOINT, NO_SLOT, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.cut import Committable, Cut, Version
from cutwater.protocol.decisions import Claim, Decision, LogView, uncommitted
from cutwater.protocol.lost_commit import Recorded, last_writes, recorded_of

LOG_LOST: Final = (
    "its log lacks its last entries: sinks have committed a decision that it does not hold. Bring "
    "the objects below log/ back from a copy of the store"
)
"""The message for a log that `lacks_decision`."""


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing or differs from its manifest."""

    name: str
    problem: str


def state_damages(cut: Cut) -> tuple[Damage, ...]:
    """Return what a cut lacks according to its manifest, whatever the store holds.

    Such a cut is no longer decided (`cut.faults`); versions before that check could decide one.
    """
    return tuple(
        Damage(
            f"the state of step {step}",
            f"no file was stored, and batch {cut.snapshots[step].batch} was committed",
        )
        for step in cut.without_state
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """What has been observed so far.

    Attributes:
        nonce: What this process wrote into its claim; identifies the claim in the log.
        committed: What each recorded commit made visible, newest record only.
        highest_id: The highest attempt id ever taken, wherever it left a trace.
        manifests: The manifests read so far; None for one that cannot be read or whose hash
            differs from its decision.
        verified: The damages found in each cut whose objects were checked; empty if sound.
        sinks: The pipeline's current sinks; None if they are known to be those of the cut.
        showing: Sinks that publish batches before their checkpoint, or did so in the last
            generation: they may show more than the cut.
        moved: Sinks that write to another target than the one they wrote to last: what was
            committed to the old target is not in the new one.
        targets_checked: Whether the targets are known to hold what is recorded of them.
        taken_back: What each sink in `showing` shows after it was rolled back in the name of this
            process's claim.
    """

    log: LogView
    nonce: str
    committed_through: Slot = NO_SLOT
    committed: Mapping[SinkId, Version] = field(default_factory=dict)
    highest_id: CheckpointId = NO_CHECKPOINT
    manifests: Mapping[CheckpointId, Cut | None] = field(default_factory=dict)
    verified: Mapping[CheckpointId, tuple[Damage, ...]] = field(default_factory=dict)
    sinks: frozenset[SinkId] | None = None
    showing: frozenset[SinkId] = frozenset()
    moved: frozenset[SinkId] = frozenset()
    targets_checked: bool = True
    taken_back: Mapping[SinkId, Version | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimGeneration:
    """Create this claim; then read the log again, whatever the result."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Read the manifest of this decision and compare its hash."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class VerifyObjects:
    """Check size and hash of every object this cut needs."""

    decision: Decision
    cut: Cut
    committed: bool


@dataclass(frozen=True, slots=True)
class RepeatCommit:
    """Let the sinks act on this decision again and record it."""

    decision: Decision
    cut: Cut


@dataclass(frozen=True, slots=True)
class CheckTargets:
    """Check that every target holds what is recorded of it; refuse if one does not (F43)."""

    recorded: Mapping[SinkId, Recorded]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Roll a sink back to the cut, in the name of the claim, before anything is replayed.

    Attributes:
        version: What it showed at its last commit; None for its beginning.
        carried: What the cut carries for it: published again at once, before new rows.
    """

    claim: Claim
    sink: SinkId
    version: Version | None
    carried: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Build everything from this cut and start; None means an empty start."""

    generation: Generation
    cut: Cut | None
    standing: Standing


class RefusalReason(Enum):
    """Why recovery does not continue by itself."""

    MANIFEST_UNREADABLE = auto()
    OBJECTS_DAMAGED = auto()
    SINK_MISSING = auto()
    """The cut carries output of a sink that the pipeline no longer has."""
    LOG_LOST = auto()
    """Sinks have acted on a decision that the log no longer holds."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop; the way out is a rewind to a sound cut, which a user decides.

    Without a decision, the log itself cannot be used.
    """

    reason: RefusalReason
    decision: Decision | None
    damages: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class StepAside:
    """Another process has claimed the pipeline after this one: exit."""

    generation: Generation


RecoveryAction = (
    ClaimGeneration
    | ReadManifest
    | VerifyObjects
    | RepeatCommit
    | CheckTargets
    | TakeBack
    | Restore
    | Refuse
    | StepAside
)


def own_claim(log: LogView, nonce: str) -> Claim | None:
    """Return the claim this process has written, if the log holds it."""
    for entry in reversed(log.entries):
        if isinstance(entry, Claim) and entry.nonce == nonce:
            return entry
    return None


def taken_over(log: LogView, tried: Collection[Claim]) -> tuple[Generation, Generation] | None:
    """Return whether another process has claimed the pipeline after this one.

    `tried` holds all claims that this process has tried to write. The result is this process's
    newest generation and the one that owns the pipeline now; None if this process owns it, or
    never claimed it.
    """
    claims = [entry for entry in log.entries if isinstance(entry, Claim)]
    nonces = {claim.nonce for claim in tried}
    if not tried or not claims or claims[-1].nonce in nonces:
        return None
    if claims[-1].slot < min(claim.slot for claim in tried):
        # A predecessor's claim: the store took none of this process's, and none came after.
        return None
    newer = claims[-1].generation
    ours = [claim.generation for claim in claims if claim.nonce in nonces]
    # A claim that came too late is not in the log: it wanted the slot of the one that is.
    return (ours[-1] if ours else Generation(newer - 1)), newer


def next_action(facts: RecoveryFacts) -> RecoveryAction:
    log = facts.log
    claim = own_claim(log, facts.nonce)
    if lacks_decision(log, facts.committed_through):
        return Refuse(RefusalReason.LOG_LOST, None)
    if claim is None:
        slot, generation = Slot(log.last_slot + 1), Generation(log.generation + 1)
        return ClaimGeneration(Claim(slot, generation, facts.nonce))
    if log.generation != claim.generation:
        return StepAside(log.generation)
    head = log.head
    if head is None:
        standing = Standing(
            slot=log.last_slot, highest_id=facts.highest_id, visible=facts.taken_back
        )
        return _take_back(claim, None, facts) or Restore(claim.generation, None, standing)
    waiting = uncommitted(log, facts.committed_through)
    blocked = _sound(head, facts, committed=head not in waiting)
    if blocked is not None:
        return blocked
    for decision in waiting:
        blocked = _sound(decision, facts, committed=False)
        if blocked is not None:
            return blocked
        cut = facts.manifests[decision.checkpoint_id]
        assert cut is not None
        # Every sink has to act, also a sink without rows.
        return _missing_sink(decision, cut, cut.commit.keys(), facts) or RepeatCommit(decision, cut)
    cut = facts.manifests[head.checkpoint_id]
    assert cut is not None
    restore = Restore(claim.generation, cut, _standing(head, cut, facts))
    carrying = {sink for sink, staged in cut.carried.items() if staged}
    return (
        _missing_sink(head, cut, carrying, facts)
        or _check_targets(restore.standing, facts)
        or _take_back(claim, cut, facts)
        or restore
    )


def _check_targets(standing: Standing, facts: RecoveryFacts) -> CheckTargets | None:
    """Return what the targets must hold; None if checked already, or if nothing is known."""
    if facts.targets_checked:
        return None
    recorded = recorded_of(standing.last_writes, standing.visible)
    return CheckTargets(recorded) if recorded else None


def _take_back(claim: Claim, cut: Cut | None, facts: RecoveryFacts) -> TakeBack | None:
    """Return the next sink to roll back; None if no sink shows more than the cut."""
    shown: Mapping[SinkId, Version | None] = {}
    carried: Mapping[SinkId, tuple[Committable, ...]] = {}
    if cut is not None:
        shown, carried = {**cut.visible, **facts.committed}, cut.carried
    for sink in sorted(facts.showing - facts.taken_back.keys()):
        return TakeBack(claim, sink, shown.get(sink), carried.get(sink, ()))
    return None


def lacks_decision(log: LogView, committed: Slot) -> bool:
    """Return whether a commit is recorded for a slot that is not a decision of the log.

    The record is written after the decision: if the decision is absent, it was lost, and resuming
    from an older one would give its rows to the sinks again.
    """
    if committed == NO_SLOT:
        return False
    return committed > log.last_slot or not isinstance(log.at(committed), Decision)


def _missing_sink(
    decision: Decision, cut: Cut, waiting: Set[SinkId], facts: RecoveryFacts
) -> Refuse | None:
    """Refuse if a decision waits for a sink that the pipeline no longer has; say why it waits."""
    if facts.sinks is None or waiting <= facts.sinks:
        return None
    gone = sorted(waiting - facts.sinks)
    damages = (Damage(sink, _left_undone(cut, sink)) for sink in gone)
    return Refuse(RefusalReason.SINK_MISSING, decision, tuple(damages))


def _left_undone(cut: Cut, sink: SinkId) -> str:
    staged = (*cut.commit.get(sink, ()), *cut.carried.get(sink, ()))
    rows = sum(committable.rows for committable in staged)
    if sink in cut.restores:
        return "a rewind has not rolled it back yet"
    return f"it has not committed its {rows:,} rows" if rows else "it has not acted yet (no rows)"


def _sound(decision: Decision, facts: RecoveryFacts, *, committed: bool) -> RecoveryAction | None:
    """Return what must happen before the decision's cut may be used; None if it may."""
    checkpoint_id = decision.checkpoint_id
    if checkpoint_id not in facts.manifests:
        return ReadManifest(decision)
    cut = facts.manifests[checkpoint_id]
    if cut is None:
        return Refuse(RefusalReason.MANIFEST_UNREADABLE, decision)
    if checkpoint_id not in facts.verified:
        return VerifyObjects(decision, cut, committed)
    damages = (*state_damages(cut), *facts.verified[checkpoint_id])
    if damages:
        return Refuse(RefusalReason.OBJECTS_DAMAGED, decision, damages)
    return None


def _standing(head: Decision, cut: Cut, facts: RecoveryFacts) -> Standing:
    writes = last_writes(head.slot, cut)
    return Standing(
        slot=facts.log.last_slot,
        highest_id=max(facts.highest_id, facts.log.highest_id),
        decided={step: snapshot.batch for step, snapshot in cut.snapshots.items()},
        carried=cut.carried,
        visible={**cut.visible, **facts.committed, **facts.taken_back},
        last_writes={sink: slot for sink, slot in writes.items() if sink not in facts.moved},
        overtaken=not cut.is_aligned,
    )
