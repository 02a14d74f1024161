"""How far a batch of numbered rows may go, and when, in event time, a number happened.

Pure arithmetic. A batch ends at the least of what the rate allows since the source began, the
total, and the most of one batch. After a restore it goes on from the restored number at the same
rate; it does not make up for the time in between, since rows that nobody could read were not due.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypedDict

from cutwater.errors import ConfigError

BATCH_MAX: Final = 1_000_000
"""The most of one batch where nothing else is asked for: a source without end has no last row."""

EVENT_RATE: Final = 1_000
"""Rows per second of event time where no rate is asked for."""

START_TIME: Final = "2026-01-01T00:00:00Z"
"""The event time of number 0 where nothing else is asked for."""

NUMBERS_MAX: Final = 2**53
"""Up to here every number is exact as a double, and so is its event time."""


class PaceKeywords(TypedDict, total=False):
    """What sources take as keywords; `Pace` says what they mean."""

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
        """Refuse values that cannot work.

        Raises:
            ConfigError: Naming the option.
        """
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
            all_now: Read to the end and do not wait: the rate is ignored.

        Raises:
            ConfigError: If all is asked for now, and there is no end.
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
        """Say whether nothing will follow."""
        return self.total is not None and at >= self.total


def check_rate(rate: float | None) -> None:
    """Refuse a rate that is no speed.

    Raises:
        ConfigError: If it is not a finite number above 0.
    """
    number = type(rate) in (int, float)
    if rate is not None and not (number and math.isfinite(rate) and rate > 0):
        raise ConfigError("rate", f"{rate!r} is not a number of rows per second above 0")


def event_micros(number: str, rate: float | None, start_time: str) -> str:
    """Return the SQL expression of a number's event time, in microseconds since 1970.

    One multiplication and one division of doubles, each rounded as IEEE 754 prescribes: every
    machine gets the same, and times never go back.

    Args:
        number: The SQL expression of the number.
        rate: Numbers per second; None for 1,000.
        start_time: The event time of number 0, ISO 8601 with a zone.

    Raises:
        ConfigError: If the rate or the time is none.
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
