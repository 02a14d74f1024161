"""Where sinks write, and where a fork comes from: written once, read by rewinds and forks."""

from dataclasses import replace

import pytest
from tests.unit.store.cuts import PIPELINE, TABLE, sample_origin, sample_targets

from cutwater.errors import Conflict, Corrupt
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Claim, Decision, LogView
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.targets import (
    IDENTITY,
    StoredTarget,
    Targets,
    moved_from,
    read_origin,
    record_origin,
)

PATHS = PipelinePaths(PIPELINE)
ELSEWHERE = {TABLE: StoredTarget("delta", "/elsewhere")}


def log_of(*generations: int, commit_point: bool = True) -> LogView:
    """A log with a decision of each generation."""
    return LogView(
        tuple(
            Decision(
                Slot(slot),
                Generation(generation),
                "",
                CheckpointKind.CHECKPOINT,
                CheckpointId(slot),
                "",
                commit_point,
            )
            for slot, generation in enumerate(generations, start=1)
        )
    )


@pytest.fixture
def targets() -> Targets:
    return Targets(MemoryBackend(), PIPELINE)


def test_a_pipeline_that_never_ran_has_no_targets(targets: Targets) -> None:
    assert targets.newest(LogView()) is None
    assert targets.read(Generation(1)) is None
    assert targets.since(LogView(), Generation(0)) == {}
    assert targets.possible(LogView()) == ()
    assert targets.last_recorded() == {}


def test_the_targets_of_every_generation_are_kept(targets: Targets) -> None:
    targets.record(Generation(1), sample_targets())
    targets.record(Generation(3), ELSEWHERE)
    log = log_of(1, 3)

    assert targets.read(Generation(1)) == sample_targets()
    assert targets.newest(log) == ELSEWHERE
    assert targets.since(log, Generation(1)) == {1: sample_targets(), 3: ELSEWHERE}
    assert targets.since(log, Generation(2)) == {3: ELSEWHERE}


def test_a_generation_that_decided_nothing_has_written_nowhere(targets: Targets) -> None:
    targets.record(Generation(1), sample_targets())
    targets.record(Generation(3), ELSEWHERE)

    assert targets.newest(log_of(1)) == sample_targets()
    assert targets.since(log_of(1), Generation(0)) == {1: sample_targets()}
    assert targets.possible(log_of(1)) == (sample_targets(),)


def test_the_newest_generation_may_write_before_it_has_decided(targets: Targets) -> None:
    targets.record(Generation(3), ELSEWHERE)
    log = LogView((Claim(Slot(1), Generation(3), ""),))

    assert targets.newest(log) is None
    assert targets.possible(log) == (ELSEWHERE,)


def test_what_was_recorded_last_may_have_been_shown_to_without_a_decision(targets: Targets) -> None:
    targets.record(Generation(9), sample_targets())
    targets.record(Generation(10), ELSEWHERE)

    assert targets.last_recorded() == ELSEWHERE


def test_without_a_commit_the_newest_decision_determines_the_targets(targets: Targets) -> None:
    """As in a pipeline that was adopted and never ran."""
    targets.record(Generation(1), sample_targets())
    targets.record(Generation(2), ELSEWHERE)

    assert targets.newest(log_of(1, commit_point=False)) == sample_targets()
    committed, later = log_of(1, 2).decisions
    log = LogView((committed, replace(later, commit_point=False)))
    assert targets.newest(log) == sample_targets()


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


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://b/t", "s3a://b/t/", True),
        ("s3://b/t", "s3://b//t?region=eu-west-1", True),
        ("s3://b/t?endpoint=http://a:1&region=x", "s3://b/t?endpoint=http://a:1", True),
        ("s3://b/t?endpoint=http://a:1", "s3://b/t?endpoint=http://a:2", False),
        ("s3://b/t", "s3://b/t2", False),
        ("s3://b/t", "gs://b/t", False),
        ("/data/t", "/data/t", True),
        ("/data/t", "/data/T", False),
    ],
)
def test_one_table_has_one_place_however_its_address_is_written(
    one: str, other: str, is_same: bool
) -> None:
    first, second = StoredTarget("delta", one), StoredTarget("delta", other)

    assert (first.place == second.place) == is_same
    assert first.place != StoredTarget("parquet", one).place


# -- one target by several names


def at(uri: str, identity: str | None = None) -> StoredTarget:
    return StoredTarget("postgres", uri, {} if identity is None else {"identity": (identity,)})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (at("postgresql://a:5432/db/t", "7/1/t"), at("postgresql://b:5432/db/t", "7/1/t"), True),
        (at("postgresql://a:5432/db/t", "7/1/t"), at("postgresql://a:5432/db/t", "8/1/t"), False),
        (at("postgresql://a:5432/db/t"), at("postgresql://a:5432/db/t", "7/1/t"), True),
        (at("postgresql://a:5432/db/t"), at("postgresql://b:5432/db/t", "7/1/t"), False),
        (at("postgresql://a:5432/db/t"), StoredTarget("delta", "postgresql://a:5432/db/t"), False),
    ],
    ids=["two names", "a name led elsewhere", "an older record", "not known", "another format"],
)
def test_targets_are_compared_by_what_they_are_where_that_is_known(
    one: StoredTarget, other: StoredTarget, same: bool
) -> None:
    assert one.is_same_as(other) is same
    assert other.is_same_as(one) is same


def test_a_target_that_was_moved_is_known_by_all_its_names() -> None:
    first, second, third = (
        at(f"postgresql://{name}:5432/db/t", number)
        for name, number in (("a", None), ("b", "7/1/t"), ("c", "8/1/t"))
    )
    second = moved_from(second, first)
    third = moved_from(third, second)

    assert first.is_same_as(second)
    assert third.is_same_as(first)
    assert second.is_same_as(third)
    assert third.options["also"] == (
        "7/1/t",
        "postgresql://a:5432/db/t?",
        "postgresql://b:5432/db/t?",
    )
    assert moved_from(first, first) == first


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("cluster/orders", "cluster/orders", True),
        ("cluster/orders", "cluster/alerts", False),
        ("cluster/*", "cluster/alerts", True),
        ("cluster/*", "cluster/*", True),
        ("cluster/*", "clusters/alerts", False),
    ],
)
def test_a_target_that_writes_to_any_topic_overlaps_all_of_its_cluster(
    one: str, other: str, overlap: bool
) -> None:
    first, second = (
        StoredTarget("kafka", f"kafka://{number}", {IDENTITY: (name,)})
        for number, name in enumerate((one, other))
    )

    assert first.overlaps(second) is overlap
    assert second.overlaps(first) is overlap
