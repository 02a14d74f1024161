"""The DAG of a pipeline, as the dashboard draws it, with its current activity.

Built from the plan and the status of a running pipeline, or from the current cut of a stopped one.
Does no I/O. The position of the barrier follows from the status of the steps: it is in a channel
when the channel's producer has sent it and the reader has not forwarded it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Required, TypedDict

from cutwater.ids import StepId
from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.identity import InputKind, StepIdentity
from cutwater.runtime.reporting.status import (
    AlignmentStatus,
    BarrierAt,
    PartitionLag,
    RunStatus,
    StepStatus,
)
from cutwater.store.records.targets import SinkTargets
from cutwater.views.models import ChannelEdge, Dag, InputAlignment, StepNode, TopicLag

_SENT: Final = frozenset({BarrierAt.SENT, BarrierAt.ACKNOWLEDGED})
_NOT_SENT: Final = frozenset({BarrierAt.AWAITED, BarrierAt.ALIGNING})
NOTHING: Final[Mapping[StepId, StepIdentity]] = {}


def live_dag(
    pipeline_id: str,
    plan: PhysicalPlan,
    status: RunStatus,
    targets: SinkTargets,
    identities: Mapping[StepId, StepIdentity] = NOTHING,
) -> Dag:
    """Return the DAG of a running pipeline, with the identities that a checkpoint has recorded."""
    now = {step_status.name: step_status for step_status in status.steps}
    opened = [report.id for report in status.checkpoints if report.status == "IN_PROGRESS"]
    steps = [
        _step_node(step, now.get(step.name), targets, identities.get(step.name))
        for step in plan.steps
    ]
    backlog = {(channel.name, channel.reader): channel for channel in status.channels}
    channels = []
    for step in plan.steps:
        if step.output is None:
            continue
        for reader in dict.fromkeys(step_input.step for step_input in step.output.readers):
            before, after = now.get(step.name), now.get(reader)
            waiting = backlog.get((step.output.id, reader))
            channels.append(
                ChannelEdge(
                    channel=step.output.id,
                    source=step.name,
                    reader=reader,
                    reason=step.output.reason,
                    rows_per_second=round(before.rows_per_second, 1) if before else None,
                    watermark=before.watermark_ms if before else None,
                    backlog_messages=waiting.messages if waiting else None,
                    backlog_bytes=waiting.size_bytes if waiting else None,
                    barrier=_has_barrier(before, after),
                )
            )
    return Dag(
        jid=pipeline_id,
        name=status.pipeline,
        live=True,
        checkpoint=opened[-1] if opened else None,
        steps=steps,
        channels=channels,
    )


def stored_dag(pipeline_id: str, name: str, cut: Cut | None, targets: SinkTargets) -> Dag:
    """Return the DAG of a stopped pipeline, from a cut."""
    if cut is None:
        return Dag(jid=pipeline_id, name=name, live=False, steps=[], channels=[])
    reads = {step: _reads(cut, step) for step in cut.snapshots}
    steps = []
    for step in _in_order(reads):
        snapshot, identity = cut.snapshots[step], cut.identities.get(step)
        sink = next(iter(identity.sinks), None) if identity else None
        steps.append(
            StepNode(
                id=step,
                kind="query" if identity is None or identity.is_query else "batch",
                sources=list(identity.sources) if identity else sorted(snapshot.offsets),
                sink=sink,
                target=_target(sink, targets),
                is_source=not reads[step],
                stateful=bool(identity.operators) if identity else None,
                batch=snapshot.batch,
                watermark=snapshot.watermark_ms,
                finished=snapshot.finished,
            )
        )
    channels = [
        ChannelEdge(
            channel=channel,
            source=channel,
            reader=step,
            watermark=cut.snapshots[StepId(channel)].watermark_ms,
        )
        for step in _in_order(reads)
        for channel in reads[step]
        if StepId(channel) in cut.snapshots
    ]
    return Dag(jid=pipeline_id, name=name, live=False, steps=steps, channels=channels)


def _step_node(
    step: PhysicalStep,
    now: StepStatus | None,
    targets: SinkTargets,
    identity: StepIdentity | None,
) -> StepNode:
    sink = step.sink.name if step.sink else None
    return StepNode(
        id=step.name,
        description=", ".join(f"{node.kind.value} {node.name}" for node in step.nodes),
        sources=[node.name for node in step.sources],
        sink=sink,
        target=_target(sink, targets),
        is_source=not step.inputs,
        stateful=bool(identity.operators) if identity else None,
        **_live_fields(now),
    )


class _LiveFields(TypedDict, total=False):
    kind: Required[str]
    batch: int
    rows: int
    rows_per_second: float
    late_rows: int
    watermark: int | None
    finished: bool
    barrier: str
    alignment: InputAlignment | None
    lag: list[TopicLag]


def _live_fields(now: StepStatus | None) -> _LiveFields:
    if now is None:
        return {"kind": "query"}
    return {
        "kind": now.kind,
        "batch": now.batch,
        "rows": now.rows,
        "rows_per_second": round(now.rows_per_second, 1),
        "late_rows": now.late_rows,
        "watermark": now.watermark_ms,
        "finished": now.finished,
        "barrier": now.barrier.value,
        "alignment": _alignment(now.alignment),
        "lag": [_topic_lag(found) for found in now.lag],
    }


def _topic_lag(found: PartitionLag) -> TopicLag:
    return TopicLag(
        source=found.source,
        topic=found.topic,
        partition=found.partition,
        position=found.position,
        end=found.end,
        lag=found.records,
    )


def _alignment(found: AlignmentStatus | None) -> InputAlignment | None:
    if found is None:
        return None
    return InputAlignment(
        inputs=found.inputs,
        aligned=list(found.aligned),
        waiting=list(found.waiting),
        held=found.held_bytes,
        behind=found.behind_bytes,
        recorded=found.recorded_bytes,
    )


def _has_barrier(before: StepStatus | None, after: StepStatus | None) -> bool:
    if before is None or after is None:
        return False
    return before.barrier in _SENT and after.barrier in _NOT_SENT


def _target(sink: str | None, targets: SinkTargets) -> str | None:
    found = {str(name): target for name, target in targets.items()}.get(sink or "")
    return None if found is None else f"{found.format} {found.uri}"


def _reads(cut: Cut, step: StepId) -> list[str]:
    """Return the channels that a step reads, each once."""
    identity = cut.identities.get(step)
    if identity is not None and identity.inputs:
        names: Iterable[str] = (
            step_input.name
            for step_input in identity.inputs
            if step_input.kind is InputKind.CHANNEL
        )
    else:
        names = (step_input.channel for step_input in sorted(cut.snapshots[step].positions))
    return list(dict.fromkeys(str(name) for name in names))


def _in_order(reads: Mapping[StepId, list[str]]) -> list[StepId]:
    """Return the steps in topological order; by name in a cycle, which no plan has."""
    ordered: list[StepId] = []
    left = sorted(reads)
    while left:
        ready = [
            step
            for step in left
            if all(name in ordered or name not in reads for name in map(StepId, reads[step]))
        ]
        ordered += ready or left
        left = [step for step in left if step not in ordered]
    return ordered
