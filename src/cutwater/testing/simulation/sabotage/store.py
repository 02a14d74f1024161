"""Mutations of recovery, retention and storing: what is trusted, kept and reused.

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, Decision, LogView
from cutwater.protocol.messages import START
from cutwater.protocol.retention import plan_retention, staged_to_keep
from cutwater.protocol.step.events import EndReached
from cutwater.testing.simulation import checkers, effects
from cutwater.testing.simulation.boot import Boot
from cutwater.testing.simulation.effects import Effects
from cutwater.testing.simulation.engine import Engine
from cutwater.testing.simulation.process import Process
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage
from cutwater.testing.simulation.store import (
    ListingFailed,
    SimulatedStore,
    digest,
    files_of,
    pack,
    unpack,
)
from cutwater.testing.simulation.tables import SimulatedTable, is_ours


@sabotage("recover-from-the-highest-id", "F5")
def recover_from_the_highest_id() -> list[Patch]:
    """Restore the manifest with the highest number, decided or not."""
    original = Boot._restore

    def restore(self: Boot, process: Any, action: Any) -> Any:
        for checkpoint_id in reversed(self.store.manifests()):
            cut = self.store.read_cut(checkpoint_id)
            if cut is not None and action.cut is not None:
                action = replace(action, cut=cut)
                break
        return original(self, process, action)

    return [(Boot, "_restore", restore)]


@sabotage("fall-back-silently", "F4")
def fall_back_silently() -> list[Patch]:
    """Take an older cut when the newest is damaged, and leave the sinks where they are."""
    original = Boot._facts

    def facts(self: Boot, process: Any, manifests: Any, verified: Any) -> Any:
        found = original(self, process, {}, {})
        entries = tuple(_unless_damaged(self, entry) for entry in found.log.entries)
        return replace(found, log=LogView(entries), manifests=manifests, verified=verified)

    return [(Boot, "_facts", facts)]


def _unless_damaged(self: Boot, entry: Any) -> Any:
    if not isinstance(entry, Decision):
        return entry
    cut = self.store.read_cut(entry.checkpoint_id, entry.manifest_sha256)
    if cut is not None and not self._damages(cut, committed=True):
        return entry
    return Claim(entry.slot, entry.generation, entry.nonce)


@sabotage("verify-nothing", "I7")
def verify_nothing() -> list[Patch]:
    """Restore objects without comparing them with their manifest."""

    def checked(self: SimulatedStore, blob: BlobRef) -> bytes:
        return self.objects.get(blob.name, b"N.")

    return [(Boot, "_damages", lambda *_, **__: ()), (SimulatedStore, "checked", checked)]


@sabotage("prune-after-rewind", "F13")
def prune_after_rewind() -> list[Patch]:
    """Keep the newest checkpoints by number and forget what the pipeline stands on."""

    def kept(log: LogView, _: Any, retained: int) -> tuple[Decision, ...]:
        plain = [
            decision for decision in log.decisions if decision.kind is not CheckpointKind.REWIND
        ]
        return tuple(plain[-retained:])

    return [(effects, "kept", kept)]


@sabotage("prune-what-is-carried", "F8")
def prune_what_is_carried() -> list[Patch]:
    """Let retention forget that a kept cut still has rows to commit."""
    original = staged_to_keep

    def keep(log: LogView, cuts: Any, committed_through: Any) -> Any:
        return original(log, [replace(cut, carried={}) for cut in cuts], committed_through)

    return [(effects, "staged_to_keep", keep)]


@sabotage("staged-rows-deleted-by-the-commit", "I9")
def staged_rows_deleted_by_the_commit() -> list[Patch]:
    """Delete staged rows once they are committed, although a kept cut still carries them."""

    def committed(self: Effects, command: Any) -> None:
        for committable in command.committables:
            for blob in committable.blobs:
                self.store.objects.pop(blob.name, None)

    return [(Effects, "committed", committed)]


@sabotage("prune-by-undecided-manifests", "I9")
def prune_by_undecided_manifests() -> list[Patch]:
    """Delete the staged rows that a failed attempt's manifest names."""
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

    return [(effects, "plan_retention", plan)]


@sabotage("skip-by-existence", "F7")
def skip_by_existence() -> list[Patch]:
    """Reuse any object that exists, while garbage is collected beside the attempt."""

    def put(self: Effects, process: Any, checkpoint_id: Any, data: bytes) -> BlobRef:
        name = f"-{digest(data)}"
        for known in self.store.names("blobs"):
            if known.endswith(name):
                return BlobRef(known, len(data), digest(data))
        return original(self, process, checkpoint_id, data)

    original, facts = Effects._put, Coordinator._facts

    def no_lock(self: Coordinator, now_ms: int) -> Any:
        return replace(facts(self, now_ms), garbage=False)

    return [(Effects, "_put", put), (Coordinator, "_facts", no_lock)]


