"""Attempts: a number is taken by one process, and every attempt leaves a trace."""

import pytest
from tests.unit.store.cuts import PIPELINE, sample_attempt
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Corrupt, NotFound, OutcomeUnknown
from cutwater.ids import NO_CHECKPOINT, CheckpointId
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.attempts import Attempts

PATH = PipelinePaths(PIPELINE).attempt(CheckpointId(12))


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def attempts(backend: FaultyBackend) -> Attempts:
    return Attempts(backend, PIPELINE)


def test_a_number_is_taken_once(attempts: Attempts) -> None:
    """Invariant 8, also between two processes that both think they own the pipeline."""
    assert attempts.reserve(sample_attempt(12, generation=3))
    assert not attempts.reserve(sample_attempt(12, generation=4))
    assert attempts.read(CheckpointId(12)) == sample_attempt(12, generation=3)


def test_a_number_that_was_taken_by_a_lost_answer_is_still_ours(
    backend: FaultyBackend, attempts: Attempts
) -> None:
    backend.after_create.append(OutcomeUnknown(PATH, "the answer was lost"))
    with pytest.raises(OutcomeUnknown):
        attempts.reserve(sample_attempt())

    assert attempts.reserve(sample_attempt())


def test_the_highest_number_is_the_highest_that_was_taken(attempts: Attempts) -> None:
    before = attempts.highest()
    for number in (7, 10**12, 12):
        attempts.reserve(sample_attempt(number))

    assert before == NO_CHECKPOINT
    assert attempts.highest() == 10**12


def test_a_number_that_was_not_taken_is_not_found(attempts: Attempts) -> None:
    with pytest.raises(NotFound, match=PATH):
        attempts.read(CheckpointId(12))


def test_something_else_among_the_attempts_is_an_error(
    backend: FaultyBackend, attempts: Attempts
) -> None:
    backend.put(ObjectPath(f"{PATH}.bak"), b"")

    with pytest.raises(Corrupt, match="bak"):
        attempts.highest()


def test_all_numbers_that_were_taken_are_listed_in_order(attempts: Attempts) -> None:
    for number in (12, 3, 7):
        attempts.reserve(sample_attempt(number))

    assert attempts.ids() == (3, 7, 12)
