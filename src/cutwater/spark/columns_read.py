"""Which columns of its channels a step reads, as Spark's own optimizer says.

The optimizer lets through what is needed and nothing else: above what reads a channel it puts a
projection wherever some columns are not. What it has not put one above, needs all of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from cutwater.ids import ReaderId
from cutwater.physical_plan import PhysicalStep
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.internals import Internals
from cutwater.spark.native_source import native_source
from cutwater.spark.plan_nodes import plan_of

_NARROWS: Final = ("Project", "Aggregate")
"""Nodes that need of their input what they mention, and nothing else."""


def columns_read(
    internals: Internals, step: PhysicalStep, frame: DataFrame
) -> Mapping[ReaderId, frozenset[str]]:
    """Return the columns that a step's result needs of each of its inputs; empty if not known."""
    if any(node.has_subquery for node in plan_of(frame).walk()):
        # What a subquery mentions does not count as mentioned by the node that holds it.
        return {}
    analysed = frame._jdf.queryExecution().analyzed()
    try:
        plan = internals.session.sessionState().optimizer().execute(analysed)
    except Py4JJavaError:
        # Whether the step can run is for Spark to say when it runs it, with the reason.
        return {}
    found = {ReaderId(step.name, one.id): frozenset(one.keys) for one in step.inputs}
    for reader, columns in _leaves(plan, dict(_columns(plan.output()))):
        # A channel that a step uses twice is there twice.
        found[reader] |= columns
    return found


def _leaves(plan: Any, needed: Mapping[int, str]) -> Iterator[tuple[ReaderId, set[str]]]:
    """Give every reader of a channel in a plan, of whose output some columns are needed."""
    kind = plan.getClass().getSimpleName()
    if kind == "StreamingExecutionRelation":
        source = native_source(str(plan.source().toString()))
        if isinstance(source, ChannelSource):
            yield source.reader, {name for at, name in _columns(plan.output()) if at in needed}
        return
    mentioned = dict(_columns(plan.references().toSeq()))
    children = plan.children()
    for at in range(children.size()):
        child = children.apply(at)
        if kind in _NARROWS:
            yield from _leaves(child, mentioned)
        elif kind == "Filter":
            yield from _leaves(child, {**needed, **mentioned})
        else:
            yield from _leaves(child, dict(_columns(child.output())))


def _columns(attributes: Any) -> Iterator[tuple[int, str]]:
    """Give the columns' numbers, by which Spark tells them apart, and names."""
    for at in range(attributes.size()):
        one = attributes.apply(at)
        yield int(one.exprId().id()), str(one.name())
