"""Runs a pipeline on Spark: from a program, a notebook or the command line.

`start` plans, opens the store and the sinks, checks that no other process runs the pipeline, and
returns while the pipeline runs; `PipelineRun` is its handle. The engine is `cutwater.spark`; this
module only combines it with the user's pipeline and options.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.config.delivery import delivery_of, with_commit_interval
from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.config.settings import STORE_DEFAULT
from cutwater.errors import ConfigError, CutwaterError, MoveRefused, RunError
from cutwater.ids import CheckpointId, PipelineId, SinkId
from cutwater.operations.fork import shared_targets
from cutwater.operations.offline_pipeline import OfflinePipeline
from cutwater.operations.rewind.rewind import find_target, perform
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.evolution.mapping import Allowances, Change
from cutwater.runtime.context import RunContext
from cutwater.runtime.reporting.status import (
    ChannelStatus,
    CheckpointReport,
    RunResult,
    RunStatus,
    StepStatus,
)
from cutwater.runtime.scratch import Scratch
from cutwater.runtime.supervisor import Supervisor, run_in_background
from cutwater.sinks.base import OpenSink, ShowingSink, Sink, SinkContext, share_disk
from cutwater.sinks.checks import check_targets
from cutwater.sinks.places import locate_targets
from cutwater.spark.analysis.explain import identities
from cutwater.spark.analysis.restoring import map_or_refuse
from cutwater.spark.engine.build import SparkEngine
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import hush_callbacks
from cutwater.spark.session.session import prepare_session
from cutwater.store.backends.location import backend_for_writing
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify, open_pipeline
from cutwater.store.records.lease import hold_pipeline, take_lease
from cutwater.store.records.savepoints import savepoint_name
from cutwater.store.records.targets import StoredTarget, read_origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cutwater.pipeline.pipeline import Pipeline

_GIVE_UP_S: Final = 5.0
"""How long a start that is interrupted may take to end."""

__all__ = [
    "ChannelStatus",
    "CheckpointReport",
    "PipelineRun",
    "RunOptions",
    "RunResult",
    "RunStatus",
    "StepStatus",
    "start",
    "stored_targets",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a pipeline is run.

    Attributes:
        store: Where checkpoints are kept: a directory on durable disk, or the address of a
            bucket, such as `s3://bucket/prefix` (docs/reference/stores.md). As for `cutwater run`,
            `./.cutwater/store` by default.
        scratch: A fast directory that every executor sees; None for a private one below the
            system's temporary directory.
        checkpoint: When checkpoints are taken.
        restart: What follows a failure.
        available_now: Process what is there now, take a last checkpoint and end.
        start_from: `latest`; `none` to begin at the beginning or not at all: refused once the
            pipeline has taken a checkpoint; or a checkpoint's number, a savepoint's name or a
            time: then it is rewound first, its sinks included, and every start does so again.
        takeover: Start although another process seems to run the pipeline; it is fenced out.
        name: Run it under this name instead of its own, as a fork of it is run.
        may_rewind: Whether to rewind if `start_from` is not the current checkpoint.
        allow_new: Steps with state, sources and sinks that the checkpoint does not know may begin.
        allow_dropped: Those that are gone may be forgotten.
        swap: Sources that are other ones than in the checkpoint, and begin at their beginning
            while all state is kept. Does nothing once a checkpoint knows the new source.
        moved: Sinks whose target is the one that they wrote to before, at another address or on
            another server now, with all that Cutwater keeps beside it.
    """

    store: str | Path = STORE_DEFAULT
    scratch: Path | None = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    available_now: bool = False
    start_from: str = "latest"
    takeover: bool = False
    name: str | None = None
    may_rewind: bool = True
    allow_new: bool = False
    allow_dropped: bool = False
    swap: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    @property
    def allowed(self) -> Allowances:
        """What a restore into changed code may do."""
        return Allowances(new=self.allow_new, dropped=self.allow_dropped, swap=frozenset(self.swap))


