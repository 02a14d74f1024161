"""Adopts plain queries: their last committed batches become the first cut of a pipeline.

`examine` compares each query with the step that will resume it, and queries with the same source
with each other (`query_inputs`). It refuses what cannot be resumed exactly; nothing is written.
`adopt` copies the files, gives the copies a new query id, and decides the cut like any other:
claim, targets, attempt, blobs, manifest, decision. A crash before the decision leaves a claim and
some unreferenced objects; the command may be repeated. The originals are only read. Steps without a
query start empty, and sinks are not changed.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cutwater.errors import AdoptionRefused, RecoveryError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, StepId
from cutwater.operations.migration.plain_query import PlainQuery, Trace, files_read, trace
from cutwater.operations.migration.query_inputs import PlainStream, QueryInputs, SharedSource
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
    positions_of,
    reads_below,
)
from cutwater.spark.checkpoint_dir.rewrite import SOURCES, ChangedQuery, Donor, rebuild
from cutwater.spark.versions import unread_marks
from cutwater.store.maintenance.offline_decision import claim_next, decide_cut
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.lease import holder_of
from cutwater.store.records.targets import SinkTargets

NAME: Final = "adopted"
"""The name of the savepoint that an adopted pipeline begins with."""

_FIRST: Final = BatchId(0)
"""A query starts at an offset only after a batch that it has committed."""


@dataclass(frozen=True, slots=True)
class AdoptedStep:
    """A query, and the step that resumes it.

    Attributes:
        streams: What each line of the step's offset log is.
        offsets: Those lines; none for a channel, on which the step starts at the beginning.
        is_query: Whether the query's files become those of the step. A step that runs as batches
            over channels keeps nothing, and the query only says where its source resumes.
        owes_batch: Whether a batch without data is due.
        notes: What the operator should know, a sentence each.
        seen: What was in the directory when it was examined.
    """

    step: StepId
    query: PlainQuery
    streams: tuple[Stream, ...]
    offsets: tuple[str | None, ...]
    is_query: bool
    owes_batch: bool
    notes: tuple[str, ...]
    seen: Trace

    @property
    def positions(self) -> Mapping[str, str]:
        """Where the step resumes in each outside stream, by number and name."""
        return positions_of(self.streams, self.offsets)


@dataclass(frozen=True, slots=True)
class Adoption:
    """What will be adopted.

    Attributes:
        sources: The steps that read sources for adopted steps.
        empty: The steps that start empty.
        identities: The identity of every step, for the manifest.
    """

    plan: PhysicalPlan
    steps: tuple[AdoptedStep, ...]
    sources: tuple[SharedSource, ...]
    empty: tuple[StepId, ...]
    identities: Mapping[StepId, StepIdentity]


@dataclass(frozen=True, slots=True)
class Looked:
    query: PlainQuery
    seen: Trace


def examine(
    plan: PhysicalPlan,
    forms: Mapping[StepId, AnalyzedStep],
    looked: Mapping[str, Looked],
    *,
    allow_uncommitted: bool,
) -> Adoption:
    """Compare queries, by the name of their step, with the steps that will resume them.

    With `allow_uncommitted`, a batch that was started and not committed runs again. The refusal has
    all reasons.
    """
    problems: list[str] = []
    steps: list[AdoptedStep] = []
    known = {step.name: step for step in plan.steps}
    inputs = QueryInputs(
        forms,
        {StepId(name): found.query for name, found in looked.items() if StepId(name) in known},
    )
    for name, directory in looked.items():
        step = known.get(StepId(name))
        if step is None:
            problems.append(f"{name}: there is no such step; the steps are {', '.join(known)}.")
            continue
        form = forms[step.name]
        streams = inputs.streams(step.name)
        if streams is None:
            problems.append(f"{name}: {_without_source(step, form, directory.query)}")
            continue
        found = list(_problems(step, form, directory, allow_uncommitted=allow_uncommitted))
        found += _stream_problems(streams, directory.query)
        problems += [f"{name}: {problem}" for problem in found]
        if not found:
            steps.append(_adopt_step(step, form, directory))
    if problems:
        raise AdoptionRefused(plan.pipeline, *problems)
    sources, problems = inputs.shared()
    problems += [
        f"{adopted.step}: {problem}" for adopted in steps for problem in inputs.unread(adopted.step)
    ]
    if problems:
        raise AdoptionRefused(plan.pipeline, *problems)
    sources = [source for source in sources if source.positions]
    taken = {adopted.step for adopted in steps} | {source.step for source in sources}
    empty = tuple(step.name for step in plan.steps if step.name not in taken)
    identities = {step.name: forms[step.name].identity for step in plan.steps}
    for adopted in steps:
        identity = identities[adopted.step]
        if identity.operators:
            # The state keeps its partitions, whatever the pipeline file requests.
            identities[adopted.step] = replace(identity, partitions=adopted.query.partitions)
    return Adoption(plan, tuple(steps), tuple(sources), empty, identities)


def _without_source(step: PhysicalStep, form: AnalyzedStep, query: PlainQuery) -> str:
    if form.execution_mode is ExecutionMode.BATCH:
        return (
            f"runs as batches over {_channels(step)} and keeps nothing but its positions there; "
            "it needs no query and starts empty."
        )
    return (
        f"reads {_channels(step)}, after a step with state that no query is given for, and the "
        f"query in {query.directory} reads outside sources. Adopt the query of that step too, or "
        "let this step read its source itself."
    )


def _problems(
    step: PhysicalStep, form: AnalyzedStep, looked: Looked, *, allow_uncommitted: bool
) -> Iterator[str]:
    query = looked.query
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


def _stream_problems(streams: Sequence[PlainStream], query: PlainQuery) -> Iterator[str]:
    own = [stream for _, _, stream in streams if stream.kind is StreamKind.OWN]
    if own:
        yield (
            f"reads {own[0].name}, which is {own[0].description} of Cutwater's own, and a plain "
            "query cannot have read it."
        )
        return
    outside = [stream for _, _, stream in streams]
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
        if stream.kind is StreamKind.CHANNEL:
            continue
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
    if step.inputs:
        # The position is that of the source before the channel, or in the files of another query.
        offsets: tuple[str | None, ...] | None = (None,) * len(form.lines)
    else:
        offsets = for_plan(query.log.offsets, form.lines)
    assert offsets is not None
    is_query = form.execution_mode is ExecutionMode.QUERY
    notes = []
    if query.planned is not None:
        notes.append(
            f"batch {query.planned} was begun and not committed: its input is run again, and the "
            "old query's sink may already have rows of it."
        )
    owes = form.may_owe_batch and query.next_watermark_ms > query.log.watermark_ms
    return AdoptedStep(
        step.name, query, form.lines, offsets, is_query, owes, tuple(notes), looked.seen
    )


# -- adopting


def adopt(adoption: Adoption, store: PipelineStore, targets: SinkTargets) -> Decision:
    """Store the queries' files and decide the first cut of the pipeline.

    The targets are recorded, so that it can be forked before it has ever run.

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
        for source in adoption.sources:
            copy = Path(work) / source.step
            files = _make_source_query(adoption, source, copy)
            state = store.blobs(generation).store_tree(copy, files, {})
            empty = _empty(plan[source.step], checkpoint_id, generation)
            snapshots[source.step] = replace(
                empty, batch=_FIRST, offsets=source.positions, state=tuple(state)
            )
        for adopted in adoption.steps:
            copy = Path(work) / adopted.step
            snapshots[adopted.step] = _empty(plan[adopted.step], checkpoint_id, generation)
            if adopted.is_query:
                files = _copy_query(pipeline, adopted, copy)
                state = store.blobs(generation).store_tree(copy, files, {})
                snapshots[adopted.step] = _with_query(snapshots[adopted.step], adopted, state)
            _check_unchanged(pipeline, adopted)
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
    _check_unchanged(pipeline, adopted)
    if any(stream.kind is StreamKind.CHANNEL for stream in adopted.streams):
        rebuild([ChangedQuery(checkpoint=into, batch=query.batch, lines=adopted.offsets)])
        files = query_files.files_of(into, query.batch)
    elif adopted.offsets != query.log.offsets:
        for batch in query_log.batches(into, query_log.OFFSETS):
            lines = for_plan(query_log.read_batch(into, batch).offsets, adopted.streams)
            assert lines is not None
            query_log.replace_offsets(into, batch, lines)
    # The original may be started again, even in the same Spark: it must not stop this query.
    query_log.mint_query_id(into)
    return (*files, note_streams(into, adopted.streams))


def _check_unchanged(pipeline: str, adopted: AdoptedStep) -> None:
    if trace(adopted.query.directory) != adopted.seen:
        raise AdoptionRefused(
            pipeline,
            f"{adopted.step}: {adopted.query.directory} changed while it was copied: stop its "
            "query.",
        )


def _make_source_query(adoption: Adoption, source: SharedSource, into: Path) -> tuple[str, ...]:
    """Make a query that has read a source as far as a query that is adopted; return its files."""
    query = next(step.query for step in adoption.steps if step.step == source.readers[0])
    inputs = adoption.identities[source.step].inputs
    logs = {
        step_input.log: query.directory / SOURCES / str(number)
        for step_input, number in zip(inputs, source.numbers, strict=True)
        if step_input.log is not None
    }
    rebuild(
        [
            ChangedQuery(
                checkpoint=into,
                batch=_FIRST,
                lines=source.offsets,
                logs=logs,
                donor=Donor(query.directory, query.batch),
            )
        ]
    )
    return (*query_files.files_of(into, _FIRST), note_streams(into, source.streams))


def _with_query(
    empty: StepSnapshot, adopted: AdoptedStep, state: Sequence[BlobRef]
) -> StepSnapshot:
    return replace(
        empty,
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
