"""Events of a channel as rows: Spark's own Parquet scan, for streaming and for batch reads.

A channel carries only the columns that at least one of its readers reads (docs/adr/0024). Readers
still see all columns; a column that is not carried raises an error if a row of it is evaluated.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.errors import RunError
from cutwater.runtime.channel import Channel, Columns
from cutwater.spark.jvm.by_reference.source_reference import SourceReference
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.parquet import PlanTemplate

_EVENT: Final = "__cutwater_event"
_RANK: Final = "__cutwater_rank"


class ChannelScan:
    """Scans one channel; created before the carried columns are chosen, used after."""

    def __init__(self, internals: Internals, channel: Channel, keys: tuple[str, ...] = ()) -> None:
        """Scan for one reader.

        With `keys` the channel carries updates: of the Events of a batch only the newest rows for
        each value of these columns are wanted.
        """
        self._internals = internals
        self._channel = channel
        self._keys = keys
        self._templates: dict[bool, PlanTemplate] = {}

    def rows(self, start: int, end: int, *, streaming: bool) -> DataFrame:
        """Return the rows of the Events between two positions.

        Raises:
            RunError: If a file of them is gone, or not as large as it was: rows would be missing.
        """
        reference = self._channel.reference
        if isinstance(reference, SourceReference):
            return reference.rows(self._channel, start, end, streaming=streaming)
        template = self._templates.get(streaming)
        columns = None if template is None else template.columns
        leaf = self._leaf(start, end, streaming=streaming, columns=columns)
        if self._keys and end - start > 1:
            return self._all_columns_of(_newest(self._internals.frame(leaf), self._keys))
        if template is not None:
            return template.over(leaf)
        frame = self._all_columns_of(self._internals.frame(leaf))
        self._templates[streaming] = PlanTemplate(self._internals, frame)
        return frame

    def _leaf(self, start: int, end: int, *, streaming: bool, columns: Any) -> Any:
        """Plan the scan; fail if bytes are missing, since Spark leaves out files it cannot find."""
        while True:
            events = self._channel.events(start, end)
            files = [str(path) for path in self._channel.paths(events)]
            leaf = self._internals.parquet.leaf(
                files or [str(self._channel.empty)],
                self._java_schema,
                streaming=streaming,
                columns=columns,
            )
            if leaf.found_bytes == sum(event.size_bytes for event in events):
                return leaf.plan
            if events == self._channel.events(start, end):
                why = self._channel.problem(events) or "Spark does not find all of its files"
                raise RunError(
                    f"channel {self._channel.id} has lost rows that were not read yet: {why}. "
                    "Nothing but Cutwater may write below the scratch directory."
                )
            # Some of them were freed meanwhile: what is read again is thrown away.

    def _all_columns_of(self, rows: DataFrame) -> DataFrame:
        return rows if self._all_columns is None else rows.select(self._all_columns)

    @cached_property
    def _java_schema(self) -> Any:
        return self._internals.java_schema(columns_of(self._channel.carried))

    @cached_property
    def _all_columns(self) -> list[Column] | None:
        """The columns of the channel's form; None if those are what it carries."""
        carried_columns = columns_of(self._channel.carried)
        schema = columns_of(self._channel.form.schema)
        if carried_columns == schema:
            return None
        missing = F.raise_error(
            F.lit(f"channel {self._channel.id} does not carry a column that is read from it")
        )
        return [
            F.col(quote(field.name))
            if field.name in carried_columns.names
            else missing.cast(field.dataType).alias(field.name)
            for field in schema.fields
        ]


def columns_of(columns: Columns) -> StructType:
    """Return the columns of a channel as Spark's own type, which they always are here."""
    assert isinstance(columns, StructType)
    return columns


def carry(channel: Channel, names: Collection[str]) -> None:
    """Restrict a channel to these columns; at least one, since Parquet needs one."""
    fields = columns_of(channel.form.schema).fields
    channel.carry(StructType([field for field in fields if field.name in names] or fields[:1]))


def select_carried(frame: DataFrame, channel: Channel | None) -> DataFrame:
    """Return the columns of a step's rows that its channel carries; all without a channel."""
    if channel is None or channel.carried == channel.form.schema:
        return frame
    return frame.select(*map(quote, channel.carried.names))


def quote(name: str) -> str:
    """Quote a column's name, so that Spark reads it as a single name."""
    return f"`{name.replace('`', '``')}`"


def _newest(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Keep for each key the rows of the last Event that has some (rule F31).

    An Event is a directory, named so that they sort in the order of Events.
    """
    columns = [quote(name) for name in rows.columns]
    # A key may also be what Spark takes for one: in other letters, or a part of a column.
    named_keys = [quote(key) if key in rows.columns else key for key in keys]
    latest_first = Window.partitionBy(*named_keys).orderBy(F.col(_EVENT).desc())
    directory = F.substring_index("_metadata.file_path", "/", -2)
    named = rows.select("*", F.substring_index(directory, "/", 1).alias(_EVENT))
    ranked = named.withColumn(_RANK, F.rank().over(latest_first))
    return ranked.where(F.col(_RANK) == 1).select(*columns)
