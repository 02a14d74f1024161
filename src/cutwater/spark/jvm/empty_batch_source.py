"""A source without rows that can make a query run one more batch.

A watermark that advances makes a batch without data due. After a restore Spark does not run it, so
a window that was about to be emitted would stay in state forever (rule F22). A step on channels
gets that batch from the tick of its first channel; a step that reads outside sources and keeps
event-time state has this source in its plan from the start.
"""

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.types import StructType

from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset

_KEYS: Final = frozenset({"tick"})


class NoDataBatchDetector:
    """Detects that Spark skips a batch without data that is owed.

    Spark runs an owed batch right after it requests the end of the next batch, unless its operators
    do not need one. If Spark requests the end again from the same offset, it has skipped the batch.
    Then the batch must be forced, or it would be owed forever.
    """

    def __init__(self) -> None:
        self._asked: tuple[str | None] | None = None

    def must_force(self, start: str | None, *, wants_batch: bool) -> bool:
        """Return whether to force a batch, when Spark requests an end from this offset."""
        again = wants_batch and self._asked == (start,)
        self._asked = (start,) if wants_batch and not again else None
        return again


class EmptyBatchSource(NativeSource):
    """A source without rows, whose offset counts the batches that were forced."""

    def __init__(self, internals: Internals, schema: StructType) -> None:
        """Create a source with the schema of the source that it joins."""
        super().__init__(internals, schema)
        self._tick = 0
        self._detector = NoDataBatchDetector()
        self.between_batches: Callable[[], bool] = lambda: False

    def describe(self) -> str:
        return "pulse"

    def begin(self, text: str | None, *, owes_batch: bool) -> None:
        self._tick = self._parse(text) + owes_batch

    def exhausted(self, _: str | None) -> bool:
        """It never has rows."""
        return True

    def latest(self, start: str | None) -> str | None:
        """Return the offset of the last batch that was forced."""
        tick = max(self._tick, self._parse(start))
        wants_batch = self.between_batches()
        must_force = self._detector.must_force(start, wants_batch=wants_batch)
        # A query that ends when nothing is left makes no second request.
        if must_force or (wants_batch and self.available_now):
            tick += 1
        self._tick = tick
        return encode_offset({"tick": tick}) if tick else None

    def batch(self, start: str | None, end: str) -> Any:  # noqa: ARG002
        return self.internals.no_rows(self.spark_schema)._jdf

    def _parse(self, text: str | None) -> int:
        return 0 if text is None else int(decode_offset(text, _KEYS, self.describe())["tick"])
