"""Spark's analysis of a planned pipeline before anything runs, as `cutwater plan` shows it.

The steps' functions are called as at a start, in the order of the plan, on streams that replace the
channels; so everything that a start would refuse is found here. No query is started, and no store,
scratch directory or sink is touched.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cutwater.errors import PlanError
from cutwater.ids import ChannelId, InputId, ReaderId, StepId
from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep
from cutwater.planning.rendering import StepFacts
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.runtime.channel import Channel, ChannelSchema, Signal
from cutwater.spark.analysis.analysis import Analysis, AnalyzedStep
from cutwater.spark.analysis.self_reads import SelfReadCheck
from cutwater.spark.jvm.channel_source import ChannelSource, ReadOptions
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.internals import Internals

_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def explain(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, StepFacts]:
    """Call every step's functions once or twice and return Spark's analysis of them.

    The session's defaults are part of the result.

    Raises:
        PlanError: With everything that Spark would refuse; it names the function and line.
        SessionError: If no pipeline can run in such a session.
    """
    return facts_of(plan, look(plan, spark), spark)


def facts_of(
    plan: PhysicalPlan, analyzed: Mapping[StepId, AnalyzedStep], spark: SparkSession
) -> Mapping[StepId, StepFacts]:
    default = int(str(spark.conf.get(_PARTITIONS)))
    return {step.name: _facts(step, analyzed[step.name], default) for step in plan.steps}


def identities(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, StepIdentity]:
    """Return the identity of every step, as a manifest records it; each after those it reads."""
    analyzed = look(plan, spark)
    return {step.name: analyzed[step.name].identity for step in plan.steps}


def look(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, AnalyzedStep]:
    """Call every step's functions and return each step as Spark sees it."""
    internals = Internals(spark)
    internals.self_check()
    analysis = Analysis(internals, SelfReadCheck.of(plan, spark))
    analyzed: dict[StepId, AnalyzedStep] = {}
    for step in plan.steps:
        # A step after one that has a problem cannot be analysed: its columns are unknown.
        if all(StepId(step_input.id.channel) in analyzed for step_input in step.inputs):
            # Keeps the sources alive during the analysis: they are found by name only until then.
            sources = {
                step_input.id: _source(internals, step, step_input.id, analyzed)
                for step_input in step.inputs
            }
            analyzed_step = analysis.look(
                step, {key: source.frame() for key, source in sources.items()}
            )
            if analyzed_step is not None:
                analyzed[step.name] = analyzed_step
    if analysis.problems:
        raise PlanError(plan.pipeline, *analysis.problems)
    return analyzed


class _PlannedChannel(Channel):
    """A channel without files, which is never read: its name and its columns."""

    def __init__(self, channel: ChannelId, form: ChannelSchema) -> None:
        self.id = channel
        self.form = form


def _source(
    internals: Internals,
    step: PhysicalStep,
    source: InputId,
    analyzed: Mapping[StepId, AnalyzedStep],
) -> ChannelSource:
    channel = _PlannedChannel(source.channel, analyzed[StepId(source.channel)].rows)
    return ChannelSource(internals, channel, ReaderId(step.name, source), Signal(), ReadOptions())


def _facts(step: PhysicalStep, analyzed_step: AnalyzedStep, default_partitions: int) -> StepFacts:
    natives = [
        native.describe()
        for native in analyzed_step.natives
        if not isinstance(native, EmptyBatchSource)
    ]
    return StepFacts(
        way=analyzed_step.execution_mode.value,
        is_stateful=analyzed_step.is_stateful,
        partitions=(step.options.partitions or default_partitions)
        if analyzed_step.is_stateful
        else None,
        has_watermark=analyzed_step.has_watermark,
        watermark=_watermark(analyzed_step.rows),
        sources=(*natives, *analyzed_step.foreign),
        columns=_columns(analyzed_step.schema),
        by_reference=analyzed_step.by_reference,
        why_by_reference=analyzed_step.why_by_reference,
    )


def _watermark(rows: ChannelSchema) -> tuple[str, int] | None:
    if rows.watermark is None:
        return None
    column, delay = rows.watermark
    return column, int(delay.removesuffix(" milliseconds"))


def _columns(schema: StructType) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
