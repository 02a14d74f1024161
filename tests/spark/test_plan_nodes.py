"""Spark's plans have the parts that Cutwater knows by their simple names, on the version in use.

A simple name cannot be looked up: one that Spark has renamed would simply never be found again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cutwater import sources
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import plan_of
from cutwater.spark.jvm.internals import Internals

pytestmark = pytest.mark.matrix

Build = Callable[[SparkSession, Path], DataFrame]
_FUNCTIONS = "org.apache.spark.api.java.function"


class _Function:
    """A function of Java's that is never called: plans are analysed and not run."""

    def hashCode(self) -> int:  # noqa: N802 - Java's name
        return 1

    def equals(self, _: object) -> bool:
        return True

    def toString(self) -> str:  # noqa: N802 - Java's name
        return "a function"


class _Filter(_Function):
    class Java:
        implements = (f"{_FUNCTIONS}.FilterFunction",)


class _Map(_Function):
    class Java:
        implements = (f"{_FUNCTIONS}.MapFunction",)


class _MapPartitions(_Function):
    class Java:
        implements = (f"{_FUNCTIONS}.MapPartitionsFunction",)


TYPED = {"filter": _Filter, "map": _Map, "mapPartitions": _MapPartitions}


class _Nothing(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: object,  # noqa: ARG002
        rows: Iterator[Any],
        timerValues: object,  # noqa: ARG002, N803 - Spark's name
    ) -> Iterator[Any]:
        return rows

    def close(self) -> None:
        pass


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).select("id", F.array("id").alias("ids"), F.current_timestamp().alias("t"))


def stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("value as id", "timestamp as t").withWatermark("t", "1 minute")


def typed(spark: SparkSession, method: str) -> DataFrame:
    """Return a frame with a call that only Java and Scala have."""
    frame = spark.range(3)
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm: Any = spark._jvm
    encoders = () if method == "filter" else (jvm.org.apache.spark.sql.Encoders.LONG(),)
    return DataFrame(getattr(frame._jdf, method)(TYPED[method](), *encoders).toDF(), spark)


def parquet(spark: SparkSession, tmp_path: Path, v1: str) -> DataFrame:
    path = str(tmp_path / "files")
    spark.range(1).write.parquet(path)
    before = spark.conf.get("spark.sql.sources.useV1SourceList")
    spark.conf.set("spark.sql.sources.useV1SourceList", v1)
    try:
        frame = spark.read.parquet(path)
        frame.schema  # noqa: B018 - analyses it now
        return frame
    finally:
        spark.conf.set("spark.sql.sources.useV1SourceList", str(before))


def view(spark: SparkSession) -> DataFrame:
    spark.range(1).createOrReplaceTempView("some_rows")
    spark.sql("create or replace temp view a_view as select * from some_rows")
    return spark.table("a_view")


def same(batches: Any) -> Any:  # noqa: ANN401 - of pandas or of Arrow
    return batches


PLANS: dict[str, Build] = {
    "Aggregate": lambda spark, _: spark.range(3).groupBy("id").count(),
    "AggregateExpression": lambda spark, _: spark.range(3).groupBy("id").count(),
    "AttributeReference": lambda spark, _: spark.range(3).select("id"),
    "CTERelationDef": lambda spark, _: spark.sql("with a as (select 1) select * from a, a as b"),
    "CTERelationRef": lambda spark, _: spark.sql("with a as (select 1) select * from a, a as b"),
    "CollectMetrics": lambda spark, _: rows(spark).observe("seen", F.count(F.lit(1))),
    "DataSourceV2": lambda spark, path: parquet(spark, path, ""),
    "Deduplicate": lambda spark, _: stream(spark).dropDuplicates(["id"]),
    "DeserializeToObject": lambda spark, _: typed(spark, "map"),
    "Distinct": lambda spark, _: spark.sql("select distinct id from range(3)"),
    "EventTimeWatermark": lambda spark, _: stream(spark),
    "Expand": lambda spark, _: rows(spark).groupBy(F.window("t", "2 hours", "1 hour")).count(),
    "Filter": lambda spark, _: rows(spark).where("id > 1"),
    "Generate": lambda spark, _: rows(spark).select(F.explode("ids")),
    "GlobalLimit": lambda spark, _: rows(spark).limit(1),
    "HadoopFsRelation": lambda spark, path: parquet(spark, path, "parquet"),
    "Join": lambda spark, _: stream(spark).join(stream(spark), "id"),
    "LocalLimit": lambda spark, _: rows(spark).limit(1),
    "LogicalRelation": lambda spark, path: parquet(spark, path, "parquet"),
    "MapElements": lambda spark, _: typed(spark, "map"),
    "MapInArrow": lambda spark, _: spark.range(3).mapInArrow(same, "id long"),
    "MapInPandas": lambda spark, _: spark.range(3).mapInPandas(same, "id long"),
    "MapPartitions": lambda spark, _: typed(spark, "mapPartitions"),
    "Project": lambda spark, _: rows(spark),
    "RebalancePartitions": lambda spark, _: rows(spark).hint("rebalance"),
    "Repartition": lambda spark, _: rows(spark).repartition(2),
    "RepartitionByExpression": lambda spark, _: rows(spark).repartition(2, "id"),
    "ResolvedHint": lambda spark, _: F.broadcast(rows(spark)),
    "Sample": lambda spark, _: rows(spark).sample(0.5),
    "SerializeFromObject": lambda spark, _: typed(spark, "map"),
    "Sort": lambda spark, _: rows(spark).orderBy("id"),
    "StreamingExecutionRelation": lambda spark, _: sources.sequence(spark, total=9),
    "StreamingRelation": lambda spark, path: spark.readStream.schema("a int").json(str(path)),
    "StreamingRelationV2": lambda spark, _: stream(spark),
    "SubqueryAlias": lambda spark, _: rows(spark).alias("it"),
    "TypedFilter": lambda spark, _: typed(spark, "filter"),
    "Union": lambda spark, _: rows(spark).union(rows(spark)),
    "View": lambda spark, _: view(spark),
    "Window": lambda spark, _: spark.sql("select rank() over (order by id) from range(3)"),
    "WithCTE": lambda spark, _: spark.sql("with a as (select 1) select * from a, a as b"),
}

