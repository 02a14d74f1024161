"""What a pipeline is made of: one `Node` per declared function, and the options it runs with.

A node knows which nodes it reads (by the names of its function's parameters), its options, and its
location in the user's files. A signature that cannot work is recorded here as a fault and reported
by `plan`, together with all other faults. This module does not know Spark: what flows between nodes
is an `object`.

`StepOptions` holds every option, validated; the `…Keywords` classes list the options that each kind
of node accepts. Options for pace and state belong to steps alone; to use them for a view or a
source, declare a step after it. Untyped programs can pass any value, so every value is checked.
"""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, get_args, runtime_checkable

from cutwater.config.options import Unaligned
from cutwater.errors import ConfigError
from cutwater.store.backends.directories import is_file
from cutwater.units import milliseconds, size_bytes

OutputMode = Literal["append", "update", "complete"]
"""Spark's output modes: new rows, changed rows, or the whole result after every batch."""

OUTPUT_MODES: Final[tuple[str, ...]] = get_args(OutputMode)

StateStore = Literal["memory", "rocksdb"]
"""Where Spark keeps a step's state while it runs: in the memory of its executors, or in RocksDB."""

STATE_STORES: Final[tuple[str, ...]] = get_args(StateStore)

Function = Callable[..., object]
"""A function the user wrote: DataFrames in, a DataFrame out."""

SPARK: Final = "spark"
"""The parameter that every function may have, and therefore the name that no node may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step runs. The keywords below say which of them a kind of node takes.

    Attributes:
        output_mode: What a batch puts out: `append`, `update` or `complete`.
        partitions: Of the step's shuffles and state, for its whole life; None for the default.
        state: Where its state is kept while it runs, for its whole life: `memory` is faster while
            the state is small, `rocksdb` does not need to fit into memory; None for `rocksdb`.
        trigger: The shortest time from batch to batch, such as `1s`; None for at once.
        max_batch: The most that one batch reads from channels, such as `64MB`; None for no limit.
        updates: The step reads an update-mode input and keeps, of each batch, the newest row for
            each key; these are the key columns. Empty for a step that reads appended rows.
        alignment_timeout: How long after a checkpoint's start the step waits for its barriers
            before it lets one overtake; None for `checkpoint.alignment_timeout`.
        unaligned: Whether the step lets barriers overtake data: True after that timeout,
            `"forced"` for at once, False for never; None for `checkpoint.unaligned`. Whatever feeds
            a step that never overtakes does not overtake either. With `checkpoint.unaligned` off
            no step overtakes.
        chain: For a source: it may run inside the step that reads it.
        materialize: For a source with a channel: True writes its rows there; False writes which
            files or Kafka offsets they come from, and each reader evaluates the source's function
            over those. None for False where files are read, every reader would see the same rows
            and few readers do the work again (`cutwater plan` shows which, and why); a pipeline
            that has run keeps its choice.
        consumer_group: For a source that reads Kafka: a consumer group to which the offsets of
            each decided checkpoint are committed, so that the tools of Kafka show its lag. Never
            read back; None for no group.
    """

    output_mode: OutputMode = "append"
    partitions: int | None = None
    state: StateStore | None = None
    trigger: str | None = None
    max_batch: str | None = None
    updates: tuple[str, ...] = ()
    alignment_timeout: str | None = None
    unaligned: Unaligned | None = None
    chain: bool = True
    materialize: bool | None = None
    consumer_group: str | None = None

    def __post_init__(self) -> None:
        if self.output_mode not in OUTPUT_MODES:
            known = ", ".join(OUTPUT_MODES)
            raise ConfigError("output_mode", f"{self.output_mode!r} is none of {known}")
        if self.partitions is not None and (
            type(self.partitions) is not int or self.partitions < 1
        ):
            raise ConfigError("partitions", f"{self.partitions!r} is not a whole number above 0")
        if self.state is not None and self.state not in STATE_STORES:
            known = ", ".join(STATE_STORES)
            raise ConfigError("state", f"{self.state!r} is none of {known}")
        if self.materialize is not None and type(self.materialize) is not bool:
            raise ConfigError("materialize", f"{self.materialize!r} is none of True, False")
        group: object = self.consumer_group
        if group is not None and not (isinstance(group, str) and group.strip()):
            raise ConfigError("consumer_group", f"{group!r} is no name of a consumer group")
        if self.trigger_ms == 0:
            raise ConfigError("trigger", f"{self.trigger!r} is no time; leave it out for at once")
        if self.max_batch_bytes == 0:
            raise ConfigError("max_batch", f"{self.max_batch!r} would never read anything")
        object.__setattr__(
            self, "updates", _strings("updates", self.updates, "columns such as ['id']")
        )
        self._check_alignment()

    def _check_alignment(self) -> None:
        unaligned = self.unaligned
        if unaligned is not None and type(unaligned) is not bool and unaligned != "forced":
            raise ConfigError("unaligned", f"{unaligned!r} is none of True, False, 'forced'")
        if self.alignment_timeout_ms is not None and unaligned in (False, "forced"):
            why = "overtakes at once" if unaligned else "never overtakes"
            reason = f"{self.alignment_timeout!r} has no effect with unaligned={unaligned!r}"
            raise ConfigError(
                "alignment_timeout", f"{reason}, since the step {why}; leave one of the two out"
            )

    @property
    def alignment_timeout_ms(self) -> int | None:
        text = self.alignment_timeout
        return None if text is None else milliseconds(text, "alignment_timeout")

    @property
    def aligns(self) -> str:
        """The step's options for alignment, as the user wrote them; empty if there are none."""
        said = []
        if self.unaligned is not None:
            said.append(f"unaligned={self.unaligned!r}")
        if self.alignment_timeout is not None:
            said.append(f"alignment_timeout={self.alignment_timeout!r}")
        return " and ".join(said)

    @property
    def trigger_ms(self) -> int | None:
        return None if self.trigger is None else milliseconds(self.trigger, "trigger")

    @property
    def max_batch_bytes(self) -> int | None:
        return None if self.max_batch is None else size_bytes(self.max_batch, "max_batch")


