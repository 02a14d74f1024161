"""One driver process of the simulated world: a generation of the pipeline and its effects.

It feeds the machines and carries out their commands. What happens inside a step's critical section
happens at once; everything durable is a task of single writes, and the process may die between
any two. Acknowledgements and results travel through an inbox in any order; control messages reach
each step in order but at different times.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cutwater.ids import CheckpointId, Generation, ReaderId, Slot, StepId
from cutwater.protocol.channel_log import ChannelLog, Placed
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.checkpoint.events import (
    Acknowledged,
    Clock,
    CoordinatorEvent,
    Declined,
    Drained,
)
from cutwater.protocol.cut import BlobRef, Cut
from cutwater.protocol.messages import Barrier, EndOfInput, Event
from cutwater.protocol.step.aligner_events import (
    Announced,
    BarrierSeen,
    Decline,
    EndSeen,
    LogGrew,
    Protect,
    Release,
    Tick,
)
from cutwater.protocol.step.events import (
    Acknowledge,
    Append,
    CloseGate,
    Ended,
    Forget,
    OpenGate,
    Pin,
    StepCommand,
    StepEvent,
    Upload,
)
from cutwater.protocol.step.machine import Step
from cutwater.testing.simulation.engine import Engine, FileGone

if TYPE_CHECKING:
    from cutwater.testing.simulation.rows import Row
    from cutwater.testing.simulation.world import World

Task = Iterator[None]


class Process:
    """A process: dead, paused, recovering or running."""

    def __init__(self, world: "World", number: int) -> None:
        """Start a process; what it does first is a task of the world's."""
        self.world = world
        self.number = number
        self.store = world.store
        self.history = world.history
        self.generation = Generation(0)
        self.claim = Slot(0)
        self.alive = True
        self.paused = False
        self.coordinator: Coordinator | None = None
        self.steps: dict[StepId, Step] = {}
        self.engines: dict[StepId, Engine] = {}
        self.logs: dict[str, ChannelLog] = {}
        self.restored_ends: dict[str, int] = {}
        self.files: dict[str, tuple[Row, ...]] = {}
        self.tasks: list[tuple[str, Task]] = []
        self.inbox: list[CoordinatorEvent] = []
        self.control: dict[StepId, deque[StepEvent]] = {}
        self.news: dict[ReaderId, deque[Placed]] = {}
        self.cuts: dict[CheckpointId, Cut] = {}
        self.reusable: dict[CheckpointId, Mapping[str, BlobRef]] = {}
        self.stop_after: CheckpointId | None = None

    def __str__(self) -> str:
        """Give the name used in traces."""
        return f"p{self.number}g{self.generation}"

    def die(self) -> None:
        """End at once; nothing of it but the store remains."""
        self.alive = False
        self.tasks.clear()

    def read_file(self, event: Event) -> tuple["Row", ...]:
        """Read the rows of an Event.

        Raises:
            FileGone: If its file is not there.
        """
        rows = self.files.get(event.files[0])
        if rows is None:
            raise FileGone
        return rows

    def start_task(self, name: str, task: Task) -> None:
        """Add a task of single effects to the running tasks."""
        self.tasks.append((name, task))

    # -- what can happen next; each returns whether anything did

    def run_task(self) -> bool:
        """Carry out one effect of some task."""
        if not self.tasks:
            return False
        index = self.world.rng.randrange(len(self.tasks))
        name, task = self.tasks[index]
        try:
            next(task)
        except StopIteration:
            self.tasks = [entry for entry in self.tasks if entry[1] is not task]
        self.world.trace(self, "task", name)
        return True

    def deliver_inbox(self) -> bool:
        """Deliver a random message to the coordinator."""
        if not self.inbox or self.coordinator is None:
            return False
        event = self.inbox.pop(self.world.rng.randrange(len(self.inbox)))
        self.coordinate(event)
        return True

    def deliver_control(self, step: StepId) -> bool:
        """Deliver the next control message to a step."""
        waiting = self.control[step]
        if not waiting:
            return False
        self.tell(self.steps[step], waiting.popleft())
        return True

    def deliver_news(self, step: StepId) -> bool:
        """Pass the next control message of an input to a step's aligner."""
        machine = self.steps[step]
        inputs = machine.spec.inputs
        if not inputs or self.world.rng.random() < self.world.news_lag:
            return False
        source = self.world.rng.choice(inputs)
        reader = ReaderId(step, source)
        log, told = self.logs[source.channel], self.news[reader]
        end = log.recordable(reader) if not told else None
        told += log.news(reader)
        assert machine.aligner is not None
        if end is not None and machine.aligner.is_recording(source):
            self.tell(machine, LogGrew(source, end))
        while told:
            placed = told.popleft()
            if isinstance(placed.message, Barrier):
                self.tell(machine, BarrierSeen(source, placed.message, placed.place))
                return True
            if isinstance(placed.message, EndOfInput):
                self.tell(machine, EndSeen(source, placed.place))
                return True
        return False

    def tick(self) -> None:
        """Pass the time to all machines."""
        now_ms = self.world.now_ms
        if self.coordinator is not None:
            self.coordinate(Clock(now_ms))
        for machine in self.steps.values():
            if machine.aligner is not None and self.alive:
                self.tell(machine, Tick(now_ms))

    def notice_drained(self) -> None:
        """Notify the coordinator when sinks wait and nothing else happens."""
        if self.coordinator is None or any(engine.busy for engine in self.engines.values()):
            return
        waiting = any(step.staged for step in self.steps.values())
        if waiting or self.coordinator.carries_output:
            self.coordinate(Drained(True, self.world.now_ms))

    # -- feeding the machines

    def coordinate(self, event: CoordinatorEvent) -> None:
        """Pass an event to the coordinator and carry out the commands it returns."""
        assert self.coordinator is not None
        self.world.trace(self, "coordinator", event)
        for command in self.coordinator.handle(event):
            self.world.effects.carry_out(self, command)

    def tell(self, machine: Step, event: StepEvent) -> None:
        """Pass an event to a step, in its critical section, and carry out its commands."""
        self.world.trace(self, machine.spec.step, event)
        for command in machine.handle(event):
            self._carry_out(machine, command)
        if isinstance(event, BarrierSeen):
            self.world.checkers.barrier_seen(self, machine, event)

    def _carry_out(self, machine: Step, command: StepCommand) -> None:
        step = machine.spec.step
        self.world.trace(self, f"{step} !", command)
        match command:
            case Append(message):
                if machine.spec.output in self.logs:
                    self.logs[machine.spec.output].append(message)
            case Release(checkpoint_id):
                for source in machine.spec.inputs:
                    self.logs[source.channel].release(ReaderId(step, source), checkpoint_id)
            case Protect(checkpoint_id, source, start):
                self.logs[source.channel].protect(checkpoint_id, ReaderId(step, source), start)
            case Pin(checkpoint_id, _):
                self.engines[step].pins[checkpoint_id] = self.engines[step].state
            case Upload(snapshot, ranges):
                task = self.world.effects.upload(self, machine, snapshot, ranges)
                self.start_task(f"upload {snapshot.checkpoint_id} of {step}", task)
            case Acknowledge(snapshot):
                self.world.faults.send_ack(self, Acknowledged(snapshot, self.world.now_ms))
            case Decline(checkpoint_id, reason):
                self.inbox.append(
                    Declined(step, self.generation, checkpoint_id, reason, self.world.now_ms)
                )
            case Forget(checkpoint_id):
                self.engines[step].pins.pop(checkpoint_id, None)
                for source in machine.spec.inputs:
                    self.logs[source.channel].unprotect(checkpoint_id, ReaderId(step, source))
            case CloseGate() | OpenGate():
                pass

    def announce(self, barrier: Barrier) -> None:
        """Queue the start of an attempt for every step."""
        for waiting in self.control.values():
            waiting.append(Announced(barrier))

    def tell_ended(self, checkpoint_id: CheckpointId, *, decided: bool) -> None:
        """Queue the end of an attempt for every step."""
        for waiting in self.control.values():
            waiting.append(Ended(checkpoint_id, decided))

    @property
    def running(self) -> bool:
        """Whether recovery is over and the pipeline runs."""
        return self.alive and self.coordinator is not None

    @property
    def finished(self) -> bool:
        """Whether every step has ended and nothing waits to be committed."""
        if not self.running or self.coordinator is None or self.coordinator.carries_output:
            return False
        return all(step.finished and not step.staged for step in self.steps.values())
