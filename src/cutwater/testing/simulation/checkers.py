"""Independent checkers: what must be true, judged by the record of what really happened.

The checkers decode what is in the store and call nothing else of the code under test. A decided cut
is compared with the history of every step; a commit is compared with the result of the whole
computation over the cut's source prefix; the end of a run is compared with the fault-free result.
"""

# Checkers look inside.
# ruff: noqa: SLF001

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cutwater.ids import NO_CHECKPOINT, CheckpointId, Generation, ReaderId, SinkId, Slot, StepId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.decisions import Decision
from cutwater.protocol.step.aligner_events import BarrierSeen
from cutwater.protocol.topology import StepSpec
from cutwater.runtime.outcome import End, Outcome
from cutwater.store.paths import ObjectPath
from cutwater.store.records.codecs import COMMITTED, LOG_ENTRY
from cutwater.store.records.envelope import decode
from cutwater.testing.simulation.engine import SimulatedStep, files_digest
from cutwater.testing.simulation.history import BatchRecord, Wrong
from cutwater.testing.simulation.process import Process
from cutwater.testing.simulation.rows import Row, Token, without_tokens
from cutwater.testing.simulation.sinks import unpack
from cutwater.testing.simulation.tables import is_ours

if TYPE_CHECKING:
    from cutwater.testing.simulation.world import World


Tables = Mapping[SinkId, tuple[Row, ...]]


def require(condition: bool, message: str) -> None:
    """Raise the verdict `Wrong` unless the condition holds."""
    if not condition:
        raise Wrong(message)


