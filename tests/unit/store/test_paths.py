"""Paths: one module formats them, the same module parses them, and both agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.cuts import PIPELINE, STEADY

from cutwater.errors import ConfigError, Corrupt, InvalidPath
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot, StepId
from cutwater.store.paths import (
    PART_LENGTH_MAX,
    PATH_LENGTH_MAX,
    ObjectPath,
    PipelinePaths,
    label_of,
    name,
    object_path,
    probe_object,
)

PATHS = PipelinePaths(PIPELINE)
ROOT = f"pipelines/{PIPELINE}"
SHA = "5ca1ab1e" * 8


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PATHS.log_entry(Slot(1)), "log/000000000001"),
        (PATHS.manifest(CheckpointId(12)), "manifests/000000000012"),
        (PATHS.attempt(CheckpointId(12)), "attempts/000000000012"),
        (PATHS.committed(Slot(2)), "committed/000000000002"),
        (PATHS.blob(Generation(3), SHA), f"blobs/000000000003/{SHA}"),
        (
            PATHS.staged_file(Generation(3), SinkId("my table"), BatchId(0), "k=1/p 0"),
            "staged/000000000003/my%20table/000000000000/k%3D1%2Fp%200",
        ),
        (PATHS.heartbeat, "lease/heartbeat"),
        (PATHS.dropped(CheckpointId(12)), "dropped/000000000012"),
        (PATHS.report(CheckpointId(12)), "reports/000000000012"),
        (PATHS.recovery(Generation(3)), "recoveries/000000000003"),
        (
            PATHS.start(CheckpointId(4), StepId("orders"), 1, "5ca1"),
            "starts/000000000004/orders/000000000001-5ca1",
        ),
        (PATHS.asked("5ca1ab1e"), "requests/5ca1ab1e.asked"),
        (PATHS.answer("5ca1ab1e"), "requests/5ca1ab1e.answer"),
    ],
)
def test_everything_of_a_pipeline_lies_under_its_uuid(path: ObjectPath, expected: str) -> None:
    assert path == f"{ROOT}/{expected}"


def test_the_prefix_of_a_kind_is_the_directory_of_its_objects() -> None:
    slot, number, generation = Slot(7), CheckpointId(7), Generation(7)

    assert PATHS.log_entry(slot).startswith(f"{PATHS.log_entries}/")
    assert PATHS.manifest(number).startswith(f"{PATHS.manifests}/")
    assert PATHS.attempt(number).startswith(f"{PATHS.attempts}/")
    assert PATHS.committed(slot).startswith(f"{PATHS.commits}/")
    assert PATHS.blob(generation, SHA).startswith(f"{PATHS.blobs}/")
    staged = PATHS.staged_file(generation, SinkId("t"), BatchId(1), "f")
    assert staged.startswith(f"{PATHS.staged_files}/")
    assert PATHS.dropped(number).startswith(f"{PATHS.all_dropped}/")
    assert PATHS.report(number).startswith(f"{PATHS.reports}/")
    assert PATHS.recovery(generation).startswith(f"{PATHS.recoveries}/")
    assert PATHS.asked("token").startswith(f"{PATHS.requests}/")
    assert PATHS.answer("token").startswith(f"{PATHS.requests}/")


@pytest.mark.parametrize("number", [0, 1, 999_999_999_999, 10**12, 2**64 - 1])
def test_a_number_is_read_back_from_its_path(number: int) -> None:
    staged = PATHS.staged_file(Generation(number), SinkId("t"), BatchId(5), "f")

    assert PATHS.slot_of_log_entry(PATHS.log_entry(Slot(number))) == number
    assert PATHS.id_of_manifest(PATHS.manifest(CheckpointId(number))) == number
    assert PATHS.id_of_attempt(PATHS.attempt(CheckpointId(number))) == number
    assert PATHS.slot_of_commit(PATHS.committed(Slot(number))) == number
    assert PATHS.generation_of_blob(PATHS.blob(Generation(number), SHA)) == number
    assert PATHS.generation_of_staged_file(staged) == number
    assert PATHS.id_of_dropped(PATHS.dropped(CheckpointId(number))) == number
    assert PATHS.generation_of_recovery(PATHS.recovery(Generation(number))) == number
    assert PATHS.generation_of_targets(PATHS.targets(Generation(number))) == number


def test_a_token_is_read_back_from_both_of_its_paths() -> None:
    assert PATHS.token_of(PATHS.asked("5ca1ab1e")) == "5ca1ab1e"
    assert PATHS.token_of(PATHS.answer("5ca1ab1e")) == "5ca1ab1e"


def test_names_sort_like_the_numbers_in_them() -> None:
    slots = [Slot(number) for number in (1, 2, 9, 10, 11, 99, 100)]

    assert sorted(PATHS.log_entry(slot) for slot in slots) == [
        PATHS.log_entry(slot) for slot in slots
    ]


@pytest.mark.parametrize(
    "path",
    [
        f"{ROOT}/log/1",
        f"{ROOT}/log/0000000000001",
        f"{ROOT}/log/00000000000x",
        f"{ROOT}/log/000000000001.bak",
        f"{ROOT}/log/000000000001/000000000001",
        f"{ROOT}/log",
        f"{ROOT}/manifests/000000000001",
        "pipelines/another/log/000000000001",
        "000000000001/x",
    ],
)
def test_a_name_that_would_never_be_made_is_not_parsed(path: str) -> None:
    with pytest.raises(Corrupt, match=path):
        PATHS.slot_of_log_entry(ObjectPath(path))


def test_a_blob_is_two_parts_deep() -> None:
    with pytest.raises(Corrupt):
        PATHS.generation_of_blob(ObjectPath(f"{ROOT}/blobs/000000000003"))


def test_a_negative_number_has_no_path() -> None:
    with pytest.raises(InvalidPath, match="-1"):
        PATHS.log_entry(Slot(-1))


def test_a_pipeline_id_that_leaves_its_place_has_no_path() -> None:
    with pytest.raises(InvalidPath):
        PipelinePaths(PipelineId("../other")).log_entry(Slot(1))


@pytest.mark.parametrize("text", ["a/" * PATH_LENGTH_MAX, "a" * (PART_LENGTH_MAX + 1), "a//b", "."])
def test_a_text_that_a_backend_cannot_hold_is_no_path(text: str) -> None:
    with pytest.raises(InvalidPath):
        object_path(text)


@STEADY
@given(st.text(min_size=1, max_size=20))
def test_every_name_of_a_pipeline_has_a_path_of_its_own(label: str) -> None:
    path = name(label)

    assert object_path(path) == path
    assert path.count("/") == 1
    assert label_of(path) == label


@pytest.mark.parametrize("label", ["", "é" * (PART_LENGTH_MAX // 6 + 1), "\udcff"])
def test_a_name_that_cannot_be_a_path_is_the_users_to_change(label: str) -> None:
    with pytest.raises(ConfigError, match="pipeline name"):
        name(label)


def test_a_name_like_a_hidden_file_is_not_hidden() -> None:
    assert name("..") == "names/%2E."


def test_a_probe_has_a_place_of_its_own() -> None:
    assert probe_object("token") == "probes/token"
