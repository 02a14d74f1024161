"""The event log of a run: one structured event for each change of state, through Python's logging.

Every event names the pipeline and the generation, and the checkpoint and the step if it concerns
one. The sentence is for humans, the fields are for programs. The logging configuration decides
where events go: `cutwater run --log-format json` writes JSON lines (docs/reference/metrics.md).
No decision depends on an event.
"""

import logging
from enum import StrEnum
from typing import Final

FIELDS: Final = "cutwater"
"""The attribute of a log record that holds the fields of its event."""

_LOG: Final = logging.getLogger("cutwater.events")


class EventName(StrEnum):
    """What can happen to a pipeline."""

    STATE = "pipeline.state"
    """The pipeline is in another state: fields `state`, `detail`, `restarts`."""
    RECOVERED = "pipeline.recovered"
    """A generation has begun to work: the phases of its recovery, in milliseconds."""
    STARTED = "checkpoint.started"
    """An attempt has begun: field `kind`."""
    ACKNOWLEDGED = "checkpoint.acknowledged"
    """A step has stored its part: how long it took, in milliseconds, and bytes."""
    COMPLETED = "checkpoint.completed"
    """An attempt was decided: `duration_ms`, `uploaded_bytes`, `unaligned`, `commit_point`."""
    COMMITTED = "checkpoint.committed"
    """All sinks have committed: `committed_ms`, from the attempt's start."""
    FAILED = "checkpoint.failed"
    """An attempt has ended without a checkpoint: `duration_ms`, `failure`."""
    BLOCKED = "sink.blocked"
    """A sink cannot commit: `sink`, `reason`."""


class EventLog:
    """Writes the events of one pipeline."""

    def __init__(self, pipeline: str, pipeline_id: str) -> None:
        self._common = {"pipeline": pipeline, "pipeline_id": pipeline_id}

    def note(
        self,
        event: EventName,
        text: str,
        *,
        generation: int,
        level: int = logging.INFO,
        **fields: object,
    ) -> None:
        """Write one event; cheap if the level is disabled, and never raises; leaves out None."""
        if not _LOG.isEnabledFor(level):
            return
        known = {name: value for name, value in fields.items() if value is not None}
        made = {"event": event.value, **self._common, "generation": int(generation), **known}
        _LOG.log(level, "%s", text, extra={FIELDS: made})
