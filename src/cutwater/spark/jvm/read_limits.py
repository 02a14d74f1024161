"""The limits of a running query's sources, enlarged while the query lags.

Spark reads the limit of a source (`maxFilesPerTrigger`, `maxOffsetsPerTrigger`) once, when a query
starts, and hands it to the source before every batch. The query keeps the limits in a map that is
only used on its own thread, between two batches; `ReadLimits` replaces the map there. Sources
without a limit, or with another kind of limit, are left alone.
"""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from cutwater.kafka.offsets import read_offsets
from cutwater.runtime.batch_size import grow
from cutwater.spark.jvm.internals import READ_LIMITS, Internals
from cutwater.spark.jvm.native_sink import PlannedBatch

_MAX_FILES: Final = "ReadMaxFiles"
_MAX_ROWS: Final = "ReadMaxRows"
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_FULL_ROWS: Final = 0.9
"""A batch of at least this part of a limit in rows is full: Kafka divides it among partitions."""


class ReadLimits:
    """Used on the query's own thread, inside a batch."""

    def __init__(self, internals: Internals, target_ms: int) -> None:
        self._internals = internals
        self._target_ms = target_ms
        self._multiple = 1
        self._bases: list[tuple[Any, str, int]] | None = None

    def adapt(
        self,
        query: StreamingQuery,
        rows: PlannedBatch,
        offsets: tuple[Sequence[str | None], Sequence[str | None]],
        took_ms: int,
    ) -> None:
        """Set the limits for the next batch, after one that read between these offsets."""
        if self._target_ms == 0:
            return
        execution = query._jsq.streamingQuery()
        if self._bases is None:
            self._bases = _limits_of(execution)
        if not self._bases:
            return
        is_full = self._is_full(rows, *offsets)
        multiple = grow(self._multiple, took_ms=took_ms, is_full=is_full, target_ms=self._target_ms)
        if multiple != self._multiple:
            self._multiple = multiple
            self._set(execution, self._bases)

    def _is_full(
        self, rows: PlannedBatch, start: Sequence[str | None], end: Sequence[str | None]
    ) -> bool:
        assert self._bases is not None
        files = [base * self._multiple for _, kind, base in self._bases if kind == _MAX_FILES]
        if files and max(rows.file_counts(), default=0) >= min(files):
            return True
        counts = [base * self._multiple for _, kind, base in self._bases if kind == _MAX_ROWS]
        if not counts:
            return False
        moved = max(map(_rows_between, start or (None,) * len(end), end), default=0)
        return moved >= _FULL_ROWS * min(counts)

    def _set(self, execution: Any, bases: Sequence[tuple[Any, str, int]]) -> None:
        limits = self._internals.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        found = execution.uniqueSources()
        for stream, kind, base in bases:
            size = base * self._multiple
            if kind == _MAX_FILES:
                limit = limits.maxFiles(min(size, _INT_MAX))
            else:
                limit = limits.maxRows(min(size, _LONG_MAX))
            found = found.updated(stream, limit)
        getattr(execution, READ_LIMITS)(found)


def _limits_of(execution: Any) -> list[tuple[Any, str, int]]:
    """Return the sources that have a limit of a known kind, with the kind and the limit."""
    found = []
    pairs = execution.uniqueSources().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        limit = pair._2()
        kind = str(limit.getClass().getSimpleName())
        if kind == _MAX_FILES:
            found.append((pair._1(), kind, int(limit.maxFiles())))
        elif kind == _MAX_ROWS:
            found.append((pair._1(), kind, int(limit.maxRows())))
    return found


def _rows_between(start: str | None, end: str | None) -> int:
    """Return how many rows are between two offsets of Kafka; 0 for any other source."""
    first, last = read_offsets(start), read_offsets(end) or {}
    if first is None:
        return 0
    return sum(offset - first.get(partition, offset) for partition, offset in last.items())
