"""`cutwater rewind`: roll a pipeline back to an older checkpoint, sinks included.

Shows what it would do to every step, source and sink, and does it with `--yes`. Needs neither Spark
nor the pipeline's file: the store records where the sinks write.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import (
    FAILED,
    SUCCESS,
    Output,
    bytes_text,
    count_text,
    say,
    say_json,
)
from cutwater.kafka.offsets import move_text
from cutwater.operations.rewind.preview import Rewind, SinkMove, SourceMove
from cutwater.operations.rewind.rewind import rewind
from cutwater.operations.rewind.target import time_text

HELP: Final = """Roll a pipeline back to an older checkpoint, its sinks included.

Nothing happens without --yes: the command shows what it would do to every step, source and sink.
It refuses, with the reason, if that cannot be done exactly. A rewind is a decision like a
checkpoint: if it is interrupted, the next run finishes it, or it never happened.

\b
  cutwater rewind orders --to 41                        by the number of a checkpoint
  cutwater rewind orders --to before-the-release        by the name of a savepoint
  cutwater rewind orders --to "2026-11-13 14:00"        the last one at or before a time
  cutwater rewind orders --to 41 --yes
  cutwater rewind orders --to 41 --leave-sinks --yes    rows after it are written again

\b
Exit codes
  0    done, or shown and possible
  1    not possible
  2    wrong use: an option, the store, the pipeline or the checkpoint
  3    another process runs this pipeline
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindArguments:
    pipeline: PipelineName
    to: Annotated[
        str,
        typer.Option(
            metavar="ID|NAME|TIME",
            help="A checkpoint's number, a savepoint's name, or a time (local, or with a zone).",
        ),
    ]
    store: StoreUrl = DEFAULT_STORE
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False
    leave_sinks: Annotated[
        bool,
        typer.Option("--leave-sinks", help="Leave the sinks as they are; rows are written again."),
    ] = False
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover", help="Even if another process seems to run it; that process ends."
        ),
    ] = False
    output: OutputForm = Output.TEXT
    debug: Debug = False


def rewind_command(arguments: RewindArguments) -> int:
    found = rewind(
        arguments.pipeline,
        to=arguments.to,
        store=arguments.store,
        yes=arguments.yes,
        leave_sinks=arguments.leave_sinks,
        takeover=arguments.takeover,
    )
    if arguments.output is Output.JSON:
        say_json(as_json(found))
    else:
        for line in lines_of(found):
            say(line)
    return FAILED if found.refused else SUCCESS


def as_json(found: Rewind) -> dict[str, Any]:
    sinks = [{**asdict(sink), "rows_removed": sink.rows_removed} for sink in found.sinks]
    return {**asdict(found), "sinks": sinks, "done": found.done}


def lines_of(found: Rewind) -> Iterator[str]:
    verb = "was rolled back" if found.done else "would be rolled back"
    yield f"{found.pipeline} {verb} to {found.title}, taken {time_text(found.at_ms)}"
    undone = ", ".join(str(checkpoint_id) for checkpoint_id in found.undone)
    yield f"  it was at checkpoint {found.head}; undone: {undone or 'none'}"
    for step in found.steps:
        size = bytes_text(step.state_bytes)
        now = "?" if step.batch is None else step.batch
        in_flight = f", {bytes_text(step.in_flight_bytes)} in flight" * bool(step.in_flight_bytes)
        yield f"  step {step.step}: batch {now} -> {step.batch_then}, {size} of state{in_flight}"
    for source in found.sources:
        yield f"  source {source.stream}: {_source_text(source)}"
    for sink in found.sinks:
        yield f"  sink {sink.sink}: {_sink_text(sink)}"
    for reason in found.refused:
        yield f"refused: {reason}"
    if found.done:
        yield f"done, as checkpoint {found.checkpoint_id}; the next run resumes from there"
    elif not found.refused:
        yield "nothing was done; add --yes to do it"


def _source_text(source: SourceMove) -> str:
    moved = move_text(source.position, source.position_then)
    if moved is None:
        moved = f"{source.position or '?'} -> {source.position_then or 'its beginning'}"
    if source.replayed is not None:
        return f"{moved}; {count_text(source.replayed, 'offset')} are read again"
    if source.checked:
        return moved
    why = f": {source.unchecked}" if source.unchecked else ""
    return f"{moved} (whether it still has the data after that is checked when it runs{why})"


def _sink_text(sink: SinkMove) -> str:
    then = (
        "its beginning" if sink.version_then in {None, "none"} else f"version {sink.version_then}"
    )
    now = "?" if sink.version is None else f"version {sink.version}"
    if sink.obstacle is not None and not sink.left:
        return f"{sink.target} cannot be restored to {then}: {sink.obstacle}"
    removed = sink.rows_removed
    if sink.left:
        twice = "rows after it are" if removed is None else f"{count_text(removed, 'row')} are"
        return f"{sink.target} is left at {now}; {twice} written again"
    change = "an unknown number of rows is removed"
    if removed is not None and removed >= 0:
        change = f"{count_text(removed, 'row')} of {sink.rows:,} are removed"
    elif removed is not None:
        change = f"{count_text(-removed, 'row')} are restored"
    return f"{sink.target} {now} -> {then}, {change}"
