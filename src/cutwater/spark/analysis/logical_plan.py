"""An analysed Spark plan as a tree of values: its nodes, what leaves read, what operators keep.

Reads Spark's internal plan classes through py4j, as `internals` does, and changes nothing. State is
described by the names of expressions, without the numbers that Spark assigns in every analysis. An
operator that is not listed as stateless counts as stateful, and is compared by its name alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.kafka_options import kafka_source

WATERMARK_DELAY: Final = "spark.watermarkDelayMs"
"""The key in a column's metadata under which Spark keeps the delay of its watermark."""

_NUMBERS: Final = re.compile(r"#\d+L?(-T\d+ms)?")
_SERIALS: Final = re.compile(
    r" \[native \d+\]|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|@[0-9a-f]{4,16}\b"
)
_CALLS: Final = re.compile(r"\b(CTERelation(?:Def|Ref)|[xyz])[ _]\d+\b")
"""Numbers that Spark counts up in every call: of common tables, and of variables of lambdas."""
_LITERALS: Final = re.compile(r"('(?:[^'\\]|\\.)*')", re.DOTALL)
_OF_TIME: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
_RELATIVE: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_FIELDS_MAX: Final = 100_000
_MICROS: Final = 1_000_000
_SLIDE: Final = re.compile(r"% (\d+)\)")
_LENGTH: Final = re.compile(r"\+ (\d+)\), LongType")
_GAP: Final = re.compile(r"cast\(([^()]*) as interval\)")


class WatermarkCall(NamedTuple):
    """A `withWatermark` call in a plan; Spark gives it a new id whenever it is called."""

    id: str
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class StateOperator:
    """One operator that keeps state; the fields are documented in `protocol.identity`."""

    keys: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    is_join: bool = False


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of an analysed logical plan.

    Attributes:
        kind: Spark's name for it, such as `Filter`.
        is_streaming: Whether rows keep coming.
        has_subquery: Whether one of its expressions holds a plan of its own.
        source: For a leaf that reads a stream: its description; empty for anything else.
        options: For such a leaf: the options it was made with.
        relation: For such a leaf: which use it is; two that are equal share one source.
        state: What it keeps state by, if it does.
        reads: The paths of the files that it, or a plan in one of its expressions, reads.
        watermark: The `withWatermark` call that it represents, if any.
        common_table: For the definition of a common table expression, and for a reference to it:
            its number.
        text: For the top of a plan: all of it as Spark prints it.
    """

    kind: str
    is_streaming: bool
    children: tuple["PlanNode", ...]
    has_subquery: bool
    source: str = ""
    options: tuple[tuple[str, str], ...] = ()
    relation: str = ""
    state: StateOperator | None = None
    reads: tuple[str, ...] = ()
    watermark: WatermarkCall | None = None
    common_table: str = ""
    text: str = ""

    def walk(self) -> Sequence["PlanNode"]:
        """Return this node and all below it, parents first."""
        found = [self]
        for child in self.children:
            found += child.walk()
        return found


def plan_of(frame: DataFrame) -> PlanNode:
    analysed = frame._jdf.queryExecution().analyzed()
    return replace(_node(analysed), text=str(analysed.toString()))


def _node(plan: Any) -> PlanNode:
    name = plan.getClass().getSimpleName()
    kind = plan_nodes.RENAMED.get(name, name)
    children = plan.children()
    source, options = _source_of(kind, plan)
    inner = [_node(subquery) for subquery in all_of(plan.subqueries())]
    read_inside = [path for subplan in inner for node in subplan.walk() for path in node.reads]
    return PlanNode(
        kind=kind,
        is_streaming=plan.isStreaming(),
        children=tuple(_node(children.apply(at)) for at in range(children.size())),
        has_subquery=bool(inner),
        source=source,
        options=options,
        relation=f"{source} {plan.output().toString()}" if source else "",
        state=state_operator(kind, plan),
        reads=(*_paths_of(kind, plan, options), *read_inside),
        watermark=_watermark_of(plan) if kind == plan_nodes.WATERMARK else None,
        common_table=_common_table_of(kind, plan),
    )


def _common_table_of(kind: str, plan: Any) -> str:
    if kind == plan_nodes.COMMON_TABLE:
        return str(plan.id())
    return str(plan.cteId()) if kind == plan_nodes.COMMON_TABLE_REFERENCE else ""


def _watermark_of(plan: Any) -> WatermarkCall | None:
    """Read a call from the one column of its output that has a delay."""
    for column in all_of(plan.output()):
        if column.metadata().contains(WATERMARK_DELAY):
            delay_ms = int(column.metadata().getLong(WATERMARK_DELAY))
            return WatermarkCall(str(plan.nodeId().toString()), str(column.name()), delay_ms)
    return None


def _source_of(kind: str, plan: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    if kind == plan_nodes.STREAM:
        found = plan.dataSource().options()
        return plan.sourceName(), pairs_of(found)
    if kind == plan_nodes.STREAM_V2:
        options = _pairs_of_java(plan.extraOptions().asCaseSensitiveMap())
        return kafka_source(options) or plan.sourceName(), options
    if kind == plan_nodes.STREAM_OF_OBJECT:
        return str(plan.source().toString()), ()
    return "", ()


def _paths_of(kind: str, plan: Any, options: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the paths from which a leaf reads files, if the plan contains them."""
    try:
        if kind == plan_nodes.RELATION:
            found = all_of(plan.relation().location().rootPaths())
        elif kind.startswith(plan_nodes.RELATION_V2_PREFIX):
            found = all_of(plan.table().paths())
        elif kind == plan_nodes.RELATION_OF_HIVE:
            found = [plan.tableMeta().location()]
        else:
            found = [value for name, value in options if name.lower() == "path"]
    except Py4JError:
        # A relation of another kind: rows of a database, or of a format that has no files.
        return ()
    return tuple(str(path) for path in found)


