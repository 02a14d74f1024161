"""Small builders for the unit tests of the protocol, and the check that a refusal changes nothing.

Everything here makes values or drives a machine to a named point; no test is hidden in it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar, overload

import pytest

from cutwater.errors import ProtocolViolation
from cutwater.ids import (
    BatchId,
    ChannelId,
    CheckpointId,
    Generation,
    InputId,
    PipelineId,
    ReaderId,
    SinkId,
    Slot,
    StepId,
)
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    RecordedEvent,
    StepSnapshot,
)
from cutwater.protocol.decisions import Claim, Decision, DecisionOutcome
from cutwater.protocol.messages import START, Barrier, Event, Flag, Place
from cutwater.protocol.options import CheckpointOptions, UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    AlignerCommand,
    AlignerEvent,
    BarrierSeen,
    Cause,
    EndSeen,
)
from cutwater.protocol.step.events import BatchAppended, BatchCommitted, StepCommand, StepEvent
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec, Topology, inputs_of

GENERATION = Generation(3)
PIPELINE = PipelineId("5ca1ab1e")
EVENT_BYTES = 10

A, B = inputs_of("a", "b")

ALIGNED_ONLY = UnalignedOptions(enabled=False)
PATIENT = UnalignedOptions(alignment_timeout_ms=100)
FORCED = UnalignedOptions(forced=True)

ORDERS, TABLE = StepId("orders"), StepId("table")
LEFT, RIGHT = StepId("left"), StepId("right")
T, T1, T2 = SinkId("t"), SinkId("t1"), SinkId("t2")
FROM_ORDERS = inputs_of("orders")[0]

LINE = Topology((StepSpec(ORDERS), StepSpec(TABLE, inputs_of("orders"), T)))
"""A source and one step with a sink."""

FAN = Topology(
    (
        StepSpec(ORDERS),
        StepSpec(LEFT, inputs_of("orders"), T1),
        StepSpec(RIGHT, inputs_of("orders"), T2),
    )
)
"""A source and two steps, each with a sink."""


# -- driving machines

K = TypeVar("K")


@overload
def tell(machine: Aligner, *told: AlignerEvent) -> tuple[AlignerCommand, ...]: ...
@overload
def tell(machine: Step, *told: StepEvent) -> tuple[StepCommand, ...]: ...
@overload
def tell(
    machine: Coordinator, *told: events.CoordinatorEvent
) -> tuple[events.CoordinatorCommand, ...]: ...
def tell(machine: Any, *told: Any) -> tuple[Any, ...]:
    """Tell the machine all of it and return all it answered, in order."""
    return tuple(command for event in told for command in machine.handle(event))


def only(kind: type[K], commands: tuple[object, ...]) -> tuple[K, ...]:
    """Keep the commands of one kind."""
    return tuple(command for command in commands if isinstance(command, kind))


def state_of(thing: object) -> object:
    """Take everything a machine remembers apart into plain values that can be compared."""
    plain = thing
    if isinstance(thing, Mapping):
        plain = [(state_of(key), state_of(value)) for key, value in thing.items()]
    elif isinstance(thing, set | frozenset):
        plain = sorted((state_of(entry) for entry in thing), key=repr)
    elif isinstance(thing, tuple | list | deque):
        plain = [state_of(entry) for entry in thing]
    elif not isinstance(thing, None | bool | int | str | bytes | Enum) and not callable(thing):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*slots, *getattr(thing, "__dict__", ())]
        plain = [(name, state_of(getattr(thing, name))) for name in names if name != "_handlers"]
    return plain


def refusal(machine: object, act: Callable[[], object]) -> str:
    """Expect a `ProtocolViolation` that leaves the machine as it was; return its message."""
    before = state_of(machine)
    with pytest.raises(ProtocolViolation) as caught:
        act()
    assert state_of(machine) == before
    return caught.value.message


@overload
def refusal_of(machine: Aligner, event: AlignerEvent) -> str: ...
@overload
def refusal_of(machine: Step, event: StepEvent) -> str: ...
@overload
def refusal_of(machine: Coordinator, event: events.CoordinatorEvent) -> str: ...
def refusal_of(machine: Any, event: Any) -> str:
    """Expect the machine to refuse the event and to stay as it was; return the message."""
    return refusal(machine, lambda: machine.handle(event))


# -- messages and channels


def barrier(
    checkpoint_id: int = 1,
    flags: Flag = Flag.NONE,
    *,
    started_at_ms: int = 0,
    epoch: Generation = GENERATION,
) -> Barrier:
    return Barrier(CheckpointId(checkpoint_id), epoch, flags, started_at_ms)


def cancel(checkpoint_id: int = 1) -> Barrier:
    return barrier(checkpoint_id).cancelled()


def event(batch: int, *, rows: int = 1, size_bytes: int = EVENT_BYTES) -> Event:
    return Event(BatchId(batch), rows, size_bytes, (f"{batch}.parquet",))


def place(position: int) -> Place:
    """The place behind that many Events of `EVENT_BYTES` each."""
    return Place(position, position * EVENT_BYTES)


def reader(step: str = "totals", ordinal: int = 0) -> ReaderId:
    return ReaderId(StepId(step), InputId(ordinal, ChannelId("orders")))


def channel(*readers: ReaderId, events_held: int = 0) -> ChannelLog:
    """A channel read by these readers from the start, with Events of batches 0, 1, ..."""
    log = ChannelLog(ChannelId("orders"), dict.fromkeys(readers, START))
    for batch in range(events_held):
        log.append(event(batch))
    return log


# -- aligners


def aligner(
    *sources: InputId,
    options: UnalignedOptions = ALIGNED_ONLY,
    is_sink: bool = False,
    max_concurrent: int = 1,
) -> Aligner:
    """An aligner that stands at the start of all these inputs."""
    return Aligner(
        dict.fromkeys(sources, START),
        options,
        generation=GENERATION,
        is_sink=is_sink,
        max_concurrent=max_concurrent,
    )


def seen(
    source: InputId,
    position: int,
    checkpoint_id: int = 1,
    flags: Flag = Flag.NONE,
    *,
    started_at_ms: int = 0,
) -> BarrierSeen:
    what = barrier(checkpoint_id, flags, started_at_ms=started_at_ms)
    return BarrierSeen(source, what, place(position))


def end_seen(source: InputId, position: int) -> EndSeen:
    return EndSeen(source, place(position))


# -- steps


def source_step(
    options: CheckpointOptions | None = None,
    *,
    pinned_start: bool = True,
    restored: Restored | None = None,
) -> Step:
    spec = StepSpec(ORDERS, pinned_start=pinned_start)
    return Step(spec, options or CheckpointOptions(), GENERATION, restored)


def consumer_step(
    *sources: InputId,
    unaligned: UnalignedOptions = ALIGNED_ONLY,
    is_sink: bool = False,
    max_concurrent: int = 1,
    restored: Restored | None = None,
) -> Step:
    spec = StepSpec(TABLE, sources, T, is_sink=is_sink)
    options = CheckpointOptions(unaligned=unaligned, max_concurrent=max_concurrent)
    return Step(spec, options, GENERATION, restored)


def appended(
    batch: int,
    moved: Mapping[InputId, int] | None = None,
    *,
    rows: int = 1,
    staged: int = 0,
    owes_batch: bool = False,
    watermark_ms: int | None = None,
) -> BatchAppended:
    """A batch that ends at these positions, or without any a source's batch.

    A batch without rows has no Event.
    """
    return BatchAppended(
        BatchId(batch),
        event(batch, rows=rows) if rows else None,
        {source: place(position) for source, position in (moved or {}).items()},
        None if moved else {"kafka/0": str(batch)},
        watermark_ms,
        owes_batch,
        (committable(T, batch),) * staged,
    )


def committed(batch: int) -> BatchCommitted:
    return BatchCommitted(BatchId(batch))


# -- snapshots and cuts


def blob(name: str, size_bytes: int = 1) -> BlobRef:
    return BlobRef(name, size_bytes, f"sha-{name}")


def committable(sink: SinkId, batch: int) -> Committable:
    return Committable(sink, GENERATION, BatchId(batch), 1, (blob(f"{sink}-{batch}"),))


def in_flight(source: InputId, *positions: int) -> InFlight:
    return InFlight(
        source,
        tuple(
            RecordedEvent(
                position, event(position), (blob(f"{source.channel}-{position}", EVENT_BYTES),)
            )
            for position in positions
        ),
    )


def source_snapshot(checkpoint_id: int = 1, *, batch: int = 0) -> StepSnapshot:
    """The snapshot of `orders` after `batch`, with one Event per batch."""
    return StepSnapshot(
        ORDERS,
        CheckpointId(checkpoint_id),
        GENERATION,
        BatchId(batch),
        output=place(batch + 1),
        output_batch=BatchId(batch),
        offsets={"kafka/0": str(batch)},
        state=(blob(f"orders-{batch}", 5),),
    )


def sink_snapshot(
    checkpoint_id: int = 1,
    *,
    step: StepId = TABLE,
    batch: int = 0,
    read: int | None = None,
    staged: tuple[Committable, ...] = (),
) -> StepSnapshot:
    """The snapshot of a reader of `orders` at a barrier behind `batch`; `read` of it is read.

    What it has not read it has recorded in flight.
    """
    barrier_at = batch + 1
    position = barrier_at if read is None else read
    recorded = in_flight(FROM_ORDERS, *range(position, barrier_at))
    return StepSnapshot(
        step,
        CheckpointId(checkpoint_id),
        GENERATION,
        BatchId(batch),
        positions={FROM_ORDERS: place(position)},
        barriers={FROM_ORDERS: place(barrier_at)},
        in_flight=(recorded,) if recorded.events else (),
        state=(blob(f"{step}-{batch}", 7),),
        staged=staged,
        cause=Cause.TIMEOUT if recorded.events else Cause.ALIGNED,
    )


def line_snapshots(checkpoint_id: int = 1, *, batch: int = 0) -> dict[StepId, StepSnapshot]:
    """A consistent cut through `LINE`."""
    return {
        ORDERS: source_snapshot(checkpoint_id, batch=batch),
        TABLE: sink_snapshot(checkpoint_id, batch=batch, staged=(committable(T, batch),)),
    }


def fan_snapshots(
    checkpoint_id: int = 1, *, batch: int = 0, right_read: int | None = None
) -> dict[StepId, StepSnapshot]:
    """A consistent cut through `FAN`; `right` may have overtaken."""
    return {
        ORDERS: source_snapshot(checkpoint_id, batch=batch),
        LEFT: sink_snapshot(
            checkpoint_id, step=LEFT, batch=batch, staged=(committable(T1, batch),)
        ),
        RIGHT: sink_snapshot(
            checkpoint_id,
            step=RIGHT,
            batch=batch,
            read=right_read,
            staged=(committable(T2, batch),),
        ),
    }


def cut(
    checkpoint_id: int = 1,
    *,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    commit_point: bool = True,
    batch: int = 0,
) -> Cut:
    """A cut through `LINE`, with one committable to commit or to carry."""
    staged: Mapping[SinkId, tuple[Committable, ...]] = {T: (committable(T, batch),)}
    nothing: Mapping[SinkId, tuple[Committable, ...]] = {T: ()}
    return Cut(
        CheckpointId(checkpoint_id),
        GENERATION,
        kind,
        {
            step: replace(line_snapshot, staged=())
            for step, line_snapshot in line_snapshots(checkpoint_id, batch=batch).items()
        },
        commit=staged if commit_point else nothing,
        carried=nothing if commit_point else staged,
        commit_point=commit_point,
        visible={T: f"v{checkpoint_id - 1}"},
    )


# -- the decision log


def claim(slot: int, generation: int = 1, nonce: str = "theirs") -> Claim:
    return Claim(Slot(slot), Generation(generation), nonce)


def decision(
    slot: int,
    checkpoint_id: int | None = None,
    *,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    commit_point: bool = True,
    origin: int | None = None,
) -> Decision:
    """A decision; without `checkpoint_id` it has the number of its slot."""
    return Decision(
        Slot(slot),
        GENERATION,
        f"nonce-{slot}",
        kind,
        CheckpointId(slot if checkpoint_id is None else checkpoint_id),
        f"sha-{slot}",
        commit_point,
        None if origin is None else Slot(origin),
    )


# -- coordinators


def coordinator(
    options: CheckpointOptions | None = None,
    topology: Topology = LINE,
    standing: events.Standing | None = None,
) -> Coordinator:
    """A coordinator whose log ends with its claim in slot 1."""
    return Coordinator(
        PIPELINE,
        topology,
        options or CheckpointOptions(),
        GENERATION,
        standing or events.Standing(slot=Slot(1)),
    )


CONCURRENT = CheckpointOptions(
    max_concurrent=2, unaligned=ALIGNED_ONLY, interval_ms=10, min_pause_ms=1
)
"""Options under which two attempts are open at once, 10 ms apart."""


def opened(now_ms: int = 0) -> tuple[events.Clock, events.GarbageCollected]:
    """How a generation begins: what a predecessor left behind is cleaned up, then it starts."""
    return events.Clock(now_ms), events.GarbageCollected(now_ms)


def reserved(checkpoint_id: int = 1, now_ms: int = 0, *, won: bool = True) -> events.Reserved:
    return events.Reserved(CheckpointId(checkpoint_id), won, now_ms)


def acknowledged(snapshot: StepSnapshot, now_ms: int = 0) -> events.Acknowledged:
    return events.Acknowledged(snapshot, now_ms)


def acknowledgements(
    checkpoint_id: int = 1,
    now_ms: int = 0,
    *,
    batch: int = 0,
    snapshots: Mapping[StepId, StepSnapshot] | None = None,
) -> tuple[events.Acknowledged, ...]:
    """What all steps of `LINE` acknowledge, or these snapshots."""
    given = snapshots or line_snapshots(checkpoint_id, batch=batch)
    return tuple(acknowledged(snapshot, now_ms) for snapshot in given.values())


def published(checkpoint_id: int = 1, now_ms: int = 0) -> events.Published:
    return events.Published(CheckpointId(checkpoint_id), f"sha-{checkpoint_id}", now_ms)


def outcome(
    checkpoint_id: int = 1,
    result: DecisionOutcome = DecisionOutcome.WRITTEN,
    now_ms: int = 0,
) -> events.DecisionMade:
    return events.DecisionMade(CheckpointId(checkpoint_id), result, now_ms)


def sink_committed(slot: int = 2, now_ms: int = 0, sink: SinkId = T) -> events.SinkCommitted:
    return events.SinkCommitted(Slot(slot), sink, f"v{slot}", now_ms)


def sink_failed(slot: int = 2, now_ms: int = 0, sink: SinkId = T) -> events.SinkFailed:
    return events.SinkFailed(Slot(slot), sink, "table is locked", now_ms)


def recorded(slot: int = 2, now_ms: int = 0) -> events.CommitRecorded:
    return events.CommitRecorded(Slot(slot), now_ms)


def savepoint(name: str = "before-upgrade", *, drain: bool = False) -> CheckpointRequest:
    return CheckpointRequest(CheckpointKind.SAVEPOINT, name, drain)


def requested(request: CheckpointRequest | None = None, now_ms: int = 0) -> events.Requested:
    return events.Requested(request or CheckpointRequest(), now_ms)


def collecting(options: CheckpointOptions | None = None, topology: Topology = LINE) -> Coordinator:
    """A coordinator whose attempt 1, started at 0, waits for acknowledgements."""
    machine = coordinator(options, topology)
    tell(machine, *opened(), reserved())
    return machine


def publishing(options: CheckpointOptions | None = None) -> Coordinator:
    """A coordinator whose attempt 1 waits for its manifest."""
    machine = collecting(options)
    tell(machine, *acknowledgements())
    return machine


def deciding(options: CheckpointOptions | None = None) -> Coordinator:
    """A coordinator whose attempt 1 waits for the outcome of its decision."""
    machine = publishing(options)
    tell(machine, published())
    return machine


def committing(options: CheckpointOptions | None = None) -> Coordinator:
    """A coordinator whose attempt 1 is decided in slot 2 and whose sink has not answered."""
    machine = deciding(options)
    tell(machine, outcome())
    return machine


def completed(options: CheckpointOptions | None = None) -> Coordinator:
    """A coordinator whose attempt 1 is over, committed and cleaned up after, all at 0."""
    machine = committing(options)
    tell(machine, sink_committed(), recorded(), events.GarbageCollected(0))
    return machine


def two_collecting(options: CheckpointOptions = CONCURRENT) -> Coordinator:
    """A coordinator whose attempts 1 (started at 0) and 2 (at 10) both collect."""
    machine = collecting(options)
    tell(machine, events.Clock(10), reserved(2, 10))
    return machine
