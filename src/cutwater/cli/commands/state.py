"""`cutwater state show` and `state diff`: what a step keeps for each key, at any checkpoint.

They need Spark, which reads its own state, but no running pipeline: the files come from the store,
into a temporary directory that is removed when the command ends. Nothing else is written.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cutwater.cli.lookup import find
from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import SUCCESS, Output, Table, count_text, say, say_json
from cutwater.cli.render import moment, show
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import ConfigError
from cutwater.step_state.frame import LATEST, cut_at

if TYPE_CHECKING:
    from cutwater.protocol.cut import Cut
    from cutwater.step_state.diff import KeyChange, StateDiff
    from cutwater.step_state.reading import StatePart, StepState

HELP: Final = "Show the state of steps by key, at any checkpoint."
SHOW_HELP: Final = """Show a step's state by key, at a checkpoint.

The pipeline need not run. Rows are sorted by key. Spark's state is not always the step's output: an
average, for instance, is stored as a sum and a count.

\b
  cutwater state show orders totals
  cutwater state show orders totals --checkpoint before-release --key customer=ada
  cutwater state show orders matched --operator left --limit 100
"""
DIFF_HELP: Final = """Show which keys of a step's state have changed between two checkpoints.

\b
  cutwater state diff orders totals --from 41 --to 42
  cutwater state diff orders totals --from before-release --to latest --output json
