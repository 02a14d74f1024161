"""Prometheus metrics, collected when they are scraped.

`METRICS` is the only table of names, kinds, labels and meanings; docs/reference/metrics.md repeats
it and a test compares the two. A counter starts at zero with its process, or with its generation
where the table says so; Prometheus handles such resets. The metrics of a pipeline that this process
does not run come from the store.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cutwater._version import __version__
from cutwater.errors import CutwaterError
from cutwater.runtime.reporting.status import RunStatus
from cutwater.server.pipeline_view import PipelineView
from cutwater.server.pipelines import Pipelines, Unreadable
from cutwater.views.models import Checkpoint, Dag

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = (
    "STARTING",
    "RUNNING",
    "RESTARTING",
    "COMMIT_BLOCKED",
    "STOPPING",
    "FINISHED",
    "FAILED",
    "NOT_RUNNING",
)


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class MetricInfo(NamedTuple):
    """A metric: its name, kind, meaning and labels."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ("pipeline",)


_STEP: Final = ("pipeline", "step")
_CHANNEL: Final = ("pipeline", "channel", "reader")
_PARTITION: Final = ("pipeline", "step", "source", "topic", "partition")
_G, _C = Kind.GAUGE, Kind.COUNTER

METRICS: Final = (
    MetricInfo("cutwater_build_info", _G, "1; the version is a label.", ("version",)),
    MetricInfo("cutwater_pipeline_up", _G, "1 while some process runs the pipeline, 0 otherwise."),
    MetricInfo(
        "cutwater_pipeline_state",
        _G,
        "1 for the state the pipeline is in, 0 for the others.",
        ("pipeline", "state"),
    ),
    MetricInfo(
        "cutwater_pipeline_unreadable",
        _G,
        "1 if the pipeline's records cannot be read, or 0; if 1, all other metrics are left out.",
    ),
    MetricInfo("cutwater_pipeline_generation", _G, "The generation that runs, or ran last."),
    MetricInfo(
        "cutwater_pipeline_restarts_total", _C, "Restarts after a failure, in this process."
    ),
    MetricInfo("cutwater_checkpoints_completed_total", _C, "Checkpoints decided, in this process."),
    MetricInfo("cutwater_checkpoints_failed_total", _C, "Attempts that failed, in this process."),
    MetricInfo("cutwater_checkpoints_in_progress", _G, "Attempts in progress."),
    MetricInfo(
        "cutwater_checkpoint_open_seconds", _G, "How long the oldest open attempt has taken."
    ),
    MetricInfo("cutwater_checkpoint_last_id", _G, "The number of the last completed checkpoint."),
    MetricInfo(
        "cutwater_checkpoint_last_timestamp_seconds",
        _G,
        "When the last completed checkpoint started, since 1970.",
    ),
    MetricInfo("cutwater_checkpoint_last_duration_seconds", _G, "From its start to its decision."),
    MetricInfo(
        "cutwater_checkpoint_last_commit_duration_seconds",
        _G,
        "From its start until all sinks had committed; of the last one at which they did.",
    ),
    MetricInfo("cutwater_checkpoint_last_uploaded_bytes", _G, "What was newly stored for it."),
    MetricInfo("cutwater_checkpoint_last_state_bytes", _G, "Everything needed to restore it."),
    MetricInfo(
        "cutwater_checkpoint_last_in_flight_bytes", _G, "The part of it that was in flight."
    ),
    MetricInfo(
        "cutwater_checkpoint_last_unaligned", _G, "1 if a barrier overtook data in it, or 0."
    ),
    MetricInfo(
        "cutwater_recovery_last_duration_seconds",
        _G,
        "From the start of the last recovery to its first batch.",
    ),
    MetricInfo("cutwater_step_rows_total", _C, "Rows emitted, in this generation.", _STEP),
    MetricInfo("cutwater_step_rows_per_second", _G, "The same over the last seconds.", _STEP),
    MetricInfo(
        "cutwater_step_batches_total", _C, "Batches appended since the pipeline was created.", _STEP
    ),
    MetricInfo(
        "cutwater_step_late_rows_dropped_total",
        _C,
        "Rows dropped because the watermark had passed them, in this generation, as Spark counts "
        "them: after a partial aggregation it counts groups.",
        _STEP,
    ),
    MetricInfo(
        "cutwater_step_watermark_timestamp_seconds",
        _G,
        "The event-time watermark, since 1970.",
        _STEP,
    ),
    MetricInfo("cutwater_step_finished", _G, "1 if the step has ended by itself, or 0.", _STEP),
    MetricInfo(
        "cutwater_source_lag_offsets",
        _G,
        "Offsets of a Kafka partition that its source has not read; the broker is asked every 5 s.",
        _PARTITION,
    ),
    MetricInfo("cutwater_source_position_offset", _G, "The next offset that it reads.", _PARTITION),
    MetricInfo(
        "cutwater_channel_backlog_messages", _G, "Messages that a reader has not read.", _CHANNEL
    ),
    MetricInfo("cutwater_channel_backlog_bytes", _G, "The same in bytes.", _CHANNEL),
)


