"""Where a step begins in a new generation: empty, or as its snapshot in the restored cut says.

Nothing but a decided cut is ever restored (PROTOCOL.md section 10). Upholds I5 and I9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.ids import NO_BATCH, BatchId, InputId
from cutwater.protocol.cut import StepSnapshot
from cutwater.protocol.messages import START, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where a step begins: empty, or as its snapshot in the restored cut says."""

    batch: BatchId = NO_BATCH
    positions: Mapping[InputId, Place] = field(default_factory=dict)
    output: Place = START
    offsets: Mapping[str, str] = field(default_factory=dict)
    watermark_ms: int | None = None
    owes_batch: bool = False

    @classmethod
    def from_snapshot(cls, snapshot: StepSnapshot) -> "Restored":
        """Begin where a snapshot stood, the owed batch included (rule F22).

        EndOfInput is not restored: a step that had finished finds its own end again (F2).
        """
        return cls(
            batch=snapshot.batch,
            positions=snapshot.positions,
            output=snapshot.output,
            offsets=snapshot.offsets,
            watermark_ms=snapshot.watermark_ms,
            owes_batch=snapshot.owes_batch,
        )
