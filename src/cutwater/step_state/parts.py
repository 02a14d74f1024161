"""The parts of a step's state that can be looked at one by one, and how each is asked for.

A query has stateful operators, numbered in the order of its plan. An aggregation or a
deduplication keeps one thing for a key; a join keeps the rows of two sides; `transformWithState`
keeps the variables that its author declared, and timers. A person names a part by the operator's
number or name, by what it is called within the operator, or by both: `0`, `left`, `0:left`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cutwater.errors import ConfigError, RecoveryError
from cutwater.spark.checkpoint_dir.state_files import Operator

TIMERS: Final = "timers"
_JOIN: Final = "symmetricHashJoin"
_VARIABLES: Final = "transformWithState"
_MAP: Final = "MapState"
_TIMER: Final = "TimerState"
_KEY: Final = "key"
_MAP_KEY: Final = "user_map_key"


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of the state of one operator.

    Attributes:
        operator: The operator's number in the plan.
        operator_name: What Spark calls it.
        name: The side of a join, the variable, or `timers`; empty if the operator has one part.
        options: What Spark's reader of state is told to get it.
        keys: The columns that say what a row is of; the others say what is kept for it.
        partitions: How many partitions the state has; None if nothing says.
    """

    operator: str
    operator_name: str
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = (_KEY,)
    partitions: int | None = None

    @property
    def title(self) -> str:
        """What it is called in a sentence, and by a person: `0:left`, or `0`."""
        return f"{self.operator}:{self.name}" if self.name else self.operator

    def answers_to(self, text: str) -> bool:
        """Say whether a text means this part, perhaps among others."""
        operators = (self.operator, self.operator_name)
        if text in operators or (self.name and text == self.name):
            return True
        return bool(self.name) and text in {f"{one}:{self.name}" for one in operators}


class _Variable(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="stateName")
    kind: str = msgspec.field(name="stateVariableType", default="")


class _Properties(msgspec.Struct, frozen=True):
    time_mode: str = msgspec.field(name="timeMode", default="")
    variables: tuple[_Variable, ...] = msgspec.field(name="stateVariables", default=())


_PROPERTIES: Final = msgspec.json.Decoder(_Properties)


def parts_of(operators: Sequence[Operator]) -> tuple[StatePart, ...]:
    """Return what can be looked at of these operators, in their order.

    Raises:
        RecoveryError: If what describes an operator cannot be understood.
    """
    return tuple(part for one in operators for part in _parts(one))


def _parts(operator: Operator) -> list[StatePart]:
    if operator.name == _JOIN:
        return [_part(operator, side, {"joinSide": side}) for side in ("left", "right")]
    if not operator.name.startswith(_VARIABLES):
        return [_part(operator, "", {})]
    try:
        properties = _PROPERTIES.decode(operator.properties)
    except msgspec.DecodeError as error:
        reason = f"operator {operator.id} does not say which variables it has: {error}."
        raise RecoveryError(reason) from error
    found = [
        _part(
            operator,
            one.name,
            # A list comes whole, since its order counts; a map one entry at a time.
            {"stateVarName": one.name, "flattenCollectionTypes": str(one.kind == _MAP).lower()},
            (_KEY, _MAP_KEY) if one.kind == _MAP else (_KEY,),
        )
        for one in properties.variables
        if one.kind != _TIMER
    ]
    if properties.time_mode not in {"", "NoTime"}:
        found.append(_part(operator, TIMERS, {"readRegisteredTimers": "true"}))
    return found


def _part(
    operator: Operator, name: str, options: Mapping[str, str], keys: tuple[str, ...] = (_KEY,)
) -> StatePart:
    told = {"operatorId": operator.id, **options}
    return StatePart(operator.id, operator.name, name, told, keys, operator.partitions)


def choose_part(parts: Sequence[StatePart], text: str | None, step: str) -> StatePart:
    """Return the part that a text means; without a text, the only one.

    Raises:
        ConfigError: If there is none, or more than one; it lists what there is.
    """
    found = [one for one in parts if text is None or one.answers_to(text)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{one.title} ({one.operator_name})" for one in found or parts)
    if found:
        raise ConfigError("--operator", f"{step} keeps several things; name one of {listed}")
    raise ConfigError("--operator", f"{step} keeps nothing called {text}; it has {listed}")
