"""Runs a pipeline on Spark: from a program, a notebook or the command line.

`start` plans, opens the store and the sinks, sees that nobody else runs the pipeline, and returns
while it runs; `PipelineRun` is the handle to it. What runs is `cutwater.spark`; this module only
puts a user's pipeline and options together with it.
"""

import os
import socket
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.config import CheckpointConfig, RestartConfig
from cutwater.errors import ConfigError, PipelineHeld, RunError
from cutwater.ids import PipelineId, SinkId
from cutwater.physical_plan import PhysicalPlan
from cutwater.plan import plan
from cutwater.protocol.change import Allowances, Change
from cutwater.protocol.pending import CheckpointRequest
from cutwater.sinks.base import OpenSink, Sink, SinkContext
from cutwater.spark.clock import wall_ms
from cutwater.spark.context import RunContext, is_local
from cutwater.spark.internals import Internals
from cutwater.spark.native_source import hush_callbacks
from cutwater.spark.progress import (
    ChannelStatus,
    CheckpointReport,
    RunResult,
    RunStatus,
    StepStatus,
)
from cutwater.spark.scratch import Scratch
from cutwater.spark.session import prepare_session
from cutwater.spark.supervisor import Supervisor, in_background
from cutwater.store.backend import Backend
from cutwater.store.catalog import open_pipeline
from cutwater.store.lease import Holding, Lease, Leases, holding, process_is_dead
from cutwater.store.local import LocalBackend
from cutwater.store.opened import OpenStore
from cutwater.store.probe import probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cutwater.pipeline import Pipeline

__all__ = [
    "ChannelStatus",
    "CheckpointReport",
    "PipelineRun",
    "RunOptions",
    "RunResult",
    "RunStatus",
    "StepStatus",
    "start",
]


_LIVE: Final[set[str]] = set()
"""The nonces of all leases of this process: what has its number and none of these is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a pipeline is run.

    Attributes:
        store: Where checkpoints are kept: a directory on durable disk.
        scratch: A fast directory that every executor sees; None for one of the system's own.
        checkpoint: When checkpoints are taken.
        restart: What follows a failure.
        available_now: Process what is there now, take a last checkpoint and end.
        start_from: `latest`, or `none` to begin anew, which only a pipeline that has never taken
            a checkpoint may.
        takeover: Start although another process seems to run the pipeline; it is fenced out.
        allow_new: Steps with state, sources and sinks that the checkpoint does not know may begin.
        allow_dropped: Those that are gone may be forgotten.
        swap: Sources that are other ones than in the checkpoint, and begin at their beginning
            while all state is kept. Does nothing once a checkpoint knows the new source.
    """

    store: Path
    scratch: Path | None = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    available_now: bool = False
    start_from: str = "latest"
    takeover: bool = False
    allow_new: bool = False
    allow_dropped: bool = False
    swap: tuple[str, ...] = ()

    @property
    def allowed(self) -> Allowances:
        """What a restore into changed code may do."""
        return Allowances(new=self.allow_new, dropped=self.allow_dropped, swap=frozenset(self.swap))


class PipelineRun:
    """A pipeline that runs, or has run. All methods may be called from any thread."""

    def __init__(self, supervisor: Supervisor, scratch: Scratch) -> None:
        """Begin to run in the background."""
        self._supervisor = supervisor
        self._scratch = scratch
        self._ended = threading.Event()
        self._end: RunResult | BaseException | None = None
        in_background(supervisor, self._note_end)

    def _note_end(self, end: RunResult | BaseException) -> None:
        self._end = end
        self._scratch.remove()
        self._ended.set()

    def status(self) -> RunStatus:
        """Return how things are; cheap."""
        return self._supervisor.status()

    @property
    def change(self) -> Change | None:
        """What became of the checkpoint that the pipeline goes on from; None without one."""
        return self._supervisor.change

    def checkpoint(self, timeout_s: float | None = None) -> CheckpointReport:
        """Take a checkpoint now and wait until it is decided and its sinks have committed.

        Raises:
            RunError: If that is not known within the time.
        """
        report = self._supervisor.checkpoint(CheckpointRequest(), timeout_s)
        if report is None:
            message = f"no checkpoint was completed within {timeout_s} s; it may still be."
            raise RunError(message)
        return report

    def stop(self, *, checkpoint: bool = True) -> None:
        """Ask the pipeline to end, with a last checkpoint; does not wait (see `wait`)."""
        self._supervisor.stop(checkpoint=checkpoint)

    def kill(self) -> None:
        """End at once, without a checkpoint; the next start goes on from the last one."""
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


def start(pipeline: "Pipeline", spark: "SparkSession", options: RunOptions) -> PipelineRun:
    """Start a pipeline; returns when its first generation runs.

    Raises:
        PlanError: If the pipeline cannot be planned or run on Spark.
        ConfigError: If an option cannot work.
        SessionError: If the session cannot run a pipeline.
        RunError: If another process runs it.
        CutwaterError: Whatever else keeps it from starting.
    """
    if options.start_from not in {"latest", "none"}:
        raise ConfigError("from", f"{options.start_from!r} is neither latest nor none")
    physical = plan(pipeline)
    prepare_session(spark)
    internals = Internals(spark)
    internals.self_check()
    hush_callbacks()
    backend = LocalBackend(options.store)
    backend.clean()
    probe(backend)
    identity = open_pipeline(backend, pipeline.name)
    store = OpenStore.of(backend, identity)
    lease = _lease(backend, identity, pipeline.name, takeover=options.takeover)
    if options.start_from == "none" and store.log.read().head is not None:
        raise ConfigError("from", f"{pipeline.name} has checkpoints; none would forget them")
    scratch = Scratch.make(options.scratch, identity, shared=not is_local(spark))
    context = RunContext(
        plan=physical,
        internals=internals,
        store=store,
        sinks=_open_sinks(physical, spark, identity),
        options=options.checkpoint.options(),
        bound=options.checkpoint.channel_bound(),
        scratch=scratch.path,
        available_now=options.available_now,
        allowed=options.allowed,
    )
    run = PipelineRun(Supervisor(context, options.restart, lease), scratch)
    run.wait_until_started()
    return run


def _lease(backend: Backend, pipeline: PipelineId, name: str, *, takeover: bool) -> Lease:
    """Say who we are, unless somebody else holds the pipeline."""
    found = Leases(backend, pipeline).read()
    at_ms = wall_ms()
    held = holding(found, at_ms, is_dead=found is not None and process_is_dead(found, _LIVE))
    if held is Holding.HELD and not takeover:
        assert found is not None
        age_s = max(0, at_ms - found.beat_at_ms) // 1000
        raise PipelineHeld(name, found.host, found.process, age_s)
    lease = Lease(socket.gethostname(), os.getpid(), uuid.uuid4().hex, at_ms)
    _LIVE.add(lease.nonce)
    return lease


def _open_sinks(
    physical: PhysicalPlan, spark: "SparkSession", pipeline: PipelineId
) -> dict[SinkId, OpenSink]:
    opened: dict[SinkId, OpenSink] = {}
    for step in physical.steps:
        node = step.sink
        if node is None:
            continue
        if not isinstance(node.target, Sink):
            raise ConfigError(node.name, f"{node.target!r} cannot be opened; use one of sinks.…")
        name = SinkId(node.name)
        opened[name] = node.target.open(SinkContext(spark, pipeline, name))
    return opened