class Checkers:
    """All checkers of one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.last_decided = NO_CHECKPOINT
        self.seen_attempts: set[CheckpointId] = set()
        self.aborted_attempts: set[CheckpointId] = set()
        self.gave_rows_at_ms: dict[Generation, int] = {}

    # -- the store

    def written(self, name: str, data: bytes) -> None:
        """An object was written: judge decisions and commits at once."""
        _, _, rest = name.partition(f"{self.world.pipeline}/")
        if rest.startswith("log/"):
            entry = decode(LOG_ENTRY, ObjectPath(name), data)
            if isinstance(entry, Decision):
                self.world.judge(lambda: self.decided(entry))
        elif rest.startswith("committed/"):
            slot = decode(COMMITTED, ObjectPath(name), data).slot
            self.world.judge(lambda: self.committed(slot))

    def deleted(self, name: str) -> None:
        self.world.history.counts["objects deleted"] += "/blobs/" in name

    def problem(self, blob: BlobRef) -> str | None:
        """Return what is wrong with an object; None if it is intact."""
        data = self.world.store.by_name.get(blob.name)
        if data is None:
            return "missing"
        return None if hashlib.sha256(data).hexdigest() == blob.sha256 else "damaged"

    def _tree(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        """Read the files of a snapshot as the format of bundles describes them."""
        objects = self.world.store.by_name
        first, others = refs[0], {ref.sha256: ref.name for ref in refs[1:]}
        line, _, body = objects[first.name].partition(b"\n")
        files = {}
        for file in json.loads(line)["files"]:
            if file["offset"] is None:
                files[file["path"]] = objects[others[file["sha256"]]]
                continue
            held = body
            if "bundle" in file:
                _, _, held = objects[others[file["bundle"]]].partition(b"\n")
            files[file["path"]] = held[file["offset"] : file["offset"] + file["size_bytes"]]
        return files

    # -- attempts

    def attempt_started(self, generation: Generation, checkpoint_id: CheckpointId) -> None:
        """No number is used twice, whichever process used it first."""
        require(checkpoint_id not in self.seen_attempts, f"attempt {checkpoint_id} started twice")
        self.seen_attempts.add(checkpoint_id)
        mine = [number for owner, number in self.world.history.started if owner == generation]
        require(mine == sorted(mine), f"attempt numbers of generation {generation} do not grow")

    def attempt_ended(self, reason: FailureReason | None, detail: str) -> None:
        """The cut equation may protect users, but here it must never have to."""
        require(reason is not FailureReason.INCONSISTENT_CUT, f"inconsistent cut: {detail}")

    def barrier_seen(self, step: SimulatedStep, event: BarrierSeen) -> None:
        """A barrier that has overtaken is never held (rule F18b)."""
        reader = ReaderId(step.spec.step, event.input)
        log = step.wiring.inputs[event.input]._log
        held = log.holds(reader, event.barrier.checkpoint_id)
        require(
            not (event.barrier.is_unaligned and held),
            f"{reader} holds the overtaking barrier {event.barrier.checkpoint_id}",
        )

    def recovery_refused(self, error: Exception) -> None:
        """Recovery may refuse only where something was damaged from outside.

        A store that lost or delayed the delete of a manifest may let a rewind choose a cut whose
        objects are being deleted: recovery then refuses it, and another rewind is the way out.
        """
        head = self.world.judged.log.read().head
        rewound = head is not None and head.kind is CheckpointKind.REWIND
        excused = self.world.damaged or (rewound and self.world.manifest_left)
        require(excused, f"recovery refused without damage: {error}")

    # -- requests

    def completed(self, checkpoint_id: CheckpointId, request: CheckpointRequest | None) -> None:
        """A request was answered as completed: its checkpoint is decided, with its name."""
        decisions = {
            decision.checkpoint_id: decision for decision in self.world.judged.log.read().decisions
        }
        require(checkpoint_id in decisions, f"{checkpoint_id} is completed and not decided")
        if request is not None and request.name is not None:
            cut = self.world.read_cut(decisions[checkpoint_id])
            name = None if cut is None else cut.name
            require(
                cut is None or name == request.name,
                f"savepoint {request.name} is checkpoint {checkpoint_id}, which is {name}",
            )

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint was aborted: it is not decided."""
        decided = {entry.checkpoint_id for entry in self.world.judged.log.read().decisions}
        require(checkpoint_id not in decided, f"{checkpoint_id} is aborted, and decided")
        self.aborted_attempts.add(checkpoint_id)

    def commit_recorded(self, slot: Slot) -> None:
        """The driver takes a commit for recorded: the record is in the store."""
        there = self.world.paths.committed(slot) in self.world.store.by_name
        require(there or self.world.damaged, f"the commit of slot {slot} was never recorded")

    def generation_ended(self, process: Process, outcome: Outcome) -> None:
        """A stop ends the pipeline with its checkpoint, or because it did not insist on one.

        With a drain, nothing is appended after the last checkpoint.
        """
        if outcome.end is End.STOPPED:
            self.stopped(process)
            saved = process.last_attempts & process.decided_attempts
            require(
                process.plain_stop or bool(saved),
                f"{process} has stopped without the checkpoint that it was to stop with",
            )

    # -- cuts

    def decided(self, entry: Decision) -> None:
        """A decision has just been written: compare its cut with the history."""
        require(
            entry.checkpoint_id > self.last_decided,
            f"decision {entry.checkpoint_id} follows {self.last_decided}",
        )
        self.last_decided = entry.checkpoint_id
        require(
            entry.checkpoint_id not in self.aborted_attempts,
            f"{entry.checkpoint_id} was aborted, and is decided",
        )
        cut = self.world.read_cut(entry)
        require(cut is not None, f"decision {entry.checkpoint_id} names no readable manifest")
        assert cut is not None
        counts = self.world.history.counts
        if entry.kind is CheckpointKind.REWIND:
            return
        require(
            entry.generation == self.world.judged.log.read().generation,
            f"generation {entry.generation} decided after it was fenced",
        )
        counts["checkpoints aligned" if cut.is_aligned else "checkpoints unaligned"] += 1
        counts["savepoints"] += entry.kind is CheckpointKind.SAVEPOINT
        for spec in self.world.topology.steps:
            self._check_snapshot(spec, cut)
            counts["objects reused"] += sum(
                f"/{cut.checkpoint_id:012d}-" not in blob.name
                for blob in cut.snapshots[spec.step].blobs
            )
        self._check_pace(cut)
        self.world.faults.decision_written(cut)

    def _check_snapshot(self, spec: StepSpec, cut: Cut) -> None:
        snapshot = cut.snapshots[spec.step]
        record = self._record(cut, spec.step)
        where = f"checkpoint {cut.checkpoint_id}, {spec.step} at batch {snapshot.batch}"
        for blob in snapshot.blobs:
            problem = self.problem(blob)
            require(problem is None or self.world.damaged, f"{where}: {blob.name} is {problem}")
        require(
            any(map(self.problem, snapshot.state))
            or files_digest(self._tree(snapshot.state)) == record.state_sha256,
            f"{where}: the stored state is not the state after that batch",
        )
        require(
            {source: place.position for source, place in snapshot.positions.items()} == record.ends,
            f"{where}: positions {snapshot.positions} are not where the batch ended",
        )
        if spec.is_source:
            require(
                snapshot.offsets[spec.step] == str(record.offset),
                f"{where}: offset {snapshot.offsets} is not where the batch ended",
            )
        limit = self.world.options.unaligned.max_inflight_bytes
        require(
            snapshot.in_flight_bytes <= limit,
            f"{where}: {snapshot.in_flight_bytes} bytes in flight, allowed {limit}",
        )
        self._check_stands_alone(cut, snapshot)
        self._check_channels(spec, cut, snapshot)

    def _check_stands_alone(self, cut: Cut, snapshot: StepSnapshot) -> None:
        """A savepoint or full checkpoint refers to no object of another checkpoint."""
        if cut.kind not in {CheckpointKind.SAVEPOINT, CheckpointKind.FULL}:
            return
        for blob in snapshot.blobs:
            own = self.world.paths.blob(cut.generation, blob.sha256, cut.checkpoint_id)
            require(
                blob.name == own,
                f"{cut.kind.name.lower()} {cut.checkpoint_id} needs {blob.name} of another one",
            )

    def _check_channels(self, spec: StepSpec, cut: Cut, snapshot: StepSnapshot) -> None:
        history = self.world.history
        for source in spec.inputs:
            sent = self._record(cut, StepId(source.channel)).output
            position = snapshot.positions[source].position
            events = history.events.get((cut.generation, source.channel), {})
            lost = [events.get(number) for number in range(position, sent)]
            kept = [
                None
                if self.problem(recorded.blobs[0])
                else unpack(self.world.store.by_name[recorded.blobs[0].name])
                for part in snapshot.in_flight
                if part.input == source
                for recorded in part.events
            ]
            require(
                kept == lost or self.world.damaged,
                f"checkpoint {cut.checkpoint_id}: {ReaderId(spec.step, source)} stands at "
                f"@{position} of {sent} sent, but {len(kept)} Events are recorded or differ",
            )

    def _record(self, cut: Cut, step: StepId) -> BatchRecord:
        batch = cut.snapshots[step].batch
        known = self.world.history.batches[(cut.generation, step)]
        require(batch in known, f"{step} never appended batch {batch}")
        return known[batch]

    # -- commits

    def _check_pace(self, cut: Cut) -> None:
        """Sinks get rows exactly as often as `commit_every` says."""
        world, options = self.world, self.world.options.commit
        last_ms = self.gave_rows_at_ms.get(cut.generation)
        early = last_ms is not None and cut.started_at_ms < last_ms + options.every_ms
        where = f"checkpoint {cut.checkpoint_id}, {options.every_ms} ms between commits"
        # Another process may have tried the same number in vain.
        drained = any(
            cut.checkpoint_id in process.last_attempts
            for process in world.processes
            if process.generation == cut.generation
        )
        sources = [cut.snapshots[StepId(name)] for name in world.shape.sources()]
        ends = drained or cut.kind is not CheckpointKind.CHECKPOINT
        ends = ends or all(source.finished for source in sources)
        waits = len(world.tables) > 1 and not options.commit_unaligned and not cut.is_aligned
        if not cut.commit_point:
            world.history.counts["recovery points before their turn"] += early and not ends
            require(waits or (early and not ends), f"{where}: sinks wait although it is their turn")
        elif any(cut.commit.values()):
            require(ends or not early, f"{where}: {cut.started_at_ms} is too early for {last_ms}")
            self.gave_rows_at_ms[cut.generation] = cut.started_at_ms

    def committed(self, slot: Slot) -> None:
        """A commit has just been recorded: tables show exactly the cut's source prefix."""
        world = self.world
        kept = [table for table in world.tables.values() if not table.shows_batches]
        if any(table.last_slot != slot for table in kept):
            return
        entry = world.judged.log.read().at(slot)
        assert isinstance(entry, Decision)
        cut = world.read_cut(entry)
        if cut is None:
            return
        world.history.counts["commit points"] += 1
        # With several sinks a commit point is whole, or the tables disagree (rule F3).
        # A rewind to a recovery point shows what was visible then, which is less than its cut.
        several = len(world.tables) > 1 and not world.options.commit.commit_unaligned
        aligned = cut.is_aligned or (several and entry.kind is not CheckpointKind.REWIND)
        whole = aligned and not any(cut.carried.values())
        tables = self._tables_at(slot)
        where = f"commit of checkpoint {entry.checkpoint_id}"
        self._compare(tables, self._prefix(cut), where, whole=whole)
        if whole:
            self._check_tokens(tables)

    def _tables_at(self, slot: Slot) -> Tables:
        """What the tables held at a commit; a table that shows batches may show more by now."""
        recorded = self.world.judged.commits.read(slot).versions
        return {
            sink: table.versions[int(recorded[sink])] if table.shows_batches else table.rows
            for sink, table in self.world.tables.items()
        }

    def _prefix(self, cut: Cut) -> Mapping[str, int]:
        return {
            name: int(cut.snapshots[StepId(name)].offsets[name])
            for name in self.world.shape.sources()
        }

    def _compare(
        self, tables: Tables, lengths: Mapping[str, int], where: str, *, whole: bool
    ) -> None:
        expected = self.world.shape.expected(lengths)
        for sink, rows in tables.items():
            wanted = Counter(map(without_tokens, expected[sink]))
            shown = Counter(map(without_tokens, filter(is_ours, rows)))
            extra, missing = shown - wanted, wanted - shown
            require(not extra, f"{where}: {sink} shows too much: {_some(extra)}")
            if whole and not self.world.shape.waits_for_watermark(sink):
                require(not missing, f"{where}: {sink} lacks {_some(missing)}")
            self._check_order(sink, rows, where)

    def _check_order(self, sink: SinkId, rows: tuple[Row, ...], where: str) -> None:
        last: dict[str, int] = {}
        for row in rows:
            if ">" in row.origin:
                require(
                    last.get(row.origin, -1) < row.seq,
                    f"{where}: {sink} shows {row.origin} {row.seq} after {last.get(row.origin)}",
                )
                last[row.origin] = row.seq

    def _check_tokens(self, tables: Tables) -> None:
        """What a random step drew for a row is the same wherever the row went."""
        tokens: dict[int, Token] = {}
        for rows in tables.values():
            for row in rows:
                for token in (part for part in row.value if isinstance(part, Token)):
                    known = tokens.setdefault(row.seq, token)
                    require(known == token, f"row {row.seq} has two random values")
        for seq, token in tokens.items():
            before = tokens.get(seq - 1)
            if before is not None:
                require(token.before == before.now, f"row {seq} follows another row {seq - 1}")

    # -- bounds and ends

    def bounds(self, process: Process) -> None:
        """Memory is bounded: channels, control messages, open attempts."""
        bound = self.world.bound
        options = self.world.options
        # An Event that lets a held barrier be emitted may exceed the bound.
        most = bound.messages + 1
        for channel in {} if process.built is None else process.built.channels.values():
            for reader, backlog in channel.backlogs().items():
                # An overtaking step reads on while it records, so a restored backlog may be
                # longer than the bound; it only shrinks.
                restored = process.restored_ends.get(channel.id, 0)
                longest = max(most, restored - channel.position(reader).position)
                behind = backlog.messages
                require(behind <= longest, f"{reader} lies {behind} Events behind")
            controls = channel._log.controls
            require(controls < 400, f"{channel.id} keeps {controls} control messages")
        opened = len(process.open_attempts)
        require(opened <= options.max_concurrent, f"{opened} attempts are open")

    def stopped(self, process: Process) -> None:
        """A pipeline stopped with a savepoint has appended nothing after it."""
        head = self.world.judged.log.read().head
        cut = None if head is None else self.world.read_cut(head)
        if cut is None or process.stop_after != cut.checkpoint_id:
            return
        for name, offset in self._prefix(cut).items():
            appended = process.steps[name].offset
            require(appended == offset, f"{name} went on to {appended} behind the drain {offset}")

    def final(self, process: Process) -> None:
        """The run is over and healed: everything is there, once, and every attempt ended."""
        history = self.world.history
        totals = {str(name): stream.total or 0 for name, stream in self.world.streams.items()}
        expected = self.world.shape.expected(totals)
        tables = {sink: table.rows for sink, table in self.world.tables.items()}
        self._compare(tables, totals, "the end", whole=True)
        for sink, rows in tables.items():
            missing = Counter(map(without_tokens, expected[sink])) - Counter(
                map(without_tokens, rows)
            )
            require(not missing, f"the end: {sink} lacks {_some(missing)}")
            foreign = [row for row in rows if not is_ours(row)]
            require(
                Counter(foreign) == Counter(self.world.tables[sink].foreign),
                f"the end: {sink} no longer has the rows of other programs as they wrote them",
            )
        self._check_tokens(tables)
        for attempt in history.started:
            ended = history.ended[attempt]
            require(ended <= 1, f"attempt {attempt} ended {ended} times")
            if attempt[0] == process.generation:
                require(ended == 1, f"attempt {attempt} never ended")


def _some(rows: Counter[Row]) -> str:
    first = sorted(rows.items(), key=repr)[:3]
    return ", ".join(f"{count} x {row}" for row, count in first) + f" ({len(rows)} in all)"
