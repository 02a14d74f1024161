"""Where sources began that have no position in a checkpoint yet (rule F12).

A source that starts at the newest record starts at another place whenever it is started. Until a
checkpoint holds its position, its start is recorded here, so that a restart begins at the same
place and no record in between is skipped. A start belongs to the cut that the source began from and
to what it reads: once either changes, it no longer counts. A topic whose id is known then and now,
and differs, was recreated; an id that is not known says nothing, since a broker may not have
answered. Written once, before the source's first batch counts, and never changed.
"""

import hashlib
from typing import Final

import msgspec

from cutwater.errors import NotFound
from cutwater.ids import CheckpointId, StepId
from cutwater.protocol.evolution.identity import InputIdentity
from cutwater.store.paths import ObjectPath
from cutwater.store.records.envelope import PipelineRecords, encode, plain_record

_RECORDS_MAX: Final = 100


class SourceStart(msgspec.Struct, frozen=True):
    """Where a source began, in its own format, and the ids of its topics that are known."""

    offsets: str
    topics: tuple[tuple[str, str], ...] = ()

    def is_of(self, source: InputIdentity) -> bool:
        """Return whether no topic was recreated since."""
        now = dict(source.topics)
        return all(now.get(topic, known) == known for topic, known in self.topics)


START: Final = plain_record("start", SourceStart)


class Starts(PipelineRecords):
    def record(
        self, origin: CheckpointId, step: StepId, line: int, source: InputIdentity, offsets: str
    ) -> None:
        """Record where a source began; the first record of its kind counts."""
        path, found = self._look(origin, step, line, source)
        if path is not None and found is None:
            start = SourceStart(offsets, source.topics)
            self._backend.create(path, encode(START, path, start))

    def find(
        self, origin: CheckpointId, step: StepId, line: int, source: InputIdentity
    ) -> str | None:
        """Return where a source began; None if that is not recorded."""
        _, found = self._look(origin, step, line, source)
        return None if found is None else found.offsets

    def _look(
        self, origin: CheckpointId, step: StepId, line: int, source: InputIdentity
    ) -> tuple[ObjectPath | None, SourceStart | None]:
        """Return a source's record and its path: the path is free if there is no record yet.

        There is one record for each time that a topic was recreated. No path is returned when the
        most records that are allowed are there and none of them counts.
        """
        for number in range(_RECORDS_MAX):
            path = self._paths.start(origin, step, line, _key(source, number))
            try:
                found = self._read(START, path)
            except NotFound:
                return path, None
            if found.is_of(source):
                return path, found
        return None, None


def _key(source: InputIdentity, number: int) -> str:
    """Return a name for what a source reads, as its options say it."""
    text = msgspec.json.encode([source.name, source.settings, number])
    return hashlib.sha256(text).hexdigest()[:32]
