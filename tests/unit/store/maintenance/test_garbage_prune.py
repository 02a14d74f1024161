"""Pruning by hand: shown before it is done, exact, and safe whatever its process dies of."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.store.checkpoint_writer import ONE, TABLE, CheckpointWriter
from tests.unit.store.cuts import PIPELINE
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, Unavailable
from cutwater.ids import BatchId, CheckpointId, Generation
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.maintenance.garbage import Collector, prospect, prune
from cutwater.store.maintenance.inspect import Inspector
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore

SAVEPOINT = CheckpointKind.SAVEPOINT


class CrashingBackend(FaultyBackend):
    """Lets a process die before, or right after, its n-th change of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.dies_at: int | None = None
        self.dies_after = False

    def create(self, path: ObjectPath, data: bytes) -> bool:
        with self._change(path):
            return super().create(path, data)

    def put(self, path: ObjectPath, data: bytes) -> None:
        with self._change(path):
            super().put(path, data)

    def delete(self, path: ObjectPath) -> None:
        with self._change(path):
            super().delete(path)

    @contextmanager
    def _change(self, path: ObjectPath) -> Iterator[None]:
        self.changes += 1
        is_last = self.dies_at == self.changes
        if is_last and not self.dies_after:
            raise Death(path)
        yield
        if is_last:
            raise Death(path)


class Death(Exception):
    """The process is gone."""


def pipeline(backend: MemoryBackend) -> CheckpointWriter:
    """Five checkpoints, a savepoint among them, one attempt that failed late and one early."""
    writer = CheckpointWriter(backend)
    writer.decide(1)
    writer.decide(2, SAVEPOINT, name="saved")
    writer.decide(3, in_flight=True)
    writer.attempt(4)
    writer.store.manifests.publish(writer.cut(4, CheckpointKind.CHECKPOINT, None, in_flight=False))
    writer.attempt(5)
    writer.blob("left by the fifth")
    staged = writer.paths.staged_file(ONE, TABLE, BatchId(9), "part")
    writer.backend.put(staged, b"rows that are never committed")
    writer.decide(6)
    writer.decide(7)
    return writer


@pytest.fixture
def writer() -> CheckpointWriter:
    return pipeline(FaultyBackend())


def sound(writer: CheckpointWriter) -> list[int]:
    """The checkpoints that a rewind can restore, every byte of them compared."""
    inspector = Inspector(writer.store)
    return [
        view.id
        for view in inspector.checkpoints()
        if view.cut is not None and not inspector.damages(view)
    ]


def objects(writer: CheckpointWriter) -> set[str]:
    paths = writer.paths
    return {*writer.backend.list(paths.blobs), *writer.backend.list(paths.staged_files)}


def test_what_is_shown_is_what_goes(writer: CheckpointWriter) -> None:
    before = objects(writer)
    sizes = {path: writer.backend.size(ObjectPath(path)) for path in before}

    shown = prospect(writer.store, 1)
    untouched = objects(writer)
    done = prune(writer.store, 1, "nonce")

    assert untouched == before
    assert shown.checkpoints == (1, 3, 6)
    assert shown.attempts == (4,)
    assert [decision.checkpoint_id for decision in shown.keep] == [2, 7]
    assert set(shown.objects) == before - objects(writer)
    assert dict(shown.objects) == {path: sizes[path] for path in shown.objects}
    assert shown.freed_bytes == sum(sizes[path] for path in shown.objects)
    # Two objects of the attempt that failed late, one of the other, and the staged rows.
    assert len(shown.orphans) == 4
    assert done.manifests == (1, 3, 4, 6)
    assert sound(writer) == [2, 7]


def test_nothing_goes_that_a_checkpoint_left_needs_or_the_pipeline_stands_on(
    writer: CheckpointWriter,
) -> None:
    prune(writer.store, 1, "nonce", drop=(CheckpointId(7),))

    assert sound(writer) == [2, 6, 7]


def test_a_driver_that_keeps_more_does_not_miss_what_was_pruned(writer: CheckpointWriter) -> None:
    prune(writer.store, 1, "nonce")
    writer.claim(Generation(3))

    plan = Collector(writer.store, Generation(3), 10, writer.store.commits.slots()[-1]).collect()

    assert plan.unreadable == ()
    assert sound(writer) == [2, 7]


def test_a_savepoint_goes_when_it_is_given_up(writer: CheckpointWriter) -> None:
    shown = prospect(writer.store, 10, drop=(CheckpointId(2),))
    prune(writer.store, 10, "nonce", drop=(CheckpointId(2),))

    assert shown.checkpoints == (2,)
    assert sound(writer) == [1, 3, 6, 7]


