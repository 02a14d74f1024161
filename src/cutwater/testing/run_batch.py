"""Runs a pipeline's functions on static DataFrames: what every sink would get, in seconds.

For unit tests of user code. Sources are replaced, every other function is called once, in
the order of the plan, and Spark runs nothing until a result is read; no stream is started, no
sink is opened and nothing is stored.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cutwater.errors import ConfigError, PlanError
from cutwater.pipeline.nodes import Kind, Node
from cutwater.planning.planner import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cutwater.pipeline.pipeline import Pipeline


def run_batch(
    pipeline: "Pipeline", frames: Mapping[str, "DataFrame"], spark: "SparkSession | None" = None
) -> dict[str, "DataFrame"]:
    """Call a pipeline's functions on static DataFrames and return what each sink would get.

    It is the result over all rows at once, which differs from that of a stream where time matters:
    a watermark has no effect, so late rows count too and windows that a stream would still hold
    back appear; a step in update or complete mode gives its final table once, one row for each key,
    and `updates=` has nothing left to do. `transformWithState` gets all rows of a key in one call
    (its timers fire after that); what Spark refuses in batch, such as `applyInPandasWithState`,
    raises here. An error of a function is raised unchanged.

    Args:
        pipeline: The pipeline; it is planned, so the errors of `cutwater plan` are raised here.
        frames: For every source, by its name, the rows it has.
        spark: The session for functions that take one; that of the first frame by default.

    Returns:
        For every sink, by its name, its rows.

    Raises:
        ConfigError: If a source has no DataFrame, or another name was given; the message lists all.
        PlanError: If the pipeline cannot be planned, or a function returns no batch DataFrame.
    """
    planned = plan(pipeline)
    nodes = [node for step in planned.steps for node in step.nodes]
    _check_frames({node.name for node in nodes if node.kind is Kind.SOURCE}, frames)
    session = spark if spark is not None else next(iter(frames.values())).sparkSession
    results: dict[str, DataFrame] = {}
    for node in nodes:
        if node.kind is Kind.SOURCE:
            results[node.name] = frames[node.name]
        else:
            inputs = {parameter: results[producer] for parameter, producer in node.inputs}
            results[node.name] = _batch_frame(pipeline, node, node.call(session, inputs))
    return {node.name: results[node.name] for node in nodes if node.kind is Kind.SINK}


def _check_frames(sources: set[str], frames: Mapping[str, object]) -> None:
    problems = []
    missing = sorted(sources - set(frames))
    if missing:
        problems.append(f"no DataFrame is given for {_sources(missing)}")
    unknown = sorted(set(frames) - sources)
    if unknown:
        known = ", ".join(sorted(sources))
        problems.append(f"{', '.join(unknown)}: no such source; the pipeline has {known}")
    problems += [
        f"{name} must be {_WANTED}, not {found}"
        for name in sorted(sources & set(frames))
        if (found := _what(frames[name])) != _WANTED
    ]
    if problems:
        raise ConfigError("frames", "; ".join(problems))


_WANTED = "a static DataFrame"


def _what(value: object) -> str:
    from pyspark.sql import DataFrame  # noqa: PLC0415 - the simulation needs no Spark

    if not isinstance(value, DataFrame):
        return type(value).__name__
    return "a streaming DataFrame" if value.isStreaming else _WANTED


def _batch_frame(pipeline: "Pipeline", node: Node, result: object) -> "DataFrame":
    found = _what(result)
    if found != _WANTED:
        problem = f"{node.place}: {node.title} returns {found}, not {_WANTED}."
        raise PlanError(pipeline.name, problem)
    return result  # type: ignore[return-value]


def _sources(names: list[str]) -> str:
    return f"source{'' if len(names) == 1 else 's'} {', '.join(names)}"
