"""Opening sinks by what a store remembers of them, without the user's file and without Spark.

Whoever moves a pipeline in time, perhaps at night and on another machine, has the store's address
and the pipeline's name. What is opened this way can commit and restore, not stage.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cutwater.errors import ConfigError
from cutwater.ids import PipelineId, SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.console import reopen_console
from cutwater.sinks.delta.target import reopen_delta
from cutwater.sinks.files.target import FORMATS, reopen_files
from cutwater.sinks.foreach_batch import reopen_foreach_batch
from cutwater.sinks.postgres.target import reopen_postgres
from cutwater.store.records.targets import StoredTarget

_FORMATS: Final[Mapping[str, Callable[[StoredTarget, SinkContext], OpenSink]]] = {
    "console": reopen_console,
    "delta": reopen_delta,
    "foreach_batch": reopen_foreach_batch,
    **dict.fromkeys(FORMATS, reopen_files),
    "postgres": reopen_postgres,
}


def reopen(target: StoredTarget, pipeline: PipelineId, sink: SinkId) -> OpenSink:
    """Open a target that a store remembers.

    Raises:
        ConfigError: If its format is not one of ours, or it cannot be used any more.
        SinkError: If it cannot be reached now.
    """
    opener = _FORMATS.get(target.format)
    if opener is None:
        reason = f"sink {sink} is a {target.format}, which only the pipeline's own file can open"
        raise ConfigError(sink, f"{reason}; use `cutwater run FILE --from`")
    return opener(target, SinkContext(None, pipeline, sink))
