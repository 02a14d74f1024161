"""Builds the API's models from the records of the store and the status of a run; does no I/O.

A checkpoint has two descriptions. The store's is authoritative about what was decided. That of the
process that takes it exists earlier, while the checkpoint is in progress.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cutwater.ids import StepId
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.reporting.status import AlignmentStatus, CheckpointReport
from cutwater.store.maintenance.inspect import CheckpointView, Status
from cutwater.store.records.reports import RecoveryReport
from cutwater.views.fields import (
    NO_STEPS,
    Fields,
    attempt_fields,
    checkpoint_fields,
    recovery_fields,
    step_parts,
    task_fields,
)
from cutwater.views.models import (
    Alignment,
    Checkpoint,
    CheckpointDetail,
    CheckpointSettings,
    Phased,
    Recovery,
    Spread,
    Subtask,
    Summary,
    Task,
    TaskDetail,
)

_CLASS: Final = {"COMPLETED": "completed", "FAILED": "failed", "IN_PROGRESS": "in_progress"}
_NO_ALIGNMENTS: Final[Mapping[str, AlignmentStatus]] = {}
_TEXT_MAX: Final = 2_000
_OFFSET_MAX: Final = 500
"""A Kafka offset names every partition, which is too long to show."""


def checkpoint_of(view: CheckpointView, location: str) -> CheckpointDetail:
    """Return a checkpoint as the store knows it."""
    report, started_at_ms = view.report, view.started_at_ms
    steps = report.steps if report else NO_STEPS
    tasks = {
        str(name): _task(view.id, view.status.value, started_at_ms, task_fields(*parts))
        for name, parts in step_parts(view.cut, steps).items()
    }
    is_decided = view.status is Status.COMPLETED
    ended = None if started_at_ms is None or report is None else started_at_ms + report.duration_ms
    return _detail(
        checkpoint_fields(view),
        tasks,
        num_acknowledged_subtasks=len(tasks) if is_decided else len(steps),
        external_path=f"{location}/{view.id:012d}" if is_decided and not view.discarded else None,
        discarded=view.discarded if is_decided else None,
        failure_timestamp=ended if view.status is Status.FAILED else None,
    )


def attempt_of(
    report: CheckpointReport,
    steps: Sequence[str],
    alignments: Mapping[str, AlignmentStatus] = _NO_ALIGNMENTS,
) -> CheckpointDetail:
    """Return a checkpoint as the process that takes it reports it."""
    is_open = report.status == "IN_PROGRESS"
    names = [StepId(step) for step in steps] if is_open else []
    tasks: dict[str, Task] = {}
    for name in dict.fromkeys((*names, *sorted(report.steps))):
        fields = task_fields(None, report.steps.get(name))
        tasks[name] = _task(report.id, report.status, report.started_at_ms, fields)
    if is_open:
        tasks |= {
            name: tasks[name].model_copy(update=_aligning(tasks[name], found))
            for name, found in alignments.items()
            if name in tasks
        }
    is_decided = report.status == "COMPLETED"
    ended = report.started_at_ms + report.duration_ms
    return _detail(
        attempt_fields(report, CheckpointKind[report.kind]),
        tasks,
        num_acknowledged_subtasks=len(report.steps),
        discarded=False if is_decided else None,
        failure_timestamp=ended if report.status == "FAILED" else None,
        commit_point=report.commit_point if is_decided else None,
    )


def _detail(fields: Fields, tasks: Mapping[str, Task], **more: object) -> CheckpointDetail:
    """Make a model of a checkpoint's fields, and of what only the API shows."""
    is_savepoint = fields["kind"] == CheckpointKind.SAVEPOINT.name
    acknowledged = [
        task.latest_ack_timestamp
        for task in tasks.values()
        if task.latest_ack_timestamp is not None
    ]
    return CheckpointDetail.model_validate(
        {
            **fields,
            "class_name": _CLASS[str(fields["status"])],
            "is_savepoint": is_savepoint,
            "savepoint_format": "NATIVE" if is_savepoint else None,
            "latest_ack_timestamp": max(acknowledged, default=None),
            "num_subtasks": len(tasks),
            "failure_message": _short(fields["failure_message"]),
            "problem": _short(fields.get("problem")),
            "tasks": tasks,
            **more,
        }
    )


