"""A plan that Spark has analysed once, for batches that differ in their leaf alone.

Building columns and analysing them takes dozens of calls into the JVM and milliseconds of Spark's
own. A batch that computes what the one before it has computed, over other files or other numbers,
takes over the analysed plan: its columns keep their ids, as those of a stream do.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from cutwater.spark.jvm.internals import Internals


class PlanTemplate:
    """What a frame computes over its one leaf."""

    def __init__(self, internals: "Internals", frame: DataFrame) -> None:
        """Take over a frame's plan: nodes with one child each, down to a leaf."""
        self._internals = internals
        self._nodes: list[Any] = []
        node = frame._jdf.queryExecution().analyzed()
        while not node.children().isEmpty():
            self._nodes.append(node)
            node = node.children().head()
        self._nodes.reverse()
        self.columns = node.output()
        """The columns of the leaf, which every other leaf must have."""

    def over(self, leaf: Any) -> DataFrame:
        """Return the same over another leaf, which has these columns."""
        plan = leaf
        for node in self._nodes:
            plan = node.withNewChildren(self._internals.nil.appended(plan))
        plan.setAnalyzed()
        return self._internals.frame(plan)
