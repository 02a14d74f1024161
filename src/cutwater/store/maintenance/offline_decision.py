"""Claims and decisions made while the pipeline is stopped, and the check for a newer claim.

A rewind, a fork and an adoption decide one cut each, by the same durable writes as a checkpoint
(PROTOCOL.md section 9), in this order: a claim, a number, a manifest and a decision. They differ
only in the cut. Interrupted before the decision, they leave a claim and a number, and later runs
pass over both. Upholds I7 and I8.

A process that was paused can notice its successor in many ways: its next slot is taken, a sink
refuses it, its scratch is gone. Whichever comes first, the log says which process owns the
pipeline, and `fenced_out` reports that (PROTOCOL.md section 10).
"""

import uuid
from collections.abc import Callable, Collection

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.errors import Fenced, OutcomeUnknown
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, Decision, DecisionOutcome, LogEntry, LogView
from cutwater.protocol.recovery import taken_over
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt


def claim_next(store: PipelineStore, log: LogView) -> Claim:
    """Claim the pipeline in the slot after the log that was read.

    Fenced if another process has claimed or decided since; then nothing was written.
    """
    claim = Claim(Slot(log.last_slot + 1), Generation(log.generation + 1), uuid.uuid4().hex)
    _write(store, claim)
    return claim


def decide_cut(
    store: PipelineStore,
    claim: Claim,
    kind: CheckpointKind,
    make: Callable[[Attempt], Cut],
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Decision, Cut]:
    """Reserve a number, create the cut with it, publish its manifest and write its decision.

    `make` creates the cut, and stores its objects, after its number is reserved. The decision gets
    the slot after the claim. Fenced if another process has claimed since; then nothing was decided.
    """
    cut = make(_take_number(store, claim.generation, kind, clock))
    decision = Decision(
        slot=Slot(claim.slot + 1),
        generation=claim.generation,
        nonce=uuid.uuid4().hex,
        kind=cut.kind,
        checkpoint_id=cut.checkpoint_id,
        manifest_sha256=store.manifests.publish(cut),
        commit_point=cut.commit_point,
        origin=cut.origin,
    )
    _write(store, decision)
    return decision, cut


def _take_number(
    store: PipelineStore, generation: Generation, kind: CheckpointKind, clock: Clock
) -> Attempt:
    """Reserve the next free number, as every attempt does (docs/adr/0003)."""
    decided = store.log.read().highest_id
    number = max(store.attempts.highest(decided), decided)
    while True:
        number = CheckpointId(number + 1)
        attempt = Attempt(number, generation, kind, clock.wall_ms())
        if store.attempts.reserve(attempt):
            return attempt


def _write(store: PipelineStore, entry: LogEntry) -> None:
    outcome = store.log.create(entry)
    if outcome is DecisionOutcome.TAKEN:
        raise Fenced(store.pipeline, entry.generation, store.log.read().generation)
    if outcome is DecisionOutcome.UNKNOWN:
        doubt = store.log.doubt(entry.slot)
        raise OutcomeUnknown(doubt.path, f"{doubt.reason}; the next run finds out")


def fenced_out(store: PipelineStore, tried: Collection[Claim]) -> Fenced | None:
    """Return the error for a process that another process's claim has fenced out.

    `tried` are all claims of this process, whether they succeeded or not. None if the pipeline is
    this process's own, or is not claimed.
    """
    found = taken_over(store.log.read(), tried)
    return None if found is None else Fenced(store.pipeline, *found)
