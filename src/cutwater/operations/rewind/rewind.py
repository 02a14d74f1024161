"""Rewinds a pipeline: prove, claim, decide, restore the sinks, record (PROTOCOL.md section 11).

The order of durable writes is that of a checkpoint: a claim, the sinks' targets, a number, the
manifest, the decision, the sinks, the record. Before the decision only a claim has been written;
after the decision the next run, or the next rewind, finishes the rest. Upholds I7 and I8.
"""

from dataclasses import replace
from pathlib import Path

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.errors import ConfigError, MoveRefused, SinkError, Superseded
from cutwater.operations.offline_pipeline import (
    OfflinePipeline,
    candidates,
    check_objects_stay,
    check_still_there,
    open_offline,
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
    """Rewind a pipeline to an older checkpoint, sinks included; needs neither Spark nor a file.

    Args:
        pipeline: The pipeline's name.
        to: A checkpoint's number, a savepoint's name, or a time in ISO 8601 (local unless it names
            a zone), which stands for the last checkpoint that began at or before it.
        store: The address of its store.
        yes: Do it; otherwise the rewind is only described.
        leave_sinks: Leave the sinks unchanged: rows after the checkpoint are duplicated.
        takeover: Do it although another process seems to run the pipeline; that process ends.

    Returns:
        What it does, or would do, to every step, source and sink; `refused` lists the reasons
        against it.

    Raises:
        ConfigError: If there is no such store, pipeline or checkpoint.
        PipelineHeld: If another process runs the pipeline.
        MoveRefused: If it cannot be done; nothing was changed.
        SinkError: If a sink could not be restored now: the rewind is decided, and the next run
            finishes it.
        StoreError: If the store cannot be read or written.
    """
    backend = existing_backend(store)
    offline = open_offline(backend, pipeline)
    identity = offline.store.pipeline
    if not yes:
        holder = None if takeover else holder_of(backend, identity, pipeline)
        log = offline.store.log.read()
        target = find_target(offline, log, to, "--to")
        refusal = None if holder is None else holder.message.rstrip(".")
        return preview_of(observe(offline, log, target, leave_sinks=leave_sinks, held=refusal))
    with hold_pipeline(backend, identity, pipeline, takeover=takeover):
        log = offline.store.log.read()
        target = find_target(offline, log, to, "--to")
        return perform(offline, log, target, leave_sinks=leave_sinks)


def resolve_rewind_target(
    pipeline: str, *, to: str, store: str | Path, option: str = "--to"
) -> Candidate | None:
    """Return the checkpoint that a text names, if it needs a rewind; None if it is the head.

    Reads only the log and the manifests, not the objects and not the sinks, which may not exist.
    """
    backend = existing_backend(store)
    name, identity = identify(backend, pipeline)
    opened = PipelineStore.of(backend, identity)
    log = opened.log.read()
    target = find_target(OfflinePipeline(name, opened, {}, {}), log, to, option)
    return None if target.decision == log.head else target


def find_target(offline: OfflinePipeline, log: LogView, text: str, option: str) -> Candidate:
    """Return the checkpoint that a text names.

    MoveRefused if the log has lost its end: what the sinks show is then not known.
    """
    if offline.store.lacks_decision():
        raise MoveRefused(offline.name, LOG_LOST)
    if log.head is None:
        raise ConfigError(option, f"{offline.name} has never taken a checkpoint")
    return choose(text, candidates(offline.store, log), option)


def perform(
    offline: OfflinePipeline,
    log: LogView,
    target: Candidate,
    *,
    leave_sinks: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> Rewind:
    """Rewind a pipeline that this process holds.

    Args:
        log: Its log as it was just read: if another process writes to it, the claim fails.

    Raises:
        MoveRefused: If it cannot be done; nothing was changed.
        Fenced: If another process has claimed the pipeline meanwhile; if the rewind was decided
            before that, that process finishes it.
        Superseded: If a sink has committed a later decision, and the log shows no newer claim.
        OutcomeUnknown: If it is not known whether it is decided; the next run finds out.
    """
    observed = observe(offline, log, target, leave_sinks=leave_sinks, held=None)
    preview = preview_of(observed)
    if preview.refused:
        raise MoveRefused(offline.name, "; ".join(preview.refused))
    claim = claim_next(offline.store, log)
    check_still_there(offline.name, offline.store, target)
    check_objects_stay(offline.name, offline.store, target)
    offline.store.targets.record(claim.generation, offline.targets)

    def plan(attempt: Attempt) -> Cut:
        cut = plan_rewind(observed.facts, attempt.checkpoint_id, attempt.generation)
        assert isinstance(cut, Cut), cut
        return replace(cut, started_at_ms=attempt.started_at_ms)

    decision, cut = decide_cut(offline.store, claim, CheckpointKind.REWIND, plan, clock)
    if leave_sinks and offline.unopened:
        # These sinks have nothing to do; the next run, which can open them, records that.
        return done(preview, cut.checkpoint_id)
    try:
        see_through(offline.store, offline.sinks, decision, cut)
    except Superseded as error:
        # The sink has a later slot, usually because another process has taken over.
        raise fenced_out(offline.store, [claim]) or error from None
    except SinkError as error:
        reason = f"{error.reason}. The rewind is decided, and the next run finishes it"
        raise SinkError(error.sink, reason) from error
    return done(preview, cut.checkpoint_id)
