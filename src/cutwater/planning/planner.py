"""From declared nodes to the steps that run: what is inlined, where a channel is, and why.

A view with one use is part of its reader. So is a source (it is chained), unless it has
`chain=False` or that reader has a channel among its inputs (rule F11: a step reads outside sources
or channels, never both). A node with several uses gets a step and a channel of its own, so that it
is evaluated once and all its readers see the same rows (F38). Every `step` is a step; a sink that
is the only use of one is written in it. So a straight pipeline is one step, and channels are only
where the DAG branches or merges, or where the user has requested them.

A *use* is one parameter of one node. A step that reads a channel through two parameters, be it a
self-join or two views over it, has two inputs of that channel, each with its own ordinal and
position (F38). For the same reason a node that fills two parameters counts as used twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

from cutwater.errors import PlanError
from cutwater.ids import ChannelId, InputId, ReaderId, StepId
from cutwater.pipeline.nodes import Binding, Kind, Node, OrderedTarget
from cutwater.planning.graph import Graph, join_names
from cutwater.planning.physical_plan import Channel, PhysicalPlan, PhysicalStep, StepInput
from cutwater.planning.validation import find_misaligned, find_problems

if TYPE_CHECKING:
    from cutwater.pipeline.pipeline import Pipeline

__all__ = ["PhysicalPlan", "PhysicalStep", "plan"]


def plan(pipeline: "Pipeline") -> PhysicalPlan:
    """Plan the pipeline.

    The result depends on the declared nodes alone, not on the order of their declaration.
    """
    graph = Graph(pipeline.nodes)
    problems = find_problems(graph, pipeline.place)
    if problems:
        raise PlanError(pipeline.name, *map(str, problems))
    division = _divide(graph)
    readers = _readers(division)
    planned = PhysicalPlan(
        pipeline.name,
        tuple(
            PhysicalStep(
                name=StepId(name),
                nodes=part.nodes,
                inputs=_inputs(graph, part),
                output_mode=graph.flows[part.nodes[-1].name].mode,
                options=graph.nodes[name].options,
                output=_channel(graph, division, name, readers.get(name, [])),
            )
            for name, part in division.items()
        ),
    )
    misaligned = find_misaligned(graph, planned)
    if misaligned:
        raise PlanError(pipeline.name, *map(str, misaligned))
    return planned


class _Part(NamedTuple):
    """What one step evaluates, and the uses at which it reads channels, both in order."""

    nodes: tuple[Node, ...]
    reads: tuple[tuple[Node, Binding], ...]

    @property
    def name(self) -> str:
        """The name of its `step`, or else of the node whose rows it puts out."""
        steps = (node.name for node in self.nodes if node.kind is Kind.STEP)
        return next(steps, self.nodes[-1].name)


def _divide(graph: Graph) -> Mapping[str, _Part]:
    """Divide the graph into steps; sources first, then by distance from them, then by name."""
    inlined = _find_inlined(graph)
    roots = [name for name in graph.nodes if name not in inlined]
    parts = {part.name: part for part in (_part(graph, root, inlined) for root in roots)}
    distance: dict[str, int] = {}
    before = {name: [read.node for _, read in part.reads] for name, part in parts.items()}
    for name in TopologicalSorter(before).static_order():
        distance[name] = max((distance[other] + 1 for other in before[name]), default=0)
    return {name: parts[name] for name in sorted(parts, key=lambda name: (distance[name], name))}


def _find_inlined(graph: Graph) -> set[str]:
    """Find the nodes that are evaluated inside the one node that uses them."""
    nodes = graph.nodes.values()
    once = {name for name, readers in graph.readers.items() if len(readers) == 1}
    inlined = {node.name for node in nodes if node.kind is Kind.VIEW and node.name in once}
    inlined |= {
        step.name
        for sink in nodes
        if sink.kind is Kind.SINK and (step := _feeding_step(graph, sink))
    }
    inlined |= {
        node.name
        for node in nodes
        if node.kind is Kind.SOURCE and node.options.chain and node.name in once
    }
    for root in sorted(set(graph.nodes) - inlined):
        part = _part(graph, root, inlined)
        if part.reads:
            # Rule F11. The source's own channel is one more input of a step that has some
            # already, so no other step is affected.
            inlined -= {node.name for node in part.nodes if node.kind is Kind.SOURCE}
    return inlined


def _feeding_step(graph: Graph, sink: Node) -> Node | None:
    """Find the step that feeds nothing but the sink, and from which alone the sink is fed."""
    node = sink
    while len(node.inputs) == 1:
        (node,) = graph.producers(node)
        if len(graph.readers[node.name]) != 1 or node.kind is Kind.SOURCE:
            return None
        if node.kind is Kind.STEP:
            return node
    return None


def _part(graph: Graph, root: str, inlined: set[str]) -> _Part:
    """Collect what is evaluated with the root, inputs before readers, in parameter order."""
    nodes: list[Node] = []
    reads: list[tuple[Node, Binding]] = []
    # A stack and not recursion: a chain of views may be longer than Python's.
    open_nodes = [(graph.nodes[root], iter(graph.nodes[root].inputs))]
    while open_nodes:
        node, pending = open_nodes[-1]
        binding = next(pending, None)
        if binding is None:
            nodes.append(node)
            open_nodes.pop()
        elif binding.node in inlined:
            producer = graph.nodes[binding.node]
            open_nodes.append((producer, iter(producer.inputs)))
        else:
            reads.append((node, binding))
    return _Part(tuple(nodes), tuple(reads))


def _inputs(graph: Graph, part: _Part) -> tuple[StepInput, ...]:
    reader = graph.nodes[part.name]
    keys = reader.options.updates
    return tuple(
        StepInput(
            InputId(ordinal, ChannelId(binding.node)),
            node.name,
            binding.parameter,
            keys if graph.flows[binding.node].mode == "update" else (),
            by_event=reader.kind is Kind.SINK
            and (graph.flows[binding.node].mode != "append" or _keeps_event_order(reader)),
        )
        for ordinal, (node, binding) in enumerate(part.reads)
    )


def _keeps_event_order(sink: Node) -> bool:
    target: object = sink.target
    return isinstance(target, OrderedTarget) and target.keeps_event_order


def _readers(division: Mapping[str, _Part]) -> Mapping[str, list[ReaderId]]:
    readers: dict[str, list[ReaderId]] = {}
    for name, part in division.items():
        for ordinal, (_, binding) in enumerate(part.reads):
            reader = ReaderId(StepId(name), InputId(ordinal, ChannelId(binding.node)))
            readers.setdefault(binding.node, []).append(reader)
    return readers


def _channel(
    graph: Graph, division: Mapping[str, _Part], name: str, readers: Sequence[ReaderId]
) -> Channel | None:
    if not readers:
        return None
    parts = [division[reader.step] for reader in readers]
    match graph.nodes[name].kind:
        case Kind.SOURCE:
            reason = _why_not_chained(graph, graph.nodes[name], parts[0])
        case Kind.VIEW:
            reason = (
                f"view {name} is used by {_users(graph, name)}: it is evaluated once, and all "
                "its uses see the same rows"
            )
        case _:
            reason = (
                f"step {name} has its own state and pace, and is used by {_users(graph, name)}"
                f"{_why_not_fused(graph, name, parts)}"
            )
    return Channel(ChannelId(name), tuple(readers), reason)


def _why_not_chained(graph: Graph, source: Node, reader: _Part) -> str:
    if len(graph.readers[source.name]) > 1:
        users = _users(graph, source.name)
        return f"source {source.name} is used by {users}: it is read once, for all its uses"
    if not source.options.chain:
        return f"source {source.name} has chain=False: it runs at a pace of its own"
    others = [read.node for _, read in reader.reads if read.node != source.name]
    return (
        f"source {source.name} is not chained into {reader.name}, which reads "
        f"{join_names(dict.fromkeys(others))} as well: a step reads outside sources or channels, "
        "never both"
    )


def _why_not_fused(graph: Graph, name: str, readers: Iterable[_Part]) -> str:
    sinks = [part.name for part in readers if graph.nodes[part.name].kind is Kind.SINK]
    if not sinks:
        return ""
    if len(graph.readers[name]) > 1:
        return "; a sink is written inside a step that feeds nothing else"
    return f"; sink {sinks[0]} combines several inputs, so it is written inside none of them"


def _users(graph: Graph, name: str) -> str:
    """Return the names of the users, each with its number of uses if more than one."""
    counts = Counter(graph.readers[name])
    return join_names(
        f"{user} ({count} times)" if count > 1 else user for user, count in counts.items()
    )
