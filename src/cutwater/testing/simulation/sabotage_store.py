"""Mutations of recovery, retention and storing: what is trusted, kept and reused.

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cutwater.protocol.coordinator import Coordinator
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, Decision, LogView
from cutwater.protocol.message import START
from cutwater.protocol.retention import plan_retention
from cutwater.testing.simulation import effects
from cutwater.testing.simulation.boot import Boot
from cutwater.testing.simulation.effects import Effects
from cutwater.testing.simulation.sabotage import Patch, sabotage
from cutwater.testing.simulation.store import SimulatedStore, digest


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
        entries = tuple(_unless_damaged(self, one) for one in found.log.entries)
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
        plain = [one for one in log.decisions if one.kind is not CheckpointKind.REWIND]
        return tuple(plain[-retained:])

    return [(effects, "kept", kept)]


@sabotage("prune-what-is-carried", "F8")
def prune_what_is_carried() -> list[Patch]:
    """Let retention forget that a kept cut still has rows to commit."""
    original = plan_retention

    def plan(log: LogView, keep: Any, cuts: Any, found: Any, **more: Any) -> Any:
        bare = {one: replace(cut, carried={}) for one, cut in cuts.items()}
        plain = [replace(one, staged=False) for one in found]
        return original(log, keep, bare, plain, **more)

    return [(effects, "plan_retention", plan)]


@sabotage("prune-by-undecided-manifests", "I9")
def prune_by_undecided_manifests() -> list[Patch]:
    """Delete the staged rows that a failed attempt's manifest names."""
    original = plan_retention

    def plan(log: LogView, keep: Any, cuts: dict[Any, Cut], found: Any, **more: Any) -> Any:
        planned = original(log, keep, cuts, found, **more)
        decided = {one.checkpoint_id for one in log.decisions}
        names = {
            blob.name
            for one, cut in cuts.items()
            if one not in decided
            for blob in cut.blobs(committed=False)
        }
        return replace(planned, objects=tuple(sorted({*planned.objects, *names})))

    return [(effects, "plan_retention", plan)]


@sabotage("skip-by-existence", "F7")
def skip_by_existence() -> list[Patch]:
    """Reuse any object that exists, while garbage is collected beside the attempt."""

    def put(self: Effects, process: Any, data: bytes) -> BlobRef:
        name = f"/{digest(data)}"
        for known in self.store.names("blobs"):
            if known.endswith(name):
                return BlobRef(known, len(data), digest(data))
        return original(self, process, data)

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
