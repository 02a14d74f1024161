"""Declaring a pipeline: forms, names, options, and which nodes may share a name."""

import functools
from pathlib import Path

import pytest
from tests.unit import fake_spark
from tests.unit.fake_spark import Frame, Session, Target, join, line_of, pass_on, read, run_cell

from cutwater import Pipeline
from cutwater.config.options import Unaligned
from cutwater.errors import ConfigError, DeclarationError
from cutwater.pipeline.nodes import Binding, Kind, Node, SinkTarget, SourceLocation, StepOptions

TABLE = Target("tables/t")


def only(pipeline: Pipeline) -> Node:
    (node,) = pipeline.nodes
    return node


def names(pipeline: Pipeline) -> list[str]:
    return [node.name for node in pipeline.nodes]


def inputs(node: Node) -> list[str]:
    return [binding.node for binding in node.inputs]


# The forms of a declaration.


def test_a_bare_decorator_returns_the_plain_function() -> None:
    pipeline = Pipeline("orders")

    @pipeline.view
    def valid(orders: Frame) -> Frame:
        return orders.where("amount > 0")

    assert only(pipeline).function is valid
    assert valid(Frame("orders")) == Frame("orders.where(amount > 0)")


def test_a_called_decorator_returns_the_plain_function() -> None:
    pipeline = Pipeline("orders")

    @pipeline.step(output_mode="update", partitions=8, trigger="1s", max_batch="64MB")
    def totals(valid: Frame) -> Frame:
        return valid.total_by("customer")

    assert only(pipeline).function is totals
    assert totals(Frame("valid")) == Frame("valid.total_by(customer)")


def test_a_function_can_be_declared_by_a_call() -> None:
    pipeline = Pipeline("orders")

    returned = pipeline.step(join, name="both", inputs=["a", "b"])

    assert returned is join
    assert only(pipeline).inputs == (Binding("left", "a"), Binding("right", "b"))


def test_pipelines_are_made_in_a_loop() -> None:
    pipeline = Pipeline("estate")
    tables = ["customers", "orders", "parts"]

    for table in tables:
        pipeline.source(lambda spark, path=table: spark.stream(path), name=table)
        pipeline.sink(f"{table}-copy", TABLE, of=table)

    assert names(pipeline)[:2] == ["customers", "customers-copy"]
    assert pipeline.nodes[2].call(Session(), {}) == Frame("orders")


def test_a_name_stands_in_for_the_functions_own() -> None:
    pipeline = Pipeline("orders")

    @pipeline.view(name="valid-2")
    def valid(orders: Frame) -> Frame:
        return orders

    assert only(pipeline).name == "valid-2"
    assert only(pipeline).title == "view valid-2 (function valid)"
    assert valid is only(pipeline).function


def test_a_partial_function_is_declared_under_a_name() -> None:
    pipeline = Pipeline("orders")

    pipeline.view(functools.partial(Frame.where, condition="x"), name="v", inputs=["orders"])

    assert only(pipeline).call(Session(), {"self": Frame("orders")}) == Frame("orders.where(x)")
    assert only(pipeline).title == "view v"


# What a function's parameters mean.


def test_parameters_name_the_inputs_in_their_order() -> None:
    pipeline = Pipeline("orders")

    @pipeline.step
    def joined(orders: Frame, customers: Frame) -> Frame:
        return orders.join(customers)

    assert inputs(only(pipeline)) == ["orders", "customers"]
    assert only(pipeline).function is joined


def test_spark_is_the_session_for_any_node_that_asks() -> None:
    pipeline = Pipeline("orders")

    @pipeline.step
    def enriched(orders: Frame, spark: Session) -> Frame:
        return orders.join(spark.stream("countries"))

    result = only(pipeline).call(Session(), {"orders": Frame("orders")})

    assert inputs(only(pipeline)) == ["orders"]
    assert result == enriched(Frame("orders"), Session())


def test_a_parameter_with_a_default_is_not_an_input() -> None:
    pipeline = Pipeline("orders")

    @pipeline.view
    def large(orders: Frame, *, limit: int = 1000) -> Frame:
        return orders.where(f"amount > {limit}")

    result = only(pipeline).call(Session(), {"orders": Frame("orders")})

    assert inputs(only(pipeline)) == ["orders"]
    assert result == large(Frame("orders"))


def test_one_string_is_not_a_list_of_inputs() -> None:
    with pytest.raises(ConfigError, match=r"inputs: 'ab' is not a list of names"):
        Pipeline("orders").view(join, inputs="ab")


# Sinks.


