"""`cutwater plan`: show what would run, without touching anything.

The drawing is for people, the JSON for programs; both come from the plan itself.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import typer

from cutwater.cli.load import load, parse_pairs
from cutwater.cli.output import SUCCESS, say, say_json
from cutwater.plan import plan

HELP: Final = """Show how a pipeline will run, without running it.

Draws every step, what is inside it, and every channel with the reason it is there. Finds most
mistakes, and names the line of each. Spark is only started if your file needs it to be imported.

\b
  cutwater plan orders.py                  the only pipeline in the file
  cutwater plan orders.py:daily            the one called daily
  cutwater plan orders.py:make --param env=test
"""

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
    output: Annotated[PlanOutput, typer.Option(help="For people or for programs.")] = (
        PlanOutput.TREE
    )
    debug: Debug = False


def _start_spark() -> None:
    # Here, since planning must work where Spark does not, unless the user's own file needs it.
    from cutwater.spark.session import embedded_session  # noqa: PLC0415

    embedded_session("local[1]", app_name="cutwater plan")


def plan_command(arguments: PlanArguments) -> int:
    """Show the plan.

    Raises:
        UserError: If the file or the pipeline cannot work.
    """
    loaded = load(arguments.target, parse_pairs("--param", arguments.param), _start_spark)
    planned = plan(loaded.pipeline)
    if arguments.output is PlanOutput.JSON:
        say_json(planned.to_json(), indent=2)
    else:
        say(planned.tree())
    return SUCCESS
