"""A function of the user as a target, for a writer that is idempotent itself.

Rows are staged as Parquet in a directory that the user names, and the function is called with them
after the decision, in the order of the slots. The docstring of `foreach_batch` explains what the
function must do for exactly once: the process can die between the function's return and our note of
it, and nothing in this module can prevent that.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import STRICT_READING, OpenSink, RestorePreview, Rows, SinkContext
from cutwater.sinks.files.target import directory_of
from cutwater.sinks.staging.directory import put_lasting
from cutwater.store.backends.directories import is_directory, is_file, matching
from cutwater.store.backends.files import make_lasting, sync_directory
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cutwater.sinks.staging.formats import StagedOutput

_NOTES: Final = 1000
"""How many slots are remembered, which limits how far back a rewind can go."""

_FORGOTTEN: Final = Slot(0)
"""Stands for slots that are not remembered; a lower number stands for those up to one of them."""

NOTHING: Final[Version] = "0"
"""The version before the first rows."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Information about a commit that the function gets besides the rows.

    Attributes:
        pipeline: The pipeline's uuid.
        sink: The sink's name.
        slot: The slot of the decision: only grows, and is the same when the call is repeated.
        checkpoint_id: The checkpoint of that decision.
        batches: The generation and number of every batch whose rows these are, in order.
    """

    pipeline: PipelineId
    sink: SinkId
    slot: Slot
    checkpoint_id: CheckpointId
    batches: tuple[tuple[Generation, BatchId], ...] = ()

    @property
    def key(self) -> str:
        """The idempotence key: the same for every call with the same rows, and for no other."""
        return f"{self.pipeline}/{self.sink}/{self.slot}"

    @property
    def generation(self) -> Generation | None:
        """The generation that staged the last batch; None without a batch."""
        return self.batches[-1][0] if self.batches else None

    @property
    def batch(self) -> BatchId | None:
        """The number of the last batch, which another generation may use again."""
        return self.batches[-1][1] if self.batches else None


Function = Callable[["DataFrame", CommitInfo], None]
TakeBack = Callable[[CommitInfo, Slot | None], None]


def foreach_batch(
    function: Function, *, staging: str, take_back: TakeBack | None = None
) -> "ForeachBatchTarget":
    """Hand the rows of each commit to a function that writes them somewhere, idempotently.

    The function gets one DataFrame with the rows of all batches of the commit, and a `CommitInfo`.
    It is called after the checkpoint is decided, never before, one slot after the other, and not
    for a commit without rows. It may be called again with the same slot and the same rows: after an
    error, and after a crash even if it had returned. So it must either

    - write the rows and the slot in one transaction, and write nothing if that slot or a later
      one is there already for this pipeline and sink; or
    - be an upsert by keys of the rows, so that the second time changes nothing.

    Without one of these, rows are duplicated after a crash. An exception fails the commit: the
    function is called again until it succeeds, and the pipeline is COMMIT_BLOCKED until then.

    Args:
        function: Called as `function(frame, info)`; it runs in the driver, and may use Spark.
        staging: A directory for rows that wait for their decision; it must last as long as the
            store.
        take_back: Called as `take_back(info, slot)` for a rewind by `cutwater run FILE --from`:
            must remove everything that came after this slot (None: everything), and may be called
            again. Without it, a rewind past rows that the function got is refused.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    if not callable(function):
        raise ConfigError("function", f"{function!r} cannot be called")
    directory_of(staging)
    return ForeachBatchTarget(function, staging, take_back)


