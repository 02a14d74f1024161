"""All sinks of a pipeline as they were at one checkpoint: their versions, and their rows.

Sinks commit together at commit points, so the versions that a commit record names show one moment
of the stream in all of them. A recovery point has no versions of its own: what it prepared is
committed with the next commit point (rule F3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cutwater.errors import ConfigError, Corrupt, NewerFormat, NotFound, NotReadable, SinkError
from cutwater.ids import CheckpointId, SinkId
from cutwater.protocol.cut import CheckpointKind, Version
from cutwater.protocol.decisions import Decision, LogView
from cutwater.sinks.registry import read_target
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableAt:
    target: StoredTarget
    version: Version


@dataclass(frozen=True, slots=True)
class ConsistentView:
    """What all sinks showed at one commit point; `notes` say why tables may show another moment."""

    checkpoint_id: CheckpointId
    tables: Mapping[SinkId, TableAt]
    notes: tuple[str, ...] = ()


def read(
    spark: "SparkSession",
    store: str | Path,
    pipeline: str,
    sink: str,
    checkpoint: int | str | None = None,
) -> "DataFrame":
    """Read a sink's rows as they were at a checkpoint; all sinks show the same moment there.

    Args:
        spark: The session to read with. It needs no Delta jar.
        store: The address of the pipeline's store.
        pipeline: The pipeline's name, or its uuid.
        sink: The sink's name.
        checkpoint: The number of a commit point, or the name of a savepoint; None for the newest
            one that all sinks have committed.

    Raises:
        ConfigError: If there is no such store, pipeline, sink or commit point.
        NotReadable: If the sink cannot be read as it was then.
        StoreError: If the store cannot be read.
    """
    backend = existing_backend(store)
    name, identity = identify(backend, pipeline)
    view = view_at(PipelineStore.of(backend, identity), name, checkpoint)
    found = view.tables.get(SinkId(sink))
    if found is None:
        known = ", ".join(sorted(view.tables)) or "none"
        reason = f"{name} had no sink {sink!r} at checkpoint {view.checkpoint_id}; it had {known}"
        raise ConfigError("sink", reason)
    try:
        return read_target(spark, found.target, found.version, SinkId(sink))
    except SinkError as error:
        raise NotReadable(SinkId(sink), view.checkpoint_id, error.reason) from error


def view_at(store: PipelineStore, name: str, checkpoint: int | str | None = None) -> ConsistentView:
    """Find what all sinks showed at a commit point; None is the newest committed one.

    The error for one that does not exist names the nearest ones.
    """
    # Records first: every recorded commit is decided by the time the log is read.
    recorded = frozenset(store.commits.slots())
    log = store.log.read()
    points = [
        decision
        for decision in log.decisions
        if decision.commit_point and decision.slot in recorded
    ]
    if checkpoint is None:
        if not points:
            raise ConfigError("checkpoint", f"the sinks of {name} have committed nothing yet")
        decision = points[-1]
    else:
        decision = _find_decision(store, log, name, str(checkpoint))
    if decision not in points:
        raise ConfigError("checkpoint", _why_not(decision, points))
    versions = store.commits.read(decision.slot).versions
    targets = store.targets.read(decision.generation) or {}
    unknown = sorted(set(versions) - set(targets))
    if unknown:
        reason = f"the store does not say where sink {unknown[0]} wrote"
        raise ConfigError("checkpoint", f"{reason} at checkpoint {decision.checkpoint_id}")
    tables = {sink: TableAt(targets[sink], version) for sink, version in versions.items()}
    return ConsistentView(decision.checkpoint_id, tables, _notes(store, decision, len(tables)))


def _find_decision(store: PipelineStore, log: LogView, name: str, text: str) -> Decision:
    decided = {decision.checkpoint_id: decision for decision in log.decisions}
    if text.isascii() and text.isdigit():
        found = decided.get(CheckpointId(int(text)))
        if found is None:
            numbers = list(decided)
            listed = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
            raise ConfigError("checkpoint", f"{name} has no checkpoint {text}; {listed}")
        return found
    names = store.savepoints.names(log)
    for number, savepoint in names.items():
        if savepoint == text:
            return decided[number]
    listed = ", ".join(sorted(name for name in names.values() if name)) or "none"
    reason = f"{name} has no savepoint {text!r}; its savepoints: {listed}"
    raise ConfigError("checkpoint", reason)


def _why_not(decision: Decision, points: list[Decision]) -> str:
    title = f"checkpoint {decision.checkpoint_id}"
    if decision.commit_point:
        reason = f"{title} is decided, and its sinks have not all committed it"
    else:
        reason = f"{title} is a recovery point: data was in flight, and no sink committed at it"
    before = [point for point in points if point.slot < decision.slot][-1:]
    after = [point for point in points if point.slot > decision.slot][:1]
    near = " and ".join(str(point.checkpoint_id) for point in (*before, *after))
    return f"{reason}; the nearest commit points are {near}" if near else f"{reason}; none has"


def _notes(store: PipelineStore, decision: Decision, sinks: int) -> tuple[str, ...]:
    """Return why tables may disagree, if the manifest still exists."""
    try:
        cut = store.manifests.read(decision.checkpoint_id, decision.manifest_sha256)
    except (Corrupt, NewerFormat, NotFound):
        return ()
    if decision.kind is CheckpointKind.REWIND and not cut.restores and sinks:
        return ("a rewind left the sinks as they were: they show rows of after the checkpoint",)
    in_flight = any(snapshot.in_flight for snapshot in cut.snapshots.values())
    if in_flight and sinks > 1 and decision.kind is not CheckpointKind.REWIND:
        return ("commit_unaligned was on and data was in flight: the tables may disagree",)
    return ()
