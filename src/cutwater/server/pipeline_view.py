"""A pipeline as it is served: by the process that runs it, or out of its store by any other.

What is over comes from the store (`history`), what is under way from the run; the two are put
together here, so that a checkpoint shows in the list from the moment it begins. Nothing here is
called on a thread that the pipeline needs.
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
from cutwater.views.history import History, Listed
from cutwater.views.models import Checkpoint, CheckpointDetail
from cutwater.views.pipeline_models import Dag, Job

_STATUS_S: Final = 0.2
_HOLD_S: Final = 1.0


class Live(NamedTuple):
    """A run of the pipeline in this process.

    Attributes:
        running: The run.
        plan: Its plan.
        options: When it takes checkpoints.
        targets: Where its sinks write.
    """

    running: Running
    plan: PhysicalPlan
    options: CheckpointOptions
    targets: SinkTargets


class Busy(Exception):
    """The same is being done for somebody else; ask again in a while."""


@dataclass(slots=True)
class Served:
    """One pipeline. Every method may be called from any thread.

    Attributes:
        name: Its name.
        store: The pipeline in its store, opened for this alone.
        live: Its run, if this process runs it.
        token_hint: Where people find the token for changes.
        history: Its checkpoints, as the store tells of them.
        operations: Where things are asked for.
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
    _moving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Prepare; nothing is read yet."""
        own = partial(PipelineStore.of, self.store.backend, self.store.pipeline)
        self.history = History(own(), lambda: self.is_running)
        where = self.history.location
        self.operations = (
            StoreOperations(own(), self.name, where)
            if self.live is None
            else LiveOperations(self.live.running, where)
        )

    # -- how it is

    def status(self) -> RunStatus | None:
        """Return how the run of this process is; None if it has none."""
        if self.live is None:
            return None
        with self._lock:
            now = time.monotonic()
            if self._status is None or now - self._status[0] >= _STATUS_S:
                self._status = (now, self.live.running.status())
            return self._status[1]

    def hold(self) -> Hold:
        """Return who holds the pipeline, as it was at most a second ago.

        Raises:
            StoreError: If the lease cannot be read.
        """
        found = self._hold
        now = time.monotonic()
        if found is None or now - found[0] >= _HOLD_S:
            found = (now, look(self.store.backend, self.store.pipeline))
            self._hold = found
        return found[1]

    @property
    def is_running(self) -> bool:
        """Whether this process or another one runs it."""
        return self.live is not None or self.hold().holding is Holding.HELD

    def job(self) -> Job:
        """Return what it is and how it is.

        Raises:
            StoreError: If the store cannot be read.
        """
        status, recoveries = self.status(), self.history.listed().recoveries
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

    # -- its shape

    def dag(self) -> Dag:
        """Return its steps and channels.

        Raises:
            StoreError: If the store cannot be read.
        """
        status = self.status()
        if self.live is None or status is None:
            return stored_dag(self.store.pipeline, self.name, self.head(), self.targets())
        return live_dag(
            self.store.pipeline, self.live.plan, status, self.live.targets, self._identities()
        )

    def _identities(self) -> Mapping[StepId, StepIdentity]:
        """Return what a checkpoint says of the steps; it does not change while they run."""
        if self._cut is not None:
            return self._cut[1].identities
        cut = self.head()
        return {} if cut is None else cut.identities

    def head(self) -> Cut | None:
        """Return the cut the pipeline stands on; None if there is none that can be read.

        Raises:
            Unavailable: If the store does not answer.
        """
        current = next((one for one in self.history.listed().checkpoints if one.is_current), None)
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
        """Return where the sinks write.

        Raises:
            StoreError: If the store cannot be read.
        """
        if self.live is not None:
            return self.live.targets
        return self.store.targets.newest(self.store.log.read()) or {}

    # -- its checkpoints

    def recent(self) -> list[CheckpointDetail]:
        """Return the attempts of the run of this process, newest first."""
        status = self.status()
        if self.live is None or status is None:
            return []
        steps = [one.name for one in self.live.plan.steps]
        # Steps tell of the newest attempt that is under way.
        opened = [one.id for one in status.checkpoints if one.status == "IN_PROGRESS"][-1:]
        alignments = {one.name: one.alignment for one in status.steps if one.alignment is not None}
        return [
            attempt_of(one, steps, alignments if one.id in opened else {})
            for one in reversed(status.checkpoints)
            if one.id
        ]

    def checkpoints(self) -> Listed:
        """Return all checkpoints to list, newest first.

        Raises:
            StoreError: If the store cannot be read.
        """
        listed = self.history.listed()
        recent = {one.id: without_steps(one) for one in self.recent()}
        if not recent:
            return listed
        # The store knows best what is decided and what its sinks show; the run knows sooner.
        known = {one.id: one for one in listed.checkpoints}
        merged: dict[int, Checkpoint] = {**known}
        for number, one in recent.items():
            stored = known.get(number)
            if stored is None or stored.status != one.status or stored.end_to_end_duration is None:
                kept = {} if stored is None else {"is_current": stored.is_current}
                merged[number] = one.model_copy(update=kept)
        ordered = tuple(merged[number] for number in sorted(merged, reverse=True))
        return listed._replace(checkpoints=ordered)

    def checkpoint(self, checkpoint_id: CheckpointId) -> CheckpointDetail | None:
        """Return one of them with its steps; None if there never was one.

        Raises:
            StoreError: If the store cannot be read.
        """
        live = next((one for one in self.recent() if one.id == checkpoint_id), None)
        if live is not None and live.status == "IN_PROGRESS":
            return live
        stored = self.history.one(checkpoint_id)
        if stored is None or (live is not None and stored.end_to_end_duration is None):
            return live or stored
        return stored

    # -- rewinding

    def preview(self, to: str) -> Rewind:
        """Say what a rewind would do; reads every object of the checkpoint.

        Raises:
            Busy: If that is being done already.
            ConfigError: If there is no such checkpoint.
            MoveRefused: If it cannot even be looked at.
            StoreError: If the store cannot be read.
        """
        if not self._moving.acquire(blocking=False):
            raise Busy
        try:
            try:
                return self._preview(to)
            except MoveRefused:
                # A running pipeline may have decided and committed between two of our reads.
                return self._preview(to)
        finally:
            self._moving.release()

    def _preview(self, to: str) -> Rewind:
        backend = self.store.backend
        offline = open_offline(backend, self.name)
        held = holder_of(backend, self.store.pipeline, self.name)
        log = offline.store.log.read()
        target = find_target(offline, log, to, "to")
        refusal = None if held is None else held.message.rstrip(".")
        return preview_of(observe(offline, log, target, leave_sinks=False, held=refusal))
