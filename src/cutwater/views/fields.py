"""The fields of checkpoints and recoveries as JSON values, by the names of Flink's REST interface.

The only place that knows where a field comes from: `--output json` of the commands picks from these
fields, and `views.build` makes the API's models of them. Nothing is shortened or left out here.

Imports no package of the extra `serve`, since the commands work without it.
"""

from collections.abc import Iterable, Mapping

from cutwater.ids import StepId
from cutwater.kafka.offsets import read_offsets
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.store.maintenance.inspect import CheckpointView
from cutwater.store.records.reports import AttemptReport, RecoveryReport, StepReport

Fields = dict[str, object]
NO_STEPS: Mapping[StepId, StepReport] = {}


def pick(fields: Mapping[str, object], names: Iterable[str]) -> Fields:
    """Return the named fields, in this order; names without a field are left out."""
    return {name: fields[name] for name in names if name in fields}


def checkpoint_fields(view: CheckpointView) -> Fields:
    """Return a checkpoint, an attempt or a rewind, as the store knows it."""
    cut, report, decision = view.cut, view.report, view.decision
    overtaken = not cut.is_aligned if cut else bool(report and report.unaligned)
    sizes: tuple[int | None, int | None] = (None, None)
    if cut is not None:
        sizes = (cut.size_bytes, cut.in_flight_bytes)
    elif report is not None:
        sizes = (report.state_bytes, report.in_flight_bytes)
    return {
        "id": view.id,
        "status": view.status.value,
        "checkpoint_type": checkpoint_type(view.kind, unaligned=overtaken),
        "kind": view.kind and view.kind.name,
        "name": view.name,
        "trigger_timestamp": view.started_at_ms,
        "end_to_end_duration": report.duration_ms if report else None,
        "commit_duration": report.committed_ms if report else None,
        "checkpointed_size": report.uploaded_bytes if report else None,
        "state_size": sizes[0],
        "persisted_data": sizes[1],
        "failure_message": view.failure or None,
        "generation": view.generation,
        "slot": decision.slot if decision else None,
        "commit_point": decision.commit_point if decision else None,
        "is_current": view.is_head,
        "discarded": view.discarded,
        "problem": view.problem or None,
        "rewinds_to": view.rewinds_to,
        "sink_versions": view.versions,
    }


def attempt_fields(report: AttemptReport | CheckpointReport, kind: CheckpointKind) -> Fields:
    """Return an attempt, as the process that takes it reports it."""
    if isinstance(report, AttemptReport):
        number, status = report.checkpoint_id, report.status.name
    else:
        number, status = report.id, report.status
    return {
        "id": number,
        "status": status,
        "checkpoint_type": checkpoint_type(kind, unaligned=report.unaligned),
        "unaligned_checkpoint": report.unaligned,
        "kind": kind.name,
        "name": report.name,
        "trigger_timestamp": report.started_at_ms,
        "end_to_end_duration": report.duration_ms,
        "commit_duration": report.committed_ms,
        "checkpointed_size": report.uploaded_bytes,
        "state_size": report.state_bytes,
        "persisted_data": report.in_flight_bytes,
        "failure_message": report.failure or None,
        "generation": report.generation,
        "commit_point": report.commit_point,
    }


def recovery_fields(report: RecoveryReport) -> Fields:
    return {
        "generation": report.generation,
        "checkpoint_id": report.checkpoint_id,
        "timestamp": report.started_at_ms,
        "reason": report.reason or None,
        "choose": report.choose_ms,
        "commit_replay": report.commit_replay_ms,
        "fetch": report.fetch_ms,
        "start": report.start_ms,
        "first_batch": report.first_batch_ms,
        "total": report.total_ms,
        "repeated_commits": report.repeated_commits,
        "state_size": report.state_bytes,
        "linked_size": report.linked_bytes,
        "fetched_size": report.fetched_bytes,
    }


def task_fields(snapshot: StepSnapshot | None, step: StepReport | None) -> Fields:
    """Return one step's part of a checkpoint: from its report, and from its snapshot.

    The snapshot's fields are left out if there is no snapshot; where both have a field, the
    snapshot is right.
    """
    fields: Fields = {
        "end_to_end_duration": step.end_to_end_ms if step else None,
        "start_delay": step.start_delay_ms if step else None,
        "alignment_duration": step.alignment_ms if step else None,
        "sync_duration": step.sync_ms if step else None,
        "async_duration": step.async_ms if step else None,
        "checkpointed_size": step.uploaded_bytes if step else None,
        "state_size": step.state_bytes if step else None,
        "persisted_data": step.in_flight_bytes if step else None,
        "rows": step.rows if step else None,
    }
    if snapshot is not None:
        fields |= {
            "state_size": state_bytes(snapshot),
            "persisted_data": snapshot.in_flight_bytes,
            "unaligned_checkpoint": bool(snapshot.in_flight),
            "batch": snapshot.batch,
            "watermark": snapshot.watermark_ms,
            "offsets": dict(snapshot.offsets),
            "partitions": partitions(snapshot),
            "positions": positions(snapshot),
            "in_flight_events": in_flight_events(snapshot),
            "cause": snapshot.cause.name,
            "finished": snapshot.finished,
            "objects": len(snapshot.blobs),
        }
    return fields


def step_parts(
    cut: Cut | None, steps: Mapping[StepId, StepReport] = NO_STEPS
) -> dict[StepId, tuple[StepSnapshot | None, StepReport | None]]:
    """Return what is known of each step of a checkpoint, by name."""
    snapshots: Mapping[StepId, StepSnapshot] = cut.snapshots if cut else {}
    names = sorted(snapshots.keys() | steps.keys())
    return {name: (snapshots.get(name), steps.get(name)) for name in names}


def checkpoint_type(kind: CheckpointKind | None, *, unaligned: bool) -> str:
    """Return Flink's name for a kind of checkpoint."""
    if kind is CheckpointKind.SAVEPOINT:
        return "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if unaligned else "CHECKPOINT"


def state_bytes(snapshot: StepSnapshot) -> int:
    """Return the size of a snapshot's state, without in-flight data."""
    return sum(blob.size_bytes for blob in snapshot.state)


def in_flight_events(snapshot: StepSnapshot) -> int:
    return sum(len(part.events) for part in snapshot.in_flight)


def partitions(snapshot: StepSnapshot) -> dict[str, dict[str, int]]:
    """Return the offsets of the step's Kafka sources, by stream and partition."""
    found = ((stream, read_offsets(text)) for stream, text in snapshot.offsets.items())
    return {
        stream: {str(partition): offset for partition, offset in offsets.items()}
        for stream, offsets in found
        if offsets is not None
    }


def positions(snapshot: StepSnapshot) -> dict[str, int]:
    return {str(channel): place.position for channel, place in snapshot.positions.items()}
