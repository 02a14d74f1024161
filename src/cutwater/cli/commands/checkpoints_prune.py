"""`cutwater checkpoints prune`: show what retention would delete, and delete it only when told.

Deletes neither what the pipeline stands on, nor a savepoint that was not named, nor an object that
any checkpoint left needs. Refuses while somebody runs the pipeline: whoever runs it prunes it.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.commands.plan import Debug
from cutwater.cli.commands.run import DEFAULT_STORE
from cutwater.cli.options import (
    Found,
    OutputForm,
    PipelineName,
    StoreUrl,
    checkpoint_of,
    find,
)
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, counted, say, say_json
from cutwater.config.options import CheckpointConfig
from cutwater.errors import ConfigError
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.maintenance.garbage import Prospect, prospect, prune
from cutwater.store.records.lease import hold_pipeline

HELP: Final = """Show which checkpoints and objects would be deleted; with --yes delete them.

Stays: the checkpoint the pipeline stands on, those whose sinks may not have committed, the newest
--keep others, all savepoints, and every object any of them needs. Goes: the rest, and what failed
attempts have left behind. A savepoint goes only if --savepoint names it; its number will do where
its manifest cannot be read.

\b
  cutwater checkpoints prune orders                       only shows
  cutwater checkpoints prune orders --keep 3 --yes
  cutwater checkpoints prune orders --savepoint before-upgrade --yes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneArguments:
    """What `cutwater checkpoints prune` was asked."""

    pipeline: PipelineName
    keep: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many checkpoints stay, beside savepoints.")
    ] = CheckpointConfig().retained
    savepoint: Annotated[
        str | None,
        typer.Option(metavar="NAME|ID", help="Give this savepoint up.", show_default="none"),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Delete; otherwise it only shows.")] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def prune_command(arguments: PruneArguments) -> int:
    """Show what would go, and delete it if told to; return the exit code."""
    found = find(arguments.store, arguments.pipeline)
    drop = () if arguments.savepoint is None else (_savepoint(found, arguments.savepoint),)
    if drop and found.is_running:
        return _leave_to_driver(found, drop[0], arguments)
    if not arguments.yes:
        going = prospect(found.store, arguments.keep, drop)
        _show(going, arguments, deleted=False)
        return FAILED if going.unreadable else SUCCESS
    with hold_pipeline(found.store.backend, found.store.pipeline, found.name, takeover=False):
        going = prospect(found.store, arguments.keep, drop)
        prune(found.store, arguments.keep, uuid.uuid4().hex, drop)
        found.store.reports.trim()
    _show(going, arguments, deleted=True)
    return FAILED if going.unreadable else SUCCESS


def _savepoint(found: Found, text: str) -> CheckpointId:
    checkpoint_id = checkpoint_of(found, text)
    decisions = found.store.log.read().decisions
    kinds = {one.checkpoint_id: one.kind for one in decisions}
    if kinds[checkpoint_id] is not CheckpointKind.SAVEPOINT:
        raise ConfigError("--savepoint", f"checkpoint {checkpoint_id} is not a savepoint")
    return checkpoint_id


def _leave_to_driver(found: Found, checkpoint_id: CheckpointId, arguments: PruneArguments) -> int:
    """Give a savepoint up while somebody runs the pipeline: he deletes it at his next turn."""
    if arguments.yes:
        found.store.savepoints.drop(checkpoint_id)
    if arguments.output is Output.JSON:
        said = {"savepoint": checkpoint_id, "given_up": arguments.yes, "deleted": False}
        say_json(said)
    elif arguments.yes:
        say(f"savepoint {arguments.savepoint} is given up; it goes after the next checkpoint.")
    else:
        say(f"savepoint {arguments.savepoint} would be given up. Nothing was changed; --yes does.")
    return SUCCESS


def _show(going: Prospect, arguments: PruneArguments, *, deleted: bool) -> None:
    if arguments.output is Output.JSON:
        say_json(
            {
                "deleted": deleted,
                "keep": [one.checkpoint_id for one in going.keep],
                "checkpoints": list(going.checkpoints),
                "attempts": list(going.attempts),
                "objects": len(going.objects),
                "orphans": len(going.orphans),
                "freed_size": going.freed_bytes,
                "unreadable": list(going.unreadable),
            }
        )
        return
    if going.unreadable:
        listed = ", ".join(map(str, going.unreadable))
        say(f"Nothing can be deleted: checkpoint {listed} stays, and its manifest cannot be read.")
        say("Bring it back from a copy; if it is a savepoint, give it up with --savepoint.")
        return
    would = "" if deleted else "would "
    goes, stays = ("went", "stay") if deleted else ("go", "stay")
    listed = ", ".join(map(str, going.checkpoints)) or "none"
    say(f"Checkpoints that {would}{goes}: {listed}.")
    say(f"Checkpoints that {stays}: {', '.join(str(one.checkpoint_id) for one in going.keep)}.")
    say(
        f"{counted(len(going.objects), 'object')}, {bytes_text(going.freed_bytes)}, "
        f"{would}{goes} with them; {len(going.orphans)} of them were left by attempts that failed."
    )
    if not deleted:
        say("Nothing was deleted; --yes deletes.")
