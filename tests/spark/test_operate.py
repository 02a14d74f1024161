"""A running pipeline, operated from other processes through nothing but its store."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.cli.command import cutwater
from tests.spark.runs import DEADLINE_S, example, options, run, table, wait_until
from typer.testing import CliRunner, Result

from cutwater.cli.main import app
from cutwater.errors import RequestFailed, RunError, Unavailable
from cutwater.protocol.cut import BlobRef
from cutwater.runtime.reporting.status import RunStatus
from cutwater.store.blobs.blobs import Blobs


def test_a_running_pipeline_is_operated_through_its_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    union = example("union").create(total="1000000000", rate="800", table=str(tmp_path / "table"))
    running = union.start(spark, options(tmp_path))
    wait_until(running, has_committed_rows, "rows are committed")

    saved = ask(tmp_path, "savepoint", "union", "--name", "before")
    again = operate(tmp_path, "savepoint", "union", "--name", "before")
    full = ask(tmp_path, "checkpoint", "union", "--full")
    refused = operate(tmp_path, "checkpoints", "prune", "union", "--keep", "1", "--yes")
    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "store_tree", refuse)
        with pytest.raises(RunError, match=r"keeps running.*could not store its snapshot"):
            running.stop(savepoint="last")
    still = running.status().state
    may_store = threading.Event()
    with monkeypatch.context() as patched:
        store_tree = Blobs.store_tree
        patched.setattr(
            Blobs,
            "store_tree",
            lambda *one, **other: may_store.wait(DEADLINE_S) and store_tree(*one, **other),
        )
        wait_until(running, is_pending, "a checkpoint is pending")
        aborted = ask(tmp_path, "checkpoints", "abort", "union", "--reason", "a test wants it")
        may_store.set()
    with pytest.raises(RequestFailed, match=r"nothing was aborted: checkpoint 999 is not pending"):
        running.abort_checkpoint("a test wants it", 999, DEADLINE_S)
    stopped = ask(tmp_path, "stop", "union", "--savepoint", "last", "--drain")
    result = running.wait(DEADLINE_S)
    after = look(tmp_path, "checkpoints", "list", "union")
    verified = look(tmp_path, "checkpoints", "verify", "union", "--all")
    late = here(tmp_path, "stop", "union")
    shown = here(tmp_path, "checkpoints", "show", "union", str(aborted["checkpoint"]["id"]))

    # What was asked for has been taken, under the names and kinds that were asked for.
    taken = {checkpoint["id"]: checkpoint for checkpoint in after["checkpoints"]}
    assert saved["checkpoint"]["checkpoint_type"] == "SAVEPOINT"
    assert taken[saved["checkpoint"]["id"]]["name"] == "before"
    assert taken[full["checkpoint"]["id"]]["kind"] == "FULL"
    assert full["checkpoint"]["checkpointed_size"] == full["checkpoint"]["state_size"] > 0
    assert again.returncode == 1
    assert "there is a savepoint before already" in again.stdout
    assert (refused.returncode, "CW-604" in refused.stdout) == (3, True)
    assert verified["sound"] is True
    completed = {entry for entry in taken if taken[entry]["status"] == "COMPLETED"}
    assert {checkpoint["id"] for checkpoint in verified["checkpoints"]} == completed
    # A savepoint that could not be taken was no end, and its name was free for the next.
    assert still == "RUNNING"
    failures = {checkpoint["failure_message"] for checkpoint in after["checkpoints"]} - {None}
    assert any("could not store its snapshot" in failure for failure in failures)
    # One that was aborted has failed for that reason, and the pipeline went on.
    number = aborted["checkpoint"]["id"]
    why = "it was aborted on request (a test wants it)"
    assert (taken[number]["status"], taken[number]["failure_message"]) == ("FAILED", why)
    assert why in shown.stdout
    # The list is in order, and says of every step how it fared.
    assert list(taken) == sorted(taken)
    assert set(taken[full["checkpoint"]["id"]]["tasks"]) == {"web", "stores", "sales"}
    assert all(entry["end_to_end_duration"] is not None for entry in taken.values())
    (recovery,) = after["recoveries"]
    assert recovery["checkpoint_id"] is None
    assert recovery["first_batch"] > 0
    assert recovery["total"] >= recovery["start"] > 0
    # It ended with the savepoint, drained: nothing in flight, all that was read is in the table.
    assert result is not None
    last = taken[stopped["checkpoint"]["id"]]
    assert (stopped["stopped"], last["is_current"], last["name"]) == (True, True, "last")
    assert (result.finished, result.last_checkpoint) == (False, last["id"])
    assert last["persisted_data"] == 0
    read = {
        name: json.loads(offset)["sequence"]
        for name in ("web", "stores")
        for offset in last["tasks"][name]["offsets"].values()
    }
    assert table(tmp_path / "table", "channel", "value") == expected(read["web"], read["stores"])
    # A late request gets an error, and no request is left in the store.
    assert (late.exit_code, "CW-611" in late.stdout) == (1, True)
    (requests,) = tmp_path.glob("store/pipelines/*/requests")
    assert list(requests.iterdir()) == []

    # And it goes on from there, to the end, as if it had not been stopped.
    total = 2 * max(read.values()) + 1000
    more = example("union").create(total=str(total), rate="100000", table=str(tmp_path / "table"))
    finished = run(more, spark, options(tmp_path, available_now=True))
    recoveries = look(tmp_path, "checkpoints", "list", "union")["recoveries"]
    assert finished.finished
    assert table(tmp_path / "table", "channel", "value") == expected(total, total // 2)
    assert [recovery["checkpoint_id"] for recovery in recoveries] == [None, last["id"]]
    assert recoveries[1]["state_size"] == last["state_size"]
    assert recoveries[1]["first_batch"] is not None


def expected(web: int, stores: int) -> list[tuple[str, int]]:
    return [
        *(("store", number) for number in range(stores)),
        *(("web", number) for number in range(web)),
    ]


def refuse(*_: object) -> tuple[BlobRef, ...]:
    raise Unavailable("blobs", "the test has taken the store away")


def has_committed_rows(status: RunStatus) -> bool:
    done = [checkpoint for checkpoint in status.checkpoints if checkpoint.status == "COMPLETED"]
    return len(done) >= 2 and any(step.rows for step in status.steps if step.name == "sales")


def is_pending(status: RunStatus) -> bool:
    return any(checkpoint.status == "IN_PROGRESS" for checkpoint in status.checkpoints)


def operate(directory: Path, *arguments: str) -> Any:  # noqa: ANN401 - a finished process
    return cutwater(*arguments, "--store", str(directory / "store"), "--output", "json")


def here(directory: Path, *arguments: str) -> Result:
    """Give a command in this very process, which is quicker where it need not be another."""
    flags = ("--store", str(directory / "store"), "--output", "json")
    return CliRunner().invoke(app, [*arguments, *flags])


def look(directory: Path, *arguments: str) -> Any:  # noqa: ANN401 - whatever JSON it is
    done = here(directory, *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def ask(directory: Path, *arguments: str) -> Any:  # noqa: ANN401 - whatever JSON it is
    done = operate(directory, *arguments)
    assert done.returncode == 0, done
    return json.loads(done.stdout)
