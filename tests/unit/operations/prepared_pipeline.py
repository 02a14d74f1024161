"""A pipeline prepared without Spark: a store with five checkpoints, and two Delta tables.

    1 checkpoint, 2 checkpoint, 3 savepoint "before", 4 recovery point, 5 checkpoint

Every checkpoint stages ten rows for each of two Delta tables; the fourth carries its rows, which
the fifth commits with its own. So checkpoint c, once committed, shows the numbers below 10c in both
tables; the fourth still shows those below 30.
"""

import hashlib
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType
from tests.trees import stored_tree

from cutwater.ids import BatchId, CheckpointId, Generation, SinkId, Slot, StepId
from cutwater.protocol.commit import grant_shows
from cutwater.protocol.cut import BlobRef, CheckpointKind, Committable, Cut, StepSnapshot
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.lost_commit import last_writes
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.recovery import Restore
from cutwater.runtime.context import RunContext
from cutwater.runtime.recovery import Recovery
from cutwater.sinks.base import OpenSink, ShowingSink, Sink, SinkContext
from cutwater.sinks.commit import see_through
from cutwater.sinks.delta.target import delta
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline, open_pipeline
from cutwater.store.records.codecs import Attempt

NAME = "orders"
SINKS = (SinkId("left"), SinkId("right"))
SOURCE = StepId("numbers")
FIRST_AT_MS = 1_790_000_000_000
STEP_MS = 60_000
ROWS = 10
SAVEPOINT = "before"
_SCHEMA = StructType([StructField("value", LongType())]).json()


@dataclass(frozen=True)
class PreparedPipeline:
    """The location of a prepared pipeline: its store and its tables."""

    directory: Path
    visibility: str = "checkpoint"
    sinks: tuple[SinkId, ...] = SINKS

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def table(self, sink: SinkId) -> Path:
        return self.directory / sink

    def target(self, sink: SinkId) -> Sink:
        return delta(str(self.table(sink)), visibility=self.visibility)

    def opened(self, name: str = NAME) -> PipelineStore:
        backend = LocalBackend(self.store)
        return PipelineStore.of(backend, find_pipeline(backend, name))

    def shown(self) -> list[list[int]]:
        """The numbers in each table, sorted."""
        return [numbers_in(self.table(sink)) for sink in SINKS]

    def recover(self) -> Restore:
        """Run the recovery that every run starts with: claim, verify, repeat decided commits."""
        store = self.opened()
        targets = {sink: self.target(sink) for sink in self.sinks}
        context = RunContext(
            plan=cast(Any, None),
            engine=cast(Any, None),
            store=store,
            sinks={
                sink: target.open(SinkContext(None, store.pipeline, sink))
                for sink, target in targets.items()
            },
            options=CheckpointOptions(),
            bound=cast(Any, None),
            scratch=self.directory,
            targets={sink: target.stored() for sink, target in targets.items()},
        )
        return Recovery(context, []).run()


def numbers_in(table: Path, version: int | None = None) -> list[int]:
    rows = DeltaTable(table, version=version).to_pyarrow_table().to_pylist()
    return sorted(row["value"] for row in rows)


def below(count: int) -> list[list[int]]:
    """Return what both tables show when they hold the numbers below `count`."""
    return [list(range(count))] * len(SINKS)


