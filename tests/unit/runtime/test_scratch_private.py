"""Scratch in a temporary directory that all users share: private, verified, or refused."""

import os
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutwater.errors import ConfigError
from cutwater.ids import PipelineId
from cutwater.runtime.scratch import Scratch, private_directory

PIPELINE = PipelineId(str(uuid.UUID(int=7)))
SOURCE = Path(__file__).parents[3] / "src"
OTHER_USER = 65_534
DEADLINE_S = 60

AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from cutwater.ids import PipelineId
from cutwater.runtime.scratch import Scratch

# Only now: another user may not be able to read this Python's own files.
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
try:
    print(list(Path(sys.argv[1]).iterdir()))
except PermissionError:
    print("not readable")
scratch = Scratch.make(None, PipelineId(sys.argv[2]), shared=False)
print(scratch.path)
scratch.remove()
"""


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory as every system has one: all users may write to it."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def made(given: Path | None = None, *, shared: bool = False) -> Scratch:
    return Scratch.make(given, PIPELINE, shared=shared)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_only_its_owner_can_look_into_scratch(shared: Path) -> None:
    scratch = made()

    below = scratch.path.relative_to(shared)
    assert below.parts[0] == f"cutwater-{os.getuid()}"
    assert mode_of(shared / below.parts[0]) == 0o700
    assert mode_of(scratch.path) == 0o700
    scratch.remove()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_runs_beside_and_reads_nothing(shared: Path) -> None:
    mine = made()
    (mine.path / "row").write_text("secret")

    theirs = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(mine.path), PIPELINE, str(OTHER_USER)],
        env={**os.environ, "TMPDIR": str(shared), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert theirs.returncode == 0, theirs.stderr
    readable, path = theirs.stdout.splitlines()
    assert readable == "not readable"
    assert path.startswith(f"{shared}/cutwater-{OTHER_USER}/")
    mine.remove()


def test_a_symbolic_link_in_the_place_of_scratch_is_refused(shared: Path) -> None:
    (shared / "elsewhere").mkdir(mode=0o700)
    link = shared / f"cutwater-{os.getuid()}"
    link.symlink_to(shared / "elsewhere")

    with pytest.raises(ConfigError) as refused:
        made()

    assert refused.value.message == (
        f"scratch: {link} is a symbolic link, which another user may have made. Remove it, or "
        "set TMPDIR to a directory of your own."
    )
    assert list((shared / "elsewhere").iterdir()) == []


def test_a_file_in_the_place_of_scratch_is_refused(shared: Path) -> None:
    (shared / f"cutwater-{os.getuid()}").touch(mode=0o600)

    with pytest.raises(ConfigError, match=r"cutwater-\d+ is not a directory\. Remove it, or"):
        made()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_enter_is_refused(shared: Path, mode: int) -> None:
    open_to_others = shared / f"cutwater-{os.getuid()}"
    open_to_others.mkdir()
    open_to_others.chmod(mode)

    with pytest.raises(ConfigError) as refused:
        made()

    assert refused.value.message == (
        f"scratch: {open_to_others} is open to other users (mode {mode:04o}). Remove it, or set "
        "TMPDIR to a directory of your own."
    )
    assert list(open_to_others.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(shared: Path) -> None:
    theirs = shared / f"cutwater-{os.getuid()}"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, OTHER_USER, OTHER_USER)

    with pytest.raises(ConfigError, match=f"belongs to another user \\(uid {OTHER_USER}\\)"):
        made()


def test_a_scratch_that_the_user_names_is_private_for_each_run(tmp_path: Path) -> None:
    (tmp_path / "fast").mkdir(mode=0o755)

    scratch = made(tmp_path / "fast")

    assert mode_of(tmp_path / "fast") == 0o755
    assert mode_of(scratch.path) == 0o700
    scratch.remove()


def test_a_scratch_that_executors_share_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        scratch = made(tmp_path / "shared", shared=True)
    finally:
        os.umask(before)

    assert mode_of(scratch.path) == 0o750
    scratch.remove()


def test_the_private_directory_is_found_again(shared: Path) -> None:
    first = private_directory("spark")

    assert private_directory("spark") == first == shared / f"cutwater-{os.getuid()}" / "spark"
    assert mode_of(first) == 0o700
