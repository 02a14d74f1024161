"""A step's engine in the simulated world: micro-batches the way Spark runs them.

Plan (offsets are fixed), compute, stage the sink's rows, append (one critical section with the
step machine), commit. Between any two of these the process may die. After a restore the engine
does not by itself run a batch that was owed (spark-facts: rule F22); it needs the tick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from cutwater.ids import BatchId, InputId, ReaderId
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.checkpoint.events import StepFailed
from cutwater.protocol.cut import Committable
from cutwater.protocol.messages import Event, Place
from cutwater.protocol.step.events import BatchAppended, BatchCommitted, EndReached, Poll
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec
from cutwater.testing.simulation.history import BatchRecord
from cutwater.testing.simulation.pipelines import source_rows
from cutwater.testing.simulation.rows import Row, State, owes_batch
from cutwater.testing.simulation.store import (
    Damaged,
    ListingFailed,
    OutOfReach,
    files_of,
    pack,
    staged_name,
    state_digest,
    unpack,
)
from cutwater.testing.simulation.tables import Superseded, TableDown

if TYPE_CHECKING:
    from cutwater.testing.simulation.process import Process

EVENTS_PER_BATCH = 3
ROWS_PER_BATCH = 3


class FileGone(Exception):
    """A file of a channel is not where its writer put it."""


class EngineState(Enum):
    """Where the engine is in its batch."""

    IDLE = auto()
    PLANNED = auto()
    COMPUTED = auto()
    STAGED = auto()
    APPENDED = auto()
    SHOWN = auto()


@dataclass(slots=True)
class _Batch:
    number: BatchId
    ends: Mapping[InputId, Place]
    offset: int
    read: Mapping[int, list[Row]] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    state: bytes = b""
    owes: bool = False
    staged: tuple[Committable, ...] = ()


@dataclass(slots=True)
class Engine:
    """The engine of one step in one generation."""

    process: "Process"
    spec: StepSpec
    step: Step
    inputs: Mapping[InputId, ChannelLog]
    output: ChannelLog | None
    restored: Restored
    state: bytes
    state_of: EngineState = EngineState.IDLE
    slow: bool = False
    offset: int = 0
    tick: bool = False
    batch: _Batch | None = None
    pins: dict[int, bytes] = field(default_factory=dict)
    unshown: list[Committable] = field(default_factory=list)
    stopped: bool = False
    failed: bool = False

    def __post_init__(self) -> None:
        """Take over where the snapshot stood, the owed batch included."""
        self.offset = int(self.restored.offsets.get(self.spec.step, "0"))
        self.tick = self.restored.owes_batch
        record = BatchRecord(
            self.restored.batch,
            {source: place.position for source, place in self.restored.positions.items()},
            self.offset,
            self.restored.output.position,
            state_digest(self.state),
        )
        self.process.history.begin(self.process.generation, self.spec.step, record)

    def act(self) -> bool:
        """Do the next action; return whether there was one."""
        rng = self.process.world.rng
        if self.step.barrier_waiting and not self.step.finished and rng.random() < 0.3:
            # Also while a batch is computing or waits for room: the batch comes after.
            self.process.tell(self.step, Poll())
            return True
        if self.slow and rng.random() > 0.08:
            return False
        match self.state_of:
            case EngineState.IDLE:
                return self._between_batches()
            case EngineState.PLANNED:
                self._compute()
            case EngineState.COMPUTED:
                self._stage()
            case EngineState.STAGED:
                return self._append()
            case EngineState.APPENDED:
                self._show()
            case EngineState.SHOWN:
                self._commit()
        return True

    def _reader(self, source: InputId) -> ReaderId:
        return ReaderId(self.spec.step, source)

    # -- between batches

    def _between_batches(self) -> bool:
        if self.step.finished:
            return False
        return self._plan_source() if self.spec.is_source else self._plan_consumer()

    def _plan_source(self) -> bool:
        world = self.process.world
        stream = world.streams[self.spec.step]
        if self.stopped:
            return self.query_ended()
        available = stream.available(world.now_ms) - self.offset
        if available > 0:
            size = world.rng.randint(1, min(available, ROWS_PER_BATCH))
            self._plan({}, self.offset + size)
            return True
        if stream.total is not None and self.offset >= stream.total:
            self.process.tell(self.step, EndReached())
            return True
        return False

    def query_ended(self) -> bool:
        """Report the end of input only if all input was read; otherwise the step has failed."""
        world, total = self.process.world, self.process.world.streams[self.spec.step].total
        self.stopped = False
        if total is not None and self.offset >= total:
            self.process.tell(self.step, EndReached())
        else:
            world.history.counts["queries ended too early"] += 1
            self.process.inbox.append(StepFailed(self.spec.step, world.now_ms))
        return True

    def _plan_consumer(self) -> bool:
        aligner = self.step.aligner
        assert aligner is not None
        ends = {}
        for source, position in aligner.positions.items():
            log = self.inputs[source]
            limit = log.limit(self._reader(source)).position
            most = position.position + self.process.world.rng.randint(0, EVENTS_PER_BATCH)
            end = min(limit, most)
            if end > position.position:
                ends[source] = log.place(end)
        if not ends and self.tick and self.process.world.rng.random() < 0.8:
            # A batch without data runs when the engine is free.
            return False
        if ends or self.tick:
            self._plan(ends, 0)
            return True
        if aligner.drained:
            self.process.tell(self.step, EndReached())
            return True
        return False

    def _plan(self, ends: Mapping[InputId, Place], offset: int) -> None:
        self.engine_committed_previous()
        self.tick = False
        self.batch = _Batch(BatchId(self.step.last + 1), ends, offset)
        self.state_of = EngineState.PLANNED

    def engine_committed_previous(self) -> None:
        """Simulate Spark's `commit(end)` callback, which comes with the *next* batch (rule F17)."""

    # -- one batch

    def _compute(self) -> None:
        batch = self.batch
        assert batch is not None
        try:
            batch.read = self._read(batch)
        except FileGone:
            self._fail()
            return
        state = self.evaluate(batch)
        batch.owes = owes_batch(state)
        batch.state = pack(state)
        self.state_of = EngineState.COMPUTED

    def _fail(self) -> None:
        """Fail the batch once; the restart that follows replaces this engine."""
        if not self.failed:
            self.failed = True
            self.process.inbox.append(StepFailed(self.spec.step, self.process.world.now_ms))

    def evaluate(self, batch: _Batch) -> State:
        """Apply the step's function to what the batch read; return the new state."""
        state: State = unpack(self.state)
        function = self.process.world.functions[self.spec.step]
        rng = self.process.world.random_of_steps
        batch.rows = tuple(function.apply(self.spec.step, state, batch.read, rng))
        return state

    def _read(self, batch: _Batch) -> Mapping[int, list[Row]]:
        if self.spec.is_source:
            return {0: source_rows(self.spec.step, self.offset, batch.offset)}
        found: dict[int, list[Row]] = {}
        aligner = self.step.aligner
        assert aligner is not None
        positions = aligner.positions
        for source, end in batch.ends.items():
            events = self.inputs[source].read(positions[source], end)
            rows = [self.process.read_file(event) for event in events]
            for number, part in enumerate(rows, positions[source].position):
                self.process.history.read(self.process.generation, source.channel, number, part)
            found[source.ordinal] = [row for part in rows for row in part]
        return found

    def _stage(self) -> None:
        batch = self.batch
        assert batch is not None
        if self.spec.sink is not None and batch.rows:
            process = self.process
            name = staged_name(process.generation, self.spec.sink, batch.number)
            try:
                blob = process.store.put(name, pack(batch.rows))
            except OutOfReach:
                return
            batch.staged = (
                Committable(
                    self.spec.sink, process.generation, batch.number, len(batch.rows), (blob,)
                ),
            )
        self.state_of = EngineState.STAGED

    def _append(self) -> bool:
        """Append the batch if there is room; barriers never wait for room (section 14)."""
        batch, process = self.batch, self.process
        assert batch is not None
        if not self.step.may_append:
            return False
        event = self._event(batch)
        if event is not None and not self._admitted(batch):
            process.history.counts["full channel"] += 1
            return False
        self._record(batch, event)
        process.tell(
            self.step,
            BatchAppended(
                batch.number,
                event,
                batch.ends,
                {self.spec.step: str(batch.offset)} if self.spec.is_source else None,
                watermark_ms=unpack(batch.state).get("watermark"),
                owes_batch=batch.owes,
                staged=batch.staged,
            ),
        )
        self.offset = batch.offset
        for source, place in batch.ends.items():
            self.moved(source, place)
        self.state_of = EngineState.APPENDED
        return True

    def _admitted(self, batch: _Batch) -> bool:
        assert self.output is not None
        aligner = self.step.aligner
        lets_out = aligner is not None and aligner.would_align(batch.ends)
        return self.output.has_room(self.process.world.bound, lets_barrier_out=lets_out)

    def moved(self, source: InputId, place: Place) -> None:
        """Move the position of an input: room is freed by appending, nothing later (F17)."""
        self.inputs[source].advance(self._reader(source), place)

    def _event(self, batch: _Batch) -> Event | None:
        if self.output is None or not batch.rows:
            return None
        name = f"{self.spec.step}/{batch.number}"
        self.process.files[name] = batch.rows
        return Event(batch.number, len(batch.rows), 10 * len(batch.rows), (name,))

    def _record(self, batch: _Batch, event: Event | None) -> None:
        process = self.process
        aligner = self.step.aligner
        positions = {} if aligner is None else aligner.positions
        ends = {
            source: batch.ends.get(source, place).position for source, place in positions.items()
        }
        output = 0 if self.output is None else self.output.end.position
        if event is not None:
            process.history.event(process.generation, self.spec.output, output, batch.rows)
            output += 1
        record = BatchRecord(batch.number, ends, batch.offset, output, state_digest(batch.state))
        process.history.batch(process.generation, self.spec.step, record)
        process.history.counts["batches"] += 1

    def _show(self) -> None:
        """Show this batch and earlier unshown ones, in order, if the sink shows batches."""
        batch, process = self.batch, self.process
        assert batch is not None
        self.unshown += batch.staged
        self.state_of = EngineState.SHOWN
        while self.unshown and process.world.tables[self.unshown[0].sink].shows_batches:
            committable = self.unshown[0]
            try:
                table = process.world.tables[committable.sink]
                table.show(process.claim, committable, process.world.effects.staged_rows)
            except (TableDown, OutOfReach, Damaged):
                # Damaged: a successor has deleted staged rows that no process will commit.
                return
            except Superseded:
                process.history.counts["batches shown too late"] += 1
                process.die()
                return
            process.history.counts["batches shown"] += 1
            self.unshown.pop(0)

    def _commit(self) -> None:
        batch = self.batch
        assert batch is not None
        self.state = batch.state
        self.tick = batch.owes
        self.process.tell(self.step, BatchCommitted(batch.number))
        for source, log in self.inputs.items():
            log.settle(self._reader(source))
            for event in log.free():
                self.process.files.pop(event.files[0], None)
        self.state_of = EngineState.IDLE

    # -- facts

    def pinned_files(self, checkpoint_id: int) -> tuple[bytes, ...]:
        """List the files of a pinned state.

        Raises:
            ListingFailed: If the listing broke off.
        """
        if self.process.world.faults.requests.listing_fails():
            raise ListingFailed
        return files_of(self.pins[checkpoint_id])

    @property
    def busy(self) -> bool:
        """Whether a batch is on its way."""
        return self.state_of is not EngineState.IDLE
