"""A channel that names offsets of a topic instead of holding records, on a real broker."""

from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.kafka import KafkaCluster
from tests.spark.kafka_pipelines import (
    counted,
    newest_cut,
    numbers_in,
    remove_before,
    rows,
    stream,
)
from tests.spark.runs import files_below, options, run, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks
from cutwater.errors import PlanError, RunError
from cutwater.ids import StepId
from cutwater.kafka.offsets import TopicPartition, read_offsets
from cutwater.planning.planner import plan
from cutwater.planning.rendering import draw
from cutwater.run import RunOptions
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.spark.analysis.explain import explain


def two_tables(
    kafka: KafkaCluster,
    directory: Path,
    topic: str,
    *,
    materialize: bool | None = False,
    slow: bool = False,
) -> Pipeline:
    """One topic; all of its numbers in one table, counts by remainder in another."""
    pipeline = Pipeline("two")

    @pipeline.source(materialize=materialize)
    def numbers(spark: SparkSession) -> DataFrame:
        way = "subscribePattern" if topic.endswith("*") else "subscribe"
        found = stream(spark, kafka, {way: topic, "maxOffsetsPerTrigger": "20"})
        return found.where("number % 5 != 0")

    @pipeline.step(output_mode="update", partitions=2)
    def counts(numbers: DataFrame) -> DataFrame:
        if slow:
            pause = F.udf(lambda number: __import__("time").sleep(0.01) or number, "long")
            numbers = numbers.withColumn("number", pause("number"))
        groups = numbers.groupBy((F.col("number") % 7).alias("key"))
        return groups.agg(F.count("*").alias("count"), F.sum("number").alias("sum"))

    pipeline.sink("raw", sinks.delta(str(directory / "raw")), of=numbers)
    target = sinks.delta(str(directory / "counts"), write="upsert", keys=["key"])
    pipeline.sink("totals", target, of=counts)
    return pipeline


def forced(directory: Path, *, available_now: bool = False) -> RunOptions:
    often = CheckpointConfig(interval="500ms", unaligned="forced", target_batch="0s")
    return options(directory, checkpoint=often, available_now=available_now)


def in_flight(report: CheckpointReport) -> bool:
    return report.status == "COMPLETED" and report.in_flight_bytes > 0


def killed_with_offsets_in_flight(
    spark: SparkSession, kafka: KafkaCluster, directory: Path, topic: str
) -> None:
    running = two_tables(kafka, directory, topic, slow=True).start(spark, forced(directory))
    wait_until(running, lambda status: any(map(in_flight, status.checkpoints)), "offsets in flight")
    channels = (directory / "scratch").glob("*/*/numbers/channel")
    assert not [file for channel in channels for file in files_below(channel, ".parquet")]
    running.kill()
    running.wait()


@pytest.mark.matrix
def test_offsets_in_flight_are_read_again_after_a_kill_with_a_partition_that_is_new(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("by-reference", 2)
    kafka.produce(topic, rows(range(400)))
    killed_with_offsets_in_flight(spark, kafka, tmp_path, topic)

    admin = kafka.admin()  # what is pending fails when the client is collected
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    kafka.produce(topic, rows(range(400, 450)), partition=2)
    finished = two_tables(kafka, tmp_path, topic)
    assert run(finished, spark, forced(tmp_path, available_now=True)).finished

    kept = [number for number in range(450) if number % 5]
    assert numbers_in(tmp_path / "raw") == kept
    assert table(tmp_path / "counts", "key", "count", "sum") == counted(kept)


def test_offsets_in_flight_whose_records_are_gone_are_refused(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("by-reference-lost", 1)
    kafka.produce(topic, rows(range(400)))
    killed_with_offsets_in_flight(spark, kafka, tmp_path, topic)

    # What the source itself still has to read stays.
    offsets = newest_cut(tmp_path, "two").snapshots[StepId("numbers")].offsets
    (resumes,) = (read_offsets(text) for text in offsets.values())
    assert resumes is not None
    at = resumes[TopicPartition(topic, 0)]
    remove_before(kafka, topic, 0, at)

    with pytest.raises(RunError, match=f"{topic}-0 from .*the broker has records from {at} to 400"):
        run(two_tables(kafka, tmp_path, topic), spark, forced(tmp_path))


def test_a_compacted_topic_is_not_read_by_reference(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("by-reference-compacted", 1, {"cleanup.policy": "compact"})

    with pytest.raises(PlanError, match=f"reads {topic}, which is compacted"):
        run(two_tables(kafka, tmp_path, topic), spark, forced(tmp_path))


def test_a_compacted_topic_that_comes_later_ends_the_run(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("by-reference-later-1", 1)
    pipeline = two_tables(kafka, tmp_path, "by-reference-later.*")
    kafka.produce(topic, rows(range(10)))
    running = pipeline.start(spark, forced(tmp_path))
    wait_until(running, lambda status: bool(status.steps[1].rows), "the first topic is read")
    later = kafka.make_topic("by-reference-later-2", 1, {"cleanup.policy": "compact"})
    kafka.produce(later, rows(range(10, 20)))

    with pytest.raises(RunError, match=f"Topic {later} is compacted"):
        running.wait(120)


def test_a_topic_is_read_once_unless_more_is_requested(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("by-rule", 1)

    planned = plan(two_tables(kafka, tmp_path, topic, materialize=None))

    assert "holds rows: each reader would read the source again" in draw(
        planned, explain(planned, spark)
    )