@sabotage("in-flight-restored-backwards", "I4")
def in_flight_restored_backwards() -> list[Patch]:
    """Restore in-flight Events in another order."""
    original = Boot._recorded

    def recorded(self: Boot, cut: Any, reader: Any) -> Iterator[Any]:
        found = list(original(self, cut, reader))
        events = [(event, rows) for _, event, rows in reversed(found)]
        for (number, _, _), (event, rows) in zip(found, events, strict=True):
            yield number, event, rows

    return [(Boot, "_recorded", recorded)]


@sabotage("in-flight-not-restored", "I3")
def in_flight_not_restored() -> list[Patch]:
    """Restore every reader at the barrier, as if nothing had been in flight."""

    def position(_: Boot, cut: Cut | None, reader: Any) -> Any:
        return START if cut is None else cut.snapshots[reader.step].barriers[reader.input]

    original = Boot._restored

    def restored(self: Boot, spec: Any, cut: Cut | None) -> Any:
        found = original(self, spec, cut)
        if cut is None:
            return found
        return replace(found, positions=cut.snapshots[spec.step].barriers)

    return [
        (Boot, "_position", position),
        (Boot, "_restored", restored),
        (Boot, "_recorded", lambda *_: iter(())),
    ]


@sabotage("names-by-content-alone", "I9", shape="line")
def names_by_content_alone() -> list[Patch]:
    """Store the same content under the same name again, where a late delete finds it."""

    def name(generation: Any, _: Any, sha256: str) -> str:
        return f"blobs/{generation:04d}/{sha256}"

    return [(effects, "blob_name", name), (checkers, "blob_name", name)]


@sabotage("a-failed-listing-is-empty", "I7")
def a_failed_listing_is_empty() -> list[Patch]:
    """Take a listing of the store that broke off for one that found nothing."""
    original = SimulatedStore.names

    def names(self: SimulatedStore, kind: str) -> list[str]:
        try:
            return original(self, kind)
        except ListingFailed:
            return []

    return [(SimulatedStore, "names", names)]


@sabotage("a-partial-listing-is-whole", "I1")
def a_partial_listing_is_whole() -> list[Patch]:
    """Store as a snapshot the files that a listing of its directory found before it broke off."""
    original = Engine.pinned_files

    def pinned(self: Engine, checkpoint_id: int) -> tuple[bytes, ...]:
        try:
            return original(self, checkpoint_id)
        except ListingFailed:
            return files_of(self.pins[checkpoint_id])[:-1]

    return [(Engine, "pinned_files", pinned)]


@sabotage("a-late-entry-is-forgotten", "F15")
def a_late_entry_is_forgotten() -> list[Patch]:
    """Take the place of the log that no answer came from, whatever arrived there meanwhile."""
    original = SimulatedStore.create

    def create(self: SimulatedStore, name: str, data: bytes) -> bool:
        written = original(self, name, data)
        if not written and name.startswith("log/"):
            self.objects[name] = data
        return True

    return [(SimulatedStore, "create", create)]


@sabotage("input-watermarks-forgotten", "F22", shape="windows")
def input_watermarks_forgotten() -> list[Patch]:
    """Restore the watermark of a step but not how far each of its inputs had come."""
    original = Boot._begin_step

    def begin(self: Boot, process: Any, spec: Any, cut: Cut | None) -> None:
        original(self, process, spec, cut)
        engine = process.engines[spec.step]
        state = unpack(engine.state)
        state.pop("newest", None)
        engine.state = pack(state)

    return [(Boot, "_begin_step", begin)]


@sabotage("a-missing-channel-file-is-skipped", "I3")
def a_missing_channel_file_is_skipped() -> list[Patch]:
    """Read the files of a channel that are there, and no others."""

    def read(self: Process, event: Any) -> Any:
        return self.files.get(event.files[0], ())

    return [(Process, "read_file", read)]


@sabotage("a-stopped-query-is-finished", "F23")
def a_stopped_query_is_finished() -> list[Patch]:
    """Take a query that was stopped from outside for one that has read all its input."""

    def ended(self: Engine) -> bool:
        self.stopped = False
        self.process.tell(self.step, EndReached())
        return True

    return [(Engine, "query_ended", ended)]


@sabotage("an-upsert-rewrites-foreign-rows", "I6")
def an_upsert_rewrites_foreign_rows() -> list[Patch]:
    """Let a commit copy rows of other programs in a type that cannot hold their values."""
    original = SimulatedTable._act

    def act(self: SimulatedTable, slot: Any, content: Any) -> Any:
        copied = (row if is_ours(row) else row._replace(seq=row.seq % 100) for row in content)
        return original(self, slot, tuple(copied))

    return [(SimulatedTable, "_act", act)]
