"""Checks the targets of a planned pipeline before anything runs.

Targets that can be inspected (`base.CheckedTarget`) are, and all problems are reported together,
with the lines that declare the sinks. A target that cannot be inspected now is no error of the
pipeline: planning may happen where no target can be reached.
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
    """Check whether every target, in its current state, can take the rows of its sink.

    Returns one sentence for each target that could not be inspected; the PlanError has all problems
    of the others.
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

    Appends do not conflict. But an upsert remembers the rows that it has replaced, for a rewind:
    it would treat the other sink's rows as rows of another program, or restore them.
    """
    seen: list[tuple[StoredTarget, Node]] = []
    for node in (step.sink for step in plan.steps if step.sink is not None):
        target: object = node.target
        if not isinstance(target, Sink):
            continue
        try:
            stored = _identify_if_reachable(SinkId(node.name), target)
        except CutwaterError:
            # Reported when the target is inspected or opened.
            continue
        first = next((earlier for other, earlier in seen if other.is_same_as(stored)), node)
        seen.append((stored, node))
        way = _replacing_mode(first.target) or _replacing_mode(target)
        if first is not node and way is not None:
            reason = f"sink {first.name} writes to {stored.uri} as well, and write={way!r} needs it"
            way_out = "union the rows before one sink, or give each a table of its own"
            yield f"{node.place}: sink {node.name}: {reason} alone; {way_out}"


def _identify_if_reachable(sink: SinkId, target: Sink) -> StoredTarget:
    """Return where a target is, with its identity if it can be reached now."""
    try:
        return identify_target(sink, target)
    except CutwaterError:
        return target.stored()


def _replacing_mode(target: object) -> str | None:
    """Return the write mode of a target that replaces rows; None if it only appends."""
    way = target.write if isinstance(target, WriteMode) else "append"
    return None if way == "append" else way
