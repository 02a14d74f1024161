"""The analysis of a step by Spark, after its functions were called: its rows, and how it can run.

The declared graph has names; only the analysed plan has columns, watermarks and operators. A step
runs as plain batch jobs if it reads only channels and every node of its plan may run in a batch
job; any other step is a streaming query (rule F34). A step that cannot work is reported here,
before anything starts, with its function and line.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.errors import CutwaterError
from cutwater.ids import InputId, SinkId
from cutwater.pipeline.nodes import Kind, Node
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.runtime.channel import ChannelSchema
from cutwater.runtime.reporting.failed_batch import cause_of, failing_place, named_node
from cutwater.sinks.base import SelectiveTarget
from cutwater.sinks.columns import nullable
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.column_pruning import find_unstorable_columns
from cutwater.spark.analysis.identity import identify, origins
from cutwater.spark.analysis.kafka_options import KafkaSource, read_kafka
from cutwater.spark.analysis.logical_plan import WATERMARK_DELAY, PlanNode, plan_of
from cutwater.spark.analysis.self_reads import SelfReadCheck
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind
from cutwater.spark.engine.input_watermarks import EventTime
from cutwater.spark.jvm.by_reference.source_reference import (
    reads_kafka,
    why_not_by_reference,
)
from cutwater.spark.jvm.channel_scan import columns_of
from cutwater.spark.jvm.channel_source import ChannelSource
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, native_source
from cutwater.spark.versions import explain_error, refused_nodes

_READERS_BY_REFERENCE_MAX: Final = 4
"""With more readers, the rows of a source are written once instead of read by each of them."""

_FORGETFUL: Final = ("textsocket", "socket", "memory")


class ExecutionMode(Enum):
    QUERY = "query"
    """A Spark streaming query, with its own checkpoint directory."""
    BATCH = "batch"
    """Plain batch jobs over ranges of its channels; its whole state is its positions."""


@dataclass(frozen=True, slots=True)
class AnalyzedStep:
    """A step as Spark sees it.

    Attributes:
        has_watermark: Whether event time moves in it.
        natives: Those of its outside sources that Cutwater implements.
        foreign: Descriptions of all other outside sources.
        pinned_start: Whether a restart before its first batch begins at the same place (F12).
        streams: For each outside stream, in the order of its query's offset log, the source node
            that reads it.
        lines: What each line of that log is.
        kafka: The Kafka sources among its streams, by the number of their line.
        event_times: Its `withWatermark` calls, in the order of the plan, by Spark's ids.
        by_reference: Whether its channel names the files of its source instead of holding rows.
        why_by_reference: Why, or why not; empty if its channel could only hold rows.
    """

    frame: DataFrame
    rows: ChannelSchema
    execution_mode: ExecutionMode
    is_stateful: bool
    has_watermark: bool
    natives: tuple[NativeSource, ...] = ()
    foreign: tuple[str, ...] = ()
    pinned_start: bool = True
    streams: tuple[str, ...] = ()
    lines: tuple[Stream, ...] = ()
    kafka: Mapping[int, KafkaSource] = field(default_factory=dict)
    event_times: Mapping[str, EventTime] = field(default_factory=dict)
    identity: StepIdentity = field(default_factory=StepIdentity)
    by_reference: bool = False
    why_by_reference: str = ""

    @property
    def schema(self) -> StructType:
        return columns_of(self.rows.schema)

    @property
    def stream_keys(self) -> tuple[str, ...]:
        """The streams by number and name, which identify offsets (rule F16)."""
        return tuple(f"{at}:{name}" for at, name in enumerate(self.streams))

    @property
    def may_owe_batch(self) -> bool:
        """Whether a batch without data may become due: event-time state may have to be emitted."""
        return self.is_stateful and self.has_watermark


@dataclass(slots=True)
class Analysis:
    """Analyses steps, one after the other, and collects their problems."""

    internals: Internals
    own: SelfReadCheck
    problems: list[str] = field(default_factory=list)

    def look(
        self,
        step: PhysicalStep,
        frames: Mapping[InputId, DataFrame],
        *,
        kept: bool | None = None,
    ) -> AnalyzedStep | None:
        """Call the step's functions on streams; None for a problem, which `problems` then has.

        `kept` is whether its channel was by reference in the checkpoint that is restored; None for
        a step that starts from nothing.
        """
        before = len(self.problems)
        names: dict[str, str] = {}
        made: list[tuple[Node, DataFrame]] = []
        try:
            frame = step.evaluate(self.internals.spark, frames, partial(self._note, names, made))
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            why = explain_error(error, self.internals.spark.version)
            text = f"{_describe_error(error)}: {why}" if why else _describe_error(error)
            self._add(*failing_place(step, error), text)
            return None
        named = named_node(step)
        where = (str(named.place), named.title)
        if not isinstance(frame, DataFrame):
            self._add(*where, f"returns {type(frame).__name__}, not a DataFrame")
            return None
        if not frame.isStreaming:
            self._add(*where, "returns a DataFrame that is not streaming; read with readStream")
            return None
        plan = plan_of(frame)
        reason = self.internals.check_streaming(frame, step.output_mode)
        if reason is not None:
            self._add(*where, f"cannot run as a stream: {reason}")
        refused = refused_nodes(self.internals.spark.version)
        for kind in sorted({node.kind for node in plan.walk() if node.is_streaming} & set(refused)):
            self._add(*where, f"cannot run here: {refused[kind]}")
        if step.options.state == "memory":
            for kind in sorted({node.kind for node in plan.walk()} & plan_nodes.NEEDS_ROCKSDB):
                self._add(*where, f"has state='memory', and {kind} needs rocksdb; leave it out")
        reference = self._choose_reference(step, frame, kept=kept)
        self._check_columns(where, frame.schema)
        self._check_sources(step, plan)
        self._check_reads(plan, made)
        analyzed = _describe_step(step, frame, plan, names)
        if reference[1]:
            analyzed = replace(
                analyzed,
                by_reference=reference[0],
                why_by_reference=reference[1],
                identity=replace(analyzed.identity, by_reference=reference[0]),
            )
        self._check_groups(step, analyzed)
        self._check_watermarks(where, plan, is_stateful=analyzed.is_stateful)
        if len(self.problems) == before:
            self._check_sink(step, frame.schema)
        if len(self.problems) > before:
            return None
        if step.sources and analyzed.may_owe_batch:
            return self._with_empty_batch_source(step)
        return analyzed

    def _note(
        self, names: dict[str, str], made: list[tuple[Node, DataFrame]], node: Node, frame: object
    ) -> object:
        """Record the result of a node, and for a source also the names of its streams."""
        if isinstance(frame, DataFrame):
            made.append((node, frame))
            for leaf in plan_of(frame).walk() if node.kind is Kind.SOURCE else ():
                if leaf.source:
                    names[leaf.source] = node.name
        return frame

    def _with_empty_batch_source(self, step: PhysicalStep) -> AnalyzedStep:
        """Call the functions again, with a source that can make an owed batch run (F22)."""
        names: dict[str, str] = {}

        def add_source(node: Node, frame: object) -> object:
            assert isinstance(frame, DataFrame)
            self._note(names, [], node, frame)
            if node is not step.sources[0]:
                return frame
            return frame.unionByName(EmptyBatchSource(self.internals, frame.schema).frame())

        frame = step.evaluate(self.internals.spark, {}, add_source)
        assert isinstance(frame, DataFrame)
        return _describe_step(step, frame, plan_of(frame), names)

    def _add(self, place: str, title: str, reason: str) -> None:
        self.problems.append(f"{place}: {title} {reason}.")

    def _choose_reference(
        self, step: PhysicalStep, frame: DataFrame, *, kept: bool | None
    ) -> tuple[bool, str]:
        """Return whether a step's channel names the files of its source, and why or why not.

        A channel by reference whose readers would not see the same rows is a problem if the user
        requests it.
        """
        if step.output is None or not step.passes_source_on:
            return False, ""
        source = step.sources[0]
        requested = source.options.materialize
        if requested is True:
            return False, "materialize=True"
        if requested is None and kept is None and reads_kafka(frame):
            return False, "each reader would read the source again; materialize=False requests it"
        reason = why_not_by_reference(self.internals, frame, kept=kept is True)
        readers = [reader.step for reader in step.output.readers]
        twice = next((reader for reader in readers if readers.count(reader) > 1), None)
        if reason is None and twice is not None:
            reason = f"is read twice by step {twice}"
        if requested is False:
            if reason is not None:
                text = f"has materialize=False, and it {reason}; leave materialize out"
                self._add(str(source.place), source.title, text)
            return True, "materialize=False"
        if reason is None and kept is not None:
            return kept, "the last checkpoint has it so"
        if reason is None and len(readers) > _READERS_BY_REFERENCE_MAX:
            reason = f"has {len(readers)} readers, each of which would read its files"
        if reason is None and self.internals.calls_functions(frame):
            reason = "calls a function of the user, which would run once for every reader"
        if reason is not None:
            return False, f"the source {reason}"
        return True, "reading them again costs less than writing the rows"

    def _check_groups(self, step: PhysicalStep, analyzed: AnalyzedStep) -> None:
        reads_kafka = {analyzed.streams[line] for line in analyzed.kafka}
        for node in step.sources:
            group = node.options.consumer_group
            if group is not None and node.name not in reads_kafka:
                text = f"has consumer_group={group!r} and reads no topic of Kafka; leave it out"
                self._add(str(node.place), node.title, text)

    def _check_columns(self, where: tuple[str, str], schema: StructType) -> None:
        if not schema.fields:
            self._add(*where, "gives no columns; select some")
        names: dict[str, str] = {}
        for column in schema.fields:
            same = names.setdefault(column.name.lower(), column.name)
            if same is not column.name:
                self._add(*where, f"gives two columns called {same}; rename one of them")
        for name, kind in find_unstorable_columns(self.internals, schema):
            reason = f"gives column {name} of type {kind}, which Parquet cannot hold"
            self._add(*where, f"{reason}; cast it to another")

    def _check_sink(self, step: PhysicalStep, schema: StructType) -> None:
        """Let the sink report rows that no target of its kind can hold, before anything runs."""
        node = step.sink
        target: object = None if node is None else node.target
        if node is None or not isinstance(target, SelectiveTarget):
            return
        with suppress(CutwaterError):
            # A missing package is reported when the target is opened.
            problem = target.check_rows(SinkId(node.name), schema)
            if problem is not None:
                self.problems.append(f"{node.place}: sink {node.name}: {problem}")

    def _check_sources(self, step: PhysicalStep, plan: PlanNode) -> None:
        """Refuse sources that forget what they have read before a cut covers it (rule F12)."""
        for leaf in plan.walk():
            options = {key.lower(): value.lower() for key, value in leaf.options}
            node = step.sources[0] if step.sources else step.nodes[0]
            where = (str(node.place), node.title)
            if leaf.source.lower().startswith(_FORGETFUL):
                self._add(
                    *where, f"reads {leaf.source}, which cannot be read again after a restart"
                )
            clean = options.get("cleansource", "off")
            if clean != "off":
                self._add(
                    *where,
                    f"has cleanSource={clean}: files would be gone before a checkpoint covers "
                    "them; leave it off",
                )

    def _check_reads(self, plan: PlanNode, made: Sequence[tuple[Node, DataFrame]]) -> None:
        """Refuse to read what a sink of this pipeline writes: no cut covers it (rule F40)."""
        for path in sorted({read_path for node in plan.walk() for read_path in node.reads}):
            writer = self.own.writer_of(path)
            if writer is None:
                continue
            reads = (
                maker
                for maker, frame in made
                if any(path in node.reads for node in plan_of(frame).walk())
            )
            reader = next(reads)
            self._add(
                str(reader.place),
                reader.title,
                f"reads {path}, which {writer.title} ({writer.place}) writes: what it finds there "
                f"would depend on when it looks, and is in no checkpoint; read "
                f"{writer.inputs[0].node} itself, or let another pipeline read the table",
            )

    def _check_watermarks(
        self, where: tuple[str, str], plan: PlanNode, *, is_stateful: bool
    ) -> None:
        """Refuse event time over several channels: holding one would make its rows late (F9)."""
        for node in plan.walk():
            if node.kind != plan_nodes.WATERMARK:
                continue
            channels = _channels_below(node)
            merged = next((source.channel.form.merged_by for source in channels), "")
            if len(channels) > 1:
                self._add(
                    *where,
                    "sets a watermark above several channels, so that rows of the slower one "
                    "would be dropped as late; set the watermark on each input",
                )
            elif merged and is_stateful:
                self._add(
                    *where,
                    f"keeps event-time state over {channels[0].channel.id}, which step {merged} "
                    "merges from several inputs: a watermark cannot follow the slower one "
                    f"through a channel; do this work in {merged}, with a watermark on each input",
                )


def _channels_below(node: PlanNode) -> list[ChannelSource]:
    found = (native_source(leaf.source) for leaf in node.walk() if leaf.source)
    return [source for source in found if isinstance(source, ChannelSource)]


def _describe_error(error: BaseException) -> str:
    """Return its kind and its message in one line; for an error of Java, the innermost cause."""
    if isinstance(error, Py4JJavaError):
        # Its own first line only names the Java method that was called.
        return f"raises {cause_of(error)[1]}".rstrip(". ")
    text = str(error).strip().split("\n", 1)[0]
    if isinstance(error, PySparkException):
        text = text.split(" SQLSTATE", 1)[0]
    return f"raises {type(error).__name__}: {text}".rstrip(". ")


def _describe_step(
    step: PhysicalStep, frame: DataFrame, plan: PlanNode, names: Mapping[str, str]
) -> AnalyzedStep:
    nodes = plan.walk()
    leaves = [node for node in nodes if not node.children]
    natives = [native_source(leaf.source) for leaf in leaves if leaf.source]
    outside = [
        native for native in natives if native is not None and not isinstance(native, ChannelSource)
    ]
    foreign = [
        leaf.source
        for leaf, native in zip([leaf for leaf in leaves if leaf.source], natives, strict=True)
        if native is None
    ]
    only_channels = all(isinstance(native_source(leaf.source), ChannelSource) for leaf in leaves)
    stateless = all(
        node.kind in plan_nodes.RUNS_IN_BATCH and not node.has_subquery for node in nodes
    )
    mode = (
        ExecutionMode.BATCH if step.inputs and only_channels and stateless else ExecutionMode.QUERY
    )
    streaming_joins = any(
        node.kind == plan_nodes.JOIN and all(child.is_streaming for child in node.children)
        for node in nodes
    )
    stateful = streaming_joins or any(
        node.is_streaming
        and node.kind not in plan_nodes.RUNS_IN_BATCH | {plan_nodes.JOIN}
        and node.children
        for node in nodes
    )
    return AnalyzedStep(
        frame=frame,
        rows=replace(
            channel_form(frame.schema),
            merged_by=_merged_by(step, plan),
            origins=origins(plan, names),
        ),
        execution_mode=mode,
        is_stateful=bool(stateful),
        has_watermark=any(node.kind == plan_nodes.WATERMARK for node in nodes),
        natives=tuple(outside),
        foreign=tuple(foreign),
        pinned_start=all(source.startswith("FileSource") for source in foreign),
        streams=tuple(names.get(leaf.source, "pulse") for leaf in leaves if leaf.source),
        lines=tuple(_line(leaf.source, names) for leaf in leaves if leaf.source),
        kafka=_kafka_sources([leaf for leaf in leaves if leaf.source]),
        event_times=_event_times(plan, names),
        identity=identify(step, frame, plan, names, query=mode is ExecutionMode.QUERY),
    )


def _kafka_sources(leaves: Sequence[PlanNode]) -> dict[int, KafkaSource]:
    found = ((at, read_kafka(leaf.options)) for at, leaf in enumerate(leaves))
    return {at: source for at, source in found if source is not None}


def _event_times(plan: PlanNode, names: Mapping[str, str]) -> dict[str, EventTime]:
    found: dict[str, EventTime] = {}
    for node in plan.walk():
        if node.watermark is not None and node.is_streaming:
            call = node.watermark
            streams = (_stream_name(leaf.source, names) for leaf in node.walk() if leaf.source)
            # A frame that is used twice is one call.
            found.setdefault(
                call.id,
                EventTime(
                    call.column, call.delay_ms, tuple(filter(None, streams)), origins(node, names)
                ),
            )
    return found


def _stream_name(source: str, names: Mapping[str, str]) -> str:
    """Return a name that a stream keeps after a restart; empty for an empty-batch source."""
    native = native_source(source)
    if isinstance(native, ChannelSource):
        return f"{native.channel.id}/{native.reader.input.ordinal}"
    return "" if isinstance(native, EmptyBatchSource) else names.get(source, source)


def _line(source: str, names: Mapping[str, str]) -> Stream:
    native = native_source(source)
    if isinstance(native, ChannelSource):
        return Stream(native.channel.id, StreamKind.CHANNEL)
    if isinstance(native, EmptyBatchSource):
        return Stream(native.describe(), StreamKind.PULSE)
    name = names.get(source, source)
    if native is None:
        return Stream(name, StreamKind.OUTSIDE, source)
    return Stream(name, StreamKind.OWN, native.describe())


def _merged_by(step: PhysicalStep, plan: PlanNode) -> str:
    if len(step.inputs) > 1 or _sets_watermarks(plan) > 1:
        return step.name
    return next((source.channel.form.merged_by for source in _channels_below(plan)), "")


def _sets_watermarks(plan: PlanNode) -> int:
    """Return of how many streams a step follows the event time; they may be at different times."""
    return sum(node.kind == plan_nodes.WATERMARK for node in plan.walk())


def channel_form(schema: StructType) -> ChannelSchema:
    """Return the form of a channel that carries such rows.

    Spark keeps a watermark in a column's metadata, and accepts none from a source. So the column
    and its delay are recorded, every reader applies them again, and the metadata is left out.
    """
    stripped = nullable(schema)
    for column in schema.fields:
        delay = column.metadata.get(WATERMARK_DELAY)
        if delay is not None:
            return ChannelSchema(stripped, (column.name, f"{delay} milliseconds"))
    return ChannelSchema(stripped)
