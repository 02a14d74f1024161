"""What every store backend must do; `test_stores.py` runs it over each of them.

A new backend joins by subclassing `StoreContract` with its own `backend` fixture. The suite asks
for nothing that an object store cannot do.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import TypeVar

import pytest

from cutwater.errors import Conflict, InvalidPath, NotFound
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.backends.location import probe
from cutwater.store.paths import PATH_LENGTH_MAX, ObjectPath

T = TypeVar("T")

A = ObjectPath("a")
IN_A = ObjectPath("a/first")
DEEP = ObjectPath("a/b/c/deep")
WRITERS = 8
BIG = 1 << 20

BAD_PATHS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/.",
    "a/..",
    "a/../b",
    "../a",
    ".hidden",
    "a/.hidden",
    "a\\b",
    "a\0b",
    "a\nb",
    "a b",
    "a:b",
    "é",
    "a" * 256,
    "/".join(["a" * 100] * 8),
]

PathCall = Callable[[Backend, ObjectPath], object]

PATH_CALLS: list[PathCall] = [
    lambda backend, path: backend.create(path, b""),
    lambda backend, path: backend.put(path, b""),
    lambda backend, path: backend.put_file(path, Path(__file__)),
    lambda backend, path: backend.read(path),
    lambda backend, path: backend.read_to_file(path, Path("never-written")),
    lambda backend, path: backend.exists(path),
    lambda backend, path: backend.size(path),
    lambda backend, path: backend.delete(path),
    lambda backend, path: backend.list(path),
]


def at_once(calls: list[Callable[[], T]]) -> list[T]:
    """Run all calls in threads that start at the same moment."""
    start = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def refuses(backend: Backend, call: PathCall, path: str) -> bool:
    """Say whether a call refuses a path before it does anything."""
    try:
        call(backend, ObjectPath(path))
    except InvalidPath:
        return True
    return False


class StoreContract:
    """The suite. A subclass has a fixture `backend` that gives an empty store."""

    def test_a_backend_passes_its_own_probe_and_is_left_empty(self, backend: Backend) -> None:
        probe(backend)

        assert backend.list(ObjectPath("probes")) == ()

    def test_a_backend_says_where_it_is(self, backend: Backend) -> None:
        assert ":" in backend.url

    # -- create

    @pytest.mark.parametrize("data", [b"", b"one", bytes(range(256)), b"x" * BIG])
    def test_what_was_created_is_read_back(self, backend: Backend, data: bytes) -> None:
        assert backend.create(DEEP, data)

        assert backend.read(DEEP) == data
        assert backend.size(DEEP) == len(data)
        assert backend.exists(DEEP)

    def test_a_second_create_is_refused_and_changes_nothing(self, backend: Backend) -> None:
        backend.create(IN_A, b"one")

        assert not backend.create(IN_A, b"two")
        assert backend.read(IN_A) == b"one"

    def test_an_object_can_be_created_again_once_it_is_deleted(self, backend: Backend) -> None:
        backend.create(IN_A, b"one")
        backend.delete(IN_A)

        assert backend.create(IN_A, b"two")
        assert backend.read(IN_A) == b"two"

    @pytest.mark.parametrize("attempt", range(20))
    def test_exactly_one_of_many_concurrent_creates_wins(
        self, backend: Backend, attempt: int
    ) -> None:
        path = ObjectPath(f"race/{attempt}")
        contents = [f"writer {number}".encode() * 1000 for number in range(WRITERS)]

        won = at_once([partial(backend.create, path, data) for data in contents])

        assert won.count(True) == 1
        assert backend.read(path) == contents[won.index(True)]

    def test_concurrent_creates_of_different_objects_all_win(self, backend: Backend) -> None:
        paths = [ObjectPath(f"fresh/{number}/object") for number in range(WRITERS)]

        won = at_once([partial(backend.create, path, b"x") for path in paths])

        assert all(won)
        assert backend.list(ObjectPath("fresh")) == tuple(paths)

    def test_writing_once_the_same_again_changes_nothing(self, backend: Backend) -> None:
        write_once(backend, IN_A, b"one")
        write_once(backend, IN_A, b"one")

        assert backend.read(IN_A) == b"one"

    def test_writing_once_something_else_is_a_conflict(self, backend: Backend) -> None:
        write_once(backend, IN_A, b"one")

        with pytest.raises(Conflict, match=IN_A):
            write_once(backend, IN_A, b"two")
        assert backend.read(IN_A) == b"one"

    # -- put

    def test_a_put_writes_and_replaces(self, backend: Backend) -> None:
        backend.put(DEEP, b"one")
        backend.put(DEEP, b"longer than one")

        assert backend.read(DEEP) == b"longer than one"
        assert backend.list(A) == (DEEP,)

    def test_a_reader_sees_the_old_or_the_new_object_and_nothing_between(
        self, backend: Backend
    ) -> None:
        backend.put(IN_A, b"0" * BIG)
        written = Event()

        def write() -> set[bytes]:
            for number in range(40):
                backend.put(IN_A, str(number % 10).encode() * BIG)
            written.set()
            return set()

        def read() -> set[bytes]:
            seen = set()
            while not written.is_set():
                data = backend.read(IN_A)
                seen.add(data[:1] if data == data[:1] * BIG else b"torn")
            return seen

        seen = set().union(*at_once([write, read, read, read]))

        assert seen
        assert seen <= {str(digit).encode() for digit in range(10)}

    def test_a_listing_shows_only_whole_objects_while_others_write(self, backend: Backend) -> None:
        written = Event()

        def write() -> list[bool]:
            for number in range(40):
                backend.create(ObjectPath(f"a/{number}"), b"x" * BIG)
            written.set()
            return []

        def look() -> list[bool]:
            whole = []
            while not written.is_set():
                whole += [backend.size(path) == BIG for path in backend.list(A)]
            return whole

        assert all(whole for found in at_once([write, look, look]) for whole in found)
        assert len(backend.list(A)) == 40

    # -- files

    @pytest.mark.parametrize("size", [0, 1, 3 * BIG + 7])
    def test_a_file_is_streamed_in_and_out(
        self, backend: Backend, tmp_path: Path, size: int
    ) -> None:
        original, copy = tmp_path / "original", tmp_path / "copy"
        original.write_bytes(bytes(range(256)) * (size // 256 + 1))

        backend.put_file(DEEP, original)
        backend.read_to_file(DEEP, copy)

        assert copy.read_bytes() == original.read_bytes() == backend.read(DEEP)

    def test_a_streamed_file_replaces_what_was_there(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        original, copy = tmp_path / "original", tmp_path / "copy"
        original.write_bytes(b"new")
        copy.write_bytes(b"something longer")
        backend.put(IN_A, b"old")

        backend.put_file(IN_A, original)
        backend.read_to_file(IN_A, copy)

        assert copy.read_bytes() == b"new"

    def test_a_local_file_that_is_not_there_is_not_the_stores_fault(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        with pytest.raises(FileNotFoundError):
            backend.put_file(IN_A, tmp_path / "missing")
        assert not backend.exists(IN_A)

    def test_a_local_file_that_cannot_be_written_is_not_the_stores_fault(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        backend.put(IN_A, b"one")

        with pytest.raises(FileNotFoundError):
            backend.read_to_file(IN_A, tmp_path / "missing" / "copy")

    # -- what is not there

    @pytest.mark.parametrize("path", ["nothing", "a", "a/first/below", "a/fir"])
    def test_an_object_that_is_not_there_is_not_found(
        self, backend: Backend, tmp_path: Path, path: ObjectPath
    ) -> None:
        backend.create(IN_A, b"one")

        with pytest.raises(NotFound, match=path):
            backend.read(path)
        with pytest.raises(NotFound, match=path):
            backend.size(path)
        with pytest.raises(NotFound, match=path):
            backend.read_to_file(path, tmp_path / "copy")
        assert not backend.exists(path)
        assert not (tmp_path / "copy").exists()

    def test_deleting_twice_is_the_same_as_once(self, backend: Backend) -> None:
        backend.create(IN_A, b"one")

        backend.delete(IN_A)
        backend.delete(IN_A)

        assert not backend.exists(IN_A)
        assert backend.list(A) == ()

    def test_deleting_a_prefix_deletes_nothing(self, backend: Backend) -> None:
        backend.create(DEEP, b"one")

        backend.delete(A)

        assert backend.exists(DEEP)

    def test_many_may_delete_one_object_at_once(self, backend: Backend) -> None:
        backend.create(IN_A, b"one")

        at_once([lambda: backend.delete(IN_A)] * WRITERS)

        assert not backend.exists(IN_A)

    # -- list

    def test_a_listing_has_everything_below_a_prefix_and_is_sorted(self, backend: Backend) -> None:
        inside = ["a/000000000002", "a/000000000010", "a/b/c", "a/b/d", "a/b-c", "a/z=1/part-0"]
        for name in [*reversed(inside), "ab/c", "b/a/c"]:
            backend.create(ObjectPath(name), b"")

        assert backend.list(A) == tuple(sorted(inside))
        assert backend.list(ObjectPath("a/b")) == ("a/b/c", "a/b/d")

    def test_a_listing_may_begin_behind_any_path(self, backend: Backend) -> None:
        names = ["a/000000000002", "a/000000000010", "a/b", "a/b-c", "a/c/d", "a/c/e", "a/c-d/e"]
        for name in names:
            backend.create(ObjectPath(name), b"")

        for after in [*names, "a/000000000005", "a/b/c", "a/c", "a/c/d/e", "a/c-", "a/zz", "b"]:
            expected = tuple(sorted(name for name in names if name > after))
            assert backend.list(A, ObjectPath(after)) == expected, after

    def test_a_listing_of_nothing_is_empty(self, backend: Backend) -> None:
        backend.create(IN_A, b"")

        assert backend.list(ObjectPath("nothing")) == ()
        assert backend.list(IN_A) == ()
        assert backend.list(ObjectPath("a/first/below")) == ()

    # -- paths

    @pytest.mark.parametrize("call", PATH_CALLS)
    def test_a_path_that_not_every_store_can_hold_is_refused(
        self, backend: Backend, call: PathCall
    ) -> None:
        accepted = [path for path in BAD_PATHS if not refuses(backend, call, path)]

        assert accepted == []

    @pytest.mark.parametrize(
        "path", ["a", "A.b", "-", "a%2Fb", "x=1/part-00000.snappy.parquet", "a" * 255]
    )
    def test_a_path_of_letters_digits_and_a_few_signs_is_accepted(
        self, backend: Backend, path: str
    ) -> None:
        assert backend.create(ObjectPath(path), b"one")
        assert backend.read(ObjectPath(path)) == b"one"

    def test_the_longest_path_is_accepted(self, backend: Backend) -> None:
        path = ObjectPath("a" + "/".join(["a" * 99] * 8))

        assert len(path) == PATH_LENGTH_MAX
        assert backend.create(path, b"one")
