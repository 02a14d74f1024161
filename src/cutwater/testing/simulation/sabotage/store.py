"""Mutations of recovery, retention and storing: what is trusted, kept and reused.

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from dataclasses import replace
from typing import Any

from cutwater.errors import Unavailable
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, Decision, LogView
from cutwater.protocol.retention import plan_retention, staged_to_keep
from cutwater.runtime import channel
from cutwater.runtime.recovery import Recovery
from cutwater.sinks import retention as sink_retention
from cutwater.store.blobs.blobs import Blobs
from cutwater.store.maintenance import garbage
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.testing.simulation.engine import SimulatedEngine, SimulatedStep
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage
from cutwater.testing.simulation.sinks import SimulatedSink, pack, unpack
from cutwater.testing.simulation.store import SimulatedBackend
from cutwater.testing.simulation.tables import SimulatedTable, is_ours


@sabotage("recover-from-the-highest-id", "F5")
def recover_from_the_highest_id() -> list[Patch]:
    """Restore the manifest with the highest number, decided or not."""
    original = Recovery.run

    def run(self: Recovery) -> Any:
        action = original(self)
        manifests = self.context.store.manifests
        for checkpoint_id in reversed(manifests.ids()):
            if action.cut is not None:
                return replace(action, cut=manifests.read(checkpoint_id))
        return action

    return [(Recovery, "run", run)]


@sabotage("fall-back-silently", "F4")
def fall_back_silently() -> list[Patch]:
    """Take an older cut when the newest is damaged, and leave the sinks where they are."""
    original = Recovery._facts

    def facts(self: Recovery) -> Any:
        found = original(self)
        entries = tuple(_unless_damaged(self, entry) for entry in found.log.entries)
        return replace(found, log=LogView(entries))

    return [(Recovery, "_facts", facts)]


def _unless_damaged(self: Recovery, entry: Any) -> Any:
    if not isinstance(entry, Decision):
        return entry
    cut = self._read(entry)
    if cut is not None and not self.context.store.blobs(cut.generation).problems(
        sorted({blob for snapshot in cut.snapshots.values() for blob in snapshot.blobs})
    ):
        return entry
    return Claim(entry.slot, entry.generation, entry.nonce)


@sabotage("verify-nothing", "I7")
def verify_nothing() -> list[Patch]:
    """Restore objects without comparing them with their manifest."""

    def fetch(self: Blobs, ref: BlobRef, local_file: Any) -> None:
        local_file.write_bytes(self.backend.read(ObjectPath(ref.name)))

    return [(Recovery, "_damages", lambda *_: ()), (Blobs, "fetch_file", fetch)]


@sabotage("prune-after-rewind", "F13", faults=("rewind", "crash soon after a rewind"))
def prune_after_rewind() -> list[Patch]:
    """Keep the newest checkpoints by number and forget what the pipeline stands on."""

    def kept(log: LogView, _: Any, retained: int, *__: Any, **___: Any) -> tuple[Decision, ...]:
        plain = [
            decision for decision in log.decisions if decision.kind is not CheckpointKind.REWIND
        ]
        return tuple(plain[-retained:])

    return [(garbage, "kept", kept)]


@sabotage("prune-what-is-carried", "F8")
def prune_what_is_carried() -> list[Patch]:
    """Let retention forget that a kept cut still has rows to commit."""
    original = staged_to_keep

    def keep(log: LogView, cuts: Any, committed_through: Any) -> Any:
        return original(log, [replace(cut, carried={}) for cut in cuts], committed_through)

    return [(sink_retention, "staged_to_keep", keep)]


@sabotage("staged-rows-deleted-by-the-commit", "I9")
def staged_rows_deleted_by_the_commit() -> list[Patch]:
    """Delete staged rows once they are committed, although a kept cut still carries them."""

    def committed(self: SimulatedSink, committables: Any) -> None:
        for committable in committables:
            for blob in committable.blobs:
                self._backend._objects.by_name.pop(blob.name, None)

    return [(SimulatedSink, "committed", committed)]


@sabotage("prune-by-undecided-manifests", "I9")
def prune_by_undecided_manifests() -> list[Patch]:
    """Delete the objects that a failed attempt's manifest names."""
    original = plan_retention

    def plan(log: LogView, keep: Any, cuts: dict[Any, Cut], found: Any, **more: Any) -> Any:
        planned = original(log, keep, cuts, found, **more)
        decided = {decision.checkpoint_id for decision in log.decisions}
        names = {
            blob.name
            for number, cut in cuts.items()
            if number not in decided
            for blob in cut.blobs(committed=False)
        }
        return replace(planned, objects=tuple(sorted({*planned.objects, *names})))

    return [(garbage, "plan_retention", plan)]


@sabotage("skip-by-existence", "F7")
def skip_by_existence() -> list[Patch]:
    """Reuse any object that exists, while garbage is collected beside the attempt."""
    original, facts = Blobs._store, Coordinator._facts

    def store(self: Blobs, local_file: Any, size_bytes: int, sha256: str, reusable: Any) -> BlobRef:
        for known in self.backend.list(self._paths.blobs):
            if known.endswith(f"-{sha256}"):
                return BlobRef(known, size_bytes, sha256)
        return original(self, local_file, size_bytes, sha256, reusable)

    def no_lock(self: Coordinator, now_ms: Any) -> Any:
        return replace(facts(self, now_ms), garbage=False)

    return [(Blobs, "_store", store), (Coordinator, "_facts", no_lock)]


