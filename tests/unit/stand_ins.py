"""What stands in for Spark and for sinks where a pipeline is only declared and planned.

A `Frame` writes down what was done to it, so that a test can see which functions were called on
what. `run_cell` does what a notebook does with a cell.
"""

from collections.abc import Callable
from dataclasses import dataclass

EVERY_MODE = frozenset({"append", "update", "complete"})


@dataclass(frozen=True)
class Frame:
    """A DataFrame that is only its own description."""

    text: str

    def where(self, condition: str) -> "Frame":
        return Frame(f"{self.text}.where({condition})")

    def total_by(self, column: str) -> "Frame":
        return Frame(f"{self.text}.total_by({column})")

    def join(self, other: "Frame") -> "Frame":
        return Frame(f"{self.text}.join({other.text})")


@dataclass(frozen=True)
class Session:
    """A session whose streams are called by their paths."""

    def stream(self, path: str) -> Frame:
        return Frame(path)


@dataclass(frozen=True)
class Target:
    """A sink's target that takes what it is told to take."""

    path: str
    accepts: frozenset[str] = EVERY_MODE
    format: str = "table"

    def describe(self) -> str:
        return self.path


def read(spark: Session) -> Frame:
    """A source."""
    return spark.stream("outside")


def pass_on(one: Frame) -> Frame:
    """A node with one input."""
    return one


def join(left: Frame, right: Frame) -> Frame:
    """A node with two inputs."""
    return left.join(right)


def run_cell(text: str, names: dict[str, object], file: str = "<cell>") -> None:
    """Compile and run the text as a notebook does with a cell, or Python with a module."""
    exec(compile(text, file, "exec"), names)


def line_of(function: Callable[..., object]) -> int:
    """The first line of a function, its decorators included."""
    return function.__code__.co_firstlineno
