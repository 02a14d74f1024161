"""The start-up probe: a backend that lacks something is refused by what it lacks."""

import pytest
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import ConfigError, OutcomeUnknown
from cutwater.store.backends.location import probe
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PROBES, ObjectPath


class Unwilling(MemoryBackend):
    def create(self, path: ObjectPath, data: bytes) -> bool:
        super().create(path, data)
        return False


class Forgetful(MemoryBackend):
    def read(self, path: ObjectPath) -> bytes:
        return super().read(path)[:-1]


class Overwriting(MemoryBackend):
    def create(self, path: ObjectPath, data: bytes) -> bool:
        self.put(path, data)
        return True


class OverwritingInSilence(MemoryBackend):
    def create(self, path: ObjectPath, data: bytes) -> bool:
        fresh = not self.exists(path)
        self.put(path, data)
        return fresh


class Blind(MemoryBackend):
    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        return super().list(prefix, after)[:0]


class Frozen(MemoryBackend):
    def put(self, path: ObjectPath, data: bytes) -> None:
        self.create(path, data)


class Hoarding(MemoryBackend):
    def delete(self, path: ObjectPath) -> None:
        self.exists(path)


@pytest.mark.parametrize(
    ("backend", "lack"),
    [
        (Unwilling(), "create a new object"),
        (Forgetful(), "give back what was written"),
        (Overwriting(), "create-if-absent"),
        (OverwritingInSilence(), "keep an object when it refuses"),
        (Blind(), "list an object"),
        (Frozen(), "replace an object"),
        (Hoarding(), "delete an object"),
    ],
)
def test_a_backend_is_refused_by_what_it_lacks(backend: MemoryBackend, lack: str) -> None:
    with pytest.raises(ConfigError, match=rf"store: memory: does not .*{lack}"):
        probe(backend)


def test_a_probe_that_fails_leaves_nothing_behind() -> None:
    backend = Overwriting()

    with pytest.raises(ConfigError):
        probe(backend)

    assert backend.list(PROBES) == ()


@pytest.mark.parametrize("lost", [1, 4])
def test_a_lost_answer_is_no_reason_to_refuse_a_store(lost: int) -> None:
    backend = FaultyBackend()
    backend.after_create += [OutcomeUnknown("probe", "the answer was lost")] * lost

    probe(backend)

    assert backend.list(PROBES) == ()


def test_a_store_that_loses_every_answer_is_not_trusted() -> None:
    backend = FaultyBackend()
    backend.after_create += [OutcomeUnknown("probe", "the answer was lost")] * 5

    with pytest.raises(OutcomeUnknown):
        probe(backend)
    assert backend.list(PROBES) == ()
