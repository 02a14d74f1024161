"""A source of numbered rows, replayable by offset: number n always gives the same row.

Spark makes the rows from a range of numbers, by expressions alone; this module says only which
range a batch is. An offset is the number that comes next, under the name of what is numbered.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Unpack

from pyspark.sql import DataFrame, SparkSession

from cutwater.errors import RecoveryError
from cutwater.sources.pace import Pace, PaceKeywords
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset
from cutwater.spark.jvm.parquet import PlanTemplate

_IDLE_S: Final = 0.05
"""How long an idle source keeps Spark from asking again; by itself it asks every 10 ms."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Rows that follow from numbers alone.

    Attributes:
        name: What they are, for people and in offsets.
        rows: From a frame of row numbers (column `id`) to the rows, one for one.
        rows_before: How many rows come before a number of the offset; they differ where a source
            shows only some of what is numbered.
    """

    name: str
    rows: Callable[[DataFrame], DataFrame]
    rows_before: Callable[[int], int]


class NumberedSource(NativeSource):
    """Numbered rows, handed out at a pace."""

    def __init__(self, internals: Internals, numbered: Numbered, pace: Pace) -> None:
        """Ask Spark once for the schema of the rows; none is made yet."""
        self.pace = pace
        self._numbered = numbered
        self._began: tuple[float, int] | None = None
        self._template: PlanTemplate | None = None
        self._answered_s = -math.inf
        super().__init__(internals, numbered.rows(internals.spark.range(0)).schema)

    def describe(self) -> str:
        """Name the source for people."""
        return self._numbered.name

    def exhausted(self, offset: str | None) -> bool:
        """Say whether nothing will follow the offset.

        Raises:
            RecoveryError: If it is the offset of another source.
        """
        return self.pace.exhausted(self._number(offset))

    @property
    def has_end(self) -> bool:
        """Whether there is a total."""
        return self.pace.total is not None

    def latest(self, start: str | None) -> str | None:
        """Return where the next batch may end; `start` itself if nothing is due yet.

        Raises:
            RecoveryError: If it is the offset of another source.
            ConfigError: If all is asked for now, and there is no end.
        """
        at = self._number(start)
        now = time.monotonic()
        if self._began is None:
            self._began = (now, at)
        began, began_at = self._began
        end = self.pace.end(at, now - began, began_at, all_now=self.available_now)
        if end != at:
            return encode_offset({self._numbered.name: end})
        # Asked again at once, the whole query idles; after a batch of another source it does not.
        if now - self._answered_s < _IDLE_S:
            time.sleep(_IDLE_S)
        self._answered_s = time.monotonic()
        return start

    def batch(self, start: str | None, end: str) -> Any:
        """Return the rows between two offsets.

        Raises:
            RecoveryError: If one is the offset of another source.
        """
        first, last = (self._numbered.rows_before(self._number(one)) for one in (start, end))
        if self._template is None:
            rows = self._numbered.rows(self.internals.streaming_range(0, 0, 1))
            self._template = PlanTemplate(self.internals, rows)
        columns = self._template.columns
        leaf = self.internals.range_leaf(first, last, self.pace.partitions, columns)
        return self._template.over(leaf)._jdf  # noqa: SLF001 - for Spark

    def _number(self, offset: str | None) -> int:
        if offset is None:
            return 0
        name = self._numbered.name
        found = decode_offset(offset, frozenset({name}), name)[name]
        if type(found) is not int or found < 0:
            message = f"{name} cannot start at {offset!r}, which holds no number."
            raise RecoveryError(message)
        return found


def numbered_frame(
    spark: SparkSession, numbered: Numbered, **keywords: Unpack[PaceKeywords]
) -> DataFrame:
    """Return the streaming frame of a new source.

    Args:
        spark: The session that reads it.
        numbered: The rows.
        keywords: Those of `Pace`; without `partitions`, one for each core.

    Raises:
        ConfigError: If an option cannot work.
    """
    partitions = keywords.get("partitions")
    if partitions is None:
        partitions = spark.sparkContext.defaultParallelism
    given: dict[str, Any] = {**keywords, "partitions": partitions}
    pace = Pace(**given)
    return NumberedSource(Internals(spark), numbered, pace).frame()