WITHOUT_PLAN = {"HiveTableRelation": "org.apache.spark.sql.catalyst.catalog.HiveTableRelation"}
"""Only a session with Hive makes these plans; the class is looked up instead."""


def expressions(top: Any) -> Iterator[Any]:  # noqa: ANN401 - an object of the JVM
    yield top
    for at in range(top.children().size()):
        yield from expressions(top.children().apply(at))


def names_in(frame: DataFrame) -> set[str]:
    found: set[str] = set()
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        plan = todo.pop()
        found.add(plan.getClass().getSimpleName())
        todo += [plan.children().apply(at) for at in range(plan.children().size())]
        for at in range(plan.expressions().size()):
            found |= {
                one.getClass().getSimpleName() for one in expressions(plan.expressions().apply(at))
            }
        if plan.getClass().getSimpleName() == plan_nodes.RELATION:
            found.add(plan.relation().getClass().getSimpleName())
    return found


def test_there_is_a_plan_for_every_name() -> None:
    assert {*PLANS, *WITHOUT_PLAN} == {*plan_nodes.KNOWN, *plan_nodes.PREFIXES}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_the_part_that_is_known_by_its_name(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    found = names_in(PLANS[name](spark, tmp_path))

    if name in plan_nodes.PREFIXES:
        assert any(one.startswith(name) for one in found), found
    else:
        assert name in found


@pytest.mark.parametrize("name", WITHOUT_PLAN)
def test_a_node_of_another_kind_of_session_has_the_name_that_is_known(
    name: str, spark: SparkSession
) -> None:
    found = spark._jvm.java.lang.Class.forName(WITHOUT_PLAN[name])  # type: ignore[union-attr]

    assert found.getSimpleName() == name


def with_pandas_state(spark: SparkSession) -> DataFrame:
    grouped: Any = stream(spark).groupBy("id")
    frame = grouped.applyInPandasWithState(same, "id long", "n long", "append", "NoTimeout")
    assert isinstance(frame, DataFrame)
    return frame


def with_processor(spark: SparkSession) -> DataFrame:
    return (
        stream(spark)
        .groupBy("id")
        .transformWithStateInPandas(_Nothing(), "id long", "append", "none")
    )


STATEFUL: dict[str, tuple[Callable[[SparkSession], DataFrame], list[str]]] = {
    "Aggregate": (lambda spark: stream(spark).groupBy("id").count(), ["id"]),
    "Deduplicate": (lambda spark: stream(spark).dropDuplicates(["id"]), ["id"]),
    "DeduplicateWithinWatermark": (
        lambda spark: stream(spark).dropDuplicatesWithinWatermark(["id"]),
        ["id"],
    ),
    "FlatMapGroupsInPandasWithState": (with_pandas_state, ["id"]),
    "GlobalLimit": (lambda spark: stream(spark).limit(3), []),
    "Join": (lambda spark: stream(spark).join(stream(spark).drop("t"), "id"), ["(id = id)"]),
    "TransformWithStateInPySpark": (with_processor, []),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_an_operator_with_state_has_the_same_identity_on_every_version(
    name: str, spark: SparkSession
) -> None:
    build, keys = STATEFUL[name]

    (node,) = [node for node in plan_of(build(spark)).walk() if node.state is not None]

    assert node.kind == name
    assert node.state is not None
    assert [key.removesuffix(" bigint") for key in node.state.keys] == keys


def test_the_arguments_of_spark_are_as_the_table_says(spark: SparkSession) -> None:
    version = Internals(spark).version
    manager = spark._jsparkSession.sessionState().streamingQueryManager()
    data_source = "org.apache.spark.sql.execution.datasources.DataSource$"

    def counts(java_class: Any, name: str) -> set[int]:  # noqa: ANN401
        methods = java_class.getDeclaredMethods()
        return {int(one.getParameterCount()) for one in methods if one.getName() == name}

    assert counts(manager.getClass(), "startQuery") == {12 + version.names_sinks}
    found = spark._jvm.java.lang.Class.forName(data_source)  # type: ignore[union-attr]
    assert counts(found, "checkAndGlobPathIfNecessary") == {6 + version.globs_selectively}
