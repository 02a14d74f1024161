"""Which columns a step reads from its channels, and which column types a channel can carry.

The columns read come from Spark's optimizer: we run it and look at the projection above each
channel scan. If there is none, the step reads every column.

Rows wait as Parquet, in a channel or where a sink stages them. Spark reports a type that Parquet
cannot hold only when it writes the first batch, and from then on every start of the pipeline would
fail. So the types are checked before anything starts.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from cutwater.ids import ReaderId
from cutwater.sinks.columns import parts
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import pairs_of, plan_of
from cutwater.spark.jvm.channel_source import ChannelSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import native_source
from cutwater.spark.versions import COLLATED_KEYS

_NARROWS: Final = (plan_nodes.PROJECT, plan_nodes.AGGREGATE)
"""Nodes that need only those columns of their input that they mention."""

_ROUNDS: Final = 20
"""The max number of pruning rounds. One is nearly always enough; too few keep too many columns."""

_WITHOUT_RULES: Final = "spark.sql.optimizer.excludedRules"


def columns_read(internals: Internals, frame: DataFrame) -> Mapping[ReaderId, frozenset[str]]:
    """Return the columns that a step's result needs from each of its inputs.

    An input that is not in the result may need all of its columns.
    """
    if any(node.has_subquery for node in plan_of(frame).walk()):
        # What a subquery mentions does not count as mentioned by the node that holds it.
        return {}
    if internals.spark.conf.get(_WITHOUT_RULES, ""):
        # Pruning may be switched off, and the query may run with the settings of another session.
        return {}
    found: dict[ReaderId, frozenset[str]] = {}
    try:
        for plan in _plans(internals, frame._jdf.queryExecution().analyzed()):
            for reader, columns in _leaves(plan, plan.outputSet()):
                # A channel that a step uses twice is there twice.
                found[reader] = found.get(reader, frozenset()) | columns
    except (Py4JJavaError, PySparkException):
        # If the step cannot run, Spark reports the reason when it runs the step.
        return {}
    return found


def _plans(internals: Internals, analysed: Any) -> Iterator[Any]:
    """Yield a step's plan as Spark prunes it: once by all its rules, once by pruning alone.

    Spark's rules also evaluate constants, and some are constant only for a while: the current time,
    or a value that a function looks up for each batch. So every column that is mentioned counts as
    read. We do not assume that all rules together prune at least as much as pruning alone.
    """
    optimizer = internals.session.sessionState().optimizer()
    yield optimizer.execute(analysed)
    rules = internals.jvm.org.apache.spark.sql.catalyst.optimizer
    pruning = internals.scala_object(rules, "ColumnPruning")
    plan = optimizer.FinishAnalysis().apply(analysed)
    for _ in range(_ROUNDS):
        plan, before = pruning.apply(plan), plan
        if plan.fastEquals(before):
            break
    yield plan


def _leaves(plan: Any, needed: Any) -> Iterator[tuple[ReaderId, frozenset[str]]]:
    """Yield every reader of a channel in a plan, with the columns that are needed of it.

    The sets stay in Java: a plan may have many nodes and a channel many columns.
    """
    kind = plan.getClass().getSimpleName()
    if kind == plan_nodes.STREAM_OF_OBJECT:
        source = native_source(str(plan.source().toString()))
        if isinstance(source, ChannelSource):
            read = frozenset(_names(plan.outputSet().intersect(needed).toSeq()))
            yield source.reader, read | source.needed_by_itself
        return
    children = plan.children()
    for at in range(children.size()):
        child = children.apply(at)
        if kind in _NARROWS:
            yield from _leaves(child, plan.references())
        elif kind == plan_nodes.FILTER:
            yield from _leaves(child, getattr(needed, "$plus$plus")(plan.references()))
        else:
            yield from _leaves(child, child.outputSet())


def rows_depend_on_columns(internals: Internals, frame: DataFrame) -> bool:
    """Return whether a step may produce other rows if fewer of its columns are read.

    Spark parses text (CSV, JSON, XML) and decodes files only as far as the columns need. What it
    does with a damaged record (drop it, fail, or put it in a column of its own) depends on that.
    """
    settings = internals.spark.conf
    column = str(settings.get("spark.sql.columnNameOfCorruptRecord"))
    skips = str(settings.get("spark.sql.files.ignoreCorruptFiles"))
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        options = _options(leaf)
        if options is None:
            continue
        if options.get("mode", "PERMISSIVE").upper() != "PERMISSIVE":
            return True
        if options.get("ignorecorruptfiles", skips).lower() == "true":
            return True
        if options.get("columnnameofcorruptrecord", column) in _names(leaf.output()):
            return True
    return False


def _options(leaf: Any) -> Mapping[str, str] | None:
    """Return the options of a leaf that reads files, names in lower case; None for any other."""
    match leaf.getClass().getSimpleName():
        case plan_nodes.STREAM:
            options = leaf.dataSource().options()
        case plan_nodes.RELATION if leaf.relation().getClass().getSimpleName() == plan_nodes.FILES:
            options = leaf.relation().options()
        case _:
            return None
    return {name.lower(): value for name, value in pairs_of(options)}


def _names(attributes: Any) -> Iterator[str]:
    for at in range(attributes.size()):
        yield str(attributes.apply(at).name())


def find_unstorable_columns(internals: Internals, schema: StructType) -> Iterator[tuple[str, str]]:
    """Yield the columns that Parquet cannot hold, each with the type that is the reason."""
    all_known = _is_known(internals, schema)
    keys_collate = str(internals.spark.conf.get(COLLATED_KEYS, "false")).lower() == "true"
    for column in schema.fields:
        for kind in parts(column.dataType):
            nested = isinstance(kind, ArrayType | MapType | StructType)
            if isinstance(kind, StructType) and not kind.fields:
                yield column.name, "struct without fields"
            elif isinstance(kind, MapType) and not keys_collate and _collates(kind.keyType):
                yield column.name, f"map with the key {kind.keyType.simpleString()}"
            elif all_known or nested or _is_known(internals, StructType().add("it", kind)):
                continue
            else:
                yield column.name, kind.simpleString()
            break


def _is_known(internals: Internals, schema: StructType) -> bool:
    return internals.parquet.holds(internals.java_schema(schema))


def _collates(kind: DataType) -> bool:
    return any(isinstance(part, StringType) and part != StringType() for part in parts(kind))
