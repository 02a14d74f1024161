"""Rows that are visible before their checkpoint: `visibility="batch"` (rule F33, docs/adr/0021).

Such a sink publishes every batch as soon as it is staged, and published rows may be revised: after
a failure the sink is rolled back to the cut, before anything is replayed. Publishing needs a
permit. Recovery grants it after it has rolled the sink back in the name of its claim. The rollback
writes the claim's slot into the target, and a batch is published only while that slot is the newest
one there. A paused predecessor finds its successor's slot and publishes nothing more.
Upholds I7 and I10.
"""

from dataclasses import dataclass, field
from typing import Final

from cutwater.errors import ProtocolViolation
from cutwater.ids import Generation, PipelineId, Slot

_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class ShowPermit:
    """The right of one generation to roll sinks back and to publish batches. See `grant_shows`.

    Attributes:
        pipeline: The pipeline's uuid.
        slot: The slot of the generation's claim: higher than any slot of its predecessors.
    """

    pipeline: PipelineId
    slot: Slot
    generation: Generation
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            message = "a permit to publish batches comes from a written claim only."
            raise ProtocolViolation(message)


def grant_shows(pipeline: PipelineId, claim: Slot, generation: Generation) -> ShowPermit:
    """Create the permit of a claim that was read back from the log, by its slot."""
    return ShowPermit(pipeline, claim, generation, _SEAL)
