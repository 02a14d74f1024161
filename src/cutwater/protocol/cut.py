"""The cut: one snapshot per step, one barrier place per channel, and the equation between them.

`faults` is the cut equation (PROTOCOL.md section 8). For every channel: the barrier's place is the
number of Events of batches up to the producer's snapshot; for every consumer: its position plus
the Events recorded in flight is that same place. The coordinator refuses an attempt that breaks
the equation, whatever the reason; the simulator treats a refusal as a defect. A streaming query
that has committed a batch has files, so a snapshot without files is refused too.
Upholds I3, I4 and I5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, InputId, SinkId, Slot, StepId
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.messages import Event, Place
from cutwater.protocol.step.aligner_events import Cause
from cutwater.protocol.topology import StepSpec, Topology


class CheckpointKind(Enum):
    """The kind of checkpoint.

    CHECKPOINT: for recovery; may be incremental and unaligned; pruned by retention.
    FULL: the same, but self-contained and therefore aligned.
    SAVEPOINT: named, self-contained, belongs to the user, never pruned.
    REWIND: an older cut made current again.

    The values are what a store holds.
    """

    CHECKPOINT = "checkpoint"
    FULL = "full"
    SAVEPOINT = "savepoint"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, order=True)
class BlobRef:
    """A durable object: its name, and the size and hash that verify it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One in-flight Event: its ordinal, the Event, and the stored copy of its rows."""

    position: int
    event: Event
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True)
class InFlight:
    """The in-flight Events of one input, in order, from the step's position to the barrier."""

    input: InputId
    events: tuple[RecordedEvent, ...]


@dataclass(frozen=True, slots=True)
class Committable:
    """What a sink's writer staged in one batch: files outside scratch, ready to be committed.

    A committable belongs to a generation and a batch, never to an attempt (rule F8).
    """

    sink: SinkId
    generation: Generation
    batch: BatchId
    rows: int
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """One step's part of a checkpoint. Everything in it belongs to one instant (I5).

    Attributes:
        batch: The last batch appended before the barrier, `NO_BATCH` for none.
        output: The place of the step's own barrier in its output.
        output_batch: The batch of the last Event before `output` in this generation, or
            `NO_BATCH`.
        in_flight: What lies between positions and barriers.
        offsets: Positions in outside streams, per stream and partition, as opaque text;
            `NO_OFFSET` for a stream that starts after this snapshot.
        owes_batch: Whether a batch without new data is due (rule F22).
        staged: What the sink's writer staged and no decided cut holds yet.
        cause: Why the barrier was emitted.
        finished: Whether the step had reached its end of input.
    """

    step: StepId
    checkpoint_id: CheckpointId
    generation: Generation
    batch: BatchId
    positions: Mapping[InputId, Place] = field(default_factory=dict)
    barriers: Mapping[InputId, Place] = field(default_factory=dict)
    output: Place = Place(0, 0)
    output_batch: BatchId = BatchId(-1)
    in_flight: tuple[InFlight, ...] = ()
    offsets: Mapping[str, str] = field(default_factory=dict)
    watermark_ms: int | None = None
    owes_batch: bool = False
    state: tuple[BlobRef, ...] = ()
    staged: tuple[Committable, ...] = ()
    cause: Cause = Cause.ALIGNED
    finished: bool = False

    @property
    def has_events(self) -> bool:
        return any(part.events for part in self.in_flight)

    @property
    def in_flight_bytes(self) -> int:
        return sum(event.event.size_bytes for part in self.in_flight for event in part.events)

    @property
    def size_bytes(self) -> int:
        """State and in-flight data."""
        return sum(blob.size_bytes for blob in self.state) + self.in_flight_bytes

    @property
    def blobs(self) -> frozenset[BlobRef]:
        recorded = (
            blob for part in self.in_flight for event in part.events for blob in event.blobs
        )
        return frozenset((*self.state, *recorded))


Version = str
"""A sink's name for one of its states, for instance a Delta table version."""

