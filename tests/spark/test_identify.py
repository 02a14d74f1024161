"""What Spark's plans tell about a step: operators, keys, windows, sides of joins, sources.

Nothing runs here: functions are called on streams, and the analysed plans are looked at.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources
from cutwater.ids import StepId
from cutwater.planning.planner import plan
from cutwater.protocol.evolution.identity import InputKind, StepIdentity
from cutwater.spark.analysis.explain import identities

Work = Callable[[DataFrame], DataFrame]
WINDOW = "window struct<start:timestamp,end:timestamp>"


def numbers(spark: SparkSession) -> DataFrame:
    return sources.sequence(spark, total=10)


def identity(spark: SparkSession, work: Work, *, chain: bool = True) -> StepIdentity:
    """What a step of this work over the numbers is."""
    pipeline = Pipeline("looked-at")
    pipeline.source(numbers, chain=chain)
    pipeline.step(work, name="work", inputs=["numbers"], partitions=3)
    pipeline.sink("t", sinks.delta("nowhere"), of="work")
    return identities(plan(pipeline), spark)[StepId("work")]


def marked(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "1 second")


def windowed(*lengths: str) -> Work:
    def work(rows: DataFrame) -> DataFrame:
        found = marked(rows).groupBy(F.window("at", *lengths), "value").agg(F.sum("value"))
        return found.select("value", F.col("window.start").alias("at"))

    return work


def sessions(rows: DataFrame) -> DataFrame:
    found = marked(rows).groupBy(F.session_window("at", "5 minutes"), "value").count()
    return found.select("value")


def deduplicated(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["value"])


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (
            windowed("10 seconds"),
            ("Aggregate", (WINDOW, "value bigint"), ("window of 10 s", ""), ("sum bigint",)),
        ),
        (
            windowed("10 seconds", "5 seconds"),
            (
                "Aggregate",
                (WINDOW, "value bigint"),
                ("window of 10 s every 5 s", ""),
                ("sum bigint",),
            ),
        ),
        (
            sessions,
            (
                "Aggregate",
                (f"session_{WINDOW}", "value bigint"),
                ("session_window with gaps of 5 minutes", ""),
                ("count bigint",),
            ),
        ),
        (deduplicated, ("Deduplicate", ("value bigint",), ("",), ())),
    ],
    ids=["tumbling", "sliding", "session", "deduplicate"],
)
def test_an_operator_is_known_by_its_keys(
    spark: SparkSession, work: Work, expected: tuple[object, ...]
) -> None:
    chained, behind_a_channel = identity(spark, work), identity(spark, work, chain=False)

    (operator,) = chained.operators
    assert (operator.kind, operator.keys, operator.windows, operator.layout) == expected
    assert behind_a_channel.operators == chained.operators
    assert (chained.partitions, chained.spark) == (3, spark.version)


def test_the_same_code_is_the_same_identity_every_time(spark: SparkSession) -> None:
    work = windowed("10 seconds")

    assert identity(spark, work) == identity(spark, work)
    assert identity(spark, work).plan_sha256 != identity(spark, windowed("9 seconds")).plan_sha256


def in_words(rows: DataFrame) -> DataFrame:
    text = "WITH big AS (SELECT * FROM {rows} WHERE value > 1) SELECT value FROM big"
    return rows.sparkSession.sql(text, rows=rows)


@pytest.mark.parametrize(
    "work",
    [
        lambda rows: rows.where("value > 1").repartition(3).select("value"),
        lambda rows: rows.observe("seen", F.count(F.lit(1)).alias("rows")).select("value"),
        in_words,
    ],
    ids=["plain", "observed", "in words"],
)
def test_plain_work_keeps_no_state(spark: SparkSession, work: Work) -> None:
    found = identity(spark, work)

    assert (found.operators, found.partitions) == ((), None)


def test_the_sides_of_a_join_are_known_by_their_sources(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("joined")
    schema = "value long, at timestamp"
    (tmp_path / "in").mkdir()

    def late(spark: SparkSession) -> DataFrame:
        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return read.json(str(tmp_path / "in"))

    def matched(numbers: DataFrame, renamed: DataFrame) -> DataFrame:
        return numbers.join(renamed, "value").select("value")

    pipeline.source(numbers)
    pipeline.source(late)
    pipeline.view(lambda late: late.select("value"), name="renamed")
    pipeline.step(matched)
    pipeline.sink("t", sinks.delta("nowhere"), of=matched)
    pipeline.sink("u", sinks.delta("elsewhere"), of="renamed")
    found = identities(plan(pipeline), spark)

    (join,) = found[StepId("matched")].operators
    assert (join.kind, join.layout, join.sides) == ("Join", ("Inner",), (("numbers",), ("late",)))
    assert join.keys == ("(value = value)",)
    (files,) = found[StepId("renamed")].inputs
    assert (files.kind, files.name, files.format, files.log) == (
        InputKind.SOURCE,
        "late",
        "FileSource",
        0,
    )
    assert str(tmp_path / "in") in files.place
    assert [channel.name for channel in found[StepId("matched")].channels] == ["numbers", "renamed"]
