"""Savepoints by name, and records of savepoints and other cuts that their owner has dropped.

A name is part of the savepoint's manifest and belongs to one savepoint of a pipeline at a time.
The log keeps a decision forever. A separate record marks the cut as dropped, and from then on
retention does not keep it (PROTOCOL.md section 12). The record is written before anything is
deleted and never changes, so a crash at any moment leaves either the cut or objects that the next
collection removes. Upholds I9.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from cutwater.errors import ConfigError, Corrupt, NewerFormat, NotFound
from cutwater.ids import CheckpointId, PipelineId
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import LogView
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.records.envelope import PipelineRecords, RecordKind, encode
from cutwater.store.records.manifests import Manifests
from cutwater.store.records.reports import Reports

NAME_LENGTH_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED: Final = frozenset({"latest", "none"})


def savepoint_name(text: str, option: str = "savepoint name") -> str:
    """Check that a text can name a savepoint, and cannot be mistaken for a number or a time."""
    problem = ""
    if not _NAME.fullmatch(text):
        problem = "must be letters, digits, dots, dashes and underscores, and begin with one of "
        problem += "the first two"
    elif len(text) > NAME_LENGTH_MAX:
        problem = f"has {len(text)} characters, and {NAME_LENGTH_MAX} are allowed"
    elif text.isdecimal():
        problem = "would be taken for the number of a checkpoint"
    elif text in _RESERVED:
        problem = "has a meaning of its own where a checkpoint is named"
    elif _is_moment(text):
        problem = "would be taken for a moment in time"
    if problem:
        raise ConfigError(option, f"{text!r} {problem}")
    return text


def default_savepoint_name() -> str:
    """Return the name of a savepoint that the user has not named: it has the time."""
    return f"savepoint-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class DroppedForm(msgspec.Struct, frozen=True):
    checkpoint_id: CheckpointId


DROPPED: Final = RecordKind(
    "dropped", DroppedForm, msgspec.json.Decoder(DroppedForm), lambda form: form.checkpoint_id
)


class Savepoints(PipelineRecords):
    """The savepoints of one pipeline.

    Every method that reads raises `Corrupt` for an unknown object among the records, and
    `Unavailable` if the store does not answer.
    """

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        super().__init__(backend, pipeline)
        self._manifests = Manifests(backend, pipeline)
        self._reports = Reports(backend, pipeline)
        self._known: dict[CheckpointId, str | None] = {}

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """Record that a cut was dropped. May be repeated after any error."""
        path = self._paths.dropped(checkpoint_id)
        write_once(self._backend, path, encode(DROPPED, path, checkpoint_id))

    def dropped(self) -> frozenset[CheckpointId]:
        found = self._backend.list(self._paths.all_dropped)
        return frozenset(self._paths.id_of_dropped(path) for path in found)

    def names(self, log: LogView) -> dict[CheckpointId, str | None]:
        """Return the names of all savepoints that were not dropped, by number.

        If a manifest cannot be read, the name is taken from the savepoint's report; the name is
        None if the report is lost too.
        """
        dropped = self.dropped()
        return {
            decision.checkpoint_id: self._name(decision.checkpoint_id, decision.manifest_sha256)
            for decision in log.decisions
            if decision.kind is CheckpointKind.SAVEPOINT and decision.checkpoint_id not in dropped
        }

    def _name(self, checkpoint_id: CheckpointId, sha256: str) -> str | None:
        if checkpoint_id not in self._known:
            try:
                self._known[checkpoint_id] = self._manifests.read(checkpoint_id, sha256).name
            except (NotFound, Corrupt, NewerFormat):
                report = self._reports.attempt(checkpoint_id)
                return None if report is None else report.name
        return self._known[checkpoint_id]