class SourceKeywords(TypedDict, total=False):
    name: str | None
    chain: bool
    materialize: bool | None
    consumer_group: str | None


class ViewKeywords(TypedDict, total=False):
    name: str | None
    inputs: Sequence[str] | None


class StepKeywords(ViewKeywords, total=False):
    """What `Pipeline.step` takes as keywords; documented on `StepOptions`."""

    output_mode: OutputMode
    partitions: int | None
    state: StateStore | None
    trigger: str | None
    max_batch: str | None
    updates: Sequence[str]
    alignment_timeout: str | None
    unaligned: Unaligned | None


def options_in(keywords: Mapping[str, object], owner: str, known: Collection[str]) -> StepOptions:
    """Return the options among the keywords; owner, with its article, is for the error."""
    for keyword in sorted(set(keywords).difference(known)):
        close = difflib.get_close_matches(keyword, sorted(known), n=1)
        hint = f"{close[0]} may be meant" if close else f"it takes {', '.join(sorted(known))}"
        raise ConfigError(keyword, f"{owner} has no such option; {hint}")
    names = ViewKeywords.__optional_keys__
    given: dict[str, Any] = {key: value for key, value in keywords.items() if key not in names}
    return StepOptions(**given)


def inputs_in(keywords: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the names in `inputs=`; None if there is no such keyword.

    A single string is refused: it would be read as a list of letters.
    """
    inputs = keywords.get("inputs")
    return None if inputs is None else _strings("inputs", inputs, "names such as ['orders']")


def _strings(option: str, value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ConfigError(option, f"{value!r} is not a list of {what}")


@runtime_checkable
class SinkTarget(Protocol):
    """Where a sink's rows go: the part of a target that planning needs."""

    @property
    def format(self) -> str:
        """The kind of target, such as `delta`."""
        ...

    @property
    def accepts(self) -> frozenset[str]:
        """The output modes whose rows the target can take."""
        ...

    def describe(self) -> str:
        """Return a human-readable name. It is shown and stored, so it must hold no secret."""
        ...


@runtime_checkable
class WriteMode(Protocol):
    """The additional properties of a target that has more than one write mode."""

    @property
    def write(self) -> str:
        """How new rows combine with existing ones, such as `upsert`."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if the write mode uses none."""
        ...


@runtime_checkable
class OrderedTarget(Protocol):
    """The additional property of a target whose readers see the order in which rows arrive."""

    @property
    def keeps_event_order(self) -> bool:
        """Whether a batch must not combine the Events of a channel: Spark would mix their rows."""
        ...


@runtime_checkable
class KeyedTarget(Protocol):
    """The additional property of a target whose rows replace those with the same keys."""

    @property
    def keys(self) -> Sequence[str]:
        """The columns, none of whose values may occur twice in a batch; none to append rows."""
        ...


def depends_on_batches(target: object) -> bool:
    """Return whether a target is another one if the same rows come in larger batches."""
    if isinstance(target, OrderedTarget) and target.keeps_event_order:
        return True
    return isinstance(target, KeyedTarget) and bool(target.keys)


class Kind(Enum):
    SOURCE = "source"
    VIEW = "view"
    STEP = "step"
    SINK = "sink"


class SourceLocation(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    @property
    def is_in_a_file(self) -> bool:
        """Whether the line is in an ordinary file, and not in a notebook or at a prompt.

        A Jupyter kernel gives its cells file names, and the files exist while it is debugged.
        """
        path = Path(self.file)
        in_kernel = any(part.startswith("ipykernel_") for part in path.parts)
        return not in_kernel and is_file(path)


class Binding(NamedTuple):
    """One input of a node: the parameter of its function, and the node that fills it."""

    parameter: str
    node: str


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """What a function takes, read from its signature.

    Attributes:
        faults: Why it cannot be a node, as ends of a sentence that starts with the node.
    """

    inputs: tuple[Binding, ...] = ()
    wants_spark: bool = False
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One declared source, view, step or sink.

    Attributes:
        function: The plain function; `same` for a sink that takes a node as it is.
        options: How it runs if it becomes a step.
        target: Where its rows go; only a sink has one.
    """

    name: str
    kind: Kind
    function: Function
    signature: FunctionSignature
    place: SourceLocation
    options: StepOptions
    target: SinkTarget | None

    @property
    def inputs(self) -> tuple[Binding, ...]:
        return self.signature.inputs

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
        """Call the function; the session is passed only if it has the parameter `spark`."""
        arguments = {binding.parameter: frames[binding.parameter] for binding in self.inputs}
        if self.signature.wants_spark:
            arguments[SPARK] = spark
        return self.function(**arguments)


def same(frame: object) -> object:
    """Return the input: the function of a sink that takes a node as it is."""
    return frame


def name_of(function: Function) -> str:
    """Return the function's own name; empty for a callable that has none."""
    name = getattr(function, "__name__", "")
    return name if isinstance(name, str) else ""


def read_signature(function: Function, inputs: Sequence[str] | None) -> FunctionSignature:
    """Return which nodes a function reads: those in `inputs`, or those its parameters name.

    A parameter with a default is not an input, so that `lambda orders, limit=limit: …` can be
    written in a loop.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return FunctionSignature(faults=("is a callable whose parameters cannot be seen",))
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
            f"has {_format_count(free, 'parameter')} to fill, but inputs= gives "
            f"{_format_count(names, 'name')}"
        )
    return FunctionSignature(
        inputs=tuple(Binding(*pair) for pair in zip(free, names, strict=False)),
        wants_spark=any(parameter.name == SPARK for parameter in parameters),
        faults=tuple(faults),
    )


def _unusable(parameter: inspect.Parameter) -> str:
    """Return why the parameter can be neither an input nor left unset; empty if it can."""
    match parameter.kind:
        case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
            return f"takes {parameter}, and every input needs a parameter with a name of its own"
        case parameter.POSITIONAL_ONLY:
            return f"takes {parameter.name} by position only, and inputs are given by name"
        case _:
            return ""


def _format_count(names: Sequence[str], noun: str) -> str:
    plural = "" if len(names) == 1 else "s"
    listed = f" ({', '.join(names)})" if names else ""
    return f"{len(names) or 'no'} {noun}{plural}{listed}"
