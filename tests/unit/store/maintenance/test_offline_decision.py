"""Deciding while no process runs the pipeline: a concurrent claim wins, and no number is reused."""

from dataclasses import replace

import pytest
from tests.unit.store.cuts import PIPELINE, sample_cut
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Fenced, OutcomeUnknown, Unavailable
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, LogView
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt

SAVEPOINT = CheckpointKind.SAVEPOINT


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def store(backend: FaultyBackend) -> PipelineStore:
    return PipelineStore.of(backend, PIPELINE)


def made(attempt: Attempt) -> Cut:
    return replace(
        sample_cut(),
        checkpoint_id=attempt.checkpoint_id,
        generation=attempt.generation,
        kind=attempt.kind,
        started_at_ms=attempt.started_at_ms,
    )


def test_a_claim_and_a_decision_follow_what_was_read(store: PipelineStore) -> None:
    claim = claim_next(store, store.log.read())
    decision, cut = decide_cut(store, claim, SAVEPOINT, made)

    assert store.log.read().entries == (claim, decision)
    assert (claim.slot, claim.generation) == (1, 1)
    assert (decision.slot, decision.generation, decision.checkpoint_id) == (2, 1, 1)
    assert (decision.kind, decision.commit_point) == (SAVEPOINT, cut.commit_point)
    assert store.manifests.read(CheckpointId(1), decision.manifest_sha256) == cut
    assert store.attempts.read(CheckpointId(1)).started_at_ms == cut.started_at_ms


def test_numbers_that_any_process_has_taken_are_passed_over(
    store: PipelineStore, backend: FaultyBackend
) -> None:
    taken = Attempt(CheckpointId(5), Generation(7), SAVEPOINT, 0)
    store.attempts.reserve(taken)
    claim = claim_next(store, store.log.read())
    other = replace(taken, checkpoint_id=CheckpointId(6))
    backend.meanwhile.append(lambda: PipelineStore.of(backend, PIPELINE).attempts.reserve(other))

    decision, _ = decide_cut(store, claim, SAVEPOINT, made)

    assert decision.checkpoint_id == 7


def test_the_process_that_claims_first_has_the_pipeline(store: PipelineStore) -> None:
    theirs = PipelineStore.of(store.backend, PIPELINE)
    read = store.log.read()
    claim_next(theirs, read)

    with pytest.raises(Fenced):
        claim_next(store, read)


def test_a_process_that_was_fenced_out_decides_nothing(store: PipelineStore) -> None:
    claim = claim_next(store, LogView())
    PipelineStore.of(store.backend, PIPELINE).log.create(Claim(Slot(2), Generation(2), "theirs"))

    with pytest.raises(Fenced):
        decide_cut(store, claim, SAVEPOINT, made)
    assert store.log.read().decisions == ()


def test_what_may_or_may_not_be_written_is_said_so(
    store: PipelineStore, backend: FaultyBackend
) -> None:
    backend.before_create.append(Unavailable("log", "it is away"))

    with pytest.raises(OutcomeUnknown, match="the next run finds out"):
        claim_next(store, LogView())
