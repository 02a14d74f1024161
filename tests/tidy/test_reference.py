"""References that are written by scripts are current, and exit codes are all explained."""

import ast
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from scripts import cli_reference, config_reference, errors_reference

from cutwater import errors
from cutwater.cli import output
from cutwater.config.settings import MASTER_DEFAULT, STORE_DEFAULT, defaults
from cutwater.protocol.options import CheckpointOptions, CommitOptions, UnalignedOptions

ROOT = Path(__file__).parents[2]
EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"


@pytest.mark.parametrize("script", [cli_reference, config_reference, errors_reference])
def test_a_reference_is_what_its_script_writes(script: ModuleType) -> None:
    name = script.__name__.rpartition(".")[2]

    assert script.DOCUMENT.read_text(encoding="utf-8") == script.render(), (
        f"run python scripts/{name}.py and commit the result"
    )


def test_no_default_of_a_checkpoint_option_is_defined_twice() -> None:
    """The protocol's options have them; the config writes those as text."""
    kinds = (CheckpointOptions, UnalignedOptions, CommitOptions)
    shared = {field.name.removesuffix("_ms") for kind in kinds for field in fields(kind)}
    source = ast.parse((ROOT / "src" / "cutwater" / "config" / "options.py").read_text("utf-8"))
    (config,) = [
        statement
        for statement in source.body
        if isinstance(statement, ast.ClassDef) and statement.name == "CheckpointConfig"
    ]
    defined = [
        statement.target.id
        for statement in config.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(statement.value, ast.Constant)
    ]

    assert sorted(shared.intersection(defined)) == []
    # What a channel holds and a batch reads are no options of the protocol.
    assert sorted(defined) == ["channel_bytes", "channel_messages", "target_batch"]


@pytest.mark.parametrize("default", [MASTER_DEFAULT, STORE_DEFAULT])
def test_a_general_default_is_written_in_one_place(default: str) -> None:
    places = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src").rglob("*.py"))
        if f'"{default}"' in path.read_text("utf-8")
    ]

    assert places == ["src/cutwater/config/settings.py"]


def test_the_defaults_that_the_page_for_flink_users_tells_are_the_defaults() -> None:
    page = (ROOT / "docs" / "how-to" / "come-from-flink.md").read_text("utf-8")
    known = {name: "any number" if value is None else value for name, value in defaults()}
    rows = re.findall(r"^\| `execution[^|]*\| ([^|]*) \| ([^|]+) \|$", page, re.MULTILINE)
    told = [
        (name, text)
        for names, texts in rows
        for name, text in zip(re.findall(r"`([\w.]+)`", names), texts.split("; "), strict=False)
    ]

    assert len(told) >= 10
    for name, text in told:
        assert str(known[name]).lower() == text.strip("` "), name


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

    found = [f"{file.name}: {hit[0]}" for file in files for hit in bare.finditer(file.read_text())]

    assert not found


def test_every_error_has_a_section_and_a_code_of_its_own() -> None:
    text = errors_reference.DOCUMENT.read_text(encoding="utf-8")
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "CutwaterError"]

    assert len({kind.code for kind in kinds}) == len(kinds)
    assert {f"## {kind.code} {kind.__name__}" for kind in kinds} == set(
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


COMMANDS = dict(cli_reference.commands())


def commands_shown() -> list[tuple[str, str]]:
    """Every command of ours in a block or between backquotes of a document, with its page."""
    found = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
        quoted = re.findall(r"`(cutwater [^`]+)`", text)
        shown = [entry for entry in (*lines, *quoted) if entry.startswith("cutwater ")]
        found += [(page.relative_to(ROOT).as_posix(), " ".join(entry.split())) for entry in shown]
    return found


def option_unknown(text: str) -> str | None:
    """Return the first word of a command that no command understands; None if all are known."""
    words = (
        re.sub(r"\s[#&>|].*|\s\s.*|[…;].*", "", text).replace("[", " ").replace("]", " ").split()
    )
    known = COMMANDS
    names = [" ".join(words[:length]) for length in (3, 2)]
    command = next((known[name] for name in names if name in known), None)
    if command is None:
        group = any(name.startswith(names[-1] + " ") for name in known)
        return None if group or words[1].startswith("-") else words[1]
    options = {entry for each in command.params for entry in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((text for text in given if text not in {*options, "--help", "--debug"}), None)


@pytest.mark.parametrize(("page", "text"), commands_shown())
def test_a_command_in_a_document_is_one_that_there_is(page: str, text: str) -> None:
    assert option_unknown(text) is None, f"{page}: {text}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda one: one.stem)
def test_the_python_of_a_document_can_be_parsed(page: Path) -> None:
    for text in re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text("utf-8"), re.M | re.S):
        ast.parse(textwrap.dedent(text))


def sinks_named_like_their_step(text: str) -> list[str]:
    """Return the sinks in a text that have the name of the step they are of, which is refused."""
    return re.findall(r'\bsink\(\s*"(\w+)"(?:(?!\bsink\().)*?\bof=\1\b', text, re.DOTALL)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda one: one.stem)
def test_no_sink_of_a_document_has_the_name_of_its_step(page: Path) -> None:
    assert not sinks_named_like_their_step(page.read_text("utf-8"))


def test_a_sink_with_the_name_of_its_step_would_be_noticed() -> None:
    assert sinks_named_like_their_step('pipeline.sink("a", one("a"), of=b)') == []
    assert sinks_named_like_their_step('pipeline.sink(\n  "a",\n  one(),\n  of=a)') == ["a"]


def test_a_command_that_there_is_not_would_be_noticed() -> None:
    assert option_unknown("cutwater rum orders.py") == "rum"
    assert option_unknown("cutwater state show orders totals --chekpoint 3") == "--chekpoint"
    assert option_unknown("cutwater state show orders totals --checkpoint 3") is None
