"""Builds a generation from a cut: channels with what was in flight, queries at their batch.

Always builds all steps together, in a fresh scratch directory: nothing of an older generation is
reused in place (rules F10, F26). The steps' functions are called here, once, in the order of the
plan, because the columns of a channel are those of its producer's result.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from cutwater.errors import CodeChanged, PlanError
from cutwater.ids import (
    NO_BATCH,
    NO_CHECKPOINT,
    ChannelId,
    CheckpointId,
    InputId,
    ReaderId,
    SinkId,
    StepId,
)
from cutwater.pipeline.nodes import depends_on_batches
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.commit import ShowPermit, grant_shows
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import repeated_checkpoint
from cutwater.protocol.evolution.identity import NO_OFFSET
from cutwater.protocol.evolution.mapping import KEEP_STATE, Change, Line, Refusal
from cutwater.protocol.messages import START
from cutwater.protocol.recovery import Restore
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored
from cutwater.protocol.topology import StepSpec, Topology
from cutwater.runtime.channel import (
    Channel,
    ChannelSchema,
    Signal,
    check_in_flight,
    restore_channel,
)
from cutwater.runtime.context import RunContext
from cutwater.runtime.engine import Built
from cutwater.runtime.output import ChannelOutput, Output, SinkOutput
from cutwater.runtime.reporting.recovery_timing import Phase, Phases
from cutwater.runtime.scratch import generation_directory
from cutwater.runtime.step import DriverCallbacks, RunningStep, StepConnections
from cutwater.spark.analysis.analysis import Analysis, AnalyzedStep, ExecutionMode
from cutwater.spark.analysis.column_pruning import columns_read, rows_depend_on_columns
from cutwater.spark.analysis.restoring import map_or_refuse
from cutwater.spark.analysis.self_reads import SelfReadCheck
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.kafka_start import write_start
from cutwater.spark.checkpoint_dir.rewrite import SOURCES, ChangedQuery, donor_of, rebuild
from cutwater.spark.engine.batch_step import BatchStep
from cutwater.spark.engine.kafka_brokers import KafkaBrokers
from cutwater.spark.engine.kafka_watch import KafkaWatch, ReadsKafka
from cutwater.spark.engine.query_step import PARTITIONS, CommitWatch, QueryStep
from cutwater.spark.jvm.by_reference.source_reference import ReferenceOutput, SourceReference
from cutwater.spark.jvm.channel_scan import carry
from cutwater.spark.jvm.channel_source import ChannelOffset, ChannelSource, ReadOptions
from cutwater.spark.jvm.internals import Internals
from cutwater.store.backends.directories import exists, try_to_remove_tree
from cutwater.store.blobs.blobs import Blobs

_FETCHERS: Final = 4


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Spark as the engine of a pipeline (`runtime.engine`)."""

    internals: Internals

    def build(
        self,
        context: RunContext,
        restore: Restore,
        callbacks: DriverCallbacks,
        on_control: Callable[[ChannelId], None],
        phases: Phases,
    ) -> Built:
        return Build(self.internals, context, restore, callbacks, on_control, phases).run()


