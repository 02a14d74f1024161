"""The engine of the simulated world: micro-batches the way Spark runs them.

It fills the port `runtime.engine`. A step plans a batch (offsets are fixed), computes it, writes
its rows into the channel or stages them, appends it (one critical section with the step machine)
and commits it. Between any two of these another task may run, or the process may be killed. After a
restore the engine does not by itself run a batch that was owed (rule F22); it needs the tick.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

from cutwater.errors import RunError
from cutwater.ids import BatchId, ChannelId, CheckpointId, InputId, ReaderId, StepId
from cutwater.pipeline.nodes import FunctionSignature, Kind, Node, SourceLocation, StepOptions
from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.commit import grant_shows
from cutwater.protocol.cut import Cut
from cutwater.protocol.messages import START, Event, Place
from cutwater.protocol.recovery import Restore
from cutwater.protocol.step.aligner_events import BarrierSeen
from cutwater.protocol.step.events import BatchAppended, EndReached, StepCommand, StepEvent
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec
from cutwater.runtime.channel import Channel, ChannelSchema, Signal, restore_channel
from cutwater.runtime.context import RunContext
from cutwater.runtime.engine import Built
from cutwater.runtime.output import Output, SinkOutput, Written
from cutwater.runtime.reporting.recovery_timing import Phases
from cutwater.runtime.scratch import generation_directory
from cutwater.runtime.step import Closed, DriverCallbacks, PinnedFiles, RunningStep, StepConnections
from cutwater.store.backends.directories import matching, try_to_remove_tree
from cutwater.testing.simulation.history import BatchRecord
from cutwater.testing.simulation.pipelines import Shape, source_rows
from cutwater.testing.simulation.rows import Row, State, owes_batch
from cutwater.testing.simulation.sinks import pack, unpack

if TYPE_CHECKING:
    from cutwater.testing.simulation.process import Process

EVENTS_PER_BATCH = 3
ROWS_PER_BATCH = 3


class BatchFailed(Exception):
    """A batch failed, as the fault injector wanted."""


def files_of(state: bytes) -> dict[str, bytes]:
    """Split a step's state into its files, one for each of its parts."""
    parts: State = unpack(state)
    return {f"part-{quote(name, safe='')}": pack(parts[name]) for name in sorted(parts)}


def state_from(directory: Path) -> bytes:
    """Put a step's state together from its files."""
    files = matching(directory, "part-*")
    return pack(
        {unquote(file.name.removeprefix("part-")): unpack(file.read_bytes()) for file in files}
    )


def files_digest(files: Mapping[str, bytes]) -> str:
    listed = (f"{name} {hashlib.sha256(files[name]).hexdigest()}" for name in sorted(files))
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


def plan_of(shape: Shape) -> PhysicalPlan:
    """Return the plan of a shape, as far as the driver reads it."""
    steps = []
    for spec in shape.topology.steps:
        node = Node(
            spec.step,
            Kind.SOURCE if spec.is_source else Kind.STEP,
            lambda: None,
            FunctionSignature(),
            SourceLocation("simulated", 1),
            StepOptions(),
            None,
        )
        steps.append(
            PhysicalStep(
                name=spec.step,
                nodes=(node,),
                inputs=(),
                output_mode="append",
                options=StepOptions(),
                output=None,
            )
        )
    return PhysicalPlan(shape.name, tuple(steps))


