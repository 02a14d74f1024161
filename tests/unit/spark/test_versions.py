"""Spark's versions: what is promised is what is tested, and every place says the same."""

import re
import tomllib
from pathlib import Path

import pytest

from cutwater.errors import SessionError
from cutwater.spark.session.session import needed_settings, own_settings
from cutwater.spark.versions import (
    FILE_CHECKSUMS,
    PYSPARK,
    VERSIONS,
    explain_error,
    find_version,
    lost_state,
    missing_features,
    refused_nodes,
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


def test_the_newest_release_of_every_version_is_tested() -> None:
    listed = re.search(r"^VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert listed is not None
    assert listed[1].split() == [version.newest for version in VERSIONS[:-1]]


def test_state_that_a_later_version_cannot_read_is_known() -> None:
    processor = "TransformWithStateInPySpark"

    assert lost_state(processor, "4.0.1", "4.1.4") is not None
    assert lost_state(processor, "4.0.1", "4.0.5") is None
    assert lost_state(processor, "4.1.0", "4.3.0") is None
    assert lost_state("Aggregate", "4.0.1", "4.3.0") is None
    assert lost_state(processor, "", "4.3.0") is None


def test_a_feature_that_a_version_lacks_is_named_with_what_to_do() -> None:
    missing = AttributeError("'GroupedData' object has no attribute 'transformWithState'")
    why = (
        "transformWithState on rows needs Spark 4.1 or newer, and this is Spark 4.0.5; "
        "use transformWithStateInPandas"
    )

    assert explain_error(missing, "4.0.5") == why
    assert explain_error(missing, "4.1.4") == ""
    assert explain_error(AttributeError("no attribute 'invented'"), "4.0.5") == ""
    assert explain_error(ValueError("transformWithState"), "4.0.5") == ""
    assert [len(missing_features(version)) for version in VERSIONS] == [9, 2, 0, 0]


def test_a_node_that_fails_on_a_version_is_refused_with_the_reason() -> None:
    why = "a limit on a stream needs Spark 4.1 or newer, and this is Spark 4.0.5; filter the rows"

    assert refused_nodes("4.0.5") == {"GlobalLimit": why}
    assert refused_nodes("4.1.4") == {}


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
