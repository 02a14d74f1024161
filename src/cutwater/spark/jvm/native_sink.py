"""The end of a streaming query, in the driver's own process: it is handed Spark's planned batch.

`foreachBatch` would turn a batch into rows and let the write be planned again. This is the `Sink`
interface below it: what arrives is the batch as Spark has planned it, so that Spark's own file
writer runs on that very plan (docs/adr/0010).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.errors import RunError
from cutwater.ids import BatchId
from cutwater.sinks.base import FrameRows
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.jvm.callbacks import returns_java
from cutwater.spark.jvm.internals import FILE_LIST, SINK_INTERFACE, Internals


class PlannedBatch:
    """One batch that Spark has planned and not computed yet; use it once. Implements `Rows`."""

    def __init__(
        self,
        internals: Internals,
        java_frame: Any,
        session: Callable[[Any], SparkSession],
        *,
        one_file: bool = False,
    ) -> None:
        """Hold the batch that Spark handed over; `session` gives the query's own session."""
        self._internals = internals
        self._java_frame = java_frame
        self._session = session
        self._one_file = one_file

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._java_frame.schema().json()))

    @property
    def frame(self) -> DataFrame:
        """The batch as a DataFrame that anything can be done with."""
        java = self._internals.batch_frame(self._java_frame)
        frame = DataFrame(java, self._session(java))
        return frame.coalesce(1) if self._one_file else frame

    @property
    def leaf(self) -> Any:
        """What the batch reads, in a plan whose nodes have one child each."""
        return self._leaves.head()

    @property
    def _leaves(self) -> Any:
        return self._java_frame.queryExecution().analyzed().collectLeaves()

    @cached_property
    def _file_indexes(self) -> list[Any]:
        """The lists of files that the streams of files read in this batch, as Spark keeps them."""
        leaves, found = self._leaves, []
        for at in range(leaves.size()):
            leaf = leaves.apply(at)
            if leaf.isStreaming() and leaf.getClass().getSimpleName() == plan_nodes.RELATION:
                relation = leaf.relation()
                if relation.getClass().getSimpleName() == plan_nodes.FILES:
                    found.append(relation.location())
        return found

    def file_counts(self) -> list[int]:
        """Return how many files the batch reads of each stream of files."""
        return [int(index.rootPaths().size()) for index in self._file_indexes]

    def drop_repeated_files(self) -> None:
        """Let the batch read each of its files once.

        Spark's file source takes the names of a batch's files for patterns. A file whose name has
        such characters is found once for every file of the batch, and its rows would be read as
        often. The list of files is used when the batch runs, so it is corrected before that.

        Raises:
            RunError: If files would still be repeated; nothing was read.
        """
        for index in self._file_indexes:
            paths = index.rootPaths()
            distinct = paths.distinct()
            if paths.size() == distinct.size():
                continue
            field = index.getClass().getDeclaredField(FILE_LIST)
            field.setAccessible(True)
            field.set(index, distinct)
            files = index.allFiles()
            if files.size() != files.distinct().size():
                raise RunError(
                    f"Spark would read files of {distinct.head().getParent()} several times, since "
                    "some names have characters of a pattern (* ? [ ] { }). Rename such files."
                )

    def gathered(self) -> "PlannedBatch":
        """Return the same batch, to be written by one task into one file."""
        return PlannedBatch(self._internals, self._java_frame, self._session, one_file=True)

    def count(self) -> int:
        """Compute the batch and keep nothing of it."""
        return int(self._java_frame.queryExecution().toRdd().count())

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Compute the batch into the files of a directory that does not exist yet."""
        if partition_by:
            # Spark's public writer sorts the rows by partition first.
            return FrameRows(self.frame).write_parquet(directory, options, partition_by)
        execution = self._java_frame.queryExecution()
        return self._internals.parquet.write(execution, directory, options, one_file=self._one_file)


class NativeSink:
    """Hands each batch of one query to a function, on the query's own thread."""

    def __init__(
        self, internals: Internals, take: Callable[[PlannedBatch, BatchId], None], title: str
    ) -> None:
        """Call a function for each batch, in order; what it raises ends the query."""
        self._internals = internals
        self._take = take
        self._title = title
        self._session: SparkSession | None = None

    def _session_of(self, java_frame: Any) -> SparkSession:
        """Return the query's own session, a copy of the user's with the query's settings."""
        if self._session is None:
            context = self._internals.spark.sparkContext
            self._session = SparkSession(context, java_frame.sparkSession())
        return self._session

    # -- org.apache.spark.sql.execution.streaming.Sink

    def addBatch(self, number: int, java_frame: Any) -> None:
        """Process a batch. Called by Spark."""
        self._take(PlannedBatch(self._internals, java_frame, self._session_of), BatchId(number))

    def name(self) -> str:
        return self._title

    @returns_java
    def schema(self) -> Any:
        """Return no columns: Spark never reads those of a v1 sink."""
        return self._internals.no_columns()

    @returns_java
    def capabilities(self) -> Any:
        """Return no capabilities: a v1 sink has none."""
        return self._internals.no_capabilities()

    def toString(self) -> str:
        """Name the sink in Spark's own messages and progress."""
        return self._title

    def hashCode(self) -> int:
        return id(self) % 2**31

    def equals(self, other: object) -> bool:
        return self is other

    class Java:
        """Declares to py4j which interface a sink implements."""

        implements: ClassVar[list[str]] = [SINK_INTERFACE]
