"""`cutwater plan`: show what would run, without touching anything.

The tree is for people and the JSON for programs. Both come from the plan and, where Spark is
available, from Spark's analysis of every step. Spark starts last: a mistake in the declared graph
shows at once. With `--against`, the command shows how the last checkpoint maps to the changed code;
`cutwater run` prints the same lines when it starts with changed code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from cutwater.cli.load import load, parse_pairs
from cutwater.cli.options import (
    DEFAULT_STORE,
    AllowDropped,
    AllowNew,
    Conf,
    Debug,
    Master,
    Parameters,
    Swap,
    Target,
)
from cutwater.cli.output import FAILED, SUCCESS, complain, say, say_json
from cutwater.cli.session import SessionStarter
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.declarative.spec import names_project
from cutwater.errors import ConfigError, SessionError
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.planning.rendering import AllFacts, as_json, draw
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.mapping import Allowances, Change, Fate
from cutwater.spark.analysis.restoring import map_on_spark
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify

HELP: Final = """Show how a pipeline will run, without running it.

Draws every step and its contents, every channel with the reason for it, and every sink with its
format, write mode, keys, commit_every and visibility. Then calls your functions on empty streams
and shows Spark's analysis of each step: whether it runs as a streaming query or as batches, its
state, its watermark and its columns. Checks the sinks' targets that exist and can be reached. Finds
the mistakes that would keep the pipeline from starting, and names the line of each. No data is
read, and nothing is written.

\b
  cutwater plan orders.py                  the only pipeline in the file
  cutwater plan orders.py:daily            the pipeline called daily
  cutwater plan orders.py:make --param env=test
  cutwater plan orders.py --no-spark       at once: only the declarations
  cutwater plan orders.py --against orders --store /data/orders
                                           how the last checkpoint maps to this code

With --against, the exit code is 1 if the checkpoint cannot be restored into this code; the options
--allow-new, --allow-dropped and --swap are those of `cutwater run`.
"""
_WORDS: Final = {
    Fate.KEPT: "resumes where it was",
    Fate.MOVED: "resumes from the state of other steps",
    Fate.NEW: "starts without state",
    Fate.MERGED: "is now part of other steps",
    Fate.DROPPED: "is dropped, with its state",
}


class PlanOutput(StrEnum):
    TREE = "tree"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArguments:
    target: Target
    param: Parameters = field(default_factory=list)
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            help="Analyze the steps with Spark, or show only the declarations.",
        ),
    ] = True
    master: Master = MASTER_DEFAULT
    conf: Conf = field(default_factory=list)
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PIPELINE",
            help="Show how this pipeline's last checkpoint maps to the current code.",
        ),
    ] = None
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the checkpoints of --against are.")
    ] = None
    allow_new: AllowNew = False
    allow_dropped: AllowDropped = False
    swap: Swap = field(default_factory=list)
    output: Annotated[PlanOutput, typer.Option(help="A tree for people, or JSON for programs.")] = (
        PlanOutput.TREE
    )
    debug: Debug = False


def plan_command(arguments: PlanArguments) -> int:
    parameters = parse_pairs("--param", arguments.param)
    conf = parse_pairs("--conf", arguments.conf)
    session = SessionStarter(arguments.master, "cutwater plan", conf)
    if not arguments.spark and names_project(Path(arguments.target)):
        reason = "only a call of its flows shows what a declarative project reads; leave it out"
        raise ConfigError("--no-spark", reason)
    loaded = load(arguments.target, parameters, session)
    planned = plan(loaded.pipeline)
    if arguments.against is not None:
        return show_change(planned, arguments, arguments.against, session)
    facts = _analyze(planned, session) if arguments.spark else {}
    if arguments.output is PlanOutput.JSON:
        say_json(as_json(planned, facts), indent=2)
    else:
        say(draw(planned, facts))
    return SUCCESS


def _analyze(planned: PhysicalPlan, session: SessionStarter) -> AllFacts:
    """Return Spark's analysis of the steps, and check the sinks' targets.

    If Spark or a target is not available, a line on stderr says so; that is not an error.
    """
    # Imported here: planning must work without Spark.
    from cutwater.sinks.checks import check_targets  # noqa: PLC0415
    from cutwater.spark.analysis.explain import facts_of, look  # noqa: PLC0415

    facts: AllFacts = {}
    rows = {}
    try:
        spark = session()
    except SessionError as error:
        complain(f"Spark was not used: {error.message} Only the declarations are shown.")
    else:
        forms = look(planned, spark)
        facts = facts_of(planned, forms, spark)
        rows = {name: form.schema for name, form in forms.items()}
    for warning in check_targets(planned, rows):
        complain(warning)
    return facts


def show_change(
    planned: PhysicalPlan, arguments: PlanArguments, name: str, session: SessionStarter
) -> int:
    """Show how the last checkpoint maps to this code; return 1 if it cannot be restored."""
    cut = _last_cut(arguments.store or DEFAULT_STORE, name)
    from cutwater.spark.analysis.explain import identities  # noqa: PLC0415 - plans without Spark

    allowed = Allowances(
        new=arguments.allow_new,
        dropped=arguments.allow_dropped,
        swap=frozenset(arguments.swap),
    )
    change = map_on_spark(cut, identities(planned, session()), allowed)
    if arguments.output is PlanOutput.JSON:
        say_json(change_json(change), indent=2)
    else:
        say(f"checkpoint {cut.checkpoint_id} of {name}, in the pipeline as it is now:")
        for line in change_lines(change):
            say(f"  {line}")
    return FAILED if change.refusals else SUCCESS


def _last_cut(store: str, name: str) -> Cut:
    backend = existing_backend(store)
    name, pipeline = identify(backend, name, "--against")
    opened = PipelineStore.of(backend, pipeline)
    head = opened.log.read().head
    if head is None:
        raise ConfigError("--against", f"{name} has no checkpoint: a run would start empty")
    return opened.manifests.read(head.checkpoint_id, head.manifest_sha256)


def change_lines(change: Change) -> Iterator[str]:
    """Return one line for each step, each note on a step, and each refusal."""
    for fate in change.fates:
        yield f"step {fate.step} {_WORDS[fate.fate]}"
        yield from (f"  {note}" for note in fate.notes)
    for refusal in change.refusals:
        yield f"refused: {refusal}"


def change_json(change: Change) -> dict[str, object]:
    """Return a change as JSON values.

    Fields: `checkpoint`; `steps`, each with `name`, `fate` (kept, moved, new, merged, dropped),
    `notes` and `rebuilt`, whether its query starts at other offsets; `refusals`, each with
    `subject`, `reason` and `next_step`; `possible`.
    """
    return {
        "checkpoint": change.cut.checkpoint_id,
        "possible": not change.refusals,
        "steps": [
            {
                "name": fate.step,
                "fate": fate.fate.value,
                "notes": list(fate.notes),
                "rebuilt": fate.step in change.queries,
            }
            for fate in change.fates
        ],
        "refusals": [
            {"subject": refusal.subject, "reason": refusal.reason, "next_step": refusal.next_step}
            for refusal in change.refusals
        ],
    }
