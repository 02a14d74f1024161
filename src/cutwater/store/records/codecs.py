"""Format 1 of log entries, attempts, commits and names; `manifests` has the manifest.

Enums are stored by their values, which are strings and never numbers. A golden file holds each
record byte for byte: a change in this module, or in a dataclass of the protocol, that alters the
written bytes is a new format, and needs a reader besides this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from cutwater.ids import CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.cut import CheckpointKind, Version
from cutwater.protocol.decisions import Claim, Decision, LogEntry
from cutwater.store.records.envelope import RecordKind, fields_of, plain_record

# -- the decision log


class ClaimForm(msgspec.Struct, frozen=True, tag="claim", tag_field="entry"):
    slot: Slot
    generation: Generation
    nonce: str


class DecisionForm(msgspec.Struct, frozen=True, tag="decision", tag_field="entry"):
    slot: Slot
    generation: Generation
    nonce: str
    kind: CheckpointKind
    checkpoint_id: CheckpointId
    manifest_sha256: str
    commit_point: bool
    origin: Slot | None


def pack_entry(entry: LogEntry) -> ClaimForm | DecisionForm:
    if isinstance(entry, Claim):
        return ClaimForm(**fields_of(entry))
    return DecisionForm(**fields_of(entry))


def unpack_entry(form: ClaimForm | DecisionForm) -> LogEntry:
    if isinstance(form, ClaimForm):
        return Claim(**msgspec.structs.asdict(form))
    return Decision(**msgspec.structs.asdict(form))


LOG_ENTRY: Final = RecordKind(
    "log entry", pack_entry, msgspec.json.Decoder(ClaimForm | DecisionForm), unpack_entry
)


# -- attempts, commits, names


@dataclass(frozen=True, slots=True)
class Attempt:
    """The trace that an attempt leaves from its start, however it ends (docs/adr/0003).

    Number and generation make the record unique.
    """

    checkpoint_id: CheckpointId
    generation: Generation
    kind: CheckpointKind
    started_at_ms: int


ATTEMPT: Final = plain_record("attempt", Attempt)


@dataclass(frozen=True, slots=True)
class Committed:
    """The versions that the sinks made visible when they committed one decision (rule F41)."""

    slot: Slot
    checkpoint_id: CheckpointId
    versions: Mapping[SinkId, Version]


COMMITTED: Final = plain_record("committed", Committed)


class NameForm(msgspec.Struct, frozen=True):
    pipeline: PipelineId


NAME: Final = RecordKind(
    "name", NameForm, msgspec.json.Decoder(NameForm), lambda form: form.pipeline
)


class LabelForm(msgspec.Struct, frozen=True):
    label: str


LABEL: Final = RecordKind(
    "label", LabelForm, msgspec.json.Decoder(LabelForm), lambda form: form.label
)
