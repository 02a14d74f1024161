"""Looking at the targets of a planned pipeline before anything runs.

What a target can say of itself by then (`base.CheckedTarget`) is asked, and all that stands against
the pipeline is told at once, by the lines that declare the sinks. A target that cannot be looked at
now is no mistake of the pipeline's: planning may happen where no target can be reached.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cutwater.errors import CutwaterError, PlanError
from cutwater.ids import SinkId, StepId
from cutwater.pipeline.nodes import Node, WriteMode
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.sinks.base import CheckedTarget, Sink
from cutwater.sinks.places import identify_target
from cutwater.store.records.targets import StoredTarget

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
    problems = list(_find_shared_targets(plan))
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


def _find_shared_targets(plan: PhysicalPlan) -> Iterator[str]:
    """Find sinks that replace rows of a target that another sink of the pipeline writes to.

    Appends do not meet. But of what an upsert has replaced, its sink remembers the old rows, for a
    rewind: it would take the other sink's rows for somebody else's, or put them back.
    """
    seen: list[tuple[StoredTarget, Node]] = []
    for node in (step.sink for step in plan.steps if step.sink is not None):
        target: object = node.target
        if not isinstance(target, Sink):
            continue
        try:
            stored = _identify_if_reachable(SinkId(node.name), target)
        except CutwaterError:
            # Told when it is looked at, or opened.
            continue
        first = next((earlier for other, earlier in seen if other.is_same_as(stored)), node)
        seen.append((stored, node))
        way = _replacing_mode(first.target) or _replacing_mode(target)
        if first is not node and way is not None:
            reason = f"sink {first.name} writes to {stored.uri} as well, and write={way!r} needs it"
            way_out = "union the rows before one sink, or give each a table of its own"
            yield f"{node.place}: sink {node.name}: {reason} alone; {way_out}"


def _identify_if_reachable(sink: SinkId, target: Sink) -> StoredTarget:
    """Say where a target is, and what it is if it can be reached now."""
    try:
        return identify_target(sink, target)
    except CutwaterError:
        return target.stored()


def _replacing_mode(target: object) -> str | None:
    """Return the way in which a target's rows take the place of others; None if they do not."""
    way = target.write if isinstance(target, WriteMode) else "append"
    return None if way == "append" else way
