"""What tools see of a pipeline that reads a topic: ours, and those of Kafka; and no secret."""

import json
import logging
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from tests.servers.kafka import KafkaCluster
from tests.spark.kafka_pipelines import copying, newest_cut, numbers_in, rows, undecided
from tests.spark.runs import options, run
from tests.waiting import wait_until

from cutwater import Pipeline, sinks
from cutwater.errors import PlanError
from cutwater.planning.planner import plan
from cutwater.runtime.reporting.status import PartitionLag
from cutwater.views.dag import live_dag

SECRET = "do-not-tell-4711"


def committed(kafka: KafkaCluster, group: str, topic: str, partitions: int) -> list[int]:
    """Return a group's offsets, as any tool of Kafka sees them; negative for none."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        return [found.offset for found in consumer.committed(asked, 30)]
    finally:
        consumer.close()


def test_the_lag_of_every_partition_is_in_the_status_and_in_the_dag(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.spark.engine.kafka_watch.EVERY_S", 0.2)
    topic = kafka.make_topic("lagging", 2)
    kafka.produce(topic, rows(range(30)), partition=0)
    kafka.produce(topic, rows(range(30, 34)), partition=1)
    pipeline = copying(kafka, tmp_path / "table", {"subscribe": topic})
    running = pipeline.start(spark, options(tmp_path))

    def lag() -> dict[int, PartitionLag]:
        return {found.partition: found for found in running.status().steps[0].lag}

    wait_until(lambda: bool(lag()) and not any(found.records for found in lag().values()), "read")
    seen = lag()
    dag = live_dag("id", plan(pipeline), running.status(), {})
    running.stop()
    assert running.wait(60) is not None

    assert seen == {
        0: PartitionLag("numbers", topic, 0, 30, 30),
        1: PartitionLag("numbers", topic, 1, 4, 4),
    }
    assert [(found.partition, found.lag) for found in dag.steps[0].lag] == [(0, 0), (1, 0)]


def test_a_source_that_is_held_up_shows_a_growing_lag(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.spark.engine.kafka_watch.EVERY_S", 0.2)
    topic = kafka.make_topic("held", 1)
    kafka.produce(topic, rows(range(5)))
    pipeline = Pipeline("held")

    @pipeline.source
    def numbers(spark: SparkSession):  # type: ignore[no-untyped-def]  # noqa: ANN202
        reader = spark.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "5")
        # One record takes far longer than the test.
        return reader.load().selectExpr(
            "IF(offset < 5, offset, java_method('java.lang.Thread', 'sleep', 60000L)) AS offset"
        )

    pipeline.sink("table", sinks.delta(str(tmp_path / "table")), of=numbers)
    running = pipeline.start(spark, options(tmp_path))
    wait_until(lambda: bool(running.status().steps[0].lag), "the first batch is read")
    kafka.produce(topic, rows(range(100)))
    wait_until(
        lambda: sum(found.records for found in running.status().steps[0].lag) == 100,
        "the lag is that of the topic, although no batch ends",
    )
    running.kill()
    running.wait(60)


def test_every_decided_checkpoint_is_committed_to_the_group_of_its_source(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.make_topic("grouped", 2)
    kafka.produce(topic, rows(range(10)), partition=0)
    into = tmp_path / "table"
    pipeline = copying(kafka, into, {"subscribe": topic}, group="grouped-lag")
    with undecided(monkeypatch):
        running = pipeline.start(spark, options(tmp_path))
        wait_until(lambda: running.status().steps[0].rows == 10, "the records are read")
        wait_until(lambda: running.status().failed > 0, "a checkpoint has failed")
        before = committed(kafka, "grouped-lag", topic, 2)
    assert running.checkpoint(60).status == "COMPLETED"
    wait_until(lambda: committed(kafka, "grouped-lag", topic, 2) == [10, 0], "it is committed")
    kafka.produce(topic, rows(range(10, 13)), partition=1)
    wait_until(lambda: running.status().steps[0].rows == 13, "the next records are read")
    running.stop()
    assert running.wait(60) is not None

    # The last checkpoint too, and nothing before the first was decided.
    assert before == [-1001, -1001]
    assert committed(kafka, "grouped-lag", topic, 2) == [10, 3]


def test_a_group_is_never_read_and_a_group_with_members_holds_nothing_up(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.make_topic("not-ours", 1)
    kafka.produce(topic, rows(range(10)))
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "taken"}
    member = Consumer({**settings, "auto.offset.reset": "latest", "enable.auto.commit": False})
    member.subscribe([topic])
    wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), "it is a member")
    member.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)

    with caplog.at_level(logging.WARNING):
        run(
            copying(kafka, tmp_path / "table", {"subscribe": topic}, group="taken"),
            spark,
            options(tmp_path, available_now=True),
        )
    member.close()

    assert numbers_in(tmp_path / "table") == list(range(10))
    assert committed(kafka, "taken", topic, 1) == [7]
    assert "group taken is not current" in caplog.text


def test_a_group_of_a_source_that_reads_no_topic_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("groups")

    @pipeline.source(consumer_group="lag")
    def numbers(spark: SparkSession):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return spark.readStream.format("rate").load()

    pipeline.sink("table", sinks.delta(str(tmp_path / "table")), of=numbers)

    with pytest.raises(PlanError, match="has consumer_group='lag' and reads no topic of Kafka"):
        run(pipeline, spark, options(tmp_path, available_now=True))


def test_no_secret_of_a_source_is_stored_shown_or_logged(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.make_topic("secretive", 1)
    kafka.produce(topic, rows(range(10)))
    # Not used without TLS, but passed on like any other option.
    chosen = {"subscribe": topic, "kafka.ssl.truststore.password": SECRET}
    pipeline = copying(kafka, tmp_path / "table", chosen, group="secretive")
    # py4j's own log has every call at that level, those of the user's function too.
    with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, logger="cutwater"):
        run(pipeline, spark, options(tmp_path, available_now=True))
    other = copying(kafka, tmp_path / "table", {**chosen, "kafka.ssl.truststore.password": "new"})
    before = newest_cut(tmp_path)
    run(other, spark, options(tmp_path, available_now=True))

    stored = b"".join(
        path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    )
    assert SECRET.encode() not in stored
    assert SECRET not in caplog.text
    assert SECRET not in str(plan(pipeline))
    # A new password is no other source: no hash of it is part of what identifies the source.
    (then,), (now,) = (
        [found.settings for step in cut.identities.values() for found in step.inputs]
        for cut in (before, newest_cut(tmp_path))
    )
    assert then == now
    assert json.dumps(SECRET) not in repr(before)
