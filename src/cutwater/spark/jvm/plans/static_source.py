"""Rows that are no stream, as a source: all of them in one batch, once in every start.

A materialized view over files or tables of other programs is computed when its pipeline starts. The
offset counts the starts. So the first batch after a start has all rows, and every later one has
none; a restore computes them again, and the sink replaces what it had.
"""

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame

from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset

_COUNT: Final = "computed"
_KEYS: Final = frozenset({_COUNT})


class StaticSource(NativeSource):
    """The rows of a DataFrame that is not streaming."""

    def __init__(self, internals: Internals, rows: Callable[[], DataFrame], name: str) -> None:
        """Describe the rows once, for their columns; `rows` is called again for the batch."""
        self._rows = rows
        self._name = name
        self._end: str | None = None
        super().__init__(internals, rows().schema)

    def describe(self) -> str:
        return self._name

    def exhausted(self, offset: str | None) -> bool:
        return offset is not None and offset == self._end

    def latest(self, start: str | None) -> str | None:
        """Return the end of the only batch of this start."""
        if self._end is None:
            count = 0 if start is None else int(decode_offset(start, _KEYS, self._name)[_COUNT])
            self._end = encode_offset({_COUNT: count + 1})
        return self._end

    def batch(self, start: str | None, end: str) -> Any:  # noqa: ARG002
        """Return the rows; none for a batch of an earlier start, which Spark only looks at."""
        if end != self._end:
            return self.internals.no_rows(self.spark_schema)._jdf
        return self.internals.as_stream(self._rows())
