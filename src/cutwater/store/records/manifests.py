"""Manifests: the contents of each cut, written before the decision that names it by hash.

A manifest alone decides nothing (PROTOCOL.md section 9): only the decision log determines which
manifests count, and by which hash. A manifest is written once per attempt, since one process only
reserves the number (docs/adr/0003). Upholds I7 and I8.

Format 1 holds a whole cut, so that the cut that is read equals the one that was written. Small,
plain values (`BlobRef`, `Event`, `Committable`, …) are stored field by field under the protocol's
own names; an input is stored as the protocol prints it, `0:orders`, because JSON keys are text.
`codecs` has the other records, and the rule for changing any of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import (
    BatchId,
    ChannelId,
    CheckpointId,
    Generation,
    InputId,
    SinkId,
    Slot,
    StepId,
)
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    StepSnapshot,
    Version,
)
from cutwater.protocol.decisions import Decision
from cutwater.protocol.evolution.identity import (
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
)
from cutwater.protocol.messages import Place
from cutwater.protocol.step.aligner_events import Cause
from cutwater.store.backends.backend import write_once
from cutwater.store.backends.directories import is_below, is_name
from cutwater.store.records.envelope import (
    PipelineRecords,
    RecordKind,
    decode,
    digest,
    encode,
    fields_of,
)


class SnapshotForm(msgspec.Struct, frozen=True):
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
    cause: Cause
    finished: bool


def _pack_snapshot(snapshot: StepSnapshot) -> SnapshotForm:
    places = {
        "positions": _pack_places(snapshot.positions),
        "barriers": _pack_places(snapshot.barriers),
    }
    return SnapshotForm(**fields_of(snapshot) | places)


def _unpack_snapshot(form: SnapshotForm) -> StepSnapshot:
    places = {
        "positions": _unpack_places(form.positions),
        "barriers": _unpack_places(form.barriers),
    }
    return StepSnapshot(**msgspec.structs.asdict(form) | places)


def _pack_places(places: Mapping[InputId, Place]) -> dict[str, Place]:
    return {str(source): place for source, place in places.items()}


def _unpack_places(form: Mapping[str, Place]) -> dict[InputId, Place]:
    places = {}
    for key, place in form.items():
        ordinal, _, channel = key.partition(":")
        places[InputId(int(ordinal), ChannelId(channel))] = place
    return places


class InputForm(msgspec.Struct, frozen=True):
    kind: InputKind
    name: str
    ordinal: int = 0
    format: str = ""
    place: str = ""
    settings: str = ""
    log: int | None = None
    # Omitted if unknown, as in manifests written before brokers were asked.
    servers: str | msgspec.UnsetType = msgspec.UNSET
    topics: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET


class IdentityForm(msgspec.Struct, frozen=True):
    inputs: tuple[InputForm, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    operators: tuple[OperatorIdentity, ...] = ()
    partitions: int | None = None
    is_query: bool = True
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    spark: str = ""
    plan_sha256: str = ""
    # Omitted if False, as in manifests written before channels by reference existed.
    by_reference: bool | msgspec.UnsetType = msgspec.UNSET


def _pack_identity(identity: StepIdentity) -> IdentityForm:
    inputs = tuple(
        InputForm(
            **fields_of(step_input)
            | {
                "servers": step_input.servers or msgspec.UNSET,
                "topics": step_input.topics or msgspec.UNSET,
            }
        )
        for step_input in identity.inputs
    )
    packed = {"inputs": inputs, "by_reference": identity.by_reference or msgspec.UNSET}
    return IdentityForm(**fields_of(identity) | packed)


def _unpack_identity(form: IdentityForm) -> StepIdentity:
    inputs = tuple(InputIdentity(**_known_fields(step_input)) for step_input in form.inputs)
    return StepIdentity(**_known_fields(form) | {"inputs": inputs})


def _known_fields(form: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that were stored."""
    stored = msgspec.structs.asdict(form).items()
    return {name: value for name, value in stored if value is not msgspec.UNSET}


