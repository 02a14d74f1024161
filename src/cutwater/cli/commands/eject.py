"""`cutwater eject`: write a checkpoint as plain Spark checkpoint directories, to go on without us.

Needs no Spark: the files are in the store. What each directory is good for is said here, in a
README beside the directories, and in `eject.json` for programs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from cutwater.cli.commands.plan import Debug
from cutwater.cli.commands.run import DEFAULT_STORE
from cutwater.cli.options import Found, checkpoint_of, find
from cutwater.cli.output import SUCCESS, Output, say, say_json
from cutwater.errors import ConfigError
from cutwater.protocol.decisions import Decision

_LATEST: Final = "latest"

HELP: Final = """Write a checkpoint as checkpoint directories of plain streaming queries.

One directory for each step that runs as a query, and a README.txt that says what each is good for.
A step that reads outside sources goes on exactly as a plain query; one that reads channels keeps
its state and needs another source. The pipeline and its store are only read. Take a savepoint
first: a checkpoint with rows in flight cannot be ejected.

\b
  cutwater eject orders --to /data/checkpoints/orders
  cutwater eject orders --checkpoint 17 --to /data/checkpoints/orders
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectArguments:
    """What `cutwater eject` was asked."""

    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
    to: Annotated[
        Path, typer.Option(metavar="DIRECTORY", help="A new or empty directory to write to.")
    ]
    checkpoint: Annotated[
        str,
        typer.Option(metavar="latest|ID|NAME", help="The checkpoint, or a savepoint by its name."),
    ] = _LATEST
    store: Annotated[str, typer.Option(metavar="URL", help="Where checkpoints are kept.")] = (
        DEFAULT_STORE
    )
    output: Annotated[Output, typer.Option(help="For people or for programs.")] = Output.TEXT
    debug: Debug = False


def eject_command(arguments: EjectArguments) -> int:
    """Write the directories.

    Raises:
        UserError: If the pipeline, the checkpoint or the directory will not do.
        CutwaterError: If it could not be done.
    """
    from cutwater.operations.migration.eject import README, as_json, eject  # noqa: PLC0415 - slow

    found = find(arguments.store, arguments.pipeline)
    decision = _decision(found, arguments.checkpoint)
    ejection = eject(found.name, found.store, decision, arguments.to)
    if arguments.output is Output.JSON:
        say_json(as_json(ejection), indent=2)
        return SUCCESS
    say(f"checkpoint {decision.checkpoint_id} of {arguments.pipeline} is in {ejection.directory}")
    if ejection.warning:
        say(ejection.warning)
    for one in ejection.steps:
        say(f"\n  {one.step}: {one.ending.value}\n    {one.explanation}")
    say(f"\n{ejection.directory / README} says the same.")
    return SUCCESS


def _decision(found: Found, text: str) -> Decision:
    """Return the decision that is named, if its cut is still kept."""
    log = found.store.log.read()
    if log.head is None:
        raise ConfigError("--checkpoint", f"{found.name} has no checkpoint yet")
    if text == _LATEST:
        return log.head
    chosen = checkpoint_of(found, text)
    if chosen not in found.store.manifests.ids():
        raise ConfigError("--checkpoint", f"{text} was pruned; see cutwater checkpoints list")
    return next(one for one in log.decisions if one.checkpoint_id == chosen)
