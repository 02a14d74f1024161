"""Spark's versions: what is promised is what is tested, and every place says the same."""

import tomllib
from pathlib import Path

import pytest

from cutwater.errors import SessionError
from cutwater.spark.session.session import needed_settings, own_settings
from cutwater.spark.versions import (
    FILE_CHECKSUMS,
    PYSPARK,
    VERSIONS,
    find_version,
    require_version,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("version", "entry"),
    [
        ("3.5.9", None),
        ("4.0.5", "4.0"),
        ("4.1.4", "4.1"),
        ("4.2.1", "4.2"),
        ("4.3.0", "4.3"),
        ("4.3.1-amzn-0", "4.3"),
        ("4.1-SNAPSHOT", "4.1"),
        ("4.4.0", None),
        ("4.30.0", None),
        ("5.3.0", None),
        ("nightly", None),
    ],
)
def test_only_the_tested_versions_are_let_in(version: str, entry: str | None) -> None:
    found = find_version(version)

    assert (found.name if found else None) == entry


def test_another_version_is_refused_with_the_reason_and_what_to_do() -> None:
    assert require_version("4.0.2").name == "4.0"
    with pytest.raises(SessionError) as refused:
        require_version("4.4.0")

    assert refused.value.message == (
        "This is Spark 4.4.0, and pipelines run on Spark 4.0 to 4.3: they use Spark's internals, "
        "which other versions change. Start the session with one of those: "
        "pip install 'pyspark>=4.0,<4.4'."
    )


def test_what_is_installed_with_cutwater_and_what_is_tested_is_let_in() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tested = [
        line.removeprefix("pyspark==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("pyspark==")
    ]

    assert f"pyspark{PYSPARK}" in project["project"]["dependencies"]
    assert PYSPARK == ">=4.0,<4.4"
    assert tested == [VERSIONS[-1].newest]


def test_every_version_has_one_entry_with_its_own_newest_release() -> None:
    assert [version.minor for version in VERSIONS] == [(4, 0), (4, 1), (4, 2), (4, 3)]
    assert [find_version(version.newest) for version in VERSIONS] == list(VERSIONS)


def test_a_session_is_given_the_classes_and_settings_of_its_version() -> None:
    oldest, newest = (own_settings(version) for version in (VERSIONS[0], VERSIONS[-1]))
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    package = "org.apache.spark.sql.execution.streaming"

    assert oldest[manager] == f"{package}.FileSystemBasedCheckpointFileManager"
    assert newest[manager] == f"{package}.checkpointing.FileSystemBasedCheckpointFileManager"
    assert FILE_CHECKSUMS not in oldest
    assert newest[FILE_CHECKSUMS] == "false"
    assert needed_settings(VERSIONS[0]).items() <= oldest.items()
    assert oldest["spark.api.mode"] == newest["spark.api.mode"] == "classic"
