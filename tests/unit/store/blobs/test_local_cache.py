"""The cache: every content comes once, from what is left here or from the store, and is right."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from tests.trees import stored_tree
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import NewerFormat
from cutwater.ids import Generation
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs.blobs import BUNDLED_BYTES_MAX, Blobs
from cutwater.store.blobs.bundles import BundleMemory
from cutwater.store.blobs.local_cache import BlobCache, LeftFiles
from cutwater.store.paths import ObjectPath

BIG = b"0123456789abcdef" * (BUNDLED_BYTES_MAX // 16)
OLD = {"state/a": b"a" * 4000, "state/b": b"b" * 3000, "state/big.sst": BIG}
NEW = OLD | {"offsets/8": b"eight"}


class Reading(MemoryBackend):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        self.reads.append(path)
        super().read_to_file(path, local_file)


class Kept:
    """A snapshot in a store that refers to an older bundle, with an Event beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.backend = Reading()
        self.blobs = Blobs(self.backend, PIPELINE, Generation(3))
        memory = BundleMemory()
        self.query = directory / "old" / "query"
        before = stored_tree(self.blobs, self._planted(OLD), {}, memory)
        self.tree = stored_tree(
            self.blobs, self._planted(NEW), {ref.sha256: ref for ref in before}, memory
        )
        self.event_file = directory / "old" / "channel" / "7.parquet"
        self.event_file.parent.mkdir(parents=True)
        self.event_file.write_bytes(b"rows" * 1000)
        self.event = self.blobs.store_file(self.event_file, {})
        # What was pinned for a checkpoint has a second name.
        os.link(self.event_file, directory / "old" / "pinned")
        self.bundle = self.tree[0]
        self.older, self.big = sorted(
            self.tree[1:], key=lambda ref: ref.size_bytes == len(BIG), reverse=False
        )

    def _planted(self, tree: dict[str, bytes]) -> Path:
        for path, data in tree.items():
            (self.query / path).parent.mkdir(parents=True, exist_ok=True)
            (self.query / path).write_bytes(data)
        return self.query

    def cache(self) -> BlobCache:
        return BlobCache(self.directory / "cache", LeftFiles([self.directory / "old"]))

    def problems(self, cache: BlobCache) -> dict[BlobRef, str]:
        return cache.problems(self.blobs, [self.tree, (), self.tree], [self.event])

    def built(self, cache: BlobCache) -> dict[str, bytes]:
        """What a restore finds, without another byte from the store."""
        self.backend.reads.clear()
        blobs = Blobs(self.backend, PIPELINE, Generation(4), cache)
        into = self.directory / "new"
        blobs.fetch_tree(self.tree, into)
        blobs.fetch_files({into / "event": self.event})
        assert self.backend.reads == []
        return {
            path.relative_to(into).as_posix(): path.read_bytes()
            for path in into.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


EXPECTED = NEW | {"event": b"rows" * 1000}


def size(*refs: BlobRef) -> int:
    return sum(ref.size_bytes for ref in refs)


def test_what_a_killed_process_has_left_is_linked_and_only_the_bundle_is_fetched(
    kept: Kept,
) -> None:
    cache = kept.cache()

    assert kept.problems(cache) == {}

    assert kept.backend.reads == [kept.bundle.name]
    assert cache.fetched_bytes == size(kept.bundle)
    assert cache.linked_bytes == len(BIG) + 4000 + 3000 + size(kept.event)
    shutil.rmtree(kept.directory / "old")
    assert kept.built(cache) == EXPECTED
    # The very file, not a copy of it.
    assert (kept.directory / "new" / "state" / "big.sst").stat().st_nlink == 2


def test_with_nothing_left_every_object_is_read_once(kept: Kept) -> None:
    shutil.rmtree(kept.directory / "old")
    cache = kept.cache()

    assert kept.problems(cache) == {}

    everything = [*kept.tree, kept.event]
    assert sorted(kept.backend.reads) == sorted(ref.name for ref in everything)
    assert (cache.linked_bytes, cache.fetched_bytes) == (0, size(*everything))
    # A second cut that shares them is no reason to read them again.
    kept.backend.reads.clear()
    assert kept.problems(cache) == {}
    assert kept.backend.reads == []
    assert kept.built(cache) == EXPECTED


@pytest.mark.parametrize("path", ["query/state/big.sst", "query/state/a", "channel/7.parquet"])
def test_a_file_that_was_changed_here_comes_from_the_store(kept: Kept, path: str) -> None:
    file = kept.directory / "old" / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    cache = kept.cache()

    assert kept.problems(cache) == {}

    assert len(kept.backend.reads) == 2
    assert kept.built(cache) == EXPECTED


def test_a_file_of_the_same_size_is_measured_once_and_not_taken(kept: Kept) -> None:
    other = kept.directory / "old" / "other"
    other.write_bytes(b"x" * 4000)
    left = LeftFiles([kept.directory / "old"])
    wanted = [(4000, "0" * 64), (4000, "1" * 64)]

    assert [left.take(*pair, kept.directory / "target") for pair in wanted] == [
        False,
        False,
    ]

    assert not (kept.directory / "target").exists()
    assert other.read_bytes() == b"x" * 4000


def test_a_link_or_a_file_of_another_user_is_not_taken(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, big = kept.directory / "target", kept.query / "state" / "big.sst"
    hidden = big.rename(kept.directory / "hidden")
    big.symlink_to(hidden)
    assert not LeftFiles([kept.query]).take(kept.big.size_bytes, kept.big.sha256, target)
    assert LeftFiles([kept.directory]).take(kept.big.size_bytes, kept.big.sha256, target)
    target.unlink()

    monkeypatch.setattr(os, "geteuid", lambda: -1)

    assert not LeftFiles([kept.directory]).take(kept.big.size_bytes, kept.big.sha256, target)


def test_a_file_that_goes_away_while_it_is_taken_comes_from_the_store(kept: Kept) -> None:
    left = LeftFiles([kept.directory / "old", kept.directory / "never"])
    cache = BlobCache(kept.directory / "cache", left)
    assert not left.take(1, "0" * 64, kept.directory / "target")
    shutil.rmtree(kept.directory / "old")

    assert kept.problems(cache) == {}

    assert cache.linked_bytes == 0
    assert kept.built(cache) == EXPECTED


def test_a_file_that_goes_away_while_it_is_looked_for_is_not_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Path.lstat

    def gone(file: Path) -> os.stat_result:
        if file.name in {"7.parquet", "pinned"}:
            file.unlink()
        return seen(file)

    monkeypatch.setattr(Path, "lstat", gone)
    cache = kept.cache()

    assert kept.problems(cache) == {}

    assert cache.fetched_bytes == size(kept.bundle, kept.event)


def test_a_file_system_without_links_gets_copies(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "link", refuse)
    cache = kept.cache()

    assert kept.problems(cache) == {}

    assert cache.fetched_bytes == size(kept.bundle)
    assert kept.built(cache) == EXPECTED
    assert (kept.directory / "new" / "state" / "big.sst").stat().st_nlink == 1


def test_an_object_that_the_store_has_lost_is_a_damage_whatever_is_left_here(kept: Kept) -> None:
    kept.backend.delete(ObjectPath(kept.big.name))
    kept.backend.put(ObjectPath(kept.older.name), b"half")
    kept.backend.put(ObjectPath(kept.event.name), b"")

    problems = kept.problems(kept.cache())

    assert set(problems) == {kept.big, kept.older, kept.event}
    assert problems[kept.big] == "it is missing, and a checkpoint names it"


def test_damage_in_the_store_is_found_where_nothing_is_left_here(kept: Kept) -> None:
    shutil.rmtree(kept.directory / "old")
    for ref in (kept.bundle, kept.big):
        data = bytearray(kept.backend.read(ObjectPath(ref.name)))
        data[-1] ^= 1
        kept.backend.put(ObjectPath(ref.name), bytes(data))

    problems = kept.problems(kept.cache())

    assert set(problems) == {kept.bundle, kept.big}
    assert all("its hash is" in problem for problem in problems.values())


def test_a_bundle_that_is_none_is_named(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no header\n")
    (tmp_path / "newer").write_bytes(b'{"format":99}\n')
    text, newer = kept.blobs.store_files([tmp_path / "text", tmp_path / "newer"], {})

    assert kept.cache().problems(kept.blobs, [(text,)], ()).keys() == {text}
    with pytest.raises(NewerFormat):
        kept.cache().problems(kept.blobs, [(newer,)], ())


def test_what_is_there_is_replaced_by_what_is_given(kept: Kept, tmp_path: Path) -> None:
    cache = kept.cache()
    assert kept.problems(cache) == {}
    (tmp_path / "file").write_bytes(b"something else")

    assert cache.give(kept.event.sha256, tmp_path / "file")
    assert not cache.give("0" * 64, tmp_path / "other")

    assert (tmp_path / "file").read_bytes() == b"rows" * 1000
    assert not (tmp_path / "other").exists()
