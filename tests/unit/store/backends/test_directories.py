"""Looking at directories and files: absence is an answer, failure an error."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.descriptors import Descriptors, descriptors

from cutwater.store.backends import directories
from cutwater.store.backends.directories import (
    directories_below,
    entries,
    exists,
    files_below,
    is_below,
    is_directory,
    is_file,
    is_name,
    list_directory,
    matching,
    remove_tree,
    status,
    try_to_remove_tree,
)

LOOKS: list[Callable[[Path], object]] = [exists, is_file, is_directory, status]
LISTINGS: list[Callable[[Path], object]] = [entries, list_directory, matching, files_below]


@pytest.fixture
def taken() -> Iterator[Descriptors]:
    with descriptors() as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "b" / "inner").mkdir(parents=True)
    (root / "b" / "inner" / "file").write_text("1")
    (root / "a.json").write_text("22")
    (root / ".hidden.json").write_text("")
    (root / "link").symlink_to(root / "a.json")
    (root / "loop").symlink_to(root)
    (root / "broken").symlink_to(root / "nowhere")
    return root


def below(root: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in found]


def test_a_listing_is_sorted_and_complete(tree: Path) -> None:
    names = [".hidden.json", "a.json", "b", "broken", "link", "loop"]
    assert below(tree, list_directory(tree)) == names
    assert [entry.name for entry in entries(tree)] == names
    assert below(tree, matching(tree, "*.json")) == [".hidden.json", "a.json"]
    assert below(tree, matching(tree, "[a-b]*", "l?nk")) == ["a.json", "b", "broken", "link"]


def test_a_walk_finds_files_and_directories_and_follows_no_link(tree: Path) -> None:
    assert below(tree, files_below(tree)) == [".hidden.json", "a.json", "b/inner/file", "link"]
    assert below(tree, directories_below(tree)) == ["b", "b/inner"]


def test_what_is_not_there_is_no_error(tmp_path: Path, tree: Path) -> None:
    nothing = [tmp_path / "nowhere", tree / "a.json" / "below", tree / "broken"]
    assert [exists(path) for path in nothing] == [False] * 3
    assert [status(path) for path in nothing] == [None] * 3
    assert list_directory(tmp_path / "nowhere") == []
    assert files_below(tmp_path / "nowhere") == []
    remove_tree(tmp_path / "nowhere")


def test_a_file_is_told_from_a_directory(tree: Path) -> None:
    assert (is_file(tree / "link"), is_directory(tree / "link")) == (True, False)
    assert (is_file(tree / "b"), is_directory(tree / "b")) == (False, True)
    assert (is_file(tree / "broken"), is_directory(tree / "broken")) == (False, False)
    assert status(tree / "a.json") == (tree / "a.json").stat()


@pytest.mark.parametrize("look", LOOKS)
def test_a_file_that_cannot_be_looked_at_is_an_error(
    look: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(OSError, match="loop") as raised:
        look(tmp_path / "loop")

    assert raised.value.errno == errno.ELOOP


@pytest.mark.parametrize("look", LISTINGS)
def test_a_directory_that_cannot_be_listed_is_an_error(
    look: Callable[[Path], object], tree: Path, taken: Descriptors
) -> None:
    with pytest.raises(NotADirectoryError):
        look(tree / "a.json")
    taken.take()
    with pytest.raises(OSError, match="open files") as raised:
        look(tree)

    assert raised.value.errno == errno.EMFILE


def test_a_tree_that_cannot_be_deleted_is_an_error_unless_it_only_costs_room(
    tree: Path, taken: Descriptors
) -> None:
    taken.take()
    with pytest.raises(OSError, match="open files"):
        remove_tree(tree)
    try_to_remove_tree(tree)
    taken.give_back()
    assert exists(tree / "b" / "inner" / "file")

    remove_tree(tree)

    assert not exists(tree)
    assert (FileNotFoundError, NotADirectoryError) == directories.ABSENT


@pytest.mark.parametrize("path", ["a", "a/b.parquet", "day=../x", "..a", "a..", ".hidden", "a b"])
def test_a_path_below_a_directory_is_recognised(path: str) -> None:
    assert is_below(path)
    assert is_name(path) == ("/" not in path)


@pytest.mark.parametrize(
    "path", ["", ".", "..", "/a", "a/", "a//b", "../a", "a/../b", "a/..", "./a", "a\0b"]
)
def test_a_path_that_may_lead_elsewhere_is_refused(path: str) -> None:
    assert not is_below(path)
    assert not is_name(path)
