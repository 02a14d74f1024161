"""How checkpoints look: as JSON by the names of Flink's REST interface, and as tables for people.

Values only: whoever calls has read the store.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from rich.console import Console

from cutwater.cli.output import Table, bytes_text, counted, duration_text
from cutwater.ids import StepId
from cutwater.printable import printable
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.store.maintenance.inspect import CheckpointView, Status
from cutwater.store.records.reports import AttemptReport, RecoveryReport, StepReport

_WIDE: Final = 240
"""Wide enough for every line where nobody looks at a terminal."""

Json = dict[str, object]


def show(*parts: Table | str) -> None:
    """Write tables and lines to stdout: as wide as the terminal, or as wide as needed."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False)
    for part in parts:
        console.print(part if isinstance(part, Table) else printable(part))
    sys.stdout.flush()


def moment(at_ms: int | None) -> str:
    """Write a time as people here read it."""
    if at_ms is None:
        return ""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


# -- JSON


def view_json(view: CheckpointView) -> Json:
    """Return a checkpoint, an attempt or a rewind as JSON values."""
    cut, report = view.cut, view.report
    state = cut.size_bytes if cut is not None else report and report.state_bytes
    in_flight = cut.in_flight_bytes if cut is not None else report and report.in_flight_bytes
    return {
        "id": view.id,
        "status": view.status.value,
        "checkpoint_type": _type(view),
        "kind": view.kind and view.kind.name,
        "name": view.name,
        "trigger_timestamp": view.started_at_ms,
        "end_to_end_duration": report and report.duration_ms,
        "commit_duration": report and report.committed_ms,
        "checkpointed_size": report and report.uploaded_bytes,
        "state_size": state,
        "persisted_data": in_flight,
        "failure_message": view.failure or None,
        "generation": view.generation,
        "slot": view.decision and view.decision.slot,
        "commit_point": view.decision and view.decision.commit_point,
        "is_current": view.is_head,
        "discarded": view.discarded,
        "problem": view.problem or None,
        "rewinds_to": view.rewinds_to,
        "sink_versions": view.versions,
        "tasks": _tasks(cut, report),
    }


def report_json(report: AttemptReport, kind: CheckpointKind) -> Json:
    """Return a checkpoint that has just been taken as JSON values, as far as they are known."""
    unaligned = "UNALIGNED_CHECKPOINT" if report.unaligned else "CHECKPOINT"
    return {
        "id": report.checkpoint_id,
        "status": report.status.name,
        "checkpoint_type": "SAVEPOINT" if kind is CheckpointKind.SAVEPOINT else unaligned,
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
        "tasks": _tasks(None, report),
    }


def recovery_json(report: RecoveryReport) -> Json:
    """Return a recovery as JSON values, durations in milliseconds."""
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


def _type(view: CheckpointView) -> str:
    if view.kind is CheckpointKind.SAVEPOINT:
        return "SAVEPOINT"
    overtaken = not view.cut.is_aligned if view.cut else bool(view.report and view.report.unaligned)
    return "UNALIGNED_CHECKPOINT" if overtaken else "CHECKPOINT"


def _tasks(cut: Cut | None, report: AttemptReport | None) -> Json:
    snapshots: Mapping[StepId, StepSnapshot] = cut.snapshots if cut else {}
    steps: Mapping[StepId, StepReport] = report.steps if report else {}
    names = sorted(snapshots.keys() | steps.keys())
    return {name: _task(snapshots.get(name), steps.get(name)) for name in names}


def _task(snapshot: StepSnapshot | None, step: StepReport | None) -> Json:
    made: Json = {
        "end_to_end_duration": step and step.end_to_end_ms,
        "start_delay": step and step.start_delay_ms,
        "alignment_duration": step and step.alignment_ms,
        "sync_duration": step and step.sync_ms,
        "async_duration": step and step.async_ms,
        "checkpointed_size": step and step.uploaded_bytes,
        "state_size": step and step.state_bytes,
        "persisted_data": step and step.in_flight_bytes,
        "rows": step and step.rows,
    }
    if snapshot is not None:
        made |= {
            "state_size": state_bytes(snapshot),
            "persisted_data": snapshot.in_flight_bytes,
            "batch": snapshot.batch,
            "watermark": snapshot.watermark_ms,
            "offsets": dict(snapshot.offsets),
            "positions": {str(one): place.position for one, place in snapshot.positions.items()},
            "in_flight_events": in_flight_events(snapshot),
            "cause": snapshot.cause.name,
            "finished": snapshot.finished,
            "objects": len(snapshot.blobs),
        }
    return made


