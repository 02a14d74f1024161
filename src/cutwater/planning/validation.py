"""Everything that can be wrong with a pipeline before Spark analyses it, found in one pass.

Each check examines the whole graph and yields every problem, so a user can correct all of them at
once instead of one per run. A check does not report what merely follows from another error.
Statefulness, watermarks and schemas need Spark and are not checked here.
"""

import difflib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cutwater.pipeline.nodes import SPARK, Binding, Kind, Node, OutputMode, SourceLocation
from cutwater.planning.graph import Graph, join_names
from cutwater.planning.physical_plan import PhysicalPlan


class Problem(NamedTuple):
    """A problem, and the line where it can be corrected."""

    place: SourceLocation
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def find_problems(graph: Graph, pipeline: SourceLocation) -> tuple[Problem, ...]:
    """Return everything that is wrong, by file and line.

    Where the pipeline itself was made is for problems of no node in particular.
    """
    found = [problem for check in _CHECKS for problem in check(graph)]
    found += _without_sink(graph, pipeline)
    return tuple(sorted(set(found)))


def find_misaligned(graph: Graph, plan: PhysicalPlan) -> tuple[Problem, ...]:
    """Return the steps whose alignment options have no effect at their place in the graph."""
    return tuple(sorted({*_without_barriers(graph, plan), *_before_whole_cuts(graph, plan)}))


def _without_barriers(graph: Graph, plan: PhysicalPlan) -> Iterator[Problem]:
    for step in plan.steps:
        if step.options.aligns and not step.inputs:
            node = graph.nodes[step.name]
            yield Problem(
                node.place,
                f"{node.title} has {step.options.aligns}, but it reads outside sources and no "
                "channel, so it never waits for a barrier; leave that out",
            )


def _before_whole_cuts(graph: Graph, plan: PhysicalPlan) -> Iterator[Problem]:
    """Find steps that may overtake before one that never does.

    A barrier that has overtaken would make that step decline every checkpoint.
    """
    whole: dict[str, str] = {}
    for step in reversed(plan.steps):
        never = step.name if step.options.unaligned is False else whole.get(step.name)
        if never is None:
            continue
        whole |= {step_input.id.channel: never for step_input in step.inputs}
        if step.options.aligns and step.options.unaligned is not False:
            node, after = graph.nodes[step.name], graph.nodes[never]
            yield Problem(
                node.place,
                f"{node.title} has {step.options.aligns}, but {after.title} ({after.place}), which "
                "it feeds, has unaligned=False, so no barrier may overtake before it; leave one of "
                "the two out",
            )


