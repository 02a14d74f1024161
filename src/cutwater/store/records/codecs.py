"""Format 1: the shapes of log entries, attempts, commits and names; `cut_form` has the manifest.

Enums are stored by name, never by number. A golden file holds each shape byte for byte: a change
in here, or in a dataclass of the protocol, that alters what is written is a new format, which
needs a reader of its own beside this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from cutwater.ids import CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.cut import CheckpointKind, Version
from cutwater.protocol.decisions import Claim, Decision, LogEntry
from cutwater.store.records.envelope import RecordKind


class KindName(Enum):
    """How a `CheckpointKind` is stored."""

    CHECKPOINT = "checkpoint"
    FULL = "full"
    SAVEPOINT = "savepoint"
    REWIND = "rewind"


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
    kind: KindName
    checkpoint_id: CheckpointId
    manifest_sha256: str
    commit_point: bool
    origin: Slot | None


def pack_entry(entry: LogEntry) -> ClaimForm | DecisionForm:
    """Return an entry of the log as it is stored."""
    if isinstance(entry, Claim):
        return ClaimForm(entry.slot, entry.generation, entry.nonce)
    return DecisionForm(
        slot=entry.slot,
        generation=entry.generation,
        nonce=entry.nonce,
        kind=KindName[entry.kind.name],
        checkpoint_id=entry.checkpoint_id,
        manifest_sha256=entry.manifest_sha256,
        commit_point=entry.commit_point,
        origin=entry.origin,
    )


def unpack_entry(form: ClaimForm | DecisionForm) -> LogEntry:
    """Return an entry of the log from how it is stored."""
    if isinstance(form, ClaimForm):
        return Claim(form.slot, form.generation, form.nonce)
    return Decision(
        slot=form.slot,
        generation=form.generation,
        nonce=form.nonce,
        kind=CheckpointKind[form.kind.name],
        checkpoint_id=form.checkpoint_id,
        manifest_sha256=form.manifest_sha256,
        commit_point=form.commit_point,
        origin=form.origin,
    )


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


class AttemptForm(msgspec.Struct, frozen=True):
    """An `Attempt`."""

    checkpoint_id: CheckpointId
    generation: Generation
    kind: KindName
    started_at_ms: int


def _pack_attempt(attempt: Attempt) -> AttemptForm:
    return AttemptForm(
        attempt.checkpoint_id,
        attempt.generation,
        KindName[attempt.kind.name],
        attempt.started_at_ms,
    )


def _unpack_attempt(form: AttemptForm) -> Attempt:
    kind = CheckpointKind[form.kind.name]
    return Attempt(form.checkpoint_id, form.generation, kind, form.started_at_ms)


ATTEMPT: Final = RecordKind(
    "attempt", _pack_attempt, msgspec.json.Decoder(AttemptForm), _unpack_attempt
)


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


class CommittedForm(msgspec.Struct, frozen=True):
    """A `Committed`."""

    slot: Slot
    checkpoint_id: CheckpointId
    versions: dict[SinkId, Version]


def _pack_committed(committed: Committed) -> CommittedForm:
    return CommittedForm(committed.slot, committed.checkpoint_id, dict(committed.versions))


def _unpack_committed(form: CommittedForm) -> Committed:
    return Committed(form.slot, form.checkpoint_id, form.versions)


COMMITTED: Final = RecordKind(
    "committed", _pack_committed, msgspec.json.Decoder(CommittedForm), _unpack_committed
)


class NameForm(msgspec.Struct, frozen=True):
    """What a pipeline's name leads to."""

    pipeline: PipelineId


def _pack_name(pipeline: PipelineId) -> NameForm:
    return NameForm(pipeline)


def _unpack_name(form: NameForm) -> PipelineId:
    return form.pipeline


NAME: Final = RecordKind("name", _pack_name, msgspec.json.Decoder(NameForm), _unpack_name)


class LabelForm(msgspec.Struct, frozen=True):
    """How a pipeline was called."""

    label: str


def _pack_label(label: str) -> LabelForm:
    return LabelForm(label)


def _unpack_label(form: LabelForm) -> str:
    return form.label


LABEL: Final = RecordKind("label", _pack_label, msgspec.json.Decoder(LabelForm), _unpack_label)
