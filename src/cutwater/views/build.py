"""From what the store and a running pipeline tell to what the API answers; values only.

A checkpoint is known twice: as the store tells of it, which is the truth about what was decided,
and as the process that takes it tells, which knows of it earlier and while it is under way.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cutwater.ids import StepId
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.reporting.status import AlignmentStatus, CheckpointReport
from cutwater.store.maintenance.inspect import CheckpointView, Status
from cutwater.store.records.reports import RecoveryReport, StepReport
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
from cutwater.views.models import Status as StatusText

_CLASS: Final = {"COMPLETED": "completed", "FAILED": "failed", "IN_PROGRESS": "in_progress"}
_STATUS: Final[Mapping[str, StatusText]] = {
    "COMPLETED": "COMPLETED",
    "FAILED": "FAILED",
    "IN_PROGRESS": "IN_PROGRESS",
}
_NO_ALIGNMENTS: Final[Mapping[str, AlignmentStatus]] = {}
_TEXT_MAX: Final = 2_000
_OFFSET_MAX: Final = 500
"""A Kafka offset names every partition; nobody reads further than this."""


def checkpoint_of(view: CheckpointView, location: str) -> CheckpointDetail:
    """Return a checkpoint as the store tells of it.

    Args:
        view: It.
        location: The address of the pipeline's manifests.
    """
    cut, report, decision = view.cut, view.report, view.decision
    steps: Mapping[StepId, StepReport] = report.steps if report else {}
    tasks = _tasks(view.id, view.status.value, view.started_at_ms, cut, steps)
    is_decided = view.status is Status.COMPLETED
    took = None if report is None else report.duration_ms
    ended = None if view.started_at_ms is None or took is None else view.started_at_ms + took
    sizes: tuple[int | None, int | None] = (None, None)
    if cut is not None:
        sizes = (cut.size_bytes, cut.in_flight_bytes)
    elif report is not None:
        sizes = (report.state_bytes, report.in_flight_bytes)
    overtaken = not cut.is_aligned if cut else bool(report and report.unaligned)
    return CheckpointDetail(
        class_name=_CLASS[view.status.value],
        id=view.id,
        status=view.status.value,
        is_savepoint=view.kind is CheckpointKind.SAVEPOINT,
        savepoint_format="NATIVE" if view.kind is CheckpointKind.SAVEPOINT else None,
        trigger_timestamp=view.started_at_ms,
        latest_ack_timestamp=_latest(tasks),
        checkpointed_size=report.uploaded_bytes if report else None,
        state_size=sizes[0],
        end_to_end_duration=took,
        persisted_data=sizes[1],
        num_subtasks=len(tasks),
        num_acknowledged_subtasks=len(tasks) if is_decided else len(steps),
        checkpoint_type=_type(view.kind, unaligned=overtaken),
        external_path=f"{location}/{view.id:012d}" if is_decided and not view.discarded else None,
        discarded=view.discarded if is_decided else None,
        failure_timestamp=ended if view.status is Status.FAILED else None,
        failure_message=_short(view.failure),
        kind=view.kind and view.kind.name,
        name=view.name,
        generation=view.generation,
        slot=decision.slot if decision else None,
        commit_point=decision.commit_point if decision else None,
        commit_duration=report.committed_ms if report else None,
        is_current=view.is_head,
        rewinds_to=view.rewinds_to,
        sink_versions=_versions(view),
        problem=_short(view.problem),
        tasks=tasks,
    )


def attempt_of(
    report: CheckpointReport,
    steps: Sequence[str],
    alignments: Mapping[str, AlignmentStatus] = _NO_ALIGNMENTS,
) -> CheckpointDetail:
    """Return a checkpoint as the process that takes it tells of it.

    Args:
        report: It.
        steps: All steps of the pipeline.
        alignments: How the inputs of steps meet its barrier, while it is under way.
    """
    kind = CheckpointKind[report.kind]
    names = [StepId(one) for one in steps] if report.status == "IN_PROGRESS" else []
    status = _STATUS[report.status]
    tasks: dict[str, Task] = {
        name: _task(report.id, report.status, report.started_at_ms, None, report.steps.get(name))
        for name in dict.fromkeys((*names, *sorted(report.steps)))
    }
    if report.status == "IN_PROGRESS":
        tasks |= {
            name: tasks[name].model_copy(update=_aligning(tasks[name], found))
            for name, found in alignments.items()
            if name in tasks
        }
    failed = report.status == "FAILED"
    return CheckpointDetail(
        class_name=_CLASS[report.status],
        id=report.id,
        status=status,
        is_savepoint=kind is CheckpointKind.SAVEPOINT,
        savepoint_format="NATIVE" if kind is CheckpointKind.SAVEPOINT else None,
        trigger_timestamp=report.started_at_ms,
        latest_ack_timestamp=_latest(tasks),
        checkpointed_size=report.uploaded_bytes,
        state_size=report.state_bytes,
        end_to_end_duration=report.duration_ms,
        persisted_data=report.in_flight_bytes,
        num_subtasks=len(tasks),
        num_acknowledged_subtasks=len(report.steps),
        checkpoint_type=_type(kind, unaligned=report.unaligned),
        discarded=False if report.status == "COMPLETED" else None,
        failure_timestamp=report.started_at_ms + report.duration_ms if failed else None,
        failure_message=_short(report.failure),
        kind=kind.name,
        name=report.name,
        generation=report.generation,
        commit_point=report.commit_point if report.status == "COMPLETED" else None,
        commit_duration=report.committed_ms,
        tasks=tasks,
    )


def _aligning(task: Task, found: AlignmentStatus) -> dict[str, int]:
    """Return what alignment adds to a step's part of a checkpoint that is under way."""
    counts = {
        "inputs": found.inputs,
        "aligned_inputs": len(found.aligned),
        "alignment_buffered": found.held_bytes,
    }
    # Once the step has acknowledged, its report says what is stored.
    known = task.persisted_data is not None
    return counts if known else {**counts, "persisted_data": found.recorded_bytes}


