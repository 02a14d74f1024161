"""One pipeline as the server shows it: with its run, or from its store alone.

Finished checkpoints come from the store (`history`), those in progress from the run. They are
merged here, so that a checkpoint is in the list from its start. Nothing here is called on a thread
that the pipeline needs.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from cutwater.errors import Corrupt, MoveRefused, NewerFormat, NotFound
from cutwater.ids import CheckpointId, StepId
from cutwater.operations.offline_pipeline import open_offline
from cutwater.operations.rewind.facts import observe
from cutwater.operations.rewind.preview import Rewind, preview_of
from cutwater.operations.rewind.rewind import find_target
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.reporting.status import RunStatus
from cutwater.server.operations import (
    LiveOperations,
    Operations,
    Running,
    StoreOperations,
)
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Addresses, Hold, Holding, holder_of, look
from cutwater.store.records.targets import SinkTargets
from cutwater.views.build import attempt_of, without_steps
from cutwater.views.dag import live_dag, stored_dag
from cutwater.views.history import History, Listing
from cutwater.views.models import Checkpoint, CheckpointDetail, Dag, Job

_STATUS_S: Final = 0.2
_HOLD_S: Final = 1.0


class Live(NamedTuple):
    """A run of the pipeline in this process."""

    running: Running
    plan: PhysicalPlan
    options: CheckpointOptions
    targets: SinkTargets


class Busy(Exception):
    """The same preview is being made for another client; try again later."""


@dataclass(slots=True)
class PipelineView:
    """One pipeline. Every method may be called from any thread.

    Attributes:
        store: The pipeline's store, opened for this object only.
        token_hint: Where users find the token for changes.
    """

    name: str
    store: PipelineStore
    live: Live | None = None
    token_hint: str = ""
    history: History = field(init=False)
    operations: Operations = field(init=False)
    _status: tuple[float, RunStatus] | None = None
    _hold: tuple[float, Hold] | None = None
    _cut: tuple[CheckpointId, Cut] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _preview_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        own = partial(PipelineStore.of, self.store.backend, self.store.pipeline)
        self.history = History(own(), lambda: self.is_running)
        where = self.history.location
        self.operations = (
            StoreOperations(own(), self.name, where)
            if self.live is None
            else LiveOperations(self.live.running, where)
        )

    # -- status

    def status(self) -> RunStatus | None:
        """Return the status of the run in this process; None if there is none."""
        if self.live is None:
            return None
        with self._lock:
            now = time.monotonic()
            if self._status is None or now - self._status[0] >= _STATUS_S:
                self._status = (now, self.live.running.status())
            return self._status[1]

    def hold(self) -> Hold:
        """Return the holder of the pipeline, at most a second old."""
        found = self._hold
        now = time.monotonic()
        if found is None or now - found[0] >= _HOLD_S:
            found = (now, look(self.store.backend, self.store.pipeline))
            self._hold = found
        return found[1]

    @property
    def is_running(self) -> bool:
        return self.live is not None or self.hold().holding is Holding.HELD

    def job(self) -> Job:
        status, recoveries = self.status(), self.history.read().recoveries
        newest = recoveries[0] if recoveries else None
        hold = self.hold()
        lease = hold.lease
        state, url = "NOT_RUNNING", None
        if status is not None:
            state = status.state
        elif hold.holding is Holding.HELD and lease is not None:
            state = "RUNNING"
            address = Addresses(self.store.backend, self.store.pipeline).of(lease.nonce)
            url = None if address is None else address.url
        return Job(
            jid=self.store.pipeline,
            name=self.name,
            state=state,
            start_time=newest.timestamp if newest else None,
            generation=status.generation if status else newest.generation if newest else 0,
            restarts=status.restarts if status else 0,
            detail=(status.detail if status else "")[:2_000],
            live=self.live is not None,
            url=url,
            holder=f"process {lease.process} on {lease.host}" if lease else None,
            store=self.store.backend.url,
            can_change=self.is_running,
            token_hint=self.token_hint,
        )

    # -- DAG

    def dag(self) -> Dag:
        status = self.status()
        if self.live is None or status is None:
            return stored_dag(self.store.pipeline, self.name, self.head(), self.targets())
        return live_dag(
            self.store.pipeline, self.live.plan, status, self.live.targets, self._identities()
        )

    def _identities(self) -> Mapping[StepId, StepIdentity]:
        """Return the identities in the current checkpoint; they do not change during a run."""
        if self._cut is not None:
            return self._cut[1].identities
        cut = self.head()
        return {} if cut is None else cut.identities

    def head(self) -> Cut | None:
        """Return the current cut; None if there is none that can be read."""
        current = next(
            (checkpoint for checkpoint in self.history.read().checkpoints if checkpoint.is_current),
            None,
        )
        if current is None:
            return None
        known = self._cut
        if known is not None and known[0] == current.id:
            return known[1]
        store = PipelineStore.of(self.store.backend, self.store.pipeline)
        decision = store.log.read().head
        if decision is None:
            return None
        try:
            cut = store.manifests.read(decision.checkpoint_id, decision.manifest_sha256)
        except (Corrupt, NewerFormat, NotFound):
            return None
        self._cut = (decision.checkpoint_id, cut)
        return cut

    def targets(self) -> SinkTargets:
        if self.live is not None:
            return self.live.targets
        return self.store.targets.newest(self.store.log.read()) or {}

    # -- checkpoints

    def recent(self) -> list[CheckpointDetail]:
        """Return the attempts of the run in this process, newest first."""
        status = self.status()
        if self.live is None or status is None:
            return []
        steps = [step.name for step in self.live.plan.steps]
        # Steps report the alignment of the newest open attempt.
        opened = [report.id for report in status.checkpoints if report.status == "IN_PROGRESS"][-1:]
        alignments = {
            step.name: step.alignment for step in status.steps if step.alignment is not None
        }
        return [
            attempt_of(report, steps, alignments if report.id in opened else {})
            for report in reversed(status.checkpoints)
            if report.id
        ]

    def checkpoints(self) -> Listing:
        """Return the list of checkpoints, newest first."""
        listed = self.history.read()
        recent = {attempt.id: without_steps(attempt) for attempt in self.recent()}
        if not recent:
            return listed
        # The store is authoritative about decisions and table versions; the run is earlier.
        known = {checkpoint.id: checkpoint for checkpoint in listed.checkpoints}
        merged: dict[int, Checkpoint] = {**known}
        for number, attempt in recent.items():
            stored = known.get(number)
            if (
                stored is None
                or stored.status != attempt.status
                or stored.end_to_end_duration is None
            ):
                kept = {} if stored is None else {"is_current": stored.is_current}
                merged[number] = attempt.model_copy(update=kept)
        ordered = tuple(merged[number] for number in sorted(merged, reverse=True))
        return listed._replace(checkpoints=ordered)

    def checkpoint(self, checkpoint_id: CheckpointId) -> CheckpointDetail | None:
        """Return one checkpoint with its steps; None if it never existed."""
        live = next((attempt for attempt in self.recent() if attempt.id == checkpoint_id), None)
        if live is not None and live.status == "IN_PROGRESS":
            return live
        stored = self.history.checkpoint(checkpoint_id)
        if stored is None or (live is not None and stored.end_to_end_duration is None):
            return live or stored
        return stored

    # -- rewinding

    def preview(self, to: str) -> Rewind:
        """Return what a rewind would do; reads every object of the checkpoint.

        Raises `Busy` while another preview is being made.
        """
        if not self._preview_lock.acquire(blocking=False):
            raise Busy
        try:
            try:
                return self._preview(to)
            except MoveRefused:
                # A running pipeline may have decided and committed between two reads.
                return self._preview(to)
        finally:
            self._preview_lock.release()

    def _preview(self, to: str) -> Rewind:
        backend = self.store.backend
        offline = open_offline(backend, self.name)
        held = holder_of(backend, self.store.pipeline, self.name)
        log = offline.store.log.read()
        target = find_target(offline, log, to, "to")
        refusal = None if held is None else held.message.rstrip(".")
        return preview_of(observe(offline, log, target, leave_sinks=False, held=refusal))