NO_TARGET: Final[Version] = "none"
"""The version of a target that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The global checkpoint: everything that recovery needs, as its manifest describes it.

    Attributes:
        commit: What every sink commits after the decision; for a commit point, one entry per
            sink, empty for a sink that has nothing new.
        carried: What sinks prepared and a later commit point will commit (rule F3).
        visible: The version every sink showed before this decision.
        last_writes: The slot of the last recorded decision that made each sink write; a sink for
            which this is unknown is absent.
        restores: For a rewind: the version to which every sink is rolled back.
        origin: For a rewind: the slot of the cut it makes current again.
        identities: What every step was, so that changed code finds its state (`mapping`); empty
            if unknown.
    """

    checkpoint_id: CheckpointId
    generation: Generation
    kind: CheckpointKind
    snapshots: Mapping[StepId, StepSnapshot]
    commit: Mapping[SinkId, tuple[Committable, ...]] = field(default_factory=dict)
    carried: Mapping[SinkId, tuple[Committable, ...]] = field(default_factory=dict)
    commit_point: bool = True
    visible: Mapping[SinkId, Version | None] = field(default_factory=dict)
    last_writes: Mapping[SinkId, Slot] = field(default_factory=dict)
    restores: Mapping[SinkId, Version | None] = field(default_factory=dict)
    name: str | None = None
    started_at_ms: int = 0
    origin: Slot | None = None
    identities: Mapping[StepId, StepIdentity] = field(default_factory=dict)

    @property
    def in_flight_bytes(self) -> int:
        return sum(snapshot.in_flight_bytes for snapshot in self.snapshots.values())

    @property
    def is_aligned(self) -> bool:
        return not any(snapshot.in_flight for snapshot in self.snapshots.values())

    @property
    def size_bytes(self) -> int:
        """Size over all steps, each counted once."""
        return sum(snapshot.size_bytes for snapshot in self.snapshots.values())

    def blobs(self, *, committed: bool) -> frozenset[BlobRef]:
        """Return every object that a restore of this cut needs.

        Once committed, rows belong to the sinks, and only what is still carried must be kept.
        """
        pending = (*self.carried.values(), *(() if committed else self.commit.values()))
        staged = frozenset(
            blob for found in pending for committable in found for blob in committable.blobs
        )
        return staged.union(*(snapshot.blobs for snapshot in self.snapshots.values()))

    @property
    def without_state(self) -> tuple[StepId, ...]:
        """The steps whose snapshots have lost their files, sorted."""
        found = self.snapshots.items()
        return tuple(
            sorted(
                step for step, snapshot in found if lacks_state(snapshot, self.identities.get(step))
            )
        )

    @property
    def stream_positions(self) -> Mapping[str, str]:
        """Positions in all outside streams, by step and stream."""
        return {
            f"{step}/{stream}": offset
            for step, snapshot in sorted(self.snapshots.items())
            for stream, offset in sorted(snapshot.offsets.items())
        }


def faults(topology: Topology, snapshots: Mapping[StepId, StepSnapshot]) -> tuple[str, ...]:
    """Check the cut equation; return one sentence per contradiction."""
    found: list[str] = []
    missing = sorted(topology.participants - set(snapshots))
    unknown = sorted(set(snapshots) - topology.participants)
    found += [f"{step} has no snapshot" for step in missing]
    found += [f"{step} is not a step of this pipeline" for step in unknown]
    if found:
        return tuple(found)
    for spec in topology.steps:
        snapshot = snapshots[spec.step]
        if snapshot.output_batch > snapshot.batch:
            found.append(
                f"{spec.step}: batch {snapshot.output_batch} lies before the barrier but the "
                f"snapshot is of batch {snapshot.batch}"
            )
        unbegun = snapshot.batch == NO_BATCH and (spec.pinned_start or snapshot.finished)
        if spec.is_source and not snapshot.offsets and not unbegun:
            found.append(f"{spec.step}: a source's snapshot has no offsets")
        if any(committable.batch > snapshot.batch for committable in snapshot.staged):
            found.append(f"{spec.step}: output of a batch after the snapshot is staged in it")
        if lacks_state(snapshot, spec.identity):
            found.append(
                f"{spec.step}: batch {snapshot.batch} is committed and no file of its query is "
                "stored"
            )
        found += _input_faults(spec, snapshots)
    return tuple(found)


def lacks_state(snapshot: StepSnapshot, identity: StepIdentity | None) -> bool:
    """Return whether a snapshot has lost its files: a query has at least the logs of its batches.

    Without an identity the answer is False.
    """
    is_query = identity is not None and identity.is_query
    return is_query and snapshot.batch != NO_BATCH and not snapshot.state


def _input_faults(spec: StepSpec, snapshots: Mapping[StepId, StepSnapshot]) -> list[str]:
    found = []
    snapshot = snapshots[spec.step]
    recorded = {part.input: part.events for part in snapshot.in_flight}
    if len(recorded) != len(snapshot.in_flight):
        found.append(f"{spec.step}: in-flight data of one input is recorded twice")
    for source in spec.inputs:
        expected = snapshots[StepId(source.channel)].output.position
        events = recorded.pop(source, ())
        if source not in snapshot.positions or source not in snapshot.barriers:
            found.append(f"{spec.step}: nothing is known of input {source}")
            continue
        position, barrier = snapshot.positions[source].position, snapshot.barriers[source]
        if barrier.position != expected:
            found.append(
                f"{spec.step}: barrier of input {source} at {barrier}, but its producer put it "
                f"at @{expected}"
            )
        ordinals = [event.position for event in events]
        if position > expected or ordinals != list(range(position, expected)):
            found.append(
                f"{spec.step}: input {source} at @{position} with {len(events)} in flight does "
                f"not reach the barrier at @{expected}"
            )
    found += [f"{spec.step}: in-flight data of unknown input {source}" for source in recorded]
    return found
