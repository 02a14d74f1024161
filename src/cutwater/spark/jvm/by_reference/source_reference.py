"""A channel by reference: its Events name rows of the source instead of holding them.

The source's query runs no job. It decides what each batch reads, as Spark's own query does, and the
Event says what that is. Every reader evaluates the source's plan over it, so that Spark reads only
the columns and rows that this reader needs, and several small batches of the source become one
batch of a reader that lags (docs/adr/0044).
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame

from cutwater.errors import RecoveryError, RunError
from cutwater.ids import BatchId
from cutwater.protocol.messages import REFERENCE, Event
from cutwater.runtime.channel import Channel
from cutwater.runtime.output import Written
from cutwater.sinks.base import Rows
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.jvm.by_reference.file_ranges import FileRanges, is_file_source, why_not_files
from cutwater.spark.jvm.by_reference.kafka_ranges import KafkaRanges, is_kafka, why_not_kafka
from cutwater.spark.jvm.by_reference.source_ranges import Range, SourceRanges, lost
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_sink import PlannedBatch
from cutwater.spark.jvm.parquet import PlanTemplate
from cutwater.store.backends.directories import remove_tree

_PASSED_THROUGH: Final = frozenset(
    {plan_nodes.FILTER, plan_nodes.PROJECT, plan_nodes.WATERMARK, "SubqueryAlias"}
)


def why_not_by_reference(
    internals: Internals, frame: DataFrame, *, kept: bool = False
) -> str | None:
    """Return why a source's rows cannot be evaluated again by its readers; None if they can.

    The answer is the end of a sentence that starts with the source. `kept` says that the last
    checkpoint has its channel by reference.
    """
    node = frame._jdf.queryExecution().analyzed()
    if internals.uses_passing_values(node):
        return (
            "uses the current time or user, or a random key, which may be another one for every "
            "reader"
        )
    while not node.children().isEmpty():
        kind = str(node.getClass().getSimpleName())
        if kind not in _PASSED_THROUGH or not node.subqueries().isEmpty():
            return f"has {kind} in its plan, and only filters and columns can be evaluated again"
        if not node.deterministic():
            return "has expressions that give another result when they are evaluated again"
        node = node.children().head()
    if is_file_source(node):
        return why_not_files(node)
    if is_kafka(node):
        return why_not_kafka(internals, node, kept=kept)
    return "reads neither files nor Kafka"


def reads_kafka(frame: DataFrame) -> bool:
    """Return whether a source reads Kafka.

    Several readers do so only if they are told to: brokers are shared with others, and each reader
    would fetch the records again.
    """
    node = frame._jdf.queryExecution().analyzed()
    while not node.children().isEmpty():
        node = node.children().head()
    return is_kafka(node)


class SourceReference:
    """Reads the Events of a channel by reference; the channel has one for all its readers."""

    def __init__(self, internals: Internals, frame: DataFrame) -> None:
        """Read what a source returned, over ranges that are named later."""
        self._internals = internals
        # Every reader of a channel applies the channel's watermark itself.
        self._template = PlanTemplate(internals, frame, leave_out=plan_nodes.WATERMARK)
        self._ranges = _ranges_of(internals, self._template.leaf)
        facts = f"{self._template.describe()}\n{self._ranges.facts()}"
        self._plan = hashlib.sha256(facts.encode()).hexdigest()
        self._known: dict[BatchId, Range] = {}

    def size_bytes(self, channel: Channel, event: Event) -> int:
        """Return how many bytes an Event refers to."""
        return self._ranges.size_bytes(self._range(channel, event))

    def write(self, channel: Channel, rows: PlannedBatch, batch: BatchId) -> Written:
        """Write down what a batch of the source reads; no job runs."""
        planned = self._ranges.planned(rows)
        if planned is None:
            return Written()
        found = msgspec.structs.replace(planned, plan=self._plan)
        directory = channel.data / f"b{batch:012d}"
        remove_tree(directory)
        directory.mkdir(parents=True)
        data = msgspec.json.encode(found)
        (directory / REFERENCE).write_bytes(data)
        self._known[batch] = found
        # The rows are not counted: that would need a job, or every file's footer.
        name = f"{directory.name}/{REFERENCE}"
        return Written(event=Event(batch, found.parts, len(data), (name,)))

    def rows(self, channel: Channel, start: int, end: int, *, streaming: bool) -> DataFrame:
        """Return the rows of the Events between two positions.

        Raises:
            RunError: If rows are gone or have changed since their Event was appended.
        """
        ranges = self._ranges_between(channel, start, end)
        self._forget(channel)
        columns = self._template.columns
        if ranges:
            relation = self._ranges.relation(channel, ranges)
            leaf = self._internals.parquet.relation_leaf(relation, columns, streaming=streaming)
        else:
            leaf = self._internals.empty_leaf(columns, streaming=streaming)
        return self._template.over(leaf)

    def _ranges_between(self, channel: Channel, start: int, end: int) -> list[Range]:
        while True:
            events = channel.events(start, end)
            try:
                return [self._range(channel, event) for event in events]
            except RunError:
                # Freed meanwhile: only Spark asks for such Events, and throws away what it gets.
                if events == channel.events(start, end):
                    raise

    def check(self, channel: Channel, events: Iterable[Event]) -> None:
        """Read restored Events, and look whether their plan and their rows are as they were."""
        ranges = [_read(channel, *channel.paths([event])) for event in events]
        if any(found.plan != self._plan for found in ranges):
            raise RecoveryError(
                f"channel {channel.id} holds rows in flight by reference, and its source is "
                "evaluated in another way now. Run the code as it was until a savepoint is "
                "made, which has no rows in flight, and go on from that."
            )
        if ranges:
            self._ranges.check(channel, ranges)

    def _range(self, channel: Channel, event: Event) -> Range:
        known = self._known.get(event.batch)
        if known is None:
            (path,) = channel.paths([event])
            known = self._known[event.batch] = _read(channel, path)
        return known

    def _forget(self, channel: Channel) -> None:
        """Drop the ranges of Events that every reader has read."""
        held = {event.batch for event in channel.held()}
        for batch in [batch for batch in list(self._known) if batch not in held]:
            self._known.pop(batch, None)


class ReferenceOutput:
    """Appends to a channel by reference."""

    def __init__(self, channel: Channel, reference: SourceReference) -> None:
        self._channel = channel
        self._reference = reference

    def write(self, rows: Rows, batch: BatchId) -> Written:
        assert isinstance(rows, PlannedBatch)
        return self._reference.write(self._channel, rows, batch)

    def appended(self, written: Written) -> None:
        """Do nothing: the Event is the batch."""


def _ranges_of(internals: Internals, leaf: Any) -> SourceRanges:
    return KafkaRanges(internals, leaf) if is_kafka(leaf) else FileRanges(internals, leaf)


def _read(channel: Channel, path: Path) -> Range:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Range)
    except (OSError, msgspec.DecodeError) as error:
        raise lost(channel, f"{path}: {error}") from error
