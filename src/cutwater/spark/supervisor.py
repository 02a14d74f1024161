"""Runs a pipeline through its generations: recover, build, run, and begin again after a failure.

A step that fails takes the whole pipeline back to its last decided checkpoint (rule F10), as often
as the restart strategy allows. Each generation lives in a fresh scratch directory. A heartbeat
shows others that the pipeline runs.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from cutwater.config import RestartConfig
from cutwater.errors import (
    ConfigError,
    CutwaterError,
    Fenced,
    OutcomeUnknown,
    PlanError,
    RunError,
    SinkError,
    StepError,
    Superseded,
    Unavailable,
)
from cutwater.protocol.change import Change
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Claim
from cutwater.protocol.pending import CheckpointRequest
from cutwater.spark.analysis import failing_place
from cutwater.spark.attempts import AttemptBook, Waiter
from cutwater.spark.causes import cause_of
from cutwater.spark.clock import now_ms
from cutwater.spark.context import RunContext
from cutwater.spark.desk import Desk
from cutwater.spark.failed_batch import FailedBatch, Failures
from cutwater.spark.generation import Generation
from cutwater.spark.journal import EventName, Journal
from cutwater.spark.late_rows import LateRows
from cutwater.spark.outcome import End, Outcome
from cutwater.spark.phases import Phases
from cutwater.spark.progress import CheckpointReport, RunResult, RunStatus
from cutwater.spark.rates import Rates, channels_of, steps_of
from cutwater.spark.recover import Recovery
from cutwater.spark.scratch import clear
from cutwater.spark.shut_out import shut_out_by
from cutwater.spark.step import RunningStep
from cutwater.store.holder import Heartbeat
from cutwater.store.lease import Lease, Leases
from cutwater.store.reports import RecoveryReport
from cutwater.store.savepoints import savepoint_name

_LOG: Final = logging.getLogger(__name__)
_FAILURES_KEPT: Final = 1000


class Supervisor:
    """One run of one pipeline in one process. `run` belongs to one thread, the rest to any."""

    def __init__(self, context: RunContext, restart: RestartConfig, lease: Lease) -> None:
        """Prepare a run."""
        self._context = self.context = context
        self._restart = restart
        self.lease = lease
        leases = Leases(context.store.backend, context.pipeline)
        self._heartbeat = Heartbeat(leases, lease)
        self._desk = Desk(context.store, lease.nonce, self)
        self._journal = Journal(context.plan.pipeline, context.pipeline)
        self._book = AttemptBook(lambda one: self._desk.report(one.record()), self._journal)
        self._late_rows = LateRows(self._running_steps)
        self._takes_requests = False
        self._named: dict[str, Waiter] = {}
        self._named_lock = threading.Lock()
        self._generation: Generation | None = None
        self._state = "STARTING"
        self._detail = ""
        self._restarts = 0
        self._failures_ms: deque[int] = deque(maxlen=_FAILURES_KEPT)
        self._repeated = Failures()
        self._stop: bool | None = None
        self._claims: list[Claim] = []
        self._wake = threading.Event()
        self._over = threading.Event()
        self._rates = Rates()
        self.started = threading.Event()

    @property
    def change(self) -> Change | None:
        """What became of the cut that the newest generation was built from."""
        return self._generation.built.change if self._generation else None

    # -- the run

    def run(self) -> RunResult:
        """Run until every source has ended, somebody stops it, or it cannot go on.

        Raises:
            StepError: If a step failed more often than the restart strategy allows.
            Fenced: If another process has claimed the pipeline.
            Superseded: If a sink has acted on a later decision, and the log shows nobody else.
            CutwaterError: Whatever else keeps it from running.
        """
        end = "the pipeline has ended"
        try:
            self._heartbeat.start()
            self._desk.start()
            self._late_rows.start()
            result = self._run()
            self._enter("FINISHED")
        except BaseException as error:
            self._enter("FAILED", str(error))
            end = str(error)
            raise
        finally:
            self._over.set()
            self._late_rows.close()
            self.started.set()
            self._book.abandon(end)
            # Everybody is answered before the lease is released: who waits looks at both.
            self._desk.close()
            self._heartbeat.stop()
        return result

    def _run(self) -> RunResult:
        while True:
            outcome = self._run_generation()
            shut_out = shut_out_by(outcome, self._context.store, self._claims)
            if shut_out is not None:
                raise shut_out
            if outcome.end is not End.FAILED:
                break
            # In this order: whoever begins to wait after that sees it (`_ask`).
            self._takes_requests = False
            self._book.abandon(outcome.detail or "the generation failed")
            pause_ms = self._pause_ms(outcome)
            self._restarts += 1
            self._enter("RESTARTING", self._detail)
            _LOG.warning("%s; restarting in %s ms", self._detail, pause_ms)
            if self._wake.wait(pause_ms / 1000):
                break
        return RunResult(
            self._context.plan.pipeline,
            outcome.end is End.FINISHED,
            self._book.completed,
            self._restarts,
            self._book.last_completed,
        )

    def _pause_ms(self, outcome: Outcome) -> int:
        """Return the pause before the next generation, or raise why there is none."""
        error = self._error(outcome)
        self._repeated.note(self._failed_batch(outcome))
        self._detail = str(error)
        self._failures_ms.append(now_ms())
        pause_ms = self._restart.pause_ms(tuple(self._failures_ms))
        if pause_ms is None:
            raise self._repeated.explain(error)
        return pause_ms

    def _failed_batch(self, outcome: Outcome) -> FailedBatch | None:
        """Look at what the failed batch was reading, while its scratch is still there."""
        generation = self._generation
        if generation is None or outcome.step is None:
            return None
        try:
            return generation.built.steps[outcome.step].failed_batch()
        except (CutwaterError, OSError, ValueError) as error:
            # Only a help to people: it must not stand in the way of the restart.
            _LOG.warning("nobody can say what the failed batch was reading: %s", error)
            return None

    def _error(self, outcome: Outcome) -> CutwaterError:
        cause = outcome.error
        if outcome.step is None or cause is None:
            if isinstance(cause, CutwaterError):
                return cause
            if cause is not None:
                return RunError(f"the driver failed: {cause_of(cause)[1]}")
            return RunError(f"the pipeline failed: {outcome.detail}.")
        if isinstance(cause, StepError):
            return cause
        step = self._context.plan[outcome.step]
        files = frozenset(node.place.file for node in step.nodes)
        where, reason = cause_of(cause, files)
        place, title = failing_place(step, cause)
        return StepError(step.name, f"{title}, {where or place}", reason)

    def _run_generation(self) -> Outcome:
        phases = Phases(self._detail if self._restarts else "")
        try:
            recovery = Recovery(self._context, self._claims, phases=phases)
            restore = recovery.run()
            # Before anything is staged there: a rewind must find what this generation wrote to.
            self._context.store.targets.record(restore.generation, self._context.targets)
            context = replace(self._context, stock=recovery.stock)
            generation = Generation(context, restore, self._book, phases, self._recovered)
            # Only now: until then what an earlier one has left may be taken instead of fetched.
            clear(self._context.scratch, restore.generation)
        except (PlanError, Fenced):
            raise
        except Superseded as error:
            return Outcome(End.FENCED, error=error)
        except (SinkError, OSError) as error:
            return Outcome(End.FAILED, error=error)
        except (Unavailable, OutcomeUnknown) as error:
            # A recovery may be repeated from its beginning, whatever of it has happened.
            return Outcome(End.FAILED, error=error)
        generation.on_going_on = self._go_on
        self._generation = generation
        self._rates.clear()
        if self._stop is not None:
            generation.ask_to_stop(None)
        self._enter("RUNNING")
        self._takes_requests = True
        self.started.set()
        return generation.run()

    def _recovered(self, report: RecoveryReport) -> None:
        """Tell how a recovery went; called on the generation's loop."""
        first = f"{report.first_batch_ms} ms" if report.first_batch_ms is not None else "none"
        _LOG.info(
            "generation %s from checkpoint %s: choose %s ms, commit replay %s ms (%s commits), "
            "fetch %s ms (%s bytes linked, %s fetched), start %s ms, first batch %s",
            report.generation,
            report.checkpoint_id,
            report.choose_ms,
            report.commit_replay_ms,
            report.repeated_commits,
            report.fetch_ms,
            report.linked_bytes,
            report.fetched_bytes,
            report.start_ms,
            first,
        )
        self._desk.report(report)
        phases = msgspec.structs.asdict(report)
        number, checkpoint = int(phases.pop("generation")), phases.pop("checkpoint_id")
        where = "nothing" if checkpoint is None else f"checkpoint {checkpoint}"
        text = f"generation {number} runs, {report.total_ms} ms after it began from {where}"
        self._journal.note(
            EventName.RECOVERED, text, generation=number, checkpoint=checkpoint, **phases
        )

    def _enter(self, state: str, detail: str = "") -> None:
        """Be in another state, and say so."""
        self._state, self._detail = state, detail
        self._journal.note(
            EventName.STATE,
            f"{self._context.plan.pipeline} is {state}" + (f": {detail}" if detail else ""),
            generation=self._generation.number if self._generation else 0,
            level=logging.ERROR if state == "FAILED" else logging.INFO,
            state=state,
            detail=detail or None,
            restarts=self._restarts,
        )

    def _running_steps(self) -> tuple[RunningStep, ...]:
        generation = self._generation
        if generation is None or self._state != "RUNNING":
            return ()
        return tuple(generation.built.steps.values())

    # -- from any thread

    def stop(self, *, checkpoint: bool) -> None:
        """Ask for the end; does not wait for it."""
        self._stop = checkpoint
        self._wake.set()
        if self._state in {"RUNNING", "STARTING"}:
            self._enter("STOPPING")
        if self._generation is not None:
            last = CheckpointRequest(is_last=True) if checkpoint else None
            self._generation.ask_to_stop(last)

    def stop_with(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Take a last checkpoint and end; go on as before if it fails. Waits for it alone.

        Returns:
            What became of it; None if that is not known in time.

        Raises:
            ConfigError: If a savepoint has that name already.
        """
        request = replace(request, is_last=True)

        def ask(generation: Generation) -> None:
            if self._state == "RUNNING":
                self._enter("STOPPING")
            generation.ask_to_stop(request, insists=True)

        report = self._ask(request, timeout_s, ask)
        if report is not None and report.status != "COMPLETED":
            self._go_on()
        return report

    def _go_on(self) -> None:
        """Run as before: the checkpoint to stop with failed, whether or not its asker waits."""
        if self._stop is None and self._state == "STOPPING":
            self._enter("RUNNING")

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the pipeline has ended; say whether it has."""
        return self._over.wait(timeout_s)

    def checkpoint(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Ask for a checkpoint and wait until it is decided and committed, or has failed.

        Returns:
            What became of it; None if that is not known in time.

        Raises:
            ConfigError: If a savepoint has that name already.
        """
        return self._ask(request, timeout_s, lambda one: one.request(request))

    def _ask(
        self,
        request: CheckpointRequest,
        timeout_s: float | None,
        ask: Callable[[Generation], None],
    ) -> CheckpointReport | None:
        waiter = self._waiter(request)
        generation = self._generation
        if generation is None or self._over.is_set() or not self._takes_requests:
            self._book.refuse(request, "the pipeline does not run now")
        else:
            ask(generation)
        waiter.done.wait(timeout_s)
        return waiter.report

    def _waiter(self, request: CheckpointRequest) -> Waiter:
        """Begin to wait; keeps a savepoint's name for it until it is known what became of it."""
        name = request.name
        if request.kind is not CheckpointKind.SAVEPOINT or name is None:
            return self._book.wait_for(request)
        savepoint_name(name)
        with self._named_lock:
            store = self._context.store
            asked = {one for one, waiter in self._named.items() if not waiter.done.is_set()}
            if name in {*store.savepoints.names(store.log.read()).values(), *asked}:
                raise ConfigError("savepoint name", f"there is a savepoint {name} already")
            self._named[name] = self._book.wait_for(request)
            return self._named[name]

    def status(self) -> RunStatus:
        """Return how things are."""
        generation = self._generation
        state = self._state
        detail = self._detail
        if generation is None:
            return RunStatus(self._context.plan.pipeline, 0, state, detail=detail)
        if generation.blocked and state == "RUNNING":
            state, detail = "COMMIT_BLOCKED", generation.blocked
        reports = self._book.reports
        steps = steps_of(generation.built, reports, self._rates)
        channels = channels_of(generation.built)
        return RunStatus(
            self._context.plan.pipeline,
            generation.number,
            state,
            steps,
            channels,
            reports,
            self._restarts,
            detail,
            generation.recovery.report,
            self._book.completed,
            self._book.failed,
        )


def in_background(
    supervisor: Supervisor, done: Callable[[RunResult | BaseException], None]
) -> None:
    """Run in a thread of its own and tell how it ended."""

    def run() -> None:
        try:
            done(supervisor.run())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            done(error)

    threading.Thread(target=run, name="supervisor", daemon=True).start()
