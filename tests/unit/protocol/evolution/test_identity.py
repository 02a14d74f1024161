"""Whether state still means the same to the code as it is now."""

from dataclasses import replace

import pytest

from cutwater.protocol.evolution.identity import (
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
    columns_missing,
    runs_on_older_spark,
    state_differences,
)

TOTALS = OperatorIdentity(
    "Aggregate", ("customer string",), ("",), ("sum bigint",), ("sum(amount) bigint",)
)
HOURLY = OperatorIdentity(
    "Aggregate", ("window struct",), ("window of 3600 s",), ("count",), ("n",)
)
JOIN = OperatorIdentity(
    "Join", ("(id = id)",), ("",), ("Inner",), (), (("orders",), ("payments", "refunds"))
)
STATEFUL = StepIdentity(operators=(TOTALS,), partitions=8, spark="4.3.0")


def with_operator(operator: OperatorIdentity) -> StepIdentity:
    return replace(STATEFUL, operators=(operator,))


def test_the_same_step_can_use_its_state() -> None:
    assert state_differences(STATEFUL, STATEFUL) == ()


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (
            replace(STATEFUL, operators=()),
            "keeps state in no operator now, and kept it in Aggregate by customer string",
        ),
        (
            replace(STATEFUL, operators=(TOTALS, replace(TOTALS, keys=()))),
            "keeps state in Aggregate by customer string, Aggregate by nothing now, and kept it "
            "in Aggregate by customer string",
        ),
        (
            with_operator(replace(TOTALS, keys=("region string",))),
            "keys the state of its Aggregate by region string now, and keyed it by customer string",
        ),
        (
            with_operator(replace(TOTALS, keys=(), windows=())),
            "keys the state of its Aggregate by nothing now, and keyed it by customer string",
        ),
        (
            with_operator(replace(TOTALS, layout=("sum double",), values=("sum(x) double",))),
            "keeps sum(x) double in its Aggregate now, and kept sum(amount) bigint",
        ),
        (
            with_operator(replace(TOTALS, layout=(), values=())),
            "keeps nothing in its Aggregate now, and kept sum(amount) bigint",
        ),
        (
            replace(STATEFUL, partitions=4),
            "requests 4 partitions, and its state has 8",
        ),
    ],
)
def test_state_that_means_something_else_is_not_used(now: StepIdentity, reason: str) -> None:
    assert state_differences(STATEFUL, now) == (reason,)


def test_all_that_has_changed_is_said_at_once() -> None:
    now = with_operator(replace(TOTALS, keys=("region string",), layout=("count bigint",)))

    assert len(state_differences(STATEFUL, replace(now, partitions=1))) == 3


def test_a_window_of_another_length_is_other_state() -> None:
    daily = replace(HOURLY, windows=("window of 86400 s",))

    assert state_differences(with_operator(HOURLY), with_operator(daily)) == (
        "has window of 86400 s in its Aggregate now, and had window of 3600 s",
    )


def test_a_window_whose_length_is_not_known_is_taken_at_its_word() -> None:
    behind_a_channel = replace(HOURLY, windows=("",))

    assert state_differences(with_operator(HOURLY), with_operator(behind_a_channel)) == ()


def test_the_sides_of_a_join_cannot_change_places() -> None:
    turned = replace(JOIN, sides=(JOIN.sides[1], ()))

    assert state_differences(with_operator(JOIN), with_operator(turned)) == (
        "joins payments, refunds with nothing now, and joined orders with payments, refunds: "
        "the state of one side would be taken for that of the other",
    )


@pytest.mark.parametrize(
    "now",
    [
        with_operator(replace(TOTALS, values=("sum(net) bigint",))),
        replace(STATEFUL, partitions=None),
        replace(STATEFUL, spark="4.3.1"),
        replace(STATEFUL, spark="5.0.0"),
        replace(STATEFUL, plan_sha256="another", columns=(("a", "long"),)),
    ],
    ids=["expression", "no number asked for", "patch release", "newer Spark", "code around it"],
)
def test_what_does_not_concern_state_may_change(now: StepIdentity) -> None:
    assert state_differences(STATEFUL, now) == ()
    assert not runs_on_older_spark(STATEFUL, now)


def test_state_of_a_newer_spark_is_known() -> None:
    assert runs_on_older_spark(STATEFUL, replace(STATEFUL, spark="4.2.9"))


def test_a_step_without_state_may_run_anywhere() -> None:
    then, now = StepIdentity(partitions=8, spark="4.3.0"), StepIdentity(partitions=4, spark="4.1.0")

    assert state_differences(then, now) == ()
    assert not runs_on_older_spark(then, now)


def test_columns_that_old_rows_lack_are_named_with_their_types() -> None:
    then = StepIdentity(columns=(("a", "long"), ("b", "int")))
    now = StepIdentity(columns=(("a", "string"), ("b", "int"), ("c", "int")))

    assert columns_missing(then, now) == ("a string", "c int")
    assert columns_missing(now, replace(then, columns=(("b", "int"),))) == ()


def test_lines_are_compared_by_what_they_mean() -> None:
    source = InputIdentity(InputKind.SOURCE, "orders", log=0)
    channel = InputIdentity(InputKind.CHANNEL, "valid")
    step = StepIdentity(inputs=(source, channel, InputIdentity(InputKind.PULSE, "pulse")))

    assert step.has_lines_of(replace(step, columns=(("a", "long"),)))
    assert step.has_lines_of(
        replace(step, inputs=(replace(source, settings="x"), *step.inputs[1:]))
    )
    assert not step.has_lines_of(replace(step, is_query=False))
    assert not step.has_lines_of(replace(step, inputs=(channel, source, *step.inputs[2:])))
    assert step.wires == {"source orders": 1, "channel valid": 1}
    assert step.streams("orders") == ((0, source),)
    assert step.channels == (channel,)
