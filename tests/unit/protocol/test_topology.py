"""The shape of a pipeline: what can be checkpointed, and which steps take part."""

from dataclasses import replace

import pytest
from tests.unit.protocol.builders import FAN, LEFT, LINE, ORDERS, RIGHT, T1, T2, TABLE, T

from cutwater.errors import ConfigError
from cutwater.ids import ChannelId, InputId, ReaderId, StepId
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.topology import StepSpec, Topology, inputs_of


def test_every_step_is_a_participant() -> None:
    """Seed 000 H10 and across the seeds: one completion rule, a fixed set."""
    assert FAN.participants == {ORDERS, LEFT, RIGHT}


def test_a_step_is_a_source_or_has_inputs_and_never_both() -> None:
    """Rule F11."""
    assert FAN.sources == (ORDERS,)
    assert FAN[ORDERS].is_source
    assert not FAN[LEFT].is_source


def test_all_sinks_are_listed_in_plan_order() -> None:
    assert FAN.sinks == (T1, T2)
    assert LINE.sinks == (T,)


def test_a_step_is_found_by_name() -> None:
    assert LINE[TABLE].sink == T
    assert TABLE in LINE
    assert StepId("ghost") not in LINE


def test_a_channel_knows_its_readers() -> None:
    assert FAN.readers(FAN[ORDERS].output) == (
        ReaderId(LEFT, InputId(0, ChannelId("orders"))),
        ReaderId(RIGHT, InputId(0, ChannelId("orders"))),
    )
    assert FAN.readers(FAN[LEFT].output) == ()


def test_a_self_join_reads_one_channel_twice() -> None:
    """Rule F38: the ordinal is part of an input's identity."""
    joined = Topology((StepSpec(ORDERS), StepSpec(TABLE, inputs_of("orders", "orders"))))

    assert [str(reader) for reader in joined.readers(ChannelId("orders"))] == [
        "table/0:orders",
        "table/1:orders",
    ]


def test_a_topology_is_a_value() -> None:
    assert Topology(LINE.steps) == LINE
    assert Topology(LINE.steps) != FAN


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((), "at least one step"),
        ((StepSpec(ORDERS), StepSpec(ORDERS)), "two steps are called orders"),
        (
            (StepSpec(LEFT, sink=T), StepSpec(RIGHT, sink=T)),
            "two sinks are called t",
        ),
        ((StepSpec(TABLE, inputs_of("orders")),), "reads orders, which no earlier step writes"),
        ((StepSpec(TABLE, inputs_of("table")),), "reads table, which no earlier step writes"),
        (
            (StepSpec(LEFT, inputs_of("right")), StepSpec(RIGHT, inputs_of("left"))),
            "reads right, which no earlier step writes",
        ),
        (
            (StepSpec(ORDERS), StepSpec(TABLE, (InputId(1, ChannelId("orders")),))),
            "input 1:orders of table is number 0",
        ),
    ],
    ids=["empty", "same step", "same sink", "unknown", "itself", "cycle", "ordinal"],
)
def test_a_shape_that_no_checkpoint_could_be_taken_of_is_refused(
    steps: tuple[StepSpec, ...], problem: str
) -> None:
    """Seed 000 H9 and 001 H12: without steps the first stranger completed a checkpoint."""
    with pytest.raises(ConfigError) as caught:
        Topology(steps)

    assert problem in caught.value.reason


def test_what_feeds_a_step_that_takes_whole_cuts_takes_whole_cuts_too() -> None:
    """Rule F19: an overtaking barrier would only make that step decline every attempt."""
    shape = Topology(
        (
            StepSpec(StepId("a")),
            StepSpec(StepId("b")),
            StepSpec(StepId("c"), inputs_of("a")),
            StepSpec(StepId("d"), inputs_of("c"), is_sink=True),
            StepSpec(StepId("e"), inputs_of("b")),
        )
    )

    assert [spec.step for spec in shape.steps if spec.is_sink] == ["a", "c", "d"]
    assert shape[StepId("c")].is_sink


OFTEN = UnalignedOptions(alignment_timeout_ms=5_000, max_inflight_bytes=7)


@pytest.mark.parametrize(
    ("own", "of_the_run", "expected"),
    [
        ({}, OFTEN, OFTEN),
        ({}, replace(OFTEN, forced=True), replace(OFTEN, forced=True)),
        ({"alignment_timeout_ms": 0}, OFTEN, replace(OFTEN, alignment_timeout_ms=0)),
        ({"forced": True}, OFTEN, replace(OFTEN, forced=True)),
        ({"forced": False}, replace(OFTEN, forced=True), OFTEN),
        (
            {"alignment_timeout_ms": 9},
            replace(OFTEN, forced=True),
            replace(OFTEN, alignment_timeout_ms=9),
        ),
        ({"forced": True}, replace(OFTEN, enabled=False), replace(OFTEN, enabled=False)),
    ],
)
def test_a_steps_own_patience_comes_before_that_of_the_run_unless_no_step_overtakes(
    own: dict[str, int], of_the_run: UnalignedOptions, expected: UnalignedOptions
) -> None:
    spec = StepSpec(TABLE, inputs_of("orders"), **own)  # type: ignore[arg-type]

    assert spec.unaligned(of_the_run) == expected
