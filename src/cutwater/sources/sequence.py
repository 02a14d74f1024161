"""The simplest source: the numbers from 0 on, each with its event time.

What a pipeline makes of it can be checked by arithmetic, which is what tests and demos do.
"""

from typing import Unpack

from pyspark.sql import DataFrame, SparkSession

from cutwater.sources.numbered import (
    START_TIME,
    Numbered,
    PaceKeywords,
    event_micros,
    numbered_frame,
)


def sequence(
    spark: SparkSession, *, start_time: str = START_TIME, **keywords: Unpack[PaceKeywords]
) -> DataFrame:
    """Return a streaming frame of the numbers from 0 on: `value long, at timestamp`.

    Args:
        spark: The session that reads it.
        start_time: The event time of 0, ISO 8601 with a zone; `value / rate` seconds later is that
            of `value`.
        keywords: `rate`, numbers per second (default: as fast as they are read, and 1,000 a second
            of event time; with `--available-now` nothing waits for the rate); `total`, how many
            there are (default: no end); `partitions` of each batch (default: one for each core);
            `batch_max`, the most of one batch (default: 1,000,000).

    Raises:
        ConfigError: If an option cannot work.
    """
    rate = keywords.get("rate")
    rows = Numbered(
        name="sequence",
        rows=lambda numbers: sequence_rows(numbers, rate=rate, start_time=start_time),
        rows_before=lambda number: number,
    )
    return numbered_frame(spark, rows, **keywords)


def sequence_rows(
    numbers: DataFrame, *, rate: float | None = None, start_time: str = START_TIME
) -> DataFrame:
    """Return the rows of these numbers (column `id`), streaming or not, as `sequence` makes them.

    Raises:
        ConfigError: If an option cannot work.
    """
    at = event_micros("id", rate, start_time)
    return numbers.selectExpr("id AS value", f"timestamp_micros({at}) AS at")
