"""`cutwater config show`: every setting, its value, and where that comes from.

Reads the file and the environment exactly as `cutwater run` does, and starts nothing.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from cutwater.cli.options import Debug, OutputForm
from cutwater.cli.output import SUCCESS, Output, Table, say_json
from cutwater.cli.render import show
from cutwater.config.settings import FILE, read_settings, variable

HELP: Final = "Show settings."
SHOW_HELP: Final = f"""Show every setting, its value and its origin.

A TOML file overrides defaults, the environment overrides the file, and flags override the
environment. The file is FILE, or the one that CUTWATER_CONFIG names, or {FILE} in the working
directory. Values that look like secrets are not shown.

\b
  cutwater config show
  cutwater config show production.toml --interval 5s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A TOML file.", show_default=FILE)
    ] = None
    store: Annotated[str | None, typer.Option(metavar="URL", help="As for `cutwater run`.")] = None
    master: Annotated[str | None, typer.Option(metavar="MASTER", help="As for `run`.")] = None
    public_url: Annotated[str | None, typer.Option(metavar="URL", help="As for `run`.")] = None
    interval: Annotated[str | None, typer.Option(metavar="TIME", help="As for `run`.")] = None
    alignment_timeout: Annotated[str | None, typer.Option(metavar="TIME", help="As for `run`.")] = (
        None
    )
    output: OutputForm = Output.TEXT
    debug: Debug = False


def show_command(arguments: ShowArguments) -> int:
    flags = {
        "store": arguments.store,
        "master": arguments.master,
        "public_url": arguments.public_url,
        "checkpoint.interval": arguments.interval,
        "checkpoint.alignment_timeout": arguments.alignment_timeout,
    }
    settings = read_settings(os.environ, arguments.file, flags)
    if arguments.output is Output.JSON:
        found = {
            name: {"value": setting.shown, "origin": setting.origin}
            for name, setting in settings.all.items()
        }
        say_json({"settings": found}, indent=2)
        return SUCCESS
    table = Table("setting", "value", "origin", box=None, pad_edge=False, header_style="bold")
    for name, setting in settings.all.items():
        value = "none" if setting.shown is None else str(setting.shown)
        table.add_row(name, value, setting.origin)
    show(table, f"In the environment: {variable('checkpoint.interval')}, and so on.")
    return SUCCESS
