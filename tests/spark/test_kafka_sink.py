"""The public contract of a sink over the Kafka sink, and what its rows become, on a real broker."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.kafka import KafkaCluster, kafka_cluster

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, Generation
from cutwater.sinks.base import FrameRows, Sink, SinkContext
from cutwater.sinks.kafka.topic import OpenKafkaTopic
from cutwater.testing import SinkContract
from cutwater.testing.sink_contract.harness import PIPELINE, SINK, permit

BOOTSTRAP = "CUTWATER_TEST_KAFKA"


@pytest.fixture(scope="module", autouse=True)
def kafka() -> Iterator[KafkaCluster]:
    """A broker that processes of the contract find by their environment."""
    with kafka_cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv(BOOTSTRAP, cluster.bootstrap)
        yield cluster


def topic_of(directory: Path) -> str:
    return re.sub(r"[^\w.-]", "-", f"{directory.parent.name}-{directory.name}")


class TestKafka(SinkContract):
    restores = False
    lies_in_directory = False

    def target(self, directory: Path) -> Sink:
        topic = topic_of(directory)
        cluster = ExistingCluster()
        if topic not in cluster.admin().list_topics(timeout=60).topics:
            cluster.make_topic(topic, partitions=3)
        return sinks.kafka(
            os.environ[BOOTSTRAP],
            topic=topic,
            key=["id"],
            value="json",
            staging=str(directory / "st[ag]ing"),
            progress=f"{topic}-progress",
        )

    def shown(self, directory: Path) -> list[int]:
        messages = ExistingCluster().read(topic_of(directory))
        return sorted(int(json.loads(message.value() or b"")["id"]) for message in messages)


class ExistingCluster(KafkaCluster):
    """The broker of these tests, as another process sees it."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def bootstrap(self) -> str:
        return os.environ[BOOTSTRAP]

    @property
    def copies(self) -> int:
        return 1


def commit(spark: SparkSession, target: Sink, frames: Sequence[DataFrame]) -> None:
    opened = target.open(SinkContext(spark, PIPELINE, SINK))
    assert isinstance(opened, OpenKafkaTopic)
    staged = [
        opened.stage(FrameRows(frame), Generation(1), BatchId(number))
        for number, frame in enumerate(frames)
    ]
    opened.commit(permit(1), [found for found in staged if found is not None])


