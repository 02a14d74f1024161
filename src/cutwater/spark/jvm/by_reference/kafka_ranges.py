"""Ranges of a Kafka source: the offsets that a batch reads, by partition.

Readers fetch the records again, with the options of the source. Records that the broker has removed
since are an error, whatever `failOnDataLoss` says: a reader gets the rows that another one got, or
none. A compacted topic loses records between two reads without a trace, so it is refused.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from cutwater.errors import RunError, SourceUnavailable
from cutwater.kafka.broker import Bounds
from cutwater.kafka.offsets import TopicPartition
from cutwater.runtime.channel import Channel
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.kafka_options import KafkaSource, identifying, read_kafka
from cutwater.spark.jvm.by_reference.source_ranges import Range, RecordRange, lost
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.kafka_admin import KafkaAdmin
from cutwater.spark.jvm.native_sink import PlannedBatch

_PLANNED: Final = re.compile(r"KafkaOffsetRange\(([\w.-]+)-(\d+),(\d+),(\d+),")
_RECORD_BYTES: Final = 500
"""What a record is taken to have, where a size in bytes is needed: Spark does not say."""

_OF_STREAMS: Final = frozenset(
    {
        "assign",
        "endingoffsets",
        "endingoffsetsbytimestamp",
        "endingtimestamp",
        "failondataloss",
        "maxoffsetspertrigger",
        "maxtriggerdelay",
        "minoffsetspertrigger",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "subscribe",
        "subscribepattern",
    }
)
"""The options that say what a stream reads and when; a range says it instead."""


def is_kafka(leaf: Any) -> bool:
    return _source(leaf) is not None


def why_not_kafka(internals: Internals, leaf: Any, *, kept: bool) -> str | None:
    """Return why readers of a topic might see different records; None if they cannot.

    `kept` is for a topic that was read in this way before: a broker that does not answer now is no
    reason to change that.
    """
    source = _source(leaf)
    assert source is not None
    try:
        compacted = _compacted(internals, source)
    except SourceUnavailable as error:
        reason = error.message.rstrip(".")
        return None if kept else f"reads a topic that may be compacted ({reason})"
    return f"reads {compacted[0]}, which is compacted between two reads" if compacted else None


def _compacted(
    internals: Internals, source: KafkaSource, topics: Collection[str] | None = None
) -> Sequence[str]:
    """Return which topics are compacted, of these or of all that a source reads now."""
    admin = KafkaAdmin(internals.jvm, source.client, reads_committed=source.reads_committed)
    try:
        if topics is None and source.pattern is not None:
            topics = admin.topics_like(source.pattern)
        return admin.compacted(source.topics if topics is None else topics)
    finally:
        admin.close()


class KafkaRanges:
    """Ranges of one Kafka source."""

    def __init__(self, internals: Internals, leaf: Any) -> None:
        self._internals = internals
        self._given = _options(leaf)
        source = _source(leaf)
        assert source is not None
        self._source = source
        self._looked_at: set[str] = set()

    def planned(self, rows: PlannedBatch) -> Range | None:
        leaf = rows.leaf
        if str(leaf.getClass().getSimpleName()) != plan_nodes.STREAM_V2_SCAN:
            return None
        # As Spark itself would read them: a partition that is new has its real start here.
        planned = leaf.stream().planInputPartitions(
            leaf.startOffset().get(), leaf.endOffset().get()
        )
        found = (
            RecordRange(topic, int(partition), int(start), int(end))
            for part in planned
            for topic, partition, start, end in _PLANNED.findall(str(part.toString()))
        )
        records = merge_records(record for record in found if record.end > record.start)
        self._refuse_compacted({record.topic for record in records} - self._looked_at)
        return Range(records=records) if records else None

    def _refuse_compacted(self, topics: Collection[str]) -> None:
        """Look at topics that were not there when the pipeline was planned."""
        if not topics:
            return
        compacted = _compacted(self._internals, self._source, sorted(topics))
        if compacted:
            message = (
                f"Topic {compacted[0]} is compacted, and readers of its source would see different "
                "records. Leave materialize=False out, or do not read it."
            )
            raise RunError(message)
        self._looked_at |= set(topics)

    def size_bytes(self, found: Range) -> int:
        return found.parts * _RECORD_BYTES

    def facts(self) -> str:
        # How much a batch reads, and where a new stream starts, is not in a range.
        read = {
            name.lower(): value
            for name, value in identifying(self._given).items()
            if name.lower() not in _OF_STREAMS
        }
        return json.dumps(sorted(read.items()))

    def relation(self, channel: Channel, ranges: Sequence[Range]) -> Any:  # noqa: ARG002
        """Return the relation; records that are gone fail the job that reads them."""
        records = merge_records(part for found in ranges for part in found.records)
        reader = self._internals.spark.read.format("kafka")
        for name, value in self._given.items():
            if name.lower() not in _OF_STREAMS:
                reader = reader.option(name, value)
        partitions: dict[str, list[int]] = {}
        for part in records:
            partitions.setdefault(part.topic, []).append(part.partition)
        frame = (
            reader.option("assign", json.dumps(partitions))
            .option("startingOffsets", _offsets((part, part.start) for part in records))
            .option("endingOffsets", _offsets((part, part.end) for part in records))
            .option("failOnDataLoss", "true")
            .load()
        )
        return frame._jdf.queryExecution().analyzed().relation()

    def check(self, channel: Channel, ranges: Sequence[Range]) -> None:
        """Name records that are gone; a broker that does not answer fails the batch later."""
        records = merge_records(part for found in ranges for part in found.records)
        source = self._source
        try:
            admin = KafkaAdmin(
                self._internals.jvm, source.client, reads_committed=source.reads_committed
            )
        except SourceUnavailable:
            return
        try:
            bounds = admin.bounds([TopicPartition(part.topic, part.partition) for part in records])
        except SourceUnavailable:
            return
        finally:
            admin.close()
        for part in records:
            found = bounds.get(TopicPartition(part.topic, part.partition))
            if found is None or not found.first <= part.start <= part.end <= found.end:
                raise lost(channel, _describe_loss(part, found))


def merge_records(records: Iterable[RecordRange]) -> tuple[RecordRange, ...]:
    """Return one range for each partition, from the first start to the last end."""
    found: dict[tuple[str, int], RecordRange] = {}
    for part in records:
        key = (part.topic, part.partition)
        known = found.get(key, part)
        start, end = min(known.start, part.start), max(known.end, part.end)
        found[key] = RecordRange(part.topic, part.partition, start, end)
    return tuple(sorted(found.values()))


def _describe_loss(part: RecordRange, found: Bounds | None) -> str:
    there = "no such partition" if found is None else f"records from {found.first} to {found.end}"
    return f"{part.topic}-{part.partition} from {part.start} to {part.end}; the broker has {there}"


def _offsets(records: Iterable[tuple[RecordRange, int]]) -> str:
    found: dict[str, dict[str, int]] = {}
    for part, offset in records:
        found.setdefault(part.topic, {})[str(part.partition)] = offset
    return json.dumps(found)


def _options(leaf: Any) -> dict[str, str]:
    options = leaf.extraOptions().asCaseSensitiveMap()
    return {str(name): str(options[name]) for name in options}


def _source(leaf: Any) -> KafkaSource | None:
    if str(leaf.getClass().getSimpleName()) != plan_nodes.STREAM_V2:
        return None
    return read_kafka(_options(leaf).items())
