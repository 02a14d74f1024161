"""`cutwater checkpoints prune`: show what retention would delete, and delete it with --yes.

Never deletes the current checkpoint, a savepoint that was not named, or an object that a remaining
checkpoint needs. Refuses while a process runs the pipeline: that process prunes it.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.lookup import FoundPipeline, checkpoint_of, find
from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, count_text, say, say_json
from cutwater.config.options import CheckpointConfig
from cutwater.errors import ConfigError
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.maintenance.garbage import Prospect, prospect, prune
from cutwater.store.records.lease import hold_pipeline

HELP: Final = """Show which checkpoints and objects would be deleted; with --yes delete them.

Kept are the current checkpoint, those whose sinks may not have committed, the newest --keep others,
all savepoints, and every object that any of them needs. Deleted are all others, and the objects of
failed attempts. A savepoint is deleted only if --savepoint names it, by its number if its manifest
cannot be read.

\b
  cutwater checkpoints prune orders                       show only
  cutwater checkpoints prune orders --keep 3 --yes
  cutwater checkpoints prune orders --savepoint before-upgrade --yes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneArguments:
    pipeline: PipelineName
    keep: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How many checkpoints to keep, besides savepoints."),
    ] = CheckpointConfig().retained
    savepoint: Annotated[
        str | None,
        typer.Option(metavar="NAME|ID", help="Drop this savepoint.", show_default="none"),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Delete; otherwise only show.")] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def prune_command(arguments: PruneArguments) -> int:
    """Show what would be deleted, and delete it with --yes; return the exit code."""
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


def _savepoint(found: FoundPipeline, text: str) -> CheckpointId:
    checkpoint_id = checkpoint_of(found, text)
    decisions = found.store.log.read().decisions
    kinds = {decision.checkpoint_id: decision.kind for decision in decisions}
    if kinds[checkpoint_id] is not CheckpointKind.SAVEPOINT:
        raise ConfigError("--savepoint", f"checkpoint {checkpoint_id} is not a savepoint")
    return checkpoint_id


def _leave_to_driver(
    found: FoundPipeline, checkpoint_id: CheckpointId, arguments: PruneArguments
) -> int:
    """Drop a savepoint of a running pipeline: its process deletes it at its next pruning."""
    if arguments.yes:
        found.store.savepoints.drop(checkpoint_id)
    if arguments.output is Output.JSON:
        said = {"savepoint": checkpoint_id, "given_up": arguments.yes, "deleted": False}
        say_json(said)
    elif arguments.yes:
        say(f"savepoint {arguments.savepoint} is dropped; it is deleted after the next checkpoint.")
    else:
        say(f"savepoint {arguments.savepoint} would be dropped. Nothing was changed; add --yes.")
    return SUCCESS


def _show(going: Prospect, arguments: PruneArguments, *, deleted: bool) -> None:
    if arguments.output is Output.JSON:
        say_json(
            {
                "deleted": deleted,
                "keep": [decision.checkpoint_id for decision in going.keep],
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
        say(
            f"Nothing can be deleted: checkpoint {listed} is kept, and its manifest cannot be read."
        )
        say("Restore the manifest from a copy; if it is a savepoint, drop it with --savepoint.")
        return
    verb = "deleted" if deleted else "to delete"
    listed = ", ".join(map(str, going.checkpoints)) or "none"
    kept = ", ".join(str(decision.checkpoint_id) for decision in going.keep)
    say(f"Checkpoints {verb}: {listed}.")
    say(f"Checkpoints kept: {kept}.")
    size = f"{count_text(len(going.objects), 'object')}, {bytes_text(going.freed_bytes)}"
    say(f"Objects {verb}: {size}; {len(going.orphans)} of them were left by failed attempts.")
    if not deleted:
        say("Nothing was deleted; add --yes to delete.")
