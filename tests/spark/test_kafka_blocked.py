"""A broker that is killed under a running pipeline: its commit waits, and goes on by itself.

The broker is killed between two commits. One that is killed while it ends a transaction, and that
has the only copy of a topic, may leave the transaction open (docs/reference/sink-kafka.md).
"""

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.spark.runs import DEADLINE_S, options, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.protocol.options import CommitOptions
from cutwater.run import PipelineRun
from cutwater.sinks.kafka.settings import KafkaSettings

RARELY = CheckpointConfig(interval="1h", retained=1000)


def publishing(kafka: KafkaCluster, directory: Path) -> Pipeline:
    """Numbers into a topic and, beside it, into files; only the topic needs the broker."""
    pipeline = Pipeline("publishing")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=10**9, rate=200.0).select("value")

    topic = sinks.kafka(
        kafka.bootstrap,
        topic="numbers",
        value="json",
        staging=str(directory / "staging"),
        order_by=["value"],
    )
    pipeline.sink("topic", topic, of=numbers)
    pipeline.sink("files", sinks.files(str(directory / "files"), "json"), of=numbers)
    return pipeline


def in_topic(kafka: KafkaCluster) -> list[int]:
    return [json.loads(message.value() or b"")["value"] for message in kafka.read("numbers")]


def in_files(directory: Path) -> list[int]:
    files = [path for path in (directory / "files").glob("*.json") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["value"] for line in lines)


def more_rows(running: PipelineRun) -> None:
    """Wait until the sinks have taken rows that are not committed yet."""
    before = running.status().steps[-1].rows
    wait_until(running, lambda one: one.steps[-1].rows > before, "more rows")


def checkpoint(running: PipelineRun, kafka: KafkaCluster, count: int) -> tuple[int, list[int]]:
    """Take a checkpoint with more rows; return its number, and the topic with more than `count`."""
    more_rows(running)
    report = running.checkpoint(DEADLINE_S)
    assert report.status == "COMPLETED", report
    wait_until(running, lambda _: len(in_topic(kafka)) > count, "its rows are in the topic")
    return report.id, in_topic(kafka)


def test_a_commit_waits_for_a_broker_that_was_killed_and_a_preview_does_not_disturb(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cutwater.config.options.CommitOptions",
        partial(CommitOptions, budget_ms=300, retry_max_ms=1000),
    )
    producers: list[str] = []
    make = KafkaSettings.producer

    def counted(settings: KafkaSettings, name: str) -> Any:  # noqa: ANN401 - as it was
        producers.append(name)
        return make(settings, name)

    monkeypatch.setattr(KafkaSettings, "producer", counted)
    with kafka_cluster() as kafka:
        kafka.make_topic("numbers")
        running = publishing(kafka, tmp_path).start(spark, options(tmp_path, checkpoint=RARELY))
        try:
            first, committed = checkpoint(running, kafka, 0)
            preview = cutwater.rewind("publishing", to=str(first), store=tmp_path / "store")
            _, before = checkpoint(running, kafka, len(committed))
            by_one = len(producers)

            kafka.kill()
            more_rows(running)
            threading.Thread(target=running.checkpoint, args=(DEADLINE_S,), daemon=True).start()
            status = wait_until(
                running,
                lambda one: one.state == "COMMIT_BLOCKED" and "progress topic" in one.detail,
                "it is blocked by the broker",
            )
            kafka.start()
            wait_until(running, lambda one: one.state == "RUNNING", "it goes on by itself")
            more_rows(running)
            running.stop()
            assert running.wait(DEADLINE_S) is not None
        finally:
            running.kill()
            running.wait(DEADLINE_S)
        rows = in_topic(kafka)

    assert committed == list(range(len(committed)))
    assert before == list(range(len(before)))
    assert len(before) > len(committed) > 0
    # One producer for both commits: nothing has fenced it in between.
    assert by_one == 1
    assert {str(one.sink): one.rows for one in preview.sinks}["topic"] == len(committed)
    assert "sink topic cannot commit" in status.detail
    assert rows == list(range(len(rows)))
    assert len(rows) > len(before)
    assert in_files(tmp_path) == rows
