"""The names and numbers that cross function boundaries, each with a type of its own.

They are `NewType`s: they cost nothing at run time, and mypy rejects one in place of another
(docs/adr/0002). This module does not validate; the code that creates an id does.
"""

from typing import Final, NamedTuple, NewType

PipelineId = NewType("PipelineId", str)
"""The uuid of a pipeline in its store. The pipeline's name is only a label."""

StepId = NewType("StepId", str)
"""The name of a step, unique in its pipeline."""

ChannelId = NewType("ChannelId", str)
"""The name of a channel: that of the step which writes it."""

SinkId = NewType("SinkId", str)
"""The name of a sink, unique in its pipeline."""

CheckpointId = NewType("CheckpointId", int)
"""The number of a checkpoint attempt. Starts at 1, only grows, is never used twice."""

Generation = NewType("Generation", int)
"""One incarnation of a running pipeline. Starts at 1, grows with every claim."""

BatchId = NewType("BatchId", int)
"""The number of a micro-batch of one step. Starts at 0; `NO_BATCH` means none yet."""

Slot = NewType("Slot", int)
"""A place in the decision log. Starts at 1; the log has no holes."""

NO_CHECKPOINT: Final = CheckpointId(0)
NO_BATCH: Final = BatchId(-1)
NO_SLOT: Final = Slot(0)


class InputId(NamedTuple):
    """One input of one step: its ordinal in the plan and the channel it reads.

    The ordinal is part of the identity because a self-join reads one channel twice (rule F38).
    """

    ordinal: int
    channel: ChannelId

    def __str__(self) -> str:
        """Return the format used in traces and messages, such as `0:orders`."""
        return f"{self.ordinal}:{self.channel}"


class ReaderId(NamedTuple):
    """One consumer of a channel: the step, and which of its inputs."""

    step: StepId
    input: InputId

    def __str__(self) -> str:
        """Return the format used in traces and messages, such as `totals/0:orders`."""
        return f"{self.step}/{self.input}"
