"""`cutwater checkpoints`: what a store holds, without Spark and without a running pipeline."""

import os
import socket
import time
from pathlib import Path

import pytest
from tests.cli.offline_store import OfflineStore
from tests.unit.store.checkpoint_writer import BEGAN_MS, ORDERS, attempt_report, step_report
from tests.unit.store.cuts import PIPELINE, sample_recovery
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.records.lease import Lease
from cutwater.store.records.reports import AttemptStatus

SAVEPOINT, FULL, REWIND = CheckpointKind.SAVEPOINT, CheckpointKind.FULL, CheckpointKind.REWIND
FIELDS = {
    "id",
    "status",
    "checkpoint_type",
    "trigger_timestamp",
    "end_to_end_duration",
    "checkpointed_size",
    "state_size",
    "persisted_data",
    "failure_message",
    "tasks",
}


@pytest.fixture
def stored(tmp_path: Path) -> OfflineStore:
    """Checkpoints of every kind, an attempt that failed, a savepoint, a rewind; two recoveries."""
    found = OfflineStore(tmp_path / "store")
    writer = found.writer
    writer.decide(1)
    writer.decide(2, SAVEPOINT, name="before")
    writer.attempt(3)
    writer.store.reports.write(
        attempt_report(3, status=AttemptStatus.FAILED, failure="the deadline passed")
    )
    writer.decide(4, in_flight=True)
    writer.decide(5, FULL)
    writer.decide(6, REWIND, origin=2)
    for number in (1, 2, 4):
        writer.store.reports.write(attempt_report(number))
    writer.store.reports.write(sample_recovery())
    return found


def alive() -> Lease:
    return Lease(socket.gethostname(), os.getppid(), "nonce", int(time.time() * 1000))


# -- list


def test_the_list_has_everything_in_order_by_the_names_that_flink_uses(
    stored: OfflineStore,
) -> None:
    listed = stored.json("checkpoints", "list", "orders")
    checkpoints = {checkpoint["id"]: checkpoint for checkpoint in listed["checkpoints"]}

    assert list(checkpoints) == [1, 2, 3, 4, 5, 6]
    assert all(set(checkpoint) >= FIELDS for checkpoint in checkpoints.values())
    assert [checkpoint["status"] for checkpoint in checkpoints.values()] == [
        *("COMPLETED", "COMPLETED", "FAILED"),
        *("COMPLETED", "COMPLETED", "COMPLETED"),
    ]
    assert [checkpoint["checkpoint_type"] for checkpoint in checkpoints.values()] == [
        *("CHECKPOINT", "SAVEPOINT", "CHECKPOINT"),
        *("UNALIGNED_CHECKPOINT", "CHECKPOINT", "CHECKPOINT"),
    ]
    assert checkpoints[3]["failure_message"] == "the deadline passed"
    assert checkpoints[4]["persisted_data"] == 30
    assert checkpoints[4]["trigger_timestamp"] == BEGAN_MS + 4000
    assert checkpoints[4]["end_to_end_duration"] == 250
    assert checkpoints[4]["checkpointed_size"] == 11
    # Size of the state files of both steps, as they were put there, and what was in flight.
    assert checkpoints[4]["state_size"] == len("orders 4") + len("shared") + 4 + 30
    assert checkpoints[4]["tasks"]["orders"]["alignment_duration"] == 7
    assert checkpoints[4]["tasks"]["totals"]["in_flight_events"] == 1
    assert checkpoints[5]["end_to_end_duration"] is None
    assert (checkpoints[6]["rewinds_to"], checkpoints[6]["is_current"]) == (1, True)
    (recovery,) = listed["recoveries"]
    assert (recovery["generation"], recovery["checkpoint_id"]) == (3, 12)
    phases = ("choose", "commit_replay", "fetch", "start", "first_batch")
    assert [recovery[phase] for phase in phases] == [1, 2, 3, 4, 5]


def test_people_get_a_table_with_the_newest_last(stored: OfflineStore) -> None:
    result = stored.run("checkpoints", "list", "orders")
    lines = result.output.splitlines()

    assert result.exit_code == 0
    assert [line.split()[0] for line in lines[:7]] == ["id", "1", "2", "3", "4", "5", "6"]
    assert "before" in lines[2]
    assert "the deadline passed" in lines[3]
    assert "rewind to checkpoint 1" in lines[6]
    assert "the current checkpoint" in lines[6]
    assert "Last recovery: generation 3 began from checkpoint 12 at " in result.output
    assert (
        "commit replay 2 ms (6 commits), fetch 3 ms (0 B from the store, 0 B found here)"
        in result.output
    )
    assert f"orders ({PIPELINE}) does not run." in result.output