class PipelineRun:
    """A pipeline that runs, or has run. All methods may be called from any thread.

    Attributes:
        context: What it runs with.
        lease: The lease that identifies this process to others.
    """

    def __init__(self, supervisor: Supervisor, scratch: Scratch) -> None:
        """Begin to run in the background."""
        self._supervisor = supervisor
        self._scratch = scratch
        self.context = supervisor.context
        self.lease = supervisor.lease
        self._ended = threading.Event()
        self._end: RunResult | BaseException | None = None
        run_in_background(supervisor, self._note_end)

    def _note_end(self, end: RunResult | BaseException) -> None:
        self._end = end
        self._scratch.remove()
        self._ended.set()

    def status(self) -> RunStatus:
        """Return how things are; cheap."""
        return self._supervisor.status()

    @property
    def state(self) -> str:
        """The state alone, as in `status`; no lock is waited for."""
        return self._supervisor.state[0]

    @property
    def change(self) -> Change | None:
        """The report of the checkpoint that the pipeline resumes from; None without one."""
        return self._supervisor.change

    def checkpoint(self, timeout_s: float | None = None, *, full: bool = False) -> CheckpointReport:
        """Take a checkpoint now and wait until it is decided and its sinks have committed.

        Args:
            timeout_s: How long to wait; None for as long as it takes.
            full: Whether it must be self-contained: nothing of an older one is reused.

        Returns:
            What became of it; look at its `status`.

        Raises:
            RunError: If that is not known within the time.
        """
        kind = CheckpointKind.FULL if full else CheckpointKind.CHECKPOINT
        return _require_report(
            self._supervisor.checkpoint(CheckpointRequest(kind), timeout_s), timeout_s
        )

    def savepoint(self, name: str, timeout_s: float | None = None) -> CheckpointReport:
        """Take a savepoint now: named, self-contained, kept until it is deleted explicitly.

        Returns:
            What became of it; look at its `status`.

        Raises:
            ConfigError: If it cannot have that name, or another savepoint has it.
            RunError: If it is not known within the time what became of it.
        """
        request = CheckpointRequest(CheckpointKind.SAVEPOINT, savepoint_name(name))
        return _require_report(self._supervisor.checkpoint(request, timeout_s), timeout_s)

    def abort_checkpoint(
        self, reason: str, checkpoint_id: int | None = None, timeout_s: float | None = None
    ) -> CheckpointReport:
        """Abort a pending checkpoint or savepoint; the pipeline and later checkpoints continue.

        Callers that wait for the checkpoint get the reason. An abort does not count against
        `tolerable_failed`.

        Args:
            reason: Why, in one line; it is stored with the attempt and shown wherever it is.
            checkpoint_id: The checkpoint; None for the only one that is pending.
            timeout_s: How long to wait; None for as long as it takes.

        Returns:
            The attempt that was aborted.

        Raises:
            ConfigError: If the reason is empty, too long, or has control characters.
            RequestFailed: If nothing was aborted, since no such checkpoint is pending or its
                decision is already being written; the message names the reason.
            RunError: If it is not known within the time what became of it.
        """
        number = None if checkpoint_id is None else CheckpointId(checkpoint_id)
        report = self._supervisor.abort_checkpoint(number, reason, timeout_s)
        if report is None:
            message = f"no checkpoint was aborted within {timeout_s} s; one may still be."
            raise RunError(message)
        return report

    def stop(
        self, *, checkpoint: bool = True, savepoint: str | None = None, drain: bool = False
    ) -> None:
        """Request that the pipeline end with a last checkpoint; does not wait for it (`wait`).

        Args:
            checkpoint: Whether to take a last checkpoint; if it fails, the pipeline ends anyway.
            savepoint: Take a savepoint of this name instead, and wait for it.
            drain: Let the sources stop at the barrier, so that everything before it has gone
                through to the sinks, and nothing after it has begun; waits for the checkpoint.

        Raises:
            ConfigError: If the savepoint cannot have that name, or another one has it.
            RunError: If the savepoint, or the checkpoint of a drain, failed: the pipeline keeps
                running.
        """
        if savepoint is None and not drain:
            self._supervisor.stop(checkpoint=checkpoint)
            return
        kind = CheckpointKind.CHECKPOINT
        if savepoint is not None:
            kind = CheckpointKind.SAVEPOINT
            savepoint_name(savepoint)
        report = self._supervisor.stop_with(CheckpointRequest(kind, savepoint, drain), None)
        if report is not None and report.status != "COMPLETED":
            message = f"the pipeline keeps running, its last checkpoint failed: {report.failure}."
            raise RunError(message)

    def kill(self) -> None:
        """End at once, without a checkpoint; the next start resumes from the last one."""
        self._supervisor.stop(checkpoint=False)

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        """Wait for the end.

        Returns:
            How it ended; None if it still runs when the time is up.

        Raises:
            CutwaterError: What made it fail.
        """
        if not self._ended.wait(timeout_s):
            return None
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end

    def wait_until_started(self) -> None:
        """Wait until the first generation runs.

        Raises:
            CutwaterError: If it never did.
        """
        self._supervisor.started.wait()
        if self._ended.is_set() or not self._supervisor.status().generation:
            self.wait()


