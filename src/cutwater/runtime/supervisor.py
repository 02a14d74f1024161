"""Runs a pipeline through its generations: recover, build, run, and restart after a failure.

A failed step takes the whole pipeline back to its last decided checkpoint (rule F10), as often as
the restart strategy allows. Each generation has a fresh scratch directory. A heartbeat shows other
processes that the pipeline runs.

A driver that was paused may find that another process has taken over: in the decision log, in a
sink, in scratch that is gone, or in a step that fails for one of these reasons. The log is
authoritative: a newer claim means that this driver is fenced, whatever error came first.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

import msgspec

from cutwater.config.options import RestartConfig
from cutwater.errors import (
    ConfigError,
    CutwaterError,
    Fenced,
    OutcomeUnknown,
    PlanError,
    RequestFailed,
    RunError,
    SinkError,
    StepError,
    StoreError,
    Superseded,
    TargetBehind,
    Unavailable,
)
from cutwater.ids import CheckpointId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Claim
from cutwater.protocol.evolution.mapping import Change
from cutwater.protocol.run_state import Lifecycle, RunState, RunTrigger
from cutwater.runtime.context import RunContext
from cutwater.runtime.event_loop import Generation
from cutwater.runtime.outcome import End, Outcome, is_starved
from cutwater.runtime.recovery import Recovery
from cutwater.runtime.reporting.attempt_history import AttemptHistory, Waiter
from cutwater.runtime.reporting.event_log import EventLog, EventName
from cutwater.runtime.reporting.failed_batch import FailedBatch, Failures, cause_of, failing_place
from cutwater.runtime.reporting.rates import LateRows, Rates, channels_of, steps_of
from cutwater.runtime.reporting.recovery_timing import Phases
from cutwater.runtime.reporting.status import CheckpointReport, RunResult, RunStatus
from cutwater.runtime.request_server import RequestServer
from cutwater.runtime.scratch import clear
from cutwater.runtime.step import RunningStep
from cutwater.store.maintenance.offline_decision import fenced_out
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Heartbeat, Lease, Leases, claim_nonce, claimant, is_gone
from cutwater.store.records.reports import RecoveryReport
from cutwater.store.records.requests import abort_reason
from cutwater.store.records.savepoints import savepoint_name

_LOG: Final = logging.getLogger(__name__)
_FAILURES_KEPT: Final = 1000
_STARVED_PAUSE_MS: Final = 1_000


class Supervisor:
    """One run of one pipeline in one process. Only `run` is bound to one thread."""

    def __init__(self, context: RunContext, restart: RestartConfig, lease: Lease) -> None:
        self._context = self.context = context
        self._restart = restart
        self.lease = lease
        leases = Leases(context.store.backend, context.pipeline)
        clock, tasks = context.clock, context.tasks
        self._heartbeat = Heartbeat(leases, lease, clock=clock, tasks=tasks)
        self._requests = RequestServer(context.store, lease.nonce, self, clock=clock, tasks=tasks)
        self._event_log = EventLog(context.plan.pipeline, context.pipeline)
        self._history = AttemptHistory(
            self._store_report, self._event_log, clock=clock, tasks=tasks
        )
        self._late_rows = LateRows(self._running_steps, tasks=tasks)
        self._named: dict[str, Waiter] = {}
        self._named_lock = tasks.lock()
        self._generation: Generation | None = None
        self._lifecycle = Lifecycle()
        self._lifecycle_lock = tasks.lock()
        self._detail = ""
        self._restarts = 0
        self._failures_ms: deque[int] = deque(maxlen=_FAILURES_KEPT)
        self._repeated = Failures()
        self._claims: list[Claim] = []
        self._wake = tasks.event()
        self._over = tasks.event()
        self._rates = Rates(clock, tasks)
        self.started = tasks.event()

    @property
    def change(self) -> Change | None:
        return self._generation.built.change if self._generation else None

    # -- the run

    def run(self) -> RunResult:
        """Run until every source has ended, a stop is requested, or the pipeline cannot continue.

        Raises:
            StepError: If a step failed more often than the restart strategy allows.
            Fenced: If another process has claimed the pipeline.
            Superseded: If a sink has committed a later decision, and the log shows no newer claim.
            TargetBehind: If a target lacks a commit that is recorded.
        """
        end = "the pipeline has ended"
        try:
            self._heartbeat.start()
            self._requests.start()
            self._late_rows.start()
            result = self._run()
            self._move(RunTrigger.FINISH)
        except BaseException as error:
            self._move(RunTrigger.FAIL, str(error))
            end = str(error)
            raise
        finally:
            self._over.set()
            self._late_rows.close()
            self.started.set()
            self._history.abandon(end)
            # Answer all requests before the lease is released: clients look at both.
            self._requests.close()
            self._heartbeat.stop()
        return result

    def _run(self) -> RunResult:
        while True:
            outcome = self._run_generation()
            fencing_error = find_fencing_error(outcome, self._context.store, self._claims)
            if fencing_error is not None:
                if not self._outlives(fencing_error):
                    raise fencing_error
                self._succeed(fencing_error)
                continue
            if outcome.end is not End.FAILED:
                break
            if isinstance(outcome.error, TargetBehind):
                # A restart would fail in the same way, and a rewind needs a stopped pipeline.
                raise outcome.error
            pause_ms = self._pause_ms(outcome)
            self._restarts += 1
            self._move(RunTrigger.RESTART, self._detail)
            # In this order: a request that arrives after this sees the state (`_ask`).
            self._history.abandon(outcome.detail or "the generation failed")
            _LOG.warning("%s; restarting in %s ms", self._detail, pause_ms)
            if self._wake.wait(pause_ms / 1000):
                break
        return RunResult(
            self._context.plan.pipeline,
            outcome.end is End.FINISHED,
            self._history.completed,
            self._restarts,
            self._history.last_completed,
            self._stop_problem(outcome),
        )

    def _outlives(self, error: BaseException) -> bool:
        """Return whether the process that has fenced this one is known to have ended."""
        if not isinstance(error, Fenced) or self._lifecycle.stop_requested:
            return False
        store = self._context.store
        try:
            claims = [entry for entry in store.log.read().entries if isinstance(entry, Claim)]
            holder = claimant(claims[-1].nonce)
            if holder is None:
                return False
            return is_gone(store.backend, store.pipeline, holder, self._wake.wait)
        except StoreError as doubt:
            _LOG.warning("it is unknown whether the process that has claimed it lives: %s", doubt)
            return False

    def _succeed(self, fenced: BaseException) -> None:
        """Prepare to claim the pipeline again, after another process has claimed it and died."""
        self._claims.clear()
        self._restarts += 1
        why = f"a process that has died had claimed the pipeline: {fenced}"
        self._move(RunTrigger.RESTART, why)
        self._history.abandon(str(fenced))
        _LOG.warning("%s", self._detail)
        self._heartbeat.begin_again()

    def _stop_problem(self, outcome: Outcome) -> str:
        """Return what a stop with a last checkpoint has left undone; empty for nothing."""
        if not self._lifecycle.saves or outcome.end is End.FINISHED:
            return ""
        # A failed generation took no last checkpoint; the stop prevented the next generation.
        return self._detail if outcome.end is End.FAILED else outcome.detail

    def _pause_ms(self, outcome: Outcome) -> int:
        """Return the pause before the next generation; raise the error if there is none.

        A run that has started does not end for lack of file descriptors or memory: such a failure
        of the driver is not counted, and the driver retries until it succeeds.
        """
        error = self._error(outcome)
        if outcome.is_starved and self._generation is not None and self._restart.restarts:
            self._detail = str(error)
            return max(_STARVED_PAUSE_MS, self._restart.delay_ms)
        self._repeated.note(self._failed_batch(outcome))
        self._detail = str(error)
        self._failures_ms.append(self._context.clock.now_ms())
        pause_ms = self._restart.pause_ms(tuple(self._failures_ms))
        if pause_ms is None:
            raise self._repeated.explain(error)
        return pause_ms

    def _failed_batch(self, outcome: Outcome) -> FailedBatch | None:
        """Find what the failed batch was reading, while its scratch still exists."""
        generation = self._generation
        if generation is None or outcome.step is None:
            return None
        try:
            return generation.built.steps[outcome.step].failed_batch()
        except (CutwaterError, OSError, ValueError) as error:
            # Only for the error message: it must not prevent the restart.
            _LOG.warning("it is unknown what the failed batch was reading: %s", error)
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
        phases = Phases(self._detail if self._restarts else "", self._context.clock)
        try:
            nonce = claim_nonce(self.lease.nonce)
            recovery = Recovery(self._context, self._claims, nonce, phases=phases)
            restore = recovery.run()
            # Before anything is staged: a rewind must find the targets of this generation.
            self._context.store.targets.record(restore.generation, self._context.targets)
            context = replace(self._context, blob_cache=recovery.blob_cache)
            generation = Generation(context, restore, self._history, phases, self._report_recovery)
            # Only now: until here, files of earlier generations may be reused instead of fetched.
            clear(self._context.scratch, restore.generation)
        except (PlanError, TargetBehind):
            # A restart would fail in the same way until an operator intervenes.
            raise
        except (Superseded, Fenced) as error:
            return Outcome(End.FENCED, error=error)
        except (SinkError, OSError) as error:
            return Outcome(End.FAILED, error=error)
        except (Unavailable, OutcomeUnknown) as error:
            # A recovery may be repeated from its beginning at any point.
            return Outcome(End.FAILED, error=error)
        except Exception as error:
            # Py4J needs a file descriptor for each connection too.
            if not is_starved(error):
                raise
            return Outcome(End.FAILED, error=error)
        generation.on_resume = self._resume
        self._generation = generation
        self._rates.clear()
        if self._lifecycle.stop_requested:
            generation.ask_to_stop(None)
        self._move(RunTrigger.RUN)
        self.started.set()
        return generation.run()

    def _report_recovery(self, report: RecoveryReport) -> None:
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
        self._requests.report(report)
        phases = msgspec.structs.asdict(report)
        number, checkpoint = int(phases.pop("generation")), phases.pop("checkpoint_id")
        where = "nothing" if checkpoint is None else f"checkpoint {checkpoint}"
        text = f"generation {number} runs, {report.total_ms} ms after it began from {where}"
        self._event_log.note(
            EventName.RECOVERED, text, generation=number, checkpoint=checkpoint, **phases
        )

    def _move(self, trigger: RunTrigger, detail: str = "") -> None:
        """Follow a trigger, and log the new state."""
        with self._lifecycle_lock:
            self._lifecycle.move(trigger)
            self._note_state(detail)

    def _move_if_possible(self, trigger: RunTrigger) -> None:
        """Follow a trigger; log nothing if the run has moved on already."""
        with self._lifecycle_lock:
            if self._lifecycle.move(trigger):
                self._note_state()

    def _note_state(self, detail: str = "") -> None:
        self._detail, state = detail, self._lifecycle.state.value
        self._event_log.note(
            EventName.STATE,
            f"{self._context.plan.pipeline} is {state}" + (f": {detail}" if detail else ""),
            generation=self._generation.number if self._generation else 0,
            level=logging.ERROR if state == "FAILED" else logging.INFO,
            state=state,
            detail=detail or None,
            restarts=self._restarts,
        )

    def _store_report(self, report: CheckpointReport) -> None:
        self._requests.report(report.record())

    def _running_steps(self) -> tuple[RunningStep, ...]:
        generation = self._generation
        if generation is None or self._lifecycle.state is not RunState.RUNNING:
            return ()
        return tuple(generation.built.steps.values())

    # -- from any thread

    def stop(self, *, checkpoint: bool) -> None:
        """Request a stop; does not wait for it."""
        with self._lifecycle_lock:
            if self._lifecycle.stop(saves=checkpoint):
                self._note_state()
        self._wake.set()
        if self._generation is not None:
            last = CheckpointRequest(is_last=True) if checkpoint else None
            self._generation.ask_to_stop(last)

    def stop_with(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Take a last checkpoint and stop; resume if it fails. Waits only for the checkpoint.

        None if the result is not known in time; ConfigError if a savepoint has that name already.
        """
        request = replace(request, is_last=True)

        def ask(generation: Generation) -> None:
            self._move_if_possible(RunTrigger.STOP)
            generation.ask_to_stop(request, insists=True)

        report = self._ask(request, timeout_s, ask)
        if report is not None and report.status != "COMPLETED":
            self._resume()
        return report

    def _resume(self) -> None:
        self._move_if_possible(RunTrigger.RESUME)

    def wait_for_end(self, timeout_s: float | None) -> bool:
        return self._over.wait(timeout_s)

    def checkpoint(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Request a checkpoint and wait until it is decided and committed, or has failed.

        None if the result is not known in time; ConfigError if a savepoint has that name already.
        """
        return self._ask(request, timeout_s, lambda generation: generation.request(request))

    def abort_checkpoint(
        self, checkpoint_id: CheckpointId | None, reason: str, timeout_s: float | None
    ) -> CheckpointReport | None:
        """Abort a pending checkpoint and wait until its attempt has ended.

        Args:
            checkpoint_id: The checkpoint; None for the only one that is pending.
            reason: Why; it is stored with the attempt.
            timeout_s: How long to wait; None for no limit.

        Raises:
            ConfigError: If the reason cannot be stored.
            RequestFailed: If nothing was aborted; the message says why.
        """
        cancel = events.Cancelled(checkpoint_id, self._context.clock.now_ms(), abort_reason(reason))
        waiter = self._history.wait_for_abort(cancel)
        generation = self._generation
        if generation is None or self._over.is_set() or not self._lifecycle.takes_requests:
            self._history.refuse_abort(waiter, "the pipeline does not run now")
        else:
            generation.cancel(cancel)
        waiter.done.wait(timeout_s)
        if waiter.refusal:
            raise RequestFailed(f"nothing was aborted: {waiter.refusal}.")
        return waiter.report

    def _ask(
        self,
        request: CheckpointRequest,
        timeout_s: float | None,
        ask: Callable[[Generation], None],
    ) -> CheckpointReport | None:
        waiter = self._waiter(request)
        generation = self._generation
        if generation is None or self._over.is_set() or not self._lifecycle.takes_requests:
            self._history.refuse(request, "the pipeline does not run now")
        else:
            ask(generation)
        waiter.done.wait(timeout_s)
        return waiter.report

    def _waiter(self, request: CheckpointRequest) -> Waiter:
        """Create a waiter; reserves a savepoint's name until the result is known."""
        name = request.name
        if request.kind is not CheckpointKind.SAVEPOINT or name is None:
            return self._history.wait_for(request)
        savepoint_name(name)
        with self._named_lock:
            store = self._context.store
            asked = {
                savepoint for savepoint, waiter in self._named.items() if not waiter.done.is_set()
            }
            if name in {*store.savepoints.names(store.log.read()).values(), *asked}:
                raise ConfigError("savepoint name", f"there is a savepoint {name} already")
            self._named[name] = self._history.wait_for(request)
            return self._named[name]

    @property
    def state(self) -> tuple[str, str]:
        """The state and its detail; takes no lock."""
        state, generation = self._lifecycle.state, self._generation
        if generation is not None and generation.blocked and state is RunState.RUNNING:
            return "COMMIT_BLOCKED", generation.blocked
        return state.value, self._detail

    def status(self) -> RunStatus:
        generation = self._generation
        state, detail = self.state
        if generation is None:
            return RunStatus(self._context.plan.pipeline, 0, state, detail=detail)
        reports = self._history.reports
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
            self._history.completed,
            self._history.failed,
        )


def run_in_background(
    supervisor: Supervisor, done: Callable[[RunResult | BaseException], None]
) -> None:
    """Run in a new task and pass the result or error to `done`."""

    def run() -> None:
        try:
            done(supervisor.run())
        except BaseException as error:  # noqa: BLE001 - the waiting thread gets it
            done(error)

    supervisor.context.tasks.start(run, "supervisor")


def find_fencing_error(
    outcome: Outcome, store: PipelineStore, tried: Collection[Claim]
) -> BaseException | None:
    """Return the error that ends a run if its generation ended because of a newer generation.

    `Fenced` if the log shows a newer claim than those this process has `tried`; otherwise the error
    of the sink that refused the generation; None if it ended for another reason.
    """
    if outcome.end not in {End.FAILED, End.FENCED}:
        return None
    try:
        fenced = fenced_out(store, tried)
    except StoreError as error:
        _LOG.warning("it is unknown whether another process runs the pipeline: %s", error)
        fenced = None
    if fenced is not None:
        fenced.__cause__ = outcome.error
    if fenced is not None or outcome.end is End.FAILED:
        return fenced
    return outcome.error or RunError(f"the pipeline has ended: {outcome.detail}.")