def test_an_attempt_of_a_process_that_lives_is_in_progress(stored: OfflineStore) -> None:
    stored.writer.attempt(7)
    before = stored.json("checkpoints", "list", "orders")["checkpoints"][-1]
    stored.hold(alive())

    after = stored.json("checkpoints", "list", "orders")["checkpoints"][-1]

    assert (before["status"], after["status"]) == ("FAILED", "IN_PROGRESS")
    assert f"is run by process {os.getppid()}" in stored.run("checkpoints", "list", "orders").output


def test_a_pipeline_may_be_named_by_its_uuid(stored: OfflineStore) -> None:
    assert stored.json("checkpoints", "list", str(PIPELINE)) == stored.json(
        "checkpoints", "list", "orders"
    )


def test_a_pipeline_without_checkpoints_says_so(tmp_path: Path) -> None:
    empty = OfflineStore(tmp_path / "store")

    assert "has taken no checkpoint yet" in empty.run("checkpoints", "list", "orders").output
    assert empty.json("checkpoints", "list", "orders") == {"checkpoints": [], "recoveries": []}
    assert empty.run("checkpoints", "verify", "orders").exit_code == 2


def test_an_unknown_name_lists_what_the_store_holds(stored: OfflineStore) -> None:
    result = stored.run("checkpoints", "list", "order")

    assert result.exit_code == 2
    assert "has no 'order'; it has orders." in result.stderr


def test_a_store_that_is_not_there_is_not_made(stored: OfflineStore, tmp_path: Path) -> None:
    stored.directory = tmp_path / "nowhere"

    result = stored.run("checkpoints", "list", "orders")

    assert result.exit_code == 2
    assert "there is no store" in result.stderr
    assert not stored.directory.exists()


# -- show


def test_one_is_shown_step_by_step_by_its_number_or_its_name(stored: OfflineStore) -> None:
    by_name = stored.run("checkpoints", "show", "orders", "before")
    shown = stored.json("checkpoints", "show", "orders", "2")["checkpoint"]

    assert by_name.exit_code == 0
    assert "checkpoint 2: COMPLETED, savepoint before" in by_name.output
    assert "sinks: table at 2" in by_name.output
    assert 'orders at {"at":2}' in by_name.output
    assert shown["name"] == "before"
    assert shown["tasks"]["orders"]["offsets"] == {"orders": '{"at":2}'}
    assert shown["tasks"]["totals"]["positions"] == {"0:orders": 2}


def test_an_attempt_that_failed_can_be_shown_too(stored: OfflineStore) -> None:
    result = stored.run("checkpoints", "show", "orders", "3")

    assert (result.exit_code, "the deadline passed" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [("99", "no checkpoint 99; it has 1 to 6"), ("after", "its savepoints: before")],
)
def test_one_that_is_not_there_is_an_error_that_says_what_is(
    stored: OfflineStore, name: str, said: str
) -> None:
    result = stored.run("checkpoints", "show", "orders", name)

    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_damaged_lease_does_not_stop_read_only_commands(stored: OfflineStore) -> None:
    stored.backend.put(stored.writer.paths.heartbeat, b"damaged")

    listed = stored.run("checkpoints", "list", "orders")

    assert listed.exit_code == 0
    assert f"It is unknown whether orders ({PIPELINE}) runs: its lease" in listed.output
    asked = stored.run("checkpoint", "orders")
    assert (asked.exit_code, "its lease cannot be read" in asked.stderr) == (1, True)
    pruned = stored.run("checkpoints", "prune", "orders", "--keep", "1", "--yes")
    assert pruned.exit_code == 3
    assert (
        f"[CW-613] it is unknown whether pipeline orders runs: {stored.writer.paths.heartbeat}"
        in (pruned.stderr)
    )


# -- verify


def test_sound_checkpoints_are_sound(stored: OfflineStore) -> None:
    verified = stored.json("checkpoints", "verify", "orders", "--all")
    head = stored.json("checkpoints", "verify", "orders")

    assert verified["sound"] is True
    assert [checkpoint["id"] for checkpoint in verified["checkpoints"]] == [1, 2, 4, 5, 6]
    assert [checkpoint["id"] for checkpoint in head["checkpoints"]] == [6]
    assert (
        "checkpoint 6 is sound: 3 objects read."
        in stored.run("checkpoints", "verify", "orders").output
    )


