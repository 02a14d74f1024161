"""Format 1 of a manifest: a cut, whole, so that what is read equals what was written.

What is small and plain (`BlobRef`, `Event`, `Committable`, …) is stored field by field under the
protocol's own names; an input is stored as the protocol prints it, `0:orders`, because JSON keys
are text. `forms` has the other shapes, and the rule for changing any of them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, SinkId, Slot, StepId
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    StepSnapshot,
    Version,
)
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.messages import Place
from cutwater.protocol.step.aligner_events import Cause
from cutwater.store.records.codecs import KindName
from cutwater.store.records.envelope import RecordKind


class CauseName(Enum):
    """How a `Cause` is stored."""

    ALIGNED = "aligned"
    TIMEOUT = "timeout"
    FORCED = "forced"
    UPSTREAM = "upstream"


class SnapshotForm(msgspec.Struct, frozen=True):
    """A `StepSnapshot`."""

    step: StepId
    checkpoint_id: CheckpointId
    generation: Generation
    batch: BatchId
    positions: dict[str, Place]
    barriers: dict[str, Place]
    output: Place
    output_batch: BatchId
    in_flight: tuple[InFlight, ...]
    offsets: dict[str, str]
    watermark_ms: int | None
    owes_batch: bool
    state: tuple[BlobRef, ...]
    staged: tuple[Committable, ...]
    cause: CauseName
    finished: bool


def _pack_snapshot(snapshot: StepSnapshot) -> SnapshotForm:
    return SnapshotForm(
        step=snapshot.step,
        checkpoint_id=snapshot.checkpoint_id,
        generation=snapshot.generation,
        batch=snapshot.batch,
        positions=_pack_places(snapshot.positions),
        barriers=_pack_places(snapshot.barriers),
        output=snapshot.output,
        output_batch=snapshot.output_batch,
        in_flight=snapshot.in_flight,
        offsets=dict(snapshot.offsets),
        watermark_ms=snapshot.watermark_ms,
        owes_batch=snapshot.owes_batch,
        state=snapshot.state,
        staged=snapshot.staged,
        cause=CauseName[snapshot.cause.name],
        finished=snapshot.finished,
    )


def _unpack_snapshot(form: SnapshotForm) -> StepSnapshot:
    return StepSnapshot(
        step=form.step,
        checkpoint_id=form.checkpoint_id,
        generation=form.generation,
        batch=form.batch,
        positions=_unpack_places(form.positions),
        barriers=_unpack_places(form.barriers),
        output=form.output,
        output_batch=form.output_batch,
        in_flight=form.in_flight,
        offsets=form.offsets,
        watermark_ms=form.watermark_ms,
        owes_batch=form.owes_batch,
        state=form.state,
        staged=form.staged,
        cause=Cause[form.cause.name],
        finished=form.finished,
    )


def _pack_places(places: Mapping[InputId, Place]) -> dict[str, Place]:
    return {str(source): place for source, place in places.items()}


def _unpack_places(form: Mapping[str, Place]) -> dict[InputId, Place]:
    places = {}
    for key, place in form.items():
        ordinal, _, channel = key.partition(":")
        places[InputId(int(ordinal), ChannelId(channel))] = place
    return places


class CutForm(msgspec.Struct, frozen=True):
    """A `Cut`."""

    checkpoint_id: CheckpointId
    generation: Generation
    kind: KindName
    snapshots: dict[StepId, SnapshotForm]
    commit: dict[SinkId, tuple[Committable, ...]]
    carried: dict[SinkId, tuple[Committable, ...]]
    commit_point: bool
    visible: dict[SinkId, Version | None]
    restores: dict[SinkId, Version | None]
    name: str | None
    started_at_ms: int
    origin: Slot | None
    identities: dict[StepId, StepIdentity] | msgspec.UnsetType = msgspec.UNSET
    last_writes: dict[SinkId, Slot] | msgspec.UnsetType = msgspec.UNSET


def _pack_cut(cut: Cut) -> CutForm:
    return CutForm(
        checkpoint_id=cut.checkpoint_id,
        generation=cut.generation,
        kind=KindName[cut.kind.name],
        snapshots={step: _pack_snapshot(one) for step, one in cut.snapshots.items()},
        commit=dict(cut.commit),
        carried=dict(cut.carried),
        commit_point=cut.commit_point,
        visible=dict(cut.visible),
        restores=dict(cut.restores),
        name=cut.name,
        started_at_ms=cut.started_at_ms,
        origin=cut.origin,
        # Left out where nobody has said it, as manifests were before there were identities.
        identities=dict(cut.identities) or msgspec.UNSET,
        last_writes=dict(cut.last_writes) or msgspec.UNSET,
    )


def _unpack_cut(form: CutForm) -> Cut:
    return Cut(
        checkpoint_id=form.checkpoint_id,
        generation=form.generation,
        kind=CheckpointKind[form.kind.name],
        snapshots={step: _unpack_snapshot(one) for step, one in form.snapshots.items()},
        commit=form.commit,
        carried=form.carried,
        commit_point=form.commit_point,
        visible=form.visible,
        restores=form.restores,
        name=form.name,
        started_at_ms=form.started_at_ms,
        origin=form.origin,
        identities={} if isinstance(form.identities, msgspec.UnsetType) else form.identities,
        last_writes={} if isinstance(form.last_writes, msgspec.UnsetType) else form.last_writes,
    )


MANIFEST: Final = RecordKind("manifest", _pack_cut, msgspec.json.Decoder(CutForm), _unpack_cut)
