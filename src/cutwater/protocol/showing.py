"""Rows that are seen before their checkpoint: `visibility="batch"` (rule F33, docs/adr/0021).

Such a sink shows every batch as soon as it is staged, and what it shows may be revised: after a
failure it is taken back to the cut, before anything is replayed. Whoever shows needs a permit, and
recovery gives it, after it has taken the sink back in its own name: that writes the claim's slot
into the target, and a batch is shown only while that slot is the last one there. A predecessor that
was paused finds its successor's slot and shows nothing any more. Upholds I7 and I10.
"""

from dataclasses import dataclass, field
from typing import Final

from cutwater.errors import ProtocolViolation
from cutwater.ids import Generation, PipelineId, Slot

_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class ShowPermit:
    """The right of one generation to take sinks back and to show batches. Made by `grant_shows`.

    Attributes:
        pipeline: The pipeline's uuid.
        slot: The slot of the generation's claim: higher than all that predecessors know.
        generation: The generation.
    """

    pipeline: PipelineId
    slot: Slot
    generation: Generation
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a permit that no claim gave.

        Raises:
            ProtocolViolation: If made anywhere else.
        """
        if self.seal is not _SEAL:
            message = "a permit to show batches comes from a written claim only."
            raise ProtocolViolation(message)


def grant_shows(pipeline: PipelineId, claim: Slot, generation: Generation) -> ShowPermit:
    """Give the permit of a claim that was read back from the log, by its slot."""
    return ShowPermit(pipeline, claim, generation, _SEAL)