@pytest.mark.parametrize("change", ["flipped", "longer", "removed"])
def test_a_damaged_object_is_named_and_only_those_that_need_it_are_bad(
    stored: OfflineStore, change: str
) -> None:
    ref = stored.writer.blob("orders 2")
    file = stored.directory / ref.name
    if change == "removed":
        file.unlink()
    else:
        file.write_bytes(b"orderS 2" if change == "flipped" else b"orders 2!")

    said = stored.run("checkpoints", "verify", "orders", "before", "1")
    verified = stored.json("checkpoints", "verify", "orders", "--all", exit_code=1)

    assert said.exit_code == 1
    assert f"checkpoint 2 (before) is DAMAGED: {ref.name}: " in said.output
    assert "checkpoint 1 is sound" in said.output
    bad = [checkpoint for checkpoint in verified["checkpoints"] if not checkpoint["sound"]]
    assert [entry["id"] for entry in bad] == [2]
    assert [damage["object"] for damage in bad[0]["damages"]] == [ref.name]


def test_a_damaged_manifest_is_named(stored: OfflineStore) -> None:
    path = stored.writer.paths.manifest(CheckpointId(6))
    stored.backend.put(path, b"damaged")

    verified = stored.json("checkpoints", "verify", "orders", exit_code=1)

    assert verified["checkpoints"][0]["damages"][0]["object"] == path
    assert "manifest is damaged" in stored.run("checkpoints", "list", "orders").output
    assert stored.run("checkpoints", "diff", "orders", "1", "6").exit_code == 2


def test_a_checkpoint_that_is_no_longer_kept_is_gone_and_not_damaged(stored: OfflineStore) -> None:
    stored.backend.delete(stored.writer.paths.manifest(CheckpointId(1)))

    said = stored.run("checkpoints", "verify", "orders", "1")
    verified = stored.json("checkpoints", "verify", "orders", "1", exit_code=1)

    assert said.exit_code == 1
    assert "checkpoint 1 has been deleted" in said.output
    (found,) = verified["checkpoints"]
    assert (found["sound"], found["discarded"], found["damages"]) == (False, True, [])
    assert stored.run("checkpoints", "verify", "orders", "--all").exit_code == 0


def test_all_and_a_list_contradict_each_other(stored: OfflineStore) -> None:
    assert stored.run("checkpoints", "verify", "orders", "1", "--all").exit_code == 2


# -- diff


def test_a_difference_says_what_moved_and_which_objects_came_and_went(stored: OfflineStore) -> None:
    said = stored.run("checkpoints", "diff", "orders", "before", "4")
    found = stored.json("checkpoints", "diff", "orders", "before", "4")

    assert found["steps"]["orders"]["batch"] == [2, 4]
    assert found["steps"]["orders"]["offsets"] == {"orders": ['{"at":2}', '{"at":4}']}
    assert found["steps"]["totals"]["positions"] == {"0:orders": [2, 3]}
    assert found["steps"]["totals"]["watermark"] == [BEGAN_MS + 2, BEGAN_MS + 4]
    assert found["steps"]["totals"]["state_size"] == [2, 4]
    assert found["sinks"] == {"table": ["2", "4"]}
    # Both have "shared"; the later one has rows in flight as well.
    assert found["objects"] == {
        "added": 3,
        "added_size": len("orders 4") + 4 + len("in flight 4"),
        "removed": 2,
        "removed_size": len("orders 2") + 2,
        "shared": 1,
    }
    assert "From checkpoint 2 to 4, 2.0 s later:" in said.output
    assert "sink table: 2 -> 4" in said.output
    assert "3 objects added (23 B), 2 removed (10 B), 1 are shared." in said.output


def test_a_difference_counts_the_rows_of_steps_and_sinks(tmp_path: Path) -> None:
    stored = OfflineStore(tmp_path)
    for number, rows in ((1, 0), (2, 30), (3, 12)):
        stored.writer.decide(number, rows=rows)
    for number, rows in ((1, 100), (3, 175)):
        steps = {ORDERS: step_report(rows=rows)}
        stored.writer.store.reports.write(attempt_report(number, steps=steps))

    there = stored.json("checkpoints", "diff", "orders", "1", "latest")
    back = stored.json("checkpoints", "diff", "orders", "3", "1")
    said = stored.run("checkpoints", "diff", "orders", "1", "3")
    stored.backend.delete(stored.writer.paths.manifest(CheckpointId(2)))
    pruned = stored.json("checkpoints", "diff", "orders", "1", "3")

    # There is no report of the other step.
    assert there["rows"] == {"orders": 75, "totals": None}
    assert (there["sink_rows"], back["sink_rows"]) == ({"table": 42}, {"table": -42})
    assert "+75" in said.output
    assert "sink table: 1 -> 3, 42 rows" in said.output
    assert pruned["sink_rows"] is None


# -- prune


def manifests(stored: OfflineStore) -> list[int]:
    return list(stored.writer.store.manifests.ids())


