"""Where a pipeline's sinks write, and where a fork comes from: what moves in time need to know.

Each generation records its sinks' targets before any of them acts, so that a rewind can open them
again without the user's file, and can see that a sink writes elsewhere than it did then. A record
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
from cutwater.store.records.envelope import RecordKind, decode, encode, plain_record

VISIBILITY: Final = "visibility"
"""The option of a target that shows batches before their checkpoint: then it is `batch`."""

IDENTITY: Final = "identity"
"""The option that says what tells a target from every other one, by whatever address."""

ALSO: Final = "also"
"""The option with other names of the same target: what a person has declared to be moved."""

SAME_AS: Final = {"s3a": "s3", "s3n": "s3"}
"""Schemes that are other names of one."""
_WHERE: Final = frozenset({"endpoint", "account"})
"""Of what follows the question mark, what says on which server a bucket is."""


@dataclass(frozen=True, slots=True)
class StoredTarget:
    """A sink's target as a store remembers it: enough to open it again.

    Attributes:
        format: The kind of target, such as `delta`.
        uri: Where it is, whoever asks from wherever: absolute, and without secrets.
        options: What else opening it needs, by option.
    """

    format: str
    uri: str
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str]:
        """What two targets share if they are the same table, however it is opened or written."""
        return self.format, _one_form(self.uri)

    @property
    def identity(self) -> str | None:
        """What tells it from every other target; None if only its address is known."""
        return next(iter(self.options.get(IDENTITY, ())), None)

    def is_same_as(self, other: "StoredTarget") -> bool:
        """Say whether two targets are one: by what they are, or else by their addresses.

        Addresses count only where it is not known of both what they are: a name may lead to
        another server than it did.
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

    @property
    def shows_batches(self) -> bool:
        """Whether it may show more than the last checkpoint holds (rule F33)."""
        return self.options.get(VISIBILITY) == ("batch",)


def moved_from(now: StoredTarget, before: StoredTarget) -> StoredTarget:
    """Return a target with all names that it had before, as other names of the same one."""
    names = [*before.options.get(ALSO, ()), before.identity, before.place[1]]
    also = sorted({name for name in names if name is not None} - {now.identity, now.place[1]})
    options = {name: value for name, value in now.options.items() if name != ALSO}
    return replace(now, options={**options, ALSO: tuple(also)} if also else options)


def _one_form(uri: str) -> str:
    """Write an address in the one way that all its spellings share.

    One table in a bucket can be `s3a://b/t/` here and `s3://b/t?region=eu-west-1` there. Two
    addresses that lead to one table in another way, such as two names of one server, stay two.
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


class Targets:
    """The targets of one pipeline's sinks, by generation."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def record(self, generation: Generation, targets: SinkTargets) -> None:
        """Record where a generation's sinks write. May be repeated after any error.

        Raises:
            Conflict: If something else is recorded for the generation.
            Unavailable: If it was certainly not recorded.
            OutcomeUnknown: If it may or may not have been recorded.
        """
        path = self._paths.targets(generation)
        write_once(self._backend, path, encode(TARGETS, path, targets))

    def read(self, generation: Generation) -> SinkTargets | None:
        """Read where a generation's sinks wrote; None if it did not come to that.

        Raises:
            Corrupt: If the record is damaged.
            NewerFormat: If it is of a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        path = self._paths.targets(generation)
        try:
            return decode(TARGETS, path, self._backend.read(path))
        except NotFound:
            return None

    def newest(self, log: LogView) -> SinkTargets | None:
        """Read where the sinks have written last; None if the store does not say.

        That is the newest generation whose sinks had something to commit. Where none had, as in a
        pipeline that was adopted and never ran, it is the newest one that has decided anything.

        Raises:
            StoreError: As `read` does.
        """
        for acting in (log.committing, log.deciding):
            found = list(self._recorded(acting).values())
            if found:
                return found[-1]
        return None

    def last_recorded(self) -> SinkTargets:
        """Read where the newest generation that came to write anything may have written.

        It may have shown batches without ever deciding anything. Whatever generations before it
        have shown, it took back before it recorded this.

        Raises:
            StoreError: As `read` does.
        """
        listed = self._backend.list(self._paths.all_targets)
        numbers = {self._paths.generation_of_targets(path) for path in listed}
        return (self.read(max(numbers)) if numbers else None) or {}

    def since(self, log: LogView, generation: Generation) -> dict[Generation, SinkTargets]:
        """Read what sinks may have committed to from a generation on, oldest first.

        Raises:
            StoreError: As `read` does.
        """
        return self._recorded(
            frozenset(number for number in log.committing if number >= generation)
        )

    def possible(self, log: LogView) -> tuple[SinkTargets, ...]:
        """Read everything that sinks have written to, or that the newest generation may write to.

        Raises:
            StoreError: As `read` does.
        """
        return tuple(self._recorded(log.deciding | {log.generation}).values())

    def _recorded(self, wanted: Set[Generation]) -> dict[Generation, SinkTargets]:
        listed = self._backend.list(self._paths.all_targets)
        numbers = {self._paths.generation_of_targets(path) for path in listed}
        found = {number: self.read(number) for number in sorted(numbers & wanted)}
        return {number: targets for number, targets in found.items() if targets is not None}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a fork comes from.

    Attributes:
        pipeline: The original's uuid.
        name: The original's name at that time.
        store: The address of its store.
        checkpoint_id: The cut that the fork began from.
        targets: All targets that the original's sinks had: the fork never writes to them.
    """

    pipeline: PipelineId
    name: str
    store: str
    checkpoint_id: CheckpointId
    targets: tuple[StoredTarget, ...]


ORIGIN: Final = plain_record("origin", Origin)


def record_origin(backend: Backend, pipeline: PipelineId, origin: Origin) -> None:
    """Record where a fork comes from. May be repeated after any error.

    Raises:
        StoreError: As `write_once` does.
    """
    path = PipelinePaths(pipeline).origin
    write_once(backend, path, encode(ORIGIN, path, origin))


def read_origin(backend: Backend, pipeline: PipelineId) -> Origin | None:
    """Read where a pipeline comes from; None if it is no fork.

    Raises:
        Corrupt: If the record is damaged.
        NewerFormat: If it is of a newer Cutwater.
        Unavailable: If the store does not answer.
    """
    path = PipelinePaths(pipeline).origin
    try:
        return decode(ORIGIN, path, backend.read(path))
    except NotFound:
        return None
