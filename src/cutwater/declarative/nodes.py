"""The nodes that the datasets of a project become.

A flow becomes a source if it reads streams from outside, a step if it keeps state, and a view
otherwise. Several flows into one table are a union. A table and a sink become a sink of their own
name; a flow of the same name is called `NAME-flow`. A temporary view is a node only if a stream
reads it; everything else that is read in place is called by its reader (`evaluation`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.declarative.datasets import Dataset, Datasets
from cutwater.declarative.definitions import DatasetKind, FlowDefinition
from cutwater.declarative.discovery import DatasetFacts, FlowFacts, ReadRefused, Way
from cutwater.declarative.evaluation import Evaluation, conformed
from cutwater.declarative.session import ProjectSession
from cutwater.pipeline.nodes import (
    Binding,
    Function,
    FunctionSignature,
    Kind,
    Node,
    SinkTarget,
    StepOptions,
    same,
)
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.aggregation_split import aggregated, rows_below
from cutwater.spark.jvm.plans.static_source import StaticSource


@dataclass(frozen=True, slots=True)
class CalledFlow:
    """The function of a node that calls a flow.

    Attributes:
        channels: For every dataset that has a channel, the node that fills it.
        looked_at: The columns of datasets that the flow names without reading their rows.
        in_place: The columns of tables whose flows are called by their readers.
        columns: Those of the table that the flow writes to; None for a view, whose rows pass on as
            they are, with their watermark.
        partitions: The columns that the table is divided by.
    """

    datasets: Datasets
    session: ProjectSession
    flow: FlowDefinition
    channels: Mapping[str, str]
    looked_at: Mapping[str, StructType]
    in_place: Mapping[str, StructType]
    columns: StructType | None
    partitions: tuple[str, ...] = ()

    def __call__(self, spark: SparkSession, **frames: DataFrame) -> DataFrame:
        def supply(dataset: Dataset, streaming: bool) -> DataFrame | None:  # noqa: ARG001
            node = self.channels.get(dataset.key)
            if node is None or node in frames:
                return None if node is None else frames[node]
            if dataset.key in self.looked_at:
                return Internals(spark).no_rows(self.looked_at[dataset.key])
            reason = "did not when the pipeline was planned; a flow reads the same every time"
            raise ReadRefused(f"reads {dataset.title} now, and {reason}")

        evaluation = Evaluation(self.datasets, self.session, spark, supply, self.in_place.get)
        frame = evaluation.call(self.flow)
        return frame if self.columns is None else conformed(frame, self.columns, self.partitions)


@dataclass(frozen=True, slots=True)
class ComputedOnce:
    """The function of a source that computes a table when the pipeline starts."""

    name: str
    call: CalledFlow

    def __call__(self, spark: SparkSession) -> DataFrame:
        return StaticSource(Internals(spark), lambda: self.call(spark), self.name).frame()


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The function of a step that joins streams for an aggregation."""

    call: CalledFlow

    def __call__(self, spark: SparkSession, **frames: DataFrame) -> DataFrame:
        return rows_below(Internals(spark), self.call(spark, **frames))


@dataclass(frozen=True, slots=True)
class AggregatedRows:
    """The function of a step that aggregates the rows of `JoinedRows`.

    Attributes:
        inputs: The columns of the datasets that the flow reads, by their nodes: the flow is called
            for its plan alone.
    """

    call: CalledFlow
    inputs: Mapping[str, StructType]
    columns: StructType
    partitions: tuple[str, ...]

    def __call__(self, spark: SparkSession, **frames: DataFrame) -> DataFrame:
        internals = Internals(spark)
        sources = {
            node: EmptyBatchSource(internals, columns) for node, columns in self.inputs.items()
        }
        described = self.call(spark, **{node: source.frame() for node, source in sources.items()})
        (rows,) = frames.values()
        result = aggregated(internals, described, rows)
        return conformed(result, self.columns, self.partitions)


@dataclass(frozen=True, slots=True)
class UnitedFlows:
    """The function of a view that has the rows of all flows of one table."""

    def __call__(self, **frames: DataFrame) -> DataFrame:
        first, *others = frames.values()
        for other in others:
            first = first.unionByName(other)
        return first


