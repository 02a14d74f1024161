"""Forks a pipeline: a second pipeline, with another uuid, that starts from a cut of the first.

Everything the cut needs is copied, so that neither pipeline's retention can affect the other. The
first pipeline is only read. The new name is written last: until then there is no fork, only
unreferenced objects (PROTOCOL.md section 11, rule F14).
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.errors import ConfigError, MoveRefused, OutcomeUnknown, StoreError
from cutwater.ids import CheckpointId, PipelineId, SinkId
from cutwater.operations.offline_pipeline import candidates, check_still_there
from cutwater.operations.rewind.source_history import past_of
from cutwater.operations.rewind.target import Candidate, choose
from cutwater.protocol.cut import BlobRef, Cut, InFlight, RecordedEvent, StepSnapshot
from cutwater.protocol.decisions import LogView
from cutwater.protocol.rewind import Refused, RewindRefusal, plan_fork
from cutwater.store.backends.backend import Backend
from cutwater.store.backends.location import backend_for_writing, existing_backend
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut
from cutwater.store.paths import name as name_path
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify, list_pipelines, open_pipeline
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.targets import (
    Origin,
    SinkTargets,
    StoredTarget,
    read_origin,
    record_origin,
)


@dataclass(frozen=True, slots=True)
class Fork:
    """A new fork.

    Attributes:
        pipeline: The original's name.
        new: The fork's name.
        pipeline_id: The fork's uuid.
        store: The address of the fork's store.
        to: The checkpoint it starts from.
        title: The checkpoint in words.
        at_ms: When the checkpoint was taken.
        objects: How many objects were copied.
        size_bytes: How many bytes they have.
        positions: Where its sources resume, by step and stream.
        forgotten: What its sources no longer have of the input after the checkpoint, by step and
            stream.
        forbidden: The original's targets, which the fork must not write to.
    """

    pipeline: str
    new: str
    pipeline_id: PipelineId
    store: str
    to: CheckpointId
    title: str
    at_ms: int
    objects: int
    size_bytes: int
    positions: Mapping[str, str]
    forgotten: Mapping[str, str]
    forbidden: tuple[str, ...]


def fork(
    pipeline: str,
    new: str,
    *,
    start_from: str,
    store: str | Path,
    new_store: str | Path | None = None,
    allow_forgotten: bool = False,
) -> Fork:
    """Create a second pipeline that starts from a cut of the first, which is only read.

    Its sinks must write elsewhere; that is checked whenever it runs. The first pipeline may be
    running.

    Args:
        pipeline: The pipeline's name.
        new: The fork's name.
        start_from: A checkpoint's number, a savepoint's name or a time, as for `rewind`.
        store: The address of the pipeline's store.
        new_store: The address of the fork's store; None for the same store.
        allow_forgotten: Fork although a source no longer has the input after the cut: the fork
            never gets those rows.

    Raises:
        ConfigError: If there is no such store, pipeline or checkpoint, or the name is taken.
        MoveRefused: If the checkpoint cannot be forked; no name was written.
        StoreError: If a store cannot be read or written.
    """
    backend = existing_backend(store)
    into = backend if new_store is None else backend_for_writing(new_store)
    stores = (backend, into)
    return make_fork(stores, pipeline, new, start_from=start_from, allow_forgotten=allow_forgotten)


def make_fork(
    stores: tuple[Backend, Backend],
    pipeline: str,
    new: str,
    *,
    start_from: str,
    allow_forgotten: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Fork:
    """Do what `fork` does, with the original's store and the fork's store opened."""
    backend, into = stores
    _check_name(into, new)
    pipeline, identity = identify(backend, pipeline)
    original = PipelineStore.of(backend, identity)
    log = original.log.read()
    if log.head is None:
        raise ConfigError("--from", f"{pipeline} has never taken a checkpoint")
    target = choose(start_from, candidates(original, log), "--from")
    made = PipelineStore.of(into, PipelineId(str(uuid.uuid4())))
    cut = _plan(pipeline, target)
    targets = _all_targets(pipeline, original, log)
    past = past_of(original, original.manifests.find(log.head), cut)
    if past.forgotten and not allow_forgotten:
        listed = "; ".join(f"{name}: {reason}" for name, reason in sorted(past.forgotten.items()))
        reason = f"{target.title}: {RewindRefusal.SOURCE_FORGOT.value}: {listed}"
        raise MoveRefused(pipeline, f"{reason}; with --allow-forgotten the fork continues without")
    copies = _copy_objects(pipeline, original, made, target, cut)
    number = target.decision.checkpoint_id
    origin = Origin(original.pipeline, pipeline, backend.url, number, targets)
    record_origin(into, made.pipeline, origin)
    _decide_first_cut(made, _rename_blobs(cut, copies), clock)
    if open_pipeline(into, new, lambda: uuid.UUID(made.pipeline)) != made.pipeline:
        raise ConfigError("NEW", f"{into.url} has got a pipeline {new} meanwhile")
    return Fork(
        pipeline=pipeline,
        new=new,
        pipeline_id=made.pipeline,
        store=into.url,
        to=number,
        title=target.title,
        at_ms=cut.started_at_ms,
        objects=len(copies),
        size_bytes=sum(ref.size_bytes for ref in copies),
        positions=cut.stream_positions,
        forgotten=past.forgotten,
        forbidden=tuple(sorted({stored.uri for stored in targets})),
    )


def shared_targets(backend: Backend, pipeline: PipelineId, targets: SinkTargets) -> str | None:
    """Say which sinks of a fork write to its original's targets; None for none."""
    origin = read_origin(backend, pipeline)
    if origin is None:
        return None
    # A target without an address, such as a console, cannot be shared.
    taken = [target for target in origin.targets if target.uri]
    shared: list[SinkId] = sorted(
        sink for sink, target in targets.items() if any(map(target.overlaps, taken))
    )
    if not shared:
        return None
    listed = ", ".join(f"{sink} ({targets[sink].uri})" for sink in shared)
    return f"{RewindRefusal.SAME_TARGET.value}, {origin.name}: {listed}; give it another"


