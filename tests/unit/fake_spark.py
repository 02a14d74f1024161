"""Replaces Spark and sinks in tests that only declare and plan a pipeline.

A `Frame` records the functions that are called on it, so that a test can read them. `run_cell` runs
text as a notebook runs a cell.
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
    """A session whose streams are named by their paths."""

    def stream(self, path: str) -> Frame:
        return Frame(path)


@dataclass(frozen=True)
class Target:
    """A sink's target that accepts the output modes that a test names."""

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
