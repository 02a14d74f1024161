"""Spark's versions: what is promised is what is tested, and every place says the same."""

import tomllib
from pathlib import Path

import pytest

from cutwater.spark.session.requirements import PYSPARK, is_supported

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("version", "works"),
    [
        ("4.2.9", False),
        ("4.3.0", True),
        ("4.3.1-amzn-0", True),
        ("4.4.0", False),
        ("5.3.0", False),
    ],
)
def test_only_the_tested_version_is_let_in(version: str, works: bool) -> None:
    assert is_supported(version) is works


def test_what_is_installed_with_cutwater_and_what_is_tested_is_let_in() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tested = [
        line.removeprefix("pyspark==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("pyspark==")
    ]

    assert f"pyspark{PYSPARK}" in project["project"]["dependencies"]
    assert PYSPARK == ">=4.3,<4.4"
    assert [is_supported(one) for one in tested] == [True]
