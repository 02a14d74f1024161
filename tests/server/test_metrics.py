"""Metrics: one table of names, the same in the code, in the documents and on the wire."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.server.api_client import ApiClient
from tests.server.sparkless_run import SparklessRun

from cutwater.runtime.reporting.event_log import EventName
from cutwater.runtime.reporting.status import PartitionLag
from cutwater.server.metrics import METRICS, STATES, Kind

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
UNITS = (
    "_seconds",
    "_bytes",
    "_total",
    "_messages",
    "_per_second",
    "_info",
    "_id",
    "_offsets",
    "_offset",
)
WITHOUT_UNIT = {
    "cutwater_pipeline_up",
    "cutwater_pipeline_state",
    "cutwater_pipeline_generation",
    "cutwater_pipeline_unreadable",
    "cutwater_checkpoints_in_progress",
    "cutwater_checkpoint_last_unaligned",
    "cutwater_step_finished",
}


def scraped(asking: ApiClient) -> dict[tuple[str, ...], float]:
    """Read the metrics as Prometheus does, by name and labels."""
    answer = asking.anonymous.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_running_pipeline_shows_every_metric_of_the_table(
    live: ApiClient, running: SparklessRun
) -> None:
    running.checkpoint()
    running.fail("too slow")
    running.late_rows = 5
    running.lag = (PartitionLag("incoming", "orders-topic", 3, 40, 100),)

    found = scraped(live)

    without_recovery = {metric.name for metric in METRICS} - {
        "cutwater_recovery_last_duration_seconds"
    }
    assert {key[0] for key in found} == without_recovery
    assert found["cutwater_checkpoints_completed_total", "orders"] == 1
    assert found["cutwater_checkpoints_failed_total", "orders"] == 1
    assert found["cutwater_checkpoint_last_id", "orders"] == 1
    assert found["cutwater_checkpoint_last_duration_seconds", "orders"] == 0.25
    assert found["cutwater_step_late_rows_dropped_total", "orders", "totals"] == 5
    partition = ("3", "orders", "incoming", "orders", "orders-topic")
    assert found["cutwater_source_lag_offsets", *partition] == 60
    assert found["cutwater_source_position_offset", *partition] == 40
    assert found["cutwater_step_rows_per_second", "orders", "totals"] == 1234.5
    assert found["cutwater_channel_backlog_bytes", "orders", "orders", "totals"] == 3 * 4096
    states = {key[2]: value for key, value in found.items() if key[0] == "cutwater_pipeline_state"}
    assert states == {state: float(state == "RUNNING") for state in STATES}


def test_the_store_of_a_stopped_pipeline_shows_what_it_knows(
    stopped: ApiClient, running: SparklessRun
) -> None:
    running.stored.writer.decide(1)

    found = scraped(stopped)

    assert found["cutwater_pipeline_up", "orders"] == 0
    assert found["cutwater_pipeline_state", "orders", "NOT_RUNNING"] == 1
    assert found["cutwater_checkpoint_last_timestamp_seconds", "orders"] == 1_700_000_001
    assert not any(key[0].startswith("cutwater_step") for key in found)


def test_the_documented_table_is_that_of_the_code() -> None:
    text = (REFERENCE / "metrics.md").read_text()
    rows = {
        name: (kind, tuple(re.findall(r"`([^`]+)`", labels)), meaning)
        for name, kind, labels, meaning in re.findall(
            r"^\| `(cutwater_[a-z_]+)` \| (\w+) \| (.*?) \| (.*) \|$", text, re.MULTILINE
        )
    }

    assert rows == {
        metric.name: (metric.kind.value, metric.labels, metric.text) for metric in METRICS
    }


def test_every_event_is_documented() -> None:
    text = (REFERENCE / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", text, re.MULTILINE))
    assert documented == {name.value for name in EventName}


def test_names_carry_their_units() -> None:
    for metric in METRICS:
        assert metric.name.endswith(UNITS) or metric.name in WITHOUT_UNIT, metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
