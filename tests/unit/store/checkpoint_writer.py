"""Writes the checkpoints of a pipeline into a store, decision by decision, without a driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.unit.store.cuts import PIPELINE

from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, SinkId, Slot, StepId
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    RecordedEvent,
    StepSnapshot,
)
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.messages import Event, Place
from cutwater.protocol.step.aligner_events import Cause
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt, Committed
from cutwater.store.records.envelope import digest
from cutwater.store.records.reports import AttemptReport, AttemptStatus, StepReport

ORDERS, TOTALS, TABLE = StepId("orders"), StepId("totals"), SinkId("table")
INPUT = InputId(0, ChannelId("orders"))
BEGAN_MS = 1_700_000_000_000
ONE = Generation(1)


def step_report(**changes: int) -> StepReport:
    values = dict.fromkeys(StepReport.__struct_fields__, 1)
    return StepReport(**(values | changes))


def attempt_report(number: int, **changes: object) -> AttemptReport:
    values: dict[str, object] = {
        "checkpoint_id": CheckpointId(number),
        "generation": ONE,
        "status": AttemptStatus.COMPLETED,
        "name": None,
        "started_at_ms": BEGAN_MS + number * 1000,
        "duration_ms": 250,
        "committed_ms": 300,
        "unaligned": False,
        "commit_point": True,
        "uploaded_bytes": 11,
        "state_bytes": 22,
        "in_flight_bytes": 0,
        "failure": "",
        "steps": {ORDERS: step_report(alignment_ms=7)},
    }
    return AttemptReport(**(values | changes))  # type: ignore[arg-type]


@dataclass
class CheckpointWriter:
    """Writes checkpoints of a pipeline with a source and one step, in one generation."""

    backend: Backend
    store: PipelineStore = field(init=False)
    paths: PipelinePaths = field(init=False)

    def __post_init__(self) -> None:
        """Claim the pipeline."""
        self.store = PipelineStore.of(self.backend, PIPELINE)
        self.paths = PipelinePaths(PIPELINE)
        self.claim(ONE)

    def claim(self, generation: Generation) -> None:
        slot = Slot(self.store.log.read().last_slot + 1)
        self.store.log.create(Claim(slot, generation, f"claim {generation}"))

    def blob(self, content: str, generation: Generation = ONE) -> BlobRef:
        data = content.encode()
        path = self.paths.blob(generation, digest(data))
        self.backend.put(path, data)
        return BlobRef(path, len(data), digest(data))

    def attempt(self, number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> None:
        taken = Attempt(CheckpointId(number), ONE, kind, BEGAN_MS + number * 1000)
        assert self.store.attempts.reserve(taken)

    def cut(self, number: int, kind: CheckpointKind, name: str | None, *, in_flight: bool) -> Cut:
        source = StepSnapshot(
            ORDERS,
            CheckpointId(number),
            ONE,
            BatchId(number),
            output=Place(number, 10 * number),
            offsets={"orders": f'{{"at":{number}}}'},
            state=(self.blob(f"orders {number}"), self.blob("shared")),
        )
        overtaken: tuple[InFlight, ...] = ()
        if in_flight:
            event = Event(BatchId(number), 3, 30, ("part",))
            recorded = RecordedEvent(number - 1, event, (self.blob(f"in flight {number}"),))
            overtaken = (InFlight(INPUT, (recorded,)),)
        totals = StepSnapshot(
            TOTALS,
            CheckpointId(number),
            ONE,
            BatchId(number - 1),
            positions={INPUT: Place(number - in_flight, 10 * number)},
            barriers={INPUT: Place(number, 10 * number)},
            in_flight=overtaken,
            watermark_ms=BEGAN_MS + number,
            state=(self.blob("x" * number),),
            cause=Cause.TIMEOUT if in_flight else Cause.ALIGNED,
        )
        return Cut(
            CheckpointId(number),
            ONE,
            kind,
            {ORDERS: source, TOTALS: totals},
            commit={TABLE: ()},
            name=name,
            started_at_ms=BEGAN_MS + number * 1000,
        )

    def decide(
        self,
        number: int,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        *,
        name: str | None = None,
        in_flight: bool = False,
        commit: bool = True,
        origin: int | None = None,
        rows: int = 0,
    ) -> Cut:
        """Write a checkpoint as a driver does: attempt, manifest, decision, commit."""
        self.attempt(number, kind)
        cut = self.cut(number, kind, name, in_flight=in_flight)
        if rows:
            cut = replace(
                cut, commit={TABLE: (Committable(TABLE, ONE, BatchId(number), rows, ()),)}
            )
        sha256 = self.store.manifests.publish(cut)
        slot = Slot(self.store.log.read().last_slot + 1)
        self.store.log.create(
            Decision(
                slot,
                ONE,
                f"decision {number}",
                kind,
                cut.checkpoint_id,
                sha256,
                True,
                None if origin is None else Slot(origin),
            )
        )
        if commit:
            versions: Mapping[SinkId, str] = {TABLE: str(number)}
            self.store.commits.record(Committed(slot, cut.checkpoint_id, versions))
        return cut
