"""Blobs: what comes back is what was stored, or an error that names the object."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trees import stored_tree
from tests.unit.store.cuts import PIPELINE, STEADY

from cutwater.errors import Corrupt, NewerFormat, Unavailable
from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.local import LocalBackend
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs.blobs import BUNDLED_BYTES_MAX, Blobs
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import digest

Tree = dict[str, bytes]
GENERATION = Generation(3)

BIG = b"0123456789abcdef" * (BUNDLED_BYTES_MAX // 16)
"""The smallest file that is a blob of its own."""

TREE: Tree = {
    "metadata": b'{"id":"one"}',
    "offsets/7": b"v1\n\n-",
    "state/0/1/8_one.zip": BIG[1:],
    "state/0/1/SSTs/000009-one.sst": BIG,
    "state/0/1/empty": b"",
}


class CountingBackend(MemoryBackend):
    """Remembers what was asked of it, and can be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[ObjectPath] = []
        self.gone = False

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        self.stored.append(path)
        super().put_file(path, local_file)

    def exists(self, path: ObjectPath) -> bool:
        raise AssertionError(f"existence of {path} proves nothing")

    def read(self, path: ObjectPath) -> bytes:
        if self.gone:
            raise Unavailable(path, "the store is gone")
        return super().read(path)


@pytest.fixture
def backend() -> CountingBackend:
    return CountingBackend()


@pytest.fixture
def blobs(backend: CountingBackend) -> Blobs:
    return Blobs(backend, PIPELINE, GENERATION)


def planted(root: Path, tree: Tree) -> Path:
    for path, data in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def found(root: Path) -> Tree:
    files = (path for path in root.rglob("*") if path.is_file())
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files}


def by_hash(*refs: BlobRef) -> dict[str, BlobRef]:
    return {ref.sha256: ref for ref in refs}


# -- round trips


def test_a_tree_comes_back_as_it_was_stored(blobs: Blobs, tmp_path: Path) -> None:
    root = planted(tmp_path / "pins", TREE)

    refs = stored_tree(blobs, root, {})
    blobs.fetch_tree(refs, tmp_path / "new" / "scratch")

    assert found(tmp_path / "new" / "scratch") == TREE
    # Nothing is left beside the tree.
    assert {path.name for path in tmp_path.iterdir()} == {"pins", "new"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"scratch"}


