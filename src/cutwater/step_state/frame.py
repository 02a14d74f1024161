"""`cutwater.state`: the keyed state of a step at a checkpoint, as a DataFrame.

For programs and notebooks; `cutwater state` is the same on the command line. The state
is rebuilt from the store in a temporary directory of this process, and nothing else is written.
"""

import atexit
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.errors import ConfigError, Corrupt
from cutwater.operations.offline_pipeline import candidates
from cutwater.operations.rewind.target import Candidate, choose
from cutwater.protocol.cut import Cut
from cutwater.store.backends.directories import try_to_remove_tree
from cutwater.store.backends.location import existing_backend
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cutwater.step_state.reading import StepState

LATEST: Final = "latest"
_LOCK: Final = threading.Lock()
_FETCHED: Final[dict[tuple[str, int, str], "StepState"]] = {}
_ROOTS: Final[list[Path]] = []


def state(
    spark: "SparkSession",
    store: str | Path,
    pipeline: str,
    step: str,
    *,
    checkpoint: str | int = LATEST,
    operator: str | int | None = None,
) -> "DataFrame":
    """Return what a step has kept for each key at a checkpoint; the pipeline need not run.

    Args:
        spark: A session with a local master.
        store: Where checkpoints are kept.
        pipeline: The pipeline's name, or its uuid.
        step: The step.
        checkpoint: `latest`, a checkpoint's number, a savepoint's name, or a time.
        operator: Which part of the state, if there are several: an operator's number or name, the
            side of a join (`left`, `right`), a variable of transformWithState, `timers`, or both,
            as `0:left`.

    Returns:
        Spark's columns: `key`, what is kept for it, `partition_id`. Its files stay until
        this process ends, and later calls do not fetch them again.

    Raises:
        ConfigError: If there is no such checkpoint, step or part; the message lists what exists.
        SessionError: If the session has no local master.
        StoreError: If the checkpoint cannot be read.
    """
    backend = existing_backend(str(store))
    _, identity = identify(backend, pipeline)
    opened = PipelineStore.of(backend, identity)
    cut = cut_at(opened, str(checkpoint))
    found = _fetch_once(opened, cut, step)
    if found.is_empty:
        raise ConfigError(
            "checkpoint", f"{step} had not run a batch at checkpoint {cut.checkpoint_id}"
        )
    return found.frame(spark, found.part(None if operator is None else str(operator)))


def cut_at(store: PipelineStore, text: str, option: str = "checkpoint") -> Cut:
    """Return the cut that a text names: `latest`, a number, a savepoint's name, or a time."""
    log = store.log.read()
    found = candidates(store, log)
    if text == LATEST:
        chosen = next((candidate for candidate in found if candidate.decision == log.head), None)
        if chosen is None:
            raise ConfigError(option, "the pipeline has no checkpoint yet")
    else:
        chosen = choose(text, found, option)
    return _require_cut(store, chosen)


def _require_cut(store: PipelineStore, chosen: Candidate) -> Cut:
    if chosen.cut is None:
        path = PipelinePaths(store.pipeline).manifest(chosen.decision.checkpoint_id)
        raise Corrupt(path, f"the manifest of {chosen.title} cannot be read")
    return chosen.cut


def _fetch_once(store: PipelineStore, cut: Cut, step: str) -> "StepState":
    from cutwater.step_state.reading import fetch_state  # noqa: PLC0415 - imports Spark

    with _LOCK:
        # A checkpoint number is never reused within a pipeline, so its state never changes.
        wanted = (store.pipeline, cut.checkpoint_id, step)
        if wanted not in _FETCHED:
            _FETCHED[wanted] = fetch_state(store, cut, step, _root() / f"{len(_FETCHED)}")
        return _FETCHED[wanted]


def _root() -> Path:
    """Return this process's directory for state; it is removed when the process ends."""
    if not _ROOTS:
        _ROOTS.append(Path(tempfile.mkdtemp(prefix="cutwater-state-")))
        atexit.register(try_to_remove_tree, _ROOTS[0])
    return _ROOTS[0]
