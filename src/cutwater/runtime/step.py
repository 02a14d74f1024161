"""One step of a running generation: its machine, its lock, and what the machine's commands mean.

Everything that happens to a step is an event under its lock. The machine's commands are carried out
in the same critical section, so that "append Event N" and "append barrier c" have one order (rule
F1). Waiting for room happens outside of it, so that barriers and a stop always get through. The
engine decides how batches run (`RunningStep` is the engine's port for one step).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import BatchId, CheckpointId, Generation, InputId, PipelineId, ReaderId
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.checkpoint.events import Acknowledged, CoordinatorEvent, Declined
from cutwater.protocol.cut import StepSnapshot
from cutwater.protocol.messages import Barrier, EndOfInput, Place
from cutwater.protocol.step.aligner_events import (
    BarrierSeen,
    Decline,
    EndSeen,
    LogGrew,
    Protect,
    Release,
)
from cutwater.protocol.step.events import (
    Acknowledge,
    Append,
    BatchAppended,
    BatchCommitted,
    Close,
    CloseGate,
    EndReached,
    Forget,
    OpenGate,
    Pin,
    Poll,
    StepCommand,
    StepEvent,
    Upload,
)
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.step.machine import Step
from cutwater.runtime.channel import Channel, Signal
from cutwater.runtime.output import Output, Written
from cutwater.runtime.reporting.failed_batch import FailedBatch
from cutwater.runtime.reporting.status import PartitionLag, StepTimes
from cutwater.tasks import THREADS, Tasks

_ROOM_POLL_S: Final = 0.2


class Closed(Exception):
    """The step has ended or its generation is over: the batch must not be appended (rule F25)."""


@dataclass(frozen=True, slots=True)
class DriverCallbacks:
    """What the steps of a generation report to the driver. None of these blocks.

    Attributes:
        post: Hands an event to the coordinator.
        upload: Stores a snapshot in the background.
        failed: Reports that a step has failed.
        pipeline: The pipeline's uuid, for names that must differ from those of other pipelines.
    """

    post: Callable[[CoordinatorEvent], None]
    upload: Callable[["RunningStep", StepSnapshot, tuple[InFlightRange, ...]], None]
    failed: Callable[["RunningStep", BaseException], None]
    generation: Generation
    pipeline: PipelineId
    clock: Clock = SYSTEM_CLOCK
    tasks: Tasks = THREADS


@dataclass(frozen=True, slots=True)
class PinnedFiles:
    """The files of one pin: the whole snapshot, as paths below the directory."""

    directory: Path
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepConnections:
    """What a step is connected to; `channel` is None if it has no readers.

    `target_batch_ms` is how long a batch may take that reads more because the step lags;
    `target_source_ms` is the same for what it reads from outside, 0 to keep the user's limits.
    """

    inputs: Mapping[InputId, Channel]
    channel: Channel | None
    output: Output
    directory: Path
    signal: Signal
    target_batch_ms: int = 0
    target_source_ms: int = 0


class RunningStep(ABC):
    """A step in one generation; subclasses are the engines that run its batches."""

    kind: str = ""

    def __init__(
        self, plan: PhysicalStep, machine: Step, wiring: StepConnections, callbacks: DriverCallbacks
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.machine = machine
        self.wiring = wiring
        self.callbacks = callbacks
        self.lock = callbacks.tasks.lock()
        self.rows = 0
        self.busy = False
        self.failure: BaseException | None = None
        self.last_bytes: int | None = None
        self.late_rows = 0
        self.lag: tuple[PartitionLag, ...] = ()
        self.times = StepTimes(callbacks.clock)

    # -- engines

    @abstractmethod
    def start(self) -> None:
        """Start running batches."""

    @abstractmethod
    def halt(self) -> None:
        """End the engine and wait until it has ended; the step was closed before."""

    def try_to_halt(self) -> BaseException | None:
        """Call `halt`, and return the error if it did not end cleanly."""
        try:
            self.halt()
        except Exception as error:  # noqa: BLE001 - Spark's stop may raise anything; all must end
            return error
        return None

    @abstractmethod
    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        """Keep the state of a committed batch from being deleted (rule F27)."""

    @abstractmethod
    def unpin(self, checkpoint_id: CheckpointId) -> None:
        """Drop a pin, if it exists."""

    @abstractmethod
    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:
        """Return the files of a pin; None if the step keeps no files.

        Raises:
            FileNotFoundError: If the pin has been dropped.
        """

    def failed_batch(self) -> FailedBatch | None:
        """Return what the failed batch was reading; None if that is not known."""
        return None

    @abstractmethod
    def source_ended(self) -> bool:
        """Say whether the outside sources of a source step have ended."""

    def problem(self) -> BaseException | None:
        """Return the error that ended the engine, if it has failed."""
        return None

    def count_late_rows(self) -> None:  # noqa: B027 - most engines drop none
        """Add the rows dropped as late since the last call to `late_rows`."""

    def decided(self, checkpoint_id: CheckpointId) -> None:  # noqa: B027 - most need no notice
        """Note that a checkpoint is decided, before its pin is dropped; must not block or raise."""

    # -- the critical section

    def tell(self, event: StepEvent) -> None:
        """Pass an event to the machine and carry out the commands it returns."""
        with self.lock:
            for command in self.machine.handle(event):
                self._carry_out(command)
        if self.machine.awaits_commit:
            self.on_commit_awaited()

    def on_commit_awaited(self) -> None:
        """Look soon whether the last batch is committed: a snapshot waits for it."""
        return

    def _carry_out(self, command: StepCommand) -> None:
        match command:
            case Append(message):
                if isinstance(message, Barrier) and not message.is_cancel:
                    self.times.on_emitted(message.checkpoint_id, self.rows)
                if self.wiring.channel is not None:
                    self.wiring.channel.append(message)
            case Release(checkpoint_id):
                for source, channel in self.wiring.inputs.items():
                    channel.release(self.reader(source), checkpoint_id)
            case Protect(checkpoint_id, source, start):
                self.wiring.inputs[source].protect(checkpoint_id, self.reader(source), start)
            case Pin(checkpoint_id, batch):
                began_ms = self.callbacks.clock.now_ms()
                self.pin(checkpoint_id, batch)
                self.times.on_pinned(checkpoint_id, began_ms)
            case Upload(snapshot, ranges):
                self.times.on_storing(snapshot.checkpoint_id)
                self.callbacks.upload(self, snapshot, ranges)
            case Acknowledge(snapshot):
                self.callbacks.post(Acknowledged(snapshot, self.callbacks.clock.now_ms()))
            case Decline(checkpoint_id, reason):
                callbacks = self.callbacks
                at_ms = callbacks.clock.now_ms()
                callbacks.post(
                    Declined(self.name, callbacks.generation, checkpoint_id, reason, at_ms)
                )
            case Forget(checkpoint_id):
                self.unpin(checkpoint_id)
                self.times.forget(checkpoint_id)
                for source, channel in self.wiring.inputs.items():
                    channel.unprotect(checkpoint_id, self.reader(source))
            case CloseGate() | OpenGate():
                self.wiring.signal.notify()

    @property
    def title(self) -> str:
        """A name for Spark, unique among the steps of all pipelines and generations."""
        return f"{self.name} of {self.callbacks.pipeline} g{self.callbacks.generation}"

    def reader(self, source: InputId) -> ReaderId:
        """Return the reader of an input of this step."""
        return ReaderId(self.name, source)

    # -- batches

    def append(self, written: Written, appended: BatchAppended) -> None:
        """Append a batch once there is room and the gate is open.

        Raises:
            Closed: If the step or its generation ends while it waits.
        """
        while True:
            lets_out = self._lets_barrier_out(appended.moved)
            channel = self.wiring.channel
            waits_for_room = (
                channel is not None
                and written.event is not None
                and not channel.has_room(lets_barrier_out=lets_out)
            )
            with self.lock:
                if self.wiring.signal.closed or self.machine.finished:
                    raise Closed
                if not waits_for_room and self.machine.may_append:
                    # First: a barrier that is emitted with this batch comes after its rows.
                    self.rows += written.rows
                    self._append(appended)
                    break
            if channel is not None and waits_for_room:
                channel.wait_for_change(_ROOM_POLL_S)
            else:
                self.wiring.signal.wait(self.wiring.signal.count, _ROOM_POLL_S)
        # A source that had no place to return to before its first batch has one now.
        self.poll()
        # Outside the critical section: barriers do not wait for a table.
        self.wiring.output.appended(written)

    def _append(self, appended: BatchAppended) -> None:
        self.tell(appended)
        for source, place in appended.moved.items():
            self.wiring.inputs[source].advance(self.reader(source), place)

    def _lets_barrier_out(self, moved: Mapping[InputId, Place]) -> bool:
        with self.lock:
            aligner = self.machine.aligner
            return aligner is not None and aligner.would_align(moved)

    def committed(self, batch: BatchId, *, owes_batch: bool | None = None) -> None:
        """Record that the engine has made a batch durable; idempotent."""
        with self.lock:
            if self.machine.committed >= batch or self.wiring.signal.closed:
                return
            self.tell(BatchCommitted(batch, owes_batch))
        for source, channel in self.wiring.inputs.items():
            channel.settle(self.reader(source))

    # -- what the generation's loop does

    def poll(self) -> None:
        """Let a source emit its waiting barriers; a batch that is being computed comes after."""
        injector = self.machine.injector
        if injector is None or not self.machine.barrier_waiting:
            return
        with self.lock:
            waiting = 0
            # Until none is left, or the source cannot emit one before its first batch.
            while injector.waiting not in {0, waiting} and not self.machine.finished:
                waiting = injector.waiting
                self.tell(Poll())

    def notice(self) -> None:
        """Pass new control messages on the inputs to the aligner."""
        aligner = self.machine.aligner
        if aligner is None:
            return
        for source, channel in self.wiring.inputs.items():
            with self.lock:
                end, news = channel.news(self.reader(source))
                if aligner.is_recording(source):
                    self.tell(LogGrew(source, end))
                for placed in news:
                    if isinstance(placed.message, Barrier):
                        if not placed.message.is_cancel:
                            self.times.on_seen(placed.message.checkpoint_id)
                        self.tell(BarrierSeen(source, placed.message, placed.place))
                    elif isinstance(placed.message, EndOfInput):
                        self.tell(EndSeen(source, placed.place))

    @property
    def deadline_ms(self) -> int | None:
        """When the alignment timeout of a held barrier ends; None if no barrier is held."""
        aligner = self.machine.aligner
        return None if aligner is None else aligner.deadline_ms

    def try_to_end(self) -> bool:
        """End the step if no more input will follow; return whether it ended now."""
        with self.lock:
            if not self.machine.may_end:
                return False
            if self.machine.aligner is None and not self.source_ended():
                return False
            self.tell(EndReached())
        return True

    def close(self) -> None:
        """Refuse all further appends and wake the engine; does not wait for it."""
        with self.lock:
            self.tell(Close())
        self.wiring.signal.close()