def test_a_part_of_a_tree_comes_back_without_the_rest(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    tree = {"a/1": b"one", "a/2": b"two", "b/1": b"three", "b/big": BIG}
    bundle, big = stored_tree(blobs, planted(tmp_path / "pins", tree), {})
    backend.delete(ObjectPath(big.name))

    blobs.fetch_tree((bundle, big), tmp_path / "part", "a/")

    assert found(tmp_path / "part") == {"a/1": b"one", "a/2": b"two"}


def test_refs_are_the_bundle_and_one_blob_for_every_big_file(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    bigger = BIG + b"more"
    tree = TREE | {"state/0/0/copy.sst": BIG, "state/0/0/bigger.sst": bigger}

    bundle, *big = stored_tree(blobs, planted(tmp_path / "pins", tree), {})

    paths = PipelinePaths(PIPELINE)
    assert big == sorted(
        BlobRef(paths.blob(GENERATION, digest(data)), len(data), digest(data))
        for data in (BIG, bigger)
    )
    data = backend.read(ObjectPath(bundle.name))
    assert bundle == BlobRef(paths.blob(GENERATION, digest(data)), len(data), digest(data))


def test_a_bundle_is_a_line_of_json_and_the_small_files(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    """Golden: what was once released is read for ever."""
    tree = {"b": b"second", "a/c": b"first", "big": BIG}

    (bundle, _) = stored_tree(blobs, planted(tmp_path / "pins", tree), {})

    assert backend.read(ObjectPath(bundle.name)) == (
        b'{"files":['
        b'{"offset":0,"path":"a/c","sha256":"%s","size_bytes":5},'
        b'{"offset":5,"path":"b","sha256":"%s","size_bytes":6},'
        b'{"offset":null,"path":"big","sha256":"%s","size_bytes":1048576}'
        b'],"format":1}\nfirstsecond'
        % (digest(b"first").encode(), digest(b"second").encode(), digest(BIG).encode())
    )


def test_a_tree_without_files_needs_nothing_of_the_store(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    (tmp_path / "pins" / "empty").mkdir(parents=True)

    assert stored_tree(blobs, tmp_path / "pins", {}) == ()
    blobs.fetch_tree((), tmp_path / "scratch")

    assert backend.stored == []
    assert list((tmp_path / "scratch").iterdir()) == []


names = st.text('ab."\\\n é0', min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
trees = st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), st.binary())


@STEADY
@given(trees)
def test_any_names_and_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> None:
    tree = {
        path: data for path, data in tree.items() if not any(x.startswith(f"{path}/") for x in tree)
    }
    directory = tmp_path_factory.mktemp("any")
    (directory / "pins").mkdir()
    blobs = Blobs(MemoryBackend(), PIPELINE, GENERATION)

    refs = stored_tree(blobs, planted(directory / "pins", tree), {})
    blobs.fetch_tree(refs, directory / "scratch")

    assert found(directory / "scratch") == tree


def test_a_half_fetched_tree_may_be_fetched_again(blobs: Blobs, tmp_path: Path) -> None:
    refs = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    planted(tmp_path / "scratch", {"metadata": b"torn"})

    blobs.fetch_tree(refs, tmp_path / "scratch")

    assert found(tmp_path / "scratch") == TREE


def test_many_threads_store_and_fetch_at_once(tmp_path: Path) -> None:
    blobs = Blobs(LocalBackend(tmp_path / "store"), PIPELINE, GENERATION)
    roots = [planted(tmp_path / f"pins-{n}", TREE | {"n": b"%d" % n}) for n in range(8)]

    def around(root: Path) -> Tree:
        into = root.with_name(f"scratch-{root.name}")
        blobs.fetch_tree(stored_tree(blobs, root, {}), into)
        return found(into)

    with ThreadPoolExecutor(8) as pool:
        came_back = list(pool.map(around, roots))

    assert came_back == [TREE | {"n": b"%d" % n} for n in range(8)]


def test_a_single_file_comes_back_as_it_was_stored(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "event.parquet").write_bytes(b"rows")

    ref = blobs.store_file(tmp_path / "event.parquet", {})
    blobs.fetch_file(ref, tmp_path / "again.parquet")

    assert ref.size_bytes == 4
    assert (tmp_path / "again.parquet").read_bytes() == b"rows"


# -- reuse


def test_the_same_tree_gives_the_same_refs_and_is_not_sent_again(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    refs = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    backend.stored.clear()
    reversed_order = dict(reversed(list(TREE.items())))
    later = Blobs(backend, PIPELINE, Generation(4))

    again = stored_tree(later, planted(tmp_path / "again", reversed_order), by_hash(*refs))

    assert again == refs
    assert backend.stored == []


def test_a_delete_that_arrives_late_spares_the_same_content_of_a_later_attempt(
    backend: CountingBackend, tmp_path: Path
) -> None:
    tree = planted(tmp_path / "pins", TREE)
    first = Blobs(backend, PIPELINE, GENERATION, attempt=CheckpointId(7))
    second = Blobs(backend, PIPELINE, GENERATION, attempt=CheckpointId(8))
    garbage = stored_tree(first, tree, {})
    refs = stored_tree(second, tree, {})

    for ref in garbage:
        backend.delete(ObjectPath(ref.name))
    second.fetch_tree(refs, tmp_path / "scratch")

    assert [ref.sha256 for ref in refs] == [ref.sha256 for ref in garbage]
    assert second.problems(refs) == {}
    assert found(tmp_path / "scratch") == TREE


def test_only_what_has_changed_is_sent_again(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    _, big = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    backend.stored.clear()
    changed = TREE | {"offsets/8": b"v1"}
    later = Blobs(backend, PIPELINE, Generation(4))

    refs = stored_tree(later, planted(tmp_path / "pins", changed), by_hash(big))
    later.fetch_tree(refs, tmp_path / "scratch")

    assert refs[1:] == (big,)
    assert backend.stored == [refs[0].name]
    assert "/000000000004/" in refs[0].name
    assert found(tmp_path / "scratch") == changed


def test_what_is_there_but_not_reusable_is_sent_again(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    """Rule F7: that an object exists proves nothing; retention may be about to delete it."""
    refs = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    sent = list(backend.stored)
    backend.stored.clear()

    assert stored_tree(blobs, tmp_path / "pins", {}) == refs
    assert sorted(backend.stored) == sorted(sent)


def test_a_reusable_file_is_not_sent_again(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    (tmp_path / "event.parquet").write_bytes(b"rows")
    known = BlobRef("pipelines/p/blobs/000000000001/x", 4, digest(b"rows"))

    assert blobs.store_file(tmp_path / "event.parquet", by_hash(known)) == known
    assert backend.stored == []


# -- damage


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("place", [0, 1], ids=["bundle", "big"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _: None, "it is missing"),
        (lambda data: data[:-1], "bytes, and"),
        (lambda data: data + b"x", "bytes, and"),
        (flipped, "its hash is"),
    ],
    ids=["missing", "shorter", "longer", "flipped"],
)
def test_a_damaged_object_is_named_and_told(
    backend: CountingBackend,
    tmp_path: Path,
    place: int,
    damage: Callable[[bytes], bytes | None],
    words: str,
) -> None:
    blobs = Blobs(backend, PIPELINE, GENERATION)
    refs = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    assert [blobs.problem(ref) for ref in refs] == [None, None]
    path = ObjectPath(refs[place].name)
    data = damage(backend.read(path))
    if data is None:
        backend.delete(path)
    else:
        backend.put(path, data)

    assert words in (blobs.problem(refs[place]) or "")
    assert blobs.problem(refs[1 - place]) is None
    with pytest.raises(Corrupt, match=f"{path}.*{words}"):
        blobs.fetch_tree(refs, tmp_path / "scratch")


class VanishingBackend(CountingBackend):
    """Loses an object between two questions."""

    def size(self, path: ObjectPath) -> int:
        size_bytes = super().size(path)
        self.delete(path)
        return size_bytes


def test_an_object_that_vanishes_while_it_is_looked_at_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"rows")
    blobs = Blobs(VanishingBackend(), PIPELINE, GENERATION)

    assert "missing" in (blobs.problem(blobs.store_file(tmp_path / "file", {})) or "")


def test_a_store_that_does_not_answer_is_not_taken_for_damage(
    backend: CountingBackend, blobs: Blobs, tmp_path: Path
) -> None:
    refs = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})
    backend.gone = True

    with pytest.raises(Unavailable):
        blobs.problem(refs[0])
    with pytest.raises(Unavailable):
        blobs.fetch_tree(refs, tmp_path / "scratch")


def test_a_big_file_that_no_ref_names_is_corrupt(blobs: Blobs, tmp_path: Path) -> None:
    bundle, _ = stored_tree(blobs, planted(tmp_path / "pins", TREE), {})

    with pytest.raises(Corrupt, match=f"{bundle.name}.*000009-one.sst"):
        blobs.fetch_tree((bundle,), tmp_path / "scratch")


def entry(**changes: object) -> dict[str, object]:
    sound = {"path": "a", "size_bytes": 1, "sha256": digest(b"x"), "offset": 0}
    return sound | changes


def stored_bundle(blobs: Blobs, directory: Path, header: object) -> BlobRef:
    """Store what has the right hash and the wrong content: only a defect could write it."""
    file = directory / "made-up"
    file.write_bytes(json.dumps(header).encode() + b"\nx")
    return blobs.store_file(file, {})


def test_a_made_up_bundle_is_read_like_a_real_one(blobs: Blobs, tmp_path: Path) -> None:
    ref = stored_bundle(blobs, tmp_path, {"format": 1, "files": [entry()]})

    blobs.fetch_tree((ref,), tmp_path / "scratch")

    assert found(tmp_path / "scratch") == {"a": b"x"}


@pytest.mark.parametrize(
    "header",
    [
        "no bundle",
        {"format": 0, "files": []},
        {"format": 1},
        {"format": 1, "files": [], "more": 1},
        *(
            {"format": 1, "files": [one]}
            for one in (
                entry(path=""),
                entry(path="/a"),
                entry(path="../a"),
                entry(path="a/../../b"),
                entry(offset=-1),
                entry(size_bytes=2),
                entry(size_bytes=0),
                entry(sha256=digest(b"y")),
                entry(offset=1),
                entry(more=1),
            )
        ),
    ],
)
def test_a_bundle_that_contradicts_itself_is_corrupt(
    blobs: Blobs, tmp_path: Path, header: object
) -> None:
    ref = stored_bundle(blobs, tmp_path, header)

    with pytest.raises(Corrupt, match=ref.name):
        blobs.fetch_tree((ref,), tmp_path / "in" / "scratch")
    assert found(tmp_path / "in") == {}


def test_a_bundle_of_a_newer_format_is_told_apart_from_a_damaged_one(
    blobs: Blobs, tmp_path: Path
) -> None:
    ref = stored_bundle(blobs, tmp_path, {"format": 3, "trees": []})

    with pytest.raises(NewerFormat, match=ref.name):
        blobs.fetch_tree((ref,), tmp_path / "scratch")
