"""`cutwater config show`, settings that reach commands, and completion in a shell."""

import json
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.cli.offline_store import OfflineStore
from typer.testing import CliRunner

from cutwater.cli.main import app


def test_every_value_is_shown_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTWATER_CHECKPOINT_RETAINED", "3")
    Path("cutwater.toml").write_text('[checkpoint]\ninterval = "5s"\ntimeout = "1m"\n')

    told = CliRunner().invoke(app, ["config", "show", "--interval", "2s", "--output", "json"])
    said = CliRunner().invoke(app, ["config", "show"])

    found = json.loads(told.stdout)["settings"]
    assert found["checkpoint.interval"] == {"value": "2s", "origin": "flag"}
    assert found["checkpoint.timeout"] == {"value": "1m", "origin": "cutwater.toml"}
    assert found["checkpoint.retained"] == {"value": 3, "origin": "CUTWATER_CHECKPOINT_RETAINED"}
    assert found["store"] == {"value": "./.cutwater/store", "origin": "default"}
    assert "checkpoint.interval" in said.output
    assert "5s" in said.output


def test_a_store_from_a_file_or_the_environment_is_where_commands_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = OfflineStore(tmp_path / "store")
    stored.writer.decide(1)
    monkeypatch.chdir(tmp_path)
    asked = ["checkpoints", "list", "orders", "--output", "json"]

    nowhere = CliRunner().invoke(app, asked)
    Path("cutwater.toml").write_text('store = "store"')
    by_file = CliRunner().invoke(app, asked)
    Path("cutwater.toml").write_text('store = "elsewhere"')
    monkeypatch.setenv("CUTWATER_STORE", "store")
    by_variable = CliRunner().invoke(app, asked)
    by_flag = CliRunner().invoke(app, [*asked, "--store", "nothing"])

    assert (nowhere.exit_code, by_flag.exit_code) == (2, 2)
    assert [checkpoint["id"] for checkpoint in json.loads(by_file.stdout)["checkpoints"]] == [1]
    assert by_variable.stdout == by_file.stdout


def test_a_wrong_setting_keeps_every_command_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cutwater.toml").write_text("[checkpoint]\nevery = 1\n")

    result = CliRunner().invoke(app, ["doctor"])

    assert result.exit_code == 2
    assert "[CW-101] cutwater.toml: checkpoint.every: there is no such setting" in result.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [("cutwater chec", ["checkpoint", "checkpoints"]), ("cutwater state sh", ["show"])],
)
def test_a_shell_completes_commands(words: str, offered: list[str]) -> None:
    env = {
        **environment(),
        "_CUTWATER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }

    result = CliRunner().invoke(app, [], prog_name="cutwater", env=env)

    assert result.stdout.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_a_shell_needs_can_be_shown(shell: str) -> None:
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="cutwater")

    assert result.exit_code == 0
    assert "_CUTWATER_COMPLETE" in result.stdout
