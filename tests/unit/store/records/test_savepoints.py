"""Savepoints: names that mean one thing, and cuts that their owner has given up."""

import pytest
from tests.unit.store.checkpoint_writer import CheckpointWriter, attempt_report
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import ConfigError, Corrupt
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.paths import object_path
from cutwater.store.records.savepoints import (
    NAME_LENGTH_MAX,
    default_savepoint_name,
    savepoint_name,
)

SAVEPOINT = CheckpointKind.SAVEPOINT


@pytest.fixture
def writer() -> CheckpointWriter:
    return CheckpointWriter(FaultyBackend())


def test_a_savepoint_without_a_name_gets_one_that_is_allowed() -> None:
    assert savepoint_name(default_savepoint_name()).startswith("savepoint-2")


@pytest.mark.parametrize("name", ["a", "before-upgrade", "v1.2_x", "9lives", "x" * NAME_LENGTH_MAX])
def test_a_plain_word_can_be_a_name(name: str) -> None:
    assert savepoint_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "must be letters"),
        ("-x", "must be letters"),
        ("a/b", "must be letters"),
        ("x" * (NAME_LENGTH_MAX + 1), "101 characters"),
        ("12", "number of a checkpoint"),
        ("latest", "meaning of its own"),
        ("none", "meaning of its own"),
        ("2026-11-16", "moment in time"),
    ],
)
def test_a_name_that_could_mean_something_else_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        savepoint_name(name, "--name")

    assert raised.value.option == "--name"


def test_names_are_those_of_savepoints_that_were_not_given_up(writer: CheckpointWriter) -> None:
    writer.decide(1, SAVEPOINT, name="first")
    writer.decide(2)
    writer.decide(3, SAVEPOINT, name="second")
    savepoints, log = writer.store.savepoints, writer.store.log.read()

    before = savepoints.names(log)
    savepoints.drop(CheckpointId(1))
    savepoints.drop(CheckpointId(1))

    assert before == {1: "first", 3: "second"}
    assert savepoints.names(log) == {3: "second"}
    assert savepoints.dropped() == {1}


def test_a_manifest_is_read_once_for_its_name(writer: CheckpointWriter) -> None:
    writer.decide(1, SAVEPOINT, name="first")
    backend = writer.backend
    assert isinstance(backend, FaultyBackend)
    log = writer.store.log.read()

    writer.store.savepoints.names(log)
    backend.reads.clear()

    assert writer.store.savepoints.names(log) == {1: "first"}
    assert backend.reads == []


def test_a_damaged_savepoint_is_known_by_its_report_or_by_its_number_alone(
    writer: CheckpointWriter,
) -> None:
    for number in (1, 2):
        writer.decide(number, SAVEPOINT, name=f"name {number}")
        writer.backend.put(writer.paths.manifest(CheckpointId(number)), b"damaged")
    writer.store.reports.write(attempt_report(1, name="first"))

    assert writer.store.savepoints.names(writer.store.log.read()) == {1: "first", 2: None}


def test_something_else_among_them_is_noticed(writer: CheckpointWriter) -> None:
    writer.backend.put(object_path(f"{writer.paths.all_dropped}/else"), b"")

    with pytest.raises(Corrupt):
        writer.store.savepoints.dropped()
