"""`cutwater checkpoints diff A B`: what has changed from one checkpoint to another.

Compares two manifests: the batch, offsets and watermark of every step, the size of its state, the
rows it has emitted, added and removed objects, and the table versions of the sinks. Rows are
counted by reports, within one generation; the rows that sinks committed are in the manifests
between the two. An unknown number is null in JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cutwater.cli.lookup import FoundPipeline, checkpoint_of, find
from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PipelineName, StoreUrl
from cutwater.cli.output import (
    SUCCESS,
    Output,
    Table,
    bytes_text,
    count_text,
    duration_text,
    say,
    say_json,
)
from cutwater.cli.render import (
    moment,
    show,
    size_of,
)
from cutwater.errors import ConfigError
from cutwater.ids import SinkId, StepId
from cutwater.kafka.offsets import move_text, pairs_of, read_offsets
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.store.maintenance.inspect import CheckpointView, Inspector
from cutwater.views.fields import in_flight_events, positions, state_bytes

HELP: Final = "Show what has changed from one checkpoint to another."

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffArguments:
    pipeline: PipelineName
    before: Annotated[str, typer.Argument(metavar="A", help="The number or name of a checkpoint.")]
    after: Annotated[
        str, typer.Argument(metavar="B", help="The number or name of another checkpoint.")
    ]
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def diff_command(arguments: DiffArguments) -> int:
    found = find(arguments.store, arguments.pipeline)
    (before, old), (after, new) = (
        _read_cut(found, arguments.before),
        _read_cut(found, arguments.after),
    )
    changes = difference(old, new)
    rows = {name: _rows(before, after, name) for name in sorted({*old.snapshots, *new.snapshots})}
    sink_rows = _sink_rows(found, before, after)
    changes["rows"] = rows
    changes["sinks"] = {
        sink: _pair((before.versions or {}).get(sink), (after.versions or {}).get(sink))
        for sink in sorted((before.versions or {}).keys() | (after.versions or {}).keys())
    }
    changes["sink_rows"] = sink_rows
    if arguments.output is Output.JSON:
        say_json({"before": before.id, "after": after.id, **changes}, indent=2)
        return SUCCESS
    took_ms = (after.started_at_ms or 0) - (before.started_at_ms or 0)
    say(f"From checkpoint {before.id} to {after.id}, {duration_text(max(0, took_ms))} later:")
    show(_table(old, new, rows))
    for sink, versions in sorted((after.versions or {}).items()):
        rows_text = "" if sink_rows is None else f", {count_text(sink_rows.get(sink, 0), 'row')}"
        say(f"sink {sink}: {(before.versions or {}).get(sink, 'nothing')} -> {versions}{rows_text}")
    say(f"state: {bytes_text(_state(old))} -> {bytes_text(_state(new))}")
    added, removed = _blobs(new) - _blobs(old), _blobs(old) - _blobs(new)
    say(
        f"{count_text(len(added), 'object')} added ({bytes_text(size_of(added))}), "
        f"{len(removed)} removed ({bytes_text(size_of(removed))}), "
        f"{len(_blobs(old) & _blobs(new))} are shared."
    )
    return SUCCESS


def _read_cut(found: FoundPipeline, text: str) -> tuple[CheckpointView, Cut]:
    view = Inspector(found.store).one(checkpoint_of(found, text))
    if view is None or view.cut is None:
        reason = view.problem if view is not None and view.problem else "it was deleted"
        raise ConfigError(text, f"this checkpoint cannot be read: {reason}")
    return view, view.cut


def difference(old: Cut, new: Cut) -> Json:
    added, removed = _blobs(new) - _blobs(old), _blobs(old) - _blobs(new)
    steps = sorted(old.snapshots.keys() | new.snapshots.keys())
    return {
        "steps": {step: _step(old.snapshots.get(step), new.snapshots.get(step)) for step in steps},
        "state_size": _pair(_state(old), _state(new)),
        "objects": {
            "added": len(added),
            "added_size": size_of(added),
            "removed": len(removed),
            "removed_size": size_of(removed),
            "shared": len(_blobs(old) & _blobs(new)),
        },
    }


def _step(old: StepSnapshot | None, new: StepSnapshot | None) -> Json:
    return {
        "batch": _pair(old and old.batch, new and new.batch),
        "watermark": _pair(old and old.watermark_ms, new and new.watermark_ms),
        "state_size": _pair(old and state_bytes(old), new and state_bytes(new)),
        "in_flight_events": _pair(old and in_flight_events(old), new and in_flight_events(new)),
        "offsets": _pairs(old.offsets if old else {}, new.offsets if new else {}),
        "partitions": _partitions(old.offsets if old else {}, new.offsets if new else {}),
        "positions": _pairs(positions(old) if old else {}, positions(new) if new else {}),
    }


def _partitions(old: Mapping[str, str], new: Mapping[str, str]) -> Json:
    """Return the offsets of Kafka sources by stream and partition."""
    found: Json = {}
    for name in sorted(old.keys() | new.keys()):
        before, after = read_offsets(old.get(name)), read_offsets(new.get(name))
        if before or after:
            pairs = pairs_of(before or {}, after or {})
            found[name] = {str(partition): _pair(*pair) for partition, pair in pairs.items()}
    return found


def _pair(old: object, new: object) -> list[object]:
    return [old, new]


def _pairs(old: Mapping[str, object], new: Mapping[str, object]) -> Json:
    return {name: _pair(old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}


def _state(cut: Cut) -> int:
    return sum(state_bytes(snapshot) for snapshot in cut.snapshots.values())


def _blobs(cut: Cut) -> frozenset[BlobRef]:
    return frozenset(ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs)


def _rows(before: CheckpointView, after: CheckpointView, step: StepId) -> int | None:
    """Return how many rows a step has emitted in between; None if not all of them were counted."""
    if before.generation != after.generation or before.report is None or after.report is None:
        return None
    old, new = (report.steps.get(step) for report in (before.report, after.report))
    if old is None or new is None or old.rows is None or new.rows is None:
        return None
    return new.rows - old.rows


def _sink_rows(
    found: FoundPipeline, before: CheckpointView, after: CheckpointView
) -> dict[SinkId, int] | None:
    """Return how many rows each sink has committed in between; None if a manifest is gone."""
    if before.decision is None or after.decision is None:
        return None
    low, high = sorted((before.decision.slot, after.decision.slot))
    sign = 1 if before.decision.slot <= after.decision.slot else -1
    counts: dict[SinkId, int] = {}
    inspector = Inspector(found.store)
    for decision in found.store.log.read().decisions:
        if not low < decision.slot <= high:
            continue
        view = inspector.one(decision.checkpoint_id)
        # A rewind removes rows, and the manifests do not say how many.
        if view is None or view.cut is None or decision.kind is CheckpointKind.REWIND:
            return None
        for sink, committed in view.cut.commit.items() if decision.commit_point else ():
            counts[sink] = counts.get(sink, 0) + sign * sum(
                committable.rows for committable in committed
            )
    return counts


def _table(old: Cut, new: Cut, rows: Mapping[StepId, int | None]) -> Table:
    names = ("step", "batches", "rows", "state", "watermark", "reads")
    table = Table(*names, box=None, pad_edge=False)
    for name in sorted(old.snapshots.keys() | new.snapshots.keys()):
        before, after = old.snapshots.get(name), new.snapshots.get(name)
        table.add_row(
            name,
            _arrow(before and before.batch, after and after.batch),
            "" if rows[name] is None else f"{rows[name]:+,}",
            _arrow(
                before and bytes_text(state_bytes(before)), after and bytes_text(state_bytes(after))
            ),
            _arrow(
                (before and moment(before.watermark_ms)) or None,
                (after and moment(after.watermark_ms)) or None,
            ),
            ", ".join(_moves(before, after)),
        )
    return table


def _moves(before: StepSnapshot | None, after: StepSnapshot | None) -> list[str]:
    streams = _pairs(before.offsets if before else {}, after.offsets if after else {})
    places = _pairs(positions(before) if before else {}, positions(after) if after else {})
    return [
        f"{name}: {by_partition}"
        if (by_partition := _partition_moves(pair))
        else f"{name} {_arrow(*pair)}"
        for name, pair in {**streams, **places}.items()
        if isinstance(pair, list)
    ]


def _partition_moves(pair: list[object]) -> str | None:
    """Return how the offsets of a Kafka source moved; None for other sources, and channels."""
    if not all(text is None or isinstance(text, str) for text in pair):
        return None
    before, after = (text if isinstance(text, str) else None for text in pair)
    return move_text(before, after)


def _arrow(old: object, new: object) -> str:
    if old == new:
        return "" if old is None else str(old)
    return f"{'-' if old is None else old} -> {'-' if new is None else new}"