def start(
    pipeline: "Pipeline", spark: "SparkSession", options: RunOptions | CheckpointConfig
) -> PipelineRun:
    """Start a pipeline; returns when its first generation runs.

    Args:
        pipeline: The pipeline.
        spark: The session it runs on.
        options: How it is run; a `CheckpointConfig` means `RunOptions` with only that set.

    Raises:
        PlanError: If the pipeline cannot be planned or run on Spark.
        ConfigError: If an option cannot work.
        SessionError: If the session cannot run a pipeline.
        RunError: If another process runs it.
        MoveRefused: If it cannot be rewound to `start_from`, or if it is a fork that would write
            to its original's tables.
        CutwaterError: If it cannot start for any other reason.
    """
    if isinstance(options, CheckpointConfig):
        options = RunOptions(checkpoint=options)
    name = options.name or pipeline.name
    goes_back = options.start_from not in {"latest", "none"}
    physical = replace(plan(pipeline), pipeline=name)
    # A target that cannot be checked now is reported when it is opened.
    check_targets(physical)
    prepare_session(spark)
    internals = Internals(spark)
    internals.self_check()
    hush_callbacks()
    backend = backend_for_writing(options.store)
    if goes_back:
        identify(backend, name, "from")
    identity = open_pipeline(backend, name)
    store = PipelineStore.of(backend, identity)
    lease = take_lease(backend, identity, name, takeover=options.takeover)
    if options.start_from == "none" and store.log.read().head is not None:
        reason = "a new start would write its rows a second time"
        way = "use another store, or another name, and other tables"
        raise ConfigError("from", f"{name} has checkpoints, and {reason}; {way}")
    targets = locate_targets(dict(_targets(physical)), store, options.moved)
    shared = shared_targets(backend, identity, targets)
    if shared is not None:
        raise MoveRefused(name, shared)
    sinks = _open_sinks(physical, spark, identity)
    if goes_back:
        _rewind_to_start(OfflinePipeline(name, store, targets, sinks), options, physical, spark)
    scratch = Scratch.make(options.scratch, identity, shared=not share_disk(spark))
    context = RunContext(
        plan=physical,
        engine=SparkEngine(internals),
        store=store,
        sinks=sinks,
        options=with_commit_interval(
            options.checkpoint.options(), [target for _, target in _targets(physical)]
        ),
        bound=options.checkpoint.channel_bound(),
        target_batch_ms=options.checkpoint.target_batch_ms,
        scratch=scratch.path,
        available_now=options.available_now,
        targets=targets,
        is_fork=read_origin(backend, identity) is not None,
        allowed=options.allowed,
    )
    return _await_start(PipelineRun(Supervisor(context, options.restart, lease), scratch))


def _await_start(run: PipelineRun) -> PipelineRun:
    """Wait until a run has started; if the start is interrupted, end the run and wait briefly."""
    try:
        run.wait_until_started()
    except Exception:
        raise
    except BaseException:
        # Ctrl-C or a signal: its lease is released and its scratch removed.
        run.kill()
        with suppress(CutwaterError):
            run.wait(_GIVE_UP_S)
        raise
    return run


def _require_report(report: CheckpointReport | None, timeout_s: float | None) -> CheckpointReport:
    if report is None:
        message = f"no checkpoint was completed within {timeout_s} s; it may still be."
        raise RunError(message)
    return report


def _rewind_to_start(
    offline: OfflinePipeline, options: RunOptions, physical: PhysicalPlan, spark: "SparkSession"
) -> None:
    """Rewind to the requested start, unless the pipeline is already there.

    Nothing is rolled back if the current code could not resume from there.
    """
    log = offline.store.log.read()
    target = find_target(offline, log, options.start_from, "from")
    if target.decision == log.head:
        return
    if not options.may_rewind:
        reason = f"{target.title} is not the current checkpoint of {offline.name}: this is a rewind"
        raise ConfigError("from", reason)
    if target.cut is not None:
        map_or_refuse(target.cut, identities(physical, spark), options.allowed)
    identity = offline.store.pipeline
    with hold_pipeline(offline.store.backend, identity, offline.name, takeover=options.takeover):
        perform(offline, log, target, leave_sinks=False)


def stored_targets(physical: PhysicalPlan) -> dict[SinkId, StoredTarget]:
    """Return where the sinks of a pipeline write, as the store records it.

    Raises:
        ConfigError: If a sink's target is none of ours.
    """
    return {name: target.stored() for name, target in _targets(physical)}


def _targets(physical: PhysicalPlan) -> Iterator[tuple[SinkId, Sink]]:
    for step in physical.steps:
        node = step.sink
        if node is None:
            continue
        if not isinstance(node.target, Sink):
            raise ConfigError(node.name, f"{node.target!r} cannot be opened; use one of sinks.…")
        yield SinkId(node.name), node.target


def _open_sinks(
    physical: PhysicalPlan, spark: "SparkSession", pipeline: PipelineId
) -> dict[SinkId, OpenSink]:
    opened = {}
    for name, target in _targets(physical):
        opened[name] = target.open(SinkContext(spark, pipeline, name))
        if delivery_of(target).shows_batches and not isinstance(opened[name], ShowingSink):
            reason = f"sink {name}, a {target.format}, cannot be taken back after a failure"
            raise ConfigError("visibility", f"{reason}; leave visibility='batch' out")
    return opened
