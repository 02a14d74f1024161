"""Recovery: observes the store, lets the protocol choose an action, carries it out, and repeats.

`protocol.recovery.next_action` decides. This module reads facts and carries out one action at a
time: claim, read, verify, repeat commits (PROTOCOL.md section 10). The result is where the new
generation starts.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import (
    Corrupt,
    Fenced,
    NewerFormat,
    NotFound,
    RecoveryError,
)
from cutwater.ids import NO_CHECKPOINT, NO_SLOT, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.commit import grant_shows
from cutwater.protocol.cut import BlobRef, Cut, Version
from cutwater.protocol.decisions import Claim, Decision, DecisionOutcome, LogView
from cutwater.protocol.lost_commit import last_writes
from cutwater.protocol.recovery import (
    LOG_LOST,
    CheckTargets,
    ClaimGeneration,
    Damage,
    ReadManifest,
    RecoveryFacts,
    RefusalReason,
    Refuse,
    RepeatCommit,
    Restore,
    StepAside,
    TakeBack,
    VerifyObjects,
    next_action,
    own_claim,
)
from cutwater.runtime.context import RunContext
from cutwater.runtime.reporting.recovery_timing import Phase, Phases
from cutwater.runtime.scratch import new_blob_cache
from cutwater.sinks.base import ShowingSink
from cutwater.sinks.commit import see_through
from cutwater.sinks.lost_commits import check_targets_hold
from cutwater.sinks.registry import reopen
from cutwater.store.blobs.local_cache import BlobCache
from cutwater.store.maintenance.offline_decision import fenced_out
from cutwater.store.records.targets import SinkTargets


@dataclass(slots=True)
class Recovery:
    """One recovery of one process.

    Attributes:
        claims: All claims that this process has tried to write. Once this process has claimed the
            pipeline, it does not claim it again from a process that took over, unless that process
            is known to have ended; then the list is cleared.
        blob_cache: The content of the cut's objects, once they are verified.
    """

    context: RunContext
    claims: list[Claim]
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    _manifests: dict[CheckpointId, Cut | None] = field(default_factory=dict)
    _verified: dict[CheckpointId, tuple[Damage, ...]] = field(default_factory=dict)
    _targets: dict[Generation, SinkTargets] = field(default_factory=dict)
    _taken_back: dict[SinkId, Version | None] = field(default_factory=dict)
    _before: SinkTargets | None = None
    _targets_checked: bool = False
    _highest: CheckpointId | None = None
    phases: Phases = field(default_factory=Phases)
    blob_cache: BlobCache = field(init=False)

    def __post_init__(self) -> None:
        """List the files of earlier generations before this one writes any."""
        self.blob_cache = new_blob_cache(self.context.scratch)

    def run(self) -> Restore:
        """Claim the pipeline and commit its sinks up to the last decision.

        Raises:
            Fenced: If another process claimed the pipeline later.
            Superseded: If a sink has committed a later decision than the repeated one.
            RecoveryError: If the last checkpoint cannot be used; nothing was changed.
            StoreError: If the store does not answer.
            TargetBehind: If a target lacks a commit that is recorded.
            SinkError: If a decided commit could not be repeated now.
        """
        with self.phases.during(Phase.CHOOSE):
            return self._run()

    def _run(self) -> Restore:
        while True:
            action = next_action(self._facts())
            match action:
                case ClaimGeneration(claim):
                    self._check_not_taken_over()
                    self._claim(claim)
                case ReadManifest(decision):
                    self._manifests[decision.checkpoint_id] = self._read(decision)
                case VerifyObjects(decision, cut, committed):
                    # First: at another target, the staged rows would seem to be lost.
                    self._refuse_moved_targets(decision, cut, committed)
                    self._verified[decision.checkpoint_id] = self._damages(cut, committed)
                case RepeatCommit(decision, cut):
                    options, cut = self.context.options.commit, self._comparable(cut)
                    with self.phases.during(Phase.COMMIT_REPLAY):
                        see_through(self.context.store, self.context.sinks, decision, cut, options)
                    self.phases.repeated_commits += 1
                case CheckTargets(recorded):
                    # Before any batch runs: a commit would refuse it later, after work was done.
                    check_targets_hold(self.context.store, self.context.sinks, recorded)
                    self._targets_checked = True
                case TakeBack(_, sink):
                    self._taken_back[sink] = self._take_back(action)
                case Restore():
                    return action
                case Refuse():
                    raise RecoveryError(_refusal(action))
                case StepAside(newer):
                    raise Fenced(self.context.pipeline, Generation(newer - 1), newer)

    def _claim(self, claim: Claim) -> None:
        """Try to claim the pipeline; the next read of the log shows whether the claim succeeded.

        OutcomeUnknown is not retried: on a full disk, that would loop forever without a report.
        """
        self.claims.append(claim)
        log = self.context.store.log
        if log.create(claim) is DecisionOutcome.UNKNOWN:
            raise log.doubt(claim.slot)

    def _check_not_taken_over(self) -> None:
        fenced = fenced_out(self.context.store, self.claims)
        if fenced is not None:
            raise fenced

    def _facts(self) -> RecoveryFacts:
        store = self.context.store
        newest = store.commits.newest(store.log.read())
        # Read again: a commit follows its decision, which another process may just have written.
        log = store.log.read()
        if self._highest is None and own_claim(log, self.nonce) is not None:
            # Only once: numbers that an older generation reserves from now on are skipped later.
            self._highest = store.attempts.highest(log.highest_id)
        return RecoveryFacts(
            log=log,
            nonce=self.nonce,
            committed_through=newest.slot if newest else NO_SLOT,
            committed=newest.versions if newest else {},
            highest_id=self._highest or NO_CHECKPOINT,
            manifests=self._manifests,
            verified=self._verified,
            sinks=frozenset(self.context.sinks),
            showing=self._showing(),
            moved=self._moved(log),
            targets_checked=self._targets_checked,
            taken_back=self._taken_back,
        )

    def _showing(self) -> frozenset[SinkId]:
        if self._before is None:
            self._before = self.context.store.targets.last_recorded()
        both = (*self._before.items(), *self.context.targets.items())
        return frozenset(sink for sink, target in both if target.shows_batches)

    def _moved(self, log: LogView) -> frozenset[SinkId]:
        """Return the sinks whose target is not the one of their last commit."""
        head = log.head
        cut = None if head is None else self._manifests.get(head.checkpoint_id)
        if head is None or cut is None:
            return frozenset()
        return self._moved_since(log, last_writes(head.slot, cut))

    def _moved_since(self, log: LogView, writes: Mapping[SinkId, Slot]) -> frozenset[SinkId]:
        return frozenset(
            sink
            for sink, slot in writes.items()
            if not self._writes_where_it_wrote(sink, log.at(slot).generation)
        )

    def _writes_where_it_wrote(self, sink: SinkId, generation: Generation) -> bool:
        before, now = self._targets_of(generation).get(sink), self.context.targets.get(sink)
        if before is None or now is None or not before.is_same_as(now):
            return False
        # A target that showed batches holds slots of claims instead of decisions.
        return now.shows_batches or not before.shows_batches

    def _comparable(self, cut: Cut) -> Cut:
        """Return a cut without the last writes of sinks whose target cannot be compared."""
        moved = self._moved_since(self.context.store.log.read(), cut.last_writes)
        writes = {sink: slot for sink, slot in cut.last_writes.items() if sink not in moved}
        return replace(cut, last_writes=writes)

    def _targets_of(self, generation: Generation) -> SinkTargets:
        if generation not in self._targets:
            self._targets[generation] = self.context.store.targets.read(generation) or {}
        return self._targets[generation]

    def _take_back(self, action: TakeBack) -> Version | None:
        """Roll a sink back at its previous target, and fence predecessors at its current target."""
        sink, claim = action.sink, action.claim
        permit = grant_shows(self.context.pipeline, claim.slot, claim.generation)
        before, now = (self._before or {}).get(sink), self.context.targets.get(sink)
        moved = before is not None and (now is None or not before.is_same_as(now))
        opened, version = self.context.sinks.get(sink), None
        shows = now is not None and now.shows_batches
        if before is not None and before.shows_batches and (moved or not shows):
            left = reopen(before, self.context.pipeline, sink)
            assert isinstance(left, ShowingSink)
            # A sink that no longer shows batches commits carried output as other sinks do.
            version = left.take_back(permit, action.version, ())
        if not shows:
            return version
        assert isinstance(opened, ShowingSink)
        if moved:
            return opened.take_over(permit)
        return opened.take_back(permit, action.version, action.carried)

    def _read(self, decision: Decision) -> Cut | None:
        try:
            return self.context.store.manifests.read(
                decision.checkpoint_id, decision.manifest_sha256
            )
        except NewerFormat:
            raise
        except (Corrupt, NotFound):
            return None

    def _damages(self, cut: Cut, committed: bool) -> tuple[Damage, ...]:
        found = [
            Damage(ref.name, problem) for ref, problem in sorted(self._fetch_objects(cut).items())
        ]
        waiting = [*cut.carried.items(), *(() if committed else cut.commit.items())]
        for sink, committables in waiting:
            opened = self.context.sinks.get(sink)
            for committable in committables if opened else ():
                assert opened is not None
                problem = opened.problem(committable)
                if problem is not None:
                    found.append(
                        Damage(f"what sink {sink} staged in batch {committable.batch}", problem)
                    )
        return tuple(found)

    def _refuse_moved_targets(self, decision: Decision, cut: Cut, committed: bool) -> None:
        """Refuse to commit at one target what was decided or staged at another.

        A sink that has nothing to commit is checked too: the version that it would report for this
        decision belongs to the target of that time.
        """
        number = decision.checkpoint_id
        for sink, staged in cut.carried.items():
            for committable in staged:
                self._refuse_moved_target(
                    sink, committable.generation, f"checkpoint {number} holds rows for"
                )
        for sink, staged in () if committed else cut.commit.items():
            about = f"checkpoint {number} is not committed yet by"
            if sink in cut.restores:
                about = "an unfinished rewind takes back"
            for generation in {
                decision.generation,
                *(committable.generation for committable in staged),
            }:
                self._refuse_moved_target(sink, generation, about)

    def _refuse_moved_target(self, sink: SinkId, generation: Generation, about: str) -> None:
        before, now = self._targets_of(generation).get(sink), self.context.targets.get(sink)
        if before is not None and now is not None and not before.is_same_as(now):
            where = f"writes to {now.uri} now"
            if before.uri == now.uri:
                where = "is led to another server or database by that address now"
            message = (
                f"{about} sink {sink} at {before.uri}, and the sink {where}. Run it once more as "
                f"it was, and stop it; or, if the same table was moved there with all that "
                f"Cutwater keeps beside it, start it with `--moved {sink}`."
            )
            raise RecoveryError(message)

    def _fetch_objects(self, cut: Cut) -> dict[BlobRef, str]:
        """Fetch the objects of the cut to this machine, and return the problems found."""
        blobs = self.context.store.blobs(cut.generation)
        trees = [snapshot.state for snapshot in cut.snapshots.values()]
        files = {
            ref
            for snapshot in cut.snapshots.values()
            for part in snapshot.in_flight
            for event in part.events
            for ref in event.blobs
        }
        with self.phases.during(Phase.FETCH):
            found = self.blob_cache.problems(blobs, trees, files)
        self.phases.linked_bytes = self.blob_cache.linked_bytes
        self.phases.fetched_bytes = self.blob_cache.fetched_bytes
        return found


def _refusal(action: Refuse) -> str:
    name = f"checkpoint {action.decision.checkpoint_id}" if action.decision else ""
    match action.reason:
        case RefusalReason.MANIFEST_UNREADABLE:
            return f"{name} cannot be restored: its manifest is missing or damaged."
        case RefusalReason.OBJECTS_DAMAGED:
            listed = "; ".join(f"{damage.name}: {damage.problem}" for damage in action.damages[:3])
            more = f" and {len(action.damages) - 3} more" if len(action.damages) > 3 else ""
            return f"{name} cannot be restored: {listed}{more}."
        case RefusalReason.SINK_MISSING:
            sinks = "; ".join(f"sink {damage.name}: {damage.problem}" for damage in action.damages)
            return (
                f"{name} waits for what the pipeline no longer has: {sinks}. Run the code that has "
                "it once more, and stop it, so that it can act."
            )
        case RefusalReason.LOG_LOST:
            return f"{LOG_LOST}."
