"""A source of numbered rows that can be replayed by offset: number n always gives the same row.

Spark makes the rows from a range of numbers, by expressions alone; this module only chooses the
range of each batch. An offset is the next number, under the name of what is numbered.

A batch ends at the minimum of three bounds: what the rate allows since the source started, the
total, and the batch maximum. After a restore the source continues from the restored number at the
same rate. It does not catch up for the time in between: rows that could not be read were not due.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession

from cutwater.errors import ConfigError, RecoveryError
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset
from cutwater.spark.jvm.parquet import PlanTemplate

BATCH_MAX: Final = 1_000_000
"""The default max size of a batch: a source without an end has no last row."""

EVENT_RATE: Final = 1_000
"""The default number of rows per second of event time."""

START_TIME: Final = "2026-01-01T00:00:00Z"
"""The default event time of number 0."""

NUMBERS_MAX: Final = 2**53
"""Up to here every number is exact as a double, and so is its event time."""

_IDLE_S: Final = 0.05
"""How long an idle source delays Spark's next poll; by default Spark polls every 10 ms."""


class PaceKeywords(TypedDict, total=False):
    """What sources take as keywords; documented on `Pace`."""

    rate: float | None
    total: int | None
    partitions: int | None
    batch_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast numbers are handed out.

    Attributes:
        rate: Numbers per second; None for as fast as they are read.
        total: How many there are; None for no end.
        partitions: Of each batch.
        batch_max: The most of one batch; None for 1,000,000.
    """

    rate: float | None = None
    total: int | None = None
    partitions: int = 1
    batch_max: int | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        _whole("total", self.total, 0)
        _whole("partitions", self.partitions, 1)
        _whole("batch_max", self.batch_max, 1)

    def end(self, at: int, elapsed_s: float, began_at: int, *, all_now: bool) -> int:
        """Return the number before which the next batch ends; `at` if nothing is due yet.

        Args:
            at: The number the batch begins with.
            elapsed_s: Seconds since the source began, in this process.
            began_at: The number it began with then.
            all_now: Read to the end, which there must be, and do not wait: the rate is ignored.
        """
        if all_now and self.total is None:
            raise ConfigError("total", "a source without an end cannot be read to its end")
        bounds = [at + (BATCH_MAX if self.batch_max is None else self.batch_max), NUMBERS_MAX]
        if self.total is not None:
            bounds.append(self.total)
        if self.rate is not None and not all_now:
            bounds.append(began_at + math.floor(self.rate * elapsed_s))
        return max(at, min(bounds))

    def exhausted(self, at: int) -> bool:
        return self.total is not None and at >= self.total


def check_rate(rate: float | None) -> None:
    """Refuse a rate that is not a finite number above 0."""
    number = type(rate) in (int, float)
    if rate is not None and not (number and math.isfinite(rate) and rate > 0):
        raise ConfigError("rate", f"{rate!r} is not a number of rows per second above 0")


def event_micros(number: str, rate: float | None, start_time: str) -> str:
    """Return the SQL expression of a number's event time, in microseconds since 1970.

    One multiplication and one division of doubles, each rounded as IEEE 754 prescribes: every
    machine gets the same, and times never go back. `number` is an SQL expression too. `rate` is
    1,000 per second if None. `start_time` is that of number 0, ISO 8601 with a zone.
    """
    check_rate(rate)
    per_second = float(EVENT_RATE if rate is None else rate)
    start = _start_micros(start_time)
    return f"{start}L + CAST(floor({number} * 1000000.0D / {per_second!r}D) AS BIGINT)"


def _start_micros(start_time: str) -> int:
    try:
        found = datetime.fromisoformat(start_time)
    except (TypeError, ValueError) as error:
        reason = f"{start_time!r} is not a time such as {START_TIME}"
        raise ConfigError("start_time", reason) from error
    if found.tzinfo is None:
        raise ConfigError("start_time", f"{start_time!r} has no zone; add Z for UTC")
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _whole(option: str, value: int | None, lowest: int) -> None:
    if value is not None and not (type(value) is int and lowest <= value <= NUMBERS_MAX):
        reason = f"{value!r} is not a whole number from {lowest} to {NUMBERS_MAX}"
        raise ConfigError(option, reason)


@dataclass(frozen=True, slots=True)
class Numbered:
    """Rows that follow from numbers alone.

    Attributes:
        name: What they are, in messages and in offsets.
        rows: From a frame of row numbers (column `id`) to the rows, one for one.
        rows_before: How many rows come before a number of the offset; they differ where a source
            shows only some of what is numbered.
    """

    name: str
    rows: Callable[[DataFrame], DataFrame]
    rows_before: Callable[[int], int]


class NumberedSource(NativeSource):
    """Numbered rows, handed out at a pace. The offset of another source is a RecoveryError."""

    def __init__(self, internals: Internals, numbered: Numbered, pace: Pace) -> None:
        """Get the schema of the rows from Spark, once; no row is made yet."""
        self.pace = pace
        self._numbered = numbered
        self._began: tuple[float, int] | None = None
        self._template: PlanTemplate | None = None
        self._answered_s = -math.inf
        super().__init__(internals, numbered.rows(internals.spark.range(0)).schema)

    def describe(self) -> str:
        return self._numbered.name

    def exhausted(self, offset: str | None) -> bool:
        return self.pace.exhausted(self._number(offset))

    @property
    def has_end(self) -> bool:
        return self.pace.total is not None

    def latest(self, start: str | None) -> str | None:
        """Return where the next batch may end; `start` itself if nothing is due yet.

        Raises:
            ConfigError: If the query reads what is available now, and the source has no end.
        """
        at = self._number(start)
        now = time.monotonic()
        if self._began is None:
            self._began = (now, at)
        began, began_at = self._began
        end = self.pace.end(at, now - began, began_at, all_now=self.available_now)
        if end != at:
            return encode_offset({self._numbered.name: end})
        # Polled again right away, so the whole query is idle. After a batch of another source the
        # polls are further apart, and this source must not delay the query.
        if now - self._answered_s < _IDLE_S:
            time.sleep(_IDLE_S)
        self._answered_s = time.monotonic()
        return start

    def batch(self, start: str | None, end: str) -> Any:
        first, last = (self._numbered.rows_before(self._number(offset)) for offset in (start, end))
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
    """Return the streaming frame of a new source; without `partitions`, one for each core."""
    partitions = keywords.get("partitions")
    if partitions is None:
        partitions = spark.sparkContext.defaultParallelism
    given: dict[str, Any] = {**keywords, "partitions": partitions}
    pace = Pace(**given)
    return NumberedSource(Internals(spark), numbered, pace).frame()