@dataclass(frozen=True, slots=True)
class ForeachBatchTarget:
    """A function to hand rows to; made by `foreach_batch`, fills `Sink`."""

    function: Function
    staging: str
    take_back: TakeBack | None = None

    @property
    def format(self) -> str:
        return "foreach_batch"

    @property
    def accepts(self) -> frozenset[str]:
        """All of them; the function must handle the rows of each mode."""
        return frozenset({"append", "update", "complete"})

    def describe(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def open(self, context: SinkContext) -> OpenSink:
        return OpenForeachBatch(directory_of(self.staging).absolute(), context, self)

    def stored(self) -> StoredTarget:
        """Where rows are staged; the function is in the user's file only."""
        return StoredTarget(self.format, str(directory_of(self.staging).resolve()))


def reopen_foreach_batch(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a recorded target: enough to decide whether a rewind would have to undo rows."""
    if not is_directory(Path(target.uri)):
        raise SinkError(context.sink, f"there is no directory {target.uri} any more")
    return OpenForeachBatch(Path(target.uri), context, None)


class OpenForeachBatch:
    """A function in use by one generation; fills `OpenSink` and `KeepsPast`.

    The methods that write raise `SinkError` if they cannot do so now. `commit` and `restore` raise
    `Superseded` for a slot that was never committed, after a later slot was.
    """

    def __init__(self, root: Path, context: SinkContext, target: ForeachBatchTarget | None) -> None:
        """Stage below a root; without a target, the function is unknown."""
        self._context = context
        self._target = target
        self._sink = context.sink
        self._opened: StagedOutput | None = None
        self._root = root
        self._notes = root / "_cutwater" / context.pipeline / context.sink / "acted"
        try:
            make_lasting(self._notes)
        except OSError as error:
            raise ConfigError("staging", f"{root} cannot be written to: {error}") from error

    @property
    def _staged(self) -> "StagedOutput":
        if self._opened is None:
            from cutwater.sinks.staging.formats import StagedOutput  # noqa: PLC0415 - needs Spark

            self._opened = StagedOutput(self._root, self._context.pipeline, self._sink)
        return self._opened

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        from cutwater.sinks.staging.formats import Form  # noqa: PLC0415 - needs Spark

        try:
            return self._staged.stage(rows, (generation, batch), Form())
        except OSError as error:
            raise SinkError(self._sink, f"cannot stage: {error}") from error

    def problem(self, committable: Committable) -> str | None:
        """Rows that the function got must still exist too.

        After a rewind to a recovery point that carries them, the function gets them again.
        """
        for blob in committable.blobs:
            problem = self._staged.difference(blob, self._root / blob.name)
            if problem is not None:
                return problem
        return None

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Call the function with the staged rows, unless it is known to have returned before."""
        if not committables or self._is_done(permit.slot):
            return str(permit.slot)
        if self._target is None or self._context.spark is None:
            reason = "only the pipeline's own file knows the function; run it"
            raise SinkError(self._sink, reason)
        batches = tuple((committable.generation, committable.batch) for committable in committables)
        frame = self._frame(committables)
        try:
            self._target.function(frame, self._call_info(permit, batches))
        except Exception as error:
            reason = f"{self._target.describe()} raised {type(error).__name__}: {error}"
            raise SinkError(self._sink, reason.rstrip(".")) from error
        self._note(permit.slot, "commit", [list(batch) for batch in batches])
        self._staged.note_committed(committables)
        return str(permit.slot)

    def look_back(self, version: Version | None) -> RestorePreview:
        """Return why a restore is impossible, if only the function could remove some rows."""
        now, then = self._list_delivered(None), self._list_delivered(int(version or 0))
        last = str(now[-1]) if now else NOTHING
        if then and then[-1] <= _FORGOTTEN:
            first = self._read_notes()[0][0]
            reason = f"it remembers no further back than slot {first} which rows were handed over"
            return RestorePreview(last, obstacle=reason)
        if now == then:
            return RestorePreview(last)
        if now[: len(then)] != then:
            lost = next(slot for slot in then if slot not in now)
            return RestorePreview(
                last, obstacle=f"the rows of slot {lost} were taken back since then"
            )
        if self._target is not None and self._target.take_back is not None:
            return RestorePreview(last)
        reason = f"rows were handed to a function since then, at last at slot {last}"
        if self._target is None:
            # Only the user's file has the `take_back` function, if there is one.
            return RestorePreview(last, obstacle=f"{reason}; use `cutwater run FILE --from`")
        return RestorePreview(last, obstacle=f"{reason}, and it has no take_back")

    def newest(self) -> Found:
        """Return the newest slot whose call is noted; what the function wrote is not checked."""
        try:
            slots = [noted for noted, _, _ in self._read_notes()]
        except OSError as error:
            raise SinkError(self._sink, f"cannot read its notes: {error}") from error
        return Found(slots[-1], str(slots[-1])) if slots else Found(None, NOTHING)

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Undo what came after a version, if the user has given `take_back`."""
        if self._is_done(permit.slot):
            return str(permit.slot)
        preview = self.look_back(version)
        if preview.obstacle is not None:
            raise SinkError(self._sink, preview.obstacle)
        then = self._list_delivered(int(version or 0))
        if self._list_delivered(None) != then:
            assert self._target is not None
            assert self._target.take_back is not None
            try:
                self._target.take_back(self._call_info(permit, ()), then[-1] if then else None)
            except Exception as error:
                reason = f"take_back raised {type(error).__name__}: {error}"
                raise SinkError(self._sink, reason.rstrip(".")) from error
        self._note(permit.slot, "restore", [int(version or 0)])
        return str(permit.slot)

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        try:
            self._staged.discard(generation, keep)
        except OSError as error:
            raise SinkError(self._sink, f"cannot discard: {error}") from error

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete staged rows that the function got and no kept checkpoint carries."""
        del generation, shown
        try:
            self._staged.retain(keep)
        except OSError as error:
            raise SinkError(self._sink, f"cannot delete staged rows: {error}") from error

    # -- notes

    def _frame(self, committables: Sequence[Committable]) -> "DataFrame":
        from pyspark.sql.types import StructType  # noqa: PLC0415 - an open sink may have no Spark

        from cutwater.sinks.columns import joined_columns  # noqa: PLC0415
        from cutwater.sinks.files.manifests import literal  # noqa: PLC0415

        assert self._context.spark is not None
        for blob in (blob for committable in committables for blob in committable.blobs):
            if not is_file(self._staged.place(blob)):
                raise SinkError(self._sink, f"staged rows are gone: {blob.name} is missing")
        columns = StructType()
        for committable in committables:
            found = StructType.fromJson(json.loads(self._staged.schema_text(committable)))
            columns = joined_columns(columns, found, self._sink)
        paths = [
            literal(self._staged.place(blob))
            for committable in committables
            for blob in committable.blobs[1:]
        ]
        reader = self._context.spark.read.options(**STRICT_READING)
        return reader.schema(columns).parquet(*paths)

    def _call_info(
        self, permit: CommitPermit, batches: tuple[tuple[Generation, BatchId], ...]
    ) -> CommitInfo:
        return CommitInfo(permit.pipeline, self._sink, permit.slot, permit.checkpoint_id, batches)

    def _read_notes(self) -> list[tuple[Slot, str, list[Any]]]:
        """Return the slots with what was done at each, oldest first."""
        return [
            (Slot(int(note.stem)), note.suffix[1:], json.loads(note.read_text(encoding="utf-8")))
            for note in matching(self._notes, "*.*")
            if note.suffix in {".commit", ".restore"}
        ]

    def _list_delivered(self, at: int | None) -> list[Slot]:
        """Return the slots whose rows were delivered at a slot and not undone; None for now.

        All slots whose notes are gone are represented by one number, which no slot has.
        """
        notes = self._read_notes()
        whole = len(notes) < _NOTES
        handed: list[Slot] = [] if whole else [_FORGOTTEN]
        before: list[tuple[Slot, list[Slot]]] = []
        for slot, kind, values in notes:
            if at is not None and slot > at:
                break
            if kind == "commit":
                handed = [*handed, slot]
            else:
                # The state at that slot, which may itself have been a restore.
                unknown = [] if whole else [Slot(_FORGOTTEN - values[0])]
                handed = next((old for then, old in reversed(before) if then <= values[0]), unknown)
            before.append((slot, handed))
        return handed

    def _is_done(self, slot: Slot) -> bool:
        """Return whether a slot is known to be done; Superseded if a later one is instead."""
        slots = [noted for noted, _, _ in self._read_notes()]
        if slot in slots:
            return True
        if slots and slots[-1] > slot:
            raise Superseded(self._sink, slot, slots[-1])
        return False

    def _note(self, slot: Slot, kind: str, values: Sequence[object]) -> None:
        put_lasting(self._notes / f"{slot:012d}.{kind}", json.dumps(values))
        for old in matching(self._notes, "*.*")[:-_NOTES]:
            old.unlink()
        sync_directory(self._notes)
