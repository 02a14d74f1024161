"""Rows staged for a Kafka sink without Spark, and read by a consumer that is not ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message
from pyspark.sql.types import StructType
from tests.servers.kafka import KafkaCluster

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import Rows, SinkContext
from cutwater.sinks.kafka.target import KafkaExtras, KafkaTarget
from cutwater.sinks.kafka.topic import OpenKafkaTopic
from cutwater.sinks.staging.formats import Form, StagedOutput

PIPELINE = PipelineId("7c9d1a34-5f0e-4d4d-8b55-2f1f7d3c9a01")
SINK = SinkId("orders")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)


@dataclass(frozen=True)
class StagedRows:
    """Rows as executors stage them: here a file for every two rows. Fills `Rows`."""

    topic: str
    values: Sequence[tuple[str | None, str]]
    partition: int = -1

    @property
    def schema(self) -> StructType:
        return StructType()

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        del options, partition_by
        place = Path(directory.removeprefix("file://"))
        place.mkdir(parents=True)
        rows = [
            {
                "key": None if key is None else key.encode(),
                "value": value.encode(),
                "headers": None,
                "topic": self.topic,
                "partition": self.partition,
            }
            for key, value in self.values
        ]
        step = max(2, len(rows) // 10)
        for number, start in enumerate(range(0, len(rows), step)):
            table = pa.Table.from_pylist(rows[start : start + step], schema=SCHEMA)
            pq.write_table(table, place / f"part-{number:05d}.parquet")
        return len(rows)

    @property
    def frame(self) -> object:
        raise NotImplementedError

    def gathered(self) -> Rows:
        raise NotImplementedError

    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Orders:
    """One Kafka sink, as several processes open it."""

    bootstrap: str
    topic: str
    staging: Path
    extras: KafkaExtras = field(default_factory=KafkaExtras)

    def target(self) -> KafkaTarget:
        return sinks.kafka(
            self.bootstrap, topic=self.topic, staging=str(self.staging), **self.extras
        )

    def open(self) -> OpenKafkaTopic:
        opened = self.target().open(SinkContext(None, PIPELINE, SINK))
        assert isinstance(opened, OpenKafkaTopic)
        return opened

    def stage(
        self, batch: int, *values: str, key: str | None = "k", topic: str | None = None
    ) -> tuple[Committable, ...]:
        """Stage rows of one key, as Spark's executors would."""
        staged = StagedOutput(self.staging, PIPELINE, SINK)
        rows = StagedRows(topic or self.topic, [(key, value) for value in values])
        place = (Generation(1), BatchId(batch))
        found = staged.stage(rows, place, Form())  # type: ignore[arg-type]
        assert found is not None
        return (found,)


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


def values(messages: Sequence[Message]) -> list[str]:
    """Return the values in the order of their offsets."""
    return [(message.value() or b"").decode() for message in messages]


def visible(kafka: KafkaCluster, topic: str) -> list[str]:
    """Return what readers of committed records see."""
    return values(kafka.read(topic))
