"""The status of a running pipeline: steps, backlogs, checkpoints, and the times of each step.

A status is an immutable value, which any thread may keep; the supervisor makes a new one on each
request. `StepTimes` measures a step's part of each open attempt: the step writes it under its lock,
and the thread that stores its snapshot writes it too. It is read when the step has acknowledged.
Nothing depends on the times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import CheckpointId, Generation, StepId
from cutwater.notebook import table
from cutwater.protocol.cut import StepSnapshot
from cutwater.store.records.reports import AttemptReport, AttemptStatus, RecoveryReport, StepReport


class BarrierAt(StrEnum):
    """The progress of the open attempt's barrier at one step."""

    NOWHERE = "NONE"
    """No attempt is open."""
    AWAITED = "AWAITED"
    """It has not arrived on any input; a source has not emitted it."""
    ALIGNING = "ALIGNING"
    """It has arrived on some input, and has not been emitted."""
    SENT = "SENT"
    """It has been emitted; the step's snapshot is being stored."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """The step's part is durable."""


@dataclass(frozen=True, slots=True)
class AlignmentStatus:
    """The alignment of a step's inputs with the barrier of the open attempt.

    Attributes:
        aligned: The inputs that were read up to their barrier, each as its ordinal and channel.
        waiting: The others.
        held_bytes: What has arrived after the barrier on aligned inputs; it is not read until the
            other inputs are aligned too.
        behind_bytes: What is still to be read before the barriers that have arrived.
        recorded_bytes: What the barrier has overtaken so far; it is stored with the checkpoint.
    """

    aligned: tuple[str, ...]
    waiting: tuple[str, ...]
    held_bytes: int = 0
    behind_bytes: int = 0
    recorded_bytes: int = 0

    @property
    def inputs(self) -> int:
        return len(self.aligned) + len(self.waiting)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a source is behind the end of one partition, when its broker was last asked.

    Attributes:
        source: The source's name in the pipeline.
        position: The next offset to read, after the last batch.
        end: The offset that the next new record gets; with `read_committed`, the first offset of
            the oldest open transaction.
    """

    source: str
    topic: str
    partition: int
    position: int
    end: int

    @property
    def records(self) -> int:
        """The lag in offsets: compaction and transactions leave offsets without a record."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step.

    Attributes:
        name: Its name.
        kind: `query` or `batch`.
        batch: The last batch it appended; -1 for none.
        rows: How many rows it has emitted in this generation.
        rows_per_second: The same over the last seconds.
        finished: Whether it has ended by itself.
        watermark_ms: Its event-time watermark.
        late_rows: How many rows its stateful operators have dropped in this generation because
            the watermark had passed them, as Spark counts them.
        barrier: The progress of the open attempt's barrier at this step.
        alignment: The alignment of its inputs; None for a source, and without an attempt.
        lag: For each partition of Kafka that it reads, how far it is behind; empty while that is
            not known.
    """

    name: str
    kind: str
    batch: int
    rows: int
    rows_per_second: float
    finished: bool
    watermark_ms: int | None
    late_rows: int = 0
    barrier: BarrierAt = BarrierAt.NOWHERE
    alignment: AlignmentStatus | None = None
    lag: tuple[PartitionLag, ...] = ()

    @property
    def aligned(self) -> str:
        """How many of its inputs are aligned, as text; empty if there is no alignment."""
        found = self.alignment
        return "" if found is None else f"{len(found.aligned)} of {found.inputs}"


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """The lag of one reader of a channel."""

    name: str
    reader: str
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One checkpoint attempt, as it is reported.

    Attributes:
        id: Its number.
        status: `IN_PROGRESS`, `COMPLETED` or `FAILED`.
        duration_ms: From its start to its end, or until now.
        kind: `CHECKPOINT`, `FULL` or `SAVEPOINT`.
        unaligned: Whether a barrier overtook data.
        uploaded_bytes: The bytes newly stored for it.
        state_bytes: All bytes that a restore from it needs.
        in_flight_bytes: The part of these bytes that was in flight.
        commit_point: Whether sinks committed at it.
        failure: Why it failed; empty otherwise.
        started_at_ms: When it began.
        name: The name, if it is a savepoint.
        committed_ms: From its start until all sinks had committed; None if they had nothing to
            do, or have not yet.
        steps: The reports of the steps that have acknowledged.
        generation: The generation that took it.
    """

    id: CheckpointId
    status: str
    duration_ms: int
    kind: str
    unaligned: bool = False
    uploaded_bytes: int = 0
    state_bytes: int = 0
    in_flight_bytes: int = 0
    commit_point: bool = False
    failure: str = ""
    started_at_ms: int = 0
    name: str | None = None
    committed_ms: int | None = None
    steps: Mapping[StepId, StepReport] = field(default_factory=dict)
    generation: Generation = Generation(0)

    def _repr_html_(self) -> str:
        """Render it for a notebook, step by step."""
        title = f"{self.kind.lower()} {self.name or self.id}: {self.status}, {self.duration_ms} ms"
        rows = [
            (
                step,
                report.start_delay_ms,
                report.alignment_ms,
                report.sync_ms,
                report.async_ms,
                report.uploaded_bytes,
                report.state_bytes,
                report.in_flight_bytes,
            )
            for step, report in sorted(self.steps.items())
        ]
        names = ("step", "delay ms", "alignment ms", "sync ms", "async ms")
        sizes = ("uploaded bytes", "state bytes", "in flight bytes")
        failed = f"{title}; {self.failure}" if self.failure else title
        return table(failed, (*names, *sizes), rows)

    def record(self) -> AttemptReport:
        return AttemptReport(
            checkpoint_id=self.id,
            generation=self.generation,
            status=AttemptStatus[self.status],
            name=self.name,
            started_at_ms=self.started_at_ms,
            duration_ms=self.duration_ms,
            committed_ms=self.committed_ms,
            unaligned=self.unaligned,
            commit_point=self.commit_point,
            uploaded_bytes=self.uploaded_bytes,
            state_bytes=self.state_bytes,
            in_flight_bytes=self.in_flight_bytes,
            failure=self.failure,
            steps=dict(self.steps),
        )


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A pipeline at one moment.

    Attributes:
        pipeline: Its name.
        generation: The generation that runs.
        state: `STARTING`, `RUNNING`, `RESTARTING`, `COMMIT_BLOCKED`, `STOPPING`, `FINISHED` or
            `FAILED`.
        steps: Its steps.
        channels: Its channels, one entry per reader.
        checkpoints: The newest attempts, oldest first.
        restarts: How often this process has started a new generation after a failure.
        detail: Why it is in that state; may be empty.
        recovery: The recovery of this generation, phase by phase; None before it runs.
        completed: How many checkpoints this process has completed.
        failed: How many of its attempts have failed.
    """

    pipeline: str
    generation: int
    state: str
    steps: tuple[StepStatus, ...] = ()
    channels: tuple[ChannelStatus, ...] = ()
    checkpoints: tuple[CheckpointReport, ...] = ()
    restarts: int = 0
    detail: str = ""
    recovery: RecoveryReport | None = None
    completed: int = 0
    failed: int = 0

    def _repr_html_(self) -> str:
        """Render steps, backlogs and checkpoints for a notebook."""
        title = f"pipeline {self.pipeline}: {self.state}, generation {self.generation}"
        steps = table(
            f"{title}; {self.detail}" if self.detail else title,
            ("step", "kind", "batch", "rows", "rows/s", "inputs aligned"),
            [
                (
                    step.name,
                    step.kind,
                    step.batch,
                    step.rows,
                    f"{step.rows_per_second:.0f}",
                    step.aligned,
                )
                for step in self.steps
            ],
        )
        channels = table(
            "channels",
            ("channel", "reader", "Events behind", "bytes behind"),
            [
                (channel.name, channel.reader, channel.messages, channel.size_bytes)
                for channel in self.channels
            ],
        )
        checkpoints = table(
            "checkpoints",
            ("id", "kind", "name", "status", "ms", "uploaded bytes", "failure"),
            [
                (
                    checkpoint.id,
                    checkpoint.kind.lower(),
                    checkpoint.name,
                    checkpoint.status,
                    checkpoint.duration_ms,
                    checkpoint.uploaded_bytes,
                    checkpoint.failure,
                )
                for checkpoint in self.checkpoints
            ],
        )
        return steps + channels + checkpoints


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        pipeline: Its name.
        finished: Whether every source had ended and everything was processed; otherwise a stop was
            requested.
        checkpoints: How many checkpoints were completed.
        restarts: How often it restarted after a failure.
        last_checkpoint: The last checkpoint completed in this run.
        problem: Why a stop with a last checkpoint ended without one, or before every sink had
            committed; empty otherwise. Nothing is lost: the next run repeats what is missing.
    """

    pipeline: str
    finished: bool
    checkpoints: int
    restarts: int
    last_checkpoint: CheckpointId | None
    problem: str = ""


