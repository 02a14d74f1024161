"""Pipelines that read Kafka, and what their tables must show by arithmetic."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.kafka import KafkaCluster
from tests.spark.runs import Rows, table
from tests.waiting import wait_until

from cutwater import Pipeline, sinks
from cutwater.errors import Unavailable
from cutwater.kafka.librdkafka import open_broker
from cutwater.protocol.cut import Cut
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify
from cutwater.store.records.manifests import Manifests

Options = Mapping[str, str]


def rows(numbers: Iterable[int]) -> list[tuple[str | None, str]]:
    """Return records whose value is a number and whose key is its remainder by 7."""
    return [(str(number % 7), str(number)) for number in numbers]


def stream(spark: SparkSession, kafka: KafkaCluster, options: Options) -> DataFrame:
    """Return the numbers of topics, with where each was read."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    for name, value in ({"startingOffsets": "earliest"} | dict(options)).items():
        reader = reader.option(name, value)
    number = F.col("value").cast("string").cast("long").alias("number")
    return reader.load().select("topic", "partition", "offset", number)


def copying(
    kafka: KafkaCluster, into: Path, options: Options, group: str | None = None
) -> Pipeline:
    """One Kafka source straight into a Delta table."""
    pipeline = Pipeline("copying")

    @pipeline.source(consumer_group=group)
    def numbers(spark: SparkSession) -> DataFrame:
        return stream(spark, kafka, options)

    pipeline.sink("table", sinks.delta(str(into)), of=numbers)
    return pipeline


def counting(kafka: KafkaCluster, into: Path, options: Options) -> Pipeline:
    """One Kafka source, counted by remainder in a step with state, into an upserted table."""
    pipeline = Pipeline("counting")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return stream(spark, kafka, options)

    @pipeline.step(output_mode="update", partitions=2)
    def counts(numbers: DataFrame) -> DataFrame:
        groups = numbers.groupBy((F.col("number") % 7).alias("key"))
        return groups.agg(F.count("*").alias("count"), F.sum("number").alias("sum"))

    pipeline.sink("table", sinks.delta(str(into), write="upsert", keys=["key"]), of=counts)
    return pipeline


def counted(numbers: Iterable[int]) -> Rows:
    """Return what `counting` must show after these numbers."""
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(number % 7, []).append(number)
    return sorted((key, len(group), sum(group)) for key, group in groups.items())


def numbers_in(path: Path) -> list[int]:
    """Return the numbers that a table of `copying` shows, sorted; empty before its first commit."""
    if not any((path / "_delta_log").glob("*.json")):
        return []
    return [number for (number,) in table(path, "number")]


@contextmanager
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no checkpoint be decided: the store takes no manifest."""

    def refuse(_: Manifests, cut: Cut) -> str:
        raise Unavailable(f"manifest {cut.checkpoint_id}", "the test wants none")

    with monkeypatch.context() as patched:
        patched.setattr(Manifests, "publish", refuse)
        yield


def recreate(kafka: KafkaCluster, topic: str) -> None:
    """Delete a topic and make one of the same name, with one partition."""
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    kafka.make_topic(topic, 1)


def remove_before(kafka: KafkaCluster, topic: str, partition: int, offset: int) -> None:
    """Remove the oldest records of a partition, as retention does."""
    admin, limit = kafka.admin(), TopicPartition(topic, partition, offset)
    admin.delete_records([limit])[limit].result(30)


def topic_id(kafka: KafkaCluster, topic: str) -> str:
    """Return the id of a topic, by the client that commands use."""
    broker = open_broker(kafka.bootstrap, {})
    return broker.topic_ids([topic])[topic]


def newest_cut(directory: Path, name: str = "copying") -> Cut:
    """Return the current checkpoint of a pipeline."""
    store = opened(directory, name)
    head = store.log.read().head
    assert head is not None
    return store.manifests.read(head.checkpoint_id, head.manifest_sha256)


def opened(directory: Path, name: str = "copying") -> PipelineStore:
    """Open the store of a pipeline."""
    backend = existing_backend(directory / "store")
    _, pipeline = identify(backend, name)
    return PipelineStore.of(backend, pipeline)
