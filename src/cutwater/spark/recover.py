"""Recovery: observes the store, lets the protocol choose, does what it chose, until it may start.

`protocol.recovery.next_action` decides; this module reads facts and carries out one action at a
time: claim, read, verify, repeat commits (PROTOCOL.md section 10). What it returns is where the
new generation stands.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.errors import (
    Corrupt,
    Fenced,
    NewerFormat,
    NotFound,
    RecoveryError,
    SinkError,
)
from cutwater.ids import NO_SLOT, CheckpointId, Generation, SinkId
from cutwater.protocol.commit import CommitSink, Committer, RecordCommit
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.recovery import (
    ClaimGeneration,
    Damage,
    ReadManifest,
    RecoveryFacts,
    RefusalReason,
    Refuse,
    RepeatCommit,
    Restore,
    StepAside,
    VerifyObjects,
    next_action,
)
from cutwater.spark.clock import now_ms
from cutwater.spark.context import RunContext
from cutwater.store.forms import Committed


@dataclass(slots=True)
class Recovery:
    """One recovery of one process.

    Attributes:
        context: What the pipeline runs with.
        claims: The nonces of all claims of this process. Once it has claimed the pipeline, it
            does not claim it back from somebody who has taken it over.
        nonce: That of this recovery's claim.
        repeated: How many decided commits were repeated.
    """

    context: RunContext
    claims: set[str]
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    _manifests: dict[CheckpointId, Cut | None] = field(default_factory=dict)
    _verified: dict[CheckpointId, tuple[Damage, ...]] = field(default_factory=dict)
    repeated: int = 0

    def run(self) -> Restore:
        """Claim the pipeline and bring its sinks up to its last decision.

        Raises:
            Fenced: If another process claimed the pipeline after us.
            RecoveryError: If the last checkpoint cannot be used; nothing was changed.
            StoreError: If the store does not answer.
            SinkError: If a decided commit could not be repeated now.
        """
        while True:
            action = next_action(self._facts())
            match action:
                case ClaimGeneration(claim):
                    self._check_not_taken_over()
                    self.claims.add(self.nonce)
                    self.context.store.log.create(claim)
                case ReadManifest(decision):
                    self._manifests[decision.checkpoint_id] = self._read(decision)
                case VerifyObjects(decision, cut, committed):
                    self._verified[decision.checkpoint_id] = self._damages(cut, committed)
                case RepeatCommit(decision, cut):
                    self._repeat(decision, cut)
                    self.repeated += 1
                case Restore():
                    return action
                case Refuse():
                    raise RecoveryError(_refusal(action))
                case StepAside(newer):
                    raise Fenced(self.context.pipeline, Generation(newer - 1), newer)

    def _check_not_taken_over(self) -> None:
        entries = self.context.store.log.read().entries
        last = next((one for one in reversed(entries) if isinstance(one, Claim)), None)
        if self.claims and last is not None and last.nonce not in self.claims:
            ours = Generation(last.generation - 1)
            raise Fenced(self.context.pipeline, ours, last.generation)

    def _facts(self) -> RecoveryFacts:
        store = self.context.store
        newest = store.commits.newest()
        return RecoveryFacts(
            log=store.log.read(),
            nonce=self.nonce,
            committed_through=newest.slot if newest else NO_SLOT,
            committed=newest.versions if newest else {},
            highest_id=store.attempts.highest(),
            manifests=self._manifests,
            verified=self._verified,
            sinks=frozenset(self.context.sinks),
        )

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
        blobs = self.context.store.blobs(cut.generation)
        found = []
        for ref in sorted({ref for one in cut.snapshots.values() for ref in one.blobs}):
            problem = blobs.problem(ref)
            if problem is not None:
                found.append(Damage(ref.name, problem))
        waiting = [*cut.carried.items(), *(() if committed else cut.commit.items())]
        for sink, committables in waiting:
            opened = self.context.sinks.get(sink)
            for one in committables if opened else ():
                assert opened is not None
                problem = opened.problem(one)
                if problem is not None:
                    found.append(Damage(f"what sink {sink} staged in batch {one.batch}", problem))
        return tuple(found)

    def _repeat(self, decision: Decision, cut: Cut) -> None:
        committer = Committer(self.context.pipeline, self.context.options.commit)
        commands = list(committer.decided(decision.slot, cut, now_ms()))
        while commands:
            command = commands.pop(0)
            if isinstance(command, RecordCommit):
                versions: Mapping[SinkId, Version] = command.versions
                self.context.store.commits.record(
                    Committed(decision.slot, decision.checkpoint_id, versions)
                )
                return
            assert isinstance(command, CommitSink)
            version = act(self.context, command)
            commands += committer.sink_done(decision.slot, command.sink, version)


def act(context: RunContext, command: CommitSink) -> Version:
    """Let one sink act on a decision.

    Raises:
        Superseded: If it has acted on a later one instead.
        SinkError: If it cannot now.
    """
    sink = context.sinks.get(command.sink)
    if sink is None:
        raise SinkError(command.sink, "is not a sink of this pipeline")
    if command.restore:
        return sink.restore(command.permit, command.version)
    return sink.commit(command.permit, command.committables)


def _refusal(action: Refuse) -> str:
    name = f"checkpoint {action.decision.checkpoint_id}"
    match action.reason:
        case RefusalReason.MANIFEST_UNREADABLE:
            return f"{name} cannot be restored: its manifest is missing or damaged."
        case RefusalReason.OBJECTS_DAMAGED:
            listed = "; ".join(f"{one.name}: {one.problem}" for one in action.damages[:3])
            more = f" and {len(action.damages) - 3} more" if len(action.damages) > 3 else ""
            return f"{name} cannot be restored: {listed}{more}."
        case RefusalReason.SINK_MISSING:
            sinks = ", ".join(one.name for one in action.damages)
            return (
                f"{name} holds rows for a sink that the pipeline no longer has: {sinks}. Run the "
                "code that has it once more, and stop it, so that they are committed."
            )
