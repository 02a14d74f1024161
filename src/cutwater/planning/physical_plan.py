"""The steps that run, the channels between them, and what each step evaluates.

`plan` makes these values; the runtime, `cutwater plan` and the checkpoint's record of the
pipeline's shape (rule F16) read them. A step without channel inputs is a source step and has at
least one source chained into it; every other step has none (F11).
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cutwater.config.options import Unaligned
from cutwater.ids import ChannelId, InputId, ReaderId, SinkId, StepId
from cutwater.notebook import drawing
from cutwater.pipeline.nodes import Kind, Node, OutputMode, StepOptions
from cutwater.planning import rendering as plan_text
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.topology import StepSpec, Topology


class StepInput(NamedTuple):
    """One input of a step: a channel as read by one parameter of one of the step's nodes.

    Attributes:
        id: Its ordinal in the step and the channel (rule F38).
        keys: The channel carries updates, and the reader keeps, of each batch, the newest row
            for each value of these columns. Empty for every other channel.
        by_event: The rows of one Event are one complete result, which the next Event replaces, or
            readers of the target see the order of Events. So a batch reads exactly one Event:
            several would look like one result, and Spark would mix their rows.
    """

    id: InputId
    node: str
    parameter: str
    keys: tuple[str, ...] = ()
    by_event: bool = False

    def batch_bytes(self, most: int | None) -> int | None:
        # At least one Event is always taken, however large it is.
        return 1 if self.by_event else most


class Channel(NamedTuple):
    """The channel after a step that other steps read.

    `reason` says why the pipeline is divided here, as a human-readable sentence.
    """

    id: ChannelId
    readers: tuple[ReaderId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalStep:
    """One step as it runs.

    Attributes:
        name: That of its `step`, or else of the node whose rows it puts out.
        nodes: What it evaluates, each node after those it reads. The last one's rows are written.
        inputs: The channels it reads, one for each use, in the order of first use.
        output: Its channel; None if no step reads it.
    """

    name: StepId
    nodes: tuple[Node, ...]
    inputs: tuple[StepInput, ...]
    output_mode: OutputMode
    options: StepOptions
    output: Channel | None

    @property
    def sources(self) -> tuple[Node, ...]:
        """The outside sources it reads, in the order of first use."""
        return tuple(node for node in self.nodes if node.kind is Kind.SOURCE)

    @property
    def passes_source_on(self) -> bool:
        """Whether its channel has the rows of one source, so that it could refer to them."""
        passes_on = all(node.kind in {Kind.SOURCE, Kind.VIEW} for node in self.nodes)
        return self.output is not None and passes_on and len(self.sources) == 1

    @property
    def sink(self) -> Node | None:
        return self.nodes[-1] if self.nodes[-1].kind is Kind.SINK else None

    def evaluate(
        self,
        spark: object,
        frames: Mapping[InputId, object],
        adapt: Callable[[Node, object], object] | None = None,
    ) -> object:
        """Call the functions of its nodes, each once, and return what the last one returns.

        `adapt` gets what each node returns, and may change it before another node reads it.
        """
        read = {
            (step_input.node, step_input.parameter): frames[step_input.id]
            for step_input in self.inputs
        }
        results: dict[str, object] = {}
        for node in self.nodes:
            arguments = {
                parameter: read[node.name, parameter]
                if (node.name, parameter) in read
                else results[producer]
                for parameter, producer in node.inputs
            }
            results[node.name] = node.call(spark, arguments)
            if adapt is not None:
                results[node.name] = adapt(node, results[node.name])
        return results[self.nodes[-1].name]


def _is_forced(unaligned: Unaligned | None) -> bool | None:
    return None if unaligned is None else unaligned == "forced"


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """All steps of a pipeline, sources first, each after the steps it reads from."""

    pipeline: str
    steps: tuple[PhysicalStep, ...]

    def __repr__(self) -> str:
        names = ", ".join(step.name for step in self.steps)
        return f"<plan of {self.pipeline}: {names}>"

    def _repr_html_(self) -> str:
        return drawing(self.tree())

    def __getitem__(self, name: StepId) -> PhysicalStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def topology(
        self,
        pinned_starts: Collection[StepId] = (),
        identities: Mapping[StepId, StepIdentity] | None = None,
    ) -> Topology:
        """Return the shape as the protocol sees it.

        `pinned_starts` are the source steps that would start at the same place again if they
        were restarted before their first batch (rule F12). Known only after the sources were
        analysed; a step that is not named has no snapshot before that batch.
        """
        return Topology(
            tuple(
                StepSpec(
                    step.name,
                    tuple(step_input.id for step_input in step.inputs),
                    sink=SinkId(step.sink.name) if step.sink else None,
                    pinned_start=bool(step.inputs) or step.name in pinned_starts,
                    identity=(identities or {}).get(step.name),
                    is_sink=step.options.unaligned is False,
                    alignment_timeout_ms=step.options.alignment_timeout_ms,
                    forced=_is_forced(step.options.unaligned),
                )
                for step in self.steps
            )
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the shape alone: equal plans read the same inputs in the same order.

        A checkpoint of another shape cannot be restored into this one as it is (rule F16).
        Options, targets and places in files are not part of it.
        """
        shape = [
            [
                step.name,
                [[node.kind.value, node.name] for node in step.nodes],
                [
                    [*step_input.id, step_input.node, step_input.parameter]
                    for step_input in step.inputs
                ],
                step.output_mode,
            ]
            for step in self.steps
        ]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()

    def tree(self) -> str:
        """Draw the plan as text: steps, their nodes, channels, and the reason for each channel."""
        return plan_text.draw(self)

    def to_json(self) -> dict[str, object]:
        """Return the plan as JSON values; `plan_text.as_json` documents the fields."""
        return plan_text.as_json(self)
