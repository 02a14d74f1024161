"""`cutwater tables`: the versions of all sinks at a commit point, from the store alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.unit.operations.prepared_pipeline import (
    SAVEPOINT,
    SINKS,
    PreparedPipeline,
    below,
    prepare_pipeline,
)
from typer.testing import CliRunner, Result

import cutwater
from cutwater.cli.main import app
from cutwater.store.paths import PipelinePaths


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "made"
    directory.mkdir()
    prepare_pipeline(directory)
    return directory


@pytest.fixture
def prepared(template: Path, tmp_path: Path) -> PreparedPipeline:
    """Five checkpoints, of which the fourth is a recovery point; the tables are those made first,
    which nothing here changes."""
    shutil.copytree(template / "store", tmp_path / "store")
    return PreparedPipeline(tmp_path)


def tables(prepared: PreparedPipeline, *arguments: str) -> Result:
    given = ["tables", "orders", *arguments, "--store", str(prepared.store)]
    return CliRunner().invoke(app, given, env={"COLUMNS": "300"})


def tables_json(prepared: PreparedPipeline, *arguments: str) -> dict[str, Any]:
    result = tables(prepared, *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def rows_at(found: dict[str, Any]) -> list[list[int]]:
    """What the named versions hold, by a reader of Delta tables."""
    read = [
        DeltaTable(table["uri"], version=int(table["version"]))
        .to_pyarrow_table()["value"]
        .to_pylist()
        for _, table in sorted(found["tables"].items())
    ]
    return [sorted(entry) for entry in read]


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_commit_point_names_versions_that_show_one_moment(
    prepared: PreparedPipeline, number: int
) -> None:
    found = tables_json(prepared, "--checkpoint", str(number))
    assert set(found) == {"checkpoint", "tables"}
    assert found["checkpoint"] == number
    assert list(found["tables"]) == sorted(SINKS)
    for table in found["tables"].values():
        assert set(table) == {"format", "uri", "version"}
        assert table["format"] == "delta"
        assert Path(table["uri"]).is_absolute()
    assert rows_at(found) == below(10 * number)


def test_the_newest_commit_point_is_shown_unless_another_is_asked_for(
    prepared: PreparedPipeline,
) -> None:
    assert tables_json(prepared)["checkpoint"] == 5
    assert tables_json(prepared, "--checkpoint", SAVEPOINT)["checkpoint"] == 3
    shown = tables(prepared).stdout.splitlines()
    assert shown[0] == "orders at checkpoint 5:"
    assert [line.split()[:3] for line in shown[2:]] == [
        ["left", "delta", "4"],
        ["right", "delta", "4"],
    ]


def test_a_recovery_point_is_refused_with_the_nearest_commit_points(
    prepared: PreparedPipeline,
) -> None:
    result = tables(prepared, "--checkpoint", "4")
    assert result.exit_code == 2
    assert "checkpoint 4 is a recovery point" in result.stderr
    assert "the nearest commit points are 3 and 5" in result.stderr


def test_a_commit_that_is_not_recorded_is_not_listed(prepared: PreparedPipeline) -> None:
    store = prepared.opened()
    last = store.commits.slots()[-1]
    (prepared.store / PipelinePaths(store.pipeline).committed(last)).unlink()
    assert tables_json(prepared)["checkpoint"] == 3
    result = tables(prepared, "--checkpoint", "5")
    assert result.exit_code == 2
    assert "its sinks have not all committed it; the nearest commit points are 3" in result.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9", "orders has no checkpoint 9; it has 1 to 5"),
        ("after", f"orders has no savepoint 'after'; its savepoints: {SAVEPOINT}"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named(
    prepared: PreparedPipeline, text: str, reason: str
) -> None:
    result = tables(prepared, "--checkpoint", text, "--output", "json")
    assert result.exit_code == 2
    assert reason in json.loads(result.stdout)["error"]["message"]


def test_a_checkpoint_whose_manifest_was_deleted_still_names_its_versions(
    prepared: PreparedPipeline,
) -> None:
    store = prepared.opened()
    before = tables_json(prepared, "--checkpoint", "2")
    manifest = PipelinePaths(store.pipeline).manifest(store.log.read().decisions[1].checkpoint_id)
    (prepared.store / manifest).unlink()
    assert tables_json(prepared, "--checkpoint", "2") == before


def test_a_rewind_is_a_commit_point_of_its_own(tmp_path: Path) -> None:
    prepared = prepare_pipeline(tmp_path)
    cutwater.rewind("orders", to="2", store=prepared.store, yes=True)
    found = tables_json(prepared)
    assert (found["checkpoint"], rows_at(found)) == (6, below(20))
    assert rows_at(tables_json(prepared, "--checkpoint", "5")) == below(50)
    assert "Warning" not in tables(prepared).stderr
    cutwater.rewind("orders", to="1", store=prepared.store, yes=True, leave_sinks=True)
    left = tables(prepared)
    assert "a rewind left the sinks as they were" in left.stderr
    assert rows_at(tables_json(prepared)) == below(20)


def test_reading_a_sink_that_is_not_there_names_those_that_are(prepared: PreparedPipeline) -> None:
    with pytest.raises(cutwater.errors.ConfigError, match=r"had no sink 'lost' .* left, right"):
        cutwater.read(None, prepared.store, "orders", "lost")  # type: ignore[arg-type]


def test_a_pipeline_that_has_committed_nothing_says_so(tmp_path: Path) -> None:
    prepared = prepare_pipeline(tmp_path)
    store = prepared.opened()
    for slot in store.commits.slots():
        (prepared.store / PipelinePaths(store.pipeline).committed(slot)).unlink()
    result = tables(prepared)
    assert result.exit_code == 2
    assert "have committed nothing yet" in result.stderr