def test_nothing_is_deleted_without_yes(stored: OfflineStore) -> None:
    before = sorted(stored.directory.rglob("*"))

    said = stored.run("checkpoints", "prune", "orders", "--keep", "1")
    shown = stored.json("checkpoints", "prune", "orders", "--keep", "1")

    assert "Checkpoints to delete: 1, 4, 5." in said.output
    assert "Checkpoints kept: 2, 6." in said.output
    assert "Nothing was deleted" in said.output
    assert (shown["deleted"], shown["checkpoints"], shown["keep"]) == (False, [1, 4, 5], [2, 6])
    assert sorted(stored.directory.rglob("*")) == before


def test_what_was_shown_goes_with_yes_and_the_rest_is_sound(stored: OfflineStore) -> None:
    stored.writer.blob("left by an attempt that failed")
    shown = stored.json("checkpoints", "prune", "orders", "--keep", "1")
    done = stored.json("checkpoints", "prune", "orders", "--keep", "1", "--yes")
    again = stored.run("checkpoints", "prune", "orders", "--keep", "1", "--yes")

    assert {**shown, "deleted": True} == done
    assert done["orphans"] == 1
    assert manifests(stored) == [2, 6]
    assert stored.json("checkpoints", "verify", "orders", "--all")["sound"] is True
    assert "Checkpoints deleted: none." in again.output
    listed = stored.json("checkpoints", "list", "orders")["checkpoints"]
    assert [entry["id"] for entry in listed] == [2, 6]
    everything = stored.json("checkpoints", "list", "orders", "--all")["checkpoints"]
    assert [entry["id"] for entry in everything if entry["discarded"]] == [1, 4, 5]
    # The lease it held meanwhile is given back.
    assert "does not run." in stored.run("checkpoints", "list", "orders").output


def test_a_running_pipeline_is_not_pruned_by_others(stored: OfflineStore) -> None:
    stored.hold(alive())

    result = stored.run("checkpoints", "prune", "orders", "--keep", "1", "--yes")

    assert (result.exit_code, "CW-604" in result.stderr) == (3, True)
    assert manifests(stored) == [1, 2, 4, 5, 6]


def test_a_savepoint_goes_only_when_it_is_named(stored: OfflineStore) -> None:
    stored.json("checkpoints", "prune", "orders", "--savepoint", "before")
    before = manifests(stored)

    said = stored.run("checkpoints", "prune", "orders", "--savepoint", "before", "--yes")

    assert "Checkpoints deleted: 2." in said.output
    assert before == [1, 2, 4, 5, 6]
    assert manifests(stored) == [1, 4, 5, 6]
    # Its name is free again, and it cannot be given up twice.
    again = stored.run("checkpoints", "prune", "orders", "--savepoint", "before")
    assert (again.exit_code, "its savepoints: none" in again.stderr) == (2, True)
    wrong = stored.run("checkpoints", "prune", "orders", "--savepoint", "4")
    assert (wrong.exit_code, "checkpoint 4 is not a savepoint" in wrong.stderr) == (2, True)


def test_a_savepoint_that_cannot_be_read_blocks_until_its_number_is_named(
    stored: OfflineStore,
) -> None:
    stored.backend.put(stored.writer.paths.manifest(CheckpointId(2)), b"damaged")

    blocked = stored.run("checkpoints", "prune", "orders", "--keep", "1", "--yes")
    untouched = manifests(stored)
    done = stored.json("checkpoints", "prune", "orders", "--keep", "1", "--savepoint", "2", "--yes")

    assert (blocked.exit_code, "checkpoint 2 is kept" in blocked.output) == (1, True)
    assert untouched == [1, 2, 4, 5, 6]
    assert done["checkpoints"] == [1, 2, 4, 5]
    assert manifests(stored) == [6]


def test_a_savepoint_of_a_running_pipeline_is_given_up_and_left_to_its_driver(
    stored: OfflineStore,
) -> None:
    stored.hold(alive())

    shown = stored.run("checkpoints", "prune", "orders", "--savepoint", "before")
    said = stored.run("checkpoints", "prune", "orders", "--savepoint", "before", "--yes")

    assert "Nothing was changed" in shown.output
    assert "deleted after the next checkpoint" in said.output
    assert stored.writer.store.savepoints.dropped() == {2}
    assert manifests(stored) == [1, 2, 4, 5, 6]
    again = stored.run("checkpoints", "prune", "orders", "--savepoint", "2", "--output", "json")
    assert again.exit_code == 0


@pytest.mark.parametrize("arguments", [["checkpoints"], ["checkpoints", "--help"]])
def test_help_says_what_each_command_does(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)

    for name in ("list", "show", "verify", "diff", "prune"):
        assert name in result.output
