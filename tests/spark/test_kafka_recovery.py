"""Recovery of a Kafka source: the same start again, lost records, topics that were recreated."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.servers.kafka import KafkaCluster
from tests.spark.kafka_pipelines import (
    copying,
    counted,
    counting,
    newest_cut,
    numbers_in,
    opened,
    recreate,
    remove_before,
    rows,
    topic_id,
    undecided,
)
from tests.spark.runs import options, run, table
from tests.waiting import wait_until

from cutwater.errors import CodeChanged, RecordsLost, StepError
from cutwater.ids import NO_CHECKPOINT, StepId


def test_a_start_at_the_newest_record_survives_a_restart_before_the_first_checkpoint(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.make_topic("newest", 2)
    kafka.produce(topic, rows(range(10)))
    into = tmp_path / "table"
    pipeline = copying(kafka, into, {"subscribe": topic, "startingOffsets": "latest"})
    with undecided(monkeypatch):
        running = pipeline.start(spark, options(tmp_path))
        wait_until(lambda: running.status().steps[0].batch >= 0, "the first batch has run")
        running.kill()
        running.wait(60)
    assert opened(tmp_path).log.read().head is None
    kafka.produce(topic, rows(range(10, 20)))

    run(pipeline, spark, options(tmp_path, available_now=True))

    assert numbers_in(into) == list(range(10, 20))


def test_records_that_were_removed_are_named_with_what_is_left_and_what_to_do(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("removed", 2)
    kafka.produce(topic, rows(range(10)), partition=0)
    kafka.produce(topic, rows(range(10, 15)), partition=1)
    into = tmp_path / "table"
    run(counting(kafka, into, {"subscribe": topic}), spark, options(tmp_path, available_now=True))
    kafka.produce(topic, rows(range(100, 130)), partition=0)
    remove_before(kafka, topic, 0, 25)

    with pytest.raises(RecordsLost) as lost:
        run(
            counting(kafka, into, {"subscribe": topic}),
            spark,
            options(tmp_path, available_now=True),
        )
    unchanged = table(into, "key", "count", "sum")
    run(
        counting(kafka, into, {"subscribe": topic, "failOnDataLoss": "false"}),
        spark,
        options(tmp_path, available_now=True),
    )

    assert lost.value.problems == (
        f"{topic}-0 resumes at offset 10, and the broker has removed the 15 records before 25; "
        "25 to 39 are left.",
    )
    assert "source numbers cannot resume from checkpoint" in str(lost.value)
    assert "failOnDataLoss" in str(lost.value)
    assert "cutwater run" in str(lost.value)
    assert unchanged == counted(range(15))
    assert table(into, "key", "count", "sum") == counted([*range(15), *range(115, 130)])


def test_a_recreated_topic_is_refused_and_a_swap_starts_over_with_the_state(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("again", 1)
    kafka.produce(topic, rows(range(10)))
    into = tmp_path / "table"
    pipeline = counting(kafka, into, {"subscribe": topic})
    run(pipeline, spark, options(tmp_path, available_now=True))
    recreate(kafka, topic)
    # As many records as before: by the offsets alone nothing is wrong.
    kafka.produce(topic, rows(range(100, 115)))

    with pytest.raises(CodeChanged) as refused:
        run(pipeline, spark, options(tmp_path, available_now=True))
    run(pipeline, spark, options(tmp_path, available_now=True, swap=("numbers",)))
    # The option may stay: the source is the same one from now on.
    run(pipeline, spark, options(tmp_path, available_now=True, swap=("numbers",)))

    assert f"source numbers reads {topic}, deleted and recreated since" in str(refused.value)
    assert "--swap numbers" in str(refused.value)
    assert table(into, "key", "count", "sum") == counted([*range(10), *range(100, 115)])


def test_a_topic_that_is_recreated_while_the_pipeline_runs_ends_it(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.spark.engine.kafka_watch.EVERY_S", 0.2)
    topic = kafka.make_topic("meanwhile", 1)
    kafka.produce(topic, rows(range(10)))
    into = tmp_path / "table"
    # Without this Spark itself would end the query if it looked while the topic was shorter.
    chosen = {"subscribe": topic, "failOnDataLoss": "false"}
    running = copying(kafka, into, chosen).start(spark, options(tmp_path))
    wait_until(lambda: len(numbers_in(into)) == 10, "the first records are read")
    wait_until(lambda: bool(running.status().steps[0].lag), "the watch has asked the broker")

    recreate(kafka, topic)
    kafka.produce(topic, rows(range(100, 115)))

    with pytest.raises(StepError, match="deleted and recreated while the pipeline ran"):
        running.wait(60)


def test_a_manifest_has_the_ids_of_the_topics_and_where_their_broker_is(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("known", 1)
    kafka.produce(topic, rows(range(3)))
    pipeline = copying(kafka, tmp_path / "table", {"subscribePattern": "kno[w]n"})
    run(pipeline, spark, options(tmp_path, available_now=True))

    (source,) = newest_cut(tmp_path).identities[StepId("table")].inputs

    assert source.servers == kafka.bootstrap
    assert dict(source.topics) == {topic: topic_id(kafka, topic)}
    assert opened(tmp_path).starts.find(NO_CHECKPOINT, StepId("table"), 0, source) is not None
