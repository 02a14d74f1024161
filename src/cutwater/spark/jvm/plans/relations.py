"""SQL whose relations are DataFrames: names in a parsed query are replaced before it is analysed.

`spark-pipelines` resolves the datasets of a query in this way, and so do declarative projects here.
Temporary views would do it too, but all steps share one session, and its views with it. Common
table expressions are substituted first, so that their names are never taken for datasets.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame

from cutwater.spark.jvm.callbacks import returns_java
from cutwater.spark.jvm.internals import Internals

FindRelation = Callable[[tuple[str, ...], bool], DataFrame | None]
"""From the parts of a name, and whether it is read as a stream, to its rows; None if unknown."""

_RELATION: Final = "UnresolvedRelation"
_STATEMENTS: Final = frozenset({"InsertIntoStatement"})
"""Statements that do something and are no command to Spark's parser."""
_Key = tuple[tuple[str, ...], bool]


class Relations:
    """Parses queries in one session, and replaces their relations."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals

    def query(self, text: str, find: FindRelation) -> DataFrame | None:
        """Return the result of a query; None if it names none of the relations that are found.

        Raises:
            ParseException: If Spark cannot parse it.
            AnalysisException: If Spark cannot analyse it.
        """
        plan = self._plan(text)
        frames = self._frames(plan, find)
        return self.replace(plan, frames) if frames else None

    def command(self, text: str) -> str | None:
        """Return the kind of a statement that does something; None for a query.

        Raises:
            ParseException: If Spark cannot parse it.
        """
        plan = self._internals.session.sessionState().sqlParser().parsePlan(text)
        patterns = self._internals.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        kind = str(plan.getClass().getSimpleName())
        acts = bool(plan.containsPattern(patterns.COMMAND())) or kind in _STATEMENTS
        return kind if acts else None

    def names_any(self, text: str, find: FindRelation) -> bool:
        return bool(self._frames(self._plan(text), find))

    def definition(self, plan: Any, find: FindRelation) -> DataFrame:
        """Return the result of a query that is part of a parsed definition."""
        substituted = self._without_common_tables(plan)
        return self.replace(substituted, self._frames(substituted, find))

    def replace(self, plan: Any, frames: dict[_Key, DataFrame]) -> DataFrame:
        plans = {key: frame._jdf.queryExecution().analyzed() for key, frame in frames.items()}
        replaced = self._visit(plan, lambda node: plans.get(_key_of(node)))
        return self._internals.frame(replaced)

    def named(self, frame: DataFrame, *name: str) -> DataFrame:
        """Let the columns of a frame be written with the parts of a name before them."""
        jvm = self._internals.jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        parts = jvm.java.util.ArrayList()
        for part in name[:-1]:
            parts.add(part)
        qualifier = jvm.org.apache.spark.api.python.PythonUtils.toSeq(parts)
        alias = catalyst.AliasIdentifier(name[-1], qualifier)
        plan = frame._jdf.queryExecution().analyzed()
        return self._internals.frame(catalyst.plans.logical.SubqueryAlias(alias, plan))

    def _plan(self, text: str) -> Any:
        parser = self._internals.session.sessionState().sqlParser()
        return self._without_common_tables(parser.parsePlan(text))

    def _without_common_tables(self, plan: Any) -> Any:
        analysis = self._internals.jvm.org.apache.spark.sql.catalyst.analysis
        return self._internals.scala_object(analysis, "CTESubstitution").apply(plan)

    def _frames(self, plan: Any, find: FindRelation) -> dict[_Key, DataFrame]:
        """Find the relations of a plan.

        Names are collected first and answered after that: an error that Python raises inside a
        call from Java would arrive as an error of Java.
        """
        keys: dict[_Key, None] = {}
        self._visit(plan, lambda node: keys.setdefault(_key_of(node)))
        found = ((key, find(*key)) for key in keys)
        return {key: frame for key, frame in found if frame is not None}

    def _visit(self, plan: Any, answer: Callable[[Any], Any]) -> Any:
        self._internals.let_java_call()
        return plan.transformWithSubqueries(_Rule(answer))


def _key_of(relation: Any) -> _Key:
    parts = relation.multipartIdentifier()
    names = tuple(str(parts.apply(at)) for at in range(parts.size()))
    return names, bool(relation.isStreaming())


class _Rule:
    """A Scala function from nodes to nodes: relations that are answered are replaced."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer

    @returns_java
    def applyOrElse(self, node: Any, default: Any) -> Any:  # noqa: ARG002
        """Return what replaces a node. Called by Spark."""
        if node.getClass().getSimpleName() != _RELATION:
            return node
        answer = self._answer(node)
        return node if answer is None else answer

    def toString(self) -> str:
        """Return a name for messages. Called by Spark."""
        return "relations of a project"

    class Java:
        """Declares to py4j which interface it implements."""

        implements: ClassVar[list[str]] = ["scala.PartialFunction"]
