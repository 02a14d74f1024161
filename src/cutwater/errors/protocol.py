"""What the protocol refuses: a defect of ours, or somebody who has been overtaken.

An invariant that breaks stops the process: going on could lose rows.
"""

from typing import ClassVar

from cutwater.errors.base import CutwaterError
from cutwater.ids import Generation, PipelineId, SinkId, Slot


class ProtocolViolation(CutwaterError):
    """An event arrived that the protocol forbids in the machine's present state.

    The machine that raises it has not changed: a caller that can go on may go on.
    """

    code = "CW-201"
    next_step = "This is a defect of Cutwater, not of your pipeline: please report it."


class InvariantBroken(ProtocolViolation):
    """A numbered promise of PROTOCOL.md does not hold.

    Attributes:
        invariant: Its number, such as `I4`.
    """

    code = "CW-202"
    parameters: ClassVar[tuple[str, ...]] = ("invariant", "reason")

    def __init__(self, invariant: str, reason: str) -> None:
        """Name the invariant and what contradicts it."""
        super().__init__(f"{invariant} does not hold: {reason}.")
        self.invariant = invariant
        self.reason = reason


class Fenced(CutwaterError):
    """A newer generation has claimed the pipeline: this process may not write any more.

    Attributes:
        pipeline: The pipeline.
        generation: The generation that was fenced out.
        newer: The generation that owns the pipeline now.
    """

    code = "CW-401"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "generation", "newer")
    next_step = "Let the newer process run; this one must end."

    def __init__(self, pipeline: PipelineId, generation: Generation, newer: Generation) -> None:
        """Name the pipeline and both generations."""
        super().__init__(
            f"Generation {generation} of pipeline {pipeline} is fenced out: generation {newer} "
            f"has claimed it."
        )
        self.pipeline = pipeline
        self.generation = generation
        self.newer = newer


class Superseded(CutwaterError):
    """A sink has acted on a later slot and never on this one: somebody else owns it now.

    A process whose successor the log shows ends as `Fenced` instead.

    Attributes:
        sink: The sink.
        slot: The slot that was to be acted on.
        newer: The slot it has acted on.
    """

    code = "CW-402"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "slot", "newer")
    next_step = "Find the other process, or the other copy of this store, that acts on the sink."

    def __init__(self, sink: SinkId, slot: Slot, newer: Slot) -> None:
        """Name the sink and both slots."""
        super().__init__(f"sink {sink} has acted on slot {newer} and never on slot {slot}.")
        self.sink = sink
        self.slot = slot
        self.newer = newer
