"""Calls the flows of a project with the rows that other datasets have.

`Evaluation` answers the names that one flow reads. Its `supply` gives the rows of datasets that
have a channel, while the pipeline runs, or stand-ins for them, while dependencies are discovered.
For every other dataset the flow that defines it is called in place: `spark-pipelines` fuses views
into their readers, and a table that is computed from rows that do not change is the same there.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from cutwater.declarative.datasets import Dataset, Datasets
from cutwater.declarative.definitions import FlowDefinition
from cutwater.declarative.session import ProjectSession, current_reader, standing_in
from cutwater.sinks.sql_text import quoted
from cutwater.spark.analysis.analysis import channel_form
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.relations import Relations
from cutwater.spark.jvm.plans.sql_statements import SqlStatements

Supply = Callable[[Dataset, bool], DataFrame | None]
"""From a dataset, and whether it is read as a stream, to its rows; None to call its flow."""


Columns = Callable[[str], StructType | None]
"""From the key of a dataset that is called in place to the columns of its table, if it has one."""


class NotADataFrame(Exception):
    """A flow has returned something else than a DataFrame."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Calls flows, and answers the names that they read (`DatasetReader`)."""

    datasets: Datasets
    session: ProjectSession
    spark: SparkSession
    supply: Supply
    columns: Columns

    def call(self, flow: FlowDefinition) -> DataFrame:
        """Call a flow.

        Raises:
            NotADataFrame: If it returns something else.
            Exception: Whatever the flow raises.
        """
        with standing_in(self.session, self):
            result = flow.function()
        if not isinstance(result, DataFrame):
            raise NotADataFrame(f"returns {type(result).__name__}, not a DataFrame")
        # The flow may have made it in a session object of its own.
        return DataFrame(result._jdf, self.spark)  # noqa: SLF001 - pyspark has no other way

    def read(self, parts: tuple[str, ...], *, streaming: bool) -> DataFrame | None:
        dataset = self.datasets.find(parts)
        if dataset is None:
            return None
        frame = self.supply(dataset, streaming)
        if frame is None:
            frame = self.call(dataset.flows[0])
            columns = self.columns(dataset.key)
            frame = frame if columns is None else conformed(frame, columns)
        return Relations(Internals(self.spark)).named(frame, *dataset.alias)


def conformed(frame: DataFrame, columns: StructType, partitions: Collection[str] = ()) -> DataFrame:
    """Return rows with the columns of a table, in its order.

    A column that a flow lacks is null. A watermark ends at a table: a flow that reads it as a
    stream sets its own. The directory of an empty text is that of null, so it is null for every
    reader of a table that is divided by it.
    """
    for column in columns.fields:
        is_text = isinstance(column.dataType, StringType)
        if is_text and column.name in partitions and column.name in frame.columns:
            value = F.nullif(F.col(quoted(column.name)), F.lit(""))
            frame = frame.withColumn(column.name, value)
    if frame.columns == columns.names and channel_form(frame.schema).watermark is None:
        return frame
    found = set(frame.columns)
    return frame.select(
        *(
            (
                F.col(quoted(column.name))
                if column.name in found
                else F.lit(None).cast(column.dataType)
            ).alias(column.name, metadata={})
            for column in columns.fields
        )
    )


def evaluate_statement(session: ProjectSession, text: str) -> DataFrame:
    """Evaluate the query in a SQL definition, for the flow that is called now."""

    def find(parts: tuple[str, ...], streaming: bool) -> DataFrame | None:
        reader = current_reader()
        return None if reader is None else reader.read(parts, streaming=streaming)

    return SqlStatements(Internals(session.real)).evaluate(text, find)