class SimulatedEngine:
    """Builds the generations of one process."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    def build(
        self,
        context: RunContext,
        restore: Restore,
        callbacks: DriverCallbacks,
        on_control: Callable[[ChannelId], None],
        phases: Phases,
    ) -> Built:
        process, world = self._process, self._process.world
        world.history.counts["commits repeated"] += phases.repeated_commits
        if restore.cut is not None:
            world.history.counts["recoveries"] += 1
            world.history.counts["recoveries in flight"] += not restore.cut.is_aligned
        callbacks = replace(callbacks, post=world.faults.post(process, callbacks.post))
        directory = generation_directory(context.scratch, restore.generation)
        directory.mkdir(parents=True)
        process.begin(restore)
        channels = {
            spec.output: self._channel(context, restore, spec, directory, on_control)
            for spec in world.topology.steps
            if world.topology.readers(spec.output)
        }
        signals = {spec.step: Signal(context.tasks) for spec in world.topology.steps}
        for channel in channels.values():
            for reader in world.topology.readers(channel.id):
                channel.subscribe(reader, signals[reader.step])
        steps: dict[StepId, RunningStep] = {}
        for spec in world.topology.steps:
            connections = StepConnections(
                inputs={source: channels[source.channel] for source in spec.inputs},
                channel=channels.get(spec.output),
                output=self._output(context, restore, spec, channels.get(spec.output)),
                directory=directory / spec.step,
                signal=signals[spec.step],
            )
            steps[spec.step] = self._step(context, restore, spec, callbacks, connections)
        built = Built(world.topology, steps, channels, restore.standing, None)
        process.built = built
        return built

    def _channel(
        self,
        context: RunContext,
        restore: Restore,
        spec: StepSpec,
        directory: Path,
        on_control: Callable[[ChannelId], None],
    ) -> Channel:
        readers = self._process.world.topology.readers(spec.output)
        columns = cast(Any, SimpleNamespace(names=[]))
        channel = Channel(
            ChannelLog(spec.output, dict.fromkeys(readers, START)),
            directory / spec.step / "channel",
            ChannelSchema(columns),
            context.bound,
            on_control,
            tasks=context.tasks,
        )
        self._process.channels.append(channel)
        if restore.cut is not None:
            blobs = context.store.blobs(restore.generation, context.blob_cache)
            restore_channel(channel, readers, restore.cut, blobs)
            self._note_in_flight(channel, readers, restore.cut)
        return channel

    def _note_in_flight(self, channel: Channel, readers: Sequence[ReaderId], cut: Cut) -> None:
        """Note what a channel holds after a restore, as the slowest reader recorded it."""
        process = self._process
        slowest = min(readers, key=channel.position)
        process.restored_ends[channel.id] = channel.position(slowest).position
        for part in cut.snapshots[slowest.step].in_flight:
            if part.input == slowest.input:
                for recorded in part.events:
                    rows = unpack((channel.data / recorded.event.files[0]).read_bytes())
                    process.world.history.event(
                        process.generation, channel.id, recorded.position, rows
                    )
                    process.restored_ends[channel.id] = recorded.position + 1

    def _step(
        self,
        context: RunContext,
        restore: Restore,
        spec: StepSpec,
        callbacks: DriverCallbacks,
        connections: StepConnections,
    ) -> "SimulatedStep":
        cut = restore.cut
        offsets = {str(spec.step): "0"} if spec.is_source else {}
        restored = Restored(positions=dict.fromkeys(spec.inputs, START), offsets=offsets)
        state = pack({"inputs": len(spec.inputs)})
        if cut is not None:
            restored = Restored.from_snapshot(cut.snapshots[spec.step])
            blobs = context.store.blobs(restore.generation, context.blob_cache)
            into = connections.directory / "restored"
            blobs.fetch_tree(cut.snapshots[spec.step].state, into)
            state = state_from(into)
        machine = Step(spec, context.options, restore.generation, restored)
        step = SimulatedStep(context.plan[spec.step], machine, connections, callbacks)
        step.begin(self._process, restored, state)
        return step

    def _output(
        self, context: RunContext, restore: Restore, spec: StepSpec, channel: Channel | None
    ) -> Output:
        if spec.sink is None:
            assert channel is not None
            return SimulatedOutput(channel)
        shows = None
        if self._process.world.tables[spec.sink].shows_batches:
            shows = grant_shows(context.pipeline, restore.standing.slot, restore.generation)
        return SinkOutput(context.sinks[spec.sink], restore.generation, shows)


class SimulatedOutput:
    """Writes the rows of a batch into the step's channel; fills `runtime.output.Output`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, rows: Any, batch: BatchId) -> Written:  # noqa: ANN401 - our own rows
        if not rows:
            return Written()
        name = f"b{batch:06d}/rows"
        file = self._channel.data / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pack(rows))
        return Written(len(rows), Event(batch, len(rows), 10 * len(rows), (name,)))

    def appended(self, written: Written) -> None:
        """Do nothing: the Event is the batch."""


