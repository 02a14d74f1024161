"""Spark's internal classes, and the check that they exist.

Besides this module, `parquet`, `logical_plan` and `column_pruning` use such classes through py4j,
and `session` names some in settings; no other module does. Spark guarantees none of them. When a
pipeline starts, `self_check` looks up every class that is called or set by its name, so a Spark
without it is refused at once (docs/adr/0007). Where versions of Spark differ, `versions` knows how.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from cutwater.errors import SessionError
from cutwater.spark.analysis.logical_plan import has_hidden_variation
from cutwater.spark.jvm.callbacks import secure
from cutwater.spark.jvm.parquet import ParquetFiles
from cutwater.spark.session.session import needed_settings
from cutwater.spark.versions import SparkVersion, require_version

POOL: Final = "spark.scheduler.pool"
"""The local property that names the scheduler pool of a step's jobs: each step has its own."""

SOURCE_INTERFACE: Final = "org.apache.spark.sql.execution.streaming.Source"
SINK_INTERFACE: Final = "org.apache.spark.sql.execution.streaming.Sink"
ADMISSION_INTERFACE: Final = (
    "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
)

_READS_ONCE: Final = "SingleBatchExecutor"
_WATERMARKS: Final = "WatermarkTracker"
_WATERMARK_FIELD: Final = "operatorToWatermarkMap"
FILE_LIST: Final = "rootPaths"
"""The field of a list of files in which Spark keeps what a batch reads."""
READ_LIMITS: Final = "uniqueSources_$eq"
"""The method that sets a running query's sources and their limits."""
_FILES: Final = "org.apache.spark.sql.execution.datasources"
_CATALYST: Final = "org.apache.spark.sql.catalyst"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQuery:
    """A streaming query to start.

    Attributes:
        trigger_ms: The min time between batches; None for as soon as there is data.
        available_now: End the query when it has read what is there now.
    """

    frame: DataFrame
    title: str
    checkpoint: str
    output_mode: str
    trigger_ms: int | None = None
    available_now: bool = False


