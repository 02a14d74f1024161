"""What a pipeline is made of: one `Node` per function that the user has declared.

A node says which nodes it reads (by the names of its function's parameters), with which options it
runs and where in the user's files it stands. A signature that cannot work is noted here as a fault
and reported by `plan`, together with everything else that is wrong. Nothing here knows Spark: what
flows between nodes is an `object`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

from cutwater.pipeline.step_options import StepOptions
from cutwater.store.backends.directories import is_file

Function = Callable[..., object]
"""A function the user wrote: DataFrames in, a DataFrame out."""

SPARK: Final = "spark"
"""The parameter that every node may ask for, and therefore the name that no node may have."""


@runtime_checkable
class SinkTarget(Protocol):
    """Where a sink's rows go, as far as planning needs to know it."""

    @property
    def format(self) -> str:
        """The kind of target, such as `delta`."""
        ...

    @property
    def accepts(self) -> frozenset[str]:
        """The output modes whose rows the target can take."""
        ...

    def describe(self) -> str:
        """Name the target for people. The text is shown and stored: it holds no secret."""
        ...


@runtime_checkable
class WriteMode(Protocol):
    """What a target has besides if its rows can meet older ones in more than one way."""

    @property
    def write(self) -> str:
        """How rows meet those that are there, such as `upsert`."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that make two rows the same one; empty unless they matter."""
        ...


class Kind(Enum):
    """What a node was declared as."""

    SOURCE = "source"
    VIEW = "view"
    STEP = "step"
    SINK = "sink"


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        """Give the form that editors and terminals make clickable."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """The same without directories."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def is_in_a_file(self) -> bool:
        """Whether the line is in an ordinary file, and not in a notebook or at a prompt.

        A Jupyter kernel gives its cells names of files, which exist while it is being debugged.
        """
        path = Path(self.file)
        in_kernel = any(part.startswith("ipykernel_") for part in path.parts)
        return not in_kernel and is_file(path)


class Binding(NamedTuple):
    """One input of a node: the parameter of its function, and the node that fills it."""

    parameter: str
    node: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a function's signature asks for.

    Attributes:
        inputs: Its inputs in the order of its parameters.
        wants_spark: Whether it has the parameter `spark`.
        faults: Why it cannot be a node, as ends of a sentence that starts with the node.
    """

    inputs: tuple[Binding, ...] = ()
    wants_spark: bool = False
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One declared source, view, step or sink.

    Attributes:
        name: Its name, unique in the pipeline.
        kind: What it was declared as.
        function: The plain function; `same` for a sink that takes a node as it is.
        reading: What the function asks for.
        place: Where it was declared.
        options: How it runs, should it become a step.
        target: Where its rows go; only a sink has one.
    """

    name: str
    kind: Kind
    function: Function
    reading: Reading
    place: Place
    options: StepOptions
    target: SinkTarget | None

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """The nodes it reads, in the order of its function's parameters."""
        return self.reading.inputs

    @property
    def function_name(self) -> str:
        """The name in the function's `def`, which `name=` may differ from; empty without one."""
        name = name_of(self.function)
        return name if name.isidentifier() and self.function is not same else ""

    @property
    def title(self) -> str:
        """The node as messages call it: `step totals`, with the function's name if it differs."""
        title = f"{self.kind.value} {self.name}"
        differs = self.function_name not in {"", self.name}
        return f"{title} (function {self.function_name})" if differs else title

    def call(self, spark: object, frames: Mapping[str, object]) -> object:
        """Call the function.

        Args:
            spark: The session, handed over only if the function asks for it.
            frames: For each parameter that is an input, its DataFrame.
        """
        arguments = {binding.parameter: frames[binding.parameter] for binding in self.inputs}
        if self.reading.wants_spark:
            arguments[SPARK] = spark
        return self.function(**arguments)


def same(frame: object) -> object:
    """Return the input: the function of a sink that takes a node as it is."""
    return frame


def name_of(function: Function) -> str:
    """Return the function's own name; empty for a callable that has none."""
    name = getattr(function, "__name__", "")
    return name if isinstance(name, str) else ""


def read_signature(function: Function, inputs: Sequence[str] | None) -> Reading:
    """Find out which nodes a function reads.

    A parameter with a default is not an input, so that `lambda orders, limit=limit: …` can be
    written in a loop.

    Args:
        function: The user's function.
        inputs: The nodes that fill its parameters in order; None if those are the parameters'
            own names.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Reading(faults=("is a callable whose parameters cannot be seen",))
    faults = [_unusable(parameter) for parameter in parameters if _unusable(parameter)]
    free = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.name != SPARK
        and not _unusable(parameter)
    ]
    names = free if inputs is None else list(inputs)
    if len(names) != len(free):
        faults.append(
            f"has {_counted(free, 'parameter')} to fill, but inputs= gives "
            f"{_counted(names, 'name')}"
        )
    return Reading(
        inputs=tuple(Binding(*pair) for pair in zip(free, names, strict=False)),
        wants_spark=any(parameter.name == SPARK for parameter in parameters),
        faults=tuple(faults),
    )


def _unusable(parameter: inspect.Parameter) -> str:
    """Say why the parameter can neither be an input nor be left alone; empty if it can."""
    match parameter.kind:
        case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
            return f"takes {parameter}, and every input needs a parameter with a name of its own"
        case parameter.POSITIONAL_ONLY:
            return f"takes {parameter.name} by position only, and inputs are given by name"
        case _:
            return ""


def _counted(names: Sequence[str], noun: str) -> str:
    plural = "" if len(names) == 1 else "s"
    listed = f" ({', '.join(names)})" if names else ""
    return f"{len(names) or 'no'} {noun}{plural}{listed}"
