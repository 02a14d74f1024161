"""Where sinks write, and where a fork comes from: written once, read by whoever moves in time."""

import pytest
from tests.unit.store.cuts import PIPELINE, TABLE, sample_origin, sample_targets

from cutwater.errors import Conflict, Corrupt
from cutwater.ids import Generation
from cutwater.store.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.targets import StoredTarget, Targets, read_origin, record_origin

PATHS = PipelinePaths(PIPELINE)
ELSEWHERE = {TABLE: StoredTarget("delta", "/elsewhere")}


@pytest.fixture
def targets() -> Targets:
    return Targets(MemoryBackend(), PIPELINE)


def test_a_pipeline_that_never_ran_has_no_targets(targets: Targets) -> None:
    assert targets.newest() is None
    assert targets.read(Generation(1)) is None
    assert targets.since(Generation(0)) == ()


def test_the_targets_of_every_generation_are_kept(targets: Targets) -> None:
    targets.record(Generation(1), sample_targets())
    targets.record(Generation(3), ELSEWHERE)

    assert targets.read(Generation(1)) == sample_targets()
    assert targets.newest() == ELSEWHERE
    assert targets.since(Generation(1)) == (sample_targets(), ELSEWHERE)
    assert targets.since(Generation(2)) == (ELSEWHERE,)


def test_what_a_generation_wrote_to_is_said_once(targets: Targets) -> None:
    targets.record(Generation(1), ELSEWHERE)
    targets.record(Generation(1), ELSEWHERE)

    with pytest.raises(Conflict):
        targets.record(Generation(1), sample_targets())


def test_a_target_is_the_same_place_however_it_is_opened() -> None:
    partitioned = StoredTarget("delta", "/elsewhere", {"partition_by": ("day",)})

    assert partitioned.place == ELSEWHERE[TABLE].place
    assert partitioned.place != StoredTarget("iceberg", "/elsewhere").place


def test_a_fork_remembers_its_origin_and_others_have_none() -> None:
    backend = MemoryBackend()
    assert read_origin(backend, PIPELINE) is None

    record_origin(backend, PIPELINE, sample_origin())

    assert read_origin(backend, PIPELINE) == sample_origin()


def test_an_origin_that_is_damaged_is_not_no_origin() -> None:
    backend = MemoryBackend()
    backend.put(PATHS.origin, b"something else")

    with pytest.raises(Corrupt):
        read_origin(backend, PIPELINE)
