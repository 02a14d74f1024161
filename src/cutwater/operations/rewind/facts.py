"""Observes the facts that decide a rewind: the cut, its objects, and the state of every sink.

Only reads. Every reason to refuse a rewind is found here, before the pipeline is claimed
(PROTOCOL.md section 11).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from cutwater.errors import NotFound, SinkError
from cutwater.ids import Generation, SinkId
from cutwater.operations.offline_pipeline import OfflinePipeline, check_still_there
from cutwater.operations.rewind.preview import Observed, shown_then
from cutwater.operations.rewind.source_history import Past, find_changed_files, past_of
from cutwater.operations.rewind.target import Candidate
from cutwater.protocol.cut import NO_TARGET, Cut, Version
from cutwater.protocol.decisions import Decision, LogView
from cutwater.protocol.lost_commit import last_writes, recorded_of
from cutwater.protocol.recovery import Damage
from cutwater.protocol.rewind import RewindFacts, why_unrecorded
from cutwater.sinks.base import KeepsEveryRow, KnowsSlots, RestorePreview
from cutwater.sinks.lost_commits import behind, newest_writes, target_behind


def observe(
    offline: OfflinePipeline,
    log: LogView,
    target: Candidate,
    *,
    leave_sinks: bool,
    held: str | None,
) -> Observed:
    """Observe everything that a rewind to a checkpoint depends on.

    `held` is the process that runs the pipeline, if the rewind must be refused for it. MoveRefused
    if the checkpoint was deleted meanwhile.
    """
    head = log.head
    assert head is not None
    facts = RewindFacts(
        target=target.decision,
        cut=target.cut,
        committed=_read_committed(offline, target.decision),
        unrecorded=why_unrecorded(log, target.decision, offline.store.commits.through(log)),
        sinks=tuple(sorted(offline.targets)),
        leave_sinks=leave_sinks,
    )
    absent = _find_sinks_absent_then(offline, log, target.decision, shown_then(facts) or {})
    facts = replace(facts, before={sink: version for sink, (_, version) in absent.items()})
    shown = shown_then(facts) or {}
    since = dict.fromkeys(offline.targets, log.shown_at(target.decision))
    since |= {sink: generation for sink, (generation, _) in absent.items()}
    moved = _find_moved_sinks(offline, log, since)
    damages = () if facts.cut is None else _find_damages(offline, facts.cut, moved)
    if damages:
        check_still_there(offline.name, offline.store, target)
    previews, obstacles = _preview_restores(offline, shown, moved)
    obstacles = _find_recreated_tables(offline, target.decision, shown, previews) | obstacles
    obstacles = _find_unfenceable_sinks(offline, log, previews) | obstacles
    obstacles = _find_lost_commits(offline, log, target, shown, previews) | obstacles
    obstacles |= _find_dropped_sinks(offline, log, target.decision)
    head_cut = target.cut if head == target.decision else offline.store.manifests.find(head)
    past = Past() if target.cut is None else past_of(offline.store, head_cut, target.cut)
    return Observed(
        pipeline=offline.name,
        target=target,
        head=head_cut,
        head_id=head.checkpoint_id,
        undone=tuple(
            decision.checkpoint_id
            for decision in log.decisions
            if decision.slot > target.decision.slot
        ),
        facts=replace(facts, damages=damages, cannot_restore=obstacles, forgotten=past.forgotten),
        previews=previews,
        targets=offline.targets,
        held=held,
        past=past,
    )


def _read_committed(
    offline: OfflinePipeline, decision: Decision
) -> Mapping[SinkId, Version] | None:
    try:
        return offline.store.commits.read(decision.slot).versions
    except NotFound:
        return None


def _find_sinks_absent_then(
    offline: OfflinePipeline,
    log: LogView,
    decision: Decision,
    shown: Mapping[SinkId, Version | None],
) -> dict[SinkId, tuple[Generation, Version]]:
    """Find what sinks showed that were not part of the pipeline then, but had been before.

    Such a sink still showed its last commit: restored to its beginning, it would lose rows that are
    older than the checkpoint. The generation identifies the target of that commit.
    """
    missing = {sink for sink in offline.targets if shown.get(sink) is None}
    found: dict[SinkId, tuple[Generation, Version]] = {}
    targets = offline.store.targets.since(log, Generation(0)) if missing else {}
    acting = [
        earlier
        for earlier in log.decisions
        if earlier.commit_point and earlier.slot <= decision.slot
    ]
    for earlier in reversed(acting):
        sought = (missing & targets.get(earlier.generation, {}).keys()) - found.keys()
        # A decision without a record was never finished: what the sink showed is older.
        versions = (_read_committed(offline, earlier) or {}) if sought else {}
        found |= {sink: (earlier.generation, versions[sink]) for sink in sought & versions.keys()}
    return found


def _find_damages(
    offline: OfflinePipeline, cut: Cut, moved: Collection[SinkId]
) -> tuple[Damage, ...]:
    """Check every object of the state, of the data in flight, and of the carried output.

    Output carried for a moved sink is not checked: it is at another target, which is refused.
    """
    refs = sorted({ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs})
    problems = offline.store.blobs(cut.generation).problems(refs)
    found = [Damage(ref.name, problem) for ref, problem in problems.items()]
    if not found:
        found += (Damage(*gone) for gone in find_changed_files(offline.store, cut))
    for sink, committables in cut.carried.items():
        opened = None if sink in moved else offline.sinks.get(sink)
        for committable in committables if opened is not None else ():
            assert opened is not None
            problem = opened.problem(committable)
            if problem is not None:
                found.append(
                    Damage(f"what sink {sink} staged in batch {committable.batch}", problem)
                )
    return tuple(found)


def _preview_restores(
    offline: OfflinePipeline, shown: Mapping[SinkId, Version | None], moved: Mapping[SinkId, str]
) -> tuple[dict[SinkId, RestorePreview], dict[SinkId, str]]:
    previews: dict[SinkId, RestorePreview] = {}
    obstacles: dict[SinkId, str] = dict(offline.unopened)
    for sink, opened in offline.sinks.items():
        if sink in moved:
            # The version belongs to another target, and would mean something else in this one.
            continue
        try:
            previews[sink] = opened.look_back(shown.get(sink))
        except SinkError as error:
            obstacles[sink] = error.reason
            continue
        obstacle = previews[sink].obstacle
        if obstacle is not None:
            obstacles[sink] = obstacle
    for sink, place in moved.items():
        obstacles[sink] = f"it wrote to {place} since then, and to another target today"
    return previews, obstacles


def _find_recreated_tables(
    offline: OfflinePipeline,
    decision: Decision,
    shown: Mapping[SinkId, Version | None],
    previews: Mapping[SinkId, RestorePreview],
) -> dict[SinkId, str]:
    """Find sinks whose target was deleted and recreated since a decision.

    The versions of a recreated table start again: the same number is another version now.
    """
    found = {}
    for sink in previews:
        opened: object = offline.sinks[sink]
        version = shown.get(sink)
        if not isinstance(opened, KnowsSlots) or version is None:
            continue
        try:
            slot = opened.slot_at(version)
        except SinkError as error:
            found[sink] = error.reason
            continue
        if slot is not None and slot > decision.slot:
            place = offline.targets[sink].uri
            reason = f"{place} is another table than the one that was at version {version} then"
            found[sink] = f"{reason}: it has been recreated"
    return found


def _find_lost_commits(
    offline: OfflinePipeline,
    log: LogView,
    target: Candidate,
    shown: Mapping[SinkId, Version | None],
    previews: Mapping[SinkId, RestorePreview],
) -> dict[SinkId, str]:
    """Find sinks whose target lacks what it held at a checkpoint: it cannot be restored.

    A target that cannot remove rows must also hold what was recorded since, or it is not known
    what is in it.
    """
    writes = {} if target.cut is None else last_writes(target.decision.slot, target.cut)
    required = {
        sink: recorded
        for sink, recorded in newest_writes(offline.store, log).items()
        if isinstance(offline.sinks.get(sink), KeepsEveryRow)
    }
    found = {}
    for sink, recorded in {**recorded_of(writes, shown), **required}.items():
        try:
            opened = offline.sinks[sink] if sink in previews else None
            held = behind(opened, recorded, unnoticed=True)
        except SinkError as error:
            found[sink] = error.reason
            continue
        if held is not None:
            found[sink] = target_behind(sink, recorded, held).reason
    return found


def _find_dropped_sinks(
    offline: OfflinePipeline, log: LogView, decision: Decision
) -> dict[SinkId, str]:
    """Find sinks that have committed since a decision and are not part of the pipeline now.

    Their rows would stay, and be duplicated if the sink were added again.
    """
    since = offline.store.targets.since(log, decision.generation)
    return {
        sink: f"it wrote to {target.uri} since then, and is no longer part of the pipeline"
        for then in since.values()
        for sink, target in then.items()
        if sink not in offline.targets
    }


def _find_unfenceable_sinks(
    offline: OfflinePipeline, log: LogView, previews: Mapping[SinkId, RestorePreview]
) -> dict[SinkId, str]:
    """Find sinks that cannot be restored because an older process may still create their target.

    A restore leaves a mark in the target, which fences a process that was paused in an older commit
    (rule F8). A table that was never created has no place for the mark.
    """
    absent = {sink for sink, preview in previews.items() if preview.version == NO_TARGET}
    recorded = set(offline.store.commits.slots()) if absent else set()
    found = {}
    for decision in log.decisions if absent else ():
        if not decision.commit_point or decision.slot in recorded:
            continue
        cut = offline.store.manifests.find(decision)
        for sink in absent if cut is None else {sink for sink in absent if cut.commit.get(sink)}:
            found[sink] = (
                f"checkpoint {decision.checkpoint_id} has rows for it that may still be committed, "
                "and its table is not there yet: run the pipeline once, then rewind"
            )
    return found


def _find_moved_sinks(
    offline: OfflinePipeline, log: LogView, since: Mapping[SinkId, Generation]
) -> dict[SinkId, str]:
    """Find sinks whose target has changed since: their version belongs to the old target."""
    moved = {}
    first = min(since.values(), default=Generation(0))
    for generation, then in offline.store.targets.since(log, first).items():
        for sink, target in then.items():
            today = offline.targets.get(sink)
            if today is not None and generation >= since[sink] and not today.is_same_as(target):
                moved[sink] = target.uri
    return moved
