"""Scratch: what the dead have left is taken, what the living have is not touched."""

import fcntl
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from cutwater.errors import ConfigError
from cutwater.ids import Generation, PipelineId
from cutwater.protocol.cut import BlobRef
from cutwater.runtime.scratch import Scratch, clear, generation_directory, new_blob_cache
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs.blobs import Blobs

PIPELINE = PipelineId(str(uuid.UUID(int=7)))
ROWS = b"rows that were in flight"


def made(root: Path) -> Scratch:
    return Scratch.make(root, PIPELINE, shared=False)


def left_in(scratch: Scratch, generation: int) -> Path:
    """What a generation has in its directory."""
    file = generation_directory(scratch.path, Generation(generation)) / "step" / "1.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(ROWS)
    return file


def died(scratch: Scratch) -> None:
    """The operating system lets the lock of a dead process go."""
    scratch.lock.close()


def stored(directory: Path) -> tuple[Blobs, BlobRef]:
    blobs = Blobs(MemoryBackend(), PIPELINE, Generation(1))
    (directory / "file").write_bytes(ROWS)
    return blobs, blobs.store_file(directory / "file", {})


def test_what_dead_processes_have_left_can_be_taken_until_it_is_cleared(tmp_path: Path) -> None:
    blobs, ref = stored(tmp_path)
    first = made(tmp_path / "root")
    left_in(first, 1)
    died(first)
    # It dies before it has built anything; what it has found goes from hand to hand.
    died(made(tmp_path / "root"))

    scratch = made(tmp_path / "root")
    cache = new_blob_cache(scratch.path)

    assert cache.problems(blobs, (), [ref]) == {}
    assert (cache.linked_bytes, cache.fetched_bytes) == (len(ROWS), 0)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [scratch.path.name]
    mine = left_in(scratch, 3)
    clear(scratch.path, Generation(3))
    assert {path.name for path in scratch.path.iterdir()} == {"lock", "g000003"}
    assert mine.read_bytes() == ROWS
    scratch.remove()
    assert list((tmp_path / "root").iterdir()) == []


def test_what_an_earlier_generation_of_this_process_has_left_can_be_taken(tmp_path: Path) -> None:
    blobs, ref = stored(tmp_path)
    scratch = made(tmp_path / "root")
    left = left_in(scratch, 1)

    cache = new_blob_cache(scratch.path)

    assert cache.problems(blobs, (), [ref]) == {}
    assert cache.linked_bytes == len(ROWS)
    # A recovery that fails leaves its cache to the next one.
    left.unlink()
    again = new_blob_cache(scratch.path)
    assert again.problems(blobs, (), [ref]) == {}
    assert again.linked_bytes == len(ROWS)
    scratch.remove()


def test_a_directory_whose_process_lives_is_left_alone(tmp_path: Path) -> None:
    living = made(tmp_path)
    file = left_in(living, 1)
    strange = tmp_path / "strange"
    strange.mkdir()

    scratch = made(tmp_path)

    assert file.read_bytes() == ROWS
    assert [path.name for path in scratch.path.iterdir()] == ["lock"]
    assert strange.exists()
    with (scratch.path / "lock").open("rb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    died(scratch)
    died(living)


def test_a_directory_that_spark_makes_anew_after_its_removal_goes(tmp_path: Path) -> None:
    living = made(tmp_path)
    scratch = made(tmp_path)
    scratch.remove()
    assert [path.name for path in tmp_path.iterdir()] == [living.path.name]
    # It may be swept while it is made.
    with suppress(FileNotFoundError):
        left_in(scratch, 1)

    wait_until(lambda: not scratch.path.exists(), "the directory is removed again")

    assert [path.name for path in living.path.iterdir()] == ["lock"]
    died(living)


def test_a_directory_that_spark_made_anew_is_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.runtime.scratch._keep_swept", lambda *_: None)
    before = made(tmp_path)
    before.remove()
    left_in(before, 1)

    scratch = made(tmp_path)

    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.remove()


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_directory_whose_maker_was_killed_is_removed(tmp_path: Path, is_locked: bool) -> None:
    begun = tmp_path / f".{PIPELINE}-0123abcd"
    begun.mkdir()
    if is_locked:
        (begun / "lock").touch()

    scratch = made(tmp_path)

    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.remove()


@pytest.mark.parametrize("taken", ["before it has its lock", "before the lock is held"])
def test_a_directory_that_another_start_takes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    lock, make = fcntl.flock, Path.mkdir
    others: list[Scratch] = []
    to_come = iter(range(1))

    def locked(file: object, how: int) -> None:
        if taken == "before the lock is held" and next(to_come, None) is not None:
            others.append(made(tmp_path))
        lock(file, how)  # type: ignore[arg-type]

    def made_and_taken(path: Path, *given: Any, **named: Any) -> None:  # noqa: ANN401
        make(path, *given, **named)
        is_nameless = path.name.startswith(".")
        if taken == "before it has its lock" and is_nameless and next(to_come, None) is not None:
            others.append(made(tmp_path))

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(Path, "mkdir", made_and_taken)

    scratch = made(tmp_path)

    assert set(tmp_path.iterdir()) == {scratch.path, others[0].path}
    assert [path.name for path in scratch.path.iterdir()] == ["lock"]
    for one in (scratch, *others):
        died(one)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot be written"):
        made(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="all executors share"):
        Scratch.make(None, PIPELINE, shared=True)