@sabotage("in-flight-restored-backwards", "I4")
def in_flight_restored_backwards() -> list[Patch]:
    """Restore in-flight Events in another order."""
    original = channel._recorded

    def recorded(cut: Any, reader: Any) -> Any:
        found = original(cut, reader)
        return tuple(
            replace(entry, event=other.event, blobs=other.blobs)
            for entry, other in zip(found, reversed(found), strict=True)
        )

    return [(channel, "_recorded", recorded)]


@sabotage("in-flight-not-restored", "I3")
def in_flight_not_restored() -> list[Patch]:
    """Restore every reader at the barrier, as if nothing had been in flight."""
    original = SimulatedEngine.build

    def build(self: SimulatedEngine, context: Any, restore: Any, *more: Any) -> Any:
        cut = restore.cut
        if cut is not None:
            snapshots = {
                step: replace(snapshot, positions=snapshot.barriers, in_flight=())
                for step, snapshot in cut.snapshots.items()
            }
            restore = replace(restore, cut=replace(cut, snapshots=snapshots))
        return original(self, context, restore, *more)

    return [(SimulatedEngine, "build", build)]


@sabotage("names-by-content-alone", "I9", shape="line")
def names_by_content_alone() -> list[Patch]:
    """Store the same content under the same name again, where a late delete finds it."""
    original = PipelinePaths.blob

    def name(self: PipelinePaths, generation: Any, sha256: str, attempt: Any = None) -> Any:
        del attempt
        return original(self, generation, sha256)

    return [(PipelinePaths, "blob", name)]


@sabotage("a-failed-listing-is-empty", "I7")
def a_failed_listing_is_empty() -> list[Patch]:
    """Take a listing that broke off for one that found nothing, and delete accordingly."""
    original = SimulatedBackend.list

    def plan(log: Any, keep: Any, cuts: Any, found: Any, **facts: Any) -> Any:
        listed = [decision for decision in keep if decision.checkpoint_id in cuts]
        return plan_retention(log, listed, cuts, found, **facts)

    def listed(self: SimulatedBackend, prefix: Any, after: Any = None) -> Any:
        try:
            return original(self, prefix, after)
        except Unavailable:
            return ()

    return [(SimulatedBackend, "list", listed), (garbage, "plan_retention", plan)]


@sabotage("a-partial-listing-is-whole", "I1")
def a_partial_listing_is_whole() -> list[Patch]:
    """Store as a snapshot the files that a listing of its directory found before it broke off."""
    original = SimulatedStep.pinned

    def pinned(self: SimulatedStep, checkpoint_id: Any) -> Any:
        try:
            return original(self, checkpoint_id)
        except FileNotFoundError:
            raise
        except OSError:
            found = self._pinned.get(checkpoint_id)
            if found is None:
                raise
            return replace(found, files=found.files[:-1])

    return [(SimulatedStep, "pinned", pinned)]


@sabotage("a-late-entry-is-forgotten", "F15")
def a_late_entry_is_forgotten() -> list[Patch]:
    """Take the place of the log that no answer came from, whatever arrived there meanwhile."""
    original = SimulatedBackend.create

    def create(self: SimulatedBackend, path: Any, data: bytes) -> bool:
        written = original(self, path, data)
        if not written and "/log/" in path:
            self._write(path, data)
        return True

    return [(SimulatedBackend, "create", create)]


@sabotage("input-watermarks-forgotten", "F22", shape="windows")
def input_watermarks_forgotten() -> list[Patch]:
    """Restore the watermark of a step but not how far each of its inputs had come."""
    original = SimulatedStep.begin

    def begin(self: SimulatedStep, process: Any, restored: Any, state: bytes) -> None:
        original(self, process, restored, state)
        known = unpack(self.state)
        known.pop("newest", None)
        self.state = pack(known)

    return [(SimulatedStep, "begin", begin)]


@sabotage("a-missing-channel-file-is-skipped", "I3")
def a_missing_channel_file_is_skipped() -> list[Patch]:
    """Read the files of a channel that are there, and no others."""
    original = SimulatedStep.read_file

    def read(self: SimulatedStep, source: Any, event: Any) -> Any:
        try:
            return original(self, source, event)
        except FileNotFoundError:
            return ()

    return [(SimulatedStep, "read_file", read)]


@sabotage("a-stopped-query-is-finished", "F23")
def a_stopped_query_is_finished() -> list[Patch]:
    """Take a query that was stopped from outside for one that has read all its input."""

    def ended(self: SimulatedStep) -> bool:
        return self.is_at_end or self.stopped

    return [(SimulatedStep, "source_ended", ended), (SimulatedStep, "problem", lambda _: None)]


@sabotage("an-upsert-rewrites-foreign-rows", "I6")
def an_upsert_rewrites_foreign_rows() -> list[Patch]:
    """Let a commit copy rows of other programs in a type that cannot hold their values."""
    original = SimulatedTable._act

    def act(self: SimulatedTable, slot: Any, content: Any) -> Any:
        copied = (row if is_ours(row) else row._replace(seq=row.seq % 100) for row in content)
        return original(self, slot, tuple(copied))

    return [(SimulatedTable, "_act", act)]