@dataclass(frozen=True, slots=True)
class ProjectNodes:
    """Makes the nodes of a project from what was discovered."""

    datasets: Datasets
    session: ProjectSession
    facts: Mapping[str, DatasetFacts]
    targets: Mapping[str, SinkTarget]

    def all(self) -> Iterator[Node]:
        """Return the nodes of all tables and sinks, and of what they read."""
        written = [facts for facts in self.facts.values() if facts.dataset.key in self.targets]
        needed = [key for facts in written for flow in facts.flows for key in self._reads(flow)]
        views: dict[str, None] = {}
        while needed:
            key = needed.pop()
            if key not in views and key not in self.targets:
                views[key] = None
                needed += [read for flow in self.facts[key].flows for read in self._reads(flow)]
        for key in views:
            yield from self._flows(self.facts[key])
        for facts in written:
            yield from self._divided(facts) if facts.is_divided else self._flows(facts)
            yield self._sink(facts)

    @staticmethod
    def _reads(flow: FlowFacts) -> list[str]:
        return [dataset.key for dataset in flow.inputs]

    def _rows(self, facts: DatasetFacts) -> str:
        """Return the name of the node that has the rows of a dataset."""
        dataset = facts.dataset
        if dataset.key not in self.targets:
            return dataset.key
        if len(facts.flows) > 1:
            return f"{dataset.key}-flows"
        return dataset.flow_key(facts.flows[0].flow)

    @property
    def _channels(self) -> dict[str, str]:
        return {key: self._rows(facts) for key, facts in self.facts.items() if facts.has_channel}

    def _flows(self, facts: DatasetFacts) -> Iterator[Node]:
        dataset = facts.dataset
        for flow in facts.flows:
            is_only = len(facts.flows) == 1
            name = self._rows(facts) if is_only else dataset.flow_key(flow.flow)
            yield self._flow(name, facts, flow)
        if len(facts.flows) > 1:
            inputs = tuple(
                Binding(name, name)
                for name in (dataset.flow_key(flow.flow) for flow in facts.flows)
            )
            yield Node(
                self._rows(facts),
                Kind.VIEW,
                UnitedFlows(),
                FunctionSignature(inputs=inputs),
                dataset.definition.place,
                StepOptions(),
                None,
            )

    def _divided(self, facts: DatasetFacts) -> Iterator[Node]:
        """Return the two steps of a view that aggregates a join."""
        (flow,), dataset, channels = facts.flows, facts.dataset, self._channels
        name, place = f"{dataset.key}-join", flow.flow.place
        call = self._call(flow, None)
        columns = {channels[read.key]: self.facts[read.key].columns for read in flow.inputs}
        yield Node(
            name, Kind.STEP, JoinedRows(call), _signature(*columns), place, StepOptions(), None
        )
        yield Node(
            self._rows(facts),
            Kind.STEP,
            AggregatedRows(call, columns, facts.columns, dataset.definition.partition_columns),
            _signature(name),
            place,
            StepOptions(output_mode=facts.mode),
            None,
        )

    def _flow(self, name: str, facts: DatasetFacts, flow: FlowFacts) -> Node:
        channels, is_view = self._channels, facts.dataset.key not in self.targets
        partitions = facts.dataset.definition.partition_columns
        call = self._call(flow, None if is_view else facts.columns, partitions)
        function: Function = call
        kind, options = Kind.VIEW, StepOptions()
        if facts.way is Way.STATIC:
            kind, function = Kind.SOURCE, ComputedOnce(name, call)
        elif flow.outside:
            # A source with state is a step of its own, so that its state keeps its name.
            kind, options = Kind.SOURCE, StepOptions(chain=not flow.is_stateful)
        elif flow.is_stateful and not is_view:
            kind, options = Kind.STEP, StepOptions(output_mode=facts.mode)
        signature = _signature(*(channels[read.key] for read in flow.inputs))
        return Node(name, kind, function, signature, flow.flow.place, options, None)

    def _call(
        self, flow: FlowFacts, columns: StructType | None, partitions: tuple[str, ...] = ()
    ) -> CalledFlow:
        looked_at = {found.key: self.facts[found.key].columns for found in flow.looked_at}
        in_place = {
            key: facts.columns_in_place
            for key, facts in self.facts.items()
            if facts.columns_in_place is not None
        }
        return CalledFlow(
            self.datasets,
            self.session,
            flow.flow,
            self._channels,
            looked_at,
            in_place,
            columns,
            partitions,
        )

    def _sink(self, facts: DatasetFacts) -> Node:
        dataset = facts.dataset
        return Node(
            dataset.key,
            Kind.SINK,
            same,
            FunctionSignature(inputs=(Binding("frame", self._rows(facts)),)),
            dataset.definition.place,
            StepOptions(),
            self.targets[dataset.key],
        )


def _signature(*nodes: str) -> FunctionSignature:
    """Return the signature of a function that gets the session, and each node by its name."""
    return FunctionSignature(tuple(Binding(node, node) for node in nodes), wants_spark=True)


def is_written(dataset: Dataset) -> bool:
    return dataset.kind.is_table or dataset.kind is DatasetKind.SINK
