"""The declared nodes as a graph: which node uses which, their order, and the output mode of each.

It is built for invalid pipelines too, so that `validation` can check the whole graph: an input that
does not exist is left out, and a cycle is recorded and broken. Everything is in the order of names,
never of declaration, because the plan is part of a pipeline's identity.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from cutwater.pipeline.nodes import Kind, Node, OutputMode

_STRENGTH: Final[Mapping[OutputMode, int]] = {"append": 0, "update": 1, "complete": 2}
_NAMES_SHOWN_MAX: Final = 8


class Flow(NamedTuple):
    """Which kind of rows a node puts out, and the source or step that made them so."""

    mode: OutputMode
    maker: str


class Graph:
    """A fixed set of nodes.

    Attributes:
        nodes: The nodes by name, in the order of their names.
        readers: For each node, the names of the nodes that read it: once for each parameter.
        cycles: Each as the names along it in the direction of the rows, the first repeated.
        order: All names, each after those it reads, as far as cycles allow.
        flows: For each node, which kind of rows it puts out; none if all its inputs are unknown.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Mapping[str, Node] = {
            node.name: node for node in sorted(nodes, key=lambda node: node.name)
        }
        self.readers = self._find_readers()
        self.order, self.cycles = self._find_order()
        self.flows = self._find_flows()

    def producers(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that fill its parameters, in their order, without unknown ones."""
        return tuple(self.nodes[name] for _, name in node.inputs if name in self.nodes)

    def _find_readers(self) -> Mapping[str, tuple[str, ...]]:
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for binding in node.inputs:
                if binding.node in readers:
                    readers[binding.node].append(node.name)
        return {name: tuple(found) for name, found in readers.items()}

    def _find_order(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        before = {
            name: list(dict.fromkeys(producer.name for producer in self.producers(node)))
            for name, node in self.nodes.items()
        }
        cycles: list[tuple[str, ...]] = []
        while True:
            try:
                return tuple(TopologicalSorter(before).static_order()), tuple(cycles)
            except CycleError as error:
                # One edge of the cycle is taken out each time, so this ends.
                first, second, *_ = error.args[1]
                before[second].remove(first)
                cycles.append(_from_smallest(error.args[1][:-1]))

    def _find_flows(self) -> Mapping[str, Flow]:
        flows: dict[str, Flow] = {}
        for name in self.order:
            node = self.nodes[name]
            if node.kind in {Kind.SOURCE, Kind.STEP}:
                flows[name] = Flow(node.options.output_mode, name)
                continue
            found = [flows[read.name] for read in self.producers(node) if read.name in flows]
            if found:
                flows[name] = max(found, key=lambda flow: _STRENGTH[flow.mode])
        return flows


def _from_smallest(cycle: list[str]) -> tuple[str, ...]:
    start = cycle.index(min(cycle))
    return (*cycle[start:], *cycle[:start], cycle[start])


def join_names(names: Iterable[str]) -> str:
    """Join names as in prose: `a`, `a and b`, `a, b and c`; at most a few are listed."""
    shown = list(names) or ["nothing"]
    if len(shown) > _NAMES_SHOWN_MAX:
        shown = [*shown[:_NAMES_SHOWN_MAX], f"{len(shown) - _NAMES_SHOWN_MAX} more"]
    *most, last = shown
    return f"{', '.join(most)} and {last}" if most else last
