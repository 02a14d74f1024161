"""Finds targets that lost a recorded commit, and what the user can do about it (rule F43).

`protocol.lost_commit` decides whether a target lacks a commit. This module queries the sinks that
know their newest slot, and finds the checkpoint whose commits the target still holds: a rewind to
it restores all other sinks too, and the missing rows are computed again.
"""

from collections.abc import Iterator, Mapping

from cutwater.errors import NotFound, TargetBehind
from cutwater.ids import CheckpointId, SinkId
from cutwater.protocol.cut import NO_TARGET, Cut, Version
from cutwater.protocol.decisions import Decision, LogView
from cutwater.protocol.lost_commit import (
    Found,
    Past,
    Recorded,
    is_behind,
    last_writes,
    recorded_of,
    still_held,
)
from cutwater.sinks.base import KnowsNewest, LooksUnnoticed, OpenSink
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify


def behind(opened: object, recorded: Recorded | None, *, unnoticed: bool = False) -> Found | None:
    """Inspect one target; return what it shows if it lacks a recorded commit, otherwise None.

    `unnoticed` is for a preview: another process may be committing to the target.
    """
    if recorded is None or not isinstance(opened, KnowsNewest):
        return None
    if unnoticed and isinstance(opened, LooksUnnoticed):
        found = opened.newest_unnoticed()
    else:
        found = opened.newest()
    return found if is_behind(recorded, found) else None


def target_behind(
    sink: SinkId, recorded: Recorded, found: Found, way_out: str = ""
) -> TargetBehind:
    shows = f"version {found.version}"
    if not found.counts_versions:
        held = f"commits up to slot {found.slot}"
        shows += f", which holds {'no commit of this sink' if found.slot is None else held}"
    known = "" if recorded.version is None else f"version {recorded.version} with "
    return TargetBehind(sink, shows, f"{known}the commit of slot {recorded.slot}", way_out)


def check_targets_hold(
    store: PipelineStore, sinks: Mapping[SinkId, OpenSink], recorded: Mapping[SinkId, Recorded]
) -> None:
    """Check that every target holds what is recorded, before anything is committed on top.

    The TargetBehind of one that does not explains what can be done.
    """
    for sink, commit in recorded.items():
        found = behind(sinks.get(sink), commit)
        if found is not None:
            whole = _find_still_shown(store, sink, sinks[sink], found)
            raise target_behind(sink, commit, found, _way_out(store, commit, whole))


def _way_out(store: PipelineStore, recorded: Recorded, whole: CheckpointId | None) -> str:
    """Name the checkpoint that the target still shows, and what can be done."""
    log = store.log.read()
    lost = log.at(recorded.slot) if recorded.slot <= log.last_slot else None
    sentences = []
    if isinstance(lost, Decision):
        sentences.append(f"That was checkpoint {lost.checkpoint_id}.")
    name, _ = identify(store.backend, store.pipeline)
    if whole is not None:
        sentences.append(
            f"The newest checkpoint that it still shows is {whole}: "
            f"`cutwater rewind {name} --to {whole}` takes all sinks back to it, and the next run "
            "computes what is missing again."
        )
    else:
        sentences.append("There is no kept checkpoint that it still shows and can go back to.")
    sentences.append("Or bring the target back as it was.")
    # Not the head: it is usually the checkpoint whose commit was refused, and no rewind goes to a
    # checkpoint that is not committed.
    newest = next(_list_committed(store, log), None)
    if newest is not None:
        sentences.append(
            f"`cutwater rewind {name} --to {newest[0].checkpoint_id} --leave-sinks` continues with "
            "all targets as they are, and does not write the missing rows again."
        )
    return " ".join(sentences)


def _find_still_shown(
    store: PipelineStore, sink: SinkId, opened: OpenSink, found: Found
) -> CheckpointId | None:
    """Return the newest checkpoint that a target still holds and can be restored to.

    A commit without rows may be lost too, and then its version is missing. Staged rows that wait
    for their commit may also be lost.
    """
    for past in still_held(_list_past(store, store.log.read(), sink), found):
        waiting = past.cut.carried.get(sink, ())
        if opened.look_back(past.version).obstacle is None and not any(
            map(opened.problem, waiting)
        ):
            return past.cut.checkpoint_id
    return None


def _list_past(store: PipelineStore, log: LogView, sink: SinkId) -> Iterator[Past]:
    """Yield the committed checkpoints that still exist, newest first."""
    for decision, cut, visible in _list_committed(store, log):
        recorded = recorded_of(last_writes(decision.slot, cut), visible).get(sink)
        # A version without a known slot may be newer than what the target holds.
        if recorded is not None or visible.get(sink) in {None, NO_TARGET}:
            yield Past(cut, recorded, visible.get(sink))


def newest_writes(store: PipelineStore, log: LogView) -> Mapping[SinkId, Recorded]:
    """Return the last recorded commit of every sink, at the newest checkpoint that is kept."""
    newest = next(_list_committed(store, log), None)
    if newest is None:
        return {}
    decision, cut, visible = newest
    return recorded_of(last_writes(decision.slot, cut), visible)


def _list_committed(
    store: PipelineStore, log: LogView
) -> Iterator[tuple[Decision, Cut, Mapping[SinkId, Version | None]]]:
    """Yield the checkpoints that a rewind can go to, newest first, with the sinks' versions."""
    there = set(store.manifests.ids())
    committed = store.commits.through(log)
    for decision in reversed(log.decisions):
        if decision.checkpoint_id not in there:
            continue
        if decision.commit_point and decision.slot > committed:
            continue
        cut = store.manifests.find(decision)
        visible = None if cut is None else _read_visible(store, decision, cut)
        if cut is not None and visible is not None:
            yield decision, cut, visible


def _read_visible(
    store: PipelineStore, decision: Decision, cut: Cut
) -> Mapping[SinkId, Version | None] | None:
    """Return the sinks' versions after a decision was committed; None if not recorded."""
    if not decision.commit_point:
        return cut.visible
    try:
        return store.commits.read(decision.slot).versions
    except NotFound:
        return None
