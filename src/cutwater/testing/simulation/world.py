"""The simulated world: one seed decides every random choice.

It holds what outlives processes (store, tables, outside streams), runs one task at a time until it
waits, injects faults for a while, then stops the faults and waits for the end. Then the checkers
judge. The driver in it is the real one (`process`).
"""

import logging
import random
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cutwater.errors import NotFound
from cutwater.ids import PipelineId, SinkId, StepId
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import Decision
from cutwater.protocol.options import CheckpointOptions, CommitOptions, UnalignedOptions
from cutwater.store.backends.directories import exists, remove_tree
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import open_pipeline
from cutwater.store.records.requests import Request
from cutwater.testing.simulation.checkers import Checkers
from cutwater.testing.simulation.engine import plan_of
from cutwater.testing.simulation.faults import Faults
from cutwater.testing.simulation.history import History, Wrong
from cutwater.testing.simulation.pipelines import SHAPES, Shape
from cutwater.testing.simulation.process import NAME, Process
from cutwater.testing.simulation.scheduler import Scheduler, SimulatedClock, SimulatedTask
from cutwater.testing.simulation.store import Objects, SimulatedBackend, calm_backend
from cutwater.testing.simulation.tables import SimulatedTable

CHAOS_MS: Final = 10_000
HEALING_TURNS: Final = 300_000
STANDSTILL_TURNS: Final = 10_000
"""Without a new batch or a commit for so many turns, a healed pipeline counts as stuck."""

_IDLE_MS: Final = 20
"""How far the time goes on at most while no task is ready: faults must get their chance."""

_SHARED_MEMORY: Final = Path("/dev/shm")

Tracer = Callable[[int, str, str, object], None]