class CutForm(msgspec.Struct, frozen=True):
    checkpoint_id: CheckpointId
    generation: Generation
    kind: CheckpointKind
    snapshots: dict[StepId, SnapshotForm]
    commit: dict[SinkId, tuple[Committable, ...]]
    carried: dict[SinkId, tuple[Committable, ...]]
    commit_point: bool
    visible: dict[SinkId, Version | None]
    restores: dict[SinkId, Version | None]
    name: str | None
    started_at_ms: int
    origin: Slot | None
    identities: dict[StepId, IdentityForm] | msgspec.UnsetType = msgspec.UNSET
    last_writes: dict[SinkId, Slot] | msgspec.UnsetType = msgspec.UNSET


def _pack_cut(cut: Cut) -> CutForm:
    packed = {
        "snapshots": {step: _pack_snapshot(snapshot) for step, snapshot in cut.snapshots.items()},
        # Omitted if unknown, as in manifests written before identities existed.
        "identities": {step: _pack_identity(identity) for step, identity in cut.identities.items()}
        or msgspec.UNSET,
        "last_writes": cut.last_writes or msgspec.UNSET,
    }
    return CutForm(**fields_of(cut) | packed)


def _unpack_cut(form: CutForm) -> Cut:
    known = _known_fields(form)
    known["snapshots"] = {
        step: _unpack_snapshot(snapshot) for step, snapshot in form.snapshots.items()
    }
    stored = form.identities or {}
    known["identities"] = {step: _unpack_identity(identity) for step, identity in stored.items()}
    return Cut(**known)


MANIFEST: Final = RecordKind("manifest", _pack_cut, msgspec.json.Decoder(CutForm), _unpack_cut)


class Manifests(PipelineRecords):
    def publish(self, cut: Cut) -> str:
        """Write a cut's manifest and return its hash, for the decision.

        The same cut may be published again after any error. Conflict if another cut has been
        published under its number.
        """
        path = self._paths.manifest(cut.checkpoint_id)
        data = encode(MANIFEST, path, cut)
        write_once(self._backend, path, data)
        return digest(data)

    def read(self, checkpoint_id: CheckpointId, sha256: str | None = None) -> Cut:
        """Read a manifest, and compare it with the hash that its decision names.

        A cut without a decision has no such hash. NotFound if there is no such manifest.
        """
        path = self._paths.manifest(checkpoint_id)
        data = self._backend.read(path)
        cut = decode(MANIFEST, path, data)
        if sha256 is not None and digest(data) != sha256:
            raise Corrupt(path, f"its hash is not {sha256}, which was decided")
        stray = next(_stray_names(cut), None)
        if stray is not None:
            raise Corrupt(path, f"{stray!r} would lead out of the directory that it belongs to")
        return cut

    def find(self, decision: Decision) -> Cut | None:
        """Read the manifest of a decision; None if it is missing or damaged."""
        try:
            return self.read(decision.checkpoint_id, decision.manifest_sha256)
        except (Corrupt, NotFound):
            return None

    def ids(self) -> tuple[CheckpointId, ...]:
        """Return the numbers of all manifests in the store, decided or not, in order."""
        found = self._backend.list(self._paths.manifests)
        return tuple(sorted(self._paths.id_of_manifest(path) for path in found))


def _stray_names(cut: Cut) -> Iterator[str]:
    """Find names in a cut that would become paths outside their directory."""
    for step, snapshot in cut.snapshots.items():
        yield from (name for name in (step, snapshot.step) if not is_name(name))
        yield from (ref.sha256 for ref in sorted(snapshot.blobs) if not is_name(ref.sha256))
        for part in snapshot.in_flight:
            for recorded in part.events:
                yield from (name for name in recorded.event.files if not is_below(name))
