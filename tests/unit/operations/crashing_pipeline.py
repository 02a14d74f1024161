"""A pipeline in memory whose processes crash before or after any write to the store or to a table.

The store is the real one, on the in-memory backend. Tables keep their versions by slot. The final
check is arithmetic: a cut at position n is correct if the rows that the tables show and the rows
that the cut carries are, together, the numbers below n, each exactly once.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tests.trees import stored_tree

from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, SinkId, Slot, StepId
from cutwater.operations.offline_pipeline import OfflinePipeline, candidates
from cutwater.operations.rewind.rewind import perform
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import CheckpointKind, Committable, Cut, StepSnapshot, Version
from cutwater.protocol.decisions import Decision
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.recovery import Restore
from cutwater.runtime.context import RunContext
from cutwater.runtime.recovery import Recovery
from cutwater.sinks.base import OpenSink, RestorePreview
from cutwater.sinks.commit import see_through
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import open_pipeline
from cutwater.store.records.targets import SinkTargets, StoredTarget

SINKS = (SinkId("a"), SinkId("b"))
SOURCE = StepId("numbers")
TARGETS = {sink: StoredTarget("memory", sink) for sink in SINKS}


class Crashed(BaseException):
    """The process has crashed."""


@dataclass
class CrashPoint:
    """The write at which a process crashes, and whether it crashes before or after that write."""

    left: int = 10**9
    after: bool = False

    def write(self, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
        """Make a write, and crash before or after it if it is the last one."""
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crashed
        result = act()
        if self.left == 0:
            raise Crashed
        return result


class CrashingBackend(MemoryBackend):
    """A store whose writers may crash."""

    crash_point = CrashPoint()

    def create(self, path: ObjectPath, data: bytes) -> bool:
        created = self.crash_point.write(lambda: super(CrashingBackend, self).create(path, data))
        assert isinstance(created, bool)
        return created

    def put(self, path: ObjectPath, data: bytes) -> None:
        self.crash_point.write(lambda: super(CrashingBackend, self).put(path, data))

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        self.crash_point.write(lambda: super(CrashingBackend, self).put_file(path, local_file))


@dataclass
class VersionedTable:
    """A table with versions; fills `OpenSink` as far as recovery and rewinds use it."""

    backend: CrashingBackend
    name: SinkId
    versions: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    slots: dict[Slot, int] = field(default_factory=dict)
    refuses: str = ""

    def _act(self, permit: CommitPermit, rows: tuple[int, ...]) -> Version:
        newest = max(self.slots, default=Slot(0))
        if permit.slot not in self.slots and newest > permit.slot:
            raise Superseded(self.name, permit.slot, newest)
        if permit.slot not in self.slots:
            self.backend.crash_point.write(lambda: self._add(permit.slot, rows))
        return str(self.slots[permit.slot])

    def _add(self, slot: Slot, rows: tuple[int, ...]) -> None:
        self.slots[slot] = len(self.versions)
        self.versions.append(rows)

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        added = tuple(number for committable in committables for number in numbers_of(committable))
        return self._act(permit, self.versions[-1] + added)

    def look_back(self, version: Version | None) -> RestorePreview:
        self._check("look back")
        then = self.versions[int(version or 0)]
        return RestorePreview(str(len(self.versions) - 1), len(self.versions[-1]), len(then))

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        self._check("restore")
        return self._act(permit, self.versions[int(version or 0)])

    def _check(self, what: str) -> None:
        if self.refuses == what:
            raise SinkError(self.name, "is away")

    def problem(self, _: Committable) -> str | None:
        """Report that the committable is gone, if the test says so."""
        return "it is gone" if self.refuses == "problem" else None


def numbers_of(committable: Committable) -> range:
    """Return the numbers in a batch: they start at the number of the batch."""
    return range(committable.batch, committable.batch + committable.rows)


@dataclass
class CrashingPipeline:
    """A pipeline whose processes crash."""

    backend: CrashingBackend
    tables: dict[SinkId, VersionedTable] = field(default_factory=dict)
    targets: SinkTargets = field(default_factory=lambda: TARGETS)

    def opened(self) -> PipelineStore:
        return PipelineStore.of(
            self.backend, open_pipeline(self.backend, "p", lambda: uuid.UUID(int=1))
        )

    @property
    def sinks(self) -> Mapping[SinkId, OpenSink]:
        return cast(Mapping[SinkId, OpenSink], self.tables)

    def recover(self) -> Restore:
        with TemporaryDirectory() as scratch:
            context = RunContext(
                plan=cast(Any, None),
                engine=cast(Any, None),
                store=self.opened(),
                sinks=self.sinks,
                options=CheckpointOptions(),
                bound=cast(Any, None),
                scratch=Path(scratch),
                targets=self.targets,
            )
            return Recovery(context, []).run()

    def rewind(self, choice: int, *, leave_sinks: bool = False) -> Decision | None:
        """Rewind to one of the checkpoints; None if that one is refused."""
        store = self.opened()
        log = store.log.read()
        found = candidates(store, log)
        target = found[choice % len(found)]
        is_committed = target.decision.slot in store.commits.slots()
        if target.decision.commit_point and not is_committed:
            return None
        movable = OfflinePipeline("p", store, self.targets, self.sinks)
        perform(movable, log, target, leave_sinks=leave_sinks)
        return target.decision


def start_pipeline(points: list[bool], backend: CrashingBackend | None = None) -> CrashingPipeline:
    """Start a pipeline and run its first generation: one checkpoint for each of `points`."""
    pipeline = CrashingPipeline(backend or CrashingBackend())
    pipeline.tables.update({sink: VersionedTable(pipeline.backend, sink) for sink in SINKS})
    run_generation(pipeline, points)
    return pipeline


def run_generation(pipeline: CrashingPipeline, points: list[bool]) -> None:
    """Run another generation: one checkpoint for each of `points`, a recovery point where True."""
    restored = pipeline.recover()
    store, generation, standing = pipeline.opened(), restored.generation, restored.standing
    store.targets.record(generation, pipeline.targets)
    nothing: dict[SinkId, tuple[Committable, ...]] = dict.fromkeys(pipeline.tables, ())
    carried: dict[SinkId, tuple[Committable, ...]] = {**nothing, **standing.carried}
    visible = {sink: standing.visible.get(sink) for sink in pipeline.tables}
    begins_at = 0 if restored.cut is None else position(restored.cut)
    with TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        state.mkdir()
        (state / "rows").touch()
        refs = stored_tree(store.blobs(generation), state, {})
    for number, is_point in enumerate(points, start=1):
        checkpoint_id = CheckpointId(standing.highest_id + number)
        batch = BatchId(begins_at + (number - 1) * 3)
        staged = {
            sink: (*carried[sink], Committable(sink, generation, batch, 3, ()))
            for sink in pipeline.tables
        }
        snapshot = StepSnapshot(
            SOURCE,
            checkpoint_id,
            generation,
            batch,
            offsets={"0": str(batch + 3)},
            state=refs,
        )
        cut = Cut(
            checkpoint_id,
            generation,
            CheckpointKind.CHECKPOINT,
            {SOURCE: snapshot},
            commit=nothing if is_point else staged,
            carried=staged if is_point else nothing,
            commit_point=not is_point,
            visible=dict(visible),
        )
        decision = Decision(
            Slot(standing.slot + number),
            generation,
            f"{checkpoint_id}",
            cut.kind,
            cut.checkpoint_id,
            store.manifests.publish(cut),
            cut.commit_point,
        )
        store.log.create(decision)
        carried = dict(cut.carried)
        visible.update(see_through(store, pipeline.sinks, decision, cut))


def position(cut: Cut | None) -> int:
    assert cut is not None
    return int(cut.stream_positions["numbers/0"])


def check_exactly_once(pipeline: CrashingPipeline, restored: Restore) -> None:
    """Check that shown and carried rows are the numbers below the position, each exactly once."""
    assert restored.cut is not None
    for sink, table in pipeline.tables.items():
        carried = [
            number
            for committable in restored.cut.carried[sink]
            for number in numbers_of(committable)
        ]
        assert [*table.versions[-1], *carried] == list(range(position(restored.cut)))
