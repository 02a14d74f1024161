"""As much of PromQL as our alerts and panels use: what an expression is, and which labels it has.

Prometheus itself is not at hand when tests run. This reader refuses what it would refuse (brackets,
ranges, arguments) and also what it would accept and never answer: a name or label that Cutwater
does not expose, two sides whose labels are not the same ones, a rate of something that is not a
counter.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e\d+)?(?![\w.]))|(?P<name>[A-Za-z_:][\w:]*)"
    r"|(?P<text>\"[^\"]*\")|(?P<range>\[\d+[smhd]\])|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%=<>(){},]))"
)
_LEVELS = (
    ("or",),
    ("and", "unless"),
    ("==", "!=", ">", "<", ">=", "<="),
    ("+", "-"),
    ("*", "/", "%"),
)
_FILTERS = (*_LEVELS[1], *_LEVELS[2])
SCRAPED = frozenset({"job", "instance"})
"""The labels that a scrape adds to everything."""


class Wrong(Exception):
    """An expression that means nothing, or that will never have an answer."""


class Shape(Enum):
    """What an expression is."""

    SCALAR = auto()
    VECTOR = auto()
    RANGE = auto()


class Value(NamedTuple):
    """An expression: its shape, its labels, and whether it is a bare counter."""

    shape: Shape
    labels: frozenset[str] = frozenset()
    is_counter: bool = False


class Exposed(NamedTuple):
    """A metric that there is."""

    labels: frozenset[str]
    is_counter: bool


@dataclass(frozen=True)
class _Function:
    takes: Shape
    of_counters: bool | None = None  # None where it does not matter


_FUNCTIONS = {
    "increase": _Function(Shape.RANGE, of_counters=True),
    "rate": _Function(Shape.RANGE, of_counters=True),
    "changes": _Function(Shape.RANGE, of_counters=False),
    "min_over_time": _Function(Shape.RANGE, of_counters=False),
    "max_over_time": _Function(Shape.RANGE, of_counters=False),
}


def read(text: str, exposed: Mapping[str, Exposed]) -> Value:
    """Read an expression.

    Raises:
        Wrong: Saying what is wrong with it.
    """
    reader = _Reader(_tokens(text), exposed)
    value = reader.binary(0)
    if reader.left:
        raise Wrong(f"nothing may follow here: {' '.join(reader.left)}")
    if value.shape is Shape.RANGE:
        raise Wrong("a range is no answer")
    return value


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None:
            raise Wrong(f"cannot be read: {text[at:]!r}")
        found.append(token[0].strip())
        at = token.end()
    return found


class _Reader:
    def __init__(self, tokens: list[str], exposed: Mapping[str, Exposed]) -> None:
        self.left = tokens
        self._exposed = exposed

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._single()
        value = self.binary(level + 1)
        while self.left and self.left[0] in _LEVELS[level]:
            operator = self._take()
            on = self._names() if self._next_is("on") else None
            value = _joined(operator, on, value, self.binary(level + 1))
        return value

    def _single(self) -> Value:
        token = self._take()
        if token == "(":
            inner = self.binary(0)
            self._take(")")
            return inner
        if re.fullmatch(r"[\d.]+(e\d+)?", token):
            return Value(Shape.SCALAR)
        if self.left[:1] == ["("]:
            return self._call(token)
        return self._selected(token)

    def _call(self, name: str) -> Value:
        self._take("(")
        if name == "time":
            self._take(")")
            return Value(Shape.SCALAR)
        function = _FUNCTIONS.get(name)
        if function is None:
            raise Wrong(f"no function {name} is known here")
        given = self.binary(0)
        self._take(")")
        if given.shape is not function.takes:
            raise Wrong(f"{name} takes a {function.takes.name.lower()}")
        if function.of_counters is not None and given.is_counter != function.of_counters:
            raise Wrong(f"{name} is {'only' if function.of_counters else 'not'} for counters")
        return Value(Shape.VECTOR, given.labels)

    def _selected(self, name: str) -> Value:
        if name not in self._exposed:
            raise Wrong(f"no metric {name}")
        labels = self._exposed[name].labels | SCRAPED
        if self._next_is("{"):
            while not self._next_is("}"):
                label, match, _ = self._take(), self._take(), self._take()
                if match not in {"=", "!=", "=~", "!~"}:
                    raise Wrong(f"{match} matches no label")
                if label not in labels:
                    raise Wrong(f"{name} has no label {label}")
                self._next_is(",")
        is_range = bool(self.left) and self.left[0].startswith("[")
        if is_range:
            self._take()
        shape = Shape.RANGE if is_range else Shape.VECTOR
        return Value(shape, labels, self._exposed[name].is_counter)

    def _names(self) -> frozenset[str]:
        self._take("(")
        found = {self._take()}
        while self._next_is(","):
            found.add(self._take())
        self._take(")")
        return frozenset(found)

    def _next_is(self, token: str) -> bool:
        if self.left[:1] != [token]:
            return False
        self._take()
        return True

    def _take(self, wanted: str | None = None) -> str:
        if not self.left:
            raise Wrong("it ends too early")
        if wanted not in {None, self.left[0]}:
            raise Wrong(f"{wanted} is missing before {self.left[0]}")
        token, *self.left = self.left
        return token


def _joined(operator: str, on: frozenset[str] | None, left: Value, right: Value) -> Value:
    if Shape.RANGE in (left.shape, right.shape):
        raise Wrong(f"{operator} of a range")
    if Shape.SCALAR in (left.shape, right.shape):
        if operator in {"and", "or", "unless"}:
            raise Wrong(f"{operator} of a number")
        vector = right if left.shape is Shape.SCALAR else left
        return Value(vector.shape, vector.labels)
    matched = left.labels & right.labels if on is None else on
    if on is None and left.labels != right.labels:
        raise Wrong(f"the sides of {operator} never match: {set(left.labels ^ right.labels)}")
    if not matched <= left.labels & right.labels:
        raise Wrong(f"not on both sides of {operator}: {set(matched)}")
    return Value(Shape.VECTOR, left.labels if operator in _FILTERS or on is None else matched)
