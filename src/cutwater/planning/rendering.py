"""A physical plan as a drawn tree for users, and as JSON values for programs.

Both show every step with what is inlined into it, every channel with the reason for it, and every
sink. The description of a target is shown unchanged; `SinkTarget.describe` keeps secrets out. If
Spark has analysed the steps (`spark.explain`), both show the results as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cutwater.config.delivery import delivery_of
from cutwater.ids import StepId
from cutwater.pipeline.nodes import Node, SinkTarget, WriteMode

if TYPE_CHECKING:
    from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep

JSON_VERSION: Final = 1
"""Incremented when a field changes its meaning or is removed; a new field does not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What only Spark's analysis of a step can show.

    Attributes:
        way: How it runs: `query`, a streaming query, or `batch`, plain jobs over its channels.
        partitions: Those of its state, which stay the same for its life; None without state.
        has_watermark: Whether event time moves in it.
        watermark: The event-time column of its result, and by how many milliseconds the watermark
            lags; None if its result has none.
        sources: The outside sources it reads, as they call themselves.
        by_reference: Whether its channel names the files of its source instead of holding rows.
        why_by_reference: Why, or why not; empty if its channel could only hold rows.
    """

    way: str
    is_stateful: bool
    partitions: int | None
    has_watermark: bool
    watermark: tuple[str, int] | None
    sources: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    by_reference: bool = False
    why_by_reference: str = ""


AllFacts = Mapping[StepId, StepFacts]
"""The facts about each step; empty if Spark has not analysed the steps."""


def draw(plan: "PhysicalPlan", facts: AllFacts | None = None) -> str:
    """Draw the plan as a tree, one step below the other, each after those it reads.

    A line of a step is an input, a node it evaluates (with the line of the user's code), what
    Spark's analysis shows, or its channel, followed by the reason.
    """
    known = facts or {}
    channels = sum(step.output is not None for step in plan.steps)
    sinks = sum(step.sink is not None for step in plan.steps)
    lines = [
        f"pipeline {plan.pipeline}: {_format_count(len(plan.steps), 'step')}, "
        f"{_format_count(channels, 'channel')}, {_format_count(sinks, 'sink')}"
    ]
    patient = _most_patient(plan)
    topology = plan.topology()
    for step in plan.steps:
        is_last = step is plan.steps[-1]
        whole = topology[step.name].is_sink
        lines.append(f"{'└── ' if is_last else '├── '}{_heading(step, whole_cuts=whole)}")
        stem = "    " if is_last else "│   "
        entries = _entries(step, known.get(step.name), patient)
        for entry in entries:
            is_end = entry is entries[-1]
            first, *rest = entry
            lines.append(f"{stem}{'└── ' if is_end else '├── '}{first}")
            lines += [f"{stem}{'    ' if is_end else '│   '}{line}" for line in rest]
    return "\n".join(lines)


def as_json(plan: "PhysicalPlan", facts: AllFacts | None = None) -> dict[str, object]:
    """Return the plan as values that `json.dumps` takes, the same for the same pipeline.

    ```text
    version       1
    pipeline      the pipeline's name
    fingerprint   hash of the shape; see PhysicalPlan.fingerprint
    steps         in an order in which each comes after those it reads, each with
      name
      output_mode   append | update | complete
      partitions    number, or null for the default
      state         memory | rocksdb, or null for the default
      trigger_ms    number, or null for at once
      max_batch_bytes  number, or null for no limit
      alignment_timeout_ms  number, or null for the run's
      unaligned     true | false | "forced", or null for the run's
      overtakes     false if no barrier overtakes in it: it reads no channel, or it or a step
                    that it feeds has unaligned=False
      nodes         what it evaluates, in order: name, kind (source | view | step | sink),
                    function (null for a lambda or none), file, line,
                    inputs (parameter, node)
      sources       the names of the outside sources it reads, in order of first use
      inputs        the channels it reads, in order of first use: ordinal, channel, node,
                    parameter, keys
      sink          null, or name, format, target, accepts and
        write         append | upsert | overwrite; null if the target has one way only
        keys          of an upsert, in order; else empty
        commit_every_ms  number, or null for every checkpoint; all sinks of a pipeline are
                      committed together, at the largest of their intervals
        visibility    checkpoint | batch
      channel       name, readers (step, ordinal), reason; or null if no step reads it
      spark         null if Spark has not analysed the step, or
        way           query | batch
        stateful      true | false
        partitions    of its state; null without state
        event_time    whether a watermark moves in it
        watermark     of its result: column, delay_ms; or null
        sources       the outside sources, as they call themselves
        columns       of its result, in order: name, type
        by_reference  whether its channel names its source's files instead of holding rows
        why_by_reference  why, or why not; empty if the channel could only hold rows
    ```
    """
    known = facts or {}
    topology = plan.topology()
    return {
        "version": JSON_VERSION,
        "pipeline": plan.pipeline,
        "fingerprint": plan.fingerprint,
        "steps": [
            {
                **_step_json(step),
                "overtakes": bool(step.inputs) and not topology[step.name].is_sink,
                "spark": _facts_json(known.get(step.name)),
            }
            for step in plan.steps
        ],
    }


def _heading(step: "PhysicalStep", *, whole_cuts: bool) -> str:
    options = step.options
    overtaking = options.aligns.replace("=", " ").replace(" and ", ", ").replace("'", "")
    if whole_cuts and step.inputs:
        overtaking = "never overtakes"
    shown = [
        f"{step.output_mode} mode",
        f"partitions {options.partitions}" if options.partitions is not None else "",
        f"state {options.state}" if options.state is not None else "",
        f"trigger {options.trigger}" if options.trigger is not None else "",
        f"max_batch {options.max_batch}" if options.max_batch is not None else "",
        overtaking,
    ]
    return f"step {step.name} ({', '.join(text for text in shown if text)})"


def _most_patient(plan: "PhysicalPlan") -> Node | None:
    """Return the sink with the largest commit interval; None if no sink sets one."""
    sinks = [step.sink for step in plan.steps if step.sink is not None]
    return max(
        (sink for sink in sinks if delivery_of(sink.target).every_ms),
        key=lambda sink: delivery_of(sink.target).every_ms,
        default=None,
    )


def _entries(
    step: "PhysicalStep", facts: StepFacts | None, patient: Node | None
) -> list[list[str]]:
    """Return the lines below a step's heading, each entry with those that belong below it."""
    inputs = [
        f"reads channel {step_input.id.channel} as {step_input.node}({step_input.parameter})"
        + (f", newest row of each {', '.join(step_input.keys)}" if step_input.keys else "")
        for step_input in step.inputs
    ]
    entries = [[line] for line in inputs]
    for node in step.nodes:
        below = [] if node.target is None else [_sink_line(node.target, patient)]
        entries.append([_node_line(node), *below])
    if facts is not None:
        columns = ", ".join(f"{name} {kind}" for name, kind in facts.columns)
        entries.append([_facts_line(facts), f"rows: {columns}"])
    if step.output is not None:
        readers = ", ".join(dict.fromkeys(reader.step for reader in step.output.readers))
        entry = [f"channel {step.output.id} → {readers}", f"why: {step.output.reason}"]
        if facts is not None and facts.why_by_reference:
            holds = "names the source's files" if facts.by_reference else "holds rows"
            entry.append(f"{holds}: {facts.why_by_reference}")
        entries.append(entry)
    return entries


def _facts_line(facts: StepFacts) -> str:
    shown = [f"runs as {'a query' if facts.way == 'query' else 'batches'}"]
    if facts.is_stateful:
        shown.append(f"keeps state in {_format_count(facts.partitions or 0, 'partition')}")
    else:
        shown.append("keeps no state")
    if facts.watermark is not None:
        column, delay_ms = facts.watermark
        shown.append(f"watermark {delay_ms / 1000:g} s behind {column}")
    elif facts.has_watermark:
        shown.append("watermark inside")
    return ", ".join(shown)


def _node_line(node: Node) -> str:
    arrow = f" → {node.target.format} {node.target.describe()}" if node.target else ""
    return f"{node.kind.value} {node.name}{arrow}  [{node.place.short}]"


def _sink_line(target: SinkTarget, patient: Node | None) -> str:
    """Return how new rows combine with existing ones, and when they become visible."""
    shown = []
    if isinstance(target, WriteMode):
        by = f" by {', '.join(target.keys)}" if target.keys else ""
        shown.append(f"write {target.write}{by}")
    if patient is None:
        shown.append("commits at every checkpoint")
    else:
        every_ms = delivery_of(patient.target).every_ms
        is_own = delivery_of(target).every_ms == every_ms
        whose = "" if is_own else f" as sink {patient.name} wants"
        shown.append(f"commit_every {every_ms / 1000:g} s{whose}")
    shown.append(f"visibility {_visibility(target)}")
    return ", ".join(shown)


def _visibility(target: SinkTarget) -> str:
    return "batch" if delivery_of(target).shows_batches else "checkpoint"


def _step_json(step: "PhysicalStep") -> dict[str, object]:
    return {
        "name": step.name,
        "output_mode": step.output_mode,
        "partitions": step.options.partitions,
        "state": step.options.state,
        "trigger_ms": step.options.trigger_ms,
        "max_batch_bytes": step.options.max_batch_bytes,
        "alignment_timeout_ms": step.options.alignment_timeout_ms,
        "unaligned": step.options.unaligned,
        "nodes": [_node_json(node) for node in step.nodes],
        "sources": [node.name for node in step.sources],
        "inputs": [
            {
                "ordinal": step_input.id.ordinal,
                "channel": step_input.id.channel,
                "node": step_input.node,
                "parameter": step_input.parameter,
                "keys": list(step_input.keys),
            }
            for step_input in step.inputs
        ],
        "sink": _sink_json(step.sink),
        "channel": _channel_json(step),
    }


def _node_json(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "kind": node.kind.value,
        "function": node.function_name or None,
        "file": node.place.file,
        "line": node.place.line,
        "inputs": [
            {"parameter": binding.parameter, "node": binding.node} for binding in node.inputs
        ],
    }


def _sink_json(node: Node | None) -> dict[str, object] | None:
    if node is None or node.target is None:
        return None
    mode = node.target if isinstance(node.target, WriteMode) else None
    return {
        "name": node.name,
        "format": node.target.format,
        "target": node.target.describe(),
        "accepts": sorted(node.target.accepts),
        "write": mode.write if mode is not None else None,
        "keys": list(mode.keys) if mode is not None else [],
        "commit_every_ms": delivery_of(node.target).every_ms or None,
        "visibility": _visibility(node.target),
    }


def _facts_json(facts: StepFacts | None) -> dict[str, object] | None:
    if facts is None:
        return None
    watermark = facts.watermark
    return {
        "way": facts.way,
        "stateful": facts.is_stateful,
        "partitions": facts.partitions,
        "event_time": facts.has_watermark,
        "watermark": watermark and {"column": watermark[0], "delay_ms": watermark[1]},
        "sources": list(facts.sources),
        "columns": [{"name": name, "type": kind} for name, kind in facts.columns],
        "by_reference": facts.by_reference,
        "why_by_reference": facts.why_by_reference,
    }


def _channel_json(step: "PhysicalStep") -> dict[str, object] | None:
    if step.output is None:
        return None
    return {
        "name": step.output.id,
        "readers": [
            {"step": reader.step, "ordinal": reader.input.ordinal} for reader in step.output.readers
        ],
        "reason": step.output.reason,
    }


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
