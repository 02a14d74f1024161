"""Random values of everything that is stored, and one cut that has something in every field."""

from enum import Enum
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from msgspec import structs

from cutwater.ids import (
    BatchId,
    ChannelId,
    CheckpointId,
    Generation,
    InputId,
    PipelineId,
    SinkId,
    Slot,
    StepId,
)
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    RecordedEvent,
    StepSnapshot,
)
from cutwater.protocol.decisions import Claim, Decision, LogEntry
from cutwater.protocol.evolution.identity import (
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
)
from cutwater.protocol.messages import Event, Place
from cutwater.protocol.step.aligner_events import Cause
from cutwater.store.records.codecs import Attempt, Committed
from cutwater.store.records.reports import AttemptReport, AttemptStatus, RecoveryReport, StepReport
from cutwater.store.records.requests import Abort, Answer, AnswerState, Request, RequestKind
from cutwater.store.records.starts import SourceStart
from cutwater.store.records.targets import Origin, SinkTargets, StoredTarget

PIPELINE = PipelineId("0b9c4a52-6f0e-4d7c-9a53-2f3f4c1d8e77")

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

STEADY = settings(derandomize=True, database=None, deadline=None, max_examples=100)
"""The same examples every time."""

names = st.text(max_size=8) | st.sampled_from(["orders", "0:orders", ":", "é/ü", '"', "\0"])
counts = st.integers(0, 2**63 - 1) | st.just(2**64 - 1)
numbers = st.integers(1, 10**12)
batches = st.integers(-1, 2**63 - 1).map(BatchId)
times = st.integers(-(2**62), 2**62)
versions = st.none() | names


