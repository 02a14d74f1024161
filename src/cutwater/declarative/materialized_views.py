"""Which materialized views can be kept by a stream, with exactly the rows of a recomputation.

A materialized view is its query over all rows that its tables hold now. A stream sees every row of
those tables once. So the same table comes out of:

- a query that turns each row into rows of its own (filters, columns, `explode`, unions): the rows
  of a sum of inputs are the sum of the rows, so appending them is enough;
- an inner join of streams: each pair of rows is put out once, when its second row arrives;
- one aggregation with keys above such a query, in complete mode: the result after every batch is
  that of all rows so far, and replaces the table. The function must not depend on the order of
  rows. A sum of floating-point numbers depends on it in the last digits, in Spark's batch jobs too.
  An aggregation above a join is two steps, since Spark does not run both in one query. All rows of
  the result must come from the aggregation.

Everything else is refused, with the reason. Without keys an aggregation has a row even before the
first input, and a stream that has seen nothing has none. A watermark drops late rows from a stream
and does nothing in a batch job. A query whose value changes by itself is a new table every time.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cutwater.pipeline.nodes import OutputMode
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import PlanNode

_FUNCTIONS: Final = frozenset(
    {
        "any",
        "approx_count_distinct",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "count",
        "count_if",
        "every",
        "max",
        "mean",
        "min",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)
"""Aggregate functions whose result does not depend on the order of rows, by Spark's names."""

_INNER: Final = ("Inner",)
_EQUALITY: Final = re.compile(r" (=|<=>) ")
_NAMES: Final = {
    plan_nodes.DEDUPLICATION: "dropDuplicates keeps whichever row comes first",
    plan_nodes.DISTINCT: "DISTINCT is no aggregation of a stream; group by all columns",
    plan_nodes.GLOBAL_LIMIT: "a limit keeps whichever rows come first",
    plan_nodes.LOCAL_LIMIT: "a limit keeps whichever rows come first",
    plan_nodes.SORT: "the rows of a table have no order; leave the ORDER BY out",
    plan_nodes.WINDOW: "a window function over all rows needs the whole table",
    plan_nodes.WATERMARK: "a watermark drops late rows, which a recomputation does not",
}


class Keeping(NamedTuple):
    """How a stream keeps a view, or why it cannot.

    Attributes:
        mode: The output mode of its step.
        is_divided: Whether its joins and its aggregation are two steps.
        reasons: Why it cannot be kept; empty if it can.
    """

    mode: OutputMode = "append"
    is_divided: bool = False
    reasons: tuple[str, ...] = ()


def kept_by_stream(plan: PlanNode) -> Keeping:
    """Return how a stream keeps a view; the plan is its query over streams, not tables."""
    aggregates = [node for node in plan.walk() if node.kind == plan_nodes.AGGREGATE]
    reasons = tuple(dict.fromkeys(_reasons(plan, aggregates)))
    if not aggregates:
        return Keeping(reasons=reasons)
    if _has_rows_beside_aggregate(plan):
        reasons += (
            "a part of it is not aggregated, and a stream would give only the newest rows of it; "
            "make it a view of its own",
        )
    joins = any(node.state is not None and node.state.is_join for node in plan.walk())
    if joins and not _is_chain_down_to_aggregate(plan):
        reasons += ("its aggregation of a join is one of several parts; write it without WITH",)
    return Keeping("complete", joins, reasons)


def _has_rows_beside_aggregate(plan: PlanNode) -> bool:
    """Return whether rows of a stream come to the result without being aggregated."""
    definitions = {
        node.common_table: node for node in plan.walk() if node.kind == plan_nodes.COMMON_TABLE
    }

    def reaches_stream(node: PlanNode) -> bool:
        if node.kind == plan_nodes.AGGREGATE:
            return False
        if node.kind == plan_nodes.COMMON_TABLE_REFERENCE:
            return reaches_stream(definitions[node.common_table])
        if node.kind == plan_nodes.COMMON_TABLES:
            # Its last child is the query; the others count where they are referred to.
            return reaches_stream(node.children[-1])
        if not node.children:
            return node.is_streaming
        return any(map(reaches_stream, node.children))

    return reaches_stream(plan)


def _is_chain_down_to_aggregate(plan: PlanNode) -> bool:
    while plan.kind != plan_nodes.AGGREGATE:
        if len(plan.children) != 1:
            return False
        (plan,) = plan.children
    return True


def _reasons(plan: PlanNode, aggregates: Sequence[PlanNode]) -> Iterator[str]:
    if any(node.has_subquery for node in plan.walk()):
        yield "it has a subquery, which a stream reads once and a recomputation every time"
    if len(aggregates) > 1:
        yield "it aggregates twice; make the first aggregation a table that another program reads"
        return
    below = {id(node) for top in aggregates for node in top.walk()}
    for node in plan.walk():
        if node.kind == plan_nodes.AGGREGATE:
            yield from _aggregate_reasons(node)
        elif node.kind == plan_nodes.JOIN:
            yield from _join_reasons(node)
        elif not node.is_streaming and not node.children:
            yield f"it combines streams with other rows ({node.kind}), which may change"
        elif aggregates and id(node) not in below and node.kind in plan_nodes.ABOVE_AGGREGATE:
            continue
        elif node.kind not in plan_nodes.ROW_BY_ROW and node.is_streaming:
            yield _NAMES.get(node.kind, f"a stream does not give the rows of {node.kind} again")


def _aggregate_reasons(node: PlanNode) -> Iterator[str]:
    state = node.state
    assert state is not None
    if not state.keys:
        yield (
            "it aggregates without GROUP BY: a recomputation has a row before the first input "
            "arrives, and a stream has none"
        )
    if any("with gaps of" in window for window in state.windows):
        yield "it groups by session_window, whose sessions a stream closes by event time"
    for function in state.layout:
        name = function.split(" ", 1)[0]
        if name not in _FUNCTIONS:
            yield f"{name} depends on the order of rows, or is not known not to"


def _join_reasons(node: PlanNode) -> Iterator[str]:
    if node.state is not None and node.state.layout != _INNER:
        kind = node.state.layout[0]
        yield f"it has a {kind} join of streams, which waits for rows that a recomputation has"
    elif node.state is not None and not _EQUALITY.search(node.state.keys[0]):
        yield "it joins streams without an equality, which Spark does not do"