@dataclass(slots=True)
class _Batch:
    number: BatchId
    ends: Mapping[InputId, Place]
    offset: int
    read: Mapping[int, list[Row]] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    state: bytes = b""
    owes: bool = False


class SimulatedStep(RunningStep):
    """A step that runs its batches in a task of its own."""

    kind = "simulated"

    def begin(self, process: "Process", restored: Restored, state: bytes) -> None:
        """Take over where the snapshot stood, the owed batch included."""
        self.process = process
        self.spec = self.machine.spec
        self.state = state
        self.offset = int(restored.offsets.get(self.spec.step, "0"))
        self.output = restored.output.position
        self.tick = restored.owes_batch
        self.slow = process.world.is_slow(self.spec.step)
        self.stopped = False
        self.fails = False
        self._batch: _Batch | None = None
        self._pinned: dict[CheckpointId, PinnedFiles] = {}
        record = BatchRecord(
            restored.batch,
            {source: place.position for source, place in restored.positions.items()},
            self.offset,
            self.output,
            files_digest(files_of(state)),
        )
        process.world.history.begin(process.generation, self.spec.step, record)

    # -- the engine

    def start(self) -> None:
        self._task = self.callbacks.tasks.start(self._loop, f"step {self.name}")

    def halt(self) -> None:
        self._task.join()

    def _loop(self) -> None:
        signal = self.wiring.signal
        try:
            while not (signal.closed or self.machine.finished or self.stopped):
                seen = signal.count
                batch = self._plan_source() if self.spec.is_source else self._plan_consumer()
                if batch is None:
                    signal.wait(seen, self.process.world.rng.choice((0.02, 0.1, 0.4)))
                else:
                    self.busy = True
                    self._run(batch)
                    self.busy = False
        except Closed:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a batch raises fails the step
            if not signal.closed:
                self.failure = error
                self.callbacks.failed(self, error)

    def problem(self) -> BaseException | None:
        """Report a query that was stopped from outside and has not read all input."""
        if not self.stopped or self.is_at_end:
            return None
        self.process.world.history.counts["queries ended too early"] += 1
        return RunError("its query was stopped by other code.")

    def source_ended(self) -> bool:
        return self.is_at_end

    @property
    def is_at_end(self) -> bool:
        """Whether the outside stream has ended and was read to its end."""
        total = self.process.world.streams[self.spec.step].total
        return total is not None and self.offset >= total

    # -- planning

    def _plan_source(self) -> _Batch | None:
        world = self.process.world
        available = world.streams[self.spec.step].available(world.now_ms) - self.offset
        if available <= 0:
            return None
        size = world.rng.randint(1, min(available, ROWS_PER_BATCH))
        return self.plan_batch({}, self.offset + size)

    def _plan_consumer(self) -> _Batch | None:
        ends = {}
        rng = self.process.world.rng
        for source, channel in self.wiring.inputs.items():
            reader = self.reader(source)
            position = channel.position(reader).position
            end = min(channel.limit(reader), position + rng.randint(0, EVENTS_PER_BATCH))
            if end > position:
                ends[source] = channel.place(end)
        if not ends and (not self.tick or rng.random() < 0.8):
            # A batch without data runs when the engine is free.
            return None
        return self.plan_batch(ends, 0)

    def plan_batch(self, ends: Mapping[InputId, Place], offset: int) -> _Batch:
        self.tick = False
        self._batch = _Batch(BatchId(self.machine.last + 1), ends, offset)
        return self._batch

    # -- one batch

    def _run(self, batch: _Batch) -> None:
        self._take_time()
        if self.fails:
            raise BatchFailed
        batch.read = self._read(batch)
        state = self.evaluate(batch)
        batch.owes = owes_batch(state)
        batch.state = pack(state)
        self._take_time()
        written = self.wiring.output.write(cast(Any, batch.rows), batch.number)
        channel = self.wiring.channel
        if channel is not None and written.event is not None:
            out = self._lets_barrier_out(batch.ends)
            full = not channel.has_room(lets_barrier_out=out)
            self.process.world.history.counts["full channel"] += full
        self.append(
            written,
            BatchAppended(
                batch.number,
                written.event,
                batch.ends,
                {str(self.spec.step): str(batch.offset)} if self.spec.is_source else None,
                watermark_ms=state.get("watermark"),
                owes_batch=batch.owes,
                staged=written.staged,
            ),
        )
        self._take_time()
        self.state = batch.state
        self.tick = batch.owes
        self.committed(batch.number)

    def _take_time(self) -> None:
        world = self.process.world
        slow = world.rng.randint(20, 200) if self.slow else 0
        world.scheduler.sleep(slow or world.rng.randint(0, 6))

    def _read(self, batch: _Batch) -> Mapping[int, list[Row]]:
        if self.spec.is_source:
            return {0: source_rows(self.spec.step, self.offset, batch.offset)}
        found: dict[int, list[Row]] = {}
        for source, end in batch.ends.items():
            channel = self.wiring.inputs[source]
            begin = channel.position(self.reader(source))
            events = channel.events(begin.position, end.position)
            rows = [self.read_file(channel, event) for event in events]
            for number, part in enumerate(rows, begin.position):
                self.process.world.history.read(
                    self.process.generation, source.channel, number, part
                )
            found[source.ordinal] = [row for part in rows for row in part]
        return found

    def read_file(self, channel: Channel, event: Event) -> tuple[Row, ...]:
        rows: tuple[Row, ...] = unpack((channel.data / event.files[0]).read_bytes())
        return rows

    def evaluate(self, batch: _Batch) -> State:
        """Apply the step's function to what the batch read; return the new state."""
        state: State = unpack(self.state)
        world = self.process.world
        function = world.functions[self.spec.step]
        batch.rows = tuple(function.apply(self.spec.step, state, batch.read, world.random_of_steps))
        return state

    # -- the critical section

    def _append(self, appended: BatchAppended) -> None:
        self._record(appended)
        super()._append(appended)

    def _record(self, appended: BatchAppended) -> None:
        """Note the batch in the history before anything else can see it."""
        batch, process = self._batch, self.process
        assert batch is not None
        history = process.world.history
        aligner = self.machine.aligner
        positions = {} if aligner is None else aligner.positions
        ends = {
            source: batch.ends.get(source, place).position for source, place in positions.items()
        }
        if appended.event is not None:
            history.event(process.generation, self.spec.output, self.output, batch.rows)
            self.output += 1
        digest = files_digest(files_of(batch.state))
        record = BatchRecord(batch.number, ends, batch.offset, self.output, digest)
        history.batch(process.generation, self.spec.step, record)
        history.counts["batches"] += 1
        self.offset = batch.offset

    def tell(self, event: StepEvent) -> None:
        """Pass an event to the machine, and let the trace and the checkers see it."""
        world = self.process.world
        world.trace(self.process, self.spec.step, event)
        super().tell(event)
        if isinstance(event, BarrierSeen):
            world.judge(lambda: world.checkers.barrier_seen(self, event))
        if isinstance(event, EndReached) and self.spec.is_source and not self.is_at_end:
            world.history.object(f"{self.name} has ended without all its input")

    def _carry_out(self, command: StepCommand) -> None:
        self.process.world.trace(self.process, f"{self.spec.step} !", command)
        super()._carry_out(command)

    # -- snapshots

    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        """Write the files of the state where nothing changes them."""
        assert batch == self.machine.committed
        directory = self.wiring.directory / "pins" / str(checkpoint_id)
        directory.mkdir(parents=True, exist_ok=True)
        files = files_of(self.state)
        for name, data in files.items():
            (directory / name).write_bytes(data)
        self._pinned[checkpoint_id] = PinnedFiles(directory, tuple(files))

    def unpin(self, checkpoint_id: CheckpointId) -> None:
        self._pinned.pop(checkpoint_id, None)
        try_to_remove_tree(self.wiring.directory / "pins" / str(checkpoint_id))

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:
        if self.process.world.faults.requests.listing_fails():
            raise OSError("the listing broke off")
        found = self._pinned.get(checkpoint_id)
        if found is None:
            raise FileNotFoundError(f"the files of checkpoint {checkpoint_id} are dropped")
        return found
