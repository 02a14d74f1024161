"""What a driver is told that finds somebody else in its place.

A driver that was paused meets its successor somewhere: in the log, in a sink that was taken back,
in scratch that is gone, in a step that fails for one of these reasons. Wherever it was, the log
says whose the pipeline is; what it met is told only if the log shows nobody.
"""

import logging
from collections.abc import Collection
from typing import Final

from cutwater.errors import RunError, StoreError
from cutwater.protocol.decisions import Claim
from cutwater.runtime.outcome import End, Outcome
from cutwater.store.maintenance.offline_decision import fenced_out
from cutwater.store.pipeline_store import PipelineStore

_LOG: Final = logging.getLogger(__name__)


def shut_out_by(
    outcome: Outcome, store: PipelineStore, tried: Collection[Claim]
) -> BaseException | None:
    """Return what a run ends with if its generation ended because of a newer one.

    Args:
        outcome: How the generation ended.
        store: The pipeline in its store.
        tried: All claims of this process, whatever became of them.

    Returns:
        `Fenced` if the log shows a newer claim; else what refused the generation, if something
        did as if there were one; None for an end that has nothing to do with it.
    """
    if outcome.end not in {End.FAILED, End.FENCED}:
        return None
    try:
        fenced = fenced_out(store, tried)
    except StoreError as error:
        _LOG.warning("nobody can say whether another process runs the pipeline: %s", error)
        fenced = None
    if fenced is not None:
        fenced.__cause__ = outcome.error
    if fenced is not None or outcome.end is End.FAILED:
        return fenced
    return outcome.error or RunError(f"the pipeline has ended: {outcome.detail}.")
