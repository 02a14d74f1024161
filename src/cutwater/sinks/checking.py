"""Looking at the targets of a planned pipeline before anything runs.

What a target can say of itself by then (`base.CheckedTarget`) is asked, and all that stands against
the pipeline is told at once, by the lines that declare the sinks. A target that cannot be looked at
now is no mistake of the pipeline's: planning may happen where no target can be reached.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cutwater.errors import CutwaterError, PlanError
from cutwater.ids import SinkId, StepId
from cutwater.physical_plan import PhysicalPlan
from cutwater.sinks.base import CheckedTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def check_targets(
    plan: PhysicalPlan, rows: "Mapping[StepId, StructType] | None" = None
) -> tuple[str, ...]:
    """Ask every target whether it can take the rows of its sink, as it is now.

    Args:
        plan: The pipeline.
        rows: For each step, the columns of its rows, if Spark was asked.

    Returns:
        What could not be looked at and why, a sentence each.

    Raises:
        PlanError: With everything that a target has against the pipeline.
    """
    problems: list[str] = []
    unseen: list[str] = []
    for step in plan.steps:
        node = step.sink
        target: object = None if node is None else node.target
        if node is None or not isinstance(target, CheckedTarget):
            continue
        try:
            problem = target.check_target(SinkId(node.name), (rows or {}).get(step.name))
        except CutwaterError as error:
            unseen.append(f"The target of sink {node.name} was not looked at: {error.message}")
            continue
        if problem is not None:
            problems.append(f"{node.place}: sink {node.name}: {problem}")
    if problems:
        raise PlanError(plan.pipeline, *problems)
    return tuple(unseen)
