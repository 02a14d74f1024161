"""Datasets under whole names, with their flows, and what is wrong with the declarations alone."""

from cutwater.declarative.datasets import Datasets, assemble
from cutwater.declarative.definitions import (
    DatasetDefinition,
    DatasetKind,
    Definitions,
    FlowDefinition,
)
from cutwater.declarative.names import Namespace
from cutwater.pipeline.nodes import SourceLocation

NAMESPACE = Namespace("spark_catalog", "shop")
TABLE, SINK = DatasetKind.STREAMING_TABLE, DatasetKind.SINK


def place(line: int) -> SourceLocation:
    return SourceLocation("a.py", line)


def dataset(
    *name: str, kind: DatasetKind = TABLE, line: int = 1, **given: str
) -> DatasetDefinition:
    return DatasetDefinition(name=name, kind=kind, place=place(line), format=given.get("format"))


def flow(name: str, *target: str) -> FlowDefinition:
    return FlowDefinition((name,), target or (name,), place(9), lambda: None)


def assembled(*parts: DatasetDefinition | FlowDefinition) -> tuple[Datasets, list[str]]:
    definitions = Definitions(
        datasets=[part for part in parts if isinstance(part, DatasetDefinition)],
        flows=[part for part in parts if isinstance(part, FlowDefinition)],
    )
    datasets, problems = assemble(definitions, NAMESPACE, "parquet")
    return datasets, [f"{problem.place.line}: {problem.text}" for problem in problems]


def test_a_name_finds_a_view_first_and_then_a_table_of_the_project() -> None:
    view = dataset("x", kind=DatasetKind.TEMPORARY_VIEW)

    datasets, problems = assembled(
        dataset("orders"),
        flow("orders"),
        dataset("other", "x"),
        flow("x", "other", "x"),
        view,
        flow("x"),
    )

    found = [datasets.find(parts) for parts in (("orders",), ("shop", "orders"), ("x",), ("y",))]
    assert problems == []
    assert [one.key if one else None for one in found] == ["orders", "orders", "x", None]
    table = datasets.find(("spark_catalog", "other", "x"))
    assert table is not None
    assert (table.key, table.alias) == ("other-x", ("spark_catalog", "other", "x"))


def test_flows_are_called_after_their_table_or_by_their_own_name() -> None:
    (orders,) = assembled(dataset("orders"), flow("orders"), flow("late", "orders"))[0].all

    assert [orders.flow_key(found) for found in orders.flows] == ["orders-flow", "late-flow"]


def test_two_datasets_of_one_name_are_refused() -> None:
    _, problems = assembled(dataset("a", line=1), dataset("shop", "a", line=2), flow("a"))

    assert problems == [
        "2: streaming table shop.a has the name of streaming table a, declared at a.py:1"
    ]


def test_a_flow_without_a_target_and_a_table_without_a_flow_are_refused() -> None:
    _, problems = assembled(dataset("orders"), flow("lost", "gone"))

    assert problems == [
        "9: flow lost writes to gone, and no table or sink is called that",
        "1: streaming table orders has no flow, so nothing would be written to it; give it one "
        "or remove it",
    ]


def test_only_streaming_tables_and_sinks_have_several_flows() -> None:
    view = dataset("v", kind=DatasetKind.MATERIALIZED_VIEW)

    _, problems = assembled(view, flow("v"), flow("w", "v"))

    assert problems == [
        "1: materialized view v has 2 flows (a.py:9, a.py:9); only streaming tables and sinks have "
        "several"
    ]


def test_two_flows_of_one_name_are_refused() -> None:
    _, problems = assembled(dataset("out", kind=SINK), flow("f", "out"), flow("f", "out"))

    assert problems == ["1: sink out has 2 flows called f; give each a name of its own"]


def test_a_table_in_another_catalog_is_refused() -> None:
    _, problems = assembled(dataset("ice", "shop", "a"), flow("a", "ice", "shop", "a"))

    assert problems == [
        "1: streaming table ice.shop.a is in the catalog ice, which has no commit that takes a key "
        "along; use spark_catalog"
    ]
