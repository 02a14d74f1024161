"""One process of the simulated world: a driver that runs the pipeline, or an operator's command.

A driver is the real supervisor with simulated ports: engine, store, sinks, clock and tasks. A
rewind is the real rewind. This module starts them as `cutwater.run` and the command line do, and
notes how they end.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cutwater.config.options import RestartConfig
from cutwater.errors import (
    ConfigError,
    Corrupt,
    CutwaterError,
    InvariantBroken,
    MoveRefused,
    ProtocolViolation,
    RecoveryError,
    SinkError,
    TargetBehind,
)
from cutwater.ids import CheckpointId, Generation, SinkId
from cutwater.operations.offline_pipeline import OfflinePipeline
from cutwater.operations.rewind.rewind import find_target, perform
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.commit import CommitBlocked
from cutwater.protocol.recovery import Restore
from cutwater.runtime.channel import Channel
from cutwater.runtime.context import RunContext
from cutwater.runtime.engine import Built
from cutwater.runtime.outcome import Outcome
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.runtime.scratch import Scratch
from cutwater.runtime.supervisor import Supervisor
from cutwater.sinks.base import OpenSink
from cutwater.store.backends.directories import try_to_remove_tree
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import hold_pipeline, take_lease
from cutwater.store.records.requests import AnswerState, Request
from cutwater.store.records.targets import SinkTargets
from cutwater.testing.simulation.engine import BatchFailed, SimulatedEngine, SimulatedStep
from cutwater.testing.simulation.scheduler import SimulatedTasks
from cutwater.testing.simulation.sinks import open_sink, target_of

if TYPE_CHECKING:
    from cutwater.testing.simulation.world import World

RESTART: Final = RestartConfig(strategy="fixed", attempts=None, delay="50ms")
NAME: Final = "simulated"
_DEFECTS: Final = (ProtocolViolation, InvariantBroken)
_POLL_MS: Final = 200


class ObservedSupervisor(Supervisor):
    """The real supervisor; shows how each generation ended."""

    ended: Callable[[Outcome], None]

    def _run_generation(self) -> Outcome:
        outcome = super()._run_generation()
        self.ended(outcome)
        return outcome


class Process:
    """A process: alive, paused or dead."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.paused = False
        self.tasks = SimulatedTasks(world.scheduler, self)
        self.backend = world.connect(self)
        self.store = PipelineStore.of(self.backend, world.pipeline)
        self.generation = Generation(0)
        self.supervisor: ObservedSupervisor | None = None
        self.built: Built | None = None
        self.channels: list[Channel] = []
        self.restored_ends: dict[str, int] = {}
        self.open_attempts: set[CheckpointId] = set()
        self.stop_after: CheckpointId | None = None
        self.last_attempts: set[CheckpointId] = set()
        self.decided_attempts: set[CheckpointId] = set()
        self.plain_stop = False
        self.is_rewind = False
        self._scratch: Scratch | None = None

    def __str__(self) -> str:
        return f"p{self.number}g{self.generation}"

    def start(self, main: Callable[[], None], name: str) -> None:
        """Start the process with its first task; it ends with that task."""

        def run() -> None:
            try:
                main()
            except CutwaterError as error:
                self._ended_with(error)
            self.world.end_soon(self)

        self.tasks.start(run, name)

    def switch(self) -> None:
        """Let other tasks run, of this process or another; called in its tasks."""
        self.world.scheduler.switch()

    def die(self) -> None:
        """End at once; nothing of it but the store and its scratch remains."""
        if not self.alive:
            return
        self.alive = False
        self.world.scheduler.kill(self)
        for channel in self.channels:
            channel.close()
        if self._scratch is not None:
            self._scratch.lock.close()

    def _open_sinks(self) -> dict[SinkId, OpenSink]:
        return {
            sink: open_sink(table, self.backend, self.switch, self.world.history)
            for sink, table in self.world.tables.items()
        }

    def _targets(self) -> SinkTargets:
        return {sink: target_of(table) for sink, table in self.world.tables.items()}

    # -- a driver

    def drive(self) -> None:
        world = self.world
        clock = world.clock
        takeover = world.rng.random() < 0.9
        lease = take_lease(self.backend, world.pipeline, NAME, takeover=takeover, clock=clock)
        self._scratch = Scratch.make(world.directory, world.pipeline, shared=False)
        context = RunContext(
            plan=world.plan,
            engine=SimulatedEngine(self),
            store=self.store,
            sinks=self._open_sinks(),
            options=world.options,
            bound=world.bound,
            scratch=self._scratch.path,
            targets=self._targets(),
            clock=clock,
            tasks=self.tasks,
            observe=self._observe,
        )
        self.supervisor = ObservedSupervisor(context, RESTART, lease)
        self.supervisor.ended = self._generation_ended
        result = self.supervisor.run()
        try_to_remove_tree(self._scratch.path)
        world.trace(self, "process", f"ends: {result}")
        if result.finished:
            world.finished(self)

    def begin(self, restore: Restore) -> None:
        self.generation = restore.generation
        self.built = None
        self.open_attempts.clear()
        self.restored_ends.clear()
        self.stop_after = None

    @property
    def running(self) -> bool:
        """Whether recovery is over and the pipeline runs."""
        return self.alive and self.built is not None

    @property
    def steps(self) -> dict[str, SimulatedStep]:
        found = {} if self.built is None else self.built.steps
        return {name: step for name, step in found.items() if isinstance(step, SimulatedStep)}

    def _observe(self, seen: object) -> None:
        """Note an event or a command of the coordinator."""
        if not self.alive:
            return
        world, counts = self.world, self.world.history.counts
        is_event = isinstance(seen, events.CoordinatorEvent)
        world.trace(self, "coordinator" if is_event else "coordinator !", seen)
        match seen:
            case events.ReserveId(checkpoint_id, _, request):
                if request.is_last:
                    self.last_attempts.add(checkpoint_id)
            case events.StartAttempt():
                self._attempt_started(seen)
            case events.EndAttempt():
                self._attempt_ended(seen)
            case events.Declined(step, _, checkpoint_id, _, _, detail):
                # The protection of what is recorded ends with the attempt, not before.
                if checkpoint_id in self.open_attempts and " holds @" in detail:
                    world.history.object(f"{step} has lost what it recorded: {detail}")
            case events.CommitRecorded(slot):
                world.judge(lambda: world.checkers.commit_recorded(slot))
            case CommitBlocked():
                counts["commit blocked"] += 1
            case events.Halt(why):
                counts[f"halted: {why.name.lower()}"] += 1
            case events.AnswerAck(_, _, result):
                counts[f"ack {result.name.lower()}"] += 1
            case _:
                pass

    def _attempt_started(self, started: events.StartAttempt) -> None:
        world, checkpoint_id = self.world, started.barrier.checkpoint_id
        self.open_attempts.add(checkpoint_id)
        world.history.started.append((self.generation, checkpoint_id))
        world.judge(lambda: world.checkers.attempt_started(self.generation, checkpoint_id))
        world.history.counts["overlapping attempts"] += len(self.open_attempts) > 1
        if started.barrier.is_drain:
            self.stop_after = checkpoint_id

    def _attempt_ended(self, ended: events.EndAttempt) -> None:
        world, checkpoint_id, reason = self.world, ended.checkpoint_id, ended.reason
        self.open_attempts.discard(checkpoint_id)
        world.history.ended[self.generation, checkpoint_id] += 1
        if reason is not None:
            world.history.counts[f"failed: {reason.name.lower()}"] += 1
        world.judge(lambda: world.checkers.attempt_ended(reason, ended.detail))
        if ended.decided:
            self.decided_attempts.add(checkpoint_id)
        elif self.stop_after == checkpoint_id:
            self.stop_after = None

    def _generation_ended(self, outcome: Outcome) -> None:
        """Note how a generation ended; an error that was not injected is a defect."""
        world = self.world
        world.trace(self, "supervisor", f"generation ended: {outcome.end.name} {outcome.detail}")
        world.judge(lambda: world.checkers.generation_ended(self, outcome))
        self.built = None
        error = outcome.error
        expected = isinstance(error, CutwaterError | BatchFailed | OSError) or error is None
        if not expected or isinstance(error, _DEFECTS):
            world.history.object(f"a generation ended with {type(error).__name__}: {error}")

    def _ended_with(self, error: CutwaterError) -> None:
        world, counts = self.world, self.world.history.counts
        world.trace(self, "process", f"ends with {type(error).__name__}: {error.message}")
        counts[f"process ended: {type(error).__name__}"] += 1
        match error:
            case ProtocolViolation() | InvariantBroken():
                world.history.object(f"a process ended with {type(error).__name__}: {error}")
            case TargetBehind():
                counts["targets found behind"] += 1
                world.needs_rewind = True
            case RecoveryError() | Corrupt():
                world.judge(lambda: world.checkers.recovery_refused(error))
                counts["recovery refused"] += 1
                world.needs_rewind = True
            case _:
                pass

    # -- an operator's rewind

    def rewind(self) -> None:
        """Rewind to an older cut, as an operator would, and exit."""
        world = self.world
        self.is_rewind = True
        offline = OfflinePipeline(NAME, self.store, self._targets(), self._open_sinks())
        with hold_pipeline(
            self.backend,
            world.pipeline,
            NAME,
            takeover=True,
            clock=world.clock,
            tasks=self.tasks,
        ):
            self._rewind(offline)

    def _rewind(self, offline: OfflinePipeline) -> None:
        world = self.world
        log = self.store.log.read()
        candidates = list(reversed(log.decisions))
        if not world.needs_rewind:
            world.rng.shuffle(candidates)
        for decision in candidates:
            try:
                target = find_target(offline, log, str(decision.checkpoint_id), "--to")
                perform(offline, log, target, leave_sinks=False, clock=world.clock)
            except (ConfigError, MoveRefused):
                continue
            except SinkError:
                # The rewind is decided; the next run finishes it.
                world.history.counts["rewinds interrupted"] += 1
            world.needs_rewind = False
            world.history.counts["rewinds"] += 1
            return
        if world.needs_rewind and not world.store.out_of_reach:
            world.lost = True

    # -- requests to a driver

    def request(self, request: CheckpointRequest, *, stop: bool) -> None:
        """Ask this driver for a checkpoint, as its API does; runs in a task of the driver."""
        supervisor = self.supervisor
        assert supervisor is not None

        def ask() -> None:
            asked = supervisor.stop_with if stop else supervisor.checkpoint
            try:
                self.answered(request, asked(request, 30.0))
            except CutwaterError as error:
                self.world.trace(self, "operator", error.message)

        self.tasks.start(ask, "operator")

    def abort(self, checkpoint_id: CheckpointId | None) -> None:
        """Abort a checkpoint, as the API of this driver does."""
        supervisor = self.supervisor
        assert supervisor is not None

        def ask() -> None:
            try:
                report = supervisor.abort_checkpoint(checkpoint_id, "an operator aborts it", 30.0)
            except CutwaterError as error:
                self.world.trace(self, "operator", error.message)
                return
            if report is not None:
                world = self.world
                world.history.counts["checkpoints aborted"] += 1
                world.judge(lambda: world.checkers.aborted(report.id))

        self.tasks.start(ask, "operator")

    def answered(self, request: CheckpointRequest, report: CheckpointReport | None) -> None:
        world = self.world
        status = "unknown" if report is None else report.status.lower()
        world.history.counts[f"requests {status}"] += 1
        if report is not None and report.status == "COMPLETED":
            world.judge(lambda: world.checkers.completed(report.id, request))

    def ask(self, request: Request) -> None:
        """Send a request through the store and wait for its answer, as the command line does."""
        requests, world = self.store.requests, self.world
        requests.ask(request)
        while world.clock.wall_ms() < request.expires_at_ms:
            world.scheduler.sleep(_POLL_MS)
            answer = requests.answer(request.token)
            if answer is None or answer.state is AnswerState.TAKEN:
                continue
            world.history.counts[f"requests through the store {answer.state.value}"] += 1
            report = answer.report
            if answer.state is AnswerState.DONE and report is not None:
                world.judge(partial(world.checkers.completed, report.checkpoint_id, None))
            break
        else:
            world.history.counts["requests through the store expired"] += 1
        requests.remove(request.token)