@dataclass(slots=True)
class _Times:
    seen_at_ms: int | None = None
    emitted_at_ms: int | None = None
    sync_ms: int = 0
    stored_from_ms: int | None = None
    uploaded_bytes: int = 0
    rows: int | None = None


class StepTimes:
    """The times of one step's open attempts."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._open: dict[CheckpointId, _Times] = {}

    def _of(self, checkpoint_id: CheckpointId) -> _Times:
        return self._open.setdefault(checkpoint_id, _Times())

    def on_seen(self, checkpoint_id: CheckpointId) -> None:
        """Record that a barrier has arrived; only the first arrival counts."""
        times = self._of(checkpoint_id)
        times.seen_at_ms = times.seen_at_ms or self._clock.now_ms()

    def on_emitted(self, checkpoint_id: CheckpointId, rows: int) -> None:
        """Record that the barrier was emitted, after this many rows of the generation."""
        times = self._of(checkpoint_id)
        times.emitted_at_ms = self._clock.now_ms()
        times.rows = rows

    def on_pinned(self, checkpoint_id: CheckpointId, since_ms: int) -> None:
        self._of(checkpoint_id).sync_ms += self._clock.now_ms() - since_ms

    def on_storing(self, checkpoint_id: CheckpointId) -> None:
        self._of(checkpoint_id).stored_from_ms = self._clock.now_ms()

    def on_uploaded(self, checkpoint_id: CheckpointId, size_bytes: int) -> None:
        """Record how much was newly stored, if the attempt is still open."""
        times = self._open.get(checkpoint_id)
        if times is not None:
            times.uploaded_bytes = size_bytes

    def forget(self, checkpoint_id: CheckpointId) -> None:
        """Forget an attempt that is over, and all earlier attempts."""
        for earlier in [earlier for earlier in self._open if earlier <= checkpoint_id]:
            del self._open[earlier]

    def barrier(self, checkpoint_id: CheckpointId) -> BarrierAt:
        """Return the progress of an attempt's barrier, without acknowledgements; for any thread."""
        times = self._open.get(checkpoint_id)
        if times is None or (times.seen_at_ms is None and times.emitted_at_ms is None):
            return BarrierAt.AWAITED
        return BarrierAt.ALIGNING if times.emitted_at_ms is None else BarrierAt.SENT

    def report(self, snapshot: StepSnapshot, started_at_ms: int) -> StepReport:
        """Return the step's part of an attempt that it has just acknowledged."""
        times = self._open.get(snapshot.checkpoint_id, _Times())
        at_ms = self._clock.now_ms()
        emitted = times.emitted_at_ms or times.seen_at_ms or started_at_ms
        seen = times.seen_at_ms or emitted
        return StepReport(
            start_delay_ms=max(0, seen - started_at_ms),
            alignment_ms=max(0, emitted - seen),
            sync_ms=times.sync_ms,
            async_ms=max(0, at_ms - (times.stored_from_ms or at_ms)),
            end_to_end_ms=max(0, at_ms - started_at_ms),
            uploaded_bytes=times.uploaded_bytes,
            state_bytes=sum(blob.size_bytes for blob in snapshot.state),
            in_flight_bytes=snapshot.in_flight_bytes,
            rows=times.rows,
        )
