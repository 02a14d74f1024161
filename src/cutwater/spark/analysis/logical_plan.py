"""An analysed plan of Spark's as a tree of values: which nodes there are, and what leaves read.

Reads Spark's internal plan classes through py4j, like `internals`; nothing here needs the JVM but
the plan itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from cutwater.spark.analysis.operators import StateOperator, state_operator

WATERMARK_DELAY: Final = "spark.watermarkDelayMs"
"""The key of a column's metadata under which Spark keeps its watermark's delay."""


class WatermarkCall(NamedTuple):
    """A `withWatermark` call in a plan.

    Attributes:
        id: The id that Spark gives it; another one every time the function is called.
        column: The event-time column.
        delay_ms: How late a row may be.
    """

    id: str
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of an analysed logical plan.

    Attributes:
        kind: Spark's name for it, such as `Filter`.
        is_streaming: Whether rows keep coming.
        children: What it reads.
        has_subquery: Whether one of its expressions holds a plan of its own.
        source: For a leaf that reads a stream: its description; empty for anything else.
        options: For such a leaf: the options it was made with.
        relation: For such a leaf: which use it is; two that are equal share one source.
        state: What it keeps state by, if it does.
        reads: The paths of the files that it, or a plan in one of its expressions, reads.
        watermark: The `withWatermark` call that it stands for, if it does.
        text: For the top of a plan: all of it as Spark prints it.
    """

    kind: str
    is_streaming: bool
    children: tuple["PlanNode", ...]
    has_subquery: bool
    source: str = ""
    options: tuple[tuple[str, str], ...] = ()
    relation: str = ""
    state: StateOperator | None = None
    reads: tuple[str, ...] = ()
    watermark: WatermarkCall | None = None
    text: str = ""

    def walk(self) -> Sequence["PlanNode"]:
        """Return this node and all below it, parents first."""
        found = [self]
        for child in self.children:
            found += child.walk()
        return found


def plan_of(frame: DataFrame) -> PlanNode:
    """Return the analysed plan of a frame."""
    analysed = frame._jdf.queryExecution().analyzed()
    return replace(_node(analysed), text=str(analysed.toString()))


def _node(plan: Any) -> PlanNode:
    kind = plan.getClass().getSimpleName()
    children = plan.children()
    source, options = _source_of(kind, plan)
    inner = [_node(one) for one in _all_of(plan.subqueries())]
    read_inside = [path for one in inner for node in one.walk() for path in node.reads]
    return PlanNode(
        kind=kind,
        is_streaming=plan.isStreaming(),
        children=tuple(_node(children.apply(at)) for at in range(children.size())),
        has_subquery=bool(inner),
        source=source,
        options=options,
        relation=f"{source} {plan.output().toString()}" if source else "",
        state=state_operator(kind, plan),
        reads=(*_paths_of(kind, plan, options), *read_inside),
        watermark=_watermark_of(plan) if kind == "EventTimeWatermark" else None,
    )


def _watermark_of(plan: Any) -> WatermarkCall | None:
    """Read a call from the one column of its output that has a delay."""
    for column in _all_of(plan.output()):
        if column.metadata().contains(WATERMARK_DELAY):
            delay_ms = int(column.metadata().getLong(WATERMARK_DELAY))
            return WatermarkCall(str(plan.nodeId().toString()), str(column.name()), delay_ms)
    return None


def _source_of(kind: str, plan: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    if kind == "StreamingRelation":
        found = plan.dataSource().options()
        return plan.sourceName(), pairs_of(found)
    if kind == "StreamingRelationV2":
        return plan.sourceName(), _pairs_of_java(plan.extraOptions().asCaseSensitiveMap())
    if kind == "StreamingExecutionRelation":
        return str(plan.source().toString()), ()
    return "", ()


def _paths_of(kind: str, plan: Any, options: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return from which paths a leaf reads files, if it does and says so."""
    try:
        if kind == "LogicalRelation":
            found = _all_of(plan.relation().location().rootPaths())
        elif kind.startswith("DataSourceV2"):
            found = _all_of(plan.table().paths())
        elif kind == "HiveTableRelation":
            found = [plan.tableMeta().location()]
        else:
            found = [value for name, value in options if name.lower() == "path"]
    except Py4JError:
        # A relation of another kind: rows of a database, or of a format that has no files.
        return ()
    return tuple(str(one) for one in found)


def _all_of(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def pairs_of(options: Any) -> tuple[tuple[str, str], ...]:
    """Return what is in a map of Scala's with text on both sides."""
    found = []
    pairs = options.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found.append((str(pair._1()), str(pair._2())))
    return tuple(found)


def _pairs_of_java(options: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(options[key])) for key in options)
