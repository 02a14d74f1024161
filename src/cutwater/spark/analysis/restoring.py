"""A cut in today's code and on today's Spark.

`protocol.evolution.mapping` compares the code, and refuses to go back to an older Spark. What one
version of Spark writes and a later one cannot read is in the table of `spark.versions`, and is
refused here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cutwater.errors import CodeChanged
from cutwater.ids import NO_BATCH, StepId
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.identity import StepIdentity, runs_on_older_spark
from cutwater.protocol.evolution.mapping import Allowances, Change, Refusal, map_cut
from cutwater.spark.versions import lost_state


def map_on_spark(cut: Cut, now: Mapping[StepId, StepIdentity], allowed: Allowances) -> Change:
    """Map a cut to the current steps, each after those it reads, on the version of Spark in use."""
    change = map_cut(cut, now, allowed)
    return replace(change, refusals=(*change.refusals, *_lost(cut, now)))


def map_or_refuse(cut: Cut, now: Mapping[StepId, StepIdentity], allowed: Allowances) -> Change:
    """Map a cut to the current steps; CodeChanged if it cannot be restored into them."""
    change = map_on_spark(cut, now, allowed)
    if change.refusals:
        raise CodeChanged(cut.checkpoint_id, tuple(map(str, change.refusals)))
    return change


def _lost(cut: Cut, now: Mapping[StepId, StepIdentity]) -> Iterator[Refusal]:
    """Refuse state that a later version of Spark cannot read."""
    for step, identity in now.items():
        old = cut.identities.get(step)
        if old is None or cut.snapshots[step].batch == NO_BATCH:
            continue
        for operator in old.operators:
            reason = lost_state(operator.kind, old.spark, identity.spark)
            if reason is not None and not runs_on_older_spark(old, identity):
                yield Refusal(
                    f"step {step}",
                    f"runs on Spark {identity.spark}, which cannot read the state that Spark "
                    f"{old.spark} wrote: {reason}",
                    "Run it on that version, or give the step another name, which starts it empty "
                    "(--allow-new --allow-dropped)",
                )
