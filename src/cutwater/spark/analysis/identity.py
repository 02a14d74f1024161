"""What a step is, from its analysed plan: the identity that a manifest holds (rule F16).

Built while a step is analysed, from Spark's plan and the nodes of the pipeline.
`protocol.evolution.mapping` compares it with the identity in a checkpoint.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.evolution.identity import (
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
)
from cutwater.spark.analysis.kafka_options import identifying, read_kafka
from cutwater.spark.analysis.logical_plan import PlanNode, without_serials
from cutwater.spark.jvm.channel_source import ChannelSource
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.native_source import native_source

_PACE: Final = ("max", "min", "latestfirst")
"""Prefixes of options that set how fast a source is read, not what is read."""

_PLACES: Final = ("path", "subscribe", "subscribepattern", "assign", "topic", "table")


def identify(
    step: PhysicalStep, frame: DataFrame, plan: PlanNode, names: Mapping[str, str], *, query: bool
) -> StepIdentity:
    """Identify a step; `names` has the node that reads each source in the plan."""
    nodes = plan.walk()
    leaves = [node for node in nodes if node.source]
    operators = tuple(_operator(node, names) for node in nodes if node.state is not None)
    logs: dict[str, int] = {}
    return StepIdentity(
        inputs=tuple(_input(leaf, names, logs) for leaf in leaves),
        columns=tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields),
        operators=operators,
        partitions=step.options.partitions if operators else None,
        is_query=query,
        sources=tuple(source.name for source in step.sources),
        sinks=(step.sink.name,) if step.sink else (),
        spark=frame.sparkSession.version,
        plan_sha256=_digest(without_serials(plan.text)),
    )


def origins(plan: PlanNode, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the outside sources that rows come from, through all channels, by name."""
    found: set[str] = set()
    for leaf in plan.walk():
        native = native_source(leaf.source) if leaf.source else None
        if isinstance(native, ChannelSource):
            found.update(native.channel.form.origins)
        elif leaf.source in names:
            found.add(names[leaf.source])
    return tuple(sorted(found))


def _operator(node: PlanNode, names: Mapping[str, str]) -> OperatorIdentity:
    state = node.state
    assert state is not None
    sides = tuple(origins(child, names) for child in node.children) if state.is_join else ()
    return OperatorIdentity(node.kind, state.keys, state.windows, state.layout, state.values, sides)


def _input(leaf: PlanNode, names: Mapping[str, str], logs: dict[str, int]) -> InputIdentity:
    native = native_source(leaf.source)
    if isinstance(native, ChannelSource):
        ordinal, channel = native.reader.input
        return InputIdentity(InputKind.CHANNEL, channel, ordinal)
    if isinstance(native, EmptyBatchSource):
        return InputIdentity(InputKind.PULSE, "pulse")
    name = names.get(leaf.source, leaf.source)
    if native is not None:
        described = native.describe()
        return InputIdentity(InputKind.SOURCE, name, 0, described, described, _digest(described))
    options = {
        key.lower(): value for key, value in leaf.options if not key.lower().startswith(_PACE)
    }
    kafka = read_kafka(leaf.options)
    options = dict(identifying(options))
    places = [options[key] for key in _PLACES if key in options and options[key] not in leaf.source]
    return InputIdentity(
        InputKind.SOURCE,
        name,
        format=leaf.source.partition("[")[0],
        place=" ".join([leaf.source, *places]),
        settings=_digest(json.dumps([leaf.source, sorted(options.items())])),
        # Spark numbers its own sources alone, and one that is read twice only once.
        log=logs.setdefault(leaf.relation, len(logs)),
        servers="" if kafka is None else kafka.servers,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