def test_a_sink_is_declared_by_a_decorator_with_its_target() -> None:
    pipeline = Pipeline("orders")

    @pipeline.sink(TABLE)
    def totals_table(totals: Frame) -> Frame:
        return totals

    assert (only(pipeline).kind, only(pipeline).target) == (Kind.SINK, TABLE)
    assert totals_table(Frame("totals")) == Frame("totals")


def test_a_sink_decorator_may_be_given_the_name_first() -> None:
    pipeline = Pipeline("orders")

    @pipeline.sink("table", TABLE)
    def rows(totals: Frame) -> Frame:
        return totals

    assert only(pipeline).title == "sink table (function rows)"
    assert only(pipeline).function is rows


def test_a_sink_of_a_function_reads_that_functions_parameters() -> None:
    pipeline = Pipeline("orders")

    pipeline.sink("big", TABLE, of=lambda valid: valid.where("amount > 1000"))

    assert inputs(only(pipeline)) == ["valid"]


def test_a_sink_of_a_function_takes_inputs_for_its_parameters() -> None:
    pipeline = Pipeline("orders")

    pipeline.sink("both", TABLE, of=join, inputs=["a", "b"])

    assert inputs(only(pipeline)) == ["a", "b"]


def test_a_sink_of_a_declared_function_takes_that_node_as_it_is() -> None:
    pipeline = Pipeline("orders")
    totals = pipeline.step(pass_on, name="totals", inputs=["orders"])

    pipeline.sink("table", TABLE, of=totals)

    sink = pipeline.nodes[1]
    assert inputs(sink) == ["totals"]
    assert sink.call(Session(), {"frame": Frame("totals")}) == Frame("totals")


def test_a_sink_of_a_name_takes_that_node_as_it_is_even_if_it_comes_later() -> None:
    pipeline = Pipeline("orders")

    pipeline.sink("table", TABLE, of="totals")

    assert inputs(only(pipeline)) == ["totals"]


def test_a_function_that_is_several_nodes_must_be_given_by_name() -> None:
    pipeline = Pipeline("orders")
    pipeline.view(pass_on, name="a", inputs=["orders"])
    pipeline.view(pass_on, name="b", inputs=["orders"])

    with pytest.raises(DeclarationError, match=r"several nodes \(a, b\); give a node's name"):
        pipeline.sink("table", TABLE, of=pass_on)


def test_a_node_taken_as_it_is_needs_no_inputs() -> None:
    with pytest.raises(DeclarationError, match="of= is the node totals, which needs no inputs="):
        Pipeline("orders").sink("table", TABLE, of="totals", inputs=["totals"])


def test_a_sink_without_a_target_says_how_to_write_one() -> None:
    with pytest.raises(
        DeclarationError, match=r"a sink needs a target .*@pipeline\.sink\(target\)"
    ):
        Pipeline("orders").sink(pass_on)  # type: ignore[call-overload]


def test_a_sink_with_only_a_name_says_how_to_write_one() -> None:
    with pytest.raises(DeclarationError, match="a sink needs a target"):
        Pipeline("orders").sink("table")  # type: ignore[call-overload]


def test_anything_with_the_three_members_is_a_target() -> None:
    assert isinstance(TABLE, SinkTarget)
    assert not isinstance(object(), SinkTarget)


# Options.


def test_options_are_kept_as_written_and_read_as_numbers() -> None:
    pipeline = Pipeline("orders")

    pipeline.step(pass_on, trigger="1s", max_batch="64MB", partitions=8, updates=["id"])

    options = only(pipeline).options
    assert options == StepOptions(trigger="1s", max_batch="64MB", partitions=8, updates=("id",))
    assert (options.trigger_ms, options.max_batch_bytes) == (1_000, 64 * 1024**2)


def test_a_step_without_options_runs_at_once_in_append_mode() -> None:
    options = StepOptions()

    assert options.output_mode == "append"
    assert (options.trigger_ms, options.max_batch_bytes, options.partitions) == (None, None, None)


