"""A directory of files in use by one generation: staged invisibly, committed by a manifest.

The directory belongs to one sink of one pipeline; another sink needs another directory. A slot with
nothing to commit makes no version, for the reasons in `delta.slot_commits`; a restore always makes
one. `files.manifests` explains why any step may be interrupted at any point.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql.types import StructType

from cutwater.errors import ConfigError, Corrupt, SinkError, Superseded
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import BlobRef, Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import RestorePreview, Rows, SinkContext, reason_of, repeat_until_found
from cutwater.sinks.columns import joined_columns
from cutwater.sinks.files.manifests import BEGINNING, DataFile, FileCommit, FileCommits
from cutwater.sinks.staging.directory import HIDDEN
from cutwater.sinks.staging.formats import Form, StagedOutput
from cutwater.store.backends.directories import exists
from cutwater.store.backends.files import make_lasting

_FAILED: Final = (OSError, ValueError, Corrupt)

Next = Callable[[int], FileCommit]


class OpenFiles:
    """A directory to write files to; fills `OpenSink` and `KeepsPast`.

    Every method except `problem` raises `SinkError` if it cannot be done now. `commit` and
    `restore` raise `Superseded` for a slot that was never committed, after a later slot was.
    """

    def __init__(self, root: Path, form: Form, context: SinkContext, keep_past: int) -> None:
        """Refuse a directory that belongs to another sink or program."""
        self._root = root
        self._form = form
        self._overwrites = form.whole
        self._keep_past = keep_past
        self._pipeline, self._sink = context.pipeline, context.sink
        self._staged = StagedOutput(root, context.pipeline, context.sink)
        self._commits = FileCommits(root)
        # The columns of the newest version; `stage` runs concurrently with `commit`.
        self._columns: StructType | None = None
        try:
            make_lasting(root / HIDDEN)
            newest = self._newest()
            visible = (
                () if newest else (entry for entry in root.iterdir() if entry.name[0] not in "._")
            )
            foreign = min((entry.name for entry in visible), default=None)
        except _FAILED as error:
            raise ConfigError("path", f"{root} cannot be written to: {reason_of(error)}") from error
        if foreign is not None:
            reason = f"{root} holds {foreign}, which Cutwater has not committed"
            raise ConfigError("path", f"{reason}; give a directory of its own")
        why = None if newest is None else self._not_ours(newest)
        if why is not None:
            raise ConfigError("path", why)

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """SinkError also if the rows do not fit the existing rows."""
        missing = set(self._form.partition_by) - set(rows.schema.names)
        if missing:
            reason = f"there is no column {min(missing)} to partition by"
            raise ConfigError(f"sink {self._sink}", reason)
        if self._columns is not None:
            self._join_columns(self._columns, rows.schema)
        place = (generation, batch)
        try:
            return self._staged.stage(rows, place, self._form)
        except OSError as error:
            raise SinkError(self._sink, f"cannot stage: {reason_of(error)}") from error

    def problem(self, committable: Committable) -> str | None:
        for blob in committable.blobs:
            place = self._root / blob.name
            if not exists(place):
                known = self._commits.last_place(blob.name)
                if known is not None:
                    file, _ = known
                    unmoved = self._root / file.source
                    place = unmoved if exists(unmoved) else self._root / file.path
            problem = self._staged.difference(blob, place)
            if problem is not None:
                return problem
        return None

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        if not committables:
            return self._find_unchanged(permit.slot)
        wanted = committables[-1:] if self._overwrites else committables
        version = self._commit_once(
            permit, lambda number: self._plan_commit(number, permit, wanted)
        )
        self._staged.note_committed(committables)
        return version

    def look_back(self, version: Version | None) -> RestorePreview:
        try:
            newest, target = self._commits.newest(), _number(version)
            now = self._rows_at(newest)
            if target > newest:
                reason = f"{self._root} is at version {newest} and never was at {target}"
                return RestorePreview(str(newest), now, obstacle=f"{reason}: it has been recreated")
            then = self._rows_at(target)
            for path in self._commits.where(target).values():
                if not exists(self._root / path):
                    reason = f"{path} of version {target} is gone from {self._root}"
                    return RestorePreview(str(newest), now, then, reason)
            return RestorePreview(str(newest), now, then)
        except _FAILED as error:
            raise SinkError(self._sink, reason_of(error)) from error

    def slot_at(self, version: Version) -> Slot | None:
        try:
            number = _number(version)
            known = BEGINNING < number <= self._commits.newest()
            return self._commits.read(number).slot if known else None
        except _FAILED as error:
            raise SinkError(self._sink, reason_of(error)) from error

    def newest(self) -> Found:
        try:
            newest = self._newest()
        except _FAILED as error:
            raise SinkError(self._sink, reason_of(error)) from error
        if newest is None:
            return Found(None, str(BEGINNING))
        return Found(newest.slot, str(newest.version))

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """SinkError also if files of that version are gone."""
        return self._commit_once(
            permit, lambda number: self._plan_restore(number, permit, _number(version))
        )

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        try:
            self._staged.discard(generation, keep)
            self._forget_past(generation, keep)
        except _FAILED as error:
            raise SinkError(self._sink, f"cannot discard: {reason_of(error)}") from error

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete staged rows that are committed, and files removed `keep_past` versions ago.

        How far back the directory can be restored depends on `keep_past`, not on `shown`.
        """
        del shown
        try:
            self._staged.retain(keep)
            self._forget_past(generation, keep)
        except _FAILED as error:
            raise SinkError(self._sink, f"cannot delete old files: {reason_of(error)}") from error

    def _forget_past(self, generation: Generation, keep: Sequence[Committable]) -> None:
        kept = {blob.name for committable in keep for blob in committable.blobs}

        def is_kept(staged: str) -> bool:
            # Files that a newer generation has staged are kept: this may be a process that was
            # paused, and does not know its successor's checkpoints.
            return staged in kept or self._staged.generation_of(staged) > generation

        self._commits.forget_past(self._commits.newest() - self._keep_past + 1, is_kept)

    # -- one slot

    def _commit_once(self, permit: CommitPermit, plan: Next) -> Version:
        """Create versions until the slot is found among them, and execute the newest."""

        def step() -> Version | None:
            newest = self._newest()
            if newest is not None:
                why = self._not_ours(newest)
                if why is not None:
                    raise SinkError(self._sink, why)
                # Also a version that another process has started: the next version builds on it.
                self._commits.carry_out(newest)
            made = self._made_by(permit.slot, newest)
            if made is None:
                self._commits.create(plan(newest.version + 1 if newest else BEGINNING + 1))
                return None
            self._commits.carry_out(made)
            self._columns = StructType.fromJson(dict(made.schema))
            return str(made.version)

        return repeat_until_found(self._sink, step, _FAILED)

    def _made_by(self, slot: Slot, newest: FileCommit | None) -> FileCommit | None:
        """Return the version that a slot made, None if it may still come; else `Superseded`."""
        if newest is None or newest.slot < slot:
            return None
        for commit in self._commits.backwards():
            if commit.slot == slot:
                return commit
            if commit.slot < slot:
                break
        raise Superseded(self._sink, slot, newest.slot)

    def _find_unchanged(self, slot: Slot) -> Version:
        """Return the version of a slot that has nothing to commit: the last at or before it."""
        try:
            for commit in self._commits.backwards():
                if commit.slot <= slot:
                    self._commits.carry_out(commit)
                    return str(commit.version)
        except _FAILED as error:
            raise SinkError(self._sink, reason_of(error)) from error
        return str(BEGINNING)

    # -- what a version consists of

    def _plan_commit(
        self, number: int, permit: CommitPermit, committables: Sequence[Committable]
    ) -> FileCommit:
        before = self._commits.read(number - 1) if number - 1 > BEGINNING else None
        columns = StructType()
        if before is not None and not self._overwrites:
            columns = StructType.fromJson(dict(before.schema))
        for committable in committables:
            found = StructType.fromJson(json.loads(self._staged.schema_text(committable)))
            columns = self._join_columns(columns, found)
        added, rows = [], 0
        for committable in committables:
            files = [self._staged_file(number, committable, blob) for blob in committable.blobs[1:]]
            new = [file for file in files if file is not None]
            # In an append, rows that are already visible are counted in the previous version.
            rows += committable.rows if new or self._overwrites else 0
            added += new
        removed: tuple[DataFile, ...] = ()
        if self._overwrites:
            stays = {blob.name for committable in committables for blob in committable.blobs}
            live = self._commits.live(number - 1)
            gone = [file for staged, file in live.items() if staged not in stays]
            removed = tuple(self._plan_removal(number, file) for file in gone)
        elif before is not None:
            rows += before.rows
        operation = "overwrite" if self._overwrites else "append"
        made = self._version(number, permit, operation, columns, rows)
        return replace(made, add=tuple(added), remove=removed)

    def _staged_file(self, number: int, committable: Committable, blob: BlobRef) -> DataFile | None:
        """Return the place of a staged file in a version; None if it is already visible.

        A cut with data in flight carries staged rows, and the next cut commits them. A restore to
        the first of these cuts removes the files, to be committed once more. FileNotFoundError if
        the file does not exist, or its size has changed.
        """
        source = blob.name
        if not exists(self._staged.place(blob)):
            known = self._commits.last_place(source)
            if known is None:
                raise FileNotFoundError(f"{source} is gone")
            if known[1]:
                return None
            source = known[0].path
        if (self._root / source).stat().st_size != blob.size_bytes:
            raise FileNotFoundError(f"{source} is not what was staged")
        batch = self._staged.batch_directory(committable.generation, committable.batch)
        # Below the batch: a directory with a random name, those of the partitions, then the file.
        inner = Path(blob.name).relative_to(batch.relative_to(self._root)).parts[1:]
        path = "/".join((*inner[:-1], self._name(number, blob.name)))
        return DataFile(blob.name, path, source, blob.size_bytes, blob.sha256)

    def _plan_restore(self, number: int, permit: CommitPermit, target: int) -> FileCommit:
        newest = number - 1
        if target > newest:
            raise SinkError(self._sink, f"{self._root} never was at version {target}")
        now, then, where = (
            self._commits.live(newest),
            self._commits.live(target),
            self._commits.where(target),
        )
        added = []
        for staged, file in then.items():
            if staged in now:
                continue
            if not exists(self._root / where[staged]):
                reason = f"{where[staged]} of version {target} is gone from {self._root}"
                raise SinkError(self._sink, reason)
            path = str(Path(file.path).with_name(self._name(number, staged)))
            added.append(replace(file, source=where[staged], path=path))
        removed = [self._plan_removal(number, file) for key, file in now.items() if key not in then]
        columns = StructType()
        if target > BEGINNING:
            columns = StructType.fromJson(dict(self._commits.read(target).schema))
        made = self._version(number, permit, "restore", columns, self._rows_at(target))
        return replace(made, add=tuple(added), remove=tuple(removed))

    def _version(
        self, number: int, permit: CommitPermit, operation: str, columns: StructType, rows: int
    ) -> FileCommit:
        return FileCommit(
            version=number,
            pipeline=permit.pipeline,
            sink=self._sink,
            slot=permit.slot,
            checkpoint_id=permit.checkpoint_id,
            operation=operation,
            data_format=self._form.format,
            schema=columns.jsonValue(),
            rows=rows,
            add=(),
        )

    def _plan_removal(self, number: int, file: DataFile) -> DataFile:
        return replace(file, source=file.path, path=self._commits.past_place(number, file.path))

    def _name(self, number: int, staged: str) -> str:
        """Name a file so that no other version ever uses the name; its suffix is its format."""
        end = staged[staged.rindex(f".{self._form.format}") :]
        return f"part-{number:012d}-{hashlib.sha256(staged.encode()).hexdigest()[:16]}{end}"

    # -- the newest version

    def _newest(self) -> FileCommit | None:
        number = self._commits.newest()
        if number == BEGINNING:
            return None
        found = self._commits.read(number)
        self._columns = StructType.fromJson(dict(found.schema))
        return found

    def _not_ours(self, newest: FileCommit) -> str | None:
        if (newest.pipeline, newest.sink) != (self._pipeline, self._sink):
            owner = f"sink {newest.sink} of pipeline {newest.pipeline}"
            return f"{self._root} belongs to {owner}; give a directory of its own"
        if newest.data_format != self._form.format:
            found = f"{newest.data_format} files, not {self._form.format}"
            return f"{self._root} holds {found}; give a directory of its own"
        return None

    def _rows_at(self, version: int) -> int:
        return 0 if version == BEGINNING else self._commits.read(version).rows

    def _join_columns(self, known: StructType, found: StructType) -> StructType:
        """Return all columns; fail if rows with these columns cannot join the existing ones."""
        if self._overwrites:
            return found
        return joined_columns(known, found, self._sink, by_position=self._form.format == "csv")


def _number(version: Version | None) -> int:
    return BEGINNING if version is None else int(version)