def test_a_savepoint_that_cannot_be_read_blocks_until_it_is_given_up(
    writer: CheckpointWriter,
) -> None:
    writer.backend.put(writer.paths.manifest(CheckpointId(2)), b"damaged")

    blocked = prospect(writer.store, 1)
    nothing = prune(writer.store, 1, "one")
    untouched = sound(writer)
    prune(writer.store, 1, "two", drop=(CheckpointId(2),))

    assert blocked.unreadable == nothing.unreadable == (2,)
    assert (blocked.checkpoints, dict(blocked.objects)) == ((), {})
    assert untouched == [1, 3, 6, 7]
    assert sound(writer) == [7]
    assert writer.store.manifests.ids() == (7,)


def test_a_savepoint_given_up_while_a_driver_runs_goes_with_its_next_collection(
    writer: CheckpointWriter,
) -> None:
    writer.store.savepoints.drop(CheckpointId(2))

    Collector(writer.store, ONE, 10, writer.store.commits.slots()[-1]).collect()

    assert sound(writer) == [1, 3, 6, 7]


def test_a_process_that_loses_the_claim_deletes_nothing(writer: CheckpointWriter) -> None:
    before = objects(writer)
    backend = writer.backend
    assert isinstance(backend, FaultyBackend)
    backend.meanwhile.append(lambda: writer.claim(Generation(2)))

    with pytest.raises(Conflict, match="claimed the pipeline just now"):
        prune(writer.store, 1, "nonce")

    assert objects(writer) == before


def test_an_object_that_goes_meanwhile_has_no_size(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: ObjectPath) -> int:
        raise NotFound(path)

    monkeypatch.setattr(writer.backend, "size", gone)

    assert prospect(writer.store, 1).freed_bytes == 0


def test_a_claim_that_may_have_been_written_deletes_nothing(writer: CheckpointWriter) -> None:
    backend = writer.backend
    assert isinstance(backend, FaultyBackend)
    backend.before_create.append(OutcomeUnknown("log", "no answer"))

    with pytest.raises(Conflict):
        prune(writer.store, 1, "nonce")

    backend.before_read.append(Unavailable("x", "away"))
    with pytest.raises(Unavailable):
        prospect(writer.store, 1)


def whole(writer: CheckpointWriter, drop: tuple[CheckpointId, ...]) -> tuple[list[int], set[str]]:
    """What is left of an undisturbed prune."""
    prune(writer.store, 1, "undisturbed", drop=drop)
    return sound(writer), objects(writer)


def changes_of(drop: tuple[CheckpointId, ...]) -> int:
    backend = CrashingBackend()
    writer = pipeline(backend)
    backend.changes = 0
    prune(writer.store, 1, "counting", drop=drop)
    return backend.changes


@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("drop", [(), (CheckpointId(2),)])
def test_a_prune_that_dies_at_any_change_is_finished_by_the_next(
    drop: tuple[CheckpointId, ...], dies_after: bool
) -> None:
    expected = whole(pipeline(FaultyBackend()), drop)
    points = changes_of(drop)
    assert points > 10

    for point in range(1, points + 1):
        backend = CrashingBackend()
        writer = pipeline(backend)
        backend.changes, backend.dies_at, backend.dies_after = 0, point, dies_after
        with pytest.raises(Death):
            prune(writer.store, 1, "first", drop=drop)
        backend.dies_at = None
        # A new process knows nothing of what the old one had read.
        writer.store = PipelineStore.of(backend, PIPELINE)

        # Whatever is still listed with a manifest that stays is whole.
        assert set(expected[0]) <= set(sound(writer))
        assert prune(writer.store, 1, f"second {point}", drop=drop).unreadable == ()
        assert (sound(writer), objects(writer)) == expected


def test_a_log_that_lost_its_end_is_no_reason_to_delete_what_it_decided(
    writer: CheckpointWriter,
) -> None:
    writer.backend.delete(writer.paths.log_entry(writer.store.log.read().last_slot))
    store = PipelineStore.of(writer.backend, PIPELINE)
    there = objects(writer), store.manifests.ids()

    for look in (prospect, lambda store, keep: prune(store, keep, "mine")):
        with pytest.raises(Corrupt, match="lacks its last entries"):
            look(store, 1)

    assert (objects(writer), store.manifests.ids()) == there
