"""Pruning by hand: shown before it is done, exact, and safe whatever its process dies of."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.store.cuts import PIPELINE
from tests.unit.store.faulty import FaultyBackend
from tests.unit.store.made import ONE, TABLE, MadeStore

from cutwater.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, Unavailable
from cutwater.ids import BatchId, CheckpointId, Generation
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.maintenance.garbage import Collector, prospect, prune
from cutwater.store.maintenance.inspect import Inspector
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore

SAVEPOINT = CheckpointKind.SAVEPOINT


class MortalBackend(FaultyBackend):
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


def pipeline(backend: MemoryBackend) -> MadeStore:
    """Five checkpoints, a savepoint among them, one attempt that failed late and one early."""
    made = MadeStore(backend)
    made.decide(1)
    made.decide(2, SAVEPOINT, name="saved")
    made.decide(3, in_flight=True)
    made.attempt(4)
    made.store.manifests.publish(made.cut(4, CheckpointKind.CHECKPOINT, None, in_flight=False))
    made.attempt(5)
    made.blob("left by the fifth")
    staged = made.paths.staged_file(ONE, TABLE, BatchId(9), "part")
    made.backend.put(staged, b"rows that nobody will commit")
    made.decide(6)
    made.decide(7)
    return made


@pytest.fixture
def made() -> MadeStore:
    return pipeline(FaultyBackend())


def sound(made: MadeStore) -> list[int]:
    """The checkpoints that can be gone back to, every byte of them compared."""
    inspector = Inspector(made.store)
    return [
        view.id
        for view in inspector.checkpoints()
        if view.cut is not None and not inspector.damages(view)
    ]


def objects(made: MadeStore) -> set[str]:
    paths = made.paths
    return {*made.backend.list(paths.blobs), *made.backend.list(paths.staged_files)}


def test_what_is_shown_is_what_goes(made: MadeStore) -> None:
    before = objects(made)
    sizes = {path: made.backend.size(ObjectPath(path)) for path in before}

    shown = prospect(made.store, 1)
    untouched = objects(made)
    done = prune(made.store, 1, "nonce")

    assert untouched == before
    assert shown.checkpoints == (1, 3, 6)
    assert shown.attempts == (4,)
    assert [one.checkpoint_id for one in shown.keep] == [2, 7]
    assert set(shown.objects) == before - objects(made)
    assert dict(shown.objects) == {path: sizes[path] for path in shown.objects}
    assert shown.freed_bytes == sum(sizes[path] for path in shown.objects)
    # Two objects of the attempt that failed late, one of the other, and the staged rows.
    assert len(shown.orphans) == 4
    assert done.manifests == (1, 3, 4, 6)
    assert sound(made) == [2, 7]


def test_nothing_goes_that_a_checkpoint_left_needs_or_the_pipeline_stands_on(
    made: MadeStore,
) -> None:
    prune(made.store, 1, "nonce", drop=(CheckpointId(7),))

    assert sound(made) == [2, 6, 7]


def test_a_driver_that_keeps_more_does_not_miss_what_was_pruned(made: MadeStore) -> None:
    prune(made.store, 1, "nonce")
    made.claim(Generation(3))

    plan = Collector(made.store, Generation(3), 10, made.store.commits.slots()[-1]).collect()

    assert plan.unreadable == ()
    assert sound(made) == [2, 7]


def test_a_savepoint_goes_when_it_is_given_up(made: MadeStore) -> None:
    shown = prospect(made.store, 10, drop=(CheckpointId(2),))
    prune(made.store, 10, "nonce", drop=(CheckpointId(2),))

    assert shown.checkpoints == (2,)
    assert sound(made) == [1, 3, 6, 7]


def test_a_savepoint_that_cannot_be_read_blocks_until_it_is_given_up(made: MadeStore) -> None:
    made.backend.put(made.paths.manifest(CheckpointId(2)), b"damaged")

    blocked = prospect(made.store, 1)
    nothing = prune(made.store, 1, "one")
    untouched = sound(made)
    prune(made.store, 1, "two", drop=(CheckpointId(2),))

    assert blocked.unreadable == nothing.unreadable == (2,)
    assert (blocked.checkpoints, dict(blocked.objects)) == ((), {})
    assert untouched == [1, 3, 6, 7]
    assert sound(made) == [7]
    assert made.store.manifests.ids() == (7,)


def test_a_savepoint_given_up_while_a_driver_runs_goes_with_its_next_collection(
    made: MadeStore,
) -> None:
    made.store.savepoints.drop(CheckpointId(2))

    Collector(made.store, ONE, 10, made.store.commits.slots()[-1]).collect()

    assert sound(made) == [1, 3, 6, 7]


def test_whoever_loses_the_claim_deletes_nothing(made: MadeStore) -> None:
    before = objects(made)
    backend = made.backend
    assert isinstance(backend, FaultyBackend)
    backend.meanwhile.append(lambda: made.claim(Generation(2)))

    with pytest.raises(Conflict, match="claimed the pipeline just now"):
        prune(made.store, 1, "nonce")

    assert objects(made) == before


def test_an_object_that_goes_meanwhile_has_no_size(
    made: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: ObjectPath) -> int:
        raise NotFound(path)

    monkeypatch.setattr(made.backend, "size", gone)

    assert prospect(made.store, 1).freed_bytes == 0


def test_a_claim_that_may_have_been_written_deletes_nothing(made: MadeStore) -> None:
    backend = made.backend
    assert isinstance(backend, FaultyBackend)
    backend.before_create.append(OutcomeUnknown("log", "no answer"))

    with pytest.raises(Conflict):
        prune(made.store, 1, "nonce")

    backend.before_read.append(Unavailable("x", "away"))
    with pytest.raises(Unavailable):
        prospect(made.store, 1)


def whole(made: MadeStore, drop: tuple[CheckpointId, ...]) -> tuple[list[int], set[str]]:
    """What is left of an undisturbed prune."""
    prune(made.store, 1, "undisturbed", drop=drop)
    return sound(made), objects(made)


def changes_of(drop: tuple[CheckpointId, ...]) -> int:
    backend = MortalBackend()
    made = pipeline(backend)
    backend.changes = 0
    prune(made.store, 1, "counting", drop=drop)
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
        backend = MortalBackend()
        made = pipeline(backend)
        backend.changes, backend.dies_at, backend.dies_after = 0, point, dies_after
        with pytest.raises(Death):
            prune(made.store, 1, "first", drop=drop)
        backend.dies_at = None
        # A new process knows nothing of what the old one had read.
        made.store = PipelineStore.of(backend, PIPELINE)

        # Whatever is still listed with a manifest that stays is whole.
        assert set(expected[0]) <= set(sound(made))
        assert prune(made.store, 1, f"second {point}", drop=drop).unreadable == ()
        assert (sound(made), objects(made)) == expected


def test_a_log_that_lost_its_end_is_no_reason_to_delete_what_it_decided(made: MadeStore) -> None:
    made.backend.delete(made.paths.log_entry(made.store.log.read().last_slot))
    store = PipelineStore.of(made.backend, PIPELINE)
    there = objects(made), store.manifests.ids()

    for look in (prospect, lambda store, keep: prune(store, keep, "mine")):
        with pytest.raises(Corrupt, match="lacks its last entries"):
            look(store, 1)

    assert (objects(made), store.manifests.ids()) == there
