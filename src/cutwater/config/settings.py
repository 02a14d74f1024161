"""Where settings come from: defaults, a TOML file, the environment, flags; each wins over the last.

    store = "s3://bucket/orders"          # CUTWATER_STORE
    scratch = "/fast"                     # CUTWATER_SCRATCH
    master = "local[4]"                   # CUTWATER_MASTER
    public_url = "https://host/orders/"   # CUTWATER_PUBLIC_URL

    [checkpoint]                          # the fields of CheckpointConfig
    interval = "5s"                       # CUTWATER_CHECKPOINT_INTERVAL

    [restart]                             # the fields of RestartConfig
    attempts = 5                          # CUTWATER_RESTART_ATTEMPTS

    [spark]                               # settings of Spark's, as they are
    "spark.sql.shuffle.partitions" = 8

Only the command line reads them; a program passes its options itself. The file is `cutwater.toml`
in the working directory, unless `cutwater --config FILE` or CUTWATER_CONFIG names another. An
unknown key or an invalid value is an error that names the file and the key: a mistyped option must
not silently become the default.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.errors import ConfigError

FILE: Final = "cutwater.toml"
FILE_VARIABLE: Final = "CUTWATER_CONFIG"
STORE_DEFAULT: Final = "./.cutwater/store"
MASTER_DEFAULT: Final = "local[*]"
DEFAULT: Final = "default"
FLAG: Final = "flag"

_PREFIX: Final = "CUTWATER_"
_GENERAL: Final[Mapping[str, str | None]] = {
    "store": STORE_DEFAULT,
    "scratch": None,
    "public_url": None,
    "master": MASTER_DEFAULT,
}
_SECTIONS: Final = {"checkpoint": CheckpointConfig, "restart": RestartConfig}
_SPARK: Final = "spark"
_SECRET: Final = re.compile(r"password|passwd|secret|token|credential|key$|keys$", re.IGNORECASE)
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and its origin: `default`, the file, the environment's variable, or `flag`."""

    name: str
    value: object
    origin: str

    @property
    def shown(self) -> object:
        """The value for display: anything that looks like a secret is masked."""
        return "********" if _SECRET.search(self.name) else self.value


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, by name."""

    all: Mapping[str, Setting]

    def value(self, name: str) -> Any:  # noqa: ANN401 - whatever type the setting has
        return self.all[name].value

    @property
    def checkpoint(self) -> CheckpointConfig:
        return CheckpointConfig(**self.section("checkpoint"))

    @property
    def restart(self) -> RestartConfig:
        return RestartConfig(**self.section("restart"))

    def section(self, name: str) -> dict[str, Any]:
        """Return the values of a section, without its name."""
        return {
            key.removeprefix(f"{name}."): setting.value
            for key, setting in self.all.items()
            if key.startswith(f"{name}.")
        }

    @property
    def spark(self) -> dict[str, str]:
        return self.section(_SPARK)


def read_settings(
    environ: Mapping[str, str],
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Resolve all settings.

    Without a file, it is the one that the environment names, or `cutwater.toml` in the working
    directory, which need not be there. A flag that is None counts as not given.

    Raises:
        ConfigError: If a file that was named is not there, or something in it or in the
            environment is unknown or cannot work.
    """
    found = {name: Setting(name, value, DEFAULT) for name, value in defaults()}
    for layer in (_from_file(environ, file), _from_environment(environ), _from_flags(flags or {})):
        found |= {setting.name: setting for setting in layer}
    settings = Settings(found)
    for section, form in _SECTIONS.items():
        try:
            form(**settings.section(section))
        except ConfigError as error:
            name = f"{section}.{error.option}"
            origin = found[name].origin if name in found else DEFAULT
            where = name if origin in {DEFAULT, FLAG} else f"{name} ({origin})"
            raise ConfigError(where, error.reason) from error
    return settings


def defaults() -> Iterator[tuple[str, object]]:
    """Return all settings there are, but for Spark's, with their defaults."""
    yield from _GENERAL.items()
    for section, form in _SECTIONS.items():
        yield from ((f"{section}.{field.name}", field.default) for field in fields(form))


def variable(name: str) -> str:
    return _PREFIX + name.replace(".", "_").upper()


def _from_file(environ: Mapping[str, str], file: Path | None) -> Iterator[Setting]:
    named = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    path = named or Path(FILE)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if named is None:
            return
        raise ConfigError(str(path), "there is no such file") from error
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), f"it cannot be read as TOML: {error}") from error
    known = dict(defaults())
    for name, value in _flatten(content, str(path)):
        if name.startswith(f"{_SPARK}."):
            yield Setting(name, _spark_text(value), str(path))
        elif name not in known:
            raise ConfigError(f"{path}: {name}", f"there is no such setting; {_offer(name, known)}")
        else:
            yield Setting(name, _none_of(value, known[name]), str(path))


def _flatten(content: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if name not in {*_SECTIONS, _SPARK}:
            yield name, value
        elif not isinstance(value, dict):
            raise ConfigError(f"{path}: {name}", f"is a section: write [{name}] above its keys")
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())


def _none_of(value: object, default: object) -> object:
    """Map `"none"` to None where the setting may be None; TOML has no null."""
    return None if value == "none" and not isinstance(default, str) else value


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_environment(environ: Mapping[str, str]) -> Iterator[Setting]:
    known = {variable(name): (name, default) for name, default in defaults()}
    for variable_name, text in sorted(environ.items()):
        if variable_name in known:
            name, default = known[variable_name]
            yield Setting(name, _parse(text, default), variable_name)
        elif variable_name.startswith(
            tuple(f"{_PREFIX}{section.upper()}_" for section in _SECTIONS)
        ):
            raise ConfigError(
                variable_name, f"there is no such setting; {_offer(variable_name, known)}"
            )


def _parse(text: str, default: object) -> object:
    """Read a value as its setting is written in Python."""
    if isinstance(default, str):
        return text
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    return int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else text


def _from_flags(flags: Mapping[str, object]) -> Iterator[Setting]:
    return (Setting(name, value, FLAG) for name, value in flags.items() if value is not None)


def _offer(name: str, known: Mapping[str, object]) -> str:
    section = name.rpartition(".")[0] or name.rpartition("_")[0]
    near = [option for option in known if option.startswith(section)] or list(known)
    return f"there are {', '.join(near)}"