def state_bytes(snapshot: StepSnapshot) -> int:
    """Return how many bytes of state a snapshot has, in-flight data not counted."""
    return sum(blob.size_bytes for blob in snapshot.state)


def in_flight_events(snapshot: StepSnapshot) -> int:
    """Return how many Events were in flight before a step."""
    return sum(len(part.events) for part in snapshot.in_flight)


def size_of(blobs: Iterable[BlobRef]) -> int:
    """Return how many bytes objects have."""
    return sum(blob.size_bytes for blob in blobs)


# -- tables


def table_of(views: Iterable[CheckpointView]) -> Table:
    """Return checkpoints as a table, newest last."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "started", "status", "type", "name"):
        table.add_column(name, justify="right" if name == "id" else "left", no_wrap=True)
    for name in ("took", "uploaded", "size", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for view in views:
        values = view_json(view)
        table.add_row(
            str(view.id),
            moment(view.started_at_ms),
            view.status.value,
            str(values["checkpoint_type"]),
            view.name or "",
            _took(view),
            _bytes(values["checkpointed_size"]),
            _bytes(values["state_size"]),
            _bytes(values["persisted_data"] or None),
            "; ".join(notes(view)),
        )
    return table


def notes(view: CheckpointView) -> list[str]:
    """Return what else there is to say of a checkpoint."""
    found = []
    if view.failure:
        found.append(view.failure)
    if view.status is Status.COMPLETED and view.decision is not None:
        point = "commit point" if view.decision.commit_point else "recovery point"
        found.append("rewind to checkpoint " + str(view.rewinds_to) if view.rewinds_to else point)
        if view.decision.commit_point and view.versions is None:
            found.append("its sinks may not have committed yet")
    if view.discarded:
        found.append("deleted")
    if view.problem:
        found.append(f"its manifest is damaged: {view.problem}")
    if view.is_head:
        found.append("the pipeline stands here")
    return found


def steps_table(view: CheckpointView) -> Table:
    """Return a checkpoint's steps as a table."""
    table = Table("step", box=None, pad_edge=False, header_style="bold")
    for name in ("batch", "state", "objects", "in flight", "uploaded"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("delay", "alignment", "sync", "async", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("watermark", no_wrap=True)
    table.add_column("reads")
    steps = view.report.steps if view.report else {}
    for name, snapshot in sorted((view.cut.snapshots if view.cut else {}).items()):
        step = steps.get(name)
        times = (
            ("", "", "", "", "")
            if step is None
            else tuple(
                duration_text(one)
                for one in (
                    step.start_delay_ms,
                    step.alignment_ms,
                    step.sync_ms,
                    step.async_ms,
                    step.end_to_end_ms,
                )
            )
        )
        events = in_flight_events(snapshot)
        table.add_row(
            name,
            str(snapshot.batch) if snapshot.batch >= 0 else "",
            bytes_text(state_bytes(snapshot)),
            str(len(snapshot.blobs)),
            f"{counted(events, 'Event')}, {bytes_text(snapshot.in_flight_bytes)}" if events else "",
            "" if step is None else bytes_text(step.uploaded_bytes),
            *times,
            moment(snapshot.watermark_ms),
            ", ".join(_reads(snapshot)),
        )
    return table


def _reads(snapshot: StepSnapshot) -> list[str]:
    return [
        *(f"{stream} at {offset}" for stream, offset in sorted(snapshot.offsets.items())),
        *(f"{one} at {place.position}" for one, place in sorted(snapshot.positions.items())),
    ]


def recovery_text(report: RecoveryReport) -> str:
    """Return how a recovery went in one line."""
    where = (
        f"from checkpoint {report.checkpoint_id}"
        if report.checkpoint_id is not None
        else "from nothing"
    )
    phases = [
        f"choose {duration_text(report.choose_ms)}",
        f"commit replay {duration_text(report.commit_replay_ms)}"
        + (f" ({counted(report.repeated_commits, 'commit')})" if report.repeated_commits else ""),
        f"fetch {duration_text(report.fetch_ms)} ({bytes_text(report.fetched_bytes)} from the "
        f"store, {bytes_text(report.linked_bytes)} found here)",
        f"start {duration_text(report.start_ms)}",
        "no batch yet"
        if report.first_batch_ms is None
        else f"first batch {duration_text(report.first_batch_ms)}",
    ]
    why = f" after {report.reason!r}" if report.reason else ""
    return (
        f"generation {report.generation} began {where} at {moment(report.started_at_ms)}{why}: "
        f"{', '.join(phases)}"
    )


def _took(view: CheckpointView) -> str:
    return duration_text(view.report.duration_ms) if view.report else ""


def _bytes(value: object) -> str:
    return bytes_text(value) if isinstance(value, int) else ""
