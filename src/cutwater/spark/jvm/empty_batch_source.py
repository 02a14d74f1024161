"""A source without rows that can make a query run one more batch.

After a restore Spark does not run the batch without data that a moved watermark has made due, so a
window that was about to be emitted would stay in state for good (rule F22). A step on channels gets
that batch from its first channel's tick; a step that reads outside sources and keeps event-time
state has this source in its plan from the start.
"""

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset

_KEYS: Final = frozenset({"tick"})


class NoDataBatchDetector:
    """Notices that Spark will not run a batch that is owed.

    A watermark that has moved makes a batch without data due; Spark runs it in the same turn in
    which it asks how far the next batch may go, unless its operators have no use for it. If it
    asks again from the same place, it has none, and the batch must be forced, or it would be
    owed for ever.
    """

    def __init__(self) -> None:
        """Nothing is owed yet."""
        self._asked: tuple[str | None] | None = None

    def must_force(self, start: str | None, *, wants_batch: bool) -> bool:
        """Say whether to force a batch, being asked from this place."""
        again = wants_batch and self._asked == (start,)
        self._asked = (start,) if wants_batch and not again else None
        return again


class EmptyBatchSource(NativeSource):
    """Counts how often a batch was asked for."""

    def __init__(self, internals: Internals, schema: StructType) -> None:
        """Pretend to have such rows."""
        super().__init__(internals, schema)
        self._tick = 0
        self._detector = NoDataBatchDetector()
        self.between_batches: Callable[[], bool] = lambda: False

    def describe(self) -> str:
        """Name the source for people."""
        return "pulse"

    def begin(self, text: str | None, *, owes_batch: bool) -> None:
        """Note where the query starts, and whether a batch without rows must run first."""
        self._tick = self._parse(text) + owes_batch

    def exhausted(self, _: str | None) -> bool:
        """Return True: it never has anything of its own."""
        return True

    def latest(self, start: str | None) -> str | None:
        """Return the number of the last batch that was asked for."""
        tick = max(self._tick, self._parse(start))
        wants_batch = self.between_batches()
        must_force = self._detector.must_force(start, wants_batch=wants_batch)
        # A query that ends when nothing is left does not ask a second time.
        if must_force or (wants_batch and self.available_now):
            tick += 1
        self._tick = tick
        return encode_offset({"tick": tick}) if tick else None

    def batch(self, start: str | None, end: str) -> Any:  # noqa: ARG002
        """Return no rows."""
        columns = [F.lit(None).cast(one.dataType).alias(one.name) for one in self.spark_schema]
        return self.internals.streaming_range(0, 0, 1).select(*columns)._jdf

    def _parse(self, text: str | None) -> int:
        return 0 if text is None else int(decode_offset(text, _KEYS, self.describe())["tick"])
