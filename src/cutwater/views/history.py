"""The checkpoints of a pipeline as its store records them, read once and cached.

Every open dashboard requests a list of hundreds of checkpoints every second. A finished checkpoint
does not change, so only new records are read. One refresh costs three listings and the new records,
happens at most once a second for any number of clients, and never runs on a thread that the
pipeline needs. The newest checkpoints are read first: with a slow store they appear at once and the
older ones later.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from cutwater.errors import Corrupt
from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.backend import each
from cutwater.store.maintenance.inspect import CheckpointView, Inspector, Overview, Status
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.views.build import checkpoint_of, recovery_of, without_steps
from cutwater.views.models import Checkpoint, CheckpointDetail, Recovery

LISTED_MAX: Final = 1_000
"""How many checkpoints are listed at most; savepoints stay in the list beyond that."""

SAVEPOINTS_MAX: Final = 200
RECOVERIES_MAX: Final = 100
_EVERY_S: Final = 1.0
_BUDGET_S: Final = 1.0
_CHUNK: Final = 50
_MAY_CHANGE: Final = 20
"""How many of the newest checkpoints are read again until everything about them is known."""


class Listing(NamedTuple):
    """The history at one moment, newest first.

    Attributes:
        version: Changes whenever any other attribute changes.
        complete: Whether everything in the list has been read.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    version: int = 0
    complete: bool = False


class History:
    """The history of one pipeline. Every method may be called from any thread."""

    def __init__(self, store: PipelineStore, is_running: Callable[[], bool]) -> None:
        """Prepare; nothing is read yet. The store must be opened for this object only."""
        self.store = store
        self.location = f"{store.backend.url}/{PipelinePaths(store.pipeline).manifests}"
        self._is_running = is_running
        self._lock = threading.Lock()
        self._read_s: float | None = None
        self._known: dict[CheckpointId, Checkpoint] = {}
        self._settled: set[CheckpointId] = set()
        self._recoveries: dict[Generation, Recovery] = {}
        self._listing = Listing()

    def read(self) -> Listing:
        """Return the history, after a refresh if the last one was at least a second ago."""
        is_first = self._read_s is None
        # A caller that arrives during a refresh gets the last result, unless there is none yet.
        if not self._lock.acquire(blocking=is_first):
            return self._listing
        try:
            if self._read_s is None or time.monotonic() - self._read_s >= _EVERY_S:
                self._read()
        finally:
            self._lock.release()
        return self._listing

    def checkpoint(self, checkpoint_id: CheckpointId) -> CheckpointDetail | None:
        """Read one checkpoint with its steps; None if it never existed."""
        # With a log of its own: another thread may be reading the log of the list.
        store = PipelineStore.of(self.store.backend, self.store.pipeline)
        view = Inspector(store, self._is_running()).one(checkpoint_id)
        return None if view is None else checkpoint_of(view, self.location)

    # -- reading, with the lock held

    def _read(self) -> None:
        inspector = Inspector(self.store, self._is_running())
        overview = inspector.look()
        selected = _select_ids(overview)
        newest = frozenset(selected[:_MAY_CHANGE])
        missing = [
            checkpoint_id for checkpoint_id in selected if checkpoint_id not in self._settled
        ]
        end_s = time.monotonic() + _BUDGET_S
        while missing:
            chunk, missing = missing[:_CHUNK], missing[_CHUNK:]
            for view in each(
                self.store.backend,
                lambda checkpoint_id: inspector.view(checkpoint_id, overview),
                chunk,
            ):
                if view is not None:
                    self._keep(view, is_old=view.id not in newest)
            if time.monotonic() >= end_s:
                break
        self._follow(overview, selected)
        self._read_recoveries()
        self._publish(selected, complete=not missing)
        self._read_s = time.monotonic()

    def _keep(self, view: CheckpointView, *, is_old: bool) -> None:
        self._known[view.id] = without_steps(checkpoint_of(view, self.location))
        commits = view.decision is not None and view.decision.commit_point
        is_known = view.report is not None and (view.versions is not None or not commits)
        is_over = view.status is not Status.IN_PROGRESS
        if is_over and (is_known or is_old):
            self._settled.add(view.id)

    def _follow(self, overview: Overview, selected: list[CheckpointId]) -> None:
        """Update what can still change of a settled checkpoint: is it current, is it deleted."""
        head = overview.log.head
        head_id = None if head is None else head.checkpoint_id
        for checkpoint_id in selected:
            known = self._known.get(checkpoint_id)
            if known is None or known.status != "COMPLETED":
                continue
            gone = checkpoint_id not in overview.present
            changes: dict[str, object] = {"is_current": checkpoint_id == head_id, "discarded": gone}
            if gone:
                changes["external_path"] = None
            if any(getattr(known, name) != value for name, value in changes.items()):
                self._known[checkpoint_id] = known.model_copy(update=changes)
        for checkpoint_id in self._known.keys() - set(selected):
            del self._known[checkpoint_id]
            self._settled.discard(checkpoint_id)

    def _read_recoveries(self) -> None:
        paths = PipelinePaths(self.store.pipeline)
        found = self.store.backend.list(paths.recoveries)[-RECOVERIES_MAX:]
        generations = []
        for path in found:
            try:
                generations.append(paths.generation_of_recovery(path))
            except Corrupt:
                continue
        # The newest report is written again after the first batch.
        new = [
            generation
            for generation in generations
            if generation not in self._recoveries or generation == generations[-1]
        ]
        for report in each(self.store.backend, self.store.reports.recovery, new):
            if report is not None:
                self._recoveries[report.generation] = recovery_of(report)
        for generation in self._recoveries.keys() - set(generations):
            del self._recoveries[generation]

    def _publish(self, selected: list[CheckpointId], *, complete: bool) -> None:
        before = self._listing
        checkpoints = tuple(
            self._known[checkpoint_id] for checkpoint_id in selected if checkpoint_id in self._known
        )
        recoveries = tuple(
            recovery for _, recovery in sorted(self._recoveries.items(), reverse=True)
        )
        made = (checkpoints, recoveries, complete)
        changed = made != (before.checkpoints, before.recoveries, before.complete)
        self._listing = Listing(checkpoints, recoveries, before.version + changed, complete)


def _select_ids(overview: Overview) -> list[CheckpointId]:
    """Return the ids to list, newest first: the newest of all kinds, and older savepoints."""
    ids = overview.ids
    saved = [
        decision.checkpoint_id
        for decision in overview.log.decisions
        if decision.kind is CheckpointKind.SAVEPOINT and decision.checkpoint_id in overview.present
    ]
    return sorted({*ids[-LISTED_MAX:], *saved[-SAVEPOINTS_MAX:]}, reverse=True)
