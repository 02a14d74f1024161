"""What the package depends on: bounded above, and the tested versions are within the bounds."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OPTIONAL = {
    name: found for name, found in PROJECT["optional-dependencies"].items() if name != "dev"
}
NEEDED = [
    Requirement(entry) for found in (PROJECT["dependencies"], *OPTIONAL.values()) for entry in found
]
TESTED = {
    canonicalize_name(name): version
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    for name, _, version in (line.partition("=="),)
    if version
}


@pytest.mark.parametrize("needed", NEEDED, ids=lambda one: one.name)
def test_a_dependency_has_an_upper_bound_that_takes_the_tested_version(needed: Requirement) -> None:
    bounds = {specifier.operator for specifier in needed.specifier}

    assert bounds & {"<", "<=", "=="}
    assert TESTED[canonicalize_name(needed.name)] in needed.specifier


def test_the_licence_is_declared() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache-2.0" in (ROOT / "README.md").read_text("utf-8")