def _check_name(backend: Backend, new: str) -> None:
    # Before anything is copied: the name must be valid and free.
    name_path(new)
    if new in list_pipelines(backend):
        raise ConfigError("NEW", f"{backend.url} has a pipeline {new} already")


def _plan(pipeline: str, target: Candidate) -> Cut:
    if target.cut is None:
        reason = RewindRefusal.MANIFEST_UNREADABLE.value
        raise MoveRefused(pipeline, f"{target.title}: {reason}")
    planned = plan_fork(target.cut)
    if isinstance(planned, Refused):
        listed = "".join(f": {thing}" for thing in planned.things[:1])
        raise MoveRefused(pipeline, f"{target.title}: {planned.reason.value}{listed}")
    return planned


def _all_targets(pipeline: str, original: PipelineStore, log: LogView) -> tuple[StoredTarget, ...]:
    """Return every target of the original's sinks, past ones and forbidden ones included.

    They are not known if the pipeline was adopted by a version that did not record them.
    """
    recorded = original.targets.possible(log)
    found = {target.place: target for targets in recorded for target in targets.values()}
    before = read_origin(original.backend, original.pipeline)
    if not recorded and before is None:
        reason = "its store does not say where its sinks write, and a fork must not write there"
        raise MoveRefused(pipeline, f"{reason}; run it once")
    found.update({target.place: target for target in (before.targets if before else ())})
    return tuple(found[place] for place in sorted(found))


def _copy_objects(
    pipeline: str, original: PipelineStore, made: PipelineStore, target: Candidate, cut: Cut
) -> Mapping[BlobRef, BlobRef]:
    """Copy every object of the cut and verify its hash; return the copies by original."""
    reading = original.blobs(cut.generation)
    writing = made.blobs(cut.generation)
    copies = {}
    with TemporaryDirectory() as directory:
        local_file = Path(directory) / "blob"
        for ref in sorted({ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs}):
            try:
                reading.fetch_file(ref, local_file)
            except StoreError as error:
                if error.retryable:
                    raise
                check_still_there(pipeline, original, target)
                reason = RewindRefusal.OBJECTS_DAMAGED.value
                raise MoveRefused(pipeline, f"{reason}: {ref.name}: {error.reason}") from error
            copies[ref] = writing.store_file(local_file, {})
    return copies


def _rename_blobs(cut: Cut, copies: Mapping[BlobRef, BlobRef]) -> Cut:
    """Return the cut with the names of its copied objects."""

    def rename_refs(refs: Iterable[BlobRef]) -> tuple[BlobRef, ...]:
        return tuple(copies[ref] for ref in refs)

    def rename_events(part: InFlight) -> InFlight:
        recorded = (
            RecordedEvent(event.position, event.event, rename_refs(event.blobs))
            for event in part.events
        )
        return InFlight(part.input, tuple(recorded))

    def rename_snapshot(original: StepSnapshot) -> StepSnapshot:
        in_flight = tuple(rename_events(part) for part in original.in_flight)
        return replace(original, state=rename_refs(original.state), in_flight=in_flight)

    return replace(
        cut, snapshots={step: rename_snapshot(original) for step, original in cut.snapshots.items()}
    )


def _decide_first_cut(made: PipelineStore, cut: Cut, clock: Clock = SYSTEM_CLOCK) -> None:
    """Write the fork's first claim, number, manifest and decision; it has no name yet."""

    def first(attempt: Attempt) -> Cut:
        return replace(cut, started_at_ms=attempt.started_at_ms)

    try:
        decide_cut(made, claim_next(made, LogView()), cut.kind, first, clock)
    except OutcomeUnknown as error:
        # The uuid is new, so no other process can have written; only the response was lost.
        raise OutcomeUnknown(
            made.backend.url, "the fork was not finished; make it again"
        ) from error
