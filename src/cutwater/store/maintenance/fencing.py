"""Whether somebody else has claimed the pipeline: the one question the log alone can answer.

A process that was paused learns of its successor in many ways: its next slot is taken, a sink
refuses it, its scratch is gone. Whichever comes first, the log says whose the pipeline is, and
that is what a person is told (PROTOCOL.md section 10).
"""

from collections.abc import Collection

from cutwater.errors import Fenced
from cutwater.protocol.decisions import Claim
from cutwater.protocol.recovery import taken_over
from cutwater.store.pipeline_store import OpenStore


def fenced_out(store: OpenStore, tried: Collection[Claim]) -> Fenced | None:
    """Return what a process ends with that somebody else's claim has shut out.

    Args:
        store: The pipeline in its store.
        tried: All claims of this process, whatever became of them.

    Returns:
        The error; None if the pipeline is this process's own, or nobody has claimed it.

    Raises:
        StoreError: If the log cannot be read.
    """
    found = taken_over(store.log.read(), tried)
    return None if found is None else Fenced(store.pipeline, *found)
