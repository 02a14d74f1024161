"""Planning: what is inlined, where a channel is and why, and everything that is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.fake_spark import Frame, Session, Target, join, pass_on, read, run_cell

from cutwater import Pipeline, sinks
from cutwater.errors import PlanError
from cutwater.ids import ChannelId, InputId, ReaderId, SinkId, StepId
from cutwater.pipeline.nodes import SinkTarget, StepKeywords
from cutwater.planning.physical_plan import PhysicalPlan, PhysicalStep
from cutwater.planning.planner import plan
from cutwater.planning.rendering import StepFacts, draw

TABLE = Target("tables/t")
UPSERTS = frozenset({"append", "update"})


# As a user writes it, without the two lines of imports.
EXAMPLE = """
pipeline = Pipeline("orders")

@pipeline.source                       # any readStream: kafka, files, rate, a Python source
def orders(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("id long, amount double").json("incoming/orders")

@pipeline.view                         # inlined while it has one consumer
def valid(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 0")

@pipeline.step(output_mode="update", partitions=8, trigger="1s", max_batch="64MB")
def totals(valid: DataFrame) -> DataFrame:
    return valid.groupBy("customer").agg(F.sum("amount").alias("total"))

@pipeline.sink(sinks.delta("tables/totals", write="upsert", keys=["customer"]))
def totals_table(totals: DataFrame) -> DataFrame:
    return totals

pipeline.sink("big_orders", sinks.postgres(dsn="env:SHOP_DSN", table="big_orders"), \
    of=lambda valid: valid.where("amount > 1000"))
"""


class Sinks:
    """The targets of the example."""

    @staticmethod
    def delta(path: str, *, write: str, keys: list[str]) -> Target:
        return Target(f"{path} ({write} by {', '.join(keys)})", UPSERTS, "delta")

    @staticmethod
    def postgres(*, dsn: str, table: str) -> Target:
        return Target(table, frozenset({"append"}), f"postgres at {dsn}")


def orders_pipeline(*, with_big_orders: bool = True) -> Pipeline:
    """The pipeline that the documentation begins with."""
    pipeline = Pipeline("orders")

    @pipeline.source
    def orders(spark: Session) -> Frame:
        return spark.stream("incoming/orders")

    @pipeline.view
    def valid(orders: Frame) -> Frame:
        return orders.where("amount > 0")

    @pipeline.step(output_mode="update", partitions=8, trigger="1s", max_batch="64MB")
    def totals(valid: Frame) -> Frame:
        return valid.total_by("customer")

    @pipeline.sink(Target("tables/totals", UPSERTS, "delta"))
    def totals_table(totals: Frame) -> Frame:
        return totals

    if with_big_orders:
        pipeline.sink(
            "big_orders",
            Target("table big_orders", format="postgres"),
            of=lambda valid: valid.where("amount > 1000"),
        )
    assert callable(orders)
    assert callable(valid)
    assert callable(totals_table)
    return pipeline


def shape(planned: PhysicalPlan) -> dict[str, list[str]]:
    """For each step, the names of what it evaluates."""
    return {step.name: [node.name for node in step.nodes] for step in planned.steps}


def step(planned: PhysicalPlan, name: str) -> PhysicalStep:
    return planned[StepId(name)]


def channels(planned: PhysicalPlan, name: str) -> list[str]:
    """The channels that a step reads, in order."""
    return [str(step_input.id) for step_input in step(planned, name).inputs]


def reason(planned: PhysicalPlan, name: str) -> str:
    """Why there is a channel after the step."""
    output = step(planned, name).output
    assert output is not None
    return output.reason


def problems(pipeline: Pipeline) -> tuple[str, ...]:
    """What is wrong, each without the file that all of it is in."""
    with pytest.raises(PlanError) as caught:
        plan(pipeline)
    return tuple(problem.removeprefix(f"{__file__}:") for problem in caught.value.problems)


# The example.


def test_the_example_is_planned_as_it_is_written() -> None:
    program: dict[str, object] = {
        "Pipeline": Pipeline,
        "sinks": Sinks,
        "DataFrame": Frame,
        "SparkSession": Session,
    }
    run_cell(EXAMPLE, program, "<orders.py>")
    pipeline = program["pipeline"]
    assert isinstance(pipeline, Pipeline)

    planned = plan(pipeline)

    assert shape(planned) == shape(plan(orders_pipeline()))
    assert step(planned, "totals").nodes[0].function is program["totals"]


def test_the_example_has_one_channel_at_the_view_that_two_nodes_use() -> None:
    planned = plan(orders_pipeline())

    assert shape(planned) == {
        "valid": ["orders", "valid"],
        "big_orders": ["big_orders"],
        "totals": ["totals", "totals_table"],
    }
    assert channels(planned, "totals") == ["0:valid"]
    assert channels(planned, "big_orders") == ["0:valid"]


def test_the_example_without_its_second_sink_is_one_step() -> None:
    planned = plan(orders_pipeline(with_big_orders=False))

    assert shape(planned) == {"totals": ["orders", "valid", "totals", "totals_table"]}
    assert step(planned, "totals").inputs == ()
    assert step(planned, "totals").output is None


def test_adding_a_sink_changes_the_fingerprint_because_it_changes_the_inputs() -> None:
    with_sink = plan(orders_pipeline())
    without = plan(orders_pipeline(with_big_orders=False))

    assert with_sink.fingerprint != without.fingerprint
    assert with_sink.fingerprint == plan(orders_pipeline()).fingerprint


def test_the_example_keeps_the_options_of_its_step() -> None:
    totals = step(plan(orders_pipeline()), "totals")

    assert totals.output_mode == "update"
    assert (totals.options.partitions, totals.options.trigger_ms) == (8, 1_000)
    assert totals.options.max_batch_bytes == 64 * 1024**2


def test_the_example_becomes_a_topology() -> None:
    topology = plan(orders_pipeline()).topology(pinned_starts=[StepId("valid")])

    assert topology.sources == ("valid",)
    assert topology.sinks == ("big_orders", "totals_table")
    assert topology[StepId("totals")].sink == SinkId("totals_table")
    assert topology[StepId("valid")].pinned_start
    assert topology.readers(ChannelId("valid")) == (
        ReaderId(StepId("big_orders"), InputId(0, ChannelId("valid"))),
        ReaderId(StepId("totals"), InputId(0, ChannelId("valid"))),
    )


def test_a_source_has_no_pinned_start_unless_it_is_known() -> None:
    topology = plan(orders_pipeline()).topology()

    assert not topology[StepId("valid")].pinned_start


def test_a_step_evaluates_its_nodes_over_what_it_reads() -> None:
    planned = plan(orders_pipeline())

    rows = step(planned, "valid").evaluate(Session(), {})
    result = step(planned, "totals").evaluate(Session(), {InputId(0, ChannelId("valid")): rows})

    assert rows == Frame("incoming/orders.where(amount > 0)")
    assert result == Frame("incoming/orders.where(amount > 0).total_by(customer)")


# What is inlined and what is not.


def test_a_straight_pipeline_is_one_step_named_after_its_sink() -> None:
    pipeline = Pipeline("straight")
    pipeline.source(read, name="a")
    pipeline.view(pass_on, name="b", inputs=["a"])
    pipeline.sink("c", TABLE, of="b")

    assert shape(plan(pipeline)) == {"c": ["a", "b", "c"]}


def test_a_chain_of_views_longer_than_pythons_stack_is_one_step() -> None:
    pipeline = Pipeline("long")
    pipeline.source(read, name="v0")
    for number in range(1, 2_000):
        pipeline.view(pass_on, name=f"v{number}", inputs=[f"v{number - 1}"])
    pipeline.sink("out", TABLE, of="v1999")

    planned = plan(pipeline)

    assert [len(nodes) for nodes in shape(planned).values()] == [2_001]


def test_a_step_is_a_step_of_its_own_and_its_last_sink_runs_in_it() -> None:
    pipeline = Pipeline("two")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"])
    pipeline.step(pass_on, name="c", inputs=["b"])
    pipeline.sink("d", TABLE, of="c")

    planned = plan(pipeline)

    assert shape(planned) == {"b": ["a", "b"], "c": ["c", "d"]}
    assert reason(planned, "b") == "step b has its own state and pace, and is used by c"


def test_a_sink_after_a_view_runs_in_the_step_before_the_view() -> None:
    pipeline = Pipeline("tail")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"])
    pipeline.view(pass_on, name="c", inputs=["b"])
    pipeline.sink("d", TABLE, of="c")

    assert shape(plan(pipeline)) == {"b": ["a", "b", "c", "d"]}


def test_a_step_with_two_sinks_gives_both_a_step_of_their_own() -> None:
    pipeline = Pipeline("fan")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"])
    pipeline.sink("c", TABLE, of="b")
    pipeline.sink("d", TABLE, of="b")

    planned = plan(pipeline)

    assert shape(planned) == {"b": ["a", "b"], "c": ["c"], "d": ["d"]}
    assert reason(planned, "b") == (
        "step b has its own state and pace, and is used by c and d; "
        "a sink is written inside a step that feeds nothing else"
    )


def test_a_sink_that_combines_steps_is_a_step_of_its_own() -> None:
    pipeline = Pipeline("merge")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"])
    pipeline.step(pass_on, name="c", inputs=["b"])
    pipeline.source(read, name="d")
    pipeline.step(pass_on, name="e", inputs=["d"])
    pipeline.sink("f", TABLE, of=join, inputs=["c", "e"])

    planned = plan(pipeline)

    assert channels(planned, "f") == ["0:c", "1:e"]
    assert reason(planned, "e") == (
        "step e has its own state and pace, and is used by f; "
        "sink f combines several inputs, so it is written inside none of them"
    )


def test_several_sources_of_one_step_are_all_chained_into_it() -> None:
    pipeline = Pipeline("join")
    pipeline.source(read, name="a")
    pipeline.source(read, name="b")
    pipeline.view(pass_on, name="v", inputs=["b"])
    pipeline.step(join, name="c", inputs=["v", "a"])
    pipeline.sink("d", TABLE, of="c")

    planned = plan(pipeline)

    assert shape(planned) == {"c": ["b", "v", "a", "c", "d"]}
    assert [source.name for source in step(planned, "c").sources] == ["b", "a"]


def test_a_source_is_not_chained_into_a_step_that_reads_a_channel() -> None:
    pipeline = Pipeline("mixed")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"])
    pipeline.source(read, name="c")
    pipeline.view(pass_on, name="v", inputs=["c"])
    pipeline.step(join, name="d", inputs=["b", "v"])
    pipeline.sink("e", TABLE, of="d")

    planned = plan(pipeline)

    assert shape(planned) == {"b": ["a", "b"], "c": ["c"], "d": ["v", "d", "e"]}
    assert channels(planned, "d") == ["0:b", "1:c"]
    assert reason(planned, "c") == (
        "source c is not chained into d, which reads b as well: "
        "a step reads outside sources or channels, never both"
    )


def test_a_source_that_asks_for_its_own_pace_gets_a_channel() -> None:
    pipeline = Pipeline("pace")
    pipeline.source(read, name="a", chain=False)
    pipeline.source(read, name="b")
    pipeline.step(join, name="c", inputs=["a", "b"])
    pipeline.sink("d", TABLE, of="c")

    planned = plan(pipeline)

    assert shape(planned) == {"a": ["a"], "b": ["b"], "c": ["c", "d"]}
    assert reason(planned, "a") == "source a has chain=False: it runs at a pace of its own"


def test_a_source_with_several_uses_is_read_once() -> None:
    pipeline = Pipeline("shared")
    pipeline.source(read, name="a")
    pipeline.sink("b", TABLE, of="a")
    pipeline.sink("c", TABLE, of="a")

    planned = plan(pipeline)

    assert shape(planned) == {"a": ["a"], "b": ["b"], "c": ["c"]}
    assert reason(planned, "a") == (
        "source a is used by b and c: it is read once, for all its uses"
    )


def test_a_shared_view_has_the_channel_and_not_its_source() -> None:
    planned = plan(orders_pipeline())

    assert reason(planned, "valid") == (
        "view valid is used by big_orders and totals: "
        "it is evaluated once, and all its uses see the same rows"
    )


def test_a_self_join_reads_one_channel_twice() -> None:
    pipeline = Pipeline("self")
    pipeline.source(read, name="a")
    pipeline.view(pass_on, name="v", inputs=["a"])
    pipeline.step(join, name="b", inputs=["v", "v"])
    pipeline.sink("c", TABLE, of="b")

    planned = plan(pipeline)

    assert shape(planned) == {"v": ["a", "v"], "b": ["b", "c"]}
    assert channels(planned, "b") == ["0:v", "1:v"]
    assert "is used by b (2 times)" in reason(planned, "v")


def test_a_channel_read_through_two_views_of_one_step_is_two_inputs() -> None:
    pipeline = Pipeline("views")
    pipeline.source(read, name="a")
    pipeline.view(pass_on, name="left", inputs=["a"])
    pipeline.view(pass_on, name="right", inputs=["a"])
    pipeline.step(join, name="b", inputs=["right", "left"])
    pipeline.sink("c", TABLE, of="b")

    planned = plan(pipeline)

    assert [(str(step_input.id), step_input.node) for step_input in step(planned, "b").inputs] == [
        ("0:a", "right"),
        ("1:a", "left"),
    ]


# Output modes.


def test_an_update_mode_step_may_feed_a_step_that_names_the_keys() -> None:
    pipeline = Pipeline("updates")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="update")
    pipeline.view(pass_on, name="v", inputs=["b"])
    pipeline.source(read, name="s")
    pipeline.step(join, name="c", inputs=["v", "s"], updates=["customer"])
    pipeline.sink("d", TABLE, of="c")

    planned = plan(pipeline)

    assert [(str(step_input.id), step_input.keys) for step_input in step(planned, "c").inputs] == [
        ("0:b", ("customer",)),
        ("1:s", ()),
    ]


def test_an_update_mode_step_may_not_feed_a_step_that_counts_each_row() -> None:
    pipeline = Pipeline("updates")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="update")
    pipeline.view(pass_on, name="v", inputs=["b"])
    pipeline.step(pass_on, name="c", inputs=["v"])
    pipeline.sink("d", TABLE, of="c")
    line = pipeline.place.line

    (problem,) = problems(pipeline)

    assert problem.startswith(
        f"{line + 4}: step c (function pass_on) reads v, but step b (function pass_on) "
        f"({__file__}:{line + 2}) is in update mode"
    )
    assert "updates=[…]" in problem


def test_keys_of_updates_are_refused_if_no_input_has_updates() -> None:
    pipeline = Pipeline("updates")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], updates=["id"])
    pipeline.sink("c", TABLE, of="b")

    (problem,) = problems(pipeline)

    assert "step b (function pass_on) has updates=['id'], but nothing it reads is" in problem


def test_a_target_must_accept_the_mode_that_reaches_it() -> None:
    pipeline = Pipeline("modes")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="update")
    pipeline.view(pass_on, name="v", inputs=["b"])
    pipeline.sink("c", Target("files/c", frozenset({"append"})), of="v")
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line + 4}: sink c writes to files/c, which takes append mode, but step b "
        f"(function pass_on) ({__file__}:{line + 2}) is in update mode",
    )


def test_one_update_mode_input_makes_the_whole_result_updates() -> None:
    pipeline = Pipeline("modes")
    pipeline.source(read, name="a")
    pipeline.source(read, name="b")
    pipeline.step(pass_on, name="c", inputs=["b"], output_mode="update")
    pipeline.sink("d", Target("files/d", frozenset({"append"})), of=join, inputs=["a", "c"])

    (problem,) = problems(pipeline)

    assert "sink d (function join) writes to files/d, which takes append mode" in problem


def test_a_complete_result_may_go_to_sinks_through_views() -> None:
    pipeline = Pipeline("complete")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="complete")
    pipeline.view(pass_on, name="top", inputs=["b"])
    pipeline.sink("c", TABLE, of="top")
    pipeline.sink("d", TABLE, of="b")

    planned = plan(pipeline)

    assert [step.output_mode for step in planned.steps] == ["complete", "complete", "complete"]


def test_a_target_of_whole_results_alone_does_not_share_them() -> None:
    pipeline = Pipeline("complete")
    whole = Target("files/c", frozenset({"complete"}))
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="complete")
    pipeline.view(pass_on, name="top", inputs=["b"])
    pipeline.sink("c", whole, of="top")
    assert len(plan(pipeline).steps) == 1
    pipeline.sink("d", TABLE, of="b")

    (problem,) = problems(pipeline)

    assert "sink c takes whole results, but b is read by d and top" in problem
    assert "give the sink a step of its own" in problem


def test_a_sink_reads_updates_one_event_at_a_time() -> None:
    pipeline = Pipeline("updates")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="update")
    pipeline.step(pass_on, name="c", inputs=["b"], updates=["id"])
    pipeline.sink("d", TABLE, of="b")
    pipeline.sink("e", TABLE, of="c")

    inputs = {step.name: step.inputs for step in plan(pipeline).steps}

    assert [
        (step_input.by_event, step_input.batch_bytes(99)) for step_input in inputs[StepId("d")]
    ] == [(True, 1)]
    assert [
        (step_input.by_event, step_input.batch_bytes(99)) for step_input in inputs[StepId("c")]
    ] == [(False, 99)]


@pytest.mark.parametrize(("order_by", "by_event"), [((), True), (("at",), False)])
def test_a_sink_whose_readers_see_the_order_reads_one_event_at_a_time(
    order_by: tuple[str, ...], by_event: bool
) -> None:
    pipeline = Pipeline("ordered")
    pipeline.source(read, name="a", chain=False)
    topic = sinks.kafka("broker:9092", topic="t", value="json", staging="s", order_by=order_by)
    pipeline.sink("b", topic, of="a")

    (step_input,) = plan(pipeline).steps[-1].inputs

    assert step_input.by_event is by_event


def test_a_complete_result_may_go_to_no_step() -> None:
    pipeline = Pipeline("complete")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="complete")
    pipeline.step(pass_on, name="c", inputs=["b"])
    pipeline.sink("d", TABLE, of="c")

    (problem,) = problems(pipeline)

    assert "step c (function pass_on) cannot read b, since step b" in problem
    assert "which only a sink can take" in problem


def test_a_complete_result_may_not_be_combined_with_another_input() -> None:
    pipeline = Pipeline("complete")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="complete")
    pipeline.source(read, name="c")
    pipeline.sink("d", TABLE, of=join, inputs=["b", "c"])

    (problem,) = problems(pipeline)

    assert "sink d (function join) cannot combine b with other inputs" in problem


# What is refused.


def test_the_error_for_an_unknown_input_names_the_nearest_node() -> None:
    pipeline = Pipeline("typo")
    pipeline.source(read, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["orders"])
    pipeline.sink("table", TABLE, of="vaild")
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line + 3}: sink table reads vaild, but no node is called that; did you mean valid?",
    )


def test_the_error_for_an_input_called_like_a_function_names_its_node() -> None:
    pipeline = Pipeline("renamed")
    pipeline.source(read, name="orders-eu")
    pipeline.sink("table", TABLE, of=lambda read: read)

    (problem,) = problems(pipeline)

    assert problem.endswith("reads read, but no node is called that; did you mean orders-eu?")


def test_the_error_for_an_input_that_resembles_nothing_lists_all_nodes() -> None:
    pipeline = Pipeline("unknown")
    pipeline.source(read, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["orders"])
    pipeline.sink("table", TABLE, of="valid")
    pipeline.sink("other", TABLE, of="xyz")

    (problem,) = problems(pipeline)

    assert problem.endswith("it can read orders and valid")


def test_of_many_names_only_a_few_are_listed() -> None:
    pipeline = Pipeline("unknown")
    for number in range(20):
        pipeline.source(read, name=f"source-{number:02}")
        pipeline.sink(f"sink-{number:02}", TABLE, of=f"source-{number:02}")
    pipeline.sink("other", TABLE, of="xyz")

    (problem,) = problems(pipeline)

    assert problem.endswith("source-06, source-07 and 12 more")


def test_a_cycle_is_spelled_out() -> None:
    pipeline = Pipeline("cycle")
    pipeline.view(pass_on, name="b", inputs=["a"])
    pipeline.step(pass_on, name="a", inputs=["c"])
    pipeline.view(pass_on, name="c", inputs=["b"])
    pipeline.sink("table", TABLE, of="c")
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line + 2}: step a (function pass_on) reads its own output: a -> b -> c -> a; "
        "rows go one way only",
    )


def test_every_cycle_is_reported() -> None:
    pipeline = Pipeline("cycles")
    pipeline.view(pass_on, name="a", inputs=["a"])
    pipeline.view(pass_on, name="b", inputs=["c"])
    pipeline.view(pass_on, name="c", inputs=["b"])
    pipeline.sink("table", TABLE, of=join, inputs=["a", "b"])

    first, second = problems(pipeline)

    assert "a -> a;" in first
    assert "b -> c -> b;" in second


def test_the_error_for_a_pipeline_without_a_sink_names_a_place_for_one() -> None:
    pipeline = Pipeline("endless")
    pipeline.source(read, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["orders"])
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line}: the pipeline has no sink, so nothing would come out of it; "
        "end it with a sink of valid",
    )


def test_a_pipeline_without_nodes_has_no_sink() -> None:
    (problem,) = problems(Pipeline("empty"))

    assert problem.endswith("the pipeline has no sink, so nothing would come out of it")


def test_a_node_that_no_other_node_reads_is_refused() -> None:
    pipeline = Pipeline("unused")
    pipeline.source(read, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["orders"])
    pipeline.sink("table", TABLE, of="orders")
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line + 2}: view valid (function pass_on) is read by no other node; give it a sink or "
        "remove it",
    )


def test_a_sink_cannot_be_read() -> None:
    pipeline = Pipeline("through")
    pipeline.source(read, name="orders")
    pipeline.sink("table", TABLE, of="orders")
    pipeline.step(pass_on, name="more", inputs=["table"], updates=["id"])
    pipeline.sink("other", TABLE, of="more")
    line = pipeline.place.line

    assert problems(pipeline) == (
        f"{line + 3}: step more (function pass_on) reads sink table ({__file__}:{line + 2}), but "
        "rows leave the pipeline at a sink; read orders instead",
    )


def test_a_source_reads_no_other_node() -> None:
    pipeline = Pipeline("source")
    pipeline.source(join, name="orders")
    pipeline.sink("table", TABLE, of="orders")

    (problem,) = problems(pipeline)

    assert "source orders (function join) takes left, right, but a source reads no other" in problem


def test_the_error_for_a_step_without_inputs_suggests_a_source() -> None:
    pipeline = Pipeline("step")
    pipeline.step(read, name="orders")
    pipeline.sink("table", TABLE, of="orders")

    (problem,) = problems(pipeline)

    assert problem.endswith("reads no other node; if it reads an outside stream, it is a source")


def test_the_name_of_the_session_is_reserved() -> None:
    pipeline = Pipeline("reserved")
    pipeline.source(read, name="spark")
    pipeline.sink("table", TABLE, of="spark")

    (problem,) = problems(pipeline)

    assert "source spark (function read) has a reserved name" in problem


def test_parameters_without_names_are_refused() -> None:
    pipeline = Pipeline("parameters")
    pipeline.source(read, name="orders")

    @pipeline.view
    def packed(*frames: Frame) -> Frame:
        return frames[0]

    @pipeline.view
    def named(**frames: Frame) -> Frame:
        return frames["orders"]

    @pipeline.view
    def placed(orders: Frame, /) -> Frame:
        return orders

    pipeline.sink("table", TABLE, of=packed)

    found = problems(pipeline)

    assert ["packed takes *frames" in found[0], "named takes **frames" in found[1]] == [True, True]
    assert "placed takes orders by position only, and inputs are given by name" in found[2]
    assert callable(named)
    assert callable(placed)


def test_a_callable_without_a_signature_is_refused() -> None:
    pipeline = Pipeline("builtin")
    pipeline.source(read, name="orders")
    pipeline.view(getattr, name="odd")
    pipeline.sink("table", TABLE, of="orders")

    (problem,) = problems(pipeline)

    assert problem.endswith("is a callable whose parameters cannot be seen")


def test_inputs_must_fill_the_parameters_exactly() -> None:
    pipeline = Pipeline("count")
    pipeline.source(read, name="orders")
    pipeline.sink("table", TABLE, of=join, inputs=["orders"])

    (problem,) = problems(pipeline)

    assert problem.endswith(
        "sink table (function join) has 2 parameters (left, right) to fill, "
        "but inputs= gives 1 name (orders)"
    )


def test_everything_that_is_wrong_is_said_at_once_and_in_the_order_of_lines() -> None:
    pipeline = Pipeline("wrong")
    pipeline.source(join, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["ordres"])
    pipeline.step(pass_on, name="spark", inputs=["valid"], output_mode="update")
    pipeline.sink("table", Target("t", frozenset({"append"})), of="spark")
    line = pipeline.place.line

    with pytest.raises(PlanError) as caught:
        plan(pipeline)

    message = str(caught.value)
    assert [problem.split(":")[1] for problem in caught.value.problems] == [
        str(line + offset) for offset in (1, 2, 3, 4)
    ]
    assert message.startswith("[CW-103] pipeline wrong has 4 problems:\n  ")
    assert message.endswith("\nChange the pipeline and plan it again; nothing was started.")


# How a plan is shown.


def test_the_tree_shows_steps_channels_sinks_and_why() -> None:
    pipeline = orders_pipeline()
    lines = {node.name: node.place.short for node in pipeline.nodes}

    drawn = plan(pipeline).tree()

    assert drawn == "\n".join(
        [
            "pipeline orders: 3 steps, 1 channel, 2 sinks",
            "├── step valid (append mode)",
            f"│   ├── source orders  [{lines['orders']}]",
            f"│   ├── view valid  [{lines['valid']}]",
            "│   └── channel valid → big_orders, totals",
            "│       why: view valid is used by big_orders and totals: it is evaluated once, "
            "and all its uses see the same rows",
            "├── step big_orders (append mode)",
            "│   ├── reads channel valid as big_orders(valid)",
            f"│   └── sink big_orders → postgres table big_orders  [{lines['big_orders']}]",
            "│       commits at every checkpoint, visibility checkpoint",
            "└── step totals (update mode, partitions 8, trigger 1s, max_batch 64MB)",
            "    ├── reads channel valid as totals(valid)",
            f"    ├── step totals  [{lines['totals']}]",
            f"    └── sink totals_table → delta tables/totals  [{lines['totals_table']}]",
            "        commits at every checkpoint, visibility checkpoint",
        ]
    )


def test_every_sink_says_how_it_is_written_and_when_its_rows_are_seen() -> None:
    def nothing(*_: object) -> None:
        """Be the writer of a sink that is never run."""

    pipeline = Pipeline("many")
    pipeline.source(read, name="rows")
    targets: dict[str, SinkTarget] = {
        "early": sinks.delta("t/early", commit_every="90s", visibility="batch"),
        "keyed": sinks.delta("t/keyed", write="upsert", keys=["shop", "day"]),
        "shop": sinks.postgres("env:DSN", table="shop", write="upsert", keys=["id"]),
        "log": sinks.postgres("env:DSN", table="log"),
        "csv": sinks.files("t/csv", "csv"),
        "hive": sinks.table("db.t"),
        "own": sinks.foreach_batch(nothing, staging="t/staging"),
        "shown": sinks.console(),
    }
    for name, target in targets.items():
        pipeline.sink(name, target, of="rows")
    planned = plan(pipeline)

    lines = [line.strip("│└├─ ") for line in planned.tree().splitlines()]
    at = {line.split()[1]: number for number, line in enumerate(lines) if line[:5] == "sink "}
    early = "commit_every 90 s as sink early wants, visibility checkpoint"
    assert {name: lines[number + 1] for name, number in at.items()} == {
        "early": "write append, commit_every 90 s, visibility batch",
        "keyed": f"write upsert by shop, day, {early}",
        "shop": f"write upsert by id, {early}",
        "log": f"write append, {early}",
        "csv": f"write append, {early}",
        "hive": f"write append, {early}",
        "own": early,
        "shown": early,
    }
    written = {step["name"]: step["sink"] for step in as_dicts(planned.to_json()["steps"])}
    shown = ("format", "write", "keys", "commit_every_ms", "visibility")
    assert {
        name: [entry[field] for field in shown] for name, entry in written.items() if entry
    } == {
        "early": ["delta", "append", [], 90_000, "batch"],
        "keyed": ["delta", "upsert", ["shop", "day"], None, "checkpoint"],
        "shop": ["postgres", "upsert", ["id"], None, "checkpoint"],
        "log": ["postgres", "append", [], None, "checkpoint"],
        "csv": ["csv", "append", [], None, "checkpoint"],
        "hive": ["table", "append", [], None, "checkpoint"],
        "own": ["foreach_batch", None, [], None, "checkpoint"],
        "shown": ["console", None, [], None, "checkpoint"],
    }


def as_dicts(values: object) -> list[dict[str, Any]]:
    assert isinstance(values, list)
    return values


def test_the_tree_shows_which_keys_an_input_is_reduced_by() -> None:
    pipeline = Pipeline("updates")
    pipeline.source(read, name="a")
    pipeline.step(pass_on, name="b", inputs=["a"], output_mode="update")
    pipeline.step(pass_on, name="c", inputs=["b"], updates=["shop", "customer"])
    pipeline.sink("d", TABLE, of="c")

    drawn = plan(pipeline).tree()

    assert "reads channel b as c(one), newest row of each shop, customer" in drawn


def test_the_tree_shows_what_spark_says_of_the_steps_it_was_asked_about() -> None:
    pipeline = orders_pipeline()
    counts = StepFacts(
        way="query",
        is_stateful=True,
        partitions=1,
        has_watermark=True,
        watermark=("at", 2500),
        sources=(),
        columns=(("customer", "string"), ("total", "double")),
    )
    inside = replace(counts, way="batch", is_stateful=False, partitions=None, watermark=None)

    drawn = draw(plan(pipeline), {StepId("totals"): counts, StepId("big_orders"): inside})

    lines = [line.strip("│└├─ ") for line in drawn.splitlines()]
    assert [line for line in lines if line.startswith(("runs", "rows"))] == [
        "runs as batches, keeps no state, watermark inside",
        "rows: customer string, total double",
        "runs as a query, keeps state in 1 partition, watermark 2.5 s behind at",
        "rows: customer string, total double",
    ]


def test_the_json_of_a_step_has_all_that_the_tree_has() -> None:
    pipeline = orders_pipeline()
    place = pipeline.nodes[3].place

    written = json.loads(json.dumps(plan(pipeline).to_json()))

    assert (written["version"], written["pipeline"]) == (1, "orders")
    assert written["fingerprint"] == plan(pipeline).fingerprint
    totals = written["steps"][2]
    assert totals["nodes"][1] == {
        "name": "totals_table",
        "kind": "sink",
        "function": "totals_table",
        "file": place.file,
        "line": place.line,
        "inputs": [{"parameter": "totals", "node": "totals"}],
    }
    del totals["nodes"]
    assert totals == {
        "name": "totals",
        "output_mode": "update",
        "partitions": 8,
        "state": None,
        "trigger_ms": 1_000,
        "max_batch_bytes": 64 * 1024**2,
        "alignment_timeout_ms": None,
        "unaligned": None,
        "overtakes": True,
        "sources": [],
        "inputs": [
            {
                "ordinal": 0,
                "channel": "valid",
                "node": "totals",
                "parameter": "valid",
                "keys": [],
            }
        ],
        "sink": {
            "name": "totals_table",
            "format": "delta",
            "target": "tables/totals",
            "accepts": ["append", "update"],
            "write": None,
            "keys": [],
            "commit_every_ms": None,
            "visibility": "checkpoint",
        },
        "channel": None,
        "spark": None,
    }


def test_the_json_of_a_channel_names_its_readers_and_its_reason() -> None:
    planned = plan(orders_pipeline())

    valid = json.loads(json.dumps(planned.to_json()))["steps"][0]

    assert valid["sources"] == ["orders"]
    assert valid["sink"] is None
    assert valid["channel"] == {
        "name": "valid",
        "readers": [{"step": "big_orders", "ordinal": 0}, {"step": "totals", "ordinal": 0}],
        "reason": reason(planned, "valid"),
    }


def test_a_step_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(KeyError):
        step(plan(orders_pipeline()), "nowhere")


# Alignment, step by step.


def branches(**options: StepKeywords) -> Pipeline:
    """A view that two steps read, the second of which is read by a third; each with its options."""
    pipeline = Pipeline("branches")
    pipeline.source(read, name="orders")
    pipeline.view(pass_on, name="valid", inputs=["orders"])
    reads = {"one": "valid", "two": "valid", "three": "two"}
    for name, producer in reads.items():
        given: StepKeywords = {
            "name": name,
            "inputs": [producer],
            **options.get(name, StepKeywords()),
        }
        pipeline.step(pass_on, **given)
    pipeline.sink("first", TABLE, of="one")
    pipeline.sink("second", Target("tables/u"), of="two")
    pipeline.sink("third", Target("tables/v"), of="three")
    return pipeline


def test_what_a_step_says_of_alignment_reaches_the_protocol_and_is_shown() -> None:
    planned = plan(branches(one={"alignment_timeout": "2s"}, two={"unaligned": "forced"}))

    topology = planned.topology()
    one, two, three = (topology[StepId(name)] for name in ("one", "two", "three"))
    assert (one.alignment_timeout_ms, one.forced, one.is_sink) == (2_000, None, False)
    assert (two.alignment_timeout_ms, two.forced, two.is_sink) == (None, True, False)
    assert (three.alignment_timeout_ms, three.forced, three.is_sink) == (None, None, False)
    tree = draw(planned)
    assert "step one (append mode, alignment_timeout 2s)" in tree
    assert "step two (append mode, unaligned forced)" in tree
    written = {raw["name"]: raw for raw in planned.to_json()["steps"]}  # type: ignore[attr-defined]
    assert written["one"]["alignment_timeout_ms"] == 2_000
    assert (written["two"]["unaligned"], written["two"]["overtakes"]) == ("forced", True)
    assert [written["valid"]["overtakes"], written["valid"]["unaligned"]] == [False, None]


def test_a_step_that_never_overtakes_says_so_and_so_does_what_feeds_it() -> None:
    planned = plan(branches(three={"unaligned": False}))

    whole = [step.step for step in planned.topology().steps if step.is_sink]
    assert whole == ["valid", "two", "three"]
    tree = draw(planned)
    assert "step two (append mode, never overtakes)" in tree
    assert "step three (append mode, never overtakes)" in tree
    assert "step one (append mode)" in tree
    assert "step valid (append mode)" in tree


def test_a_step_that_overtakes_before_one_that_never_does_is_refused() -> None:
    given: StepKeywords = {"alignment_timeout": "2s", "unaligned": True}

    (problem,) = problems(branches(two=given, three={"unaligned": False}))

    assert "step two (function pass_on) has unaligned=True and alignment_timeout='2s'" in problem
    assert "step three (function pass_on)" in problem
    assert "has unaligned=False, so no barrier may overtake before it" in problem


def test_a_step_that_meets_no_barrier_cannot_wait_for_one() -> None:
    pipeline = Pipeline("straight")
    pipeline.source(read, name="orders")
    pipeline.step(pass_on, name="one", inputs=["orders"], alignment_timeout="2s")
    pipeline.sink("first", TABLE, of="one")

    (problem,) = problems(pipeline)

    assert "has alignment_timeout='2s', but it reads outside sources and no channel" in problem