def test_a_source_can_refuse_to_be_chained() -> None:
    pipeline = Pipeline("orders")

    @pipeline.source(chain=False)
    def orders(spark: Session) -> Frame:
        return spark.stream("orders")

    assert not only(pipeline).options.chain
    assert only(pipeline).function is orders


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("output_mode", "upsert", "'upsert' is none of append, update, complete"),
        ("partitions", 0, "0 is not a whole number above 0"),
        ("partitions", True, "True is not a whole number above 0"),
        ("partitions", "8", "'8' is not a whole number above 0"),
        ("trigger", "soon", "'soon' is not a duration"),
        ("trigger", "0s", "'0s' is no time"),
        ("max_batch", "0MB", "'0MB' would never read anything"),
        ("max_batch", "64", "'64' is not a size"),
        ("updates", "customer", "'customer' is not a list of columns"),
        ("updates", [1], "is not a list of columns"),
        ("updates", None, "None is not a list of columns"),
        ("alignment_timeout", "soon", "'soon' is not a duration"),
        ("alignment_timeout", 5, "5 has no unit"),
        ("unaligned", "yes", "'yes' is none of True, False, 'forced'"),
        ("unaligned", 0, "0 is none of True, False, 'forced'"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(
    option: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Pipeline("orders").step(pass_on, **{option: value})  # type: ignore[call-overload]

    assert caught.value.option == option


@pytest.mark.parametrize(
    ("unaligned", "why"), [(False, "never overtakes"), ("forced", "overtakes at once")]
)
def test_a_patience_that_has_no_effect_is_refused(unaligned: Unaligned, why: str) -> None:
    said = f"'1s' has no effect with unaligned={unaligned!r}, since the step {why}"
    with pytest.raises(ConfigError, match=f"alignment_timeout: {said}"):
        Pipeline("orders").step(pass_on, alignment_timeout="1s", unaligned=unaligned)


def test_the_error_for_a_misspelled_option_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match="a step has no such option; output_mode may be meant"):
        Pipeline("orders").step(pass_on, output_modes="update")  # type: ignore[call-overload]


def test_an_option_of_another_kind_of_node_is_refused() -> None:
    with pytest.raises(ConfigError, match="trigger: a source has no such option; it takes chain"):
        Pipeline("orders").source(read, trigger="1s")  # type: ignore[call-overload]


# Names and places.


@pytest.mark.parametrize("name", ["orders", "Orders_2", "eu-orders", "_x", "2024-orders"])
def test_a_name_has_letters_digits_underscores_and_hyphens(name: str) -> None:
    assert Pipeline(name).name == name


@pytest.mark.parametrize("name", ["my orders", "-x", "a/b", "..", "größe", "a\n", 7])
def test_another_name_is_refused_with_what_a_name_may_have(name: object) -> None:
    with pytest.raises(DeclarationError, match=r"cannot be the name of a pipeline: a name has"):
        Pipeline(name)  # type: ignore[arg-type]


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(DeclarationError, match="has 101 characters, at most 100 are possible"):
        Pipeline("orders").view(pass_on, name="x" * 101)


def test_an_empty_name_is_none() -> None:
    with pytest.raises(DeclarationError, match="a pipeline needs a name"):
        Pipeline("")


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(DeclarationError, match="a view needs a name; give it one with name="):
        Pipeline("orders").view(lambda orders: orders)


def test_a_node_is_made_of_a_function() -> None:
    with pytest.raises(DeclarationError, match="a step is made of a function, not of 'totals'"):
        Pipeline("orders").step("totals", name="x")  # type: ignore[call-overload]


def test_a_node_knows_the_line_of_its_declaration() -> None:
    pipeline = Pipeline("orders")

    @pipeline.step(
        output_mode="update",
        trigger="1s",
    )
    def totals(orders: Frame) -> Frame:
        return orders

    assert only(pipeline).place == SourceLocation(__file__, line_of(totals))
    assert only(pipeline).place.short == f"test_pipeline.py:{line_of(totals)}"


def test_a_node_of_a_borrowed_function_knows_the_line_of_the_call() -> None:
    pipeline = Pipeline("orders")
    pipeline.view(pass_on)

    assert only(pipeline).place == SourceLocation(__file__, pipeline.place.line + 1)


def test_a_pipeline_is_printed_node_by_node() -> None:
    pipeline = Pipeline("orders")
    pipeline.source(read, name="orders")
    pipeline.step(join, inputs=["orders", "orders"])
    pipeline.sink("table", TABLE, of=join)

    assert repr(pipeline) == (
        "Pipeline('orders'): 1 source, 1 step, 1 sink\n"
        "  source orders()\n"
        "  step join(orders, orders)\n"
        "  sink table(join) -> tables/t"
    )


def test_a_pipeline_without_nodes_is_printed_as_such() -> None:
    assert repr(Pipeline("orders")) == "Pipeline('orders'): no nodes"


# Declaring a name again.

CELL = "@pipeline.{kind}\ndef valid(orders):\n    return orders.where('{condition}')\n"


def test_a_cell_that_is_run_again_replaces_its_node() -> None:
    pipeline = Pipeline("orders")
    notebook: dict[str, object] = {"pipeline": pipeline}
    run_cell(CELL.format(kind="view", condition="amount > 0"), notebook)
    pipeline.sink("table", TABLE, of="valid")

    run_cell(CELL.format(kind="step", condition="amount > 1"), notebook)

    assert names(pipeline) == ["valid", "table"]
    assert pipeline.nodes[0].function is notebook["valid"]
    assert pipeline.nodes[0].kind is Kind.STEP


def test_a_cell_that_moved_in_the_notebook_replaces_its_node() -> None:
    pipeline = Pipeline("orders")
    cell = CELL.format(kind="view", condition="x")
    run_cell(cell, {"pipeline": pipeline}, "<cell 3>")

    run_cell(f"\n\n{cell}", {"pipeline": pipeline}, "<cell 9>")

    assert only(pipeline).place == SourceLocation("<cell 9>", 3)


def test_the_function_of_a_replaced_node_still_stands_for_that_node() -> None:
    pipeline = Pipeline("orders")
    before: dict[str, object] = {"pipeline": pipeline}
    run_cell(CELL.format(kind="view", condition="x"), before)
    run_cell(CELL.format(kind="view", condition="y"), {"pipeline": pipeline})
    stale = before["valid"]
    assert callable(stale)

    pipeline.sink("table", TABLE, of=stale)

    assert inputs(pipeline.nodes[1]) == ["valid"]


def test_a_cell_that_declares_the_same_function_again_leaves_one_node_of_it() -> None:
    pipeline = Pipeline("orders")
    notebook: dict[str, object] = {"pipeline": pipeline, "pass_on": pass_on}
    run_cell("pipeline.view(pass_on, inputs=['orders'])", notebook)
    run_cell("pipeline.view(pass_on, inputs=['valid'])", notebook)

    pipeline.sink("table", TABLE, of=pass_on)

    assert [inputs(node) for node in pipeline.nodes] == [["valid"], ["pass_on"]]


def test_a_cell_may_change_what_a_sink_takes() -> None:
    pipeline = Pipeline("orders")
    notebook: dict[str, object] = {"pipeline": pipeline, "table": TABLE}
    run_cell("pipeline.sink('out', table, of=lambda valid: valid)", notebook)

    run_cell("pipeline.sink('out', table, of='totals')", notebook)

    assert inputs(only(pipeline)) == ["totals"]


def test_another_function_in_another_cell_may_not_take_the_name() -> None:
    pipeline = Pipeline("orders")
    run_cell(CELL.format(kind="view", condition="x"), {"pipeline": pipeline}, "<cell 1>")
    other = "@pipeline.view(name='valid')\ndef checked(orders): return orders\n"

    with pytest.raises(
        DeclarationError,
        match=r"<cell 2>:1: view valid \(function checked\) would replace view valid, declared at "
        r"<cell 1>:1 from another function",
    ):
        run_cell(other, {"pipeline": pipeline}, "<cell 2>")


def test_two_lines_of_a_file_may_not_declare_one_name() -> None:
    pipeline = Pipeline("orders")
    pipeline.view(pass_on, name="valid")
    first = pipeline.place.line + 1

    with pytest.raises(DeclarationError) as caught:
        pipeline.step(pass_on, name="valid")

    assert caught.value.where == f"{__file__}:{first + 4}"
    assert f"view valid (function pass_on), declared at {__file__}:{first}" in str(caught.value)
    assert only(pipeline).kind is Kind.VIEW


def test_two_files_may_not_declare_one_name() -> None:
    pipeline = Pipeline("orders")
    pipeline.view(pass_on, name="valid")

    with pytest.raises(DeclarationError, match="give one of them another name"):
        run_cell(
            CELL.format(kind="view", condition="x"), {"pipeline": pipeline}, fake_spark.__file__
        )


def test_a_loop_may_not_lose_a_node_to_another_of_its_name() -> None:
    pipeline = Pipeline("estate")
    listed_twice = ["orders", "customers", "orders"]

    with pytest.raises(DeclarationError, match=r"sink orders is declared twice by this line"):
        [pipeline.sink(table, Target(table), of=table) for table in listed_twice]


def test_a_module_that_is_loaded_again_replaces_its_nodes() -> None:
    pipeline = Pipeline("orders")
    text = CELL.format(kind="view", condition="x")
    run_cell(text, {"pipeline": pipeline}, __file__)
    module: dict[str, object] = {"pipeline": pipeline}

    run_cell(text, module, __file__)

    assert only(pipeline).function is module["valid"]


def test_a_kernel_that_keeps_its_cells_in_files_still_has_cells(tmp_path: Path) -> None:
    file = tmp_path / "ipykernel_4242" / "17.py"
    file.parent.mkdir()
    file.write_text("", encoding="utf-8")

    assert not SourceLocation(str(file), 1).is_in_a_file
