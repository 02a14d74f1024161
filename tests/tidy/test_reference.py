"""References that are written by scripts are current, and exit codes are all explained."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from scripts import cli_reference, config_reference, errors_reference

from cutwater import errors
from cutwater.cli import output

ROOT = Path(__file__).parents[2]
EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"


@pytest.mark.parametrize("script", [cli_reference, config_reference, errors_reference])
def test_a_reference_is_what_its_script_writes(script: ModuleType) -> None:
    name = script.__name__.rpartition(".")[2]

    assert script.DOCUMENT.read_text(encoding="utf-8") == script.render(), (
        f"run python scripts/{name}.py and commit the result"
    )


def test_every_exit_code_of_the_source_is_documented_and_no_other() -> None:
    codes = {value: name for name, value in vars(output).items() if name.isupper()}
    codes = {value: name for value, name in codes.items() if isinstance(value, int)}
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", EXIT_CODES.read_text("utf-8"), re.MULTILINE)

    assert {int(code): name for code, name in rows} == codes


def test_no_command_exits_with_a_number_that_has_no_name() -> None:
    bare = re.compile(
        r"(?:typer\.Exit|sys\.exit|os\._exit)\((\d+)\)|return [1-9]\d*$", re.MULTILINE
    )
    files = sorted((ROOT / "src" / "cutwater" / "cli").glob("*.py"))

    found = [f"{one.name}: {hit[0]}" for one in files for hit in bare.finditer(one.read_text())]

    assert not found


def test_every_error_has_a_section_and_a_code_of_its_own() -> None:
    text = errors_reference.DOCUMENT.read_text(encoding="utf-8")
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "CutwaterError"]

    assert len({one.code for one in kinds}) == len(kinds)
    assert {f"## {one.code} {one.__name__}" for one in kinds} == set(
        re.findall(r"^## CW-\d+ \w+$", text, re.MULTILINE)
    )


def test_every_link_of_the_documents_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in link.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert not broken
