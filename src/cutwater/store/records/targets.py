"""Where a pipeline's sinks write, and where a fork comes from, for rewinds and forks.

Each generation records its sinks' targets before any of them commits, so that a rewind can open the
targets again without the user's file, and can detect that a sink has another target now. A record
counts once its generation has decided something: a start that was refused, or died before its first
checkpoint, has written nowhere. A fork remembers its original's targets and never writes to them
(rule F14, docs/adr/0013). A record holds no secret. Upholds I8.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from cutwater.errors import NotFound
from cutwater.ids import CheckpointId, Generation, PipelineId, SinkId
from cutwater.protocol.decisions import LogView
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.envelope import (
    PipelineRecords,
    RecordKind,
    decode,
    encode,
    plain_record,
)

VISIBILITY: Final = "visibility"
"""The option that is `batch` for a target that shows batches before their checkpoint."""

IDENTITY: Final = "identity"
"""The option that identifies a target uniquely, regardless of its address."""

ALSO: Final = "also"
"""The option with other names of the same target, which the user has declared as moved."""

SAME_AS: Final = {"s3a": "s3", "s3n": "s3"}
"""Schemes that are aliases of another scheme."""
_WHERE: Final = frozenset({"endpoint", "account"})
"""The options after the question mark that determine on which server a bucket is."""


@dataclass(frozen=True, slots=True)
class StoredTarget:
    """A sink's target as a store records it: enough to open it again.

    Attributes:
        format: The kind of target, such as `delta`.
        uri: Its address: absolute, the same from everywhere, and without secrets.
        options: The other options that are needed to open it.
    """

    format: str
    uri: str
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str]:
        """Format and normalized address: equal for two targets that are the same table."""
        return self.format, _one_form(self.uri)

    @property
    def identity(self) -> str | None:
        """The unique identity of the target; None if only its address is known."""
        return next(iter(self.options.get(IDENTITY, ())), None)

    def is_same_as(self, other: "StoredTarget") -> bool:
        """Return whether two targets are the same: by identity, or else by address.

        Addresses are compared only unless both identities are known: a name may lead to another
        server than before.
        """
        if self.format != other.format:
            return False
        mine, theirs = self.identity, other.identity
        if mine is None or theirs is None:
            mine, theirs = self.place[1], other.place[1]
        return (
            mine == theirs
            or mine in other.options.get(ALSO, ())
            or theirs in self.options.get(ALSO, ())
        )

    def overlaps(self, other: "StoredTarget") -> bool:
        """Return whether rows of both may be in one place.

        An identity that ends with `*` stands for all names there, such as the topics of a cluster.
        """
        if self.is_same_as(other):
            return True
        mine, theirs = self.identity, other.identity
        if self.format != other.format or mine is None or theirs is None:
            return False
        return any(
            whole.endswith("/*") and name.startswith(whole.removesuffix("*"))
            for whole, name in ((mine, theirs), (theirs, mine))
        )

    @property
    def shows_batches(self) -> bool:
        """Whether it may show more rows than the last checkpoint contains (rule F33)."""
        return self.options.get(VISIBILITY) == ("batch",)


def moved_from(now: StoredTarget, before: StoredTarget) -> StoredTarget:
    """Return a target with all names that it had before as further names."""
    names = [*before.options.get(ALSO, ()), before.identity, before.place[1]]
    also = sorted({name for name in names if name is not None} - {now.identity, now.place[1]})
    options = {name: value for name, value in now.options.items() if name != ALSO}
    return replace(now, options={**options, ALSO: tuple(also)} if also else options)


def _one_form(uri: str) -> str:
    """Normalize an address, so that different spellings compare equal.

    One table in a bucket can be `s3a://b/t/` here and `s3://b/t?region=eu-west-1` there. Two
    addresses of one table that differ otherwise, such as two names of one server, stay different.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    path, _, query = rest.partition("?")
    where = sorted(pair for pair in parse_qsl(query) if pair[0] in _WHERE)
    parts = "/".join(part for part in path.split("/") if part)
    return f"{SAME_AS.get(scheme, scheme)}://{parts}?{urlencode(where)}"


SinkTargets = Mapping[SinkId, StoredTarget]


TARGETS: Final[RecordKind[SinkTargets, dict[SinkId, StoredTarget]]] = RecordKind(
    "targets", dict, msgspec.json.Decoder(dict[SinkId, StoredTarget]), dict
)


class Targets(PipelineRecords):
    """The targets of one pipeline's sinks, by generation."""

    def record(self, generation: Generation, targets: SinkTargets) -> None:
        """Record where a generation's sinks write; may be repeated, but not with other targets."""
        path = self._paths.targets(generation)
        write_once(self._backend, path, encode(TARGETS, path, targets))

    def read(self, generation: Generation) -> SinkTargets | None:
        """Read the targets of a generation; None if it did not record any."""
        try:
            return self._read(TARGETS, self._paths.targets(generation))
        except NotFound:
            return None

    def newest(self, log: LogView) -> SinkTargets | None:
        """Read the targets that the sinks wrote to last; None if none are recorded.

        They are those of the newest generation whose sinks had something to commit. If there is
        none, as in a pipeline that was adopted and never ran, they are those of the newest
        generation that decided anything.
        """
        for acting in (log.committing, log.deciding):
            found = list(self._read_recorded(acting).values())
            if found:
                return found[-1]
        return None

    def last_recorded(self) -> SinkTargets:
        """Read the newest recorded targets, to which its generation may have written.

        That generation may have shown batches without deciding anything. It rolled back all batches
        that earlier generations had shown before it recorded its targets.
        """
        listed = self._backend.list(self._paths.all_targets)
        numbers = {self._paths.generation_of_targets(path) for path in listed}
        return (self.read(max(numbers)) if numbers else None) or {}

    def since(self, log: LogView, generation: Generation) -> dict[Generation, SinkTargets]:
        """Read the targets that sinks may have committed to since a generation, oldest first."""
        return self._read_recorded(
            frozenset(number for number in log.committing if number >= generation)
        )

    def possible(self, log: LogView) -> tuple[SinkTargets, ...]:
        """Read all targets that sinks have written to, or the newest generation may write to."""
        return tuple(self._read_recorded(log.deciding | {log.generation}).values())

    def _read_recorded(self, wanted: Set[Generation]) -> dict[Generation, SinkTargets]:
        listed = self._backend.list(self._paths.all_targets)
        numbers = {self._paths.generation_of_targets(path) for path in listed}
        found = {number: self.read(number) for number in sorted(numbers & wanted)}
        return {number: targets for number, targets in found.items() if targets is not None}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a fork comes from.

    Attributes:
        targets: All targets of the original's sinks; the fork never writes to them.
    """

    pipeline: PipelineId
    name: str
    store: str
    checkpoint_id: CheckpointId
    targets: tuple[StoredTarget, ...]


ORIGIN: Final = plain_record("origin", Origin)


def record_origin(backend: Backend, pipeline: PipelineId, origin: Origin) -> None:
    """Record where a fork comes from. May be repeated after any error."""
    path = PipelinePaths(pipeline).origin
    write_once(backend, path, encode(ORIGIN, path, origin))


def read_origin(backend: Backend, pipeline: PipelineId) -> Origin | None:
    """None if it is not a fork."""
    path = PipelinePaths(pipeline).origin
    try:
        return decode(ORIGIN, path, backend.read(path))
    except NotFound:
        return None
