"""Spark's own Parquet reader and writer, called directly, and analysed plans that batches reuse.

Spark's public reader and writer do lookups that a channel does not need. Building and analysing the
columns of a batch takes dozens of calls into the JVM and milliseconds of Spark's own time. A batch
that runs the same computation as the one before it, over other files or other numbers, reuses the
analysed plan (`PlanTemplate`).

Uses Spark's internal classes, as `internals` does. Finding a class costs calls into the JVM, so
each class is looked up once.
"""

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame

from cutwater.sinks.base import STRICT_READING
from cutwater.spark.analysis.logical_plan import describe_expressions

if TYPE_CHECKING:
    from cutwater.spark.jvm.internals import Internals

_ROWS: Final = "numOutputRows"
"""What Spark's file writer calls the number of rows that it has written."""


class _Scanning(NamedTuple):
    """What a scan is built with: each of these costs calls into the JVM to find."""

    sources: Any
    sequences: Any
    anything: tuple[Any, ...]
    index: Any
    cache: Any
    relation: Any
    no_columns: Any
    parquet: Any
    logical: Any
    strict: Any


class Leaf(NamedTuple):
    """The plan of a scan, and how many bytes the files have that Spark found."""

    plan: Any
    found_bytes: int


class _Writing(NamedTuple):
    """What a write is built with, for the same reason."""

    protocol: Any
    writer: Any
    spec: Any
    parquet: Any
    nothing: Any
    counting: Any
    counter: Any
    settings: Any


class ParquetFiles:
    """Scans and writes of one session."""

    def __init__(self, internals: "Internals") -> None:
        self._known = internals

    @cached_property
    def _files(self) -> Any:
        return self._known.jvm.org.apache.spark.sql.execution.datasources

    @cached_property
    def _hadoop(self) -> Any:
        return self._known.session.sessionState().newHadoopConf()

    def leaf(
        self, files: Sequence[str], java_schema: Any, *, streaming: bool, columns: Any = None
    ) -> Leaf:
        """Return the plan of Spark's own scan, without the lookups of Spark's public reader.

        A file that does not exist is left out of the plan, so the caller compares the bytes. A
        file that is lost or damaged later is an error, regardless of the session's settings.

        Args:
            columns: The columns of another such leaf, to reuse; None for new ones.
        """
        known = self._scanning
        paths = known.sources.checkAndGlobPathIfNecessary(
            known.sequences.toSeq(list(files)),
            self._hadoop,
            False,
            False,
            1,
            False,
            *known.anything,
        )
        index = known.index(
            self._known.session,
            paths,
            known.strict,
            self._known.some(java_schema),
            known.cache,
            self._known.none,
            self._known.none,
        )
        relation = known.relation(
            index,
            known.no_columns,
            java_schema,
            self._known.none,
            known.parquet,
            known.strict,
            self._known.session,
        )
        found_bytes = int(index.sizeInBytes())
        if columns is None:
            return Leaf(known.logical.apply(relation, streaming), found_bytes)
        return Leaf(self.relation_leaf(relation, columns, streaming=streaming), found_bytes)

    def relation_leaf(self, relation: Any, columns: Any, *, streaming: bool) -> Any:
        """Return the plan of a scan of any files, with the columns of another leaf."""
        nothing = self._known.none
        return self._scanning.logical.apply(relation, columns, nothing, streaming, nothing)

    def holds(self, java_schema: Any) -> bool:
        """Return whether a file can hold these columns, by the check of Spark's own writer."""
        return bool(self._writing.parquet.supportDataType(java_schema))

    @cached_property
    def _scanning(self) -> "_Scanning":
        sources = self._known.scala_object(self._files, "DataSource")
        default = "checkAndGlobPathIfNecessary$default$7"
        selective = self._known.version.globs_selectively
        return _Scanning(
            sources=sources,
            sequences=self._known.jvm.PythonUtils,
            anything=(getattr(sources, default)(),) if selective else (),
            index=self._files.InMemoryFileIndex,
            cache=self._known.scala_object(self._files, "NoopCache"),
            relation=self._files.HadoopFsRelation,
            no_columns=self._known.no_columns(),
            parquet=self._files.parquet.ParquetFileFormat(),
            logical=self._known.scala_object(self._files, "LogicalRelation"),
            strict=self._known.jvm.PythonUtils.toScalaMap(STRICT_READING),
        )

    def write(
        self, execution: Any, directory: str, options: Mapping[str, str], *, one_file: bool
    ) -> int:
        """Run Spark's file writer on a plan that is ready to run; the directory does not exist yet.

        `options` are Hadoop's. Returns how many rows the committed tasks have counted.
        """
        session = execution.sparkSession()
        settings = session.sessionState().newHadoopConf()
        for name, value in options.items():
            settings.set(name, value)
        plan = execution.executedPlan()
        if one_file:
            plan = self._known.jvm.org.apache.spark.sql.execution.CoalesceExec(1, plan)
        known = self._writing
        committer = known.protocol.instantiate(
            session.sessionState().conf().fileCommitProtocolClass(),
            uuid.uuid4().hex,
            directory,
            False,
        )
        counts = known.counting.metrics()
        known.writer.write(
            session,
            plan,
            known.parquet,
            committer,
            known.spec(directory, self._known.no_options, execution.analyzed().output()),
            settings,
            self._known.nil,
            self._known.none,
            self._known.nil.appended(known.counter(known.settings(settings), counts)),
            self._known.no_options,
            0,
            known.nothing,
        )
        return int(counts.apply(_ROWS).value())

    @cached_property
    def _writing(self) -> "_Writing":
        writer = self._files.FileFormatWriter
        return _Writing(
            protocol=self._known.scala_object(
                self._known.jvm.org.apache.spark.internal.io, "FileCommitProtocol"
            ),
            writer=writer,
            spec=writer.OutputSpec,
            parquet=self._files.parquet.ParquetFileFormat(),
            nothing=getattr(writer, "write$default$12")(),
            counting=self._known.scala_object(self._files, "BasicWriteJobStatsTracker"),
            counter=self._files.BasicWriteJobStatsTracker,
            settings=self._known.jvm.org.apache.spark.util.SerializableConfiguration,
        )


class PlanTemplate:
    """The computation of a frame over its single leaf, analysed once.

    A batch that differs from the one before it only in its leaf takes over the analysed plan. The
    columns keep their ids, as the columns of a stream do.
    """

    def __init__(self, internals: "Internals", frame: DataFrame, leave_out: str = "") -> None:
        """Take the plan of a frame: nodes with one child each, down to a leaf.

        Nodes of the kind `leave_out`, which must not change their input's columns, are dropped.
        """
        self._internals = internals
        self._nodes: list[Any] = []
        node = frame._jdf.queryExecution().analyzed()
        while not node.children().isEmpty():
            if str(node.getClass().getSimpleName()) != leave_out:
                self._nodes.append(node)
            node = node.children().head()
        self._nodes.reverse()
        self.leaf = node
        self.columns = node.output()
        """The columns that every leaf must have."""

    def describe(self) -> str:
        """Return the computation as text, without what differs from run to run."""
        return "\n".join(
            f"{node.getClass().getSimpleName()} {describe_expressions(node)}"
            for node in self._nodes
        )

    def over(self, leaf: Any) -> DataFrame:
        """Return the same computation over another leaf, which must have these columns."""
        plan = leaf
        for node in self._nodes:
            plan = node.withNewChildren(self._internals.nil.appended(plan))
        plan.setAnalyzed()
        return self._internals.frame(plan)
