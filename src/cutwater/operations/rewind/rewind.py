"""Rewinding a pipeline: prove, claim, decide, take the sinks back, record (PROTOCOL.md section 11).

The order of durable writes is that of a checkpoint: a claim, the sinks' targets, a number, the
manifest, the decision, the sinks, the record. Before the decision nothing has happened but a claim;
after it the next run, or the next rewind, finishes what is left. Upholds I7 and I8.
"""

from dataclasses import replace
from pathlib import Path

from cutwater.errors import ConfigError, MoveRefused, SinkError, Superseded
from cutwater.operations.offline_pipeline import (
    Movable,
    candidates,
    check_still_there,
    open_movable,
)
from cutwater.operations.rewind.facts import observe
from cutwater.operations.rewind.preview import Rewind, done, preview_of
from cutwater.operations.rewind.target import Candidate, choose
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import LogView
from cutwater.protocol.recovery import LOG_LOST
from cutwater.protocol.rewind import plan_rewind
from cutwater.sinks.commit import see_through
from cutwater.store.backends.location import existing_backend
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut, fenced_out
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.lease import hold_pipeline, holder_of


def rewind(
    pipeline: str,
    *,
    to: str,
    store: str | Path,
    yes: bool = False,
    leave_sinks: bool = False,
    takeover: bool = False,
) -> Rewind:
    """Take a pipeline back to an older checkpoint, sinks included; needs neither Spark nor a file.

    Args:
        pipeline: The pipeline's name.
        to: A checkpoint's number, a savepoint's name, or a time in ISO 8601 (local unless it names
            a zone), which stands for the last checkpoint that began at or before it.
        store: The address of its store.
        yes: Do it; otherwise it is only described.
        leave_sinks: Leave the sinks as they are: rows after the checkpoint come a second time.
        takeover: Do it although another process seems to run the pipeline; that one ends.

    Returns:
        What it does, or would do, to every step, source and sink; `refused` says what stands
        against it.

    Raises:
        ConfigError: If there is no such store, pipeline or checkpoint.
        PipelineHeld: If another process runs the pipeline.
        MoveRefused: If it cannot be done; nothing was changed.
        SinkError: If a sink could not be taken back now: the rewind is decided, and the next run
            finishes it.
        StoreError: If the store cannot be read or written.
    """
    backend = existing_backend(store)
    movable = open_movable(backend, pipeline)
    identity = movable.store.pipeline
    if not yes:
        holder = None if takeover else holder_of(backend, identity, pipeline)
        log = movable.store.log.read()
        target = find_target(movable, log, to, "--to")
        refusal = None if holder is None else holder.message.rstrip(".")
        return preview_of(observe(movable, log, target, leave_sinks=leave_sinks, held=refusal))
    with hold_pipeline(backend, identity, pipeline, takeover=takeover):
        log = movable.store.log.read()
        target = find_target(movable, log, to, "--to")
        return perform(movable, log, target, leave_sinks=leave_sinks)


def behind(pipeline: str, *, to: str, store: str | Path, option: str = "--to") -> Candidate | None:
    """Return the checkpoint that a text means, if going there is a rewind; None if it is the head.

    Looks at nothing else: not at the objects, and not at the sinks, which may never have been.

    Raises:
        ConfigError: If there is no such store, pipeline or checkpoint.
        MoveRefused: If the log has lost its end.
        StoreError: If the store cannot be read.
    """
    backend = existing_backend(store)
    name, identity = identify(backend, pipeline)
    opened = PipelineStore.of(backend, identity)
    log = opened.log.read()
    target = find_target(Movable(name, opened, {}, {}), log, to, option)
    return None if target.decision == log.head else target


def find_target(movable: Movable, log: LogView, text: str, option: str) -> Candidate:
    """Return the checkpoint that a text means.

    Raises:
        ConfigError: If there is none.
        MoveRefused: If the log has lost its end: what the sinks show is then not known.
        StoreError: If the store cannot be read.
    """
    if movable.store.lacks_decision():
        raise MoveRefused(movable.name, LOG_LOST)
    if log.head is None:
        raise ConfigError(option, f"{movable.name} has never taken a checkpoint")
    return choose(text, candidates(movable.store, log), option)


def perform(movable: Movable, log: LogView, target: Candidate, *, leave_sinks: bool) -> Rewind:
    """Rewind a pipeline that this process holds.

    Args:
        movable: The pipeline.
        log: Its log as it was just read: whoever writes to it meanwhile makes the claim fail.
        target: The checkpoint to go back to.
        leave_sinks: Whether the sinks are left as they are.

    Raises:
        MoveRefused: If it cannot be done; nothing was changed.
        Fenced: If another process has claimed the pipeline meanwhile; if the rewind was decided
            before that, that process sees it through.
        Superseded: If a sink has acted on a later decision, and the log shows nobody else.
        OutcomeUnknown: If nobody can say whether it is decided; the next run reads the truth.
        SinkError: If a sink could not be taken back now.
        StoreError: If the store cannot be read or written.
    """
    observed = observe(movable, log, target, leave_sinks=leave_sinks, held=None)
    preview = preview_of(observed)
    if preview.refused:
        raise MoveRefused(movable.name, "; ".join(preview.refused))
    claim = claim_next(movable.store, log)
    check_still_there(movable.name, movable.store, target)
    movable.store.targets.record(claim.generation, movable.targets)

    def planned(attempt: Attempt) -> Cut:
        cut = plan_rewind(observed.facts, attempt.checkpoint_id, attempt.generation)
        assert isinstance(cut, Cut), cut
        return replace(cut, started_at_ms=attempt.started_at_ms)

    decision, cut = decide_cut(movable.store, claim, CheckpointKind.REWIND, planned)
    if leave_sinks and movable.unopened:
        # They have nothing to do, and the next run, which can open them, records that.
        return done(preview, cut.checkpoint_id)
    try:
        see_through(movable.store, movable.sinks, decision, cut)
    except Superseded as error:
        # A sink that knows a later slot, as a rule since somebody has taken the pipeline over.
        raise fenced_out(movable.store, [claim]) or error from None
    except SinkError as error:
        reason = f"{error.reason}. The rewind is decided, and the next run finishes it"
        raise SinkError(error.sink, reason) from error
    return done(preview, cut.checkpoint_id)
