"""Opens a stopped pipeline: its store by address, its sinks by the targets that the store records.

Nothing is created here: an address without a store and a name without a pipeline are user errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import ConfigError, MoveRefused, SinkError
from cutwater.ids import SinkId
from cutwater.operations.rewind.target import Candidate
from cutwater.protocol.decisions import LogView
from cutwater.sinks.base import IdentifiedSink, OpenSink
from cutwater.sinks.registry import reopen
from cutwater.store.backends.backend import Backend, each
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify
from cutwater.store.records.targets import IDENTITY, SinkTargets, StoredTarget


@dataclass(frozen=True, slots=True)
class OfflinePipeline:
    """A stopped pipeline: its store, and the sinks that could be opened.

    Attributes:
        unopened: Why the other sinks are not.
    """

    name: str
    store: PipelineStore
    targets: SinkTargets
    sinks: Mapping[SinkId, OpenSink]
    unopened: Mapping[SinkId, str] = field(default_factory=dict)


def open_offline(backend: Backend, name: str) -> OfflinePipeline:
    """Open a pipeline and its sinks, without the pipeline file.

    MoveRefused if the store does not record where its sinks write.
    """
    name, pipeline = identify(backend, name)
    store = PipelineStore.of(backend, pipeline)
    recorded = store.targets.newest(store.log.read())
    if recorded is None:
        reason = "its store does not say where its sinks write; run it once"
        raise MoveRefused(name, f"{reason}, or use `cutwater run FILE --from`")
    sinks: dict[SinkId, OpenSink] = {}
    unopened: dict[SinkId, str] = {}
    for sink, target in recorded.items():
        try:
            opened = reopen(target, store.pipeline, sink)
            why = _describe_replacement(target, opened)
            if why is None:
                sinks[sink] = opened
            else:
                unopened[sink] = f"{why}; use `cutwater run FILE --from`, with --moved {sink}"
        except (ConfigError, SinkError) as error:
            unopened[sink] = error.reason
    return OfflinePipeline(name, store, recorded, sinks, unopened)


def _describe_replacement(target: StoredTarget, opened: object) -> str | None:
    """Say that a recorded address now leads to another target; None if it does not."""
    if target.identity is None or not isinstance(opened, IdentifiedSink):
        return None
    now = replace(target, options={IDENTITY: (opened.identity,)})
    return None if now.is_same_as(target) else f"{target.uri} is another database than it was"


def candidates(store: PipelineStore, log: LogView) -> tuple[Candidate, ...]:
    """Read all decided checkpoints that still exist, oldest first."""
    there = set(store.manifests.ids())
    decided = (decision for decision in log.decisions if decision.checkpoint_id in there)
    return tuple(Candidate(decision, store.manifests.find(decision)) for decision in decided)


def check_objects_stay(pipeline: str, store: PipelineStore, target: Candidate) -> None:
    """Check after a claim that retention has not deleted an object of a checkpoint just before it.

    The manifest usually shows that (`check_still_there`). A store that loses the delete of a
    manifest leaves one whose objects are gone.
    """
    cut = target.cut
    if cut is None:
        return
    refs = sorted({ref for snapshot in cut.snapshots.values() for ref in snapshot.blobs})
    problems = each(store.backend, store.blobs(cut.generation).absence, refs)
    for ref, problem in zip(refs, problems, strict=True):
        if problem is not None:
            reason = f"{target.title} is no longer kept: {ref.name}: {problem}"
            raise MoveRefused(pipeline, reason)


def check_still_there(pipeline: str, store: PipelineStore, target: Candidate) -> None:
    """Read a checkpoint's manifest again, after retention may have deleted it.

    Retention deletes a manifest before the objects it names, and checks for a newer claim before
    each. So a manifest that exists after a claim proves that its objects stay; and objects that are
    missing together with their manifest were deleted, not damaged.
    """
    if store.manifests.find(target.decision) != target.cut:
        reason = f"{target.title} is no longer kept, and was deleted while it was looked at"
        raise MoveRefused(pipeline, reason)
