"""What Spark's operators keep state by, read from an analysed plan.

Beside `internals` the only module that reads Spark's own classes, and it only reads: the names of
expressions without the numbers that Spark gives them anew every time. An operator that it does not
know keeps state as far as it can tell, and is compared by its name alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError

_NUMBERS: Final = re.compile(r"#\d+L?(-T\d+ms)?")
_SERIALS: Final = re.compile(
    r" \[native \d+\]|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|@[0-9a-f]{4,16}\b"
)
_STATELESS: Final = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LocalLimit",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "PythonMapInArrow",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "SerializeFromObject",
        "DeserializeToObject",
        "Sort",
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
        "WithCTE",
    }
)
_MICROS: Final = 1_000_000
_SLIDE: Final = re.compile(r"% (\d+)\)")
_LENGTH: Final = re.compile(r"\+ (\d+)\), LongType")
_GAP: Final = re.compile(r"cast\(([^()]*) as interval\)")


@dataclass(frozen=True, slots=True)
class StateOperator:
    """One operator that keeps state; `protocol.identity` says what the fields mean."""

    keys: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    is_join: bool = False


def plain(text: str) -> str:
    """Leave out what is another number every time: ids of expressions, sources and objects."""
    return _SERIALS.sub("", _NUMBERS.sub("", text))


def state_operator(kind: str, plan: Any) -> StateOperator | None:
    """Say what a node of an analysed plan keeps state by; None if it keeps none.

    Args:
        kind: Spark's name for the node.
        plan: The node, as Java knows it.
    """
    children = _each(plan.children())
    if not children or not plan.isStreaming() or kind in _STATELESS:
        return None
    if kind == "Join":
        if not all(one.isStreaming() for one in children):
            return None
        condition = plan.condition()
        text = plain(condition.get().toString()) if condition.isDefined() else ""
        return StateOperator((text,), ("",), (str(plan.joinType().toString()),), is_join=True)
    keys = _keys(kind, plan)
    functions = list(_functions(plan)) if kind == "Aggregate" else []
    return StateOperator(
        tuple(_typed(one) for one in keys),
        tuple(_window(one, plan) for one in keys),
        tuple(f"{one.prettyName()} {one.dataType().catalogString()}" for one in functions),
        tuple(_typed(one) for one in functions),
    )


def _keys(kind: str, plan: Any) -> list[Any]:
    method = {"Aggregate": "groupingExpressions", "Distinct": "output"}.get(
        kind, "keys" if kind.startswith("Deduplicate") else "groupingAttributes"
    )
    try:
        return _each(getattr(plan, method)())
    except (Py4JError, TypeError):
        # Another operator, such as a limit, has no keys.
        return []


def _functions(plan: Any) -> Iterator[Any]:
    for expression in _each(plan.aggregateExpressions()):
        yield from _functions_in(expression)


def _functions_in(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression.aggregateFunction()
        return
    for one in _each(expression.children()):
        yield from _functions_in(one)


def _typed(expression: Any) -> str:
    return f"{plain(expression.toString())} {expression.dataType().catalogString()}"


def _window(key: Any, plan: Any) -> str:
    """Say how long a window is, whose column the analyser computes below its use."""
    name = str(key.toString())
    if key.getClass().getSimpleName() != "AttributeReference" or "indow" not in name:
        return ""
    for node in _below(plan):
        kind = node.getClass().getSimpleName()
        if kind == "Project":
            defined = [
                str(one.toString())
                for one in _each(node.projectList())
                if str(one.toString()).endswith(f" AS {name}")
            ]
        elif kind == "Expand":
            first = _each(_each(node.projections())[0])
            defined = [str(one.toString()) for one in first if "named_struct(start" in str(one)]
        else:
            continue
        if defined:
            return _length(plain(name), defined[0])
    return ""


def _length(name: str, text: str) -> str:
    slide, length, gap = _SLIDE.search(text), _LENGTH.search(text), _GAP.search(text)
    if gap is not None:
        return f"{name} with gaps of {gap[1]}"
    if slide is None or length is None:
        return ""
    size_s, every_s = int(length[1]) / _MICROS, int(slide[1]) / _MICROS
    return f"{name} of {size_s:g} s" + (f" every {every_s:g} s" if every_s != size_s else "")


def _below(plan: Any) -> Iterator[Any]:
    for child in _each(plan.children()):
        yield child
        yield from _below(child)


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