def tuples(one: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(one, max_size=3).map(tuple)


def members(enum: type[E]) -> st.SearchStrategy[E]:
    return st.sampled_from(list(enum))


places = st.builds(Place, counts, counts)
inputs = st.builds(InputId, st.integers(0, 20), names.map(ChannelId))
blobs = st.builds(BlobRef, names, counts, names)
channel_events = st.builds(Event, batches, counts, counts, tuples(names))
recorded = st.builds(RecordedEvent, counts, channel_events, tuples(blobs))
in_flight = st.builds(InFlight, inputs, tuples(recorded))
committables = st.builds(
    Committable, names.map(SinkId), numbers.map(Generation), batches, counts, tuples(blobs)
)
staged = st.dictionaries(names.map(SinkId), tuples(committables), max_size=3)
shown = st.dictionaries(names.map(SinkId), versions, max_size=3)

snapshots = st.builds(
    StepSnapshot,
    step=names.map(StepId),
    checkpoint_id=numbers.map(CheckpointId),
    generation=numbers.map(Generation),
    batch=batches,
    positions=st.dictionaries(inputs, places, max_size=3),
    barriers=st.dictionaries(inputs, places, max_size=3),
    output=places,
    output_batch=batches,
    in_flight=tuples(in_flight),
    offsets=st.dictionaries(names, names, max_size=3),
    watermark_ms=st.none() | times,
    owes_batch=st.booleans(),
    state=tuples(blobs),
    staged=tuples(committables),
    cause=members(Cause),
    finished=st.booleans(),
)

input_identities = st.builds(
    InputIdentity, members(InputKind), names, counts, names, names, names, st.none() | counts
)
operator_identities = st.builds(
    OperatorIdentity,
    names,
    tuples(names),
    tuples(names),
    tuples(names),
    tuples(names),
    tuples(tuples(names)),
)
identities = st.builds(
    StepIdentity,
    inputs=tuples(input_identities),
    columns=tuples(st.tuples(names, names)),
    operators=tuples(operator_identities),
    partitions=st.none() | counts,
    is_query=st.booleans(),
    sources=tuples(names),
    sinks=tuples(names),
    spark=names,
    plan_sha256=names,
)

cuts: st.SearchStrategy[Cut] = st.builds(
    Cut,
    checkpoint_id=numbers.map(CheckpointId),
    generation=numbers.map(Generation),
    kind=members(CheckpointKind),
    snapshots=st.dictionaries(names.map(StepId), snapshots, max_size=3),
    commit=staged,
    carried=staged,
    commit_point=st.booleans(),
    visible=shown,
    restores=shown,
    name=versions,
    started_at_ms=times,
    origin=st.none() | numbers.map(Slot),
    identities=st.dictionaries(names.map(StepId), identities, max_size=3),
)

entries: st.SearchStrategy[LogEntry] = st.builds(
    Claim, numbers.map(Slot), numbers.map(Generation), names
) | st.builds(
    Decision,
    slot=numbers.map(Slot),
    generation=numbers.map(Generation),
    nonce=names,
    kind=members(CheckpointKind),
    checkpoint_id=numbers.map(CheckpointId),
    manifest_sha256=names,
    commit_point=st.booleans(),
    origin=st.none() | numbers.map(Slot),
)

attempts = st.builds(
    Attempt,
    numbers.map(CheckpointId),
    numbers.map(Generation),
    members(CheckpointKind),
    times,
)

commits = st.builds(
    Committed,
    numbers.map(Slot),
    numbers.map(CheckpointId),
    st.dictionaries(names.map(SinkId), names, max_size=3),
)


ORDERS, TOTALS, TABLE = StepId("orders"), StepId("totals"), SinkId("table")
LEFT, RIGHT = InputId(0, ChannelId("orders")), InputId(1, ChannelId("orders"))


def blob(name: str, size_bytes: int = 100) -> BlobRef:
    return BlobRef(f"pipelines/{PIPELINE}/{name}", size_bytes, "5ca1ab1e" * 8)


def committable(batch: int, generation: int = 3) -> Committable:
    files = (blob(f"staged/{generation:012d}/table/{batch:012d}/part-0.parquet"),)
    return Committable(TABLE, Generation(generation), BatchId(batch), 5, files)


def sample_cut(checkpoint_id: int = 12) -> Cut:
    """An unaligned cut of a self-join; no field has its default where another value is legal."""
    number, generation = CheckpointId(checkpoint_id), Generation(3)
    source = StepSnapshot(
        step=ORDERS,
        checkpoint_id=number,
        generation=generation,
        batch=BatchId(8),
        output=Place(4, 400),
        output_batch=BatchId(7),
        offsets={"orders": '{"partition-0": 17}'},
        state=(blob("blobs/000000000003/aa"),),
        cause=Cause.ALIGNED,
        finished=True,
    )
    overtaken = RecordedEvent(
        3, Event(BatchId(7), 9, 100, ("part-3.parquet",)), (blob("blobs/000000000003/bb"),)
    )
    joined = StepSnapshot(
        step=TOTALS,
        checkpoint_id=number,
        generation=generation,
        batch=BatchId(5),
        positions={LEFT: Place(3, 300), RIGHT: Place(4, 400)},
        barriers={LEFT: Place(4, 400), RIGHT: Place(4, 400)},
        output=Place(6, 60),
        output_batch=BatchId(5),
        in_flight=(InFlight(LEFT, (overtaken,)),),
        watermark_ms=1_700_000_000_000,
        owes_batch=True,
        state=(blob("blobs/000000000002/cc", 0),),
        staged=(committable(4), committable(5)),
        cause=Cause.TIMEOUT,
    )
    return Cut(
        checkpoint_id=number,
        generation=generation,
        kind=CheckpointKind.REWIND,
        snapshots={TOTALS: joined, ORDERS: source},
        commit={TABLE: ()},
        carried={TABLE: (committable(4), committable(5))},
        commit_point=False,
        visible={TABLE: "7", SinkId("Übersicht"): None},
        restores={TABLE: "7"},
        name="before-upgrade",
        started_at_ms=1_700_000_000_123,
        origin=Slot(9),
    )


def sample_identities() -> dict[StepId, StepIdentity]:
    """What the steps of `sample_cut` are; no field has its default."""
    orders = InputIdentity(
        InputKind.SOURCE, "orders", 0, "FileSource", "FileSource[in]", "5ca1ab1e" * 8, 0
    )
    join = OperatorIdentity(
        "Join", ("(id = id)",), ("",), ("Inner",), ("all",), (("orders",), ("orders",))
    )
    return {
        ORDERS: StepIdentity(
            inputs=(orders, InputIdentity(InputKind.PULSE, "pulse")),
            columns=(("id", "bigint"), ("at", "timestamp")),
            sources=("orders",),
            spark="4.3.0",
            plan_sha256="c0ffee00" * 8,
        ),
        TOTALS: StepIdentity(
            inputs=(
                InputIdentity(InputKind.CHANNEL, "orders"),
                InputIdentity(InputKind.CHANNEL, "orders", 1),
            ),
            columns=(("id", "bigint"),),
            operators=(join,),
            partitions=8,
            sinks=("table",),
            spark="4.3.0",
            plan_sha256="c0ffee01" * 8,
        ),
    }


def sample_kafka_identities() -> dict[StepId, StepIdentity]:
    """What a step is that reads Kafka."""
    place, topics = "kafka[orders]", (("orders", "Xo8OYvFuQyGXjWkqJ3hB2g"),)
    source = InputIdentity(
        InputKind.SOURCE, "orders", 0, "kafka", place, "5ca1ab1e" * 8, 0, "broker:9092", topics
    )
    return {ORDERS: StepIdentity(inputs=(source,), sources=("orders",), spark="4.3.0")}


def sample_start() -> SourceStart:
    return SourceStart('{"orders":{"0":12}}', (("orders", "u2yXlL1sTmG0YEvFCVD3bQ"),))


def sample_claim(slot: int = 1, generation: int = 3, nonce: str = "host-1/42") -> Claim:
    return Claim(Slot(slot), Generation(generation), nonce)


def sample_decision(slot: int = 2, nonce: str = "host-1/43") -> Decision:
    return Decision(
        slot=Slot(slot),
        generation=Generation(3),
        nonce=nonce,
        kind=CheckpointKind.SAVEPOINT,
        checkpoint_id=CheckpointId(12),
        manifest_sha256="5ca1ab1e" * 8,
        commit_point=True,
        origin=None,
    )


def sample_attempt(checkpoint_id: int = 12, generation: int = 3) -> Attempt:
    return Attempt(
        CheckpointId(checkpoint_id),
        Generation(generation),
        CheckpointKind.FULL,
        1_700_000_000_123,
    )


def sample_committed(slot: int = 2, version: str = "7") -> Committed:
    versions = {TABLE: version, SinkId("Übersicht"): "2026"}
    return Committed(Slot(slot), CheckpointId(12), versions)


def sample_report() -> AttemptReport:
    return AttemptReport(
        checkpoint_id=CheckpointId(12),
        generation=Generation(3),
        status=AttemptStatus.FAILED,
        name="before-upgrade",
        started_at_ms=1_700_000_000_123,
        duration_ms=250,
        committed_ms=300,
        unaligned=True,
        commit_point=True,
        uploaded_bytes=1,
        state_bytes=2,
        in_flight_bytes=3,
        failure="a step could not store its snapshot",
        steps={
            ORDERS: StepReport(
                start_delay_ms=1,
                alignment_ms=2,
                sync_ms=3,
                async_ms=4,
                end_to_end_ms=5,
                uploaded_bytes=6,
                state_bytes=7,
                in_flight_bytes=8,
            )
        },
    )


def sample_recovery() -> RecoveryReport:
    return RecoveryReport(
        generation=Generation(3),
        checkpoint_id=CheckpointId(12),
        started_at_ms=1_700_000_000_123,
        reason="step totals failed",
        choose_ms=1,
        commit_replay_ms=2,
        fetch_ms=3,
        start_ms=4,
        first_batch_ms=5,
        repeated_commits=6,
        state_bytes=7,
    )


def sample_request() -> Request:
    return Request(
        token="5ca1ab1e",
        kind=RequestKind.STOP,
        holder="host-1/42",
        asked_by="process 7 on host-2",
        asked_at_ms=1_700_000_000_123,
        expires_at_ms=1_700_000_600_123,
        full=True,
        name="before-upgrade",
        drain=True,
    )


def sample_abort() -> Request:
    return structs.replace(
        sample_request(),
        kind=RequestKind.ABORT,
        full=False,
        name=None,
        drain=False,
        abort=Abort(checkpoint_id=CheckpointId(12), reason="Der Eimer zieht um; größer"),
    )


def sample_answer() -> Answer:
    return Answer(
        token="5ca1ab1e",
        state=AnswerState.DONE,
        holder="host-1/42",
        answered_at_ms=1_700_000_000_456,
        message="all is well",
        report=sample_report(),
    )


def sample_targets() -> SinkTargets:
    return {
        TABLE: StoredTarget("delta", "/data/table", {"partition_by": ("day", "é")}),
        SinkId("Übersicht"): StoredTarget("delta", "s3://bucket/overview"),
    }


def sample_origin() -> Origin:
    return Origin(
        PIPELINE, "orders", "file:///data/store", CheckpointId(12), (*sample_targets().values(),)
    )