"""
_WIDTH_MAX: Final = 60

StepName = Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")]
OperatorName = Annotated[
    str | None,
    typer.Option(
        metavar="N|NAME",
        help="Which part, if there are several: an operator's number or name, left or right of a "
        "join, a variable of transformWithState, timers; or both, as 0:left.",
        show_default="the only one",
    ),
]
Keys = Annotated[
    list[str],
    typer.Option(
        "--key",
        metavar="[FIELD=]VALUE",
        help="Only keys with this value; the field may be omitted if the key has only one. May be "
        "repeated: all must hold.",
    ),
]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="How many rows to show.")]
Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    pipeline: PipelineName
    step: StepName
    checkpoint: Annotated[
        str,
        typer.Option(metavar="latest|ID|NAME|TIME", help="The checkpoint, or a savepoint's name."),
    ] = LATEST
    key: Keys = field(default_factory=list)
    limit: Limit = 20
    operator: OperatorName = None
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffArguments:
    pipeline: PipelineName
    step: StepName
    before: Annotated[
        str, typer.Option("--from", metavar="ID|NAME|TIME", help="The checkpoint to compare with.")
    ]
    after: Annotated[
        str, typer.Option("--to", metavar="latest|ID|NAME|TIME", help="The checkpoint to show.")
    ] = LATEST
    key: Keys = field(default_factory=list)
    limit: Limit = 20
    operator: OperatorName = None
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def show_command(arguments: ShowArguments) -> int:
    store = find(arguments.store, arguments.pipeline).store
    cut = cut_at(store, arguments.checkpoint, "--checkpoint")
    from cutwater.spark.session.session import embedded_session  # noqa: PLC0415 - starts Spark
    from cutwater.step_state.reading import Rows, fetch_state, with_key  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="cutwater-state-") as scratch:
        found = fetch_state(store, cut, arguments.step, Path(scratch) / "query")
        if found.is_empty:
            raise ConfigError(
                "STEP", f"{found.step} had not run a batch at checkpoint {found.checkpoint_id}"
            )
        part = found.part(arguments.operator)
        spark = embedded_session(MASTER_DEFAULT, app_name="cutwater state")
        frame = with_key(found.frame(spark, part), part, arguments.key)
        rows = Rows.of(frame, part, Path(scratch) / "rows")
        count = rows.count()
        shown = [json.loads(line) for line in rows.first(arguments.limit)]
    if arguments.output is Output.JSON:
        head = {"pipeline": arguments.pipeline, **_head_json(found, part)}
        say_json({**head, "count": count, "rows": shown}, indent=2)
        return SUCCESS
    say(_title(found, part, cut))
    _show_rows(shown)
    say(_count_line(len(shown), count, "row"))
    return SUCCESS


def diff_command(arguments: DiffArguments) -> int:
    store = find(arguments.store, arguments.pipeline).store
    cuts = (cut_at(store, arguments.before, "--from"), cut_at(store, arguments.after, "--to"))
    from cutwater.spark.session.session import embedded_session  # noqa: PLC0415 - starts Spark
    from cutwater.step_state.diff import diff_state  # noqa: PLC0415
    from cutwater.step_state.reading import Rows, fetch_state, with_key  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="cutwater-state-") as scratch:
        states = [
            fetch_state(store, cut, arguments.step, Path(scratch) / str(at))
            for at, cut in enumerate(cuts)
        ]
        parts = [None if state.is_empty else state.part(arguments.operator) for state in states]
        spark = embedded_session(MASTER_DEFAULT, app_name="cutwater state")
        before, after = (
            None
            if part is None
            else Rows.of(
                with_key(state.frame(spark, part), part, arguments.key),
                part,
                Path(scratch) / f"rows-{at}",
            )
            for at, (state, part) in enumerate(zip(states, parts, strict=True))
        )
        found = diff_state(before, after, arguments.limit)
    changes = [_change_json(change) for change in found.changes]
    if arguments.output is Output.JSON:
        head = {
            "pipeline": arguments.pipeline,
            "from": _head_json(states[0], parts[0]),
            "to": _head_json(states[1], parts[1]),
        }
        say_json({**head, "counts": found.counts, "changes": changes}, indent=2)
        return SUCCESS
    for state, own, cut in zip(states, parts, cuts, strict=True):
        say(_title(state, own, cut))
    _show_changes(found, changes)
    return SUCCESS


# -- JSON


def _head_json(state: "StepState", part: "StatePart | None") -> Json:
    return {
        "step": state.step,
        "checkpoint": state.checkpoint_id,
        "batch": None if state.is_empty else state.batch,
        "in_flight_events": state.in_flight_events,
        "operator": None
        if part is None
        else {
            "id": int(part.operator),
            "name": part.operator_name,
            "part": part.name or None,
            "partitions": part.partitions,
        },
    }


def _change_json(change: "KeyChange") -> Json:
    return {
        "change": change.kind,
        "key": json.loads(change.key),
        "before": None if change.before is None else json.loads(change.before),
        "after": None if change.after is None else json.loads(change.after),
    }


# -- text


def _title(state: "StepState", part: "StatePart | None", cut: "Cut") -> str:
    where = f"{state.step} at checkpoint {state.checkpoint_id}, {moment(cut.started_at_ms)}"
    if part is None:
        return f"{where}: no batch yet"
    which = f"operator {part.operator} ({part.operator_name})" + (part.name and f", {part.name}")
    waiting = state.in_flight_events
    rest = f"; {count_text(waiting, 'Event')} in flight are not part of it" if waiting else ""
    return f"{where}: {which}, after batch {state.batch}{rest}"


def _count_line(shown: int, count: int, noun: str) -> str:
    counted = count_text(count, noun)
    return counted if shown == count else f"{counted}, {shown:,} of them shown; --limit shows more"


def _show_rows(rows: Sequence[Json]) -> None:
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    table = Table(*names, box=None, pad_edge=False, header_style="bold")
    for row in flat:
        table.add_row(*(row.get(name, "") for name in names))
    if rows:
        show(table)


def _flat(row: Json) -> dict[str, str]:
    """Flatten a row: one column for each field of its key and its value."""
    found: dict[str, str] = {}
    for name, value in row.items():
        if name == "partition_id":
            continue
        fields = value if isinstance(value, dict) else {"": value}
        for inner, field_value in fields.items():
            found[f"{name}.{inner}" if inner else name] = _cell(field_value)
    return found


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH_MAX else f"{text[: _WIDTH_MAX - 1]}…"


def _show_changes(found: "StateDiff", changes: Sequence[Json]) -> None:
    table = Table("", "key", "before", "after", box=None, pad_edge=False, header_style="bold")
    marks = {"added": "+", "removed": "-", "changed": "~"}
    for change in changes:
        sides = (
            "" if change[side] is None else _value_text(change[side])
            for side in ("before", "after")
        )
        table.add_row(marks[str(change["change"])], _value_text(change["key"]), *sides)
    if changes:
        show(table)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
    left = found.total - len(changes)
    say(counts + (f"; {len(changes):,} shown, --limit shows more" if left else ""))


def _value_text(value: object) -> str:
    """Write the value of a key: `sum=3, count=1`; several rows separated by semicolons."""
    if isinstance(value, list):
        return "; ".join(_value_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items())
    return _cell(value)
