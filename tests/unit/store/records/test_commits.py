"""Records of commits: the versions of the original commit, whichever process records them."""

import pytest
from tests.unit.store.cuts import PIPELINE, sample_committed
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Conflict, NotFound, OutcomeUnknown
from cutwater.ids import Slot
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.commits import Commits

PATH = PipelinePaths(PIPELINE).committed(Slot(2))


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def commits(backend: FaultyBackend) -> Commits:
    return Commits(backend, PIPELINE)


def test_nothing_is_committed_at_the_beginning(commits: Commits) -> None:
    assert commits.newest() is None
    assert commits.slots() == ()
    with pytest.raises(NotFound, match=PATH):
        commits.read(Slot(2))


def test_the_newest_record_is_that_of_the_highest_slot(commits: Commits) -> None:
    for slot in (2, 10**12, 5):
        commits.record(sample_committed(slot, f"v{slot}"))

    assert commits.newest() == sample_committed(10**12, f"v{10**12}")
    assert commits.slots() == (2, 5, 10**12)
    assert commits.read(Slot(5)) == sample_committed(5, "v5")


def test_a_commit_may_be_recorded_again_after_lost_answers(
    backend: FaultyBackend, commits: Commits
) -> None:
    backend.after_create += [OutcomeUnknown(PATH, "the answer was lost")] * 2
    with pytest.raises(OutcomeUnknown):
        commits.record(sample_committed())

    commits.record(sample_committed())

    assert commits.read(Slot(2)) == sample_committed()


def test_a_commit_keeps_the_versions_of_the_original(commits: Commits) -> None:
    """Rule F41: a sink that acts again names the version of its first commit."""
    commits.record(sample_committed(2, "7"))

    with pytest.raises(Conflict, match=PATH):
        commits.record(sample_committed(2, "8"))
    assert commits.read(Slot(2)) == sample_committed(2, "7")
