"""Savepoints: names that mean one thing, and cuts that their owner has given up."""

import pytest
from tests.unit.store.faulty import FaultyBackend
from tests.unit.store.made import MadeStore, attempt_report

from cutwater.errors import ConfigError, Corrupt
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.paths import object_path
from cutwater.store.records.savepoints import NAME_LENGTH_MAX, savepoint_name

SAVEPOINT = CheckpointKind.SAVEPOINT


@pytest.fixture
def made() -> MadeStore:
    return MadeStore(FaultyBackend())


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


def test_names_are_those_of_savepoints_that_were_not_given_up(made: MadeStore) -> None:
    made.decide(1, SAVEPOINT, name="first")
    made.decide(2)
    made.decide(3, SAVEPOINT, name="second")
    savepoints, log = made.store.savepoints, made.store.log.read()

    before = savepoints.names(log)
    savepoints.drop(CheckpointId(1))
    savepoints.drop(CheckpointId(1))

    assert before == {1: "first", 3: "second"}
    assert savepoints.names(log) == {3: "second"}
    assert savepoints.dropped() == {1}


def test_a_manifest_is_read_once_for_its_name(made: MadeStore) -> None:
    made.decide(1, SAVEPOINT, name="first")
    backend = made.backend
    assert isinstance(backend, FaultyBackend)
    log = made.store.log.read()

    made.store.savepoints.names(log)
    backend.reads.clear()

    assert made.store.savepoints.names(log) == {1: "first"}
    assert backend.reads == []


def test_a_damaged_savepoint_is_known_by_its_report_or_by_its_number_alone(
    made: MadeStore,
) -> None:
    for number in (1, 2):
        made.decide(number, SAVEPOINT, name=f"name {number}")
        made.backend.put(made.paths.manifest(CheckpointId(number)), b"damaged")
    made.store.reports.write(attempt_report(1, name="first"))

    assert made.store.savepoints.names(made.store.log.read()) == {1: "first", 2: None}


def test_something_else_among_them_is_noticed(made: MadeStore) -> None:
    made.backend.put(object_path(f"{made.paths.all_dropped}/else"), b"")

    with pytest.raises(Corrupt):
        made.store.savepoints.dropped()
