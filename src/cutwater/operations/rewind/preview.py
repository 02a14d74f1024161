"""What a rewind does to every step, source and sink, as values: shown before it is done.

`preview_of` compares the current cut of the pipeline with the target cut. It reads nothing and
decides nothing: facts in, description out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cutwater.ids import CheckpointId, SinkId, StepId
from cutwater.operations.rewind.source_history import Past, is_checked
from cutwater.operations.rewind.target import Candidate
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.rewind import Refused, RewindFacts, plan_rewind
from cutwater.sinks.base import RestorePreview
from cutwater.store.records.targets import SinkTargets


@dataclass(frozen=True, slots=True)
class StepMove:
    """What happens to a step.

    Attributes:
        batch: Its last batch in the current cut; None if the step is not in that cut.
        batch_then: Its last batch in the target cut; -1 for none.
        state_bytes: The size of the restored state.
        in_flight_bytes: The size of the restored input in flight, which the step reads first.
    """

    step: StepId
    batch: int | None
    batch_then: int
    state_bytes: int
    in_flight_bytes: int


@dataclass(frozen=True, slots=True)
class SourceMove:
    """Where a source resumes.

    Attributes:
        stream: The step and its stream.
        position: Its current position, in the source's own format; None if it is not known.
        position_then: Its position in the target cut; None for its beginning.
        checked: Whether it is known that the source still has the input after that: it is
            computed, its files were checked, or its broker was asked. Other sources are checked
            when the pipeline runs.
        unchecked: Why it could not be checked; empty if it was, or if it never can be.
        replayed: For Kafka: how many offsets it reads again; None if that is not known.
    """

    stream: str
    position: str | None
    position_then: str | None
    checked: bool
    unchecked: str = ""
    replayed: int | None = None


@dataclass(frozen=True, slots=True)
class SinkMove:
    """What happens to a sink's target.

    Attributes:
        target: Where it writes.
        version: What it shows now; None if that is not known.
        version_then: The version to restore; None for its beginning.
        rows: How many rows it shows now; None if that is not known.
        rows_then: How many it showed then; None if that is not known.
        left: Whether it is left unchanged; rows after the cut are then duplicated.
        obstacle: Why it cannot be restored; None if it can.
    """

    sink: SinkId
    target: str
    version: Version | None
    version_then: Version | None
    rows: int | None
    rows_then: int | None
    left: bool = False
    obstacle: str | None = None

    @property
    def rows_removed(self) -> int | None:
        """How many rows are removed, or duplicated if it is left; None if not known."""
        if self.rows is None or self.rows_then is None:
            return None
        return self.rows - self.rows_then


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind: what it would do, and whether it was done.

    Attributes:
        pipeline: The pipeline's name.
        to: The target checkpoint.
        title: The target in words.
        at_ms: When the target was taken.
        head: The current checkpoint, before the rewind.
        undone: The checkpoints after the target, which the rewind undoes, oldest first.
        steps: What happens to the steps.
        sources: Where the sources resume.
        sinks: What happens to the sinks.
        refused: All reasons against it; empty if it can be done.
        checkpoint_id: Its own number after it was done; None before.
    """

    pipeline: str
    to: CheckpointId
    title: str
    at_ms: int
    head: CheckpointId
    undone: tuple[CheckpointId, ...]
    steps: tuple[StepMove, ...]
    sources: tuple[SourceMove, ...]
    sinks: tuple[SinkMove, ...]
    refused: tuple[str, ...] = ()
    checkpoint_id: CheckpointId | None = None

    @property
    def done(self) -> bool:
        return self.checkpoint_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was observed about a rewind.

    Attributes:
        head: The current cut; None if its manifest cannot be read.
        undone: The checkpoints decided since the target.
        held: The process that runs the pipeline; None if it is stopped.
        past: What is known of the input that the sources have after the target.
    """

    pipeline: str
    target: Candidate
    head: Cut | None
    head_id: CheckpointId
    undone: tuple[CheckpointId, ...]
    facts: RewindFacts
    previews: Mapping[SinkId, RestorePreview]
    targets: SinkTargets
    held: str | None = None
    past: Past = field(default_factory=Past)


def preview_of(observed: Observed) -> Rewind:
    facts = observed.facts
    cut = facts.cut
    reasons = [] if observed.held is None else [observed.held]
    planned = plan_rewind(facts, CheckpointId(1), facts.target.generation)
    if isinstance(planned, Refused):
        listed = f": {'; '.join(planned.things)}" if planned.things else ""
        reasons.append(f"{observed.target.title}: {planned.reason.value}{listed}")
    return Rewind(
        pipeline=observed.pipeline,
        to=facts.target.checkpoint_id,
        title=observed.target.title,
        at_ms=0 if cut is None else cut.started_at_ms,
        head=observed.head_id,
        undone=observed.undone,
        steps=() if cut is None else _steps(observed.head, cut),
        sources=() if cut is None else _sources(observed, cut),
        sinks=_sinks(observed, planned),
        refused=tuple(reasons),
    )


def done(rewind: Rewind, checkpoint_id: CheckpointId) -> Rewind:
    return replace(rewind, checkpoint_id=checkpoint_id)


def _steps(head: Cut | None, cut: Cut) -> tuple[StepMove, ...]:
    now = {} if head is None else head.snapshots
    return tuple(
        StepMove(
            step,
            now[step].batch if step in now else None,
            snapshot.batch,
            sum(blob.size_bytes for blob in snapshot.state),
            snapshot.in_flight_bytes,
        )
        for step, snapshot in sorted(cut.snapshots.items())
    )


def _sources(observed: Observed, cut: Cut) -> tuple[SourceMove, ...]:
    now = {} if observed.head is None else observed.head.stream_positions
    then, past = cut.stream_positions, observed.past
    return tuple(
        SourceMove(
            stream,
            now.get(stream),
            then.get(stream),
            stream in {*past.replayed, *past.forgotten}
            or (is_checked(now.get(stream)) and stream not in past.unasked),
            past.unasked.get(stream, ""),
            past.replayed.get(stream),
        )
        for stream in sorted({*now, *then})
    )


def _sinks(observed: Observed, planned: Cut | Refused) -> tuple[SinkMove, ...]:
    facts = observed.facts
    shown = shown_then(facts) or {}
    if isinstance(planned, Cut):
        shown = planned.visible
    moves = []
    for sink in sorted({*shown, *observed.targets}):
        preview = observed.previews.get(sink)
        target = observed.targets.get(sink)
        moves.append(
            SinkMove(
                sink,
                "" if target is None else target.uri,
                None if preview is None else preview.version,
                shown.get(sink),
                None if preview is None else preview.rows,
                None if preview is None else preview.rows_then,
                facts.leave_sinks,
                facts.cannot_restore.get(sink),
            )
        )
    return tuple(moves)


def shown_then(facts: RewindFacts) -> Mapping[SinkId, Version | None] | None:
    """Return what the sinks showed at the cut; None if that is not recorded."""
    shown: Mapping[SinkId, Version | None] | None = facts.committed
    if facts.cut is not None and not facts.target.commit_point:
        shown = facts.cut.visible
    return None if shown is None else {**shown, **facts.before}