@dataclass(slots=True)
class Build:
    """The construction of one generation, from a cut to steps that can be started."""

    internals: Internals
    context: RunContext
    restore: Restore
    callbacks: DriverCallbacks
    on_control: Callable[[ChannelId], None]
    phases: Phases = field(default_factory=Phases)
    _channels: dict[ChannelId, Channel] = field(default_factory=dict)
    _signals: dict[StepId, Signal] = field(default_factory=dict)
    _sources: dict[StepId, list[ChannelSource]] = field(default_factory=dict)
    _analyzed: dict[StepId, AnalyzedStep] = field(default_factory=dict)
    _read: dict[ReaderId, frozenset[str]] = field(default_factory=dict)
    _change: Change | None = None

    def run(self) -> Built:
        """Call the steps' functions, make channels, fetch state, connect everything."""
        kafka = KafkaBrokers(self.internals)
        try:
            return self._run(kafka)
        except BaseException:
            kafka.close()
            raise

    def _run(self, kafka: KafkaBrokers) -> Built:
        self.directory.mkdir(parents=True)
        self._evaluate()
        self._choose_columns()
        self._analyzed = kafka.identify(self._analyzed, self.restore.cut)
        self._map()
        kafka.check_records(self._analyzed, self._cut)
        for step in self.context.plan.steps:
            self._restore(step)
        with self.phases.during(Phase.FETCH):
            self._fetch()
            self._rebuild()
        self._restore_starts()
        self._check_stores()
        topology = self._topology()
        watch = CommitWatch(self.callbacks.failed)
        lag = KafkaWatch(kafka, self._report_kafka)
        steps = {spec.step: self._connect(spec, watch) for spec in topology.steps}
        for running in steps.values():
            if isinstance(running, QueryStep):
                running.follow(lag)

        def close() -> None:
            watch.close()
            lag.close()

        return Built(topology, steps, self._channels, self._standing(), self._change, close)

    def _report_kafka(self, step: ReadsKafka, error: BaseException) -> None:
        assert isinstance(step, QueryStep)
        self.callbacks.failed(step, error)

    @property
    def directory(self) -> Path:
        return generation_directory(self.context.scratch, self.restore.generation)

    @property
    def _blobs(self) -> Blobs:
        return self.context.store.blobs(self.restore.generation, self.context.blob_cache)

    @property
    def _cut(self) -> Cut | None:
        """The cut, mapped to the current steps."""
        return None if self._change is None else self._change.cut

    def _standing(self) -> Standing:
        standing = self.restore.standing
        if self._cut is None:
            return standing
        decided = {step: snapshot.batch for step, snapshot in self._cut.snapshots.items()}
        return replace(standing, decided=decided)

    def _map(self) -> None:
        """Map the cut to the current steps (rule F16)."""
        cut = self.restore.cut
        if cut is None:
            return
        now = {name: analyzed_step.identity for name, analyzed_step in self._analyzed.items()}
        self._change = map_or_refuse(cut, now, self.context.allowed)

    def _topology(self) -> Topology:
        pinned = [
            name for name, analyzed_step in self._analyzed.items() if analyzed_step.pinned_start
        ]
        known = {} if self._cut is None else self._cut.identities
        default = int(str(self.internals.spark.conf.get(PARTITIONS)))
        identities = {}
        for name, analyzed_step in self._analyzed.items():
            identity = known.get(name, analyzed_step.identity)
            if identity.operators and identity.partitions is None:
                identity = replace(identity, partitions=self._count_partitions(name) or default)
            identities[name] = identity
        return self.context.plan.topology(pinned, identities)

    def _count_partitions(self, step: StepId) -> int | None:
        """Return the number of partitions of a query's state, from its own log.

        A manifest of the first versions does not record it. None for a query that has not run.
        """
        batch = NO_BATCH if self._cut is None else self._cut.snapshots[step].batch
        directory = self._query_directory(step)
        if batch == NO_BATCH or not exists(directory):
            return None
        number = query_log.read_batch(directory, batch).settings.get(PARTITIONS, "")
        return int(number) if number.isdecimal() else None

    def _check_stores(self) -> None:
        """Refuse a request to keep existing state elsewhere: Spark would ignore it.

        A query's own log names where its state is kept; a manifest does not.
        """
        cut, refusals = self._cut, []
        for step in self.context.plan.steps:
            requested, directory = step.options.state, self._query_directory(step.name)
            batch = NO_BATCH if cut is None else cut.snapshots[step.name].batch
            if requested is None or batch == NO_BATCH or not exists(directory):
                continue
            kept = query_files.provider_of(directory, batch).store
            if kept != requested and self._analyzed[step.name].is_stateful:
                reason = f"requests state={requested!r}, and its state is kept in {kept}"
                refusals.append(str(Refusal(f"step {step.name}", reason, KEEP_STATE)))
        if cut is not None and refusals:
            raise CodeChanged(cut.checkpoint_id, tuple(refusals))

    # -- calling the functions

    def _evaluate(self) -> None:
        plan, spark = self.context.plan, self.internals.spark
        analysis = Analysis(self.internals, SelfReadCheck.of(plan, spark))
        for step in self.context.plan.steps:
            frames = self._frames(step)
            if frames is None:
                continue
            analyzed_step = analysis.look(step, frames, kept=self._was_by_reference(step.name))
            if analyzed_step is None:
                continue
            self._analyzed[step.name] = analyzed_step
            if step.output is not None:
                channel = self._channel(step, analyzed_step.rows)
                if analyzed_step.by_reference:
                    channel.reference = SourceReference(self.internals, analyzed_step.frame)
                self._channels[step.output.id] = channel
                for reader in step.output.readers:
                    signal = self._signals.setdefault(reader.step, Signal(self.context.tasks))
                    self._channels[step.output.id].subscribe(reader, signal)
        if self.context.available_now:
            analysis.problems += _endless(self.context.plan.steps, self._analyzed)
            # Spark notifies sources only in a query with that trigger, which needs foreign sources.
            for native in (
                source
                for analyzed_step in self._analyzed.values()
                for source in analyzed_step.natives
            ):
                native.prepareForTriggerAvailableNow()
        if analysis.problems:
            raise PlanError(self.context.plan.pipeline, *analysis.problems)

    def _was_by_reference(self, step: StepId) -> bool | None:
        """Return whether a channel was by reference in the cut; None for a step that never ran."""
        cut = self.restore.cut
        if cut is None or step not in cut.snapshots or cut.snapshots[step].batch == NO_BATCH:
            return None
        # Manifests of the first versions have no identities; then all channels held rows.
        return step in cut.identities and cut.identities[step].by_reference

    def _frames(self, step: PhysicalStep) -> Mapping[InputId, DataFrame] | None:
        """Return the step's inputs as streams; None if a producer could not be evaluated."""
        signal = self._signals.setdefault(step.name, Signal(self.context.tasks))
        frames = {}
        for step_input in step.inputs:
            channel = self._channels.get(step_input.id.channel)
            if channel is None:
                return None
            source = ChannelSource(
                self.internals,
                channel,
                ReaderId(step.name, step_input.id),
                signal,
                ReadOptions(step_input.batch_bytes(step.options.max_batch_bytes), step_input.keys),
            )
            self._sources.setdefault(step.name, []).append(source)
            frames[step_input.id] = source.frame()
        return frames

    # -- channels

    def _choose_columns(self) -> None:
        """Let channels carry only the columns that their readers read (docs/adr/0024).

        The channel after a step with state carries every column: the step's output is part of its
        state, and a reader that is added later must not change it. So does the channel after a
        step that would produce other rows if fewer columns were read.
        """
        internals, narrow = self.internals, []
        for step in self.context.plan.steps:
            analyzed_step = self._analyzed[step.name]
            if step.inputs:
                self._read.update(columns_read(internals, analyzed_step.frame))
            if step.output is None or analyzed_step.is_stateful:
                continue
            by_reference = self._channels[step.output.id].reference is not None
            if not by_reference and not rows_depend_on_columns(internals, analyzed_step.frame):
                narrow.append(step.output)
        for channel in narrow:
            if self._read.keys() >= set(channel.readers):
                columns = set[str]().union(*(self._read[reader] for reader in channel.readers))
                carry(self._channels[channel.id], columns)

    def _channel(self, step: PhysicalStep, form: ChannelSchema) -> Channel:
        assert step.output is not None
        log = ChannelLog(step.output.id, dict.fromkeys(step.output.readers, START))
        directory = self.directory / step.name / "channel"
        return Channel(
            log,
            directory,
            form,
            self.context.bound,
            self.on_control,
            tasks=self.context.tasks,
        )

    def _restore(self, step: PhysicalStep) -> None:
        if step.output is None or self._cut is None:
            return
        channel = self._channels[step.output.id]
        with self.phases.during(Phase.FETCH):
            restore_channel(channel, step.output.readers, self._cut, self._blobs)
        for reader in step.output.readers:
            check_in_flight(channel, reader, self._read.get(reader))

    # -- steps

    def _fetch(self) -> None:
        if self._cut is None:
            return
        cut = self._cut
        blobs = self._blobs

        def fetch(step: PhysicalStep) -> None:
            state = cut.snapshots[step.name].state
            if state and self._analyzed[step.name].execution_mode is ExecutionMode.QUERY:
                into = self._query_directory(step.name)
                into.mkdir(parents=True)
                blobs.fetch_tree(state, into)
                query_files.settle(into)
                if self.context.is_fork:
                    # Spark runs one query of an id at a time, and the original may be running.
                    query_log.mint_query_id(into)

        with ThreadPoolExecutor(_FETCHERS, thread_name_prefix="fetch") as pool:
            list(pool.map(fetch, self.context.plan.steps))

    def _rebuild(self) -> None:
        """Rebuild the directories of queries whose inputs have changed."""
        change, cut = self._change, self.restore.cut
        if change is None or cut is None:
            return
        blobs = self._blobs
        old: dict[StepId, Path] = {}

        def directory_of(step: StepId) -> Path:
            """Return where the files of a query of the cut are; fetch them if necessary."""
            if (
                step in self._analyzed
                and self._analyzed[step].execution_mode is ExecutionMode.QUERY
            ):
                return self._query_directory(step)
            if step not in old:
                old[step] = self.directory / ".gone" / step
                blobs.fetch_tree(cut.snapshots[step].state, old[step])
            return old[step]

        changed = []
        for step, lines in change.queries.items():
            giver = next((line.origin for line in lines if line.origin is not None), None)
            donor = None
            if giver is not None:
                donor = donor_of(directory_of(giver), cut.snapshots[giver].batch)
            changed.append(
                ChangedQuery(
                    checkpoint=self._query_directory(step),
                    batch=change.cut.snapshots[step].batch,
                    lines=[_text(line) for line in lines],
                    logs={
                        line.log: directory_of(line.origin) / SOURCES / str(line.origin_log)
                        for line in lines
                        if line.log is not None and line.origin is not None
                    },
                    donor=donor,
                )
            )
        rebuild(changed)
        try_to_remove_tree(self.directory / ".gone")

    # -- where sources began that the cut has no position of (rule F12)

    @property
    def _origin(self) -> CheckpointId:
        """The checkpoint that a source began from; for a rewind, the one that it repeats."""
        cut = self.restore.cut
        if cut is None:
            return NO_CHECKPOINT
        if cut.origin is None:
            return cut.checkpoint_id
        return repeated_checkpoint(self.context.store.log.read(), cut.checkpoint_id, cut.origin)

    def _restore_starts(self) -> None:
        for step, analyzed_step in self._analyzed.items():
            snapshot = None if self._cut is None else self._cut.snapshots[step]
            offsets = {} if snapshot is None else snapshot.offsets
            for line in analyzed_step.kafka:
                identity = analyzed_step.identity.inputs[line]
                if offsets.get(analyzed_step.stream_keys[line], NO_OFFSET) != NO_OFFSET:
                    continue
                start = self.context.store.starts.find(self._origin, step, line, identity)
                log = query_files.source_log(self._query_directory(step), identity.log)
                if start is not None and log is not None:
                    write_start(log, start)

    def _record_start(self, step: StepId, line: int, offsets: str) -> None:
        identity = self._analyzed[step].identity.inputs[line]
        self.context.store.starts.record(self._origin, step, line, identity, offsets)

    def _query_directory(self, step: StepId) -> Path:
        return self.directory / step / "query"

    def _connect(self, spec: StepSpec, watch: CommitWatch) -> RunningStep:
        plan = self.context.plan[spec.step]
        analyzed_step = self._analyzed[spec.step]
        restored = None
        if self._cut is not None:
            restored = Restored.from_snapshot(self._cut.snapshots[spec.step])
        machine = Step(spec, self.context.options, self.restore.generation, restored)
        channel = self._channels.get(spec.output)
        directory = self.directory / spec.step
        directory.mkdir(exist_ok=True)
        wiring = StepConnections(
            inputs={source: self._channels[source.channel] for source in spec.inputs},
            channel=channel,
            output=self._output(spec, channel),
            directory=directory,
            signal=self._signals[spec.step],
            target_batch_ms=self.context.target_batch_ms,
            target_source_ms=self.context.target_batch_ms if self._may_enlarge(plan) else 0,
        )
        if analyzed_step.execution_mode is ExecutionMode.BATCH:
            return BatchStep(plan, machine, wiring, self.callbacks, analyzed_step)
        query = QueryStep(plan, machine, wiring, self.callbacks, analyzed_step)
        query.available_now = self.context.available_now
        query.record_start = partial(self._record_start, spec.step)
        query.connect(self._sources.get(spec.step, ()), watch)
        return query

    def _may_enlarge(self, plan: PhysicalStep) -> bool:
        """Return whether a step may read more of its sources at once than the user's limits say.

        Not if rows reach a sink as they came, and the sink sees their order, or refuses a key that
        occurs twice in a batch: the user may have chosen the limits for that.
        """
        if self._analyzed[plan.name].identity.operators:
            return True
        if plan.sink is not None:
            return not depends_on_batches(plan.sink.target)
        readers = () if plan.output is None else plan.output.readers
        return all(self._may_enlarge(self.context.plan[reader.step]) for reader in readers)

    def _output(self, spec: StepSpec, channel: Channel | None) -> Output:
        if spec.sink is not None:
            return SinkOutput(
                self.context.sinks[SinkId(spec.sink)],
                self.restore.generation,
                self._shows(SinkId(spec.sink)),
            )
        assert channel is not None
        if isinstance(channel.reference, SourceReference):
            return ReferenceOutput(channel, channel.reference)
        return ChannelOutput(channel)

    def _shows(self, sink: SinkId) -> ShowPermit | None:
        """Return the permit of a sink that shows batches; recovery has rolled the sink back."""
        target = self.context.targets.get(sink)
        if target is None or not target.shows_batches:
            return None
        claim = self.restore.standing.slot
        return grant_shows(self.context.pipeline, claim, self.restore.generation)


def _text(line: Line) -> str | None:
    """Return where an input starts, as a line of the offset log; None for the beginning."""
    if line.channel is None:
        return line.text
    source, place = line.channel
    return ChannelOffset(place.position).text(source) if place.position else None


def _endless(steps: Iterable[PhysicalStep], analyzed: Mapping[StepId, AnalyzedStep]) -> list[str]:
    """Find Cutwater sources without an end, in a run that must process what is there and end."""
    return [
        f"{step.sources[0].place}: {step.sources[0].title} has no end, and all that is there "
        "now shall be processed; give it a total."
        for step in steps
        if step.name in analyzed
        and any(not source.has_end for source in analyzed[step.name].natives)
    ]
