"""`cutwater rewind` and `cutwater fork`: what they show, do and refuse, and how they exit."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.cli.command import PIPELINE, cutwater
from tests.unit.operations.prepared_pipeline import (
    FIRST_AT_MS,
    NAME,
    SAVEPOINT,
    SINKS,
    STEP_MS,
    PreparedPipeline,
    below,
    prepare_pipeline,
)

from cutwater.operations.rewind.target import time_text
from cutwater.store.backends.local import LocalBackend
from cutwater.store.records.lease import Lease, Leases


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedPipeline:
    return prepare_pipeline(tmp_path)


def test_a_rewind_is_shown_first_and_done_when_confirmed(prepared: PreparedPipeline) -> None:
    asked = ("rewind", NAME, "--to", "2", "--store", str(prepared.store))

    shown = cutwater(*asked)
    before = prepared.shown()
    done = cutwater(*asked, "--yes")

    assert (shown.returncode, done.returncode) == (0, 0), shown.stderr + done.stderr
    at = time_text(FIRST_AT_MS + 2 * STEP_MS)
    removed = "30 rows of 50 are removed"
    assert shown.stdout.splitlines() == [
        f"orders would be rolled back to checkpoint 2, taken {at}",
        "  it was at checkpoint 5; undone: 3, 4, 5",
        "  step numbers: batch 4 -> 1, 167 B of state",
        '  source numbers/0: {"sequence": 50} -> {"sequence": 20}',
        f"  sink left: {prepared.table(SINKS[0])} version 4 -> version 2, {removed}",
        f"  sink right: {prepared.table(SINKS[1])} version 4 -> version 2, {removed}",
        "nothing was done; add --yes to do it",
    ]
    assert before == below(50)
    assert done.stdout.splitlines()[0] == f"orders was rolled back to checkpoint 2, taken {at}"
    assert done.stdout.splitlines()[-1] == (
        "done, as checkpoint 6; the next run resumes from there"
    )
    assert prepared.shown() == below(20)


def test_a_program_reads_a_rewind_as_json(prepared: PreparedPipeline) -> None:
    at = time_text(FIRST_AT_MS + 3 * STEP_MS)
    asked = ("rewind", NAME, "--to", at, "--store", prepared.store.as_uri(), "--output", "json")

    found = json.loads(cutwater(*asked, "--yes").stdout)

    assert (found["pipeline"], found["to"], found["done"], found["checkpoint_id"]) == (
        NAME,
        3,
        True,
        6,
    )
    assert found["title"] == f"savepoint {SAVEPOINT} (checkpoint 3)"
    assert [(sink["sink"], sink["rows_removed"]) for sink in found["sinks"]] == [
        ("left", 20),
        ("right", 20),
    ]
    assert prepared.shown() == below(30)


def test_what_stands_against_a_rewind_is_said_and_what_leaving_the_sinks_means(
    prepared: PreparedPipeline,
) -> None:
    write_deltalake(str(prepared.table(SINKS[0])), pa.table({"value": [-1]}), mode="append")
    asked = ("rewind", NAME, "--to", "2", "--store", str(prepared.store))

    shown = cutwater(*asked)
    refused = cutwater(*asked, "--yes")
    left = cutwater(*asked, "--leave-sinks", "--yes")

    assert (shown.returncode, refused.returncode, left.returncode) == (1, 1, 0)
    assert "refused: checkpoint 2: a sink cannot go back" in shown.stdout
    assert "written by another writer" in shown.stdout
    assert refused.stderr.startswith("[CW-701] pipeline orders stays as it is")
    assert "right is left at version 4; 30 rows are written again" in left.stdout
    assert prepared.shown() == [[-1, *range(50)], list(range(50))]


def test_a_pipeline_that_runs_elsewhere_is_not_moved(prepared: PreparedPipeline) -> None:
    leases = Leases(LocalBackend(prepared.store), prepared.opened().pipeline)
    # A sign of life that stays fresh, however long the command takes to start.
    leases.beat(Lease("elsewhere", 7, "theirs", int(time.time() * 1000) + 600_000))
    asked = ("rewind", NAME, "--to", "2", "--store", str(prepared.store), "--yes")

    refused = cutwater(*asked)
    taken = cutwater(*asked, "--takeover")

    assert (refused.returncode, taken.returncode) == (3, 0)
    assert "elsewhere" in refused.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("rewind", NAME, "--to", "77"), "checkpoint 77 is not there"),
        (("rewind", "missing", "--to", "2"), "it has orders"),
        (("fork", NAME, NAME, "--from", "2"), "has a pipeline orders already"),
        (("fork", NAME, "trial", "--from", "never"), "'never' is no checkpoint's number"),
    ],
)
def test_wrong_usage_is_reported_and_exits_with_2(
    prepared: PreparedPipeline, command: tuple[str, ...], said: str
) -> None:
    found = cutwater(*command, "--store", str(prepared.store))

    assert found.returncode == 2
    assert said in found.stderr


def test_a_fork_says_what_it_is_and_what_it_must_not_write_to(
    prepared: PreparedPipeline, tmp_path: Path
) -> None:
    asked = ("fork", NAME, "trial", "--from", SAVEPOINT, "--store", str(prepared.store))

    told = cutwater(*asked)
    other = ("--new-store", str(tmp_path / "other"), "--output", "json")
    found = json.loads(cutwater(*asked, *other).stdout)

    at = time_text(FIRST_AT_MS + 3 * STEP_MS)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        f"trial starts from savepoint before (checkpoint 3) of orders, taken {at}",
        f"  copied: 1 object, 167 B, to {prepared.store.as_uri()}",
        '  source numbers/0: from {"sequence": 30}',
        f"  its sinks must not write to {prepared.table(SINKS[0])}",
        f"  its sinks must not write to {prepared.table(SINKS[1])}",
        "run it: cutwater run FILE --name trial, with other targets for its sinks",
    ]
    assert (found["new"], found["to"], found["store"]) == (
        "trial",
        3,
        (tmp_path / "other").as_uri(),
    )


def test_a_run_does_not_go_back_in_time_unasked(prepared: PreparedPipeline, tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text(f"{PIPELINE}\n\norders = build({NAME!r})\n")
    asked = ("run", str(file), "--store", str(prepared.store), "--from", "2")

    found = cutwater(*asked)

    assert found.returncode == 2
    assert "checkpoint 2 is not the current checkpoint of orders: this is a rewind" in found.stderr
    assert "add --yes" in found.stderr
    assert prepared.shown() == below(50)
