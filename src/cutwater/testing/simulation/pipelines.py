"""The pipelines the simulator runs: every shape the protocol has a rule about.

A shape names its steps, what each computes, and which step tends to be slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cutwater.ids import SinkId, StepId
from cutwater.protocol.topology import StepSpec, Topology, inputs_of
from cutwater.testing.simulation.rows import FUNCTIONS, Row, Rows, StepFunction


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a shape: `name`, what it reads, what it computes, whether it has a sink."""

    name: str
    reads: tuple[str, ...] = ()
    does: str = "map"
    sink: bool = False
    whole_cuts_only: bool = False
    pinned_start: bool = True
    alignment_timeout_ms: int | None = None
    forced: bool | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline to simulate."""

    name: str
    nodes: tuple[Node, ...]
    slow: str

    @property
    def topology(self) -> Topology:
        """The shape as the protocol sees it."""
        return Topology(
            tuple(
                StepSpec(
                    StepId(node.name),
                    inputs_of(*node.reads),
                    SinkId(f"{node.name}_table") if node.sink else None,
                    is_sink=node.whole_cuts_only,
                    pinned_start=node.pinned_start,
                    alignment_timeout_ms=node.alignment_timeout_ms,
                    forced=node.forced,
                )
                for node in self.nodes
            )
        )

    @property
    def functions(self) -> Mapping[StepId, StepFunction]:
        return {StepId(node.name): FUNCTIONS[node.does] for node in self.nodes}

    def sources(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if not node.reads)

    def expected(self, lengths: Mapping[str, int]) -> Mapping[SinkId, list[Row]]:
        """Compute every sink's rows from the first rows of every source, all at once."""
        results: dict[str, list[Row]] = {}
        tables: dict[SinkId, list[Row]] = {}
        for node in self.nodes:
            inputs: Sequence[Rows]
            if node.reads:
                inputs = [results[name] for name in node.reads]
            else:
                inputs = [source_rows(node.name, 0, lengths[node.name])]
            results[node.name] = FUNCTIONS[node.does].whole(node.name, inputs)
            if node.sink:
                tables[SinkId(f"{node.name}_table")] = results[node.name]
        return tables

    def waits_for_watermark(self, sink: SinkId) -> bool:
        """Return whether the sink's rows depend on the progress of a watermark."""
        name = sink.removesuffix("_table")
        by_name = {node.name: node for node in self.nodes}
        todo = [name]
        while todo:
            node = by_name[todo.pop()]
            if FUNCTIONS[node.does].event_time:
                return True
            todo += node.reads
        return False


def source_rows(source: str, start: int, end: int) -> list[Row]:
    """Return the rows of an outside stream between two offsets; deterministic."""
    return [Row(source, seq, (seq * 7 % 5,)) for seq in range(start, end)]


def _shape(name: str, slow: str, *nodes: Node) -> Shape:
    return Shape(name, nodes, slow)


SHAPES: Final = {
    shape.name: shape
    for shape in (
        _shape("straight", "s", Node("s", does="count", sink=True)),
        _shape("line", "b", Node("s"), Node("a", ("s",), "filter"), Node("b", ("a",), sink=True)),
        _shape(
            "diamond",
            "b",
            Node("s"),
            Node("a", ("s",)),
            Node("b", ("s",), "count"),
            Node("j", ("a", "b"), "join", sink=True),
        ),
        _shape(
            "fan-out",
            "b",
            Node("s"),
            Node("a", ("s",), sink=True),
            Node("b", ("s",), "count"),
            Node("c", ("b",), sink=True),
            Node("d", ("s",), "filter", sink=True),
        ),
        _shape(
            "union",
            "t",
            Node("s", pinned_start=False),
            Node("t"),
            Node("u", ("s", "t")),
            Node("c", ("u",), "count", sink=True),
            Node("d", ("u",), "filter", sink=True),
        ),
        _shape(
            "skip-edges",
            "x",
            Node("s"),
            Node("t"),
            Node("x", ("s",), "count"),
            Node("y", ("t", "x")),
            Node("w", ("x",)),
            Node("z", ("y", "w"), sink=True),
        ),
        _shape(
            "windows",
            "w",
            Node("s"),
            Node("t"),
            Node("w", ("s", "t"), "window", sink=True),
            Node("a", ("s",), sink=True),
        ),
        _shape(
            "window-line",
            "w",
            Node("s"),
            Node("a", ("s",), "filter"),
            Node("w", ("a",), "window"),
            Node("b", ("w",), sink=True),
        ),
        _shape(
            "tokens",
            "b",
            Node("s"),
            Node("r", ("s",), "token"),
            Node("a", ("r",), sink=True),
            Node("b", ("r",), "map"),
            Node("c", ("b",), sink=True),
        ),
        _shape(
            "self-join",
            "m",
            Node("s"),
            Node("m", ("s",)),
            Node("j", ("m", "m"), "join", sink=True),
        ),
        _shape(
            "deep",
            "c",
            Node("s"),
            Node("a", ("s",)),
            Node("b", ("a",), "count"),
            Node("c", ("b",)),
            Node("d", ("c",), "count"),
            Node("e", ("d",), sink=True),
        ),
        _shape(
            "own-patience",
            "a",
            Node("s"),
            Node("t"),
            Node("a", ("s", "t"), "count", alignment_timeout_ms=200),
            Node("b", ("a", "s"), forced=True, sink=True),
            Node("c", ("t",), "count", forced=False, sink=True),
        ),
        _shape(
            "whole-cuts",
            "a",
            Node("s"),
            Node("t"),
            Node("a", ("s", "t"), whole_cuts_only=True, sink=True),
            Node("b", ("s",), "count", sink=True),
        ),
    )
}
