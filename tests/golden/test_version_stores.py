"""Stores that every version of Spark has left behind, read without Spark: what each has marked."""

from pathlib import Path

import pytest
from tests.spark import version_pipelines as golden
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.operations.migration.plain_query import look
from cutwater.spark.versions import VERSIONS, SparkVersion, unread_marks


@pytest.mark.parametrize("made_by", VERSIONS, ids=lambda one: one.name)
def test_a_version_can_read_the_snapshots_that_it_wrote(
    tmp_path: Path, made_by: SparkVersion
) -> None:
    golden.unpack(f"spark-{made_by.name}", tmp_path)
    words = ["eject", "versions", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "out")]

    result = CliRunner().invoke(app, words)

    assert result.exit_code == 0, result.output
    marks = look(tmp_path / "out" / "nth").snapshot_marks
    assert marks == {"v2" if made_by.minor == (4, 0) else "v1"}
    assert unread_marks(marks, made_by.newest) == ()
    assert bool(unread_marks(marks, VERSIONS[-1].newest)) == (made_by.minor == (4, 0))