def prepare_pipeline(directory: Path, visibility: str = "checkpoint") -> PreparedPipeline:
    """Prepare the pipeline in an empty directory.

    With the visibility `batch` a sixth batch is shown that no checkpoint holds.
    """
    prepared = PreparedPipeline(directory, visibility)
    backend = LocalBackend(prepared.store)
    store = PipelineStore.of(backend, open_pipeline(backend, NAME, uuid.uuid4))
    sinks = {
        sink: prepared.target(sink).open(SinkContext(None, store.pipeline, sink)) for sink in SINKS
    }
    store.log.create(Claim(Slot(1), Generation(1), "prepared"))
    store.targets.record(Generation(1), {sink: prepared.target(sink).stored() for sink in SINKS})
    for opened in sinks.values():
        if isinstance(opened, ShowingSink):
            opened.take_back(grant_shows(store.pipeline, Slot(1), Generation(1)), None, ())
    carried: dict[SinkId, tuple[Committable, ...]] = dict.fromkeys(SINKS, ())
    visible: dict[SinkId, str | None] = dict.fromkeys(SINKS)
    writes: dict[SinkId, Slot] = {}
    for number in range(1, 6):
        staged = {
            sink: (*carried[sink], stage_parquet(prepared, store, sinks[sink], sink, number))
            for sink in SINKS
        }
        nothing: dict[SinkId, tuple[Committable, ...]] = dict.fromkeys(SINKS, ())
        is_point = number == 4
        is_savepoint = number == 3
        cut = Cut(
            CheckpointId(number),
            Generation(1),
            CheckpointKind.SAVEPOINT if is_savepoint else CheckpointKind.CHECKPOINT,
            {SOURCE: _snapshot(directory, store, number)},
            commit=nothing if is_point else staged,
            carried=staged if is_point else nothing,
            commit_point=not is_point,
            visible=dict(visible),
            last_writes=writes,
            name=SAVEPOINT if is_savepoint else None,
            started_at_ms=FIRST_AT_MS + number * STEP_MS,
        )
        carried = dict(cut.carried)
        visible.update(_decided(store, sinks, cut))
        writes = last_writes(Slot(number + 1), cut)
    for sink in SINKS if visibility == "batch" else ():
        stage_parquet(prepared, store, sinks[sink], sink, 6)
    return prepared


def _decided(store: PipelineStore, sinks: dict[SinkId, OpenSink], cut: Cut) -> dict[SinkId, str]:
    store.attempts.reserve(Attempt(cut.checkpoint_id, cut.generation, cut.kind, cut.started_at_ms))
    decision = Decision(
        Slot(cut.checkpoint_id + 1),
        cut.generation,
        f"prepared {cut.checkpoint_id}",
        cut.kind,
        cut.checkpoint_id,
        store.manifests.publish(cut),
        cut.commit_point,
    )
    store.log.create(decision)
    return dict(see_through(store, sinks, decision, cut))


def _snapshot(directory: Path, store: PipelineStore, number: int) -> StepSnapshot:
    state = directory / "state"
    state.mkdir(exist_ok=True)
    (state / "rows").write_text(f"the state of checkpoint {number}")
    return StepSnapshot(
        SOURCE,
        CheckpointId(number),
        Generation(1),
        BatchId(number - 1),
        offsets={"0": json.dumps({"sequence": number * ROWS})},
        state=stored_tree(store.blobs(Generation(1)), state, {}),
    )


def stage_parquet(
    prepared: PreparedPipeline, store: PipelineStore, sink: OpenSink, name: SinkId, number: int
) -> Committable:
    """Stage ten rows as Spark would: a Parquet file beside the table, and its schema."""
    root, batch = prepared.table(name), number - 1
    place = root / "_cutwater" / store.pipeline / name / "g000001" / f"b{batch:012d}" / "hand"
    place.mkdir(parents=True)
    file = place / "part-0.parquet"
    values = list(range(batch * ROWS, number * ROWS))
    pq.write_table(pa.table({"value": pa.array(values, pa.int64())}), file)
    data = file.read_bytes()
    rows = BlobRef(file.relative_to(root).as_posix(), len(data), hashlib.sha256(data).hexdigest())
    schema = cast(Any, sink)._files.write_schema(_SCHEMA, Generation(1))
    staged = Committable(name, Generation(1), BatchId(batch), ROWS, (schema, rows))
    if isinstance(sink, ShowingSink):
        sink.show(grant_shows(store.pipeline, Slot(1), Generation(1)), staged)
    return staged
