"""`cutwater tables`: the table versions of all sinks of a pipeline at one checkpoint.

Reads only the store: needs no Spark, no pipeline file and no running pipeline. `cutwater.read`
returns the same tables as DataFrames.
"""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.lookup import find
from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import SUCCESS, Output, Table, complain, say, say_json
from cutwater.cli.render import show
from cutwater.sinks.consistent_view import ConsistentView, view_at

HELP: Final = """Show the version of every sink's table at one checkpoint: a consistent view.

Only commit points can be shown: at a recovery point, which had data in flight, no sink committed.
Without --checkpoint it shows the newest checkpoint that all sinks have committed.

\b
  cutwater tables orders
  cutwater tables orders --checkpoint 41
  cutwater tables orders --checkpoint before-the-release --output json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesArguments:
    pipeline: PipelineName
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="ID|NAME", help="A checkpoint's number, or a savepoint's name."),
    ] = None
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def tables_command(arguments: TablesArguments) -> int:
    found = find(arguments.store, arguments.pipeline)
    view = view_at(found.store, found.name, arguments.checkpoint)
    if arguments.output is Output.JSON:
        say_json(_json(view), indent=2)
        return SUCCESS
    say(f"{found.name} at checkpoint {view.checkpoint_id}:")
    table = Table("sink", "format", "version", "where", box=None, pad_edge=False)
    for sink, table_version in sorted(view.tables.items()):
        table.add_row(
            sink, table_version.target.format, table_version.version, table_version.target.uri
        )
    show(table)
    for note in view.notes:
        complain(f"Warning: {note}.")
    return SUCCESS


def _json(view: ConsistentView) -> dict[str, object]:
    return {
        "checkpoint": view.checkpoint_id,
        "tables": {
            sink: {
                "format": table_version.target.format,
                "uri": table_version.target.uri,
                "version": table_version.version,
            }
            for sink, table_version in sorted(view.tables.items())
        },
    }
