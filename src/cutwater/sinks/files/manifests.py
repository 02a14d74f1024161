"""The commits of a directory of files: one manifest per version, the source of truth.

    <root>/_cutwater/commits/00000000000000000007.json   version 7, created if it was absent
    <root>/[day=2026-11-16/]part-<version>-<file>.csv    what it added, visible to every reader
    <root>/_cutwater/past/<version>/...                  what it removed

A version exists when its manifest does. Its files are moved only after that, so that a visible file
is always a committed one. Every name is used once: a file that is removed and restored gets another
name. So any move can be repeated at any time, also by a process that was stopped in the middle and
continues years later: it finds nothing left to move.

`read_files` reads the files that a version's manifest names with Spark's own reader, wherever they
are now: visible, or removed and still kept.
"""

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from cutwater.errors import Corrupt, SinkError
from cutwater.ids import CheckpointId, PipelineId, SinkId, Slot
from cutwater.protocol.cut import Version
from cutwater.sinks.base import STRICT_READING
from cutwater.sinks.files.target import reading_options, remembered_files
from cutwater.sinks.staging.directory import HIDDEN, create_lasting
from cutwater.store.backends.directories import (
    exists,
    is_below,
    is_directory,
    list_directory,
    matching,
    remove_tree,
    status,
)
from cutwater.store.backends.files import make_lasting, sync_directory
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORM: Final = 1
_WHOLE_EVERY: Final = 100
"""Every manifest of this interval lists all files, so that readers do not need all manifests."""

BEGINNING: Final = 0
"""The version before the first commit."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows, at one place in its life.

    Attributes:
        staged: The name under which it was staged: its identity, wherever it is.
        path: Its path, relative to the root.
        source: Its path before this version moved it.
    """

    staged: str
    path: str
    source: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommit:
    """One version: what it added and what it removed.

    Attributes:
        version: Its number, from 1.
        slot: The slot that was committed.
        operation: `append`, `overwrite` or `restore`.
        schema: The columns of all files up to this version, as Spark's JSON.
        rows: How many rows are visible after it.
        add: Files that became visible.
        remove: Files that became invisible.
        files: All visible files, in some versions; None in the others.
    """

    version: int
    pipeline: PipelineId
    sink: SinkId
    slot: Slot
    checkpoint_id: CheckpointId
    operation: str
    data_format: str
    schema: Mapping[str, Any]
    rows: int
    add: tuple[DataFile, ...]
    remove: tuple[DataFile, ...] = ()
    files: tuple[DataFile, ...] | None = field(default=None)


Live = dict[str, DataFile]
"""Visible files, by the name under which they were staged, oldest first."""


