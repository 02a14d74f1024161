"""`cutwater checkpoints list`, `show` and `verify`: show a pipeline's checkpoints in its store.

None of them needs Spark or a running pipeline, and none changes anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from cutwater.cli.lookup import FoundPipeline, checkpoint_of, find
from cutwater.cli.options import (
    DEFAULT_STORE,
    CheckpointName,
    Debug,
    OutputForm,
    PipelineName,
    StoreUrl,
)
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, count_text, say, say_json
from cutwater.cli.render import (
    moment,
    notes,
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
from cutwater.views.fields import recovery_fields

HELP: Final = """Show the checkpoints of a pipeline.

Also verify and compare them, delete old ones, and abort a pending one.
"""
LIST_HELP: Final = """List the checkpoints of a pipeline, oldest first.

Shows the checkpoints that can be restored, and the attempts that failed since the oldest of them.
With --all also the deleted ones.
"""
SHOW_HELP: Final = "Show one checkpoint, step by step."
VERIFY_HELP: Final = """Read every object of checkpoints and compare size and hash.

Without an ID or NAME it checks the current checkpoint. Names damaged objects; the exit code is then
1. It is also 1 if a named checkpoint has been deleted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    pipeline: PipelineName
    everything: Annotated[
        bool, typer.Option("--all", help="Also deleted checkpoints, and every failed attempt.")
    ] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    pipeline: PipelineName
    checkpoint: CheckpointName
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyArguments:
    pipeline: PipelineName
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID|NAME]...", help="Numbers of checkpoints, or names of savepoints."
        ),
    ] = field(default_factory=list)
    everything: Annotated[
        bool, typer.Option("--all", help="All checkpoints that can be restored.")
    ] = False
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def list_command(arguments: ListArguments) -> int:
    found = find(arguments.store, arguments.pipeline)
    views = Inspector(found.store, found.may_run).checkpoints(everything=arguments.everything)
    recoveries = found.store.reports.recoveries()
    if arguments.output is Output.JSON:
        say_json(
            {
                "checkpoints": [view_json(view) for view in views],
                "recoveries": [recovery_fields(recovery) for recovery in recoveries],
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
    show(_holder_line(found))
    return SUCCESS


def _holder_line(found: FoundPipeline) -> str:
    lease = found.lease
    if found.problem:
        whether = f"It is unknown whether {found.name} ({found.store.pipeline}) runs"
        return f"{whether}: its lease cannot be read: {found.problem}"
    if lease is None or not found.is_running:
        return f"{found.name} ({found.store.pipeline}) does not run."
    address = Addresses(found.store.backend, found.store.pipeline).of(lease.nonce)
    where = "" if address is None else f" Its dashboard is at {address.url} there."
    process = f"process {lease.process} on {lease.host}"
    return f"{found.name} ({found.store.pipeline}) is run by {process}.{where}"


def show_command(arguments: ShowArguments) -> int:
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
        show(
            "  sinks: " + ", ".join(f"{sink} at {at}" for sink, at in sorted(view.versions.items()))
        )
    cut = view.cut
    if cut is not None:
        waiting = sum(len(batches) for batches in cut.carried.values())
        if waiting:
            show(f"  {count_text(waiting, 'batch')} of output wait for the next commit point")
        show(f"  {bytes_text(cut.size_bytes)} in all", "", steps_table(view))
    return SUCCESS


def _view(found: FoundPipeline, text: str) -> CheckpointView:
    inspector = Inspector(found.store, found.may_run)
    # An attempt that was never decided has a number too, and can be shown.
    view = inspector.one(CheckpointId(int(text))) if text.isdecimal() else None
    if view is None:
        view = inspector.one(checkpoint_of(found, text))
    assert view is not None
    return view


def verify_command(arguments: VerifyArguments) -> int:
    found = find(arguments.store, arguments.pipeline)
    inspector = Inspector(found.store, found.may_run)
    results = []
    for chosen in _choose_views(found, inspector, arguments):
        view, damages = inspector.verify(chosen)
        results.append((view, damages))
        if arguments.output is Output.TEXT:
            for line in _verdict_lines(view, damages):
                say(line)
    # A named checkpoint must exist; of the others it is enough that none is damaged.
    gone = any(view.discarded for view, _ in results) and bool(arguments.checkpoints)
    bad = any(damages for _, damages in results)
    if arguments.output is Output.JSON:
        checked = [
            {
                "id": view.id,
                "name": view.name,
                "sound": not damages and not view.discarded,
                "discarded": view.discarded,
                "damages": [
                    {"object": damage.name, "problem": damage.problem} for damage in damages
                ],
            }
            for view, damages in results
        ]
        say_json({"sound": not bad and not gone, "checkpoints": checked}, indent=2)
    return FAILED if bad or gone else SUCCESS


def _verdict_lines(view: CheckpointView, damages: Sequence[Damage]) -> Iterator[str]:
    title = f"checkpoint {view.id}" + (f" ({view.name})" if view.name else "")
    for damage in damages:
        yield f"{title} is DAMAGED: {damage.name}: {damage.problem}"
    if damages:
        return
    if view.discarded:
        yield f"{title} has been deleted."
        return
    objects = len(view.cut.blobs(committed=True)) if view.cut is not None else 0
    yield f"{title} is sound: {count_text(objects, 'object')} read."


def _choose_views(
    found: FoundPipeline, inspector: Inspector, arguments: VerifyArguments
) -> list[CheckpointView]:
    if arguments.everything and arguments.checkpoints:
        raise ConfigError("--all", "contradicts a list of checkpoints")
    if arguments.checkpoints:
        ids = [checkpoint_of(found, name) for name in arguments.checkpoints]
        return [view for checkpoint_id in ids if (view := inspector.one(checkpoint_id)) is not None]
    views = [view for view in inspector.checkpoints() if view.status is Status.COMPLETED]
    if not views:
        raise ConfigError("ID", f"{found.name} has no checkpoint yet")
    return views if arguments.everything else [view for view in views if view.is_head]
