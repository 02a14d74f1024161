"""A Kafka source on a real broker: every way to subscribe and to start, and what topics do."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.spark.kafka_pipelines import copying, newest_cut, numbers_in, rows, stream
from tests.spark.runs import options, run
from tests.waiting import wait_until

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.ids import StepId


def make_topics(kafka: KafkaCluster, name: str, count: int = 1, partitions: int = 2) -> list[str]:
    return [kafka.make_topic(f"{name}.{number}", partitions) for number in range(count)]


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["subscribe", "subscribePattern", "assign"])
def test_every_way_to_subscribe_reads_all_records_once(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, way: str
) -> None:
    first, second = make_topics(kafka, f"ways-{way}", 2)
    kafka.produce(first, rows(range(20)))
    kafka.produce(second, rows(range(20, 30)))
    named = {
        "subscribe": f"{first},{second}",
        "subscribePattern": rf"ways-{way}\..*",
        "assign": f'{{"{first}":[0,1],"{second}":[0,1]}}',
    }
    pipeline = copying(kafka, tmp_path / "table", {way: named[way], "maxOffsetsPerTrigger": "4"})

    run(pipeline, spark, options(tmp_path, available_now=True))
    kafka.produce(second, rows([30, 31]))
    run(pipeline, spark, options(tmp_path, available_now=True))

    assert numbers_in(tmp_path / "table") == list(range(32))


def test_a_step_may_read_two_topics_by_two_sources(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    first, second = make_topics(kafka, "two", 2)
    kafka.produce(first, rows(range(10)))
    kafka.produce(second, rows(range(100, 105)))
    pipeline = Pipeline("both")

    @pipeline.source
    def small(spark: SparkSession) -> DataFrame:
        return stream(spark, kafka, {"subscribe": first})

    @pipeline.source
    def large(spark: SparkSession) -> DataFrame:
        return stream(spark, kafka, {"subscribe": second})

    @pipeline.sink(sinks.delta(str(tmp_path / "table")))
    def both(small: DataFrame, large: DataFrame) -> DataFrame:
        return small.unionByName(large)

    run(pipeline, spark, options(tmp_path, available_now=True))

    assert numbers_in(tmp_path / "table") == [*range(10), *range(100, 105)]
    identity = newest_cut(tmp_path, "both").identities[StepId("both")]
    assert {found.name: found.place for found in identity.inputs} == {
        "small": f"kafka[{first}]",
        "large": f"kafka[{second}]",
    }


@pytest.mark.parametrize("target", ["0s", "1m"])
def test_a_batch_reads_the_offsets_that_it_may_and_more_of_a_backlog(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, target: str
) -> None:
    (topic,) = make_topics(kafka, f"paced-{target}", partitions=2)
    kafka.produce(topic, rows(range(120)))
    chosen = {"subscribe": topic, "maxOffsetsPerTrigger": "10"}
    paced = CheckpointConfig(interval="1s", target_batch=target)
    given = options(tmp_path, available_now=True, checkpoint=paced)

    run(copying(kafka, tmp_path / "table", chosen), spark, given)

    assert numbers_in(tmp_path / "table") == list(range(120))
    batches = newest_cut(tmp_path).snapshots[StepId("table")].batch + 1
    # A batch is at most twice as large as the one before it: 10, 20, 40 and the rest.
    assert batches >= 12 if target == "0s" else 4 <= batches < 12


@pytest.mark.parametrize("way", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_source_starts_at_a_time(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, way: str
) -> None:
    (topic,) = make_topics(kafka, f"timed-{way}", partitions=1)
    kafka.produce(topic, rows(range(5)))
    wait_until(lambda: bool(kafka.read(topic)), "the first records are there")
    at_ms = max(message.timestamp()[1] for message in kafka.read(topic)) + 1
    wait_until(lambda: time.time() * 1000 > at_ms, "the next records are later")
    kafka.produce(topic, rows(range(5, 9)))
    by_partition = json.dumps({topic: {"0": at_ms}})
    chosen = {"subscribe": topic, way: by_partition if "Offsets" in way else str(at_ms)}

    run(copying(kafka, tmp_path / "table", chosen), spark, options(tmp_path, available_now=True))

    assert numbers_in(tmp_path / "table") == [5, 6, 7, 8]


def test_a_partition_that_is_added_while_the_pipeline_runs_is_read_from_its_beginning(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    (topic,) = make_topics(kafka, "grows", partitions=1)
    kafka.produce(topic, rows(range(5)))
    pipeline = copying(kafka, tmp_path / "table", {"subscribe": topic})
    running = pipeline.start(spark, options(tmp_path))
    table = tmp_path / "table"
    wait_until(lambda: len(numbers_in(table)) == 5, "the first partition is read")

    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    kafka.produce(topic, rows([5, 6]), partition=2)
    kafka.produce(topic, rows([7]), partition=1)
    wait_until(lambda: len(numbers_in(table)) == 8, "the new partitions are read")
    running.stop()
    assert running.wait(60) is not None

    assert numbers_in(table) == list(range(8))


def test_a_compacted_topic_is_read_over_the_gaps_in_its_offsets(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
    }
    topic = kafka.make_topic("compacted", 1, config)
    for number in range(60):
        kafka.produce(topic, [("same", str(number))])
    kafka.produce(topic, [("other", "1000")])
    wait_until(lambda: len(kafka.read(topic)) < 40, "the topic is compacted")
    left = sorted(int(message.value() or b"") for message in kafka.read(topic))
    pipeline = copying(kafka, tmp_path / "table", {"subscribe": topic, "maxOffsetsPerTrigger": "7"})

    run(pipeline, spark, options(tmp_path, available_now=True))

    found = numbers_in(tmp_path / "table")
    assert set(found) <= set(left)
    assert {59, 1000} <= set(found)
    assert len(found) == len(set(found))


def test_aborted_and_open_transactions_are_left_out(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    (topic,) = make_topics(kafka, "transactions")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "writes"})
    producer.init_transactions(30)
    for start, keep in ((0, True), (100, False), (10, True)):
        producer.begin_transaction()
        for key, value in rows(range(start, start + 10)):
            producer.produce(topic, key=key, value=value)
        producer.flush(30)
        if keep:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, key="0", value="700")
    producer.flush(30)
    chosen = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    pipeline = copying(kafka, tmp_path / "table", chosen)

    run(pipeline, spark, options(tmp_path, available_now=True))
    before = numbers_in(tmp_path / "table")
    producer.commit_transaction(30)
    run(pipeline, spark, options(tmp_path, available_now=True))

    assert before == list(range(20))
    assert numbers_in(tmp_path / "table") == [*range(20), 700]


def test_a_pipeline_outlives_a_restart_of_its_broker(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    (topic,) = make_topics(kafka, "outlived")
    kafka.produce(topic, rows(range(10)))
    table = tmp_path / "table"
    restart = RestartConfig(strategy="fixed", attempts=20, delay="1s")
    running = copying(kafka, table, {"subscribe": topic}).start(
        spark, options(tmp_path, restart=restart)
    )
    wait_until(lambda: len(numbers_in(table)) == 10, "the first records are read")

    kafka.restart()
    kafka.produce(topic, rows(range(10, 15)))
    wait_until(lambda: len(numbers_in(table)) >= 15, "the records after the restart are read")
    running.stop()
    assert running.wait(60) is not None

    assert numbers_in(table) == list(range(15))


def has_numbers(table: Path, count: int) -> bool:
    return len(numbers_in(table)) >= count


@pytest.mark.long
def test_a_pipeline_outlives_the_leaders_of_its_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    with kafka_cluster(nodes=3) as cluster:
        (topic,) = make_topics(cluster, "led", partitions=3)
        cluster.produce(topic, rows(range(30)))
        table = tmp_path / "table"
        restart = RestartConfig(strategy="fixed", attempts=20, delay="1s")
        running = copying(cluster, table, {"subscribe": topic}).start(
            spark, options(tmp_path, restart=restart)
        )
        wait_until(lambda: len(numbers_in(table)) == 30, "the first records are read")

        # Every node leads a partition: one after the other is killed and comes back.
        for number, node in enumerate(cluster.nodes):
            node.end()
            first = 30 + 10 * number
            cluster.produce(topic, rows(range(first, first + 10)))
            wait_until(partial(has_numbers, table, first + 10), "the next records are read")
            cluster.start()
        running.stop()
        assert running.wait(60) is not None

        assert numbers_in(table) == list(range(60))