def all_of(sequence: Any) -> list[Any]:
    """Return the content of a Scala sequence."""
    return [sequence.apply(at) for at in range(sequence.size())]


def pairs_of(options: Any) -> tuple[tuple[str, str], ...]:
    """Return the content of a Scala map."""
    found = []
    pairs = options.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found.append((str(pair._1()), str(pair._2())))
    return tuple(found)


def _pairs_of_java(options: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(options[key])) for key in options)


def without_serials(text: str) -> str:
    """Remove the numbers that differ in every run: ids of expressions, sources and objects."""
    return _SERIALS.sub("", _NUMBERS.sub("", text))


def describe_plan(frame: DataFrame) -> str:
    """Return the analysed query of a frame as text, without what differs from call to call.

    Functions of the user appear by their names: what they do is not seen.
    """
    return "\n".join(_described(frame._jdf.queryExecution().analyzed(), 0))


def _described(plan: Any, depth: int) -> Iterator[str]:
    text = _CALLS.sub(r"\1", without_serials(plan.simpleString(_FIELDS_MAX)))
    yield f"{' ' * depth}{text}"
    yield f"{' ' * depth}{describe_expressions(plan)}"
    for child in all_of(plan.children()):
        yield from _described(child, depth + 1)


def describe_expressions(node: Any) -> str:
    """Return the expressions of one node as SQL: all of them, and every literal as it is.

    Spark's own text of a node ends after 25 columns, and its literals look like serial numbers.
    """
    return ", ".join(map(_describe_expression, all_of(node.expressions())))


def _describe_expression(expression: Any) -> str:
    try:
        text = str(expression.sql())
    except Py4JError:
        return without_serials(expression.toString())
    # Between literals: numbers that Spark counts up for variables of lambdas.
    return "".join(
        part if part.startswith("'") else _CALLS.sub(r"\1", part) for part in _LITERALS.split(text)
    )


