"""Manifests that an older version wrote beside files can still be read; they are never edited.

Version 1 added two files, version 2 one with a new column, version 3 went back to version 1.
"""

import shutil
from pathlib import Path

import pytest

from cutwater.sinks.files.manifests import FileCommits

STORED = Path(__file__).parent / "files"


@pytest.fixture
def commits(tmp_path: Path) -> FileCommits:
    shutil.copytree(STORED, tmp_path / "_cutwater" / "commits")
    return FileCommits(tmp_path)


def test_manifests_of_form_1_can_be_read(commits: FileCommits) -> None:
    assert commits.newest() == 3
    found = [commits.read(version) for version in (1, 2, 3)]
    assert [commit.operation for commit in found] == ["append", "append", "restore"]
    assert [int(commit.slot) for commit in found] == [3, 4, 6]
    assert [int(commit.checkpoint_id) for commit in found] == [103, 104, 106]
    assert [commit.rows for commit in found] == [2, 3, 2]
    assert {commit.pipeline for commit in found} == {"11c4f9b2-5a55-4e0e-8a06-3a2f2c6f7d01"}
    assert [len(commit.schema["fields"]) for commit in found] == [2, 3, 2]
    assert [commit.files for commit in found] == [None] * 3


def test_files_of_form_1_are_found_where_they_are(commits: FileCommits) -> None:
    assert [len(commits.live(version)) for version in (0, 1, 2, 3)] == [0, 2, 3, 2]
    assert commits.live(3) == commits.live(1)
    places = sorted(commits.where(2).values())
    assert [place.split("/")[:3] for place in places] == [
        ["_cutwater", "past", f"{3:020d}"],
        ["kind=0", "part-000000000001-9a4038a6a4aca802.parquet"],
        ["kind=1", "part-000000000001-2446d92ee9301bdf.parquet"],
    ]
