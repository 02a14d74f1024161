"""Where the sinks of a pipeline write, as a store remembers it: by address, and by what is there.

An address can be written in many ways, and the same name can lead to another server tomorrow. A
target that can say what tells it from every other one (`IdentifiedTarget`) is recorded with that;
two such targets are compared by it, and all others by their addresses. A person can declare that a
sink's target was moved: then the new place is recorded as another name of the old one.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from cutwater.errors import ConfigError
from cutwater.ids import SinkId
from cutwater.sinks.base import IdentifiedTarget, Sink
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.targets import IDENTITY, StoredTarget, moved_from


def identify_target(sink: SinkId, target: Sink) -> StoredTarget:
    """Say how to find a target again, and what tells it from every other one.

    Raises:
        ConfigError: If it cannot work.
        SinkError: If it cannot be reached now.
    """
    stored = target.stored()
    if not isinstance(target, IdentifiedTarget):
        return stored
    return replace(stored, options={**stored.options, IDENTITY: (target.identity(sink),)})


def locate_targets(
    targets: Mapping[SinkId, Sink],
    store: PipelineStore | None = None,
    moved: Collection[str] = (),
) -> dict[SinkId, StoredTarget]:
    """Say where the sinks of a pipeline write.

    Args:
        targets: Their targets.
        store: The pipeline in its store, for what was declared before.
        moved: Sinks whose target is the one that they had before, at another place now.

    Raises:
        ConfigError: If a sink that is declared to have moved is not there.
        SinkError: If a target cannot be reached now.
        StoreError: If the store cannot be read.
    """
    unknown = sorted(set(moved) - set(targets))
    if unknown:
        known = ", ".join(sorted(targets)) or "none"
        raise ConfigError("moved", f"there is no sink {unknown[0]}; the pipeline has {known}")
    found = {sink: identify_target(sink, target) for sink, target in targets.items()}
    before = (store.targets.newest(store.log.read()) if store is not None else None) or {}
    for sink, now in found.items():
        then = before.get(sink)
        # What was declared once holds for as long as the sink stays where it is.
        if then is not None and (sink in moved or then.is_same_as(now)):
            found[sink] = moved_from(now, then)
    return found