def has_hidden_variation(plan: Any) -> bool:
    """Return whether a plan has expressions that Spark calls deterministic, and which are not.

    'now', 'today' and the like become the current time whenever a query is optimized. Encryption
    chooses an initialization vector at random, unless it is given one.
    """
    return any(map(_varies, all_of(plan.expressions()))) or any(
        map(has_hidden_variation, all_of(plan.children()))
    )


def _varies(expression: Any) -> bool:
    match str(expression.getClass().getSimpleName()):
        case "Cast" if str(expression.dataType().typeName()) in _OF_TIME:
            child = expression.child()
            is_text = str(child.dataType().typeName()).startswith("string")
            if is_text and bool(child.foldable()):
                is_literal = str(child.getClass().getSimpleName()) == "Literal"
                return not is_literal or bool(_RELATIVE.match(str(child.toString())))
        case "AesEncrypt":
            return True
    parts = all_of(expression.children())
    return any(map(_varies, [*parts, *_replacement(expression)] if parts else ()))


def _replacement(expression: Any) -> list[Any]:
    """Return what the optimizer puts in the place of an expression, if that is known before."""
    try:
        return [expression.replacement()]
    except Py4JError:
        return []


def state_operator(kind: str, plan: Any) -> StateOperator | None:
    """Return what a node of an analysed plan keeps state by; None if it keeps none."""
    children = all_of(plan.children())
    if not children or not plan.isStreaming() or kind in plan_nodes.KEEPS_NO_STATE:
        return None
    if kind == plan_nodes.JOIN:
        if not all(child.isStreaming() for child in children):
            return None
        condition = plan.condition()
        text = without_serials(condition.get().toString()) if condition.isDefined() else ""
        return StateOperator((text,), ("",), (str(plan.joinType().toString()),), is_join=True)
    keys = _keys(kind, plan)
    functions = list(_functions(plan)) if kind == plan_nodes.AGGREGATE else []
    return StateOperator(
        tuple(_with_type(key) for key in keys),
        tuple(_window(key, plan) for key in keys),
        tuple(
            f"{function.prettyName()} {function.dataType().catalogString()}"
            for function in functions
        ),
        tuple(_with_type(function) for function in functions),
    )


def _keys(kind: str, plan: Any) -> list[Any]:
    method = {plan_nodes.AGGREGATE: "groupingExpressions", plan_nodes.DISTINCT: "output"}.get(
        kind,
        "keys" if kind.startswith(plan_nodes.DEDUPLICATION_PREFIX) else "groupingAttributes",
    )
    try:
        return all_of(getattr(plan, method)())
    except (Py4JError, TypeError):
        # Another operator, such as a limit, has no keys.
        return []


def _functions(plan: Any) -> Iterator[Any]:
    for expression in all_of(plan.aggregateExpressions()):
        yield from _functions_in(expression)


def _functions_in(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == plan_nodes.AGGREGATE_EXPRESSION:
        yield expression.aggregateFunction()
        return
    for child in all_of(expression.children()):
        yield from _functions_in(child)


def _with_type(expression: Any) -> str:
    return f"{without_serials(expression.toString())} {expression.dataType().catalogString()}"


def _window(key: Any, plan: Any) -> str:
    """Return the length of a window, whose column the analyser computes below its use."""
    name = str(key.toString())
    if key.getClass().getSimpleName() != plan_nodes.ATTRIBUTE or "indow" not in name:
        return ""
    for node in _below(plan):
        kind = node.getClass().getSimpleName()
        if kind == plan_nodes.PROJECT:
            defined = [
                str(expression.toString())
                for expression in all_of(node.projectList())
                if str(expression.toString()).endswith(f" AS {name}")
            ]
        elif kind == plan_nodes.EXPAND:
            first = all_of(all_of(node.projections())[0])
            defined = [
                str(expression.toString())
                for expression in first
                if "named_struct(start" in str(expression)
            ]
        else:
            continue
        if defined:
            return _length(without_serials(name), defined[0])
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
    for child in all_of(plan.children()):
        yield child
        yield from _below(child)
