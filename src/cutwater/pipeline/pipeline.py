"""What a user writes: a `Pipeline` and its sources, views, steps and sinks.

Each is a plain function, joined to the others by the names of its parameters. Declaring a node
checks that node alone: its name, its options, its target. What can only be seen when all of them
are there (an unknown input, a cycle, a sink that cannot take the rows) is found by `plan`, all of
it at once. Nothing runs here, and Spark is not needed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, Unpack, overload

from cutwater.errors import DeclarationError
from cutwater.notebook import table
from cutwater.pipeline.declarations import Declarations, Origin, check_name, current_origin
from cutwater.pipeline.nodes import (
    Binding,
    Function,
    FunctionSignature,
    Kind,
    Node,
    SinkTarget,
    SourceKeywords,
    StepKeywords,
    StepOptions,
    ViewKeywords,
    inputs_in,
    name_of,
    options_in,
    read_signature,
    same,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cutwater.config.options import CheckpointConfig
    from cutwater.run import PipelineRun, RunOptions
    from cutwater.runtime.reporting.status import RunResult

AnyFunction = TypeVar("AnyFunction", bound=Function)


class Decorator(Protocol):
    """Declares a node from a function, and returns the function unchanged."""

    def __call__(self, function: AnyFunction, /) -> AnyFunction:
        """Declare a node of the function."""
        ...


_KEYWORDS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.SOURCE: SourceKeywords.__optional_keys__,
    Kind.VIEW: ViewKeywords.__optional_keys__,
    Kind.STEP: StepKeywords.__optional_keys__,
}
_DEFAULTS: Final = StepOptions()


class Pipeline:
    """A DAG of functions over streaming DataFrames, declared node by node.

    A parameter of a node's function names the node that fills it. The parameter `spark` is the
    session, and every function may have it; a parameter with a default keeps its default.
    Every decorator returns the plain function, so that a test can call it, and works bare
    (`@pipeline.view`), called (`@pipeline.view(name="x")`) and as a call of its own
    (`pipeline.view(function, name="x")`).

    Example:
        ```python
        pipeline = Pipeline("orders")

        @pipeline.source
        def orders(spark): return spark.readStream.schema(SCHEMA).json("incoming/orders")

        @pipeline.step(output_mode="update", trigger="1s")
        def totals(orders): return orders.groupBy("customer").sum("amount")

        pipeline.sink("totals_table", target, of=totals)
        ```
    """

    def __init__(self, name: str) -> None:
        """Create a pipeline without nodes.

        Raises:
            DeclarationError: If the name cannot be one.
        """
        self.place = current_origin().place
        self.name = check_name(name, "a pipeline", self.place)
        self._declared = Declarations()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in the order they were first declared."""
        return self._declared.nodes

    def __repr__(self) -> str:
        """List the nodes, one a line."""
        counts = Counter(node.kind for node in self.nodes)
        counted = ", ".join(
            f"{counts[kind]} {kind.value}{'' if counts[kind] == 1 else 's'}"
            for kind in Kind
            if counts[kind]
        )
        lines = [f"Pipeline({self.name!r}): {counted or 'no nodes'}"]
        for node in self.nodes:
            inputs = ", ".join(binding.node for binding in node.inputs)
            line = f"  {node.kind.value} {node.name}({inputs})"
            lines.append(f"{line} -> {node.target.describe()}" if node.target else line)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """List the nodes for a notebook."""
        rows = (
            (
                node.kind.value,
                node.name,
                ", ".join(binding.node for binding in node.inputs),
                node.target.describe() if node.target else None,
                node.place.short,
            )
            for node in self.nodes
        )
        names = ("kind", "name", "reads", "writes", "declared")
        return table(f"pipeline {self.name}", names, rows)

    @overload
    def source(
        self, function: AnyFunction, /, **keywords: Unpack[SourceKeywords]
    ) -> AnyFunction: ...

    @overload
    def source(self, /, **keywords: Unpack[SourceKeywords]) -> Decorator: ...

    def source(
        self, function: AnyFunction | None = None, /, **keywords: Unpack[SourceKeywords]
    ) -> AnyFunction | Decorator:
        """Declare where rows enter: a function of `spark` that returns a streaming DataFrame.

        Args:
            function: The function; left out when used as `@pipeline.source(…)`.
            keywords: `name`, if not the function's own; `chain=False` to keep the source out of
                the step that reads it, so that it runs at a pace of its own; `materialize=False`
                to let its readers read its files themselves; `consumer_group`, a group of Kafka
                that shows how far the checkpoints are (see `StepOptions`).

        Raises:
            DeclarationError: If the name cannot be one or is taken.
            ConfigError: If there is no such keyword.
        """
        declare = self._decorator(Kind.SOURCE, keywords)
        return declare if function is None else declare(function)

    @overload
    def view(self, function: AnyFunction, /, **keywords: Unpack[ViewKeywords]) -> AnyFunction: ...

    @overload
    def view(self, /, **keywords: Unpack[ViewKeywords]) -> Decorator: ...

    def view(
        self, function: AnyFunction | None = None, /, **keywords: Unpack[ViewKeywords]
    ) -> AnyFunction | Decorator:
        """Declare a named expression: part of its reader, or a step once it has several uses.

        Args:
            function: The function; left out when used as `@pipeline.view(…)`.
            keywords: `name`, if not the function's own; `inputs`, the nodes that fill its
                parameters in order, if those are not called like the parameters.

        Raises:
            DeclarationError: If the name cannot be one or is taken.
            ConfigError: If there is no such keyword.
        """
        declare = self._decorator(Kind.VIEW, keywords)
        return declare if function is None else declare(function)

    @overload
    def step(self, function: AnyFunction, /, **keywords: Unpack[StepKeywords]) -> AnyFunction: ...

    @overload
    def step(self, /, **keywords: Unpack[StepKeywords]) -> Decorator: ...

    def step(
        self, function: AnyFunction | None = None, /, **keywords: Unpack[StepKeywords]
    ) -> AnyFunction | Decorator:
        """Declare a node that runs on its own, with its own state and pace.

        Args:
            function: The function; left out when used as `@pipeline.step(…)`.
            keywords: `name` and `inputs` as for a view; `output_mode`, `partitions`, `trigger`,
                `max_batch` and `updates` as in `StepOptions`.

        Raises:
            DeclarationError: If the name cannot be one or is taken.
            ConfigError: If there is no such keyword, or its value cannot work.
        """
        declare = self._decorator(Kind.STEP, keywords)
        return declare if function is None else declare(function)

    @overload
    def sink(
        self, target: SinkTarget, /, *, name: str | None = None, inputs: Sequence[str] | None = None
    ) -> Decorator: ...

    @overload
    def sink(
        self, name: str, target: SinkTarget, /, *, inputs: Sequence[str] | None = None
    ) -> Decorator: ...

    @overload
    def sink(
        self,
        name: str,
        target: SinkTarget,
        /,
        *,
        of: str | Function,
        inputs: Sequence[str] | None = None,
    ) -> None: ...

    def sink(
        self,
        first: str | SinkTarget,
        second: SinkTarget | None = None,
        /,
        *,
        of: str | Function | None = None,
        name: str | None = None,
        inputs: Sequence[str] | None = None,
    ) -> Decorator | None:
        """Declare where a result goes: `@sink(target)`, or `sink("name", target, of=…)`.

        Args:
            first: The target, or the sink's name.
            second: The target, after a name.
            of: What goes there: a node by its name or by its function, taken as it is; or
                another function, whose parameters are its inputs.
            name: The sink's name, if neither given first nor the decorated function's own.
            inputs: The nodes that fill the function's parameters in order, if those are not
                called like the parameters.

        Raises:
            DeclarationError: If there is no target, or the name cannot be one or is taken.
        """
        origin = current_origin()
        sink_name, target = (first, second) if isinstance(first, str) else (name, first)
        if not isinstance(target, SinkTarget):
            raise DeclarationError(
                str(origin.place),
                f"a sink needs a target with format, accepts and describe(), not {target!r}; "
                'write @pipeline.sink(target) or pipeline.sink("name", target, of=…)',
            )
        filling = inputs_in({"inputs": inputs})

        def declare(function: AnyFunction, /) -> AnyFunction:
            signature = read_signature(function, filling)
            self._add(Kind.SINK, sink_name, function, signature, target=target)
            return function

        if of is None:
            return declare
        if isinstance(of, str):
            taken = of
        elif (found := self._node_made_of(of, origin)) is not None:
            taken = found
        else:
            declare(of)
            return None
        if inputs is not None:
            reason = f"of= is the node {taken}, which needs no inputs="
            raise DeclarationError(str(origin.place), reason)
        as_it_is = FunctionSignature(inputs=(Binding("frame", taken),))
        self._add(Kind.SINK, sink_name, same, as_it_is, target=target)
        return None

    def add(self, node: Node) -> None:
        """Add a node that was not declared by the methods above, as for a declarative project.

        Args:
            node: The node; its place is the line of the user's code that declares it.

        Raises:
            DeclarationError: If its name is taken.
        """
        self._declared.add(node, None)

    def start(
        self, spark: "SparkSession", options: "RunOptions | CheckpointConfig"
    ) -> "PipelineRun":
        """Start the pipeline on a session; returns while it runs.

        Args:
            spark: A classic session, an embedded one or your own.
            options: Where checkpoints are kept, and everything else about the run; or only when
                they are taken, and they are kept where `cutwater run` keeps them.

        Raises:
            CutwaterError: If it cannot be started; nothing is left half-started.
        """
        from cutwater.run import start  # noqa: PLC0415 - declaring a pipeline needs no Spark

        return start(self, spark, options)

    def run(self, spark: "SparkSession", options: "RunOptions | CheckpointConfig") -> "RunResult":
        """Run the pipeline until every source has ended or the pipeline is stopped.

        Args:
            spark: As for `start`.
            options: As for `start`.

        Raises:
            CutwaterError: What made it fail.
        """
        result = self.start(spark, options).wait()
        assert result is not None
        return result

    def _decorator(self, kind: Kind, keywords: Mapping[str, object]) -> Decorator:
        options = options_in(keywords, f"a {kind.value}", _KEYWORDS[kind])
        inputs = inputs_in(keywords)

        def declare(function: AnyFunction, /) -> AnyFunction:
            signature = read_signature(function, inputs)
            self._add(kind, keywords.get("name"), function, signature, options=options)
            return function

        return declare

    def _add(
        self,
        kind: Kind,
        name: object,
        function: object,
        signature: FunctionSignature,
        *,
        target: SinkTarget | None = None,
        options: StepOptions = _DEFAULTS,
    ) -> None:
        origin = current_origin()
        if not callable(function):
            reason = f"a {kind.value} is made of a function, not of {function!r}"
            raise DeclarationError(str(origin.place), reason)
        own_name = None if function is same else name_of(function)
        checked = check_name(own_name if name is None else name, f"a {kind.value}", origin.place)
        node = Node(checked, kind, function, signature, origin.place, options, target)
        self._declared.add(node, origin.run)

    def _node_made_of(self, function: Function, origin: Origin) -> str | None:
        """Return the name of the node that is made of the function, if one is."""
        names = self._declared.names_of(function)
        if len(names) > 1:
            reason = f"of= is a function of several nodes ({', '.join(names)}); give a node's name"
            raise DeclarationError(str(origin.place), reason)
        return names[0] if names else None