class FileCommits:
    """The versions of one directory. Lets every `OSError` through."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / HIDDEN / "commits"
        self._past = root / HIDDEN / "past"
        self._newest = BEGINNING
        self._read: dict[int, FileCommit] = {}
        self._carried_out = BEGINNING

    def newest(self) -> int:
        """Return the newest version; `BEGINNING` if there is none."""
        if self._newest != BEGINNING and not exists(self._file(self._newest)):
            # The directory was rolled back or recreated: earlier reads are no longer valid.
            self._newest = self._carried_out = BEGINNING
            self._read.clear()
        if self._newest == BEGINNING:
            names = (file.name.partition(".") for file in matching(self.directory, "*.json"))
            found = (int(stem) for stem, _, end in names if stem.isdigit() and end == "json")
            self._newest = max(found, default=BEGINNING)
        while exists(self._file(self._newest + 1)):
            self._newest += 1
        return self._newest

    def read(self, version: int) -> FileCommit:
        """A manifest that is invalid is a ValueError, one that names a file outside is Corrupt."""
        found = self._read.get(version)
        if found is None:
            manifest = self._file(version)
            found = _unpack(manifest.read_text(encoding="utf-8"))
            for file in (*found.add, *found.remove, *(found.files or ())):
                for path in (file.staged, file.path, file.source):
                    if not is_below(path):
                        raise Corrupt(str(manifest), f"{path!r} leads outside {self.root}")
            if len(self._read) > 2 * _WHOLE_EVERY:
                self._read.clear()
            self._read[version] = found
        return found

    def backwards(self) -> Iterator[FileCommit]:
        return (self.read(version) for version in range(self.newest(), BEGINNING, -1))

    def live(self, version: int) -> Live:
        """Return the files that were visible at a version, with their paths at that time."""
        chain: list[FileCommit] = []
        for number in range(version, BEGINNING, -1):
            chain.append(self.read(number))
            if chain[-1].files is not None:
                break
        found: Live = {}
        for commit in reversed(chain):
            if commit.files is not None:
                found = {file.staged: file for file in commit.files}
            else:
                apply(found, commit)
        return found

    def where(self, version: int) -> dict[str, str]:
        """Return where the files of a version are now, visible or not."""
        places = {staged: file.path for staged, file in self.live(version).items()}
        for number in range(version + 1, self.newest() + 1):
            later = self.read(number)
            for file in (*later.remove, *later.add):
                if file.staged in places:
                    places[file.staged] = file.path
        return places

    def last_place(self, staged: str) -> tuple[DataFile, bool] | None:
        """Find where a staged file is now, and whether it is visible; None if no version has it."""
        # An operator may have deleted manifests that are older than a full list of files.
        with contextlib.suppress(FileNotFoundError):
            for commit in self.backwards():
                # A visible file is found within a hundred versions, in a full list of files.
                places = ((commit.add, True), (commit.remove, False), (commit.files or (), True))
                for files, in_sight in places:
                    found = next((file for file in files if file.staged == staged), None)
                    if found is not None:
                        return found, in_sight
        return None

    def create(self, commit: FileCommit) -> bool:
        """Create a version; return False if another process has created that version."""
        if commit.version % _WHOLE_EVERY == 0:
            files = self.live(commit.version - 1)
            apply(files, commit)
            commit = replace(commit, files=tuple(files.values()))
        make_lasting(self.directory)
        return create_lasting(self._file(commit.version), _pack(commit))

    def carry_out(self, commit: FileCommit) -> None:
        """Move the files of a version to their places, and sync; may be repeated at any time.

        The version that this object executed last is not executed again. FileNotFoundError if one
        of the newest version's files is in neither place.
        """
        if commit.version == self._carried_out:
            return
        touched = set()
        # First additions, then removals: a reader that only lists files misses none.
        for file in (*commit.add, *commit.remove):
            source, target = self.root / file.source, self.root / file.path
            if not exists(target):
                make_lasting(target.parent)
                try:
                    source.rename(target)
                except FileNotFoundError:
                    if commit.version == self.newest():
                        message = f"{file.staged} of version {commit.version} is gone"
                        raise FileNotFoundError(message) from None
            touched |= {source.parent, target.parent}
        for directory in touched:
            if is_directory(directory):
                sync_directory(directory)
        self._carried_out = commit.version

    def past_place(self, version: int, path: str) -> str:
        """Return the place of a file that a version removes."""
        return (self._past.relative_to(self.root) / f"{version:020d}" / path).as_posix()

    def forget_past(self, before: int, is_kept: Callable[[str], bool]) -> None:
        """Delete files that versions before a number have removed, unless one is still kept."""
        for directory in list_directory(self._past):
            if not directory.name.isdigit() or int(directory.name) >= before:
                continue
            try:
                removed = self.read(int(directory.name)).remove
            except FileNotFoundError:
                # Without its manifest, nothing refers to these files any more.
                removed = ()
            if not any(is_kept(file.staged) for file in removed):
                remove_tree(directory)
                continue
            for file in removed:
                if not is_kept(file.staged):
                    (self.root / file.path).unlink(missing_ok=True)

    def _file(self, version: int) -> Path:
        return self.directory / f"{version:020d}.json"


def apply(live: Live, commit: FileCommit) -> None:
    """Apply one version to the visible files."""
    for file in commit.remove:
        live.pop(file.staged, None)
    live.update({file.staged: file for file in commit.add})


def _pack(commit: FileCommit) -> str:
    values = {"cutwater": _FORM, **asdict(commit)}
    if commit.files is None:
        del values["files"]
    return json.dumps(values, ensure_ascii=False)


def _unpack(text: str) -> FileCommit:
    values = json.loads(text)
    if not isinstance(values, dict) or values.pop("cutwater", None) != _FORM:
        message = "this is no manifest of this version of Cutwater"
        raise ValueError(message)
    for name in ("add", "remove", "files"):
        if values.get(name) is not None:
            values[name] = tuple(DataFile(**file) for file in values[name])
    try:
        return FileCommit(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error


def read_files(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Return the rows of a version."""
    root, number = Path(target.uri), int(version)
    commits = FileCommits(root)
    if number == BEGINNING:
        raise SinkError(sink, f"nothing was committed to {root} yet: it had no columns then")
    try:
        if number > commits.newest():
            raise SinkError(sink, f"{root} never was at version {number}: it has been recreated")
        commit, files, where = commits.read(number), commits.live(number), commits.where(number)
    except (OSError, ValueError, Corrupt) as error:
        raise SinkError(sink, f"version {number} of {root} cannot be read: {error}") from error
    schema = StructType.fromJson(dict(commit.schema))
    described = remembered_files(target)
    groups: dict[str, list[str]] = {}
    for staged, file in files.items():
        place = where[staged]
        found = status(root / place)
        if found is None:
            raise SinkError(sink, f"{place} of version {number} is gone from {root}")
        if found.st_size != file.size_bytes:
            # Text that was cut short would be read as fewer rows.
            reason = f"has {found.st_size} bytes instead of {file.size_bytes}"
            raise SinkError(sink, f"{place} of version {number} in {root} {reason}")
        # The directory above the directories of the partitions.
        inner = len(Path(file.path).parts)
        above = root.joinpath(*Path(place).parts[:-inner])
        groups.setdefault(str(above), []).append(literal(root / place))
    names = [f"`{name.replace('`', '``')}`" for name in schema.names]
    parts = []
    for base, paths in groups.items():
        reader = spark.read.format(commit.data_format).schema(schema)
        reader = reader.options(**reading_options(described)).options(
            basePath=base, **STRICT_READING
        )
        parts.append(reader.load(paths).select(*names))
    if not parts:
        return spark.createDataFrame([], schema)
    return functools.reduce(lambda frame, other: frame.unionByName(other), parts)


def literal(path: Path) -> str:
    """Escape a path, so that Spark does not read it as a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", str(path))
