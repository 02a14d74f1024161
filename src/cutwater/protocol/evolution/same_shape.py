"""Restoring a cut whose manifest does not say what its steps were.

Manifests of the first versions hold no identities. Their cuts are checked as far as snapshots
tell, and restored only into the same shape (rule F16).
"""

from collections.abc import Mapping
from dataclasses import replace

from cutwater.ids import NO_BATCH, StepId
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.protocol.evolution.change import Allowances, Change, Fate, Refusal, StepFate
from cutwater.protocol.evolution.identity import StepIdentity


def same_shape(cut: Cut, now: Mapping[StepId, StepIdentity], allowed: Allowances) -> Change:
    """Check a cut that holds no identities as far as its snapshots tell: nothing may differ."""
    refusals = []
    why = f"checkpoint {cut.checkpoint_id} does not say enough to map it"
    ways = "Run the old code once more, so that it takes a checkpoint that says what its steps are"
    for name in sorted(now.keys() | cut.snapshots.keys()):
        identity, snapshot = now.get(name), cut.snapshots.get(name)
        then_reads = "is not there" if snapshot is None else _reads_of(snapshot)
        now_reads = "is not there" if identity is None else _reads(identity)
        if then_reads != now_reads:
            reason = f"{then_reads} in checkpoint {cut.checkpoint_id} and {now_reads} now"
            refusals.append(Refusal(f"step {name}", f"{reason}; {why}", ways))
            continue
        assert snapshot is not None
        assert identity is not None
        keys = {f"{at}:{one.name}" for at, one in enumerate(identity.inputs)}
        if set(snapshot.offsets) - keys:
            reason = f"has other sources than checkpoint {cut.checkpoint_id}; {why}"
            refusals.append(Refusal(f"step {name}", reason, ways))
        if identity.is_query and snapshot.batch != NO_BATCH and not snapshot.state:
            reason = "keeps state now and kept none: it would start without its past"
            refusals.append(Refusal(f"step {name}", reason, ways))
    refusals += [
        Refusal(f"source {source}", f"cannot be swapped: {why}", ways)
        for source in sorted(allowed.swap)
    ]
    fates = tuple(StepFate(step, Fate.KEPT) for step in now)
    return Change(fates, tuple(refusals), replace(cut, identities=now))


def _reads(identity: StepIdentity) -> str:
    found = [f"{one.ordinal}:{one.name}" for one in identity.channels]
    return f"reads {', '.join(found) or 'outside sources'}"


def _reads_of(snapshot: StepSnapshot) -> str:
    return f"reads {', '.join(map(str, sorted(snapshot.positions))) or 'outside sources'}"
