"""Write the reference of the command line from the commands themselves, as one document.

python scripts/cli_reference.py            write docs/reference/cli.md
python scripts/cli_reference.py --check    fail if that file is not what would be written
"""

import inspect
import sys
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any, Final

import typer

from cutwater.cli.main import app

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "reference" / "cli.md"

_HEADER: Final = """\
# The command line

Written by `scripts/cli_reference.py` from the commands' own `--help`; change a command, run the
script, and commit both.

[Commands that operate a pipeline](commands.md) says more about what some of them do; [exit
codes](exit-codes.md) and [errors](errors.md) say how they end; values of options can also come
from [a file or the environment](config.md).

`cutwater --install-completion` installs completion for the shell you are in (bash, zsh, fish,
PowerShell); `cutwater --show-completion bash` only shows the script.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Return every command with its whole name, in the order of the help."""
    yield from _below("cutwater", typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - click's
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, found in inner.items():
        yield from _below(f"{name} {word}", found)


def render() -> str:
    """Return the document."""
    return "\n".join([_HEADER, *(_section(name, command) for name, command in commands())])


def _section(name: str, command: Any) -> str:  # noqa: ANN401 - click's
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param for param in command.params if param.param_type_name == "option" and not param.hidden
    ]
    usage = " ".join([name, *(_argument(argument) for argument in arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", f"`{usage}`", "", *_prose(command.help or ""), ""]
    rows = [(f"`{_argument(argument)}`", argument.help or "", "") for argument in arguments]
    rows += [(_option(option), option.help or "", _default(option)) for option in options]
    lines += ["| | | default |", "|---|---|---|"]
    lines += [f"| {row} | {_cell(said)} | {default} |" for row, said, default in rows]
    return "\n".join([*lines, ""])


def _prose(text: str) -> Iterator[str]:
    """Turn help text into Markdown: paragraphs that are kept as they are become code."""
    for part in inspect.cleandoc(text).split("\n\n"):
        kept = part.startswith("\b")
        body = part.removeprefix("\b\n") if kept else " ".join(part.split())
        yield f"```text\n{body.rstrip()}\n```" if kept else body
        yield ""


def _argument(argument: Any) -> str:  # noqa: ANN401 - click's
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _option(option: Any) -> str:  # noqa: ANN401 - click's
    names = [*option.opts, *option.secondary_opts]
    kind = option.type_descriptor.annotation
    choices = [each.value for each in kind] if issubclass(type(kind), EnumType) else []
    value = (
        "" if option.is_flag else f" {option.metavar or '|'.join(choices or [option.name.upper()])}"
    )
    return ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")


def _default(option: Any) -> str:  # noqa: ANN401 - click's
    if isinstance(option.show_default, str):
        return option.show_default
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    if value is True:
        return "on"
    return f"`{value}`" if isinstance(value, str | int) and value is not False and value else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the document, or compare it."""
    if "--check" in arguments:
        return int(DOCUMENT.read_text(encoding="utf-8") != render())
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