class PipelineCollector(Collector):
    """Collects the metrics of some pipelines."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: registering the collector must not read the pipelines."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        families = {metric.name: _family(metric) for metric in METRICS}
        sheet = _Families(families)
        sheet.add("cutwater_build_info", 1, version=__version__)
        for pipeline in self._pipelines.all():
            _fill(sheet, pipeline)
        yield from families.values()


def metrics_text(collector: PipelineCollector) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


class _Values(list[tuple[str, float | None, dict[str, str]]]):
    """The values of one pipeline, collected before any of them is shown."""

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """Add a value; an unknown value is None."""
        self.append((name, value, labels))


class _Families:
    """The metric families of one scrape."""

    def __init__(self, families: dict[str, CounterMetricFamily | GaugeMetricFamily]) -> None:
        self._families = families
        self._labels = {metric.name: metric.labels for metric in METRICS}

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """Add a value; an unknown value is left out."""
        if value is not None:
            self._families[name].add_metric([labels[label] for label in self._labels[name]], value)


def _family(metric: MetricInfo) -> CounterMetricFamily | GaugeMetricFamily:
    if metric.kind is Kind.COUNTER:
        name = metric.name.removesuffix("_total")
        return CounterMetricFamily(name, metric.text, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)


def _fill(sheet: _Families, pipeline: PipelineView | Unreadable) -> None:
    """Add all metrics of a pipeline, or only the unreadable flag if its records are."""
    values = _Values()
    try:
        if isinstance(pipeline, PipelineView):
            _fill_pipeline(values, pipeline)
        is_unreadable = not isinstance(pipeline, PipelineView)
    except CutwaterError:
        values, is_unreadable = _Values(), True
    values.add("cutwater_pipeline_unreadable", is_unreadable, pipeline=pipeline.name)
    for name, value, labels in values:
        sheet.add(name, value, **labels)


def _fill_pipeline(sheet: _Values, pipeline: PipelineView) -> None:
    job, name = pipeline.job(), pipeline.name
    sheet.add("cutwater_pipeline_up", pipeline.is_running, pipeline=name)
    for state in STATES:
        sheet.add("cutwater_pipeline_state", job.state == state, pipeline=name, state=state)
    sheet.add("cutwater_pipeline_generation", job.generation, pipeline=name)
    listed = pipeline.checkpoints()
    done = [checkpoint for checkpoint in listed.checkpoints if checkpoint.status == "COMPLETED"]
    opened = [checkpoint for checkpoint in listed.checkpoints if checkpoint.status == "IN_PROGRESS"]
    sheet.add("cutwater_checkpoints_in_progress", len(opened), pipeline=name)
    waits = [
        checkpoint.end_to_end_duration
        for checkpoint in opened
        if checkpoint.end_to_end_duration is not None
    ]
    sheet.add("cutwater_checkpoint_open_seconds", max(waits, default=0) / 1000, pipeline=name)
    if done:
        _fill_last(sheet, name, done)
    if listed.recoveries:
        took = listed.recoveries[0].total / 1000
        sheet.add("cutwater_recovery_last_duration_seconds", took, pipeline=name)
    status = pipeline.status()
    if status is not None:
        _fill_run(sheet, status, pipeline.dag())


def _fill_last(sheet: _Values, name: str, done: list[Checkpoint]) -> None:
    last = done[0]
    committed = next(
        (checkpoint for checkpoint in done if checkpoint.commit_duration is not None), None
    )
    values: dict[str, float | None] = {
        "id": last.id,
        "timestamp_seconds": _seconds(last.trigger_timestamp),
        "duration_seconds": _seconds(last.end_to_end_duration),
        "commit_duration_seconds": _seconds(committed.commit_duration) if committed else None,
        "uploaded_bytes": last.checkpointed_size,
        "state_bytes": last.state_size,
        "in_flight_bytes": last.persisted_data,
        "unaligned": last.checkpoint_type == "UNALIGNED_CHECKPOINT",
    }
    for metric, value in values.items():
        sheet.add(f"cutwater_checkpoint_last_{metric}", value, pipeline=name)


def _fill_run(sheet: _Values, status: RunStatus, dag: Dag) -> None:
    name = status.pipeline
    sheet.add("cutwater_pipeline_restarts_total", status.restarts, pipeline=name)
    sheet.add("cutwater_checkpoints_completed_total", status.completed, pipeline=name)
    sheet.add("cutwater_checkpoints_failed_total", status.failed, pipeline=name)
    for step in dag.steps:
        values = {
            "rows_total": step.rows,
            "rows_per_second": step.rows_per_second,
            "batches_total": None if step.batch is None else step.batch + 1,
            "late_rows_dropped_total": step.late_rows,
            "watermark_timestamp_seconds": _seconds(step.watermark),
            "finished": step.finished,
        }
        for metric, value in values.items():
            sheet.add(f"cutwater_step_{metric}", value, pipeline=name, step=step.id)
        for found in step.lag:
            where = {"source": found.source, "topic": found.topic}
            labels = {**where, "step": step.id, "partition": str(found.partition)}
            sheet.add("cutwater_source_lag_offsets", found.lag, pipeline=name, **labels)
            sheet.add("cutwater_source_position_offset", found.position, pipeline=name, **labels)
    for edge in dag.channels:
        where = {"pipeline": name, "channel": edge.channel, "reader": edge.reader}
        sheet.add("cutwater_channel_backlog_messages", edge.backlog_messages, **where)
        sheet.add("cutwater_channel_backlog_bytes", edge.backlog_bytes, **where)


def _seconds(duration_ms: int | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1000
