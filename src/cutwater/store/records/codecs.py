"""Format 1: the shapes of log entries, attempts, commits and names; `manifests` has the manifest.

Enums are stored by their values, which are texts and never numbers. A golden file holds each shape
byte for byte: a change in here, or in a dataclass of the protocol, that alters what is written is a
new format, which needs a reader of its own beside this one.
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
    """A `Claim`."""

    slot: Slot
    generation: Generation
    nonce: str


class DecisionForm(msgspec.Struct, frozen=True, tag="decision", tag_field="entry"):
    """A `Decision`."""

    slot: Slot
    generation: Generation
    nonce: str
    kind: CheckpointKind
    checkpoint_id: CheckpointId
    manifest_sha256: str
    commit_point: bool
    origin: Slot | None


def pack_entry(entry: LogEntry) -> ClaimForm | DecisionForm:
    """Return an entry of the log as it is stored."""
    if isinstance(entry, Claim):
        return ClaimForm(**fields_of(entry))
    return DecisionForm(**fields_of(entry))


def unpack_entry(form: ClaimForm | DecisionForm) -> LogEntry:
    """Return an entry of the log from how it is stored."""
    if isinstance(form, ClaimForm):
        return Claim(**msgspec.structs.asdict(form))
    return Decision(**msgspec.structs.asdict(form))


LOG_ENTRY: Final = RecordKind(
    "log entry", pack_entry, msgspec.json.Decoder(ClaimForm | DecisionForm), unpack_entry
)


# -- attempts, commits, names


@dataclass(frozen=True, slots=True)
class Attempt:
    """The trace an attempt leaves from its start on, whatever becomes of it (docs/adr/0003).

    Attributes:
        checkpoint_id: The number it takes.
        generation: Who takes it; with the number, nobody else's record is the same.
        kind: What was asked for.
        started_at_ms: When it began.
    """

    checkpoint_id: CheckpointId
    generation: Generation
    kind: CheckpointKind
    started_at_ms: int


ATTEMPT: Final = plain_record("attempt", Attempt)


@dataclass(frozen=True, slots=True)
class Committed:
    """What the sinks made visible when they acted on one decision (rule F41).

    Attributes:
        slot: The decision.
        checkpoint_id: Its checkpoint.
        versions: What every sink showed right after its commit.
    """

    slot: Slot
    checkpoint_id: CheckpointId
    versions: Mapping[SinkId, Version]


COMMITTED: Final = plain_record("committed", Committed)


class NameForm(msgspec.Struct, frozen=True):
    """What a pipeline's name leads to."""

    pipeline: PipelineId


NAME: Final = RecordKind(
    "name", NameForm, msgspec.json.Decoder(NameForm), lambda form: form.pipeline
)


class LabelForm(msgspec.Struct, frozen=True):
    """How a pipeline was called."""

    label: str


LABEL: Final = RecordKind(
    "label", LabelForm, msgspec.json.Decoder(LabelForm), lambda form: form.label
)
