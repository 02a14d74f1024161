"""Which queries a stream keeps with exactly the rows of a recomputation, and why not others."""

from dataclasses import replace

import pytest

from cutwater.declarative.materialized_views import Keeping, kept_by_stream
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import PlanNode, StateOperator


def node(kind: str, *children: PlanNode, state: StateOperator | None = None) -> PlanNode:
    return PlanNode(kind, is_streaming=True, children=children, has_subquery=False, state=state)


def stream() -> PlanNode:
    return node(plan_nodes.STREAM_OF_OBJECT)


def counted(child: PlanNode, function: str = "count bigint", *keys: str) -> PlanNode:
    given = keys or ("shop string",)
    state = StateOperator(given, ("",) * len(given), (function,))
    return node(plan_nodes.AGGREGATE, child, state=state)


def joined(kind: str = "Inner", condition: str = "(id = id)") -> PlanNode:
    state = StateOperator((condition,), ("",), (kind,), is_join=True)
    return node(plan_nodes.JOIN, stream(), stream(), state=state)


def test_a_query_row_by_row_is_appended() -> None:
    plan = node("Union", node("Project", node("Filter", stream())), node("Generate", stream()))

    assert kept_by_stream(plan) == Keeping("append")


def test_an_aggregation_is_a_complete_result_that_may_be_filtered_and_sorted() -> None:
    plan = node("Sort", node("Filter", node("Project", counted(node("Filter", stream())))))

    assert kept_by_stream(plan) == Keeping("complete")


def test_rows_beside_an_aggregation_are_refused_also_through_common_tables() -> None:
    counts = replace(node(plan_nodes.COMMON_TABLE, counted(stream())), common_table="1")
    rows = replace(node(plan_nodes.COMMON_TABLE, node("Project", stream())), common_table="2")
    refers = [replace(node(plan_nodes.COMMON_TABLE_REFERENCE), common_table=n) for n in "12"]

    def query(*parts: PlanNode) -> PlanNode:
        return node(plan_nodes.COMMON_TABLES, counts, rows, node("Project", *parts))

    beside = [
        kept_by_stream(plan).reasons
        for plan in (
            node("Union", counted(stream()), node("Project", stream())),
            query(node("Union", *refers)),
            query(refers[0]),
        )
    ]

    assert [any("is not aggregated" in one for one in reasons) for reasons in beside] == [
        True,
        True,
        False,
    ]


def test_an_inner_join_is_appended_and_divided_from_an_aggregation_above_it() -> None:
    assert kept_by_stream(node("Project", joined())) == Keeping("append")
    assert kept_by_stream(counted(node("Project", joined()))) == Keeping("complete", True)


def test_an_aggregation_without_keys_is_refused() -> None:
    state = StateOperator((), (), ("count bigint",))

    keeping = kept_by_stream(node(plan_nodes.AGGREGATE, stream(), state=state))

    assert [reason.split(":")[0] for reason in keeping.reasons] == [
        "it aggregates without GROUP BY"
    ]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (counted(stream(), "collect_list array<bigint>"), "collect_list depends on the order"),
        (counted(counted(stream())), "it aggregates twice"),
        (node("Sort", stream()), "the rows of a table have no order"),
        (node("GlobalLimit", node("LocalLimit", stream())), "a limit keeps whichever rows"),
        (node("Deduplicate", stream()), "dropDuplicates keeps whichever row"),
        (node("Distinct", stream()), "DISTINCT is no aggregation of a stream"),
        (node("Window", stream()), "a window function over all rows"),
        (node("EventTimeWatermark", stream()), "a watermark drops late rows"),
        (node("MapInPandas", stream()), "a stream does not give the rows of MapInPandas again"),
        (joined("LeftOuter"), "it has a LeftOuter join of streams"),
        (joined(condition="(id >= id)"), "it joins streams without an equality"),
        (joined(condition=""), "it joins streams without an equality"),
        (
            node("WithCTE", node("CTERelationDef", joined()), counted(node("CTERelationRef"))),
            "its aggregation of a join is one of several parts",
        ),
        (replace(node("Filter", stream()), has_subquery=True), "it has a subquery"),
        (
            node("Join", stream(), replace(node("LocalRelation"), is_streaming=False)),
            "it combines streams with other rows (LocalRelation)",
        ),
    ],
)
def test_what_a_stream_does_not_keep_is_refused_with_the_reason(
    plan: PlanNode, reason: str
) -> None:
    (found,) = kept_by_stream(plan).reasons

    assert found.startswith(reason)


def test_sessions_are_refused() -> None:
    state = StateOperator(("window",), ("session_window with gaps of 5 s",), ("count bigint",))

    keeping = kept_by_stream(node(plan_nodes.AGGREGATE, stream(), state=state))

    assert keeping.reasons == (
        "it groups by session_window, whose sessions a stream closes by event time",
    )


def test_all_reasons_are_given_together() -> None:
    plan = node("GlobalLimit", counted(node("Window", stream()), "first string"))

    assert len(kept_by_stream(plan).reasons) == 3
