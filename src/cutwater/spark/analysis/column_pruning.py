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
from cutwater.spark.analysis.logical_plan import pairs_of, plan_of
from cutwater.spark.jvm.channel_source import ChannelSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import native_source

_NARROWS: Final = ("Project", "Aggregate")
"""Nodes that need of their input what they mention, and nothing else."""

_ROUNDS: Final = 20
"""How often pruning is repeated at most. One round is nearly enough; too few keep too much."""

_WITHOUT_RULES: Final = "spark.sql.optimizer.excludedRules"

_IN_KEYS: Final = "spark.sql.collation.allowInMapKeys"


def columns_read(internals: Internals, frame: DataFrame) -> Mapping[ReaderId, frozenset[str]]:
    """Return the columns that a step's result needs of each of its inputs.

    One that is not there is not known of: all of its columns may be needed.
    """
    if any(node.has_subquery for node in plan_of(frame).walk()):
        # What a subquery mentions does not count as mentioned by the node that holds it.
        return {}
    if internals.spark.conf.get(_WITHOUT_RULES, ""):
        # Pruning may be switched off; what is asked here may have another session's settings.
        return {}
    found: dict[ReaderId, frozenset[str]] = {}
    try:
        for plan in _plans(internals, frame._jdf.queryExecution().analyzed()):
            for reader, columns in _leaves(plan, plan.outputSet()):
                # A channel that a step uses twice is there twice.
                found[reader] = found.get(reader, frozenset()) | columns
    except (Py4JJavaError, PySparkException):
        # Whether the step can run is for Spark to say when it runs it, with the reason.
        return {}
    return found


def _plans(internals: Internals, analysed: Any) -> Iterator[Any]:
    """Give a step's plan as Spark prunes it: by all its rules, and by nothing else than pruning.

    All its rules also evaluate what is constant, and that may be so for a while only: what time it
    is, or what a function looks up for each batch. So whatever is mentioned counts as read. That
    all of the rules together prune as much is not taken for granted.
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
    """Give every reader of a channel in a plan, of whose output some columns are needed.

    The sets stay in Java: a plan may have many nodes and a channel many columns.
    """
    kind = plan.getClass().getSimpleName()
    if kind == "StreamingExecutionRelation":
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
        elif kind == "Filter":
            yield from _leaves(child, getattr(needed, "$plus$plus")(plan.references()))
        else:
            yield from _leaves(child, child.outputSet())


def rows_depend_on_columns(internals: Internals, frame: DataFrame) -> bool:
    """Say whether a step may give other rows if fewer of its columns are asked for.

    Spark parses text (CSV, JSON, XML) and decodes files as far as it is asked to. What is then done
    with a record that is damaged, dropped or failed or put in a column of its own, depends on that.
    """
    settings = internals.spark.conf
    column = str(settings.get("spark.sql.columnNameOfCorruptRecord"))
    skips = str(settings.get("spark.sql.files.ignoreCorruptFiles"))
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        told = _options(leaf)
        if told is None:
            continue
        if told.get("mode", "PERMISSIVE").upper() != "PERMISSIVE":
            return True
        if told.get("ignorecorruptfiles", skips).lower() == "true":
            return True
        if told.get("columnnameofcorruptrecord", column) in _names(leaf.output()):
            return True
    return False


def _options(leaf: Any) -> Mapping[str, str] | None:
    """Return what a leaf that reads files was told, names in lower case; None for another."""
    match leaf.getClass().getSimpleName():
        case "StreamingRelation":
            options = leaf.dataSource().options()
        case "LogicalRelation" if leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
            options = leaf.relation().options()
        case _:
            return None
    return {name.lower(): value for name, value in pairs_of(options)}


def _names(attributes: Any) -> Iterator[str]:
    for at in range(attributes.size()):
        yield str(attributes.apply(at).name())


def find_unstorable_columns(internals: Internals, schema: StructType) -> Iterator[tuple[str, str]]:
    """Give the columns that Parquet cannot hold, each with the type that is the reason."""
    all_known = _is_known(internals, schema)
    keys_collate = str(internals.spark.conf.get(_IN_KEYS)).lower() == "true"
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
    return any(isinstance(one, StringType) and one != StringType() for one in parts(kind))
