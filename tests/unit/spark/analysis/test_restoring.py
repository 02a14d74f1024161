"""Whether a cut restores on another version of Spark, beyond what the protocol compares."""

from dataclasses import replace

import pytest

from cutwater.errors import CodeChanged
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, StepId
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.evolution.identity import OperatorIdentity, StepIdentity
from cutwater.protocol.evolution.mapping import Allowances
from cutwater.spark.analysis.restoring import map_on_spark, map_or_refuse

NTH = StepId("nth")
PROCESSOR = StepIdentity(
    operators=(OperatorIdentity("TransformWithStateInPySpark"),), partitions=2, spark="4.0.5"
)
LATER = {NTH: replace(PROCESSOR, spark="4.1.4")}


def cut(identity: StepIdentity = PROCESSOR, batch: BatchId = BatchId(3)) -> Cut:
    checkpoint, generation = CheckpointId(4), Generation(2)
    snapshots = {NTH: StepSnapshot(NTH, checkpoint, generation, batch)}
    kind = CheckpointKind.CHECKPOINT
    return Cut(checkpoint, generation, kind, snapshots, identities={NTH: identity})


def test_state_that_a_later_version_cannot_read_is_refused_with_the_reason() -> None:
    with pytest.raises(CodeChanged) as refused:
        map_or_refuse(cut(), LATER, Allowances())

    assert (
        "step nth runs on Spark 4.1.4, which cannot read the state that Spark 4.0.5 wrote: Spark "
        "4.0 marks the snapshots of transformWithState as v2, and later versions read v1. Run it "
        "on that version, or give the step another name, which starts it empty (--allow-new "
        "--allow-dropped)." in str(refused.value)
    )


@pytest.mark.parametrize(
    "found",
    [
        cut(replace(PROCESSOR, spark="4.1.0")),
        cut(batch=NO_BATCH),
        cut(replace(PROCESSOR, operators=())),
    ],
    ids=["written by a later version", "never ran", "no state"],
)
def test_other_state_goes_on(found: Cut) -> None:
    now = {NTH: replace(found.identities[NTH], spark="4.3.0")}

    assert map_on_spark(found, now, Allowances()).refusals == ()
    assert map_or_refuse(found, now, Allowances()).cut.checkpoint_id == found.checkpoint_id


def test_a_step_that_is_new_has_no_state_to_read() -> None:
    now = {**LATER, StepId("other"): replace(LATER[NTH], operators=())}
    found = cut(replace(PROCESSOR, spark="4.1.0"))

    assert map_on_spark(found, now, Allowances(new=True)).refusals == ()