def _signatures(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        for fault in node.signature.faults:
            yield Problem(node.place, f"{node.title} {fault}")
        if node.name == SPARK:
            yield Problem(
                node.place,
                f"{node.title} has a reserved name: the parameter {SPARK} is always the session",
            )
        if node.kind is Kind.SOURCE and node.inputs:
            taken = ", ".join(binding.parameter for binding in node.inputs)
            yield Problem(
                node.place,
                f"{node.title} takes {taken}, but a source reads no other node and may take "
                f"{SPARK} alone; if it reads {taken}, it is a view or a step",
            )
        if node.kind is not Kind.SOURCE and not node.inputs and not node.signature.faults:
            yield Problem(
                node.place,
                f"{node.title} reads no other node; if it reads an outside stream, it is a source",
            )


def _unknown_inputs(graph: Graph) -> Iterator[Problem]:
    for node, binding in _unknown(graph):
        close = _meant(graph, node, binding.node)
        hint = f"did you mean {close}?" if close else f"it can read {join_names(_readable(graph))}"
        yield Problem(
            node.place, f"{node.title} reads {binding.node}, but no node is called that; {hint}"
        )


def _sinks_as_inputs(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        for producer in graph.producers(node):
            if producer.kind is Kind.SINK:
                yield Problem(
                    node.place,
                    f"{node.title} reads {producer.title} ({producer.place}), but rows leave the "
                    f"pipeline at a sink; read {join_names(_reads(producer))} instead",
                )


def _cycles(graph: Graph) -> Iterator[Problem]:
    for cycle in graph.cycles:
        first = graph.nodes[cycle[0]]
        yield Problem(
            first.place,
            f"{first.title} reads its own output: {' -> '.join(cycle)}; rows go one way only",
        )


def _unused(graph: Graph) -> Iterator[Problem]:
    # Without sinks nothing is used in the end, and a signature that cannot be read hides uses.
    hidden = any(node.signature.faults for node in graph.nodes.values())
    if hidden or not _has_sink(graph):
        return
    misspelled = {_meant(graph, node, binding.node) for node, binding in _unknown(graph)}
    for name in _readable(graph):
        if not graph.readers[name] and name not in misspelled:
            node = graph.nodes[name]
            yield Problem(
                node.place, f"{node.title} is read by no other node; give it a sink or remove it"
            )


def _without_sink(graph: Graph, pipeline: SourceLocation) -> Iterator[Problem]:
    if not _has_sink(graph):
        last = [name for name in graph.nodes if not graph.readers[name]]
        hint = f"; end it with a sink of {join_names(last)}" if last else ""
        yield Problem(pipeline, f"the pipeline has no sink, so nothing would come out of it{hint}")


def _complete_mode(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        for producer in _flowing_into(graph, node, "complete"):
            maker = graph.nodes[graph.flows[producer].maker]
            because = (
                f"{maker.title} ({maker.place}) is in complete mode: each batch is the whole "
                "result, which only a sink can take"
            )
            if node.kind is Kind.STEP:
                yield Problem(node.place, f"{node.title} cannot read {producer}, since {because}")
            elif len(node.inputs) > 1:
                yield Problem(
                    node.place,
                    f"{node.title} cannot combine {producer} with other inputs, since {because}",
                )


def _whole_results(graph: Graph) -> Iterator[Problem]:
    """Find targets that take whole results alone, and get them through a channel.

    A batch without rows is no Event (rule F23): a result that has become empty would not arrive.
    """
    for node in graph.nodes.values():
        flow = graph.flows.get(node.name)
        if node.target is None or flow is None or node.target.accepts != {"complete"}:
            continue
        shared = _shared_above(graph, node, flow.maker)
        if flow.mode == "complete" and shared is not None:
            readers = join_names(sorted(set(graph.readers[shared])))
            yield Problem(
                node.place,
                f"{node.title} takes whole results, but {shared} is read by {readers}: a result "
                "that has become empty would not reach it; give the sink a step of its own",
            )


def _shared_above(graph: Graph, node: Node, maker: str) -> str | None:
    """Return the first node between a sink and the step that feeds it that others read as well."""
    while node.name != maker and len(node.inputs) == 1 and graph.producers(node):
        (node,) = graph.producers(node)
        if len(graph.readers[node.name]) > 1:
            return node.name
    return None


def _update_mode(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.kind is not Kind.STEP:
            continue
        updated = _flowing_into(graph, node, "update")
        if node.options.updates and not updated and set(_reads(node)) <= set(_readable(graph)):
            yield Problem(
                node.place,
                f"{node.title} has updates={list(node.options.updates)}, but nothing it reads is "
                "in update mode; leave updates= out",
            )
        for producer in () if node.options.updates else updated:
            maker = graph.nodes[graph.flows[producer].maker]
            yield Problem(
                node.place,
                f"{node.title} reads {producer}, but {maker.title} ({maker.place}) is in update "
                "mode: a key comes again whenever it changes, and would be counted each time; "
                "name the key columns with updates=[…] to read the newest row of each key, or "
                "use append mode",
            )


def _targets(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        flow = graph.flows.get(node.name)
        if node.target is None or flow is None or flow.mode in node.target.accepts:
            continue
        maker = graph.nodes[flow.maker]
        accepted = join_names(sorted(node.target.accepts))
        yield Problem(
            node.place,
            f"{node.title} writes to {node.target.describe()}, which takes {accepted} mode, "
            f"but {maker.title} ({maker.place}) is in {flow.mode} mode",
        )


def _unknown(graph: Graph) -> Iterator[tuple[Node, Binding]]:
    """Yield the inputs that no node is called like; those of sources are wrong in any case."""
    for node in graph.nodes.values():
        for binding in node.inputs:
            if node.kind is not Kind.SOURCE and binding.node not in graph.nodes:
                yield node, binding


def _flowing_into(graph: Graph, node: Node, mode: OutputMode) -> list[str]:
    """Return the nodes it reads whose rows are of that mode, each once."""
    return [
        name
        for name in dict.fromkeys(_reads(node))
        if name in graph.flows
        and graph.flows[name].mode == mode
        and graph.nodes[name].kind is not Kind.SINK
    ]


def _meant(graph: Graph, node: Node, name: str) -> str | None:
    """Guess the intended input: one whose function has that name, or one with a similar name."""
    others = [known for known in _readable(graph) if known != node.name]
    for known in others:
        if graph.nodes[known].function_name == name:
            return known
    close = difflib.get_close_matches(name, others, n=1)
    return close[0] if close else None


def _has_sink(graph: Graph) -> bool:
    return any(node.kind is Kind.SINK for node in graph.nodes.values())


def _readable(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes.values() if node.kind is not Kind.SINK]


def _reads(node: Node) -> list[str]:
    return [binding.node for binding in node.inputs]


_CHECKS: Final[tuple[Callable[[Graph], Iterator[Problem]], ...]] = (
    _signatures,
    _unknown_inputs,
    _sinks_as_inputs,
    _cycles,
    _unused,
    _complete_mode,
    _whole_results,
    _update_mode,
    _targets,
)
