"""Moving a pipeline in time: `rewind` makes an older cut current, `fork` begins another pipeline.

Neither needs Spark or the user's file: a store knows the cuts, and where the sinks write. Decisions
are those of `protocol.rewind`; this package observes facts, shows what would happen, and does it.
"""

__all__ = [
    "Fork",
    "Rewind",
    "SinkMove",
    "SourceMove",
    "StepMove",
    "fork",
    "rewind",
]

from cutwater.moves.forking import Fork, fork
from cutwater.moves.preview import Rewind, SinkMove, SourceMove, StepMove
from cutwater.moves.rewinding import rewind
