"""Adopts plain queries: their last committed batches become the first cut of a pipeline.

`examine` compares each query with the step that will resume it and refuses queries that cannot be
resumed exactly; nothing is written. `adopt` copies the files, gives the copies a new query id, and
decides the cut like any other: claim, targets, attempt, blobs, manifest, decision. A crash before
the decision leaves a claim and some unreferenced objects; the command may be repeated. The
originals are only read. Steps without a query start empty, and sinks are not changed.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cutwater.errors import AdoptionRefused, RecoveryError
from cutwater.ids import NO_BATCH, CheckpointId, Generation, StepId
from cutwater.operations.migration.plain_query import PlainQuery, Trace, files_read, trace
from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep
from cutwater.protocol.cut import BlobRef, CheckpointKind, Cut, StepSnapshot, faults
from cutwater.protocol.decisions import Decision, LogView
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.messages import START
from cutwater.protocol.transitions import invariant
from cutwater.spark.analysis.analysis import AnalyzedStep, ExecutionMode
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.offsets import (
    Stream,
    StreamKind,
    fits,
    for_plan,
    kind_of_offset,
    note_streams,
    reads_below,
)
from cutwater.spark.versions import unread_marks
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.lease import holder_of
from cutwater.store.records.targets import SinkTargets

NAME: Final = "adopted"
"""The name of the savepoint that an adopted pipeline begins with."""


@dataclass(frozen=True, slots=True)
class AdoptedStep:
    """A query, and the step that resumes it.

    Attributes:
        streams: What each line of the step's offset log is.
        offsets: Those lines.
        owes_batch: Whether a batch without data is due.
        notes: What the operator should know, a sentence each.
        seen: What was in the directory when it was examined.
    """

    step: StepId
    query: PlainQuery
    streams: tuple[Stream, ...]
    offsets: tuple[str | None, ...]
    owes_batch: bool
    notes: tuple[str, ...]
    seen: Trace

    @property
    def positions(self) -> Mapping[str, str]:
        """Where the step resumes in each outside stream, by number and name."""
        return {
            f"{at}:{stream.name}": line
            for at, (stream, line) in enumerate(zip(self.streams, self.offsets, strict=True))
            if line is not None
        }


@dataclass(frozen=True, slots=True)
class Adoption:
    """What will be adopted.

    Attributes:
        plan: The pipeline.
        steps: The steps that resume a query.
        empty: The steps that start empty.
        identities: The identity of every step, for the manifest.
    """

    plan: PhysicalPlan
    steps: tuple[AdoptedStep, ...]
    empty: tuple[StepId, ...]
    identities: Mapping[StepId, StepIdentity]


@dataclass(frozen=True, slots=True)
class Looked:
    """A directory that was examined."""

    query: PlainQuery
    seen: Trace


def examine(
    plan: PhysicalPlan,
    forms: Mapping[StepId, AnalyzedStep],
    looked: Mapping[str, Looked],
    *,
    allow_uncommitted: bool,
) -> Adoption:
    """Compare queries with the steps that will resume them.

    Args:
        plan: The pipeline.
        forms: Its steps, as Spark sees them.
        looked: The queries by the name of their step.
        allow_uncommitted: Run a batch again that was started and not committed.

    Raises:
        AdoptionRefused: If it is refused, with all reasons.
    """
    problems: list[str] = []
    steps: list[AdoptedStep] = []
    known = {step.name: step for step in plan.steps}
    for name, directory in looked.items():
        step = known.get(StepId(name))
        if step is None:
            problems.append(f"{name}: there is no such step; the steps are {', '.join(known)}.")
            continue
        form = forms[step.name]
        found = list(_problems(step, form, directory, allow_uncommitted=allow_uncommitted))
        problems += [f"{name}: {problem}" for problem in found]
        if not found:
            steps.append(_adopt_step(step, form, directory))
    if problems:
        raise AdoptionRefused(plan.pipeline, *problems)
    taken = {adopted.step for adopted in steps}
    empty = tuple(step.name for step in plan.steps if step.name not in taken)
    identities = {step.name: forms[step.name].identity for step in plan.steps}
    for adopted in steps:
        identity = identities[adopted.step]
        if identity.operators:
            # The state keeps its partitions, whatever the pipeline file requests.
            identities[adopted.step] = replace(identity, partitions=adopted.query.partitions)
    return Adoption(plan, tuple(steps), empty, identities)


def _problems(
    step: PhysicalStep, form: AnalyzedStep, looked: Looked, *, allow_uncommitted: bool
) -> Iterator[str]:
    query = looked.query
    if form.execution_mode is ExecutionMode.BATCH:
        yield (
            f"runs as batches over {_channels(step)} and keeps nothing but its positions there; "
            "it needs no query and starts empty."
        )
        return
    if step.inputs:
        yield (
            f"reads {_channels(step)}, and the query in {query.directory} reads outside sources. "
            "Adopt it into a pipeline in which this step reads its source alone; adding other "
            "readers of that source afterwards keeps the state."
        )
        return
    if trace(query.directory) != looked.seen:
        yield (
            f"{query.directory} changed while it was looked at: its query still runs. Stop it "
            "and wait until it has ended."
        )
    if query.planned is not None and not allow_uncommitted:
        yield (
            f"{query.directory} has batch {query.planned} begun and not committed. The pipeline "
            f"would run its input again, after batch {query.batch}; the old query's sink may "
            "already have rows of it. Let the query finish it (start it once with the trigger "
            "availableNow), or say --allow-uncommitted."
        )
    yield from _stream_problems(form, query)
    unread = unread_marks(query.snapshot_marks, form.identity.spark)
    if unread:
        yield (
            f"{query.directory} has snapshots of its state marked {', '.join(unread)}, which Spark "
            f"{form.identity.spark} cannot read; Spark 4.0 marks those of transformWithState so. "
            "Adopt it on the version that it ran on."
        )
    is_stateful = bool(form.identity.operators)
    if bool(query.operators) != is_stateful:
        has = ", ".join(operator.name or operator.id for operator in query.operators) or "none"
        needs = "keeps state" if is_stateful else "keeps no state"
        yield f"the step {needs}, and the query's stateful operators are: {has}."
    wanted = step.options.partitions
    if is_stateful and wanted is not None and query.partitions not in {None, wanted}:
        yield (
            f"its state has {query.partitions} partitions and keeps them; remove "
            f"partitions={wanted} from the step."
        )


def _stream_problems(form: AnalyzedStep, query: PlainQuery) -> Iterator[str]:
    own = [line for line in form.lines if line.kind is StreamKind.OWN]
    if own:
        yield (
            f"reads {own[0].name}, which is {own[0].description} of Cutwater's own, and a plain "
            "query cannot have read it."
        )
        return
    outside = [stream for stream in form.lines if stream.kind is StreamKind.OUTSIDE]
    lines = query.log.offsets
    if len(outside) != len(lines):
        reads = ", ".join(stream.name for stream in outside)
        yield (
            f"the step reads {len(outside)} outside streams ({reads}), and the query read "
            f"{len(lines)}; they are matched by their order, which must be the same."
        )
        return
    for at, (stream, line) in enumerate(zip(outside, lines, strict=True)):
        if not fits(stream.description, line):
            yield (
                f"stream {at} is {stream.name}, {stream.description}, and the query's position "
                f"there is one of {kind_of_offset(line)}: {line}."
            )
    read = files_read(query.directory)
    for stream in outside:
        if read and not any(reads_below(stream.description, file) for file in read):
            yield (
                f"{stream.name} is {stream.description}, and the query has read {read[0]}: every "
                "file would count as new, and be read again. Let the source read the same place."
            )


def _channels(step: PhysicalStep) -> str:
    names = sorted({str(source.id.channel) for source in step.inputs})
    return f"channel{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _adopt_step(step: PhysicalStep, form: AnalyzedStep, looked: Looked) -> AdoptedStep:
    query = looked.query
    offsets = for_plan(query.log.offsets, form.lines)
    assert offsets is not None
    notes = []
    if query.planned is not None:
        notes.append(
            f"batch {query.planned} was begun and not committed: its input is run again, and the "
            "old query's sink may already have rows of it."
        )
    owes = form.may_owe_batch and query.next_watermark_ms > query.log.watermark_ms
    return AdoptedStep(step.name, query, form.lines, offsets, owes, tuple(notes), looked.seen)


# -- adopting


def adopt(adoption: Adoption, store: PipelineStore, targets: SinkTargets) -> Decision:
    """Store the queries' files and decide the first cut of the pipeline.

    Args:
        adoption: What is adopted.
        store: The pipeline in its store.
        targets: Where its sinks will write, so that it can be forked before it has ever run.

    Raises:
        AdoptionRefused: If the pipeline has a cut already, or a query began to run meanwhile.
        PipelineHeld: If another process runs the pipeline.
        Fenced: If another process claimed it meanwhile.
    """
    log = _free_log(adoption.plan.pipeline, store)
    claim = claim_next(store, log)
    store.targets.record(claim.generation, targets)
    kind = CheckpointKind.SAVEPOINT
    decision, _ = decide_cut(
        store, claim, kind, lambda attempt: _first_cut(adoption, store, attempt)
    )
    return decision


def _first_cut(adoption: Adoption, store: PipelineStore, attempt: Attempt) -> Cut:
    plan, pipeline = adoption.plan, adoption.plan.pipeline
    checkpoint_id, generation = attempt.checkpoint_id, attempt.generation
    snapshots = {step: _empty(plan[step], checkpoint_id, generation) for step in adoption.empty}
    with tempfile.TemporaryDirectory(prefix="cutwater-adopt-") as work:
        for adopted in adoption.steps:
            copy = Path(work) / adopted.step
            files = _copy_query(pipeline, adopted, copy)
            state = store.blobs(generation).store_tree(copy, files, {})
            snapshots[adopted.step] = _snapshot(adopted, checkpoint_id, generation, state)
    cut = Cut(
        checkpoint_id=checkpoint_id,
        generation=generation,
        kind=attempt.kind,
        name=NAME,
        snapshots=snapshots,
        # What the queries wrote does not belong to the sinks: nothing is committed here.
        commit_point=False,
        visible={spec.sink: None for spec in plan.topology().steps if spec.sink},
        started_at_ms=attempt.started_at_ms,
        identities=adoption.identities,
    )
    # A source that starts empty has no offsets yet, and none of its rows are decided.
    topology = plan.topology(adoption.empty, adoption.identities)
    invariant(not (wrong := faults(topology, cut.snapshots)), "I3", "; ".join(wrong))
    return cut


def _free_log(pipeline: str, store: PipelineStore) -> LogView:
    held = holder_of(store.backend, store.pipeline, pipeline)
    if held is not None:
        raise held
    log = store.log.read()
    if log.head is not None or store.lacks_decision():
        raise AdoptionRefused(pipeline, has_checkpoints(pipeline))
    return log


def has_checkpoints(pipeline: str) -> str:
    """Return the refusal for a pipeline that already has checkpoints."""
    return (
        f"pipeline {pipeline} has checkpoints in this store already, and what it adopts is its "
        "first one. Give the pipeline another name, or use another store."
    )


def _copy_query(pipeline: str, adopted: AdoptedStep, into: Path) -> tuple[str, ...]:
    """Copy a query's files and turn them into a query of the pipeline; return their paths."""
    query = adopted.query
    try:
        files = query_files.pin(query.directory, query.batch, into, linked=False)
    except RecoveryError as error:
        raise AdoptionRefused(pipeline, f"{adopted.step}: {error.message}") from error
    if trace(query.directory) != adopted.seen:
        raise AdoptionRefused(
            pipeline,
            f"{adopted.step}: {query.directory} changed while it was copied: stop its query.",
        )
    if adopted.offsets != query.log.offsets:
        for batch in query_log.batches(into, query_log.OFFSETS):
            lines = for_plan(query_log.read_batch(into, batch).offsets, adopted.streams)
            assert lines is not None
            query_log.replace_offsets(into, batch, lines)
    # The original may be started again, even in the same Spark: it must not stop this query.
    query_log.mint_query_id(into)
    return (*files, note_streams(into, adopted.streams))


def _snapshot(
    adopted: AdoptedStep,
    checkpoint_id: CheckpointId,
    generation: Generation,
    state: Sequence[BlobRef],
) -> StepSnapshot:
    return StepSnapshot(
        step=adopted.step,
        checkpoint_id=checkpoint_id,
        generation=generation,
        batch=adopted.query.batch,
        offsets=adopted.positions,
        watermark_ms=adopted.query.log.watermark_ms or None,
        owes_batch=adopted.owes_batch,
        state=tuple(state),
    )


def _empty(step: PhysicalStep, checkpoint_id: CheckpointId, generation: Generation) -> StepSnapshot:
    places = {source.id: START for source in step.inputs}
    return StepSnapshot(
        step=step.name,
        checkpoint_id=checkpoint_id,
        generation=generation,
        batch=NO_BATCH,
        positions=places,
        barriers=places,
    )
