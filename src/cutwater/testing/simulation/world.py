"""The simulated world: one seed decides every random choice.

It holds what outlives processes (store, tables, outside streams), runs one small action at a time,
injects faults for a while, then stops the faults and waits for the end. Then the checkers judge.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cutwater.ids import PipelineId, SinkId, StepId
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.checkpoint import events
from cutwater.protocol.cut import Version
from cutwater.protocol.decisions import Decision
from cutwater.protocol.options import CheckpointOptions, CommitOptions, UnalignedOptions
from cutwater.testing.simulation.boot import Boot
from cutwater.testing.simulation.checkers import Checkers
from cutwater.testing.simulation.effects import Effects
from cutwater.testing.simulation.faults import Faults
from cutwater.testing.simulation.history import History, Wrong
from cutwater.testing.simulation.pipelines import SHAPES, Shape
from cutwater.testing.simulation.process import Process
from cutwater.testing.simulation.store import (
    SimulatedStore,
    committed_name,
    unpack,
)
from cutwater.testing.simulation.tables import SimulatedTable

CHAOS_TURNS: Final = 1500
HEALING_TURNS: Final = 25_000

Tracer = Callable[[int, str, str, object], None]


@dataclass(slots=True)
class Stream:
    """An outside stream: rows become available with time, until it ends."""

    rows_per_second: int
    total: int | None = None
    start: int = 1

    def available(self, now_ms: int) -> int:
        """Return how many rows there are by now."""
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
        calm: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Draw everything from the seed.

        Args:
            seed: The seed.
            shape: The pipeline to run; drawn if not given.
            mode: How to checkpoint; drawn if not given.
            calm: Run without faults.
            tracer: Called with time, process, actor and event for everything that happens.
        """
        self.seed = seed
        self.rng = random.Random(seed)
        self.random_of_steps = random.Random(seed + 1)
        self.scenario = draw(self.rng, shape, mode)
        self.shape = self.scenario.shape
        self.topology = self.shape.topology
        self.functions = self.shape.functions
        self.options = self.scenario.options
        self.bound = self.scenario.bound
        self.pipeline = PipelineId(f"pipeline-{seed}")
        self.calm = calm
        self.tracer = tracer
        self.now_ms = 0
        self.healing = False
        self.needs_rewind = False
        self.damaged = False
        self.lost = False
        self.stop_asked: Process | None = None
        self.kill_soon = False
        self.stopped: Process | None = None
        self.slow = not calm and self.rng.random() < 0.4
        self.store = SimulatedStore()
        self.judged = self.store.judged()
        shows_some = self.rng.random() < 0.4
        self.tables = {
            sink: SimulatedTable(sink, shows_batches=shows_some and self.rng.random() < 0.6)
            for sink in self.topology.sinks
        }
        rate = self.rng.choice((15, 30, 60))
        early = not calm and self.rng.random() < 0.25
        self.streams = {
            name: Stream(rate, self.rng.randint(8, 40) if early else None)
            for name in self.topology.sources
        }
        # The names of staged batches that a table has committed at least once.
        self.committed: set[str] = set()
        self.news_lag = self.rng.choice((0.0, 0.0, 0.6, 0.95))
        self.history = History()
        self.timers = _Timers()
        self.processes: list[Process] = []
        self.checkers = Checkers(self)
        self.faults = Faults(self)
        self.store.mishaps = self.faults.requests
        self.effects = Effects(self)
        self.boot = Boot(self)

    # -- running

    def run(self, chaos_turns: int = CHAOS_TURNS) -> History:
        """Run to the end.

        Returns:
            The record of the run, with its counts.

        Raises:
            Wrong: If a checker found something.
        """
        for _ in range(chaos_turns):
            self.turn()
            if not self.calm:
                self.faults.maybe()
            if self.lost:
                return self.history
        self._heal()
        before = self.history.counts["commit points"]
        for _ in range(HEALING_TURNS):
            self.turn()
            if self.lost:
                return self.history
            self._stop_when_done(before)
            if self.stopped is not None:
                self.checkers.final(self.stopped)
                return self.history
        message = f"nothing completes although all is well: {self._diagnosis()}"
        raise Wrong(message)

    def _stop_when_done(self, commits_before: int) -> None:
        """Request a stop once all steps have ended and a new checkpoint was committed."""
        process = self.current
        done = self.history.counts["commit points"] > commits_before
        if process is None or self.stop_asked is process:
            return
        if done and process.finished:
            process.inbox.append(events.Stop(self.now_ms))
            self.stop_asked = process

    def _heal(self) -> None:
        self.healing = True
        self.slow = False
        # Steps that rarely poll for barriers miss short deadlines, and each restart repeats work.
        self.news_lag = 0.0
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
            for engine in process.engines.values():
                engine.slow = False

    def turn(self) -> None:
        """Run one small action."""
        self.now_ms += self.rng.randint(1, 3)
        self._let_time_pass()
        if self.kill_soon and self.current is not None:
            self.faults.count("crash while a batch is owed")
            self.current.die()
        self.kill_soon = False
        awake = [process for process in self.processes if process.alive and not process.paused]
        if not awake:
            if self.stopped is None:
                self._start_process()
            return
        process = awake[0] if len(awake) == 1 else self.rng.choice(awake)
        if not self._act(process):
            self.now_ms += 10
            process.tick()
            if process.alive:
                process.notice_drained()
        elif self.rng.random() < 0.1:
            process.tick()
        if process.running and self.rng.random() < 0.05:
            self.checkers.bounds(process)

    def _act(self, process: Process) -> bool:
        actors: list[Callable[[], bool]] = [process.run_task, process.deliver_inbox]
        if process.coordinator is not None:
            for step, engine in process.engines.items():
                actors += (
                    engine.act,
                    lambda step=step: process.deliver_control(step),  # type: ignore[misc]
                    lambda step=step: process.deliver_news(step),  # type: ignore[misc]
                )
        self.rng.shuffle(actors)
        return any(act() for act in actors if process.alive)

    def _let_time_pass(self) -> None:
        timers = self.timers
        if self.store.out_of_reach and self.now_ms >= timers.reach_at_ms:
            self.store.out_of_reach = False
        if self.store.full and self.now_ms >= timers.room_at_ms:
            self.store.full = False
        for sink in [name for name, at in timers.table_up_at.items() if self.now_ms >= at]:
            self.tables[sink].down = False
            del timers.table_up_at[sink]
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

    def _start_process(self) -> None:
        process = self.current
        if process is not None and self.rng.random() < 0.9:
            # It is paused; its lease may not be stale yet.
            return
        if self.needs_rewind:
            self.start_rewind()
            return
        self._grow_ended_streams()
        process = Process(self, len(self.processes))
        self.processes.append(process)
        process.start_task("recovery", self.boot.recover(process))

    def start_rewind(self) -> None:
        """Start an operator's rewind, whether or not the pipeline runs."""
        process = Process(self, len(self.processes))
        self.processes.append(process)
        process.start_task("rewind", self.boot.rewind(process))

    def process_ends(self, process: Process, command: events.CoordinatorCommand) -> None:
        """End a process that was requested to stop."""
        if isinstance(command, events.Halt):
            self.history.counts[f"halted: {command.reason.name.lower()}"] += 1
            if command.reason is events.HaltReason.STOPPED:
                self.checkers.stopped(process)
                self.stopped = process if self.stop_asked is process else None
        else:
            self.history.counts["restarts"] += 1
        process.die()

    def _grow_ended_streams(self) -> None:
        if "new data after the end" not in self.faults.enabled or self.healing or self.calm:
            return
        for stream in self.streams.values():
            if stream.total is not None and self.rng.random() < 0.5:
                stream.total += 3
                self.faults.count("new data after the end")

    # -- queries

    def is_slow(self, step: StepId) -> bool:
        """Return whether a step runs slowly now."""
        return self.slow and step == self.shape.slow

    def reach_again(self, *, out_of_reach_ms: int) -> None:
        """Take the store out of reach for a while."""
        self.store.out_of_reach = True
        self.timers.reach_at_ms = self.now_ms + out_of_reach_ms

    def room_again(self, *, full_ms: int) -> None:
        """Leave the store without room for a while."""
        self.store.full = True
        self.timers.room_at_ms = self.now_ms + full_ms

    def shown_at(self, decision: Decision) -> Mapping[SinkId, Version | None]:
        """Return what the tables showed at a decision, as far as it is known."""
        record = self.judged.get(committed_name(decision.slot))
        if record is not None:
            shown: Mapping[SinkId, Version] = unpack(record)
            return shown
        cut = self.judged.read_cut(decision.checkpoint_id)
        return {} if cut is None else cut.visible

    def new_queue(self) -> deque[Any]:
        """Make an empty queue."""
        return deque()

    @property
    def wake_at(self) -> dict[int, int]:
        """When each paused process wakes up."""
        return self.timers.wake_at

    @property
    def table_up_at(self) -> dict[SinkId, int]:
        """When each table that is down recovers."""
        return self.timers.table_up_at

    def sound_decisions(self) -> list[Decision]:
        """Return the decisions that can be restored, oldest first."""
        sound = []
        for decision in self.judged.read_log().decisions:
            cut = self.judged.read_cut(decision.checkpoint_id, decision.manifest_sha256)
            committed = committed_name(decision.slot) in self.store.objects
            if cut is None or (decision.commit_point and not committed):
                continue
            if all(self.judged.problem(blob) is None for blob in cut.blobs(committed=True)):
                sound.append(decision)
        return sound

    def trace(self, process: Process | None, actor: str, event: object) -> None:
        """Pass a line to the tracer, if there is one."""
        if self.tracer is not None:
            self.tracer(self.now_ms, "" if process is None else str(process), actor, event)

    def _diagnosis(self) -> str:
        process = self.current
        if process is None or process.coordinator is None:
            return "no process runs"
        engines = {engine.spec.step: engine.state_of.name for engine in process.engines.values()}
        attempts = {
            attempt: phase.name for attempt, phase in process.coordinator.open_attempts.items()
        }
        return f"steps {engines}, attempts {attempts}, {process.coordinator.committer_state.name}"
