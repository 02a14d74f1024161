"""Where settings come from, and which of two wins."""

from pathlib import Path

import pytest

from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.config.settings import DEFAULT, FLAG, defaults, read_settings, variable
from cutwater.errors import ConfigError

TOML = """
store = "s3://bucket/orders"

[checkpoint]
interval = "5s"
retained = 3
tolerable_failed = "none"
unaligned = "forced"

[restart]
attempts = 7

[spark]
"spark.executor.cores" = 2
"spark.ui.enabled" = true
"spark.hadoop.fs.s3a.secret.key" = "hunter2"
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_anything_all_are_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    settings = read_settings({})

    assert settings.checkpoint == CheckpointConfig()
    assert settings.restart == RestartConfig()
    assert {setting.origin for setting in settings.all.values()} == {DEFAULT}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, TOML)
    environ = {
        "CUTWATER_CHECKPOINT_RETAINED": "4",
        "CUTWATER_CHECKPOINT_INTERVAL": "6s",
        "CUTWATER_RESTART_ATTEMPTS": "none",
    }

    settings = read_settings(environ, file, {"checkpoint.interval": "7s", "master": None})

    assert settings.checkpoint == CheckpointConfig(interval="7s", retained=4, unaligned="forced")
    assert settings.restart == RestartConfig(attempts=None)
    found = {name: setting.origin for name, setting in settings.all.items()}
    assert found["checkpoint.interval"] == FLAG
    assert found["checkpoint.retained"] == "CUTWATER_CHECKPOINT_RETAINED"
    assert found["checkpoint.unaligned"] == found["store"] == str(file)
    assert found["master"] == DEFAULT
    assert settings.spark == {
        "spark.executor.cores": "2",
        "spark.ui.enabled": "true",
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
    }
    assert settings.all["spark.spark.hadoop.fs.s3a.secret.key"].shown == "********"


def test_the_file_is_found_by_its_name_or_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cutwater.toml").write_text('master = "local[1]"')
    other = written(tmp_path, 'master = "local[2]"')
    monkeypatch.chdir(tmp_path)

    assert read_settings({}).value("master") == "local[1]"
    assert read_settings({"CUTWATER_CONFIG": str(other)}).value("master") == "local[2]"


@pytest.mark.parametrize(
    ("text", "environ", "reason"),
    [
        ("colour = 1", {}, "settings.toml: colour: there is no such setting; there are store,"),
        ("[checkpoint]\nintervall = '1s'", {}, "checkpoint.intervall: there is no such setting"),
        ("checkpoint = 1", {}, r"checkpoint: is a section: write \[checkpoint\] above its keys"),
        (
            "[checkpoint]\ninterval = '0s'",
            {},
            r"checkpoint.interval \(.*settings.toml\): '0s' must",
        ),
        ("[checkpoint]\nretained = 'x'", {}, r"checkpoint.retained \(.*\): 'x' is not a whole"),
        ("= 1", {}, "settings.toml: it cannot be read as TOML"),
        ("", {"CUTWATER_CHECKPOINT_RETAINED": "0"}, r"retained \(CUTWATER_CHECKPOINT_RETAINED\)"),
        ("", {"CUTWATER_RESTART_TIMES": "0"}, "CUTWATER_RESTART_TIMES: there is no such setting"),
    ],
)
def test_what_is_unknown_or_cannot_work_is_named_with_its_place(
    text: str, environ: dict[str, str], reason: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text)

    with pytest.raises(ConfigError, match=reason):
        read_settings(environ, file)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_settings({"CUTWATER_CONFIG": str(tmp_path / "none.toml")})


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = [name for name, _ in defaults()]

    assert len({variable(name) for name in names}) == len(names)
    assert variable("checkpoint.max_inflight_bytes") == "CUTWATER_CHECKPOINT_MAX_INFLIGHT_BYTES"
