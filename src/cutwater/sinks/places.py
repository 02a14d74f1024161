"""Where the sinks of a pipeline write, as a store records it: by address and by identity.

An address can be written in many ways, and the same name can lead to another server tomorrow. A
target with a unique identity (`IdentifiedTarget`) is recorded with it; two such targets are
compared by identity, and all others by address. The user can declare that a sink's target was
moved: then the new place is recorded as another name of the old one.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from cutwater.errors import ConfigError
from cutwater.ids import SinkId
from cutwater.sinks.base import IdentifiedTarget, Sink, StaysInPlace
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.targets import IDENTITY, StoredTarget, moved_from


def identify_target(sink: SinkId, target: Sink) -> StoredTarget:
    """Return how to find a target again, with its identity if it has one."""
    stored = target.stored()
    if not isinstance(target, IdentifiedTarget):
        return stored
    return replace(stored, options={**stored.options, IDENTITY: (target.identity(sink),)})


def locate_targets(
    targets: Mapping[SinkId, Sink],
    store: PipelineStore | None = None,
    moved: Collection[str] = (),
) -> dict[SinkId, StoredTarget]:
    """Return where the sinks of a pipeline write.

    The store has earlier declarations. `moved` are sinks whose target is the same as before, at
    another place now.

    Raises:
        ConfigError: If there is no such sink, or a sink that must stay in its place has another
            one now.
    """
    unknown = sorted(set(moved) - set(targets))
    if unknown:
        known = ", ".join(sorted(targets)) or "none"
        raise ConfigError("moved", f"there is no sink {unknown[0]}; the pipeline has {known}")
    found = {sink: identify_target(sink, target) for sink, target in targets.items()}
    before = (store.targets.newest(store.log.read()) if store is not None else None) or {}
    for sink, now in found.items():
        then = before.get(sink)
        if then is None:
            continue
        # A declaration holds for as long as the sink stays where it is.
        if sink in moved or then.is_same_as(now):
            found[sink] = moved_from(now, then)
        elif _stays_in_place(targets[sink]):
            raise ConfigError(
                sink,
                f"its rows are at {then.uri}, and it would go on at {now.uri}: half of the table "
                "would be missing there. Use the database and the warehouse directory as before, "
                f"or move the files and add --moved {sink}",
            )
    return found


def _stays_in_place(target: Sink) -> bool:
    return isinstance(target, StaysInPlace) and target.stays_in_place
