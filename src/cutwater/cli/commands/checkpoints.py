"""`cutwater checkpoints list`, `show` and `verify`: look at what a store holds of a pipeline.

None of them needs Spark or a running pipeline, and none changes anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from cutwater.cli.commands.plan import Debug
from cutwater.cli.commands.run import DEFAULT_STORE
from cutwater.cli.options import (
    CheckpointName,
    Found,
    OutputForm,
    PipelineName,
    StoreUrl,
    checkpoint_of,
    find,
)
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, counted, say, say_json
from cutwater.cli.render import (
    moment,
    notes,
    recovery_json,
    recovery_text,
    show,
    steps_table,
    table_of,
    view_json,
)
from cutwater.errors import ConfigError
from cutwater.ids import CheckpointId
from cutwater.protocol.recovery import Damage
from cutwater.store.maintenance.inspect import CheckpointView, Inspector, Status
from cutwater.store.records.lease import Addresses

HELP: Final = """Look at the checkpoints of a pipeline.

Check and compare them, delete old ones, abort one that is pending.
"""
LIST_HELP: Final = """List the checkpoints of a pipeline, oldest first.

Shows what can be gone back to, and the attempts that failed since the oldest of them. With --all
also what was deleted since.
"""
SHOW_HELP: Final = "Show one checkpoint, step by step."
VERIFY_HELP: Final = """Read every object of checkpoints and compare size and hash.

Without an ID or NAME it checks the checkpoint that the pipeline stands on. Names what is damaged;
the exit code is then 1. So it is for one that was asked for and is no longer kept.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    """What `cutwater checkpoints list` was asked."""

    pipeline: PipelineName
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was deleted, and every failed attempt.")
    ] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    """What `cutwater checkpoints show` was asked."""

    pipeline: PipelineName
    checkpoint: CheckpointName
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyArguments:
    """What `cutwater checkpoints verify` was asked."""

    pipeline: PipelineName
    checkpoints: Annotated[
        list[str],
        typer.Argument(metavar="[ID|NAME]...", help="Numbers, or names of savepoints."),
    ] = field(default_factory=list)
    everything: Annotated[bool, typer.Option("--all", help="All that can be gone back to.")] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def list_command(arguments: ListArguments) -> int:
    """List checkpoints; return the exit code."""
    found = find(arguments.store, arguments.pipeline)
    views = Inspector(found.store, found.may_run).checkpoints(everything=arguments.everything)
    recoveries = found.store.reports.recoveries()
    if arguments.output is Output.JSON:
        say_json(
            {
                "checkpoints": [view_json(one) for one in views],
                "recoveries": [recovery_json(one) for one in recoveries],
            },
            indent=2,
        )
        return SUCCESS
    if views:
        show(table_of(views))
    else:
        say(f"{found.name} has taken no checkpoint yet.")
    if recoveries:
        show(f"Last recovery: {recovery_text(recoveries[-1])}")
    show(_who_runs(found))
    return SUCCESS


def _who_runs(found: Found) -> str:
    lease = found.lease
    if found.problem:
        whether = f"Nobody can tell whether {found.name} ({found.store.pipeline}) runs"
        return f"{whether}: its lease cannot be read: {found.problem}"
    if lease is None or not found.is_running:
        return f"{found.name} ({found.store.pipeline}) does not run."
    address = Addresses(found.store.backend, found.store.pipeline).of(lease.nonce)
    where = "" if address is None else f" Its dashboard is at {address.url} there."
    who = f"process {lease.process} on {lease.host}"
    return f"{found.name} ({found.store.pipeline}) is run by {who}.{where}"


def show_command(arguments: ShowArguments) -> int:
    """Show one checkpoint; return the exit code."""
    found = find(arguments.store, arguments.pipeline)
    view = _view(found, arguments.checkpoint)
    if arguments.output is Output.JSON:
        say_json({"checkpoint": view_json(view)}, indent=2)
        return SUCCESS
    kind = "attempt" if view.kind is None else view.kind.name.lower()
    name = f" {view.name}" if view.name else ""
    show(f"checkpoint {view.id}: {view.status.value}, {kind}{name}, {moment(view.started_at_ms)}")
    show(*(f"  {note}" for note in notes(view)))
    if view.versions:
        show("  sinks: " + ", ".join(f"{one} at {at}" for one, at in sorted(view.versions.items())))
    cut = view.cut
    if cut is not None:
        waiting = sum(len(one) for one in cut.carried.values())
        if waiting:
            show(f"  {counted(waiting, 'batch')} of output wait for the next commit point")
        show(f"  {bytes_text(cut.size_bytes)} in all", "", steps_table(view))
    return SUCCESS


def _view(found: Found, text: str) -> CheckpointView:
    inspector = Inspector(found.store, found.may_run)
    # An attempt that was never decided has a number too, and somebody may ask what became of it.
    view = inspector.one(CheckpointId(int(text))) if text.isdecimal() else None
    if view is None:
        view = inspector.one(checkpoint_of(found, text))
    assert view is not None
    return view


def verify_command(arguments: VerifyArguments) -> int:
    """Check checkpoints byte by byte; return the exit code."""
    found = find(arguments.store, arguments.pipeline)
    inspector = Inspector(found.store, found.may_run)
    results = []
    for chosen in _chosen(found, inspector, arguments):
        view, damages = inspector.verify(chosen)
        results.append((view, damages))
        if arguments.output is Output.TEXT:
            for line in _verified_lines(view, damages):
                say(line)
    # One that a person has named must be there; of all others it is enough that none is damaged.
    gone = any(view.discarded for view, _ in results) and bool(arguments.checkpoints)
    bad = any(damages for _, damages in results)
    if arguments.output is Output.JSON:
        checked = [
            {
                "id": view.id,
                "name": view.name,
                "sound": not damages and not view.discarded,
                "discarded": view.discarded,
                "damages": [{"object": one.name, "problem": one.problem} for one in damages],
            }
            for view, damages in results
        ]
        say_json({"sound": not bad and not gone, "checkpoints": checked}, indent=2)
    return FAILED if bad or gone else SUCCESS


def _verified_lines(view: CheckpointView, damages: Sequence[Damage]) -> Iterator[str]:
    said = f"checkpoint {view.id}" + (f" ({view.name})" if view.name else "")
    for damage in damages:
        yield f"{said} is DAMAGED: {damage.name}: {damage.problem}"
    if damages:
        return
    if view.discarded:
        yield f"{said} is gone: it is no longer kept, and was deleted."
        return
    objects = len(view.cut.blobs(committed=True)) if view.cut is not None else 0
    yield f"{said} is sound: {counted(objects, 'object')} read."


def _chosen(found: Found, inspector: Inspector, arguments: VerifyArguments) -> list[CheckpointView]:
    if arguments.everything and arguments.checkpoints:
        raise ConfigError("--all", "contradicts a list of checkpoints")
    if arguments.checkpoints:
        ids = [checkpoint_of(found, one) for one in arguments.checkpoints]
        return [view for one in ids if (view := inspector.one(one)) is not None]
    views = [one for one in inspector.checkpoints() if one.status is Status.COMPLETED]
    if not views:
        raise ConfigError("ID", f"{found.name} has no checkpoint yet")
    return views if arguments.everything else [one for one in views if one.is_head]
