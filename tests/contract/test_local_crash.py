"""The local store when processes race and die: what is visible is whole, what is said stays."""

import hashlib
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.contract.children import exit_code, fork, kill, killed_at_line

from cutwater.store.backends.backend import Backend
from cutwater.store.backends.local import LocalBackend
from cutwater.store.paths import ObjectPath

OLD = ObjectPath("a/old")
NEW = ObjectPath("b/c/new")
MUTABLE = ObjectPath("lease/mutable")
RACERS = 4
ROUNDS = 25
BIG = 4 << 20
SEED = 20261116


def sealed(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


def is_whole(data: bytes) -> bool:
    return data == sealed(data[32:])


@pytest.mark.parametrize("number", range(10))
def test_exactly_one_of_many_processes_creates_an_object(tmp_path: Path, number: int) -> None:
    path = ObjectPath(f"race/{number}")
    gate, opener = os.pipe()

    def racer(own: int) -> Callable[[], int]:
        def run() -> int:
            backend = LocalBackend(tmp_path)
            os.close(opener)
            os.read(gate, 1)
            return int(backend.create(path, f"racer {own}".encode() * 10_000))

        return run

    children = [fork(racer(own)) for own in range(RACERS)]
    os.close(gate)
    os.close(opener)
    won = [exit_code(child) for child in children]

    assert sorted(won) == [0] * (RACERS - 1) + [1]
    assert LocalBackend(tmp_path).read(path) == f"racer {won.index(1)}".encode() * 10_000


WRITES: dict[str, Callable[[Backend, Path], object]] = {
    "create a new object": lambda backend, _: backend.create(NEW, sealed(b"new" * 50_000)),
    "create one that is there": lambda backend, _: backend.create(OLD, sealed(b"new")),
    "put a new object": lambda backend, _: backend.put(NEW, sealed(b"new" * 50_000)),
    "replace an object": lambda backend, _: backend.put(OLD, sealed(b"new" * 50_000)),
    "replace an object by a file": lambda backend, file: backend.put_file(OLD, file),
    "delete an object": lambda backend, _: backend.delete(OLD),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_process_killed_at_any_line_leaves_only_whole_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Backend, Path], object]
) -> None:
    # Syncing is for power cuts; a killed process loses nothing that the kernel has.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    file = tmp_path / "file"
    file.write_bytes(sealed(b"file" * 50_000))
    line, killed = 0, True

    def open_and_write(root: Path) -> None:
        write(LocalBackend(root), file)

    while killed:
        line += 1
        root = tmp_path / f"store-{line}"
        LocalBackend(root).create(OLD, sealed(b"old"))
        killed = killed_at_line(line, partial(open_and_write, root))
        after = LocalBackend(root)
        visible = [*after.list(ObjectPath("a")), *after.list(ObjectPath("b"))]
        assert all(is_whole(after.read(path)) for path in visible)
        assert after.clean() <= 1
        assert list((root / ".incoming").iterdir()) == []
        write(after, file)
        assert after.list(ObjectPath("a")) == ((OLD,) if after.exists(OLD) else ())

    assert line > 20


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_process_killed_at_a_random_moment_loses_and_tears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nearly all of the time is spent in the middle of a write, which no line of code shows."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seed = SEED + number
    pause_seconds = random.Random(seed).uniform(0, 0.02)
    ear, mouth = os.pipe()
    contents = [sealed(letter * BIG) for letter in (b"a", b"b", b"c")]

    def write() -> int:
        backend = LocalBackend(tmp_path)
        while True:
            for content in contents:
                backend.put(MUTABLE, content)
                os.write(mouth, b"p")
            for place, content in enumerate(contents):
                backend.create(ObjectPath(f"log/{place}"), content)
                os.write(mouth, b"c")
            for place in range(len(contents)):
                backend.delete(ObjectPath(f"log/{place}"))
            os.write(mouth, b"d")

    child = fork(write)
    os.close(mouth)
    with os.fdopen(ear, "rb") as answers:
        said = answers.read(1)
        time.sleep(pause_seconds)
        kill(child)
        said += answers.read()

    backend = LocalBackend(tmp_path)
    visible = backend.list(ObjectPath("log"))
    assert all(backend.read(path) in contents for path in (*visible, MUTABLE)), f"seed {seed}"
    assert len(visible) >= at_least_visible(said), f"seed {seed}"
    assert backend.clean() <= 1
    assert backend.clean() == 0


def at_least_visible(said: bytes) -> int:
    """How many created objects must be there; none once deleting may have begun."""
    since = said.rpartition(b"d")[2].count(b"c")
    return since if since < 3 else 0


def test_a_file_on_its_way_in_is_not_cleaned_away_while_its_writer_lives(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "store")
    gate, opener = os.pipe()
    ear, mouth = os.pipe()

    def write() -> int:
        with LocalBackend(tmp_path / "store")._stage(NEW, (b"half",)):
            os.write(mouth, b".")
            os.read(gate, 1)
            return 0

    child = fork(write)
    os.read(ear, 1)
    while_it_lives = backend.clean()
    kill(child)
    after_its_death = backend.clean()
    for end in (gate, opener, ear, mouth):
        os.close(end)

    assert (while_it_lives, after_its_death) == (0, 1)
    assert not backend.exists(NEW)
