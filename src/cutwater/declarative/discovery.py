"""What every flow reads, and what becomes of every dataset, found by calling the flows once.

Only a call shows what a flow reads: names are made by code, and SQL is only text. So every flow is
called in a session, on streams without rows that stand in for the datasets it names. The plan that
comes out says what it really reads, and has everything else that is needed: columns, state, and
whether a materialized view can be kept by a stream. Datasets are discovered in the order in which
flows name them. No query is started (docs/adr/0048).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.declarative.datasets import Dataset, Datasets
from cutwater.declarative.definition_files import line_of, reason_of
from cutwater.declarative.definitions import DatasetKind, FlowDefinition
from cutwater.declarative.evaluation import Evaluation, NotADataFrame
from cutwater.declarative.materialized_views import Keeping, kept_by_stream
from cutwater.declarative.session import EffectRefused, ProjectSession
from cutwater.declarative.table_columns import ColumnsRefused, table_columns
from cutwater.pipeline.nodes import OutputMode
from cutwater.planning.graph import join_names
from cutwater.planning.validation import Problem
from cutwater.spark.analysis.analysis import channel_form
from cutwater.spark.analysis.logical_plan import PlanNode, describe_plan, plan_of
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import native_source
from cutwater.spark.jvm.plans.aggregation_split import aggregated, rows_below


class Way(Enum):
    """How a dataset comes to its rows."""

    STREAM = "stream"
    """Its flows are streams; its readers get its rows by a channel."""
    KEPT = "kept"
    """A materialized view or view over streams: a stream keeps it, and its readers call it."""
    STATIC = "static"
    """It reads no stream at all: it is computed when the pipeline starts."""


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """One flow as its call has shown it.

    Attributes:
        streams: The datasets that it reads as streams, in the order of its plan.
        tables: The datasets of streams that it reads as tables.
        outside: Descriptions of the streams from outside that it reads.
        looked_at: The datasets with a channel that it names and whose rows it does not read: it may
            want their columns.
        is_reproducible: Whether its query gives the same rows whenever it runs.
    """

    flow: FlowDefinition
    streams: tuple[Dataset, ...]
    tables: tuple[Dataset, ...]
    outside: tuple[str, ...]
    looked_at: tuple[Dataset, ...]
    frame: DataFrame
    plan: PlanNode
    is_reproducible: bool

    @property
    def columns(self) -> StructType:
        return self.frame.schema

    @property
    def is_streaming(self) -> bool:
        return bool(self.streams or self.outside)

    @property
    def inputs(self) -> tuple[Dataset, ...]:
        """The datasets whose channels it reads."""
        return self.streams or self.tables

    @property
    def is_stateful(self) -> bool:
        return any(node.state is not None for node in self.plan.walk())


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """One dataset as its flows have shown it.

    Attributes:
        mode: The output mode of its step; complete for an aggregation that is kept by a stream.
        columns: Those of its rows as readers see them.
        is_divided: Whether its joins and its aggregation are two steps.
        query: The text of its query, if a stream keeps it as a table.
    """

    dataset: Dataset
    flows: tuple[FlowFacts, ...]
    way: Way
    columns: StructType
    mode: OutputMode = "append"
    is_divided: bool = False
    query: str | None = None

    @property
    def columns_in_place(self) -> StructType | None:
        """The columns of its table, if readers call its flow instead of reading the table."""
        is_called = self.dataset.kind is DatasetKind.MATERIALIZED_VIEW
        return self.columns if is_called else None

    @property
    def watermark(self) -> tuple[str, str] | None:
        """The column and delay that its readers inherit: views are fused into them, tables not."""
        if self.dataset.kind.is_table:
            return None
        return channel_form(self.flows[0].columns).watermark

    @property
    def has_channel(self) -> bool:
        return self.way is Way.STREAM and self.dataset.kind is not DatasetKind.SINK


class ReadRefused(Exception):
    """A flow reads a dataset in a way that cannot work; raised where it reads."""


class UpstreamFailed(Exception):
    """A flow reads a dataset that has a problem of its own."""


@dataclass(slots=True)
class Discovery:
    """Discovers the datasets of one project."""

    datasets: Datasets
    session: ProjectSession
    internals: Internals
    root: Path
    problems: list[Problem] = field(default_factory=list)
    _found: dict[str, DatasetFacts | None] = field(default_factory=dict)
    _open: list[Dataset] = field(default_factory=list)
    _stand_ins: dict[tuple[str, bool], EmptyBatchSource] = field(default_factory=dict)

    def run(self) -> Mapping[str, DatasetFacts]:
        """Discover everything; `problems` has what cannot work."""
        for dataset in self.datasets.all:
            self._facts(dataset)
        return {key: facts for key, facts in self._found.items() if facts is not None}

    def _facts(self, dataset: Dataset) -> DatasetFacts | None:
        if dataset.key not in self._found:
            self._open.append(dataset)
            try:
                self._found[dataset.key] = self._discover(dataset)
            finally:
                self._open.pop()
        return self._found[dataset.key]

    def _discover(self, dataset: Dataset) -> DatasetFacts | None:
        before = len(self.problems)
        flows = [facts for flow in dataset.flows if (facts := self._call(flow)) is not None]
        if len(flows) < len(dataset.flows) or not flows:
            return None
        made = self._describe(dataset, flows)
        return made if len(self.problems) == before else None

    def _call(self, flow: FlowDefinition) -> FlowFacts | None:
        named: dict[str, Dataset] = {}

        def supply(dataset: Dataset, streaming: bool) -> DataFrame | None:
            frame = self._supply(dataset, streaming)
            if frame is not None:
                named[dataset.key] = dataset
            return frame

        spark = self.internals.spark
        evaluation = Evaluation(self.datasets, self.session, spark, supply, self._columns_in_place)
        try:
            frame = evaluation.call(flow)
        except UpstreamFailed:
            return None
        except (EffectRefused, NotADataFrame, ReadRefused) as error:
            place = line_of(error, self.root, flow.place)
            self.problems.append(Problem(place, f"{flow.title} {error}"))
            return None
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            reason = reason_of(error, self.internals.spark.version)
            place = line_of(error, self.root, flow.place)
            self.problems.append(Problem(place, f"{flow.title} raises {reason}"))
            return None
        return self._look(flow, frame, named)

    def _look(
        self, flow: FlowDefinition, frame: DataFrame, named: Mapping[str, Dataset]
    ) -> FlowFacts:
        plan = plan_of(frame)
        leaves = [leaf.source for leaf in plan.walk() if leaf.source]
        stand_ins = {id(source): key for key, source in self._stand_ins.items()}
        read = [stand_ins.get(id(native_source(source))) for source in leaves]
        streams = dict.fromkeys(_keys(read, streaming=True))
        tables = dict.fromkeys(_keys(read, streaming=False))
        unread = [key for key in named if key not in streams and key not in tables]
        return FlowFacts(
            flow=flow,
            streams=tuple(named[key] for key in streams),
            tables=tuple(named[key] for key in tables),
            looked_at=tuple(named[key] for key in unread),
            outside=tuple(source for source, key in zip(leaves, read, strict=True) if key is None),
            frame=frame,
            plan=plan,
            is_reproducible=self.internals.is_reproducible(frame),
        )

    # -- what flows read

    def _columns_in_place(self, key: str) -> StructType | None:
        facts = self._found.get(key)
        return None if facts is None else facts.columns_in_place

    def _supply(self, dataset: Dataset, streaming: bool) -> DataFrame | None:
        if dataset in self._open:
            cycle = [*self._open[self._open.index(dataset) :], dataset]
            names = " -> ".join(step.key for step in reversed(cycle))
            raise ReadRefused(f"reads its own result: {names}; rows go one way only")
        facts = self._facts(dataset)
        if facts is None:
            raise UpstreamFailed
        self._check_read(facts, streaming=streaming)
        if not facts.has_channel:
            return None
        key = (dataset.key, streaming)
        if key not in self._stand_ins:
            self._stand_ins[key] = EmptyBatchSource(self.internals, facts.columns)
        frame = self._stand_ins[key].frame()
        return frame if facts.watermark is None else frame.withWatermark(*facts.watermark)

    def _check_read(self, facts: DatasetFacts, *, streaming: bool) -> None:
        """Refuse what `spark-pipelines` refuses, and rows that a call would not give again."""
        dataset, is_view = facts.dataset, not facts.dataset.kind.is_table
        if is_view and streaming and facts.way is not Way.STREAM:
            raise ReadRefused(f"reads {dataset.title} as a stream, and it is none; use spark.read")
        if is_view and not streaming and facts.way is Way.STREAM:
            reason = f"reads {dataset.title} as a table, and it is a stream; use spark.readStream"
            raise ReadRefused(reason)
        if dataset.kind is DatasetKind.MATERIALIZED_VIEW:
            if streaming:
                reason = f"reads {dataset.title} as a stream, and its rows are replaced as a whole"
                raise ReadRefused(f"{reason}; use spark.read, or make it a streaming table")
            if not facts.flows[0].is_reproducible:
                reason = f"reads {dataset.title}, whose query gives other rows every time"
                raise ReadRefused(f"{reason}; make it a query of its input alone")

    # -- what becomes of a dataset

    def _describe(self, dataset: Dataset, flows: Sequence[FlowFacts]) -> DatasetFacts | None:
        try:
            columns = table_columns(dataset.definition, [flow.columns for flow in flows])
        except ColumnsRefused as error:
            self.problems.append(Problem(dataset.definition.place, f"{dataset.title} {error}"))
            return None
        if dataset.kind in {DatasetKind.STREAMING_TABLE, DatasetKind.SINK}:
            for facts in flows:
                self._refuse(facts.flow.title, facts, self._stream_reasons(dataset, facts))
            return DatasetFacts(dataset, tuple(flows), Way.STREAM, columns)
        (facts,) = flows
        if dataset.kind is not DatasetKind.MATERIALIZED_VIEW:
            return self._describe_view(dataset, facts, columns)
        if facts.is_streaming:
            reads = join_names([*(read.title for read in facts.streams), *facts.outside])
            reason = f"reads {reads} as a stream, and a materialized view reads tables; use"
            reason = f"{reason} spark.read, or declare a streaming table"
            self._refuse(dataset.title, facts, [reason])
        if not facts.tables:
            return DatasetFacts(dataset, (facts,), Way.STATIC, columns)
        query = describe_plan(facts.frame)
        again = self._call(facts.flow) if facts.is_reproducible else None
        if again is not None and describe_plan(again.frame) != query:
            reason = "is another query every time it is called; leave out what Python computes anew"
            self._refuse(dataset.title, facts, [f"{reason}, such as the current time"])
        keeping = kept_by_stream(facts.plan)
        self._refuse(dataset.title, facts, self._kept_reasons(facts, keeping))
        return DatasetFacts(
            dataset, (facts,), Way.KEPT, columns, keeping.mode, keeping.is_divided, query
        )

    def _describe_view(
        self, dataset: Dataset, facts: FlowFacts, columns: StructType
    ) -> DatasetFacts:
        if dataset.kind is DatasetKind.VIEW and facts.is_streaming:
            reason = "reads a stream, and a view of the catalog cannot; make it a temporary view"
            self._refuse(dataset.title, facts, [reason])
        if facts.is_streaming:
            self._refuse(dataset.title, facts, _mixed_reasons(facts))
            return DatasetFacts(dataset, (facts,), Way.STREAM, columns)
        return DatasetFacts(dataset, (facts,), Way.KEPT if facts.tables else Way.STATIC, columns)

    def _stream_reasons(self, dataset: Dataset, facts: FlowFacts) -> Iterator[str]:
        if not facts.is_streaming:
            if facts.tables:
                names = join_names(read.key for read in facts.tables)
                yield f"reads {names} as a table; use spark.readStream, or STREAM in SQL"
            else:
                yield (
                    f"returns rows that are no stream, and {dataset.title} takes streams; use "
                    "spark.readStream, or declare a materialized view"
                )
            return
        yield from _mixed_reasons(facts)
        reason = self._why_no_stream(facts.frame, "append")
        if reason is not None:
            yield f"cannot run as a stream: {reason}"

    def _kept_reasons(self, facts: FlowFacts, keeping: Keeping) -> list[str]:
        found = list(keeping.reasons)
        if not facts.is_reproducible:
            found.append("its query gives other rows every time it runs")
        if not found:
            parts = self._divide(facts.frame) if keeping.is_divided else [facts.frame]
            *first, last = parts
            refused = [self._why_no_stream(part, "append") for part in first]
            refused.append(self._why_no_stream(last, keeping.mode))
            found += filter(None, refused)
        names = join_names(read.key for read in facts.tables)
        return [
            f"cannot be kept by the stream of {names} with exactly the rows of a recomputation: "
            f"{reason}"
            for reason in found
        ]

    def _divide(self, frame: DataFrame) -> list[DataFrame]:
        rows = rows_below(self.internals, frame)
        stand_in = EmptyBatchSource(self.internals, rows.schema)
        return [rows, aggregated(self.internals, frame, stand_in.frame())]

    def _why_no_stream(self, frame: DataFrame, mode: OutputMode) -> str | None:
        reason = self.internals.check_streaming(frame, mode)
        return None if reason is None else reason.split(" SQLSTATE", 1)[0].rstrip(".; ")

    def _refuse(self, title: str, facts: FlowFacts, reasons: Iterable[str]) -> None:
        self.problems += [Problem(facts.flow.place, f"{title} {reason}") for reason in reasons]


def _keys(read: Sequence[tuple[str, bool] | None], *, streaming: bool) -> Iterator[str]:
    for key in read:
        if key is not None and key[1] is streaming:
            yield key[0]


def _mixed_reasons(facts: FlowFacts) -> Iterator[str]:
    """Yield why a stream cannot have the inputs that it has."""
    if facts.tables:
        names = join_names(read.key for read in facts.tables)
        yield (
            f"reads {names} as a table beside a stream: what it finds there would depend on when "
            "it looks, and is in no checkpoint; use spark.readStream"
        )
    if facts.streams and facts.outside:
        names = join_names(read.key for read in facts.streams)
        yield (
            f"reads {names} and a stream from outside ({join_names(facts.outside)}), and a step "
            "reads one or the other; give the stream from outside a temporary view of its own"
        )
