"""Names of datasets: their parts, what they stand for, and what a node is called."""

import pytest

from cutwater.declarative.names import Namespace, TableName, parts_of

NAMESPACE = Namespace("spark_catalog", "shop")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders",)),
        ("shop.orders", ("shop", "orders")),
        ("a.b.c", ("a", "b", "c")),
        ("`a.b`.`c``d`", ("a.b", "c`d")),
    ],
)
def test_a_name_is_split_at_dots_outside_of_quotes(text: str, parts: tuple[str, ...]) -> None:
    assert parts_of(text) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", "a b", "a.b.c.d", "`a", "a`b`"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no name of a table"):
        parts_of(text)


def test_missing_parts_are_those_of_the_project() -> None:
    assert NAMESPACE.qualify(("orders",)) == TableName("spark_catalog", "shop", "orders")
    assert NAMESPACE.qualify(("x", "orders")) == TableName("spark_catalog", "x", "orders")
    assert NAMESPACE.qualify(("c", "x", "orders")) == TableName("c", "x", "orders")


def test_a_node_is_called_after_the_parts_that_are_not_the_projects() -> None:
    names = [("orders",), ("x", "orders"), ("c", "shop", "orders")]

    called = [NAMESPACE.node_name(NAMESPACE.qualify(parts)) for parts in names]

    assert called == ["orders", "x-orders", "c-shop-orders"]


def test_sql_reads_a_name_with_any_characters() -> None:
    assert TableName("c", "a b", "x`y").sql == "`c`.`a b`.`x``y`"
