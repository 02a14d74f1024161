"""The start of a process: recovery as the protocol chooses it, one effect at a time.

Also the operator's rewind, which is a separate process: it claims, proves, decides, rolls the
tables back, records and exits. Both may be killed at every yield and restarted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cutwater.ids import ChannelId, CheckpointId, InputId, ReaderId, SinkId, Slot, StepId
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.commit import CommitSink, Committer, RecordCommit
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import Decision, DecisionOutcome
from cutwater.protocol.lost_commit import Recorded, is_behind
from cutwater.protocol.messages import START, Event, Place
from cutwater.protocol.recovery import (
    CheckTargets,
    ClaimGeneration,
    Damage,
    ReadManifest,
    RecoveryAction,
    RecoveryFacts,
    Refuse,
    RepeatCommit,
    Restore,
    StepAside,
    TakeBack,
    VerifyObjects,
    next_action,
)
from cutwater.protocol.rewind import Refused, RewindFacts, plan_rewind
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec
from cutwater.testing.simulation.engine import Engine
from cutwater.testing.simulation.process import Process
from cutwater.testing.simulation.store import (
    Damaged,
    OutOfReach,
    attempt_name,
    committed_name,
    digest,
    log_name,
    manifest_name,
    pack,
    state_from,
    target_name,
    unpack,
)
from cutwater.testing.simulation.tables import (
    SimulatedTable,
    Superseded,
    TableDown,
    TargetBehind,
)

if TYPE_CHECKING:
    from cutwater.testing.simulation.rows import Row
    from cutwater.testing.simulation.world import World

Task = Iterator[None]


class Boot:
    """Starts processes in a world."""

    def __init__(self, world: "World") -> None:
        """Work in this world."""
        self.world = world
        self.store = world.store

    # -- recovery

    def recover(self, process: Process) -> Task:
        """Start a process: recover to a running generation, or end the process."""
        try:
            yield from self._recover(process)
        except TargetBehind:
            self.world.history.counts["targets found behind"] += 1
            self.world.needs_rewind = True
            process.die()
        except (OutOfReach, Damaged, Superseded):
            process.die()

    def _check_targets(self, recorded: Mapping[SinkId, Recorded]) -> None:
        """Check that every table holds its recorded commits.

        Raises:
            TargetBehind: If a table does not.
        """
        for sink, last_commit in recorded.items():
            if is_behind(last_commit, self.world.tables[sink].newest()):
                raise TargetBehind

    def _check_identities(self) -> None:
        """Refuse to continue with other tables than those of the first process."""
        for sink, table in self.world.tables.items():
            name = target_name(sink)
            known = self.store.get(name)
            if known is None:
                self.store.create(name, pack(self.identity_of(table)))
            elif unpack(known) != self.identity_of(table):
                self.world.checkers.target_refused(sink)

    def identity_of(self, table: SimulatedTable) -> str:
        """Return the identity of a table, which does not depend on its name."""
        return table.identity

    def _recover(self, process: Process) -> Task:
        manifests: dict[CheckpointId, Cut | None] = {}
        verified: dict[CheckpointId, tuple[Damage, ...]] = {}
        taken_back: dict[SinkId, Version | None] = {}
        checked = False
        while process.alive:
            yield
            self._check_identities()
            facts = replace(
                self._facts(process, manifests, verified),
                taken_back=taken_back,
                targets_checked=checked,
            )
            action = next_action(facts)
            self.world.trace(process, "recovery", action)
            match action:
                case ClaimGeneration(claim):
                    self.store.create(log_name(claim.slot), pack(claim))
                case ReadManifest(decision):
                    manifests[decision.checkpoint_id] = self.store.read_cut(
                        decision.checkpoint_id, decision.manifest_sha256
                    )
                case VerifyObjects(decision, cut, committed):
                    verified[decision.checkpoint_id] = self._damages(cut, committed=committed)
                case RepeatCommit(decision, cut):
                    self.world.history.counts["commits repeated"] += 1
                    yield from self._repeat(process, decision, cut)
                case CheckTargets(recorded):
                    checked = True
                    self._check_targets(recorded)
                case TakeBack():
                    yield from self._take_back(process, action, taken_back)
                case Restore():
                    yield from self._restore(process, action)
                    return
                case Refuse() | StepAside():
                    self._give_up(process, action)

    def _facts(
        self,
        process: Process,
        manifests: Mapping[CheckpointId, Cut | None],
        verified: Mapping[CheckpointId, tuple[Damage, ...]],
    ) -> RecoveryFacts:
        slots = self.store.committed_slots()
        newest = slots[-1] if slots else Slot(0)
        record = self.store.get(committed_name(newest)) if slots else None
        return RecoveryFacts(
            log=self.store.read_log(),
            nonce=f"process {process.number}",
            committed_through=newest,
            committed=unpack(record) if record else {},
            highest_id=self.store.highest_attempt(),
            manifests=manifests,
            verified=verified,
            sinks=frozenset(self.world.tables),
            showing=frozenset(
                table.sink for table in self.world.tables.values() if table.shows_batches
            ),
        )

    def _damages(self, cut: Cut, *, committed: bool) -> tuple[Damage, ...]:
        found = []
        for blob in sorted(cut.blobs(committed=committed)):
            problem = self.store.problem(blob)
            if problem is not None:
                found.append(Damage(blob.name, problem))
        return tuple(found)

    def _repeat(self, process: Process, decision: Decision, cut: Cut) -> Task:
        committer = Committer(self.world.pipeline, self.world.options.commit)
        commands = list(committer.decided(decision.slot, cut, self.world.now_ms))
        while commands:
            command = commands.pop(0)
            yield
            if isinstance(command, RecordCommit):
                self.world.effects.record(command)
                return
            assert isinstance(command, CommitSink)
            try:
                version = self.world.effects.commit_sink(command)
            except TableDown:
                process.die()
                return
            commands += committer.sink_done(decision.slot, command.sink, version)

    def _take_back(
        self, process: Process, action: TakeBack, taken_back: dict[SinkId, Version | None]
    ) -> Task:
        table, slot = self.world.tables[action.sink], action.claim.slot
        try:
            version = table.take_back(slot, action.version)
            for committable in action.carried:
                yield
                table.show(slot, committable, self.world.effects.staged_rows)
        except TableDown:
            process.die()
            return
        self.world.history.counts["tables taken back"] += 1
        taken_back[action.sink] = version
        yield

    def _give_up(self, process: Process, action: RecoveryAction) -> None:
        if isinstance(action, Refuse):
            self.world.checkers.recovery_refused(action)
            self.world.history.counts["recovery refused"] += 1
            self.world.needs_rewind = True
        process.die()

    # -- building a generation from a cut

    def _restore(self, process: Process, action: Restore) -> Task:
        world, cut = self.world, action.cut
        process.generation = action.generation
        process.claim = action.standing.slot
        for spec in world.topology.steps:
            yield
            self._begin_channel(process, spec, cut)
        for spec in world.topology.steps:
            yield
            self._begin_step(process, spec, cut)
        if cut is not None:
            process.cuts[cut.checkpoint_id] = cut
            world.history.counts["recoveries"] += 1
            world.history.counts["recoveries in flight"] += not cut.is_aligned
        process.coordinator = Coordinator(
            world.pipeline, world.topology, world.options, action.generation, action.standing
        )
        process.control = {spec.step: world.new_queue() for spec in world.topology.steps}
        process.news = {
            ReaderId(spec.step, source): world.new_queue()
            for spec in world.topology.steps
            for source in spec.inputs
        }

    def _begin_channel(self, process: Process, spec: StepSpec, cut: Cut | None) -> None:
        readers = self.world.topology.readers(spec.output)
        if not readers:
            return
        places = {candidate: self._position(cut, candidate) for candidate in readers}
        lowest = min(places.values())
        events: list[Event] = []
        reader = next(candidate for candidate in readers if places[candidate] == lowest)
        for number, event, rows in self._recorded(cut, reader):
            events.append(event)
            process.files[event.files[0]] = rows
            process.history.event(process.generation, spec.output, number, rows)
        log = ChannelLog(ChannelId(spec.output), places, base=lowest, events=events)
        process.logs[spec.output] = log
        process.restored_ends[spec.output] = log.end.position

    def _position(self, cut: Cut | None, reader: ReaderId) -> Place:
        return START if cut is None else cut.snapshots[reader.step].positions[reader.input]

    def _recorded(
        self, cut: Cut | None, reader: ReaderId
    ) -> Iterator[tuple[int, Event, tuple["Row", ...]]]:
        if cut is None:
            return
        for part in cut.snapshots[reader.step].in_flight:
            if part.input == reader.input:
                for recorded in part.events:
                    yield (
                        recorded.position,
                        recorded.event,
                        unpack(self.store.checked(recorded.blobs[0])),
                    )

    def _begin_step(self, process: Process, spec: StepSpec, cut: Cut | None) -> None:
        world = self.world
        restored = self._restored(spec, cut)
        state = pack({"inputs": len(spec.inputs)})
        if cut is not None:
            state = state_from(map(self.store.checked, cut.snapshots[spec.step].state))
        machine = Step(spec, world.options, process.generation, restored)
        process.steps[spec.step] = machine
        inputs: dict[InputId, ChannelLog] = {
            source: process.logs[source.channel] for source in spec.inputs
        }
        output = process.logs.get(spec.output)
        process.engines[spec.step] = Engine(
            process, spec, machine, inputs, output, restored, state, slow=world.is_slow(spec.step)
        )

    def _restored(self, spec: StepSpec, cut: Cut | None) -> Restored:
        if cut is None:
            offsets = {str(spec.step): "0"} if spec.is_source else {}
            return Restored(positions=dict.fromkeys(spec.inputs, START), offsets=offsets)
        return Restored.from_snapshot(cut.snapshots[StepId(spec.step)])

    # -- the operator's rewind

    def rewind(self, process: Process) -> Task:
        """Rewind to an older cut, as an operator would, and exit."""
        try:
            yield from self._rewind(process)
        except (OutOfReach, Damaged, Superseded, TableDown):
            self.world.history.counts["rewinds interrupted"] += 1
        process.die()

    def _rewind(self, process: Process) -> Task:
        yield
        facts = self._facts(process, {}, {})
        action = next_action(facts)
        if isinstance(action, ClaimGeneration):
            process.generation = action.claim.generation
            if not self.store.create(log_name(action.claim.slot), pack(action.claim)):
                return
        yield
        log = self.store.read_log()
        checkpoint_id = CheckpointId(self.store.highest_attempt() + 1)
        self.store.create(attempt_name(checkpoint_id), pack(process.generation))
        yield
        candidates = list(reversed(log.decisions))
        if not self.world.needs_rewind:
            self.world.rng.shuffle(candidates)
        for target in candidates:
            cut = self._rewind_to(process, target, checkpoint_id)
            if cut is not None:
                yield from self._decide_rewind(process, Slot(log.last_slot + 1), cut)
                return
        if self.world.needs_rewind:
            self.world.lost = True

    def _rewind_to(
        self, process: Process, target: Decision, checkpoint_id: CheckpointId
    ) -> Cut | None:
        cut = self.store.read_cut(target.checkpoint_id, target.manifest_sha256)
        record = self.store.get(committed_name(target.slot))
        facts = RewindFacts(
            target=target,
            cut=cut,
            damages=() if cut is None else self._damages(cut, committed=True),
            committed=None if record is None else unpack(record),
            cannot_restore=self._unrestorable(target),
            sinks=self.world.topology.sinks,
        )
        planned = plan_rewind(facts, checkpoint_id, process.generation)
        return None if isinstance(planned, Refused) else planned

    def _unrestorable(self, target: Decision) -> Mapping[SinkId, str]:
        """Return the tables that no longer have what they showed at a decision."""
        shown = self.world.shown_at(target)
        return {
            sink: "its files were deleted"
            for sink, table in self.world.tables.items()
            if not table.keeps(shown.get(sink))
        }

    def _decide_rewind(self, process: Process, slot: Slot, cut: Cut) -> Task:
        data = pack(cut)
        self.store.put(manifest_name(cut.checkpoint_id), data)
        yield
        entry = Decision(
            slot,
            process.generation,
            f"rewind {process.number}",
            cut.kind,
            cut.checkpoint_id,
            digest(data),
            cut.commit_point,
            cut.origin,
        )
        if self.world.effects.create_entry(entry) is not DecisionOutcome.WRITTEN:
            return
        self.world.needs_rewind = False
        self.world.history.counts["rewinds"] += 1
        yield
        yield from self._repeat(process, entry, cut)
