"""What is special about the local store: the disk under it, and what can be wrong with that."""

import errno
import fcntl
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutwater.errors import ConfigError, NotFound, OutcomeUnknown, Unavailable
from cutwater.store.backends import files
from cutwater.store.backends.local import LocalBackend
from cutwater.store.paths import ObjectPath

A = ObjectPath("a/b")
NOBODY = 65534
BIG = 1 << 20

# Imports as the user that runs the tests, and writes without its privileges.
UNPRIVILEGED = f"""
import os, sys
from pathlib import Path
from cutwater.errors import Unavailable
from cutwater.store.backends.local import LocalBackend
from cutwater.store.paths import ObjectPath
backend = LocalBackend(Path(sys.argv[1]))
if os.geteuid() == 0:
    os.setuid({NOBODY})
try:
    backend.create(ObjectPath("a/b"), b"one")
except Unavailable as error:
    print(error)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> LocalBackend:
    return LocalBackend(root)


def hidden(root: Path) -> list[Path]:
    return list((root / ".incoming").iterdir())


@contextmanager
def failing(name: str, number: int, *, after: bool = False, calls: int = 0) -> Iterator[None]:
    """Let a call into the operating system fail, once it has succeeded that many times.

    Args:
        name: The function of `os`.
        number: The error it fails with.
        after: Whether it does its work before it fails, like an answer lost on a network.
        calls: How many calls succeed first.
    """
    real = getattr(os, name)
    seen = 0

    def call(*given: object, **named: object) -> object:
        nonlocal seen
        seen += 1
        if seen <= calls:
            return real(*given, **named)
        if after:
            real(*given, **named)
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, call)
        yield


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse files above a size, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# -- opening


def test_a_store_that_is_opened_again_has_what_was_written(root: Path) -> None:
    LocalBackend(root).create(A, b"one")

    assert LocalBackend(root).read(A) == b"one"
    assert LocalBackend(root).url == root.as_uri()


def test_a_store_is_made_with_the_directories_above_it(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "x" / "y" / "store")

    assert backend.create(A, b"one")


def test_a_new_store_is_closed_to_other_users_and_an_old_one_keeps_its_mode(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o750)

    LocalBackend(tmp_path / "old")
    LocalBackend(tmp_path / "new")

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")]
    assert modes == [0o750, 0o700]


@pytest.mark.parametrize("below", [".", "x/y"])
def test_a_store_in_the_place_of_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ConfigError, match="is a file"):
        LocalBackend(tmp_path / "file" / below)


def test_a_store_that_cannot_be_made_is_refused_with_the_reason(root: Path) -> None:
    with failing("mkdir", errno.EROFS), pytest.raises(ConfigError, match="Read-only file system"):
        LocalBackend(root)


# -- writing


def test_a_directory_without_permission_is_named_with_the_reason(root: Path) -> None:
    LocalBackend(root)
    (root / ".incoming").chmod(0o500)

    run = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert re.search(r"a/b: file:.*Permission denied", run.stdout), run.stdout + run.stderr


@pytest.mark.parametrize("size", [5_000, BIG])
def test_a_full_disk_leaves_nothing_behind(backend: LocalBackend, root: Path, size: int) -> None:
    with largest_file(4_096), pytest.raises(Unavailable, match="File too large"):
        backend.create(A, b"x" * size)

    assert hidden(root) == []
    assert not backend.exists(A)
    assert backend.create(A, b"x" * size)


def test_a_full_disk_keeps_the_object_that_was_to_be_replaced(
    backend: LocalBackend, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * (3 * BIG))
    backend.put(A, b"old")

    with largest_file(2 * BIG), pytest.raises(Unavailable):
        backend.put_file(A, tmp_path / "file")

    assert hidden(root) == []
    assert backend.read(A) == b"old"


@pytest.mark.parametrize(
    ("call", "number"),
    [("fsync", errno.EIO), ("mkdir", errno.ENOSPC), ("link", errno.ENOSPC), ("link", errno.EIO)],
)
def test_what_fails_before_the_object_has_its_name_has_not_happened(
    backend: LocalBackend, root: Path, call: str, number: int
) -> None:
    with failing(call, number), pytest.raises(Unavailable, match=os.strerror(number)):
        backend.create(A, b"one")

    assert hidden(root) == []
    assert not backend.exists(A)
    assert backend.create(A, b"two")


def test_a_replacement_that_fails_has_not_happened(backend: LocalBackend, root: Path) -> None:
    backend.put(A, b"old")

    with failing("replace", errno.EIO), pytest.raises(Unavailable):
        backend.put(A, b"new")

    assert hidden(root) == []
    assert backend.read(A) == b"old"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(backend: LocalBackend, number: int) -> None:
    with failing("link", number), pytest.raises(ConfigError, match="hard links"):
        backend.create(A, b"one")


def test_a_store_on_two_file_systems_is_refused(backend: LocalBackend) -> None:
    with failing("link", errno.EXDEV), pytest.raises(ConfigError, match="not one file system"):
        backend.create(A, b"one")


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO])
def test_a_link_whose_answer_was_lost_is_recognised_as_our_own(
    backend: LocalBackend, number: int
) -> None:
    with failing("link", number, after=True):
        created = backend.create(A, b"one")

    assert created
    assert backend.read(A) == b"one"


def test_a_link_that_cannot_be_checked_has_an_unknown_outcome(backend: LocalBackend) -> None:
    with (
        failing("link", errno.EIO),
        failing("fstat", errno.ESTALE, calls=1),
        pytest.raises(OutcomeUnknown),
    ):
        backend.create(A, b"one")


def test_a_hidden_file_that_cannot_be_removed_does_not_undo_the_create(
    backend: LocalBackend, root: Path
) -> None:
    with failing("unlink", errno.EIO):
        created = backend.create(A, b"one")

    assert created
    assert len(hidden(root)) == 1
    assert backend.clean() == 1
    assert backend.read(A) == b"one"


# -- syncing


def test_an_object_whose_directory_cannot_be_synced_is_not_believed_until_it_can(
    backend: LocalBackend,
) -> None:
    """Rule F15: the read-back after an error must not take for durable what may be lost."""
    backend.create(ObjectPath("a/before"), b"zero")
    with failing("fsync", errno.EIO, calls=1):
        with pytest.raises(OutcomeUnknown, match="Input/output error"):
            backend.create(A, b"one")
        with pytest.raises(Unavailable):
            backend.read(A)
        with pytest.raises(Unavailable):
            backend.exists(A)

    assert backend.read(A) == b"one"
    assert not backend.create(A, b"two")


def test_a_later_write_that_syncs_the_directory_settles_the_doubt(backend: LocalBackend) -> None:
    backend.create(ObjectPath("a/before"), b"zero")
    with failing("fsync", errno.EIO, calls=1), pytest.raises(OutcomeUnknown):
        backend.put(A, b"one")
    backend.put(ObjectPath("a/later"), b"two")

    with failing("fsync", errno.EIO):
        found = backend.read(A)

    assert found == b"one"


def test_an_object_that_is_there_already_is_made_to_last_before_that_is_said(
    backend: LocalBackend,
) -> None:
    backend.create(A, b"one")

    with failing("fsync", errno.EIO, calls=1), pytest.raises(OutcomeUnknown):
        backend.create(A, b"two")


def test_a_delete_whose_directory_cannot_be_synced_has_an_unknown_outcome(
    backend: LocalBackend,
) -> None:
    backend.create(A, b"one")

    with failing("fsync", errno.EIO), pytest.raises(OutcomeUnknown):
        backend.delete(A)


# -- reading


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.exists(A),
        lambda backend: backend.size(A),
        lambda backend: backend.delete(A),
    ],
)
def test_what_cannot_be_looked_at_is_not_taken_for_absent(
    backend: LocalBackend,
    call: Callable[[LocalBackend], object],
) -> None:
    backend.create(A, b"one")

    with failing("stat", errno.EIO), pytest.raises(Unavailable, match="Input/output error"):
        call(backend)


def test_what_cannot_be_listed_is_not_taken_for_empty(backend: LocalBackend) -> None:
    with failing("scandir", errno.EACCES), pytest.raises(Unavailable, match="Permission denied"):
        backend.list(ObjectPath("a"))


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.read(A),
        lambda backend: backend.exists(A),
        lambda backend: backend.list(ObjectPath("a")),
        lambda backend: backend.delete(A),
        lambda backend: backend.create(A, b"two"),
        lambda backend: backend.put(A, b"two"),
        lambda backend: backend.clean(),
    ],
)
def test_a_store_that_has_gone_away_is_not_taken_for_an_empty_one(
    backend: LocalBackend, root: Path, call: Callable[[LocalBackend], object]
) -> None:
    backend.create(A, b"one")
    shutil.rmtree(root)
    root.mkdir()

    with pytest.raises(Unavailable):
        call(backend)
    assert list(root.iterdir()) == []


def test_a_directory_that_was_removed_is_made_again(backend: LocalBackend, root: Path) -> None:
    backend.create(A, b"one")
    shutil.rmtree(root / "a")

    with pytest.raises(NotFound):
        backend.read(A)
    assert backend.create(A, b"two")


def test_files_that_no_object_can_be_are_left_out(backend: LocalBackend, root: Path) -> None:
    backend.create(A, b"one")
    (root / "a" / ".DS_Store").write_bytes(b"")
    (root / "a" / "my notes").write_bytes(b"")
    os.mkfifo(root / "a" / "pipe")

    assert backend.list(ObjectPath("a")) == (A,)


# -- hidden files


def test_a_file_that_was_cleaned_away_before_it_was_locked_is_made_again(
    backend: LocalBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    cleaned: list[Path] = []

    def lock_too_late(file: int, operation: int) -> None:
        if not cleaned:
            cleaned.extend(hidden(root))
            cleaned[0].unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)

    assert backend.create(A, b"one")
    assert backend.read(A) == b"one"


def test_a_file_system_without_locks_is_named_with_the_reason(
    backend: LocalBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)

    with pytest.raises(Unavailable, match="No locks available"):
        backend.create(A, b"one")
    assert hidden(root) == []


def test_cleaning_leaves_alone_what_a_writer_has_finished_meanwhile(root: Path) -> None:
    assert not files.remove_if_abandoned(root / ".incoming" / "finished")