def without_steps(detail: CheckpointDetail) -> Checkpoint:
    """Return a checkpoint as a list shows it."""
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
    """Return a recovery."""
    return Recovery(
        generation=report.generation,
        checkpoint_id=report.checkpoint_id,
        timestamp=report.started_at_ms,
        reason=_short(report.reason),
        choose=report.choose_ms,
        commit_replay=report.commit_replay_ms,
        fetch=report.fetch_ms,
        start=report.start_ms,
        first_batch=report.first_batch_ms,
        total=report.total_ms,
        repeated_commits=report.repeated_commits,
        state_size=report.state_bytes,
    )


def settings_of(options: CheckpointOptions | None, storage: str) -> CheckpointSettings:
    """Return how checkpoints are taken; what nobody knows is left out."""
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
    """Return how the completed ones went."""
    done = [one for one in checkpoints if one.status == "COMPLETED" and one.rewinds_to is None]
    return Summary(
        **{name: spread([getattr(one, name) for one in done]) for name in Summary.model_fields}
    )


def spread(numbers: Sequence[int | None]) -> Spread | None:
    """Return how numbers are distributed; None if none of them is known."""
    known = sorted(one for one in numbers if one is not None)
    if not known:
        return None
    quantiles = (0.5, 0.9, 0.95, 0.99, 0.999)
    p50, p90, p95, p99, p999 = (_quantile(known, one) for one in quantiles)
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
    """Return the number below which a share of them lies, between neighbours in proportion."""
    at = share * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)


# -- parts


def _type(kind: CheckpointKind | None, *, unaligned: bool) -> str:
    if kind is CheckpointKind.SAVEPOINT:
        return "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if unaligned else "CHECKPOINT"


def _tasks(
    checkpoint_id: int,
    status: str,
    started_at_ms: int | None,
    cut: Cut | None,
    steps: Mapping[StepId, StepReport],
) -> dict[str, Task]:
    snapshots: Mapping[StepId, StepSnapshot] = cut.snapshots if cut else {}
    return {
        name: _task(checkpoint_id, status, started_at_ms, snapshots.get(name), steps.get(name))
        for name in sorted(snapshots.keys() | steps.keys())
    }


def _task(
    checkpoint_id: int,
    status: str,
    started_at_ms: int | None,
    snapshot: StepSnapshot | None,
    step: StepReport | None,
) -> Task:
    has_ended = snapshot is not None or step is not None
    values: dict[str, object] = {}
    if step is not None:
        values |= {
            "checkpointed_size": step.uploaded_bytes,
            "state_size": step.state_bytes,
            "end_to_end_duration": step.end_to_end_ms,
            "persisted_data": step.in_flight_bytes,
            "start_delay": step.start_delay_ms,
            "alignment_duration": step.alignment_ms,
            "sync_duration": step.sync_ms,
            "async_duration": step.async_ms,
        }
        if started_at_ms is not None:
            values["latest_ack_timestamp"] = started_at_ms + step.end_to_end_ms
    if snapshot is not None:
        values |= {
            "state_size": sum(blob.size_bytes for blob in snapshot.state),
            "persisted_data": snapshot.in_flight_bytes,
            "unaligned_checkpoint": bool(snapshot.in_flight),
            "batch": snapshot.batch,
            "watermark": snapshot.watermark_ms,
            "offsets": {one: text[:_OFFSET_MAX] for one, text in snapshot.offsets.items()},
            "positions": {str(one): place.position for one, place in snapshot.positions.items()},
            "in_flight_events": sum(len(part.events) for part in snapshot.in_flight),
            "cause": snapshot.cause.name,
            "finished": snapshot.finished,
            "objects": len(snapshot.blobs),
        }
    return Task.model_validate(
        {
            "id": checkpoint_id,
            "status": "COMPLETED" if has_ended else status,
            "num_acknowledged_subtasks": int(has_ended),
            **values,
        }
    )


def _versions(view: CheckpointView) -> dict[str, str] | None:
    if view.versions is None:
        return None
    return {str(sink): version for sink, version in view.versions.items()}


def _latest(tasks: Mapping[str, Task]) -> int | None:
    known = (one.latest_ack_timestamp for one in tasks.values())
    return max((one for one in known if one is not None), default=None)


def _short(text: str) -> str | None:
    return text[:_TEXT_MAX] or None
