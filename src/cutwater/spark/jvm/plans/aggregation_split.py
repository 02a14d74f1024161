"""Divides a query at its only aggregation: the rows below it, and everything above them.

Spark does not run a join of streams and an aggregation in complete mode in one query. Two steps do:
the first appends the rows of the join, the second aggregates them. The columns between them are
those that the aggregation uses, under neutral names, since a join may give two columns one name.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import all_of
from cutwater.spark.jvm.internals import Internals


def rows_below(internals: Internals, frame: DataFrame) -> DataFrame:
    """Return the rows that the aggregation of a query reads: a filter, a join, and so on."""
    _, aggregation = _find(frame)
    child = aggregation.children().apply(0)
    expressions = internals.jvm.org.apache.spark.sql.catalyst.expressions
    used = _used(aggregation)
    ids = internals.scala_object(expressions, "NamedExpression")
    columns = [
        _alias(internals, column, f"c{at}", ids.newExprId()) for at, column in enumerate(used)
    ]
    if not columns:
        one = internals.scala_object(expressions, "Literal").apply(1)
        columns = [_alias(internals, one, "c0", ids.newExprId())]
    return internals.frame(_project(internals, columns, child))


def aggregated(internals: Internals, frame: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the query above rows that `rows_below` has made of it."""
    above, aggregation = _find(frame)
    source = rows._jdf.queryExecution().analyzed()
    given = all_of(source.output())
    columns = [
        _alias(internals, column, str(wanted.name()), wanted.exprId())
        for column, wanted in zip(given, _used(aggregation), strict=False)
    ]
    plan = aggregation.withNewChildren(_sequence(internals, [_project(internals, columns, source)]))
    for node in reversed(above):
        plan = node.withNewChildren(_sequence(internals, [plan]))
    return internals.frame(plan)


def _find(frame: DataFrame) -> tuple[list[Any], Any]:
    """Return the aggregation of a plan, and the nodes above it from the top down."""
    plan, above = frame._jdf.queryExecution().analyzed(), []
    while plan.getClass().getSimpleName() != plan_nodes.AGGREGATE:
        above.append(plan)
        plan = plan.children().apply(0)
    return above, plan


def _used(aggregation: Any) -> list[Any]:
    references = aggregation.references()
    output = all_of(aggregation.children().apply(0).output())
    return [column for column in output if references.contains(column)]


def _alias(internals: Internals, expression: Any, name: str, identity: Any) -> Any:
    alias = internals.jvm.org.apache.spark.sql.catalyst.expressions.Alias
    return alias(expression, name, identity, internals.nil, internals.none, internals.nil)


def _project(internals: Internals, columns: Iterable[Any], child: Any) -> Any:
    plans = internals.jvm.org.apache.spark.sql.catalyst.plans.logical
    return plans.Project(_sequence(internals, columns), child)


def _sequence(internals: Internals, items: Iterable[Any]) -> Any:
    found = internals.jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return internals.jvm.org.apache.spark.api.python.PythonUtils.toSeq(found)
