"""`cutwater plan`: show what would run, without touching anything.

The drawing is for people, the JSON for programs; both come from the plan itself and, where Spark
can be had, from what it says of every step. Spark is asked last: a mistake in the declared graph
shows at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Annotated, Final

import typer

from cutwater.cli.load import load, parse_pairs
from cutwater.cli.output import SUCCESS, complain, say, say_json
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import SessionError
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.planning.rendering import AllFacts, as_json, draw

HELP: Final = """Show how a pipeline will run, without running it.

Draws every step, what is inside it, every channel with the reason it is there, and every sink with
its format, write mode, keys, commit_every and visibility. Then calls your functions on empty
streams and shows what Spark says of each step: whether it runs as a streaming query or as batches,
its state, its watermark and its columns. Looks at the sinks' targets that are there already and
can be reached. Finds the mistakes that would keep the pipeline from starting, and names the line of
each. No data is read, and nothing is written.

\b
  cutwater plan orders.py                  the only pipeline in the file
  cutwater plan orders.py:daily            the one called daily
  cutwater plan orders.py:make --param env=test
  cutwater plan orders.py --no-spark       at once: only what is declared
  cutwater plan orders.py --against orders --store /data/orders
                                           what becomes of the last checkpoint in this code

With --against, exits with 1 if the checkpoint cannot be restored into this code as it is; the
options --allow-new, --allow-dropped and --swap mean what they mean to `cutwater run`.
"""

AllowNew = Annotated[
    bool,
    typer.Option(
        "--allow-new",
        help="Let steps with state, sources and sinks begin that the checkpoint does not know.",
    ),
]
AllowDropped = Annotated[
    bool,
    typer.Option(
        "--allow-dropped",
        help="Forget steps with state, sources and sinks that are no longer there.",
    ),
]
Swap = Annotated[
    list[str],
    typer.Option(
        metavar="SOURCE",
        help="This source is another one than in the checkpoint: begin it at its beginning, and "
        "keep all state. May be repeated.",
    ),
]

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Your Python file, or FILE:NAME. NAME is a pipeline in it, or a function that "
        "returns one; not needed if there is only one pipeline.",
    ),
]
Parameters = Annotated[
    list[str],
    typer.Option("--param", metavar="KEY=VALUE", help="For the function NAME; may be repeated."),
]
Master = Annotated[
    str, typer.Option(metavar="MASTER", help="Spark's master: local[4], or a cluster's address.")
]
Conf = Annotated[
    list[str],
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."),
]
Debug = Annotated[bool, typer.Option("--debug", hidden=True)]


class PlanOutput(StrEnum):
    """How the plan is shown."""

    TREE = "tree"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArguments:
    """What `cutwater plan` was asked."""

    target: Target
    param: Parameters = field(default_factory=list)
    spark: Annotated[
        bool,
        typer.Option("--spark/--no-spark", help="Ask Spark, or show only what is declared."),
    ] = True
    master: Master = MASTER_DEFAULT
    conf: Conf = field(default_factory=list)
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PIPELINE",
            help="Show what becomes of this pipeline's last checkpoint in the code as it is now.",
        ),
    ] = None
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the checkpoints of --against are.")
    ] = None
    allow_new: AllowNew = False
    allow_dropped: AllowDropped = False
    swap: Swap = field(default_factory=list)
    output: Annotated[PlanOutput, typer.Option(help="For people or for programs.")] = (
        PlanOutput.TREE
    )
    debug: Debug = False


def plan_command(arguments: PlanArguments) -> int:
    """Show the plan.

    Raises:
        UserError: If the file or the pipeline cannot work.
    """
    parameters = parse_pairs("--param", arguments.param)
    conf = parse_pairs("--conf", arguments.conf)
    loaded = load(arguments.target, parameters, partial(_start_spark, arguments.master, conf))
    planned = plan(loaded.pipeline)
    if arguments.against is not None:
        # Here, since the store's options are those of `run`, which has some of these.
        from cutwater.cli.commands.against import show_change  # noqa: PLC0415

        return show_change(planned, arguments, arguments.against, conf)
    facts = _ask(planned, arguments.master, conf) if arguments.spark else {}
    if arguments.output is PlanOutput.JSON:
        say_json(as_json(planned, facts), indent=2)
    else:
        say(draw(planned, facts))
    return SUCCESS


def _start_spark(master: str, conf: Mapping[str, str]) -> None:
    # Here, since planning must work where Spark does not.
    from cutwater.spark.session.session import embedded_session  # noqa: PLC0415

    embedded_session(master, app_name="cutwater plan", conf=conf)


def _ask(planned: PhysicalPlan, master: str, conf: Mapping[str, str]) -> AllFacts:
    """Return what Spark says, and let the sinks' targets be looked at.

    What is not there to be asked is said, and is no error.

    Raises:
        PlanError: If Spark or a target refuses the pipeline.
    """
    from cutwater.sinks.checks import check_targets  # noqa: PLC0415 - as above
    from cutwater.spark.analysis.explain import facts_of, look  # noqa: PLC0415 - as above
    from cutwater.spark.session.session import embedded_session  # noqa: PLC0415 - as above

    facts: AllFacts = {}
    rows = {}
    try:
        spark = embedded_session(master, app_name="cutwater plan", conf=conf)
    except SessionError as error:
        complain(f"Spark was not asked: {error.message} This is only what is declared.")
    else:
        forms = look(planned, spark)
        facts = facts_of(planned, forms, spark)
        rows = {name: one.schema for name, one in forms.items()}
    for warning in check_targets(planned, rows):
        complain(warning)
    return facts
