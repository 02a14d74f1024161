"""Which parts a step's state has, and how a person names one."""

import json

import pytest

from cutwater.errors import ConfigError, RecoveryError
from cutwater.spark.checkpoint_dir.state_files import Operator
from cutwater.step_state.reading import StatePart, choose_part, parts_of

AGGREGATION = Operator("0", "stateStoreSave", ("default",), 2)
JOIN = Operator("1", "symmetricHashJoin", ("left-keyToNumValues",), 2)
VARIABLES = [
    {"stateName": "total", "stateVariableType": "ValueState"},
    {"stateName": "ids", "stateVariableType": "ListState"},
    {"stateName": "by_id", "stateVariableType": "MapState"},
    {"stateName": "$procTimers", "stateVariableType": "TimerState"},
]


def with_variables(time_mode: str) -> Operator:
    told = json.dumps({"timeMode": time_mode, "stateVariables": VARIABLES})
    return Operator("0", "transformWithStateInPySparkExec", ("default",), 2, told)


def test_an_aggregation_has_one_part_and_a_join_two_sides() -> None:
    found = parts_of([AGGREGATION, JOIN])

    assert [part.title for part in found] == ["0", "1:left", "1:right"]
    assert [dict(part.options) for part in found] == [
        {"operatorId": "0"},
        {"operatorId": "1", "joinSide": "left"},
        {"operatorId": "1", "joinSide": "right"},
    ]


def test_variables_are_parts_and_timers_where_there_can_be_any() -> None:
    timed = parts_of([with_variables("ProcessingTime")])
    untimed = parts_of([with_variables("NoTime")])

    assert [part.name for part in timed] == ["total", "ids", "by_id", "timers"]
    assert [part.name for part in untimed] == ["total", "ids", "by_id"]
    assert [part.keys for part in untimed] == [("key",), ("key",), ("key", "user_map_key")]
    # A list comes whole, since its order counts.
    flattened = [part.options["flattenCollectionTypes"] for part in untimed]
    assert flattened == ["false", "false", "true"]


def test_an_operator_that_does_not_describe_itself_is_an_error() -> None:
    with pytest.raises(RecoveryError, match="operator 0 does not say which variables it has"):
        parts_of([Operator("0", "transformWithStateExec", properties="{")])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("0", "0"),
        ("stateStoreSave", "0"),
        ("left", "1:left"),
        ("1:right", "1:right"),
        ("symmetricHashJoin:right", "1:right"),
    ],
)
def test_a_part_is_named_by_its_operator_by_itself_or_by_both(text: str, title: str) -> None:
    assert choose_part(parts_of([AGGREGATION, JOIN]), text, "s").title == title


def test_the_only_part_needs_no_name() -> None:
    assert choose_part([StatePart("0", "dedupe")], None, "s").operator_name == "dedupe"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, r"s keeps several things; name one of 0 \(stateStoreSave\), 1:left"),
        ("1", r"name one of 1:left \(symmetricHashJoin\), 1:right \(symmetricHashJoin\)"),
        ("2", r"s keeps nothing called 2; it has 0 \(stateStoreSave\), 1:left"),
    ],
)
def test_a_name_that_means_none_or_several_is_answered_with_what_there_is(
    text: str | None, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        choose_part(parts_of([AGGREGATION, JOIN]), text, "s")
