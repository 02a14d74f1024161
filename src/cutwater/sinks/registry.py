"""Opens a target, or reads a version of it, by its stored description alone.

A rewind or a fork may run on another machine, with the store's address and the pipeline's name and
without the user's file. `reopen` opens a sink there without Spark; it can commit and restore, not
stage. `read_target` reads a target as it was at a version: a kind of target that keeps its past has
a reader here, and for every other kind the error explains why there is none. The packages of a
reader are imported when it reads.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import PipelineId, SinkId
from cutwater.protocol.cut import Version
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.catalog_table import read_table
from cutwater.sinks.console import reopen_console
from cutwater.sinks.delta.target import reopen_delta
from cutwater.sinks.files.target import FORMATS, reopen_files
from cutwater.sinks.foreach_batch import reopen_foreach_batch
from cutwater.sinks.kafka.target import reopen_kafka
from cutwater.sinks.postgres.target import reopen_postgres
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Opener = Callable[[StoredTarget, SinkContext], OpenSink]
Reader = Callable[["SparkSession", StoredTarget, Version, SinkId], "DataFrame"]

_OPENERS: Final[Mapping[str, Opener]] = {
    "console": reopen_console,
    "delta": reopen_delta,
    "foreach_batch": reopen_foreach_batch,
    **dict.fromkeys(FORMATS, reopen_files),
    "kafka": reopen_kafka,
    "postgres": reopen_postgres,
}


def reopen(target: StoredTarget, pipeline: PipelineId, sink: SinkId) -> OpenSink:
    """Open a target that a store has recorded."""
    opener = _OPENERS.get(target.format)
    if opener is None:
        reason = f"sink {sink} is a {target.format}, which only the pipeline's own file can open"
        raise ConfigError(sink, f"{reason}; use `cutwater run FILE --from`")
    return opener(target, SinkContext(None, pipeline, sink))


def _read_delta(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    from cutwater.sinks.delta.time_travel import read_delta  # noqa: PLC0415 - an extra

    return read_delta(spark, target, version, sink)


def _read_files(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    from cutwater.sinks.files.manifests import read_files  # noqa: PLC0415 - needs Spark

    return read_files(spark, target, version, sink)


_READERS: Final[Mapping[str, Reader]] = {
    "delta": _read_delta,
    "table": read_table,
    **dict.fromkeys(FORMATS, _read_files),
}

_NO_PAST: Final[Mapping[str, str]] = {
    "console": "a console keeps nothing",
    "kafka": "consumers read a topic from any offset; Cutwater keeps no copy of it",
    "foreach_batch": "only its own function knows where the rows are",
}


def read_target(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Read a target as it was at a version."""
    reader = _READERS.get(target.format)
    if reader is None:
        plain = f"a {target.format} target cannot be read as it was, only as it is"
        raise SinkError(sink, _NO_PAST.get(target.format, plain))
    return reader(spark, target, version, sink)
