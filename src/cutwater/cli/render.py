"""Checkpoints as the commands print them: as JSON (`views.fields`), and as tables.

Does no I/O on the store: the caller has read it.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from rich.console import Console

from cutwater.cli.output import Table, bytes_text, count_text, duration_text
from cutwater.ids import StepId
from cutwater.kafka.offsets import offset_text, read_offsets
from cutwater.printable import printable
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.store.maintenance.inspect import CheckpointView, Status
from cutwater.store.records.reports import AttemptReport, RecoveryReport, StepReport
from cutwater.views.fields import (
    NO_STEPS,
    Fields,
    attempt_fields,
    checkpoint_fields,
    in_flight_events,
    pick,
    state_bytes,
    step_parts,
    task_fields,
)

_WIDE: Final = 240
"""Wide enough for every line when stdout is not a terminal."""


def show(*parts: Table | str) -> None:
    """Write tables and lines to stdout: as wide as the terminal, or as wide as needed."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False)
    for part in parts:
        console.print(part if isinstance(part, Table) else printable(part))
    sys.stdout.flush()


def moment(at_ms: int | None) -> str:
    """Write a time in the local time zone."""
    if at_ms is None:
        return ""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


# -- JSON


# What each command shows of the fields that `views.fields` builds, in this order.
_TAKEN_FIELDS: Final = (
    "id",
    "status",
    "checkpoint_type",
    "kind",
    "name",
    "trigger_timestamp",
    "end_to_end_duration",
    "commit_duration",
    "checkpointed_size",
    "state_size",
    "persisted_data",
    "failure_message",
    "generation",
    "commit_point",
)
_RUNNING_FIELDS: Final = (
    "id",
    "status",
    "checkpoint_type",
    "unaligned_checkpoint",
    "end_to_end_duration",
    "checkpointed_size",
    "state_size",
    "persisted_data",
    "commit_point",
    "failure_message",
)


def view_json(view: CheckpointView) -> Fields:
    steps = view.report.steps if view.report else NO_STEPS
    return {**checkpoint_fields(view), "tasks": _tasks_json(view.cut, steps)}


def report_json(report: AttemptReport, kind: CheckpointKind) -> Fields:
    """Return a checkpoint that has just been taken as JSON values, as far as they are known."""
    fields = pick(attempt_fields(report, kind), _TAKEN_FIELDS)
    return {**fields, "tasks": _tasks_json(None, report.steps)}


def checkpoint_json(report: CheckpointReport) -> Fields:
    """Return an attempt of the run that is watched as JSON values.

    Here `checkpoint_type` is the kind of checkpoint that was requested, and `unaligned_checkpoint`
    says whether a barrier overtook data.
    """
    fields = attempt_fields(report, CheckpointKind[report.kind])
    return pick({**fields, "checkpoint_type": report.kind}, _RUNNING_FIELDS)


def _tasks_json(cut: Cut | None, steps: Mapping[StepId, StepReport]) -> Fields:
    tasks: Fields = {}
    for name, (snapshot, step) in step_parts(cut, steps).items():
        fields = task_fields(snapshot, step)
        fields.pop("unaligned_checkpoint", None)
        tasks[name] = fields
    return tasks


def size_of(blobs: Iterable[BlobRef]) -> int:
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
        values = checkpoint_fields(view)
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
        found.append("the current checkpoint")
    return found


def steps_table(view: CheckpointView) -> Table:
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
                duration_text(duration_ms)
                for duration_ms in (
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
            f"{count_text(events, 'Event')}, {bytes_text(snapshot.in_flight_bytes)}"
            if events
            else "",
            "" if step is None else bytes_text(step.uploaded_bytes),
            *times,
            moment(snapshot.watermark_ms),
            ", ".join(_reads(snapshot)),
        )
    return table


def _reads(snapshot: StepSnapshot) -> list[str]:
    return [
        *(_stream_text(stream, text) for stream, text in sorted(snapshot.offsets.items())),
        *(
            f"{channel} at {place.position}"
            for channel, place in sorted(snapshot.positions.items())
        ),
    ]


def _stream_text(stream: str, text: str) -> str:
    """Return where a stream stands: partition by partition for Kafka."""
    if read_offsets(text) is None:
        return f"{stream} at {text}"
    return f"{stream}: {offset_text(text)}"


def recovery_text(report: RecoveryReport) -> str:
    where = (
        f"from checkpoint {report.checkpoint_id}"
        if report.checkpoint_id is not None
        else "from nothing"
    )
    phases = [
        f"choose {duration_text(report.choose_ms)}",
        f"commit replay {duration_text(report.commit_replay_ms)}"
        + (
            f" ({count_text(report.repeated_commits, 'commit')})" if report.repeated_commits else ""
        ),
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
