"""What Spark says of a planned pipeline before anything runs: `cutwater plan` shows it.

The steps' functions are called as at a start, in the order of the plan, on streams that stand for
channels; so everything that a start would refuse is found here. No query is started, and neither a
store, a scratch directory nor a sink is touched.
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
from cutwater.spark.analysis.analysis import Analysis, StepForm
from cutwater.spark.analysis.self_reads import OwnTargets
from cutwater.spark.jvm.channel_source import ChannelSource, Reading
from cutwater.spark.jvm.empty_batch_source import PulseSource
from cutwater.spark.jvm.internals import Internals

_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def explain(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, StepFacts]:
    """Call every step's functions once or twice and say what Spark makes of them.

    Args:
        plan: The planned pipeline.
        spark: A session as a run would have it; its defaults are part of the answer.

    Returns:
        For every step, what is known of it.

    Raises:
        PlanError: With everything that Spark would refuse; it names the function and line.
        SessionError: If no pipeline can run in such a session.
    """
    return facts_of(plan, look(plan, spark), spark)


def facts_of(
    plan: PhysicalPlan, forms: Mapping[StepId, StepForm], spark: SparkSession
) -> Mapping[StepId, StepFacts]:
    """Say of every step what is shown of it."""
    default = int(str(spark.conf.get(_PARTITIONS)))
    return {step.name: _facts(step, forms[step.name], default) for step in plan.steps}


def identities(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, StepIdentity]:
    """Say what every step is, as a manifest would; each step after those it reads from.

    Raises:
        PlanError: With everything that Spark would refuse; it names the function and line.
        SessionError: If no pipeline can run in such a session.
    """
    forms = look(plan, spark)
    return {step.name: forms[step.name].identity for step in plan.steps}


def look(plan: PhysicalPlan, spark: SparkSession) -> Mapping[StepId, StepForm]:
    """Call every step's functions and return each step as Spark sees it.

    Raises:
        PlanError: With everything that Spark would refuse; it names the function and line.
        SessionError: If no pipeline can run in such a session.
    """
    internals = Internals(spark)
    internals.self_check()
    analysis = Analysis(internals, OwnTargets.of(plan, spark))
    forms: dict[StepId, StepForm] = {}
    for step in plan.steps:
        # A step behind one that is wrong cannot be looked at: its columns are not known.
        if all(StepId(one.id.channel) in forms for one in step.inputs):
            # Held while it is looked at: a source is known by its name only while it lives.
            sources = {one.id: _source(internals, step, one.id, forms) for one in step.inputs}
            form = analysis.look(step, {key: one.frame() for key, one in sources.items()})
            if form is not None:
                forms[step.name] = form
    if analysis.problems:
        raise PlanError(plan.pipeline, *analysis.problems)
    return forms


class _PlannedChannel(Channel):
    """A channel without files, which nobody will read: a name and what its rows look like."""

    def __init__(self, channel: ChannelId, form: ChannelSchema) -> None:
        self.id = channel
        self.form = form


def _source(
    internals: Internals,
    step: PhysicalStep,
    source: InputId,
    forms: Mapping[StepId, StepForm],
) -> ChannelSource:
    channel = _PlannedChannel(source.channel, forms[StepId(source.channel)].rows)
    return ChannelSource(internals, channel, ReaderId(step.name, source), Signal(), Reading())


def _facts(step: PhysicalStep, form: StepForm, default_partitions: int) -> StepFacts:
    natives = [one.describe() for one in form.natives if not isinstance(one, PulseSource)]
    return StepFacts(
        way=form.way.value,
        is_stateful=form.is_stateful,
        partitions=(step.options.partitions or default_partitions) if form.is_stateful else None,
        has_watermark=form.has_watermark,
        watermark=_watermark(form.rows),
        sources=(*natives, *form.foreign),
        columns=_columns(form.schema),
    )


def _watermark(rows: ChannelSchema) -> tuple[str, int] | None:
    if rows.watermark is None:
        return None
    column, delay = rows.watermark
    return column, int(delay.removesuffix(" milliseconds"))


def _columns(schema: StructType) -> tuple[tuple[str, str], ...]:
    return tuple((one.name, one.dataType.simpleString()) for one in schema.fields)