@dataclass(slots=True)
class Stream:
    """An outside stream: rows become available with time, until it ends."""

    rows_per_second: int
    total: int | None = None
    start: int = 1

    def available(self, now_ms: int) -> int:
        known = self.start + now_ms * self.rows_per_second // 1000
        return known if self.total is None else min(known, self.total)

    def begin_at(self, offset: int) -> None:
        """Start with this many rows; more may follow."""
        self.start = offset
        if self.total is not None:
            self.total += offset

    def end(self, now_ms: int) -> None:
        """End the stream after its current rows."""
        self.total = self.available(now_ms)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed has drawn: the shape of the pipeline, its options, its bound."""

    shape: Shape
    mode: str
    options: CheckpointOptions
    bound: Bound


def draw(rng: random.Random, shape: str | None = None, mode: str | None = None) -> Scenario:
    """Draw a scenario; shape and mode may be given."""
    chosen = SHAPES[shape or rng.choice(sorted(SHAPES))]
    mode = mode or rng.choice(("aligned", "timeout", "timeout", "forced", "concurrent"))
    aligned = mode in ("aligned", "concurrent")
    options = CheckpointOptions(
        interval_ms=rng.choice((60, 120, 250)),
        timeout_ms=rng.choice((1000, 3000)),
        savepoint_timeout_ms=4000,
        min_pause_ms=rng.choice((1, 10, 40)),
        max_concurrent=rng.choice((2, 3)) if mode == "concurrent" else 1,
        tolerable_failed=rng.choice((None, None, 6)),
        retry_ms=10,
        retry_max_ms=200,
        queue_limit=4,
        retained=rng.choice((1, 2, 4)),
        incremental=rng.random() < 0.7,
        flush_when_drained=rng.random() < 0.7,
        unaligned=UnalignedOptions(
            enabled=not aligned,
            forced=mode == "forced",
            alignment_timeout_ms=rng.choice((5, 30, 100)),
            max_inflight_bytes=rng.choice((60, 10_000, 10_000)),
        ),
        commit=CommitOptions(
            commit_unaligned=rng.random() < 0.1,
            every_ms=rng.choice((0, 0, 150, 600)),
            recovery_points_max=rng.choice((1, 3, 10)),
            retry_ms=15,
            retry_max_ms=100,
            budget_ms=200,
        ),
    )
    bound = Bound(rng.choice((1, 2, 5)), rng.choice((20, 100, 10_000)))
    return Scenario(chosen, mode, options, bound)


@dataclass(slots=True)
class _Timers:
    wake_at: dict[int, int] = field(default_factory=dict)
    kill_at: dict[int, int] = field(default_factory=dict)
    table_up_at: dict[SinkId, int] = field(default_factory=dict)
    reach_at_ms: int = 0
    room_at_ms: int = 0


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        shape: str | None = None,
        mode: str | None = None,
        faults: Collection[str] = (),
        calm: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Draw everything from the seed, but for the shape, mode and faults that are given.

        The tracer is called with time, process, actor and event for everything that happens.
        """
        self.seed = seed
        self.rng = random.Random(seed)
        self.random_of_steps = random.Random(seed + 1)
        self.scenario = draw(self.rng, shape, mode)
        self.shape = self.scenario.shape
        self.topology = self.shape.topology
        self.functions = self.shape.functions
        self.plan = plan_of(self.shape)
        self.options = self.scenario.options
        self.bound = self.scenario.bound
        self.calm = calm
        self.tracer = tracer
        self.healing = False
        self.needs_rewind = False
        self.damaged = False
        self.manifest_left = False
        self.lost = False
        self.kill_soon = False
        self.finished_by: Process | None = None
        self.slow = not calm and self.rng.random() < 0.4
        self.scheduler = Scheduler(self.rng, self._task_died)
        self.clock = SimulatedClock(self.scheduler)
        self.store = Objects()
        self.use_pipeline(
            open_pipeline(calm_backend(self.store), NAME, lambda: uuid.UUID(int=seed))
        )
        shows_some, atomic = self.rng.random() < 0.4, self.rng.random() < 0.3
        self.tables = {
            sink: SimulatedTable(
                sink,
                shows_batches=shows_some and self.rng.random() < 0.6,
                is_atomic=atomic,
            )
            for sink in self.topology.sinks
        }
        rate = self.rng.choice((5, 10, 20))
        early = not calm and self.rng.random() < 0.25
        self.streams = {
            name: Stream(rate, self.rng.randint(8, 40) if early else None)
            for name in self.topology.sources
        }
        self.history = History()
        self.timers = _Timers()
        self.processes: list[Process] = []
        self.checkers = Checkers(self)
        self.faults = Faults(self, faults)
        self.directory = Path()
        self._ending: list[Process] = []
        self._clients: list[Process] = []

    def use_pipeline(self, pipeline: PipelineId) -> None:
        self.pipeline = pipeline
        self.paths = PipelinePaths(pipeline)
        self.judged = PipelineStore.of(calm_backend(self.store), pipeline)

    # -- running

    def run(self, chaos_ms: int = CHAOS_MS) -> History:
        """Run to the end; raises `Wrong` if a checker found something."""
        root = _SHARED_MEMORY if exists(_SHARED_MEMORY) else None
        self.directory = Path(tempfile.mkdtemp(prefix="cutwater-simulation-", dir=root))
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self._run(chaos_ms)
        finally:
            for process in (*self.processes, *self._clients):
                process.die()
            logging.disable(disabled)
            remove_tree(self.directory)
        return self.history

    def _run(self, chaos_ms: int) -> None:
        while self.now_ms < chaos_ms:
            before_ms = self.now_ms
            self.turn()
            if not self.calm:
                self.faults.maybe(self.now_ms - before_ms)
            if self.lost:
                return
        self._heal()
        # Rewinds are over: what counts is what was never reached since.
        self.history.farthest.clear()
        seen, still = -1, 0
        for _ in range(HEALING_TURNS):
            self.turn()
            if self.lost:
                return
            progress = self.history.progress
            seen, still = progress, still + 1 if progress == seen else 0
            if still > STANDSTILL_TURNS:
                break
            if self.finished_by is not None:
                self.checkers.final(self.finished_by)
                self._raise_verdict()
                return
        message = f"nothing completes although all is well: {self._diagnosis()}"
        raise Wrong(message)

    def _heal(self) -> None:
        self.healing = True
        self.slow = False
        self.finished_by = None
        self.store.out_of_reach = False
        self.store.full = False
        for stream in self.streams.values():
            if stream.total is None:
                stream.end(self.now_ms)
        for table in self.tables.values():
            table.down = False
        for process in self.processes[:-1]:
            process.die()
        for process in self.processes:
            process.paused = False
            for step in process.steps.values():
                step.slow = False

    def turn(self) -> None:
        """Run one task until it waits."""
        self.now_ms += self.rng.randint(0, 2)
        self._let_time_pass()
        if self.kill_soon and self.current is not None:
            self.faults.count("crash while a batch is owed")
            self.current.die()
        self.kill_soon = False
        awake = [process for process in self.processes if process.alive and not process.paused]
        if not awake:
            self._start_process()
            self.now_ms += 10
            return
        if self.scheduler.step() is None:
            timer_ms = self.scheduler.next_timer_ms()
            latest_ms = self.now_ms + _IDLE_MS
            self.now_ms = latest_ms if timer_ms is None else min(timer_ms, latest_ms)
        self._raise_verdict()
        for process in self._ending:
            process.die()
        self._ending.clear()
        process = self.rng.choice(awake)
        if process.running and self.rng.random() < 0.02:
            self.checkers.bounds(process)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ms

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self.scheduler.now_ms = value

    def judge(self, check: Callable[[], None]) -> None:
        """Run a checker inside a task; its verdict is raised after the task has given way."""
        try:
            check()
        except Wrong as wrong:
            self.history.object(str(wrong))

    def _raise_verdict(self) -> None:
        if self.history.verdict is not None:
            raise self.history.verdict

    def _task_died(self, task: SimulatedTask, error: BaseException) -> None:
        self.history.object(f"task {task.name} died of {type(error).__name__}: {error}")

    def _let_time_pass(self) -> None:
        timers = self.timers
        if self.store.out_of_reach and self.now_ms >= timers.reach_at_ms:
            self.store.out_of_reach = False
        if self.store.full and self.now_ms >= timers.room_at_ms:
            self.store.full = False
        for sink in [name for name, at in timers.table_up_at.items() if self.now_ms >= at]:
            self.tables[sink].down = False
            del timers.table_up_at[sink]
        for number in [process for process, at in timers.kill_at.items() if self.now_ms >= at]:
            del timers.kill_at[number]
            if self.processes[number].alive and not self.healing:
                self.faults.count("crash soon after a rewind")
                self.processes[number].die()
        for number in [process for process, at in timers.wake_at.items() if self.now_ms >= at]:
            process = self.processes[number]
            if process.alive and process.paused:
                process.paused = False
                self.history.counts["paused processes that woke up"] += 1
                self.history.counts["zombies that woke up"] += process is not self.processes[-1]
            del timers.wake_at[number]

    # -- processes

    @property
    def current(self) -> Process | None:
        """The process started last, if it lives."""
        return self.processes[-1] if self.processes and self.processes[-1].alive else None

    def new_process(self) -> Process:
        process = Process(self, len(self.processes))
        self.processes.append(process)
        return process

    def _start_process(self) -> None:
        if self.current is not None and self.rng.random() < 0.9:
            # It is paused; its lease may not be stale yet.
            return
        if self.needs_rewind:
            self.start_rewind()
            return
        self._grow_ended_streams()
        process = self.new_process()
        process.start(process.drive, "driver")
        self.faults.after_start(process)

    def start_rewind(self) -> None:
        """Start an operator's rewind, whether or not the pipeline runs."""
        process = self.new_process()
        process.start(process.rewind, "rewind")

    @property
    def clients(self) -> int:
        return len(self._clients)

    def start_client(self, request: Request) -> None:
        """Start a client that sends a request through the store."""
        client = Process(self, 1000 + len(self._clients))
        self._clients.append(client)
        client.start(lambda: client.ask(request), "client")

    def end_soon(self, process: Process) -> None:
        """End a process whose first task has ended."""
        self._ending.append(process)

    def finished(self, process: Process) -> None:
        """Note that a driver has read all input and committed everything."""
        self.history.counts["pipelines finished"] += 1
        self.finished_by = process

    def _grow_ended_streams(self) -> None:
        if "new data after the end" not in self.faults.enabled or self.healing or self.calm:
            return
        for stream in self.streams.values():
            if stream.total is not None and self.rng.random() < 0.5:
                stream.total += 3
                self.faults.count("new data after the end")

    def connect(self, process: Process) -> SimulatedBackend:
        return SimulatedBackend(
            self.store,
            self.faults.requests,
            process.switch,
            self.checkers.written,
            self.checkers.deleted,
        )

    # -- queries

    def is_slow(self, step: StepId) -> bool:
        return self.slow and step == self.shape.slow

    def reach_again(self, *, out_of_reach_ms: int) -> None:
        """Take the store out of reach for a while."""
        self.store.out_of_reach = True
        self.timers.reach_at_ms = self.now_ms + out_of_reach_ms

    def room_again(self, *, full_ms: int) -> None:
        """Leave the store without room for a while."""
        self.store.full = True
        self.timers.room_at_ms = self.now_ms + full_ms

    def read_cut(self, decision: Decision) -> Cut | None:
        """Read the manifest of a decision; None if it is missing or damaged."""
        return self.judged.manifests.find(decision)

    def shown_at(self, decision: Decision) -> Mapping[SinkId, Version | None]:
        """Return what the tables showed at a decision, as far as it is known."""
        try:
            return self.judged.commits.read(decision.slot).versions
        except NotFound:
            cut = self.read_cut(decision)
            return {} if cut is None else cut.visible

    @property
    def wake_at(self) -> dict[int, int]:
        return self.timers.wake_at

    @property
    def table_up_at(self) -> dict[SinkId, int]:
        """When each table that is down recovers."""
        return self.timers.table_up_at

    def sound_decisions(self) -> list[Decision]:
        """Return the decisions that can be restored, oldest first."""
        sound = []
        for decision in self.judged.log.read().decisions:
            cut = self.read_cut(decision)
            committed = self.paths.committed(decision.slot) in self.store.by_name
            if cut is None or (decision.commit_point and not committed):
                continue
            if all(self.checkers.problem(blob) is None for blob in cut.blobs(committed=True)):
                sound.append(decision)
        return sound

    def trace(self, process: Process | None, actor: str, event: object) -> None:
        if self.tracer is not None:
            self.tracer(self.now_ms, "" if process is None else str(process), actor, event)

    def _diagnosis(self) -> str:
        process = self.current
        if process is None or process.supervisor is None:
            return "no driver runs"
        state, detail = process.supervisor.state
        steps = {name: step.machine.finished for name, step in process.steps.items()}
        return f"{state} {detail}, steps finished {steps}, attempts {process.open_attempts}"
