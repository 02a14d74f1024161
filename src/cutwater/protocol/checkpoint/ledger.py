"""What one generation has decided so far, and the next cut that can follow (section 9).

`Ledger` keeps the last slot of the log, the carried output, each step's batch in the last decided
cut and what each sink shows. It builds the description of a cut from an attempt whose
acknowledgements are complete. It decides nothing.

`CommitPace` says how often sinks commit (`commit_every`, ADR 0020). A cut that comes before the
next commit is due is a recovery point and carries the staged output. Time is the start of the
attempt, which arrived in an event. A savepoint, a full checkpoint, a drain, the last checkpoint of
a run and a cut in which every source has finished commit at once. After a restart it is unknown
how long rows have waited, so a commit is due. Upholds I5, I7, I10 and I12.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cutwater.ids import NO_BATCH, Generation, SinkId, Slot
from cutwater.protocol.checkpoint.attempt import Attempt
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.commit import plan_commit, waits_for_alignment
from cutwater.protocol.cut import Cut, StepSnapshot, Version, faults
from cutwater.protocol.lost_commit import last_writes
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.topology import Topology


@dataclass(frozen=True, slots=True)
class Contradictions:
    """Why acknowledgements do not form a cut, one sentence each."""

    sentences: tuple[str, ...]


class CommitPace:
    """How often the sinks of one generation commit."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._committed_at_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        last_ms = self._committed_at_ms
        return last_ms is None or now_ms - last_ms >= self._every_ms

    def commits(self, attempt: Attempt, sources: Iterable[StepSnapshot]) -> bool:
        """Return whether sinks commit at the cut of this attempt, as far as time is concerned."""
        request = attempt.request
        if request.flags or request.is_last or all(snapshot.finished for snapshot in sources):
            return True
        return self.is_due(attempt.started_at_ms)

    def decided(self, cut: Cut) -> None:
        if cut.commit_point and any(cut.commit.values()):
            self._committed_at_ms = cut.started_at_ms


class Ledger:
    """The decided past of a generation."""

    def __init__(
        self,
        topology: Topology,
        options: CheckpointOptions,
        generation: Generation,
        standing: Standing,
    ) -> None:
        self._topology = topology
        self._options = options
        self._generation = generation
        self._slot = standing.slot
        self._carried = standing.carried
        self._visible: dict[SinkId, Version | None] = {
            sink: standing.visible.get(sink) for sink in topology.sinks
        }
        writes = standing.last_writes
        self._writes = {sink: writes[sink] for sink in topology.sinks if sink in writes}
        self._pending_writes: dict[SinkId, Slot] = {}
        self._batches = {
            step: standing.decided.get(step, NO_BATCH) for step in topology.participants
        }
        self._completed: deque[Cut] = deque(maxlen=options.retained)
        self._count = 0
        self._pace = CommitPace(options.commit.every_ms)
        # After a restart it is unknown how long carried output has waited: assume long enough.
        waited = standing.overtaken and any(standing.carried.values())
        waited = waited and waits_for_alignment(topology.sinks, options.commit)
        self._recovery_points = options.commit.recovery_points_max if waited else 0

    def build(self, attempt: Attempt) -> Cut | Contradictions:
        """Build the cut of an attempt, or return how its snapshots contradict each other."""
        snapshots = attempt.snapshots
        contradictions = faults(self._topology, snapshots)
        if contradictions:
            return Contradictions(contradictions)
        plan = plan_commit(
            snapshots,
            self._topology.sinks,
            self._carried,
            self._batches,
            self._options.commit,
            due=self._pace.commits(
                attempt, [snapshots[source] for source in self._topology.sources]
            ),
        )
        return Cut(
            checkpoint_id=attempt.checkpoint_id,
            generation=self._generation,
            kind=attempt.request.kind,
            name=attempt.request.name,
            started_at_ms=attempt.started_at_ms,
            snapshots={step: replace(snapshot, staged=()) for step, snapshot in snapshots.items()},
            commit=plan.commit,
            carried=plan.carried,
            commit_point=plan.commit_point,
            visible=dict(self._visible),
            last_writes=dict(self._writes),
            identities=self._topology.identities,
        )

    def decided(self, cut: Cut) -> Slot:
        """Note that the cut is decided; return its slot."""
        self._slot = self.next_slot
        self._carried = cut.carried
        self._pending_writes = last_writes(self._slot, cut)
        self._batches = {step: snapshot.batch for step, snapshot in cut.snapshots.items()}
        self._completed.append(cut)
        self._count += 1
        if cut.commit_point:
            self._recovery_points = 0
        elif self._pace.is_due(cut.started_at_ms):
            # A commit was due, and data in flight prevented it.
            self._recovery_points += 1
        self._pace.decided(cut)
        return self._slot

    def is_due(self, now_ms: int) -> bool:
        """Return whether sinks would commit at an attempt that starts now."""
        return self._pace.is_due(now_ms)

    def committed(self, versions: Mapping[SinkId, Version] | None) -> None:
        if versions is not None:
            self._visible.update(versions)
            self._writes = self._pending_writes

    @property
    def next_slot(self) -> Slot:
        """The only slot in which the next decision may be created."""
        return Slot(self._slot + 1)

    @property
    def recovery_points(self) -> int:
        """Number of recovery points decided in a row although a commit was due."""
        return self._recovery_points

    @property
    def carries_output(self) -> bool:
        """Whether a decided cut holds prepared rows that no sink shows yet."""
        return any(self._carried.values())

    @property
    def completed(self) -> tuple[Cut, ...]:
        """The newest decided cuts, oldest first, at most `retained`."""
        return tuple(self._completed)

    @property
    def completed_count(self) -> int:
        return self._count
