"""Lets sinks delete what no kept checkpoint needs: staged rows, and data for restores.

It follows the collection in the store (`store.maintenance.garbage`), which deletes the manifests of
checkpoints that are no longer kept, and is run by the same generation. The log is read again before
every call of a sink, as the collector does before every delete. Between that read and the delete, a
process may be paused for hours; PROTOCOL.md section 12 explains why that is safe.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cutwater.ids import SinkId
from cutwater.protocol.cut import Committable
from cutwater.protocol.retention import staged_to_keep
from cutwater.sinks.base import KeepsPast, OpenSink
from cutwater.store.maintenance.garbage import Collector

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class SinkRetention:
    """The retention of the sinks of one generation; the collector is of the same one."""

    collector: Collector
    sinks: Mapping[SinkId, OpenSink]
    _discarded: set[SinkId] = field(default_factory=set)

    def collect(self) -> None:
        """Collect in the store, then let every sink delete what is no longer needed.

        A sink that cannot delete now is called again after the next collection.
        """
        collector = self.collector
        plan = collector.collect()
        if plan.unreadable:
            # It is unknown what these checkpoints need, in the store or in a sink.
            _LOG.warning("retention: manifests of kept checkpoints cannot be read: %s", plan)
            return
        log = collector.store.log.read()
        keep = staged_to_keep(log, collector.cuts, collector.committed_through)
        for name, sink in self.sinks.items():
            if collector.store.log.read().generation != collector.generation:
                return
            try:
                self._ask(name, sink, keep.get(name, ()))
            except Exception as error:  # noqa: BLE001 - a sink may be the user's; called again
                _LOG.warning("retention: sink %s: %s", name, error)

    def _ask(self, name: SinkId, sink: OpenSink, keep: Sequence[Committable]) -> None:
        generation, cuts = self.collector.generation, self.collector.cuts
        if name not in self._discarded:
            sink.discard(generation, keep)
            self._discarded.add(name)
        if isinstance(sink, KeepsPast) and cuts:
            sink.retain(generation, {cut.visible.get(name) for cut in cuts}, keep)
