"""`cutwater fork`: create a second pipeline that starts from a checkpoint of the first.

The first is only read and may be running. The fork is run with the same file under its new name,
with other targets for its sinks.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import SUCCESS, Output, bytes_text, count_text, say, say_json
from cutwater.operations.fork import fork
from cutwater.operations.rewind.target import time_text

HELP: Final = """Create a second pipeline that starts from a checkpoint of the first.

The first pipeline is only read, and may be running. Everything the fork needs is copied. The fork
has its own name, identity and checkpoints. Its sinks must write to other targets, which is checked
when it runs. Its tables start as they are: empty, or as your copy of the original's tables.

\b
  cutwater fork orders orders-trial --from 41
  cutwater run orders.py:make --name orders-trial --param table=/data/trial
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkArguments:
    pipeline: PipelineName
    new: Annotated[str, typer.Argument(metavar="NEW", help="The fork's name.")]
    start_from: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ID|NAME|TIME",
            help="A checkpoint's number, a savepoint's name, or a time (local, or with a zone).",
        ),
    ]
    store: StoreUrl = DEFAULT_STORE
    new_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the fork's checkpoints are kept.",
            show_default="the same store",
        ),
    ] = None
    allow_forgotten: Annotated[
        bool,
        typer.Option(
            "--allow-forgotten",
            help="Even if a source has lost data after the checkpoint; the fork never reads it.",
        ),
    ] = False
    output: OutputForm = Output.TEXT
    debug: Debug = False


def fork_command(arguments: ForkArguments) -> int:
    made = fork(
        arguments.pipeline,
        arguments.new,
        start_from=arguments.start_from,
        store=arguments.store,
        new_store=arguments.new_store,
        allow_forgotten=arguments.allow_forgotten,
    )
    if arguments.output is Output.JSON:
        say_json(asdict(made))
        return SUCCESS
    say(f"{made.new} starts from {made.title} of {made.pipeline}, taken {time_text(made.at_ms)}")
    copied = f"{count_text(made.objects, 'object')}, {bytes_text(made.size_bytes)}"
    say(f"  copied: {copied}, to {made.store}")
    for stream, position in made.positions.items():
        say(f"  source {stream}: from {position}")
    for stream, reason in made.forgotten.items():
        say(f"  source {stream}: the fork never reads some rows: {reason}")
    for target in made.forbidden:
        say(f"  its sinks must not write to {target}")
    say(f"run it: cutwater run FILE --name {made.new}, with other targets for its sinks")
    return SUCCESS
