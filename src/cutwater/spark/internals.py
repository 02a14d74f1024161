"""The only module that touches Spark's internal classes, and the check that they are there.

Everything here goes through py4j to classes that Spark does not promise to keep. `self_check` asks
for each of them when a pipeline starts, so that another Spark version says what it lacks at once
and by name (docs/adr/0007). Tested on Spark 4.3; the package of the streaming runtime moved in
4.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.errors import SessionError
from cutwater.spark.operators import StateOperator, state_operator

SOURCE_INTERFACE: Final = "org.apache.spark.sql.execution.streaming.Source"
ADMISSION_INTERFACE: Final = (
    "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
)

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_CATALYST: Final = "org.apache.spark.sql.catalyst"


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
    text: str = ""

    def walk(self) -> Sequence["PlanNode"]:
        """Return this node and all below it, parents first."""
        found = [self]
        for child in self.children:
            found += child.walk()
        return found


class Internals:
    """Spark's internal classes, as one session sees them."""

    def __init__(self, spark: SparkSession) -> None:
        """Use this session's JVM; nothing is looked up yet."""
        self.spark = spark
        self._jvm: Any = spark._jvm
        self._session: Any = spark._jsparkSession

    def self_check(self) -> None:
        """Ask for every class this module uses.

        Raises:
            SessionError: Naming the one that is missing.
        """
        for name in (
            SOURCE_INTERFACE,
            ADMISSION_INTERFACE,
            f"{self._runtime_name}.StreamingExecutionRelation",
            f"{self._runtime_name}.SerializedOffset",
            "org.apache.spark.sql.execution.datasources.LogicalRelation",
            "org.apache.spark.sql.classic.Dataset",
            f"{_CATALYST}.plans.logical.Range",
            f"{_CATALYST}.analysis.UnsupportedOperationChecker",
            f"{_CATALYST}.streaming.InternalOutputModes",
        ):
            try:
                self._jvm.java.lang.Class.forName(name)
            except Py4JError as error:
                message = (
                    f"Spark {self.spark.version} has no class {name}, which channels need. "
                    "Cutwater is tested with Spark 4.3."
                )
                raise SessionError(message) from error
        if isinstance(self._jvm.org.apache.spark.sql.classic.Dataset, JavaPackage):
            message = "The session's JVM cannot be reached from Python."
            raise SessionError(message)

    @cached_property
    def _runtime_name(self) -> str:
        major, minor = (int(part) for part in self.spark.version.split(".")[:2])
        return f"{_STREAMING}.runtime" if (major, minor) >= (4, 1) else _STREAMING

    @cached_property
    def _runtime(self) -> Any:
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        return streaming.runtime if self._runtime_name.endswith("runtime") else streaming

    @staticmethod
    def _object(package: Any, name: str) -> Any:
        """Return a Scala object, or the companion of a Scala class."""
        return getattr(getattr(package, f"{name}$"), "MODULE$")

    # -- sources that live in this process

    def streaming_frame(self, source: object) -> DataFrame:
        """Return a streaming DataFrame over a source that Python answers for.

        Args:
            source: A py4j proxy of Spark's `Source` (see `native_source`).
        """
        gateway = self.spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        companion = self._object(self._runtime, "StreamingExecutionRelation")
        return self.frame(companion.apply(source, self._session))

    def frame(self, logical_plan: Any) -> DataFrame:
        """Return a DataFrame of a logical plan."""
        return DataFrame(self.java_frame(logical_plan), self.spark)

    def java_frame(self, logical_plan: Any) -> Any:
        """Return a Java Dataset of a logical plan."""
        return self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._session, logical_plan)

    def streaming_scan(self, batch: DataFrame) -> DataFrame:
        """Return a batch scan of files as a frame that counts as streaming."""
        relation = batch._jdf.queryExecution().analyzed().relation()
        package = self._jvm.org.apache.spark.sql.execution.datasources
        return self.frame(self._object(package, "LogicalRelation").apply(relation, True))

    def streaming_range(self, start: int, end: int, slices: int) -> DataFrame:
        """Return the numbers from start up to end, column `id`, as a frame that is streaming."""
        plans = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        batch = self.spark.range(start, end, 1, slices)._jdf.queryExecution().analyzed()
        return self.frame(plans.Range(start, end, 1, batch.numSlices(), batch.output(), True))

    def over_range(self, template: DataFrame, start: int, end: int, slices: int) -> Any:
        """Return what a template computes, over other numbers, as a Java Dataset.

        Columns are built through dozens of calls into the JVM; an analysed plan is put on
        another range with a handful.

        Args:
            template: A chain of projections over a `streaming_range`.
            start: The first number.
            end: The number behind the last.
            slices: In how many partitions.
        """
        chain = []
        node = template._jdf.queryExecution().analyzed()
        while not node.children().isEmpty():
            chain.append(node)
            node = node.children().head()
        plans = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        some_slices = self.some(self._jvm.java.lang.Integer.valueOf(slices))
        rebuilt = plans.Range(start, end, 1, some_slices, node.output(), True)
        nil = self._object(self._jvm.scala.collection.immutable, "Nil")
        for parent in reversed(chain):
            rebuilt = parent.withNewChildren(nil.appended(rebuilt))
        return self.java_frame(rebuilt)

    def offset(self, text: str) -> Any:
        """Return an offset of Spark's that holds this text."""
        return self._runtime.SerializedOffset(text)

    def some(self, value: Any) -> Any:
        """Return a Scala Option; None gives the empty one."""
        option = self._jvm.scala.Option
        return option.empty() if value is None else option.apply(value)

    def java_schema(self, schema: StructType) -> Any:
        """Return a schema as Java knows it."""
        return self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())

    def read_all(self) -> Any:
        """Return Spark's read limit without a limit."""
        return self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    # -- looking at plans

    def plan_of(self, frame: DataFrame) -> PlanNode:
        """Return the analysed plan of a frame."""
        analysed = frame._jdf.queryExecution().analyzed()
        return replace(self._node(analysed), text=str(analysed.toString()))

    def _node(self, plan: Any) -> PlanNode:
        kind = plan.getClass().getSimpleName()
        children = plan.children()
        source, options = self._source_of(kind, plan)
        return PlanNode(
            kind=kind,
            is_streaming=plan.isStreaming(),
            children=tuple(self._node(children.apply(at)) for at in range(children.size())),
            has_subquery=not plan.subqueries().isEmpty(),
            source=source,
            options=options,
            relation=f"{source} {plan.output().toString()}" if source else "",
            state=state_operator(kind, plan),
        )

    def _source_of(self, kind: str, plan: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
        if kind == "StreamingRelation":
            found = plan.dataSource().options()
            return plan.sourceName(), _pairs(found)
        if kind == "StreamingRelationV2":
            return plan.sourceName(), _pairs_of_java(plan.extraOptions().asCaseSensitiveMap())
        if kind == "StreamingExecutionRelation":
            return str(plan.source().toString()), ()
        return "", ()

    def check_streaming(self, frame: DataFrame, output_mode: str) -> str | None:
        """Let Spark say why a streaming plan cannot run in an output mode; None if it can."""
        modes = self._jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
        mode = modes.apply(output_mode)
        checker = self._object(
            self._jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker"
        )
        try:
            checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
        except AnalysisException as error:
            return str(error).split("\n", 1)[0]
        return None


def _pairs(options: Any) -> tuple[tuple[str, str], ...]:
    found = []
    pairs = options.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found.append((str(pair._1()), str(pair._2())))
    return tuple(found)


def _pairs_of_java(options: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(options[key])) for key in options)