def _aligning(task: Task, found: AlignmentStatus) -> dict[str, int]:
    """Return what alignment adds to a step's part of a checkpoint in progress."""
    counts = {
        "inputs": found.inputs,
        "aligned_inputs": len(found.aligned),
        "alignment_buffered": found.held_bytes,
    }
    # Once the step has acknowledged, its report says what is stored.
    known = task.persisted_data is not None
    return counts if known else {**counts, "persisted_data": found.recorded_bytes}


def without_steps(detail: CheckpointDetail) -> Checkpoint:
    return Checkpoint.model_construct(
        **{name: getattr(detail, name) for name in Checkpoint.model_fields}
    )


def subtask_of(task: Task) -> TaskDetail:
    """Return a step's part with its only subtask, as Flink shows one."""
    subtask = Subtask(
        status="completed" if task.num_acknowledged_subtasks else "pending_or_failed",
        ack_timestamp=task.latest_ack_timestamp,
        end_to_end_duration=task.end_to_end_duration,
        checkpointed_size=task.checkpointed_size,
        state_size=task.state_size,
        checkpoint=Phased(sync=task.sync_duration, async_=task.async_duration),
        alignment=Alignment(
            buffered=task.alignment_buffered,
            persisted=task.persisted_data,
            duration=task.alignment_duration,
        ),
        start_delay=task.start_delay,
        unaligned_checkpoint=task.unaligned_checkpoint,
        aborted=task.status == "FAILED",
    )
    return TaskDetail(**task.model_dump(), subtasks=[subtask])


def recovery_of(report: RecoveryReport) -> Recovery:
    fields = recovery_fields(report)
    return Recovery.model_validate({**fields, "reason": _short(fields["reason"])})


def settings_of(options: CheckpointOptions | None, storage: str) -> CheckpointSettings:
    """Return how checkpoints are taken; unknown values are left out."""
    if options is None:
        return CheckpointSettings(checkpoint_storage=storage)
    return CheckpointSettings(
        interval=options.interval_ms,
        timeout=options.timeout_ms,
        savepoint_timeout=options.savepoint_timeout_ms,
        min_pause=options.min_pause_ms,
        max_concurrent=options.max_concurrent,
        checkpoint_storage=storage,
        unaligned_checkpoints=options.unaligned.enabled,
        forced_unaligned=options.unaligned.forced,
        max_inflight_bytes=options.unaligned.max_inflight_bytes,
        tolerable_failed_checkpoints=options.tolerable_failed,
        aligned_checkpoint_timeout=options.unaligned.alignment_timeout_ms,
        retained=options.retained,
        incremental=options.incremental,
        commit_unaligned=options.commit.commit_unaligned,
    )


# -- summaries


def summary_of(checkpoints: Iterable[Checkpoint]) -> Summary:
    """Return statistics of the completed checkpoints."""
    done = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.status == "COMPLETED" and checkpoint.rewinds_to is None
    ]
    return Summary(
        **{
            name: spread([getattr(checkpoint, name) for checkpoint in done])
            for name in Summary.model_fields
        }
    )


def spread(numbers: Sequence[int | None]) -> Spread | None:
    """Return the distribution of the known numbers; None if there are none."""
    known = sorted(number for number in numbers if number is not None)
    if not known:
        return None
    quantiles = (0.5, 0.9, 0.95, 0.99, 0.999)
    p50, p90, p95, p99, p999 = (_quantile(known, share) for share in quantiles)
    return Spread(
        min=known[0],
        max=known[-1],
        avg=round(sum(known) / len(known)),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
    )


def _quantile(known: Sequence[int], share: float) -> float:
    at = share * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)


# -- parts


def _task(
    checkpoint_id: int, status: str, started_at_ms: int | None, fields: Mapping[str, Any]
) -> Task:
    took_ms = fields["end_to_end_duration"]
    has_ended = took_ms is not None or "batch" in fields
    offsets = fields.get("offsets", {}).items()
    return Task.model_validate(
        {
            **fields,
            "id": checkpoint_id,
            "status": "COMPLETED" if has_ended else status,
            "num_acknowledged_subtasks": int(has_ended),
            "latest_ack_timestamp": None
            if started_at_ms is None or took_ms is None
            else started_at_ms + took_ms,
            "offsets": {stream: offset[:_OFFSET_MAX] for stream, offset in offsets},
        }
    )


def _short(text: object) -> str | None:
    return None if text is None else str(text)[:_TEXT_MAX]
