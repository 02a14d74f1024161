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
from typing import Final

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
from cutwater.protocol.evolution.identity import StepIdentity
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


class CutForm(msgspec.Struct, frozen=True):
    """A `Cut`."""

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
    identities: dict[StepId, StepIdentity] | msgspec.UnsetType = msgspec.UNSET
    last_writes: dict[SinkId, Slot] | msgspec.UnsetType = msgspec.UNSET


def _pack_cut(cut: Cut) -> CutForm:
    packed = {
        "snapshots": {step: _pack_snapshot(snapshot) for step, snapshot in cut.snapshots.items()},
        # Omitted if unknown, as in manifests written before identities existed.
        "identities": cut.identities or msgspec.UNSET,
        "last_writes": cut.last_writes or msgspec.UNSET,
    }
    return CutForm(**fields_of(cut) | packed)


def _unpack_cut(form: CutForm) -> Cut:
    stored = msgspec.structs.asdict(form).items()
    known = {name: value for name, value in stored if value is not msgspec.UNSET}
    snapshots = {step: _unpack_snapshot(snapshot) for step, snapshot in form.snapshots.items()}
    return Cut(**known | {"snapshots": snapshots})


MANIFEST: Final = RecordKind("manifest", _pack_cut, msgspec.json.Decoder(CutForm), _unpack_cut)


class Manifests(PipelineRecords):
    """The manifests of one pipeline."""

    def publish(self, cut: Cut) -> str:
        """Write a cut's manifest and return its hash, for the decision.

        The same cut may be published again after any error.

        Raises:
            Conflict: If another cut has been published under its number.
        """
        path = self._paths.manifest(cut.checkpoint_id)
        data = encode(MANIFEST, path, cut)
        write_once(self._backend, path, data)
        return digest(data)

    def read(self, checkpoint_id: CheckpointId, sha256: str | None = None) -> Cut:
        """Read a manifest.

        Args:
            checkpoint_id: Its number.
            sha256: The hash that its decision names. None, for a cut without a decision, checks
                only the manifest itself.

        Raises:
            NotFound: If there is no such manifest.
            Corrupt: Also if it is not the manifest that was decided.
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
