"""Reading targets as they were at a version, by what a store remembers of them.

A kind of target that keeps its past has a reader here; every other one says why it has none. What
a reader needs is imported when it reads.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.protocol.cut import Version
from cutwater.sinks.catalog_table import read_table
from cutwater.sinks.files.target import FORMATS
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[["SparkSession", StoredTarget, Version, SinkId], "DataFrame"]


def _read_delta(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    from cutwater.sinks.delta.read import read_delta  # noqa: PLC0415 - an extra

    return read_delta(spark, target, version, sink)


def _read_files(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    from cutwater.sinks.files.read import read_files  # noqa: PLC0415 - needs Spark

    return read_files(spark, target, version, sink)


_READERS: Final[Mapping[str, Reader]] = {
    "delta": _read_delta,
    "table": read_table,
    **dict.fromkeys(FORMATS, _read_files),
}

_NO_PAST: Final[Mapping[str, str]] = {
    "console": "a console keeps nothing",
    "foreach_batch": "only its own function knows where the rows are",
}


def read_target(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Read a target as it was at a version.

    Raises:
        SinkError: If this kind of target cannot be read so, or the version is gone.
    """
    reader = _READERS.get(target.format)
    if reader is None:
        plain = f"a {target.format} target cannot be read as it was, only as it is"
        raise SinkError(sink, _NO_PAST.get(target.format, plain))
    return reader(spark, target, version, sink)
