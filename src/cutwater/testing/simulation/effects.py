"""The durable effects of a process, one write at a time.

Each effect is a generator: it yields after (and sometimes before) every write, and the process may
be killed or paused at every yield. Nothing here decides anything; decisions come from the protocol
and results go back to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cutwater.ids import CheckpointId, SinkId, Slot
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitBlocked, CommitSink, RecordCommit
from cutwater.protocol.cut import BlobRef, Committable, Cut, InFlight, RecordedEvent, StepSnapshot
from cutwater.protocol.decisions import Decision, DecisionOutcome
from cutwater.protocol.lost_commit import is_behind
from cutwater.protocol.messages import Barrier
from cutwater.protocol.retention import kept, plan_retention, reusable, staged_to_keep
from cutwater.protocol.step.events import Stored
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.protocol.step.machine import Step
from cutwater.testing.simulation.engine import FileGone
from cutwater.testing.simulation.process import Process
from cutwater.testing.simulation.rows import Row
from cutwater.testing.simulation.store import (
    OutOfReach,
    attempt_name,
    blob_name,
    committed_name,
    digest,
    log_name,
    manifest_name,
    pack,
    unpack,
)
from cutwater.testing.simulation.tables import (
    LOCKS,
    SimulatedTable,
    Superseded,
    TableDown,
    TargetBehind,
)

if TYPE_CHECKING:
    from cutwater.testing.simulation.world import World

Task = Iterator[None]

_TRIES: Final = 10


class Effects:
    """Carries out the commands of coordinators and steps."""

    def __init__(self, world: "World") -> None:
        """Work in this world."""
        self.world = world
        self.store = world.store

    def carry_out(self, process: Process, command: events.CoordinatorCommand) -> None:
        """Do a coordinator's command, or start the task that does it."""
        world, history = self.world, self.world.history
        world.trace(process, "coordinator !", command)
        match command:
            case events.ReserveId(checkpoint_id):
                process.start_task(f"reserve {checkpoint_id}", self._reserve(process, command))
            case events.StartAttempt(barrier):
                self._start_attempt(process, barrier)
                process.announce(barrier)
            case events.EndAttempt(checkpoint_id, decided, reason, detail):
                history.ended[(process.generation, checkpoint_id)] += 1
                if reason is not None:
                    history.counts[f"failed: {reason.name.lower()}"] += 1
                world.checkers.attempt_ended(reason, detail)
                process.tell_ended(checkpoint_id, decided=decided)
                self._maybe_stop(process, checkpoint_id, decided=decided)
            case events.PublishManifest(cut):
                process.start_task(f"publish {cut.checkpoint_id}", self._publish(process, cut))
            case events.CreateDecision():
                process.start_task(f"decide slot {command.slot}", self._decide(process, command))
            case CommitSink():
                process.start_task(f"commit {command.sink}", self._commit(process, command))
            case RecordCommit():
                process.start_task("record commit", self._record(process, command))
            case CommitBlocked():
                history.counts["commit blocked"] += 1
            case events.CollectGarbage():
                process.start_task("collect garbage", self._collect(process))
            case events.RestartPipeline() | events.Halt():
                world.process_ends(process, command)
            case events.AnswerAck(_, _, result):
                history.counts[f"ack {result.name.lower()}"] += 1
            case events.AnswerRequest(_, result):
                history.counts[f"request {result.name.lower()}"] += 1
            case events.AnswerCancel(_, cancelled):
                history.counts[f"abort {cancelled.name.lower()}"] += 1

    def _maybe_stop(self, process: Process, checkpoint_id: CheckpointId, *, decided: bool) -> None:
        """End the pipeline once the checkpoint it was to be stopped with is decided."""
        if process.stop_after == checkpoint_id:
            if decided:
                process.inbox.append(events.Stop(self.world.now_ms))
            else:
                process.stop_after = None

    def _start_attempt(self, process: Process, barrier: Barrier) -> None:
        history, coordinator = self.world.history, process.coordinator
        history.started.append((process.generation, barrier.checkpoint_id))
        self.world.checkers.attempt_started(process.generation, barrier.checkpoint_id)
        if barrier.is_drain:
            process.stop_after = barrier.checkpoint_id
        assert coordinator is not None
        if len(coordinator.open_attempts) > 1:
            history.counts["overlapping attempts"] += 1
        incremental = self.world.options.incremental
        known = reusable(process.cuts.values(), barrier, incremental=incremental)
        process.reusable[barrier.checkpoint_id] = known

    # -- attempts

    def _reserve(self, process: Process, command: events.ReserveId) -> Task:
        number = command.checkpoint_id
        name, ours = attempt_name(number), pack(process.generation)
        for _ in range(_TRIES):
            try:
                # What is exactly ours was written by the call whose answer was lost.
                won = self.store.create(name, ours) or self.store.get(name) == ours
            except OutOfReach:
                pass
            else:
                if not self.world.faults.response_lost():
                    yield
                    process.inbox.append(events.Reserved(number, won, self.world.now_ms))
                    return
            yield
        taken = self.world.judged.get(name) == ours
        self.world.history.counts["numbers taken, and believed not to be"] += taken
        process.inbox.append(events.ReserveFailed(number, self.world.now_ms))

    def _put(self, process: Process, checkpoint_id: CheckpointId, data: bytes) -> BlobRef:
        known = process.reusable[checkpoint_id].get(digest(data))
        if known is not None:
            self.world.history.counts["objects reused"] += 1
            return known
        return self.store.put(blob_name(process.generation, checkpoint_id, digest(data)), data)

    def upload(
        self,
        process: Process,
        machine: Step,
        snapshot: StepSnapshot,
        ranges: tuple[InFlightRange, ...],
    ) -> Task:
        """Store a snapshot's state and in-flight Events, then notify the step."""
        checkpoint_id = snapshot.checkpoint_id
        pins = process.engines[snapshot.step].pins
        in_flight = []
        try:
            yield
            if checkpoint_id not in pins:
                return
            state = []
            for file in process.engines[snapshot.step].pinned_files(checkpoint_id):
                yield
                if checkpoint_id not in pins:
                    return
                state.append(self._put(process, checkpoint_id, file))
            for part in ranges:
                recorded = []
                log = process.logs[part.input.channel]
                for position in range(part.start.position, part.end.position):
                    yield
                    if checkpoint_id not in pins:
                        return
                    (event,) = log.read(log.place(position), log.place(position + 1))
                    blob = self._put(process, checkpoint_id, pack(process.read_file(event)))
                    recorded.append(RecordedEvent(position, event, (blob,)))
                in_flight.append(InFlight(part.input, tuple(recorded)))
        except (OutOfReach, FileGone):
            process.inbox.append(
                events.Declined(
                    snapshot.step,
                    process.generation,
                    checkpoint_id,
                    FailureReason.SNAPSHOT_FAILED,
                    self.world.now_ms,
                )
            )
            return
        yield
        process.tell(machine, Stored(checkpoint_id, tuple(state), tuple(in_flight)))

    # -- the decision

    def _publish(self, process: Process, cut: Cut) -> Task:
        yield
        data = pack(cut)
        try:
            self.store.put(manifest_name(cut.checkpoint_id), data)
        except OutOfReach:
            process.inbox.append(events.PublishFailed(cut.checkpoint_id, self.world.now_ms))
            return
        yield
        process.inbox.append(events.Published(cut.checkpoint_id, digest(data), self.world.now_ms))

    def _decide(self, process: Process, command: events.CreateDecision) -> Task:
        cut = command.cut
        entry = Decision(
            command.slot,
            process.generation,
            f"{process}/{cut.checkpoint_id}",
            cut.kind,
            cut.checkpoint_id,
            command.manifest_sha256,
            cut.commit_point,
            cut.origin,
        )
        yield
        outcome = self.create_entry(entry)
        if outcome is DecisionOutcome.WRITTEN:
            process.cuts[cut.checkpoint_id] = cut
        yield
        process.inbox.append(events.DecisionMade(cut.checkpoint_id, outcome, self.world.now_ms))

    def create_entry(self, entry: Decision) -> DecisionOutcome:
        """Create a slot; on doubt read it back and compare the nonce (rule F15)."""
        name = log_name(entry.slot)
        try:
            if self.store.create(name, pack(entry)):
                self.world.checkers.decided(entry)
                if not self.world.faults.response_lost():
                    return DecisionOutcome.WRITTEN
            found = self.store.get(name)
        except OutOfReach:
            return DecisionOutcome.UNKNOWN
        assert found is not None
        ours = unpack(found).nonce == entry.nonce
        return DecisionOutcome.WRITTEN if ours else DecisionOutcome.TAKEN

    # -- sinks

    def commit_sink(self, command: CommitSink) -> str:
        """Commit a decision to one table.

        Raises:
            TableDown: If the table is down now.
            Superseded: If the table has committed a later slot instead.
            TargetBehind: If the table lacks a recorded commit.
            OutOfReach: If the staged rows cannot be read now.
        """
        table = self.world.tables[command.sink]
        slot = command.permit.slot
        if is_behind(command.recorded, table.newest()):
            raise TargetBehind
        if command.restore:
            return table.restore(slot, command.version)
        if table.shows_batches:
            version = table.seal(slot, command.committables, command.shown or "0", self.staged_rows)
            self.committed(command)
            return version
        if table.seen(slot) is None:
            self.gather(table, command.committables)
        version = table.commit(slot, command.committables)
        self.committed(command)
        return version

    def gather(self, table: SimulatedTable, committables: Sequence[Committable]) -> None:
        """Gather staged batches, few enough in each transaction, however many there are."""
        for start in range(0, len(committables), LOCKS):
            table.gather(committables[start : start + LOCKS], self.staged_rows)

    def committed(self, command: CommitSink) -> None:
        """Note what a sink has committed; it stays staged until no kept cut needs it."""
        blobs = (blob for committable in command.committables for blob in committable.blobs)
        self.world.committed.update(blob.name for blob in blobs)

    def staged_rows(self, committable: Committable) -> list[Row]:
        """Read the staged rows of one batch.

        Raises:
            OutOfReach: If they cannot be read now.
        """
        return [row for blob in committable.blobs for row in unpack(self.store.checked(blob))]

    def _commit(self, process: Process, command: CommitSink) -> Task:
        slot, sink = command.permit.slot, command.sink
        yield
        try:
            version = self.commit_sink(command)
        except (TableDown, OutOfReach) as error:
            reason = type(error).__name__
            process.inbox.append(events.SinkFailed(slot, sink, reason, self.world.now_ms))
            return
        except Superseded:
            process.inbox.append(events.SinkFenced(slot, sink, self.world.now_ms))
            return
        except TargetBehind:
            process.inbox.append(events.SinkBehind(slot, sink, self.world.now_ms))
            return
        yield
        process.inbox.append(events.SinkCommitted(slot, sink, version, self.world.now_ms))

    def _record(self, process: Process, command: RecordCommit) -> Task:
        slot = command.permit.slot
        for _ in range(_TRIES):
            try:
                self.record(command)
            except OutOfReach:
                pass
            else:
                if not self.world.faults.response_lost():
                    yield
                    process.inbox.append(events.CommitRecorded(slot, self.world.now_ms))
                    return
            yield
        process.inbox.append(events.RecordFailed(slot, "out of reach", self.world.now_ms))

    def record(self, command: RecordCommit) -> None:
        """Write what the sinks made visible."""
        slot = command.permit.slot
        self.store.create(committed_name(slot), pack(dict(command.versions)))
        self.world.checkers.committed(slot)

    # -- garbage

    def _collect(self, process: Process) -> Task:
        yield
        try:
            yield from self._collect_reachable(process)
        except OutOfReach:
            self.world.history.counts["garbage collection interrupted"] += 1
        process.inbox.append(events.GarbageCollected(self.world.now_ms))

    def _collect_reachable(self, process: Process) -> Task:
        log = self.store.read_log()
        committed_through = max(self.store.committed_slots(), default=Slot(0))
        keep = kept(log, committed_through, self.world.options.retained)
        cuts = {number: self.store.read_cut(number) for number in self.store.manifests()}
        readable = {number: cut for number, cut in cuts.items() if cut is not None}
        plan = plan_retention(
            log,
            keep,
            readable,
            self.store.found(),
            committed_through=committed_through,
            generation=process.generation,
        )
        # Before the first delete: a collection that is interrupted leaves nothing to reuse.
        for checkpoint_id in plan.manifests:
            process.cuts.pop(checkpoint_id, None)
        yield
        for name in (*(manifest_name(number) for number in plan.manifests), *plan.objects):
            # The claim is read again before every delete: a fenced process deletes nothing.
            if self.store.read_log().generation != process.generation:
                return
            yield
            self.store.delete(name)
            self.world.history.counts["objects deleted"] += 1
            yield
        for checkpoint_id in plan.manifests:
            readable.pop(checkpoint_id, None)
        if not plan.unreadable:
            staged = staged_to_keep(log, readable.values(), committed_through)
            yield from self._collect_staged(process, staged)

    def _collect_staged(
        self, process: Process, keep: Mapping[SinkId, tuple[Committable, ...]]
    ) -> Task:
        """Delete what each sink has staged and no kept cut needs, as `sinks.retention` does."""
        for sink in self.world.topology.sinks:
            if self.store.read_log().generation != process.generation:
                return
            yield
            needed = {blob.name for committable in keep.get(sink, ()) for blob in committable.blobs}
            for generation, name in self.store.staged(sink):
                # Discard: older generations stage nothing more. Retain: what is committed.
                idle = generation < process.generation
                done = generation == process.generation and name in self.world.committed
                if name not in needed and (idle or done):
                    yield
                    self.store.delete(name)
                    self.world.history.counts["staged batches deleted"] += 1
