"""What a fork's first cut is made of: the original's snapshots, under the names of the copies."""

from dataclasses import replace

import pytest
from tests.unit.operations.crashing_pipeline import CrashingBackend
from tests.unit.store.cuts import PIPELINE, sample_cut

from cutwater.errors import OutcomeUnknown, Unavailable
from cutwater.ids import Slot
from cutwater.operations.fork import _decide_first_cut, _rename_blobs
from cutwater.protocol.cut import BlobRef, Cut
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.rewind import plan_fork
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore


def copy_of(ref: BlobRef) -> BlobRef:
    return BlobRef(f"copy of {ref.name}", ref.size_bytes, ref.sha256)


def test_state_and_rows_in_flight_are_named_by_their_copies() -> None:
    cut = sample_cut()
    refs = {ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs}
    recorded = {
        ref
        for snapshot in cut.snapshots.values()
        for part in snapshot.in_flight
        for event in part.events
        for ref in event.blobs
    }

    renamed = _rename_blobs(cut, {ref: copy_of(ref) for ref in refs})

    assert recorded
    assert {ref for snapshot in renamed.snapshots.values() for ref in snapshot.blobs} == {
        copy_of(ref) for ref in refs
    }
    back = {copy_of(ref): ref for ref in refs}
    assert _rename_blobs(renamed, back) == cut


def test_a_fork_begins_with_a_claim_and_one_decision() -> None:
    store = PipelineStore.of(CrashingBackend(), PIPELINE)
    cut = plan_fork(replace(sample_cut(), carried={}))
    assert isinstance(cut, Cut)

    _decide_first_cut(store, cut)

    claim, decision = store.log.read().entries
    assert isinstance(claim, Claim)
    assert isinstance(decision, Decision)
    assert (claim.slot, decision.slot, claim.generation) == (1, 2, cut.generation)
    assert store.attempts.highest() == decision.checkpoint_id == cut.checkpoint_id
    assert store.manifests.read(decision.checkpoint_id).started_at_ms > 0


class Forgetful(CrashingBackend):
    """A store that loses the log."""

    def create(self, path: ObjectPath, data: bytes) -> bool:
        if "/log/" in path:
            raise Unavailable(path, "it is away")
        return super().create(path, data)


def test_a_fork_whose_first_entry_may_not_be_written_was_not_made() -> None:
    store = PipelineStore.of(Forgetful(), PIPELINE)

    with pytest.raises(OutcomeUnknown, match="make it again"):
        _decide_first_cut(store, sample_cut())
    assert store.log.read().last_slot == Slot(0)