def test_rows_with_the_columns_of_sparks_sink_become_records(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    first, second = kafka.make_topic("first", partitions=2), kafka.make_topic("second")
    kinds = "key string, value binary, headers array<struct<key: string, value: binary>>"
    rows = [
        ("k", b"\x00\xff", [("h", b"1"), ("h", None)], first, 1),
        (None, None, None, second, None),
    ]
    frame = cutwater_spark.createDataFrame(rows, f"{kinds}, topic string, partition int")

    commit(cutwater_spark, sinks.kafka(kafka.bootstrap, staging=str(tmp_path)), [frame])

    (one,), (other,) = kafka.read(first), kafka.read(second)
    assert (one.key(), one.value(), one.partition()) == (b"k", b"\x00\xff", 1)
    assert one.headers() == [("h", b"1"), ("h", None)]
    assert (other.key(), other.value(), other.headers()) == (None, None, None)


def test_ordinary_columns_become_json_with_a_key(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("json")
    frame = cutwater_spark.range(1).select(
        F.lit("é").alias("a.b"),
        F.lit(None).cast("int").alias("none"),
        F.expr("timestamp'2026-01-02 03:04:05.678901Z'").alias("at"),
    )
    target = sinks.kafka(
        kafka.bootstrap,
        topic=topic,
        key=["a.b", "none"],
        value="json",
        staging=str(tmp_path),
        progress=f"{topic}-progress",
    )

    commit(cutwater_spark, target, [frame])

    (message,) = kafka.read(topic)
    assert json.loads(message.key() or b"") == {"a.b": "é", "none": None}
    expected = {"a.b": "é", "none": None, "at": "2026-01-02T03:04:05.678901Z"}
    assert json.loads(message.value() or b"") == expected


def test_a_key_is_in_the_partition_that_sparks_own_sink_chooses(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The partitions were computed by Java's client: murmur2 of the key, modulo 8."""
    topic = kafka.make_topic("placed", partitions=8)
    rows = [("21", "1"), ("foobar", "2")]
    frame = cutwater_spark.createDataFrame(rows, "key string, value string")
    target = sinks.kafka(
        kafka.bootstrap, topic=topic, staging=str(tmp_path), progress=f"{topic}-progress"
    )

    commit(cutwater_spark, target, [frame])

    found = {message.key(): message.partition() for message in kafka.read(topic)}
    positive = {b"21": -973932308 & 0x7FFFFFFF, b"foobar": -790332482 & 0x7FFFFFFF}
    assert found == {key: number % 8 for key, number in positive.items()}


def test_rows_that_cannot_become_records_are_refused(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    frame = cutwater_spark.createDataFrame([(1,)], "value int")

    with pytest.raises(ConfigError, match="column value is int and must be binary or string"):
        commit(
            cutwater_spark,
            sinks.kafka(kafka.bootstrap, topic=kafka.make_topic("no"), staging=str(tmp_path)),
            [frame],
        )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("v", None, None, None), "the column topic has no name of a topic"),
        (("v", None, "no topic", None), "the column topic has no name of a topic"),
        (("v", [None], "t", None), "the column headers has a header without a key"),
        (("v", [(None, b"1")], "t", None), "the column headers has a header without a key"),
        (("v", None, "t", -2), "the column partition has no number of one"),
    ],
)
def test_a_row_that_kafka_can_never_take_is_refused_before_a_checkpoint_has_it(
    cutwater_spark: SparkSession,
    kafka: KafkaCluster,
    tmp_path: Path,
    row: tuple[object, ...],
    reason: str,
) -> None:
    kinds = "value string, headers array<struct<key: string, value: binary>>"
    frame = cutwater_spark.createDataFrame([row], f"{kinds}, topic string, partition int")

    with pytest.raises(Exception, match=reason):
        commit(cutwater_spark, sinks.kafka(kafka.bootstrap, staging=str(tmp_path)), [frame])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("k", "v", 2), "no number of one; topic unsuitable-delete has 2"),
        ((None, "v", 0), "topic unsuitable-compact is compacted, and a row has no key"),
    ],
)
def test_a_row_that_its_topic_can_never_take_is_refused_before_a_checkpoint_has_it(
    cutwater_spark: SparkSession,
    kafka: KafkaCluster,
    tmp_path: Path,
    row: tuple[object, ...],
    reason: str,
) -> None:
    policy = "delete" if row[0] else "compact"
    topic = kafka.make_topic(f"unsuitable-{policy}", 2, {"cleanup.policy": policy})
    frame = cutwater_spark.createDataFrame([row], "key string, value string, partition int")
    target = sinks.kafka(
        kafka.bootstrap, topic=topic, staging=str(tmp_path), progress=f"{topic}-progress"
    )

    with pytest.raises(Exception, match=reason):
        commit(cutwater_spark, target, [frame])
    good = cutwater_spark.createDataFrame([("k", "v", 1)], frame.schema)
    commit(cutwater_spark, target, [good])

    assert [message.value() for message in kafka.read(topic)] == [b"v"]


def test_a_producer_that_the_broker_refuses_is_an_error_of_the_start(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("patient")
    patience = {"transaction.timeout.ms": "99999999"}
    target = sinks.kafka(kafka.bootstrap, topic=topic, staging=str(tmp_path), options=patience)

    with pytest.raises(SinkError, match=r"(?i)transaction.timeout"):
        target.open(SinkContext(cutwater_spark, PIPELINE, SINK))


def test_a_process_that_was_replaced_does_not_write_an_older_slot(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The new process has no rows for its first slot, as after a rewind that leaves the topic."""
    topic = kafka.make_topic("replaced")
    target = sinks.kafka(
        kafka.bootstrap, topic=topic, staging=str(tmp_path), progress=f"{topic}-progress"
    )
    context = SinkContext(cutwater_spark, PIPELINE, SINK)
    old = target.open(context)
    frame = cutwater_spark.createDataFrame([("late",)], "value string")
    staged = old.stage(FrameRows(frame), Generation(1), BatchId(0))
    assert staged is not None

    target.open(context).commit(permit(7), [])

    with pytest.raises(Superseded):
        old.commit(permit(6), [staged])
    assert kafka.read(topic) == []


def test_records_of_a_key_are_ordered_by_columns_on_request(
    cutwater_spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("ordered", partitions=2)
    frame = cutwater_spark.range(0, 200, 1, 4).select(
        (F.col("id") % 3).cast("string").alias("key"),
        F.col("id").cast("string").alias("value"),
        (-F.col("id")).alias("place"),
    )
    target = sinks.kafka(
        kafka.bootstrap,
        topic=topic,
        staging=str(tmp_path),
        progress=f"{topic}-progress",
        order_by=["place"],
    )

    commit(cutwater_spark, target, [frame])

    found: dict[bytes | None, list[int]] = {}
    for message in kafka.read(topic):
        found.setdefault(message.key(), []).append(int(message.value() or b""))
    assert found == {
        str(key).encode(): sorted(range(key, 200, 3), reverse=True) for key in range(3)
    }