class Internals:
    """Spark's internal classes, as one session sees them."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.jvm: Any = spark._jvm
        self.session: Any = spark._jsparkSession

    @cached_property
    def version(self) -> SparkVersion:
        """What is particular to this version of Spark."""
        return require_version(self.spark.version)

    def self_check(self) -> None:
        """Look up every class that is called or set by its name; SessionError if one is missing."""
        missing = [name for name in self._class_names() if not self._has_class(name)]
        if not missing:
            tracker = f"{self.version.runtime}.{_WATERMARKS}"
            fields = self.jvm.java.lang.Class.forName(tracker).getDeclaredFields()
            if _WATERMARK_FIELD not in {field.getName() for field in fields}:
                missing.append(f"{tracker}.{_WATERMARK_FIELD}")
            index = f"{_FILES}.InMemoryFileIndex"
            fields = self.jvm.java.lang.Class.forName(index).getDeclaredFields()
            if FILE_LIST not in {field.getName() for field in fields}:
                missing.append(f"{index}.{FILE_LIST}")
            query = f"{self.version.runtime}.StreamExecution"
            methods = self.jvm.java.lang.Class.forName(query).getMethods()
            if READ_LIMITS not in {method.getName() for method in methods}:
                missing.append(f"{query}.{READ_LIMITS}")
        if missing:
            message = (
                f"Spark {self.spark.version} here has no {', no '.join(missing)}, which pipelines "
                "need: start the session with the Spark that Apache publishes, unchanged."
            )
            raise SessionError(message)
        if isinstance(self.jvm.org.apache.spark.sql.classic.Dataset, JavaPackage):
            message = "The session's JVM cannot be reached from Python."
            raise SessionError(message)

    def _class_names(self) -> tuple[str, ...]:
        runtime = self.version.runtime
        return (
            SOURCE_INTERFACE,
            ADMISSION_INTERFACE,
            SINK_INTERFACE,
            f"{runtime}.StreamingExecutionRelation",
            f"{runtime}.SerializedOffset",
            f"{runtime}.MicroBatchExecution",
            f"{runtime}.{_READS_ONCE}",
            f"{runtime}.{_WATERMARKS}",
            f"{_FILES}.LogicalRelation",
            f"{_FILES}.HadoopFsRelation",
            f"{_FILES}.InMemoryFileIndex",
            f"{_FILES}.DataSource",
            f"{_FILES}.NoopCache",
            f"{_FILES}.FileFormatWriter",
            f"{_FILES}.FileFormatWriter$OutputSpec",
            f"{_FILES}.parquet.ParquetFileFormat",
            "org.apache.spark.sql.execution.CoalesceExec",
            "org.apache.spark.api.python.PythonUtils",
            "org.apache.spark.internal.io.FileCommitProtocol",
            "org.apache.spark.sql.classic.Dataset",
            "org.apache.spark.util.SystemClock",
            f"{_CATALYST}.plans.logical.LocalRelation",
            f"{_CATALYST}.plans.logical.Range",
            f"{_CATALYST}.trees.TreePattern",
            f"{_CATALYST}.analysis.UnsupportedOperationChecker",
            f"{_CATALYST}.optimizer.ColumnPruning",
            f"{_CATALYST}.streaming.InternalOutputModes",
            *(name for key, name in needed_settings(self.version).items() if key.endswith("Class")),
        )

    def _has_class(self, name: str) -> bool:
        try:
            self.jvm.java.lang.Class.forName(name)
        except Py4JError:
            return False
        return True

    @cached_property
    def _runtime(self) -> Any:
        package = self.jvm
        for name in self.version.runtime.split("."):
            package = getattr(package, name)
        return package

    @staticmethod
    def scala_object(package: Any, name: str) -> Any:
        """Return a Scala object, or the companion of a Scala class."""
        return getattr(getattr(package, f"{name}$"), "MODULE$")

    def let_java_call(self) -> None:
        """Open the port for calls from the JVM, before it is handed an object that it may call."""
        gateway = self.spark.sparkContext._gateway
        secure(gateway)
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]

    # -- sources that live in this process

    def streaming_frame(self, source: object) -> DataFrame:
        """Return a stream over a py4j proxy of Spark's `Source` (see `native_source`)."""
        self.let_java_call()
        companion = self.scala_object(self._runtime, "StreamingExecutionRelation")
        return self.frame(companion.apply(source, self.session))

    def frame(self, logical_plan: Any) -> DataFrame:
        return DataFrame(self._datasets.ofRows(self.session, logical_plan), self.spark)

    @cached_property
    def _datasets(self) -> Any:
        return self.jvm.org.apache.spark.sql.classic.Dataset

    def streaming_range(self, start: int, end: int, slices: int) -> DataFrame:
        """Return the numbers from start up to end, column `id`, as a frame that is streaming."""
        batch = self.spark.range(start, end, 1, slices)._jdf.queryExecution().analyzed()
        return self.frame(self.range_leaf(start, end, slices, batch.output()))

    def empty_leaf(self, columns: Any, *, streaming: bool) -> Any:
        """Return the plan of no rows, with the columns of another leaf."""
        plans = self.jvm.org.apache.spark.sql.catalyst.plans.logical
        return plans.LocalRelation(columns, self.nil, streaming, self.none)

    def no_rows(self, schema: StructType) -> DataFrame:
        """Return no rows with these columns, as a frame that is streaming."""
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
        return self.streaming_range(0, 0, 1).select(*columns)

    def as_stream(self, frame: DataFrame) -> Any:
        """Return the rows of a frame that is not streaming as a Java Dataset that is."""
        java = frame._jdf
        rows = java.queryExecution().toRdd()
        return java.sparkSession().internalCreateDataFrame(rows, java.schema(), True)

    def range_leaf(self, start: int, end: int, slices: int, columns: Any) -> Any:
        """Return the leaf of a `streaming_range`, over other numbers."""
        some_slices = self.some(self.jvm.java.lang.Integer.valueOf(slices))
        return self._range(start, end, 1, some_slices, columns, True)

    @cached_property
    def _range(self) -> Any:
        return self.jvm.org.apache.spark.sql.catalyst.plans.logical.Range

    # -- sinks that live in this process

    def start_query(self, query: NewQuery, sink: object) -> StreamingQuery:
        """Start a query with a py4j proxy of Spark's `Sink` (see `native_sink`)."""
        self.let_java_call()
        manager = query.frame.sparkSession._jsparkSession.sessionState().streamingQueryManager()
        triggers = self.jvm.org.apache.spark.sql.streaming.Trigger
        trigger = (
            triggers.AvailableNow()
            if query.available_now
            else triggers.ProcessingTime(int(query.trigger_ms or 0))
        )
        # The name of the sink, which only Spark's own sink evolution uses.
        sink_name = (self.none,) if self.version.names_sinks else ()
        java = manager.startQuery(
            self.some(query.title),
            *sink_name,
            self.some(query.checkpoint),
            query.frame._jdf,
            self.no_options,
            sink,
            self._output_mode(query.output_mode),
            False,
            True,
            trigger,
            self.jvm.org.apache.spark.util.SystemClock(),
            self.some(None),
            self.some(None),
        )
        return StreamingQuery(java)

    def batch_frame(self, java_frame: Any) -> Any:
        """Return a planned batch as a Java Dataset that is not streaming any more."""
        rows = java_frame.queryExecution().toRdd()
        return java_frame.sparkSession().internalCreateDataFrame(rows, java_frame.schema(), False)

    def no_columns(self) -> Any:
        return self.jvm.org.apache.spark.sql.types.StructType()

    def no_capabilities(self) -> Any:
        return self.jvm.java.util.Collections.emptySet()

    @cached_property
    def parquet(self) -> ParquetFiles:
        """Spark's own reader and writer of Parquet files."""
        return ParquetFiles(self)

    # -- values of Spark's

    @cached_property
    def nil(self) -> Any:
        return self.scala_object(self.jvm.scala.collection.immutable, "Nil")

    @cached_property
    def no_options(self) -> Any:
        return self.scala_object(self.jvm.scala.collection.immutable, "Map").empty()

    @cached_property
    def none(self) -> Any:
        return self.some(None)

    def offset(self, text: str) -> Any:
        return self._serialized_offset(text)

    @cached_property
    def _serialized_offset(self) -> Any:
        return self._runtime.SerializedOffset

    def some(self, value: Any) -> Any:
        return self._option.empty() if value is None else self._option.apply(value)

    @cached_property
    def _option(self) -> Any:
        return self.jvm.scala.Option

    def java_schema(self, schema: StructType) -> Any:
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())

    def read_all(self) -> Any:
        return self.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def late_rows(self, query: StreamingQuery, since: str) -> tuple[str, int]:
        """Count the rows dropped as late since a trigger; return the newest trigger with them.

        A batch is identified by its trigger: an idle query reports the number of the batch to come.
        """
        progress = query._jsq.recentProgress()
        newest, dropped = since, 0
        for index in range(len(progress) - 1, -1, -1):
            trigger = str(progress[index].timestamp())
            if trigger <= since:
                break
            newest = max(newest, trigger)
            dropped += sum(
                int(operator.numRowsDroppedByWatermark())
                for operator in progress[index].stateOperators()
            )
        return newest, dropped

    # -- how a query has ended

    def is_stop_requested(self, query: StreamingQuery) -> bool:
        """Return whether a stop of the query was requested.

        A JVM that has ended cannot report it; then the batch has an error of its own.
        """
        try:
            return not query.isActive
        except Py4JError:
            return False

    def found_no_more(self, query: StreamingQuery) -> bool:
        """Return whether there was nothing left when the query last looked for a batch to run."""
        return bool(query._jsq.streamingQuery().noNewData())

    def reads_once(self, query: StreamingQuery) -> bool:
        """Return whether the query has read what is there in a single batch.

        Spark does so if one of the sources cannot report its current end.
        """
        executor = query._jsq.streamingQuery().triggerExecutor()
        return executor is not None and executor.getClass().getSimpleName() == _READS_ONCE

    # -- the watermarks of a query's inputs

    def watermarks(self, query: StreamingQuery) -> dict[str, int]:
        """Return a query's watermarks after its last batch, by the ids of `withWatermark` calls.

        Calls without a row are left out.
        """
        tracker = query._jsq.streamingQuery().watermarkTracker()
        if tracker is None:
            # The query is about to start.
            return {}
        found = {}
        pairs = tracker.watermarkMap().iterator()
        while pairs.hasNext():
            pair = pairs.next()
            if pair._2().isDefined():
                found[str(pair._1().toString())] = int(pair._2().get())
        return found

    def set_watermarks(self, query: StreamingQuery, watermarks: Mapping[str, int]) -> None:
        """Set the watermarks of a query's `withWatermark` calls, by their ids.

        Called on the query's own thread, inside a batch: Spark uses them when the batch ends.
        """
        tracker = query._jsq.streamingQuery().watermarkTracker()
        field = tracker.getClass().getDeclaredField(_WATERMARK_FIELD)
        field.setAccessible(True)
        calls = field.get(tracker)
        options, numbers = self.jvm.scala.jdk.javaapi.OptionConverters, self.jvm.java.util
        for call, at_ms in watermarks.items():
            # py4j makes an Integer of a small number, where Spark expects a Long.
            value = options.toScala(numbers.OptionalLong.of(at_ms))
            key = numbers.UUID.fromString(call)
            if calls.contains(key):
                calls.put(key, value)

    # -- looking at plans

    def check_streaming(self, frame: DataFrame, output_mode: str) -> str | None:
        """Return Spark's reason why a streaming plan cannot run in an output mode, or None."""
        mode = self._output_mode(output_mode)
        checker = self.scala_object(
            self.jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker"
        )
        try:
            checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
        except AnalysisException as error:
            return str(error).split("\n", 1)[0]
        return None

    def is_reproducible(self, frame: DataFrame) -> bool:
        """Return whether a plan gives the same rows whenever it runs on the same input."""
        plan = frame._jdf.queryExecution().analyzed()
        return bool(plan.deterministic()) and not self.uses_passing_values(plan)

    def uses_passing_values(self, plan: Any) -> bool:
        """Return whether a plan uses the current time, user or database, or a random key."""
        patterns = self.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        return bool(plan.containsPattern(patterns.CURRENT_LIKE())) or has_hidden_variation(plan)

    def calls_functions(self, frame: DataFrame) -> bool:
        """Return whether a plan calls functions of the user, in Python or on the JVM."""
        patterns = self.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        plan = frame._jdf.queryExecution().analyzed()
        kinds = (patterns.PYTHON_UDF(), patterns.SCALA_UDF())
        return any(bool(plan.containsPattern(kind)) for kind in kinds)

    def _output_mode(self, name: str) -> Any:
        return self.jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(name)
