"""Bundles: small files that an older bundle holds are left there, within bounds."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trees import stored_tree
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import Corrupt
from cutwater.ids import Generation
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs import bundles
from cutwater.store.blobs.blobs import Blobs
from cutwater.store.blobs.bundles import (
    OLDER_MAX,
    BundledFile,
    BundleMemory,
    Held,
    decode_header,
    encode_header,
    older_places,
)

Tree = Mapping[str, bytes]
Refs = tuple[BlobRef, ...]


class Store:
    """A store, and what its bundles hold."""

    def __init__(self, directory: Path) -> None:
        self.blobs = Blobs(MemoryBackend(), PIPELINE, Generation(3))
        self.memory = BundleMemory()
        self._directory = directory
        self._count = 0

    def new(self) -> Path:
        self._count += 1
        return self._directory / str(self._count)

    def put(self, tree: Tree, *known: Refs) -> Refs:
        root = self.new()
        for path, data in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        reusable = {ref.sha256: ref for refs in known for ref in refs}
        return stored_tree(self.blobs, root, reusable, self.memory)

    def get(self, refs: Refs) -> Tree:
        root = self.new()
        self.blobs.fetch_tree(refs, root)
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


FIRST: Tree = {"a": b"a" * 1000, "b": b"b" * 1000, "c/d": b"d" * 1000}


def test_what_an_older_bundle_holds_is_not_packed_again(store: Store) -> None:
    first = store.put(FIRST)
    later = {**FIRST, "new": b"n" * 1000}
    second = store.put(later, first)
    assert first[0] in second
    assert second[0].size_bytes < 2000
    assert store.get(second) == later


def test_a_bundle_that_no_kept_cut_names_is_not_referred_to(store: Store) -> None:
    first = store.put(FIRST)
    second = store.put({**FIRST, "new": b"n"})
    assert first[0] not in second
    assert len(second) == 1


def test_a_bundle_with_less_than_half_of_its_bytes_in_use_is_left_behind(store: Store) -> None:
    first = store.put(FIRST)
    second = store.put({"a": FIRST["a"], "new": b"n"}, first)
    assert first[0] not in second
    assert store.get(second) == {"a": FIRST["a"], "new": b"n"}


def test_a_file_that_is_there_twice_is_packed_once(store: Store) -> None:
    tree = {"a": b"same" * 500, "b": b"same" * 500}
    refs = store.put(tree)
    assert refs[0].size_bytes < 3000
    assert store.get(refs) == tree


def test_only_a_few_older_bundles_are_referred_to() -> None:
    older = [Held(f"bundle{at}", {f"file{at}": (0, 100 + at)}) for at in range(OLDER_MAX + 2)]
    places = older_places({f"file{at}": 100 + at for at in range(OLDER_MAX + 2)}, older)
    # The ones that save most.
    assert {bundle for bundle, _ in places.values()} == {held.sha256 for held in older[2:]}


def test_a_file_that_two_bundles_hold_is_taken_from_one() -> None:
    older = [Held("one", {"file": (0, 5)}), Held("two", {"file": (7, 5)})]
    assert older_places({"file": 5}, older) == {"file": ("one", 0)}


def test_an_older_bundle_that_was_not_named_is_reported(store: Store) -> None:
    first = store.put(FIRST)
    second = store.put({**FIRST, "new": b"n"}, first)
    with pytest.raises(Corrupt, match="no blob was named for its file a"):
        store.get(second[:1])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_REMEMBERED", 2)
    memory = BundleMemory()
    for name in ("one", "two", "three"):
        memory.remember(Held(name, {}))
    assert [held.sha256 for held in memory.among({"one", "two", "three"})] == ["two", "three"]


names = st.sampled_from("abcdef")
contents = st.binary(max_size=6).map(lambda data: data * 50)


@settings(deadline=None)
@given(st.lists(st.dictionaries(names, contents, max_size=5), min_size=2, max_size=6))
def test_every_kept_snapshot_comes_back(trees: list[dict[str, bytes]]) -> None:
    with TemporaryDirectory() as directory:
        store = Store(Path(directory))
        kept: list[Refs] = []
        for tree in trees:
            kept.append(store.put(tree, *kept[-2:]))
        for tree, refs in zip(trees, kept, strict=True):
            assert store.get(refs) == tree
            assert len(refs) <= 1 + OLDER_MAX


@pytest.mark.parametrize(
    "stray",
    [
        BundledFile("../outside", 1, "a" * 64, 0),
        BundledFile("/tmp/outside", 1, "a" * 64, 0),
        BundledFile("inside", 1, "../outside", 0),
        BundledFile("inside", 1, "a" * 64, 0, "../outside"),
    ],
)
def test_a_header_that_names_a_place_outside_is_corrupt(stray: BundledFile) -> None:
    ref = BlobRef("blobs/1/bundle", 1, "b" * 64)

    with pytest.raises(Corrupt, match=r"blobs/1/bundle.*outside"):
        decode_header(ref, encode_header([stray]))
