"""Manifests: published once, named by hash, and never taken for another."""

from dataclasses import replace

import pytest
from tests.unit.store.cuts import PIPELINE, sample_cut, sample_identities
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Conflict, Corrupt, NotFound, OutcomeUnknown
from cutwater.ids import CheckpointId, StepId
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import digest
from cutwater.store.records.manifests import Manifests

PATH = PipelinePaths(PIPELINE).manifest(CheckpointId(12))
CUT = sample_cut()


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def manifests(backend: FaultyBackend) -> Manifests:
    return Manifests(backend, PIPELINE)


def test_a_manifest_is_found_by_its_number_and_hash(manifests: Manifests) -> None:
    sha256 = manifests.publish(CUT)

    assert manifests.read(CheckpointId(12), sha256) == CUT
    assert manifests.read(CheckpointId(12)) == CUT


def test_a_manifest_keeps_which_channels_are_by_reference(manifests: Manifests) -> None:
    identities = {
        step: replace(identity, by_reference=at == 0)
        for at, (step, identity) in enumerate(sorted(sample_identities().items()))
    }
    cut = replace(CUT, identities=identities)
    assert any(identity.by_reference for identity in identities.values())
    assert manifests.read(cut.checkpoint_id, manifests.publish(cut)) == cut


def test_the_hash_of_a_manifest_is_that_of_the_object(
    backend: FaultyBackend, manifests: Manifests
) -> None:
    assert manifests.publish(CUT) == digest(backend.read(PATH))


def test_one_lost_answer_is_settled_by_publishing_again(
    backend: FaultyBackend, manifests: Manifests
) -> None:
    backend.after_create.append(OutcomeUnknown(PATH, "the answer was lost"))

    assert manifests.read(CheckpointId(12), manifests.publish(CUT)) == CUT


def test_a_cut_may_be_published_again_after_lost_answers(
    backend: FaultyBackend, manifests: Manifests
) -> None:
    backend.after_create += [OutcomeUnknown(PATH, "the answer was lost")] * 2
    with pytest.raises(OutcomeUnknown):
        manifests.publish(CUT)

    assert manifests.read(CheckpointId(12), manifests.publish(CUT)) == CUT


def test_another_cut_under_the_same_number_is_a_conflict(manifests: Manifests) -> None:
    """Invariant 8: nothing is written twice under one number."""
    sha256 = manifests.publish(CUT)

    with pytest.raises(Conflict, match=PATH):
        manifests.publish(replace(CUT, started_at_ms=1))
    assert manifests.read(CheckpointId(12), sha256) == CUT


def test_a_manifest_other_than_the_decided_one_is_corrupt(manifests: Manifests) -> None:
    """Invariant 7: recovery trusts the decision, not what happens to lie there."""
    manifests.publish(CUT)

    with pytest.raises(Corrupt, match=PATH):
        manifests.read(CheckpointId(12), "5ca1ab1e" * 8)


def test_a_manifest_that_is_missing_and_one_that_is_torn_are_told_apart(
    backend: FaultyBackend, manifests: Manifests
) -> None:
    with pytest.raises(NotFound, match=PATH):
        manifests.read(CheckpointId(12))
    backend.put(PATH, b"torn")
    with pytest.raises(Corrupt, match=PATH):
        manifests.read(CheckpointId(12))


def test_all_manifests_are_listed_in_the_order_of_their_numbers(manifests: Manifests) -> None:
    for number in (10**12, 3, 11):
        manifests.publish(sample_cut(number))

    assert manifests.ids() == (3, 11, 10**12)


def test_something_else_among_the_manifests_is_an_error(
    backend: FaultyBackend, manifests: Manifests
) -> None:
    backend.put(ObjectPath(f"{PATH}.bak"), b"")

    with pytest.raises(Corrupt, match="bak"):
        manifests.ids()


@pytest.mark.parametrize("name", ["../orders", "/tmp/orders", ""])
def test_a_name_that_would_lead_out_of_a_directory_is_refused(
    manifests: Manifests, name: str
) -> None:
    step, snapshot = next(
        (key, snapshot) for key, snapshot in CUT.snapshots.items() if snapshot.has_events
    )
    recorded = snapshot.in_flight[0].events[0]
    stray_file = replace(recorded, event=replace(recorded.event, files=(name,)))
    stray_hash = replace(recorded, blobs=(replace(recorded.blobs[0], sha256=name),))
    strays = [
        replace(snapshot, step=StepId(name)),
        replace(snapshot, in_flight=(replace(snapshot.in_flight[0], events=(stray_file,)),)),
        replace(snapshot, in_flight=(replace(snapshot.in_flight[0], events=(stray_hash,)),)),
    ]

    for number, stray in enumerate(strays, start=100):
        bad = replace(CUT, checkpoint_id=CheckpointId(number), snapshots={step: stray})
        sha256 = manifests.publish(bad)
        with pytest.raises(Corrupt, match=f"manifests/0*{number}.*would lead out"):
            manifests.read(CheckpointId(number), sha256)
