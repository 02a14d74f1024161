"""`cutwater.testing.run_batch`: a pipeline's functions on plain DataFrames."""

import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.features import needs
from tests.spark.runs import collected, example

from cutwater import Pipeline, sinks, sources
from cutwater.errors import ConfigError, PlanError
from cutwater.pipeline.nodes import OutputMode
from cutwater.testing import run_batch

DEADLINE_S = 400
START = datetime(2026, 1, 1)  # noqa: DTZ001 - as the sequence begins, in UTC
USERS_TEST = """
from cutwater import Pipeline, sinks
from cutwater.testing import run_batch

pytest_plugins = ["cutwater.testing.fixtures"]
pipeline = Pipeline("orders")

@pipeline.source
def orders(spark):
    return spark.readStream.format("rate").load()

@pipeline.sink(sinks.delta("never/made"))
def large(orders):
    return orders.where("amount > 2")

def test_only_large_orders_remain(cutwater_spark):
    rows = cutwater_spark.createDataFrame([(1,), (3,)], "amount int")
    found = run_batch(pipeline, {"orders": rows})
    assert [row.amount for row in found["large"].collect()] == [3]
    assert cutwater_spark.conf.get("spark.sql.shuffle.partitions") == "2"
"""


class Everything:
    """A target that takes every output mode and is never opened."""

    format = "nowhere"
    accepts = frozenset({"append", "update", "complete"})

    def describe(self) -> str:
        return "nowhere"


def rows(spark: SparkSession, total: int) -> DataFrame:
    return sources.sequence_rows(spark.range(total), rate=1000.0)


def test_every_sink_gets_its_rows_and_nothing_is_made(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = example("three_sinks").create(tables=str(tmp_path / "tables"))

    found = run_batch(pipeline, {"orders": rows(spark, 2000).selectExpr("*", "value AS amount")})

    assert list(found) == ["all_orders", "large_orders", "sums"]
    assert found["all_orders"].count() == 2000
    assert sorted(row.value for row in found["large_orders"].collect()) == list(range(901, 2000))
    assert not any(frame.isStreaming for frame in found.values())
    assert list(tmp_path.iterdir()) == []
    assert spark.streams.active == []


def test_a_join_of_two_branches_is_that_of_all_rows(spark: SparkSession) -> None:
    pipeline = example("diamond").create(slow_us="0")

    prices = rows(spark, 1).selectExpr("value AS lot", "at AS offered", "9 AS price")

    joined = run_batch(pipeline, {"numbers": rows(spark, 50), "prices": prices})["joined"]

    assert collected(joined.select("value", "twice", "thrice", "price")) == sorted(
        ((number, number * 2, number * 3, 9) for number in range(50)), key=repr
    )


def test_windows_that_a_stream_would_hold_back_appear_too(spark: SparkSession) -> None:
    pipeline = example("windows").create()
    late = rows(spark, 3000).selectExpr("value", "at", "value % 7 AS page")

    counts = run_batch(pipeline, {"clicks": late.withWatermark("at", "1 second")})["counts"]

    expected = Counter((value // 2000, value % 7) for value in range(3000))
    assert {(row.start, row.page): row["count"] for row in counts.collect()} == {
        (START + timedelta(seconds=2 * at), page): count for (at, page), count in expected.items()
    }


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_other_output_modes_give_their_final_table(mode: OutputMode, spark: SparkSession) -> None:
    pipeline = Pipeline("totals")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark)

    @pipeline.step(output_mode=mode)
    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy((F.col("value") % 3).alias("shop")).agg(F.sum("value").alias("sum"))

    pipeline.sink("table", Everything(), of=totals)

    found = run_batch(pipeline, {"orders": rows(spark, 10)})

    assert collected(found["table"]) == [(0, 18), (1, 12), (2, 15)]


def test_an_input_of_updates_has_one_row_for_each_key(spark: SparkSession) -> None:
    pipeline = Pipeline("totals")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark)

    @pipeline.step(output_mode="update")
    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy((F.col("value") % 3).alias("shop")).agg(F.sum("value").alias("sum"))

    @pipeline.step(updates=["shop"])
    def large(totals: DataFrame) -> DataFrame:
        return totals.where("sum > 14")

    pipeline.sink("table", Everything(), of=large)
    pipeline.sink("all", Everything(), of=totals)

    found = run_batch(pipeline, {"orders": rows(spark, 10)})

    assert collected(found["table"]) == [(0, 18), (2, 15)]
    assert found["all"].count() == 3


@needs("transformWithState on rows")
def test_transform_with_state_sees_all_rows_of_a_key(spark: SparkSession) -> None:
    pipeline = example("transform_with_state").create()
    keyed = rows(spark, 1100).withColumn("key", F.col("value") % 5)

    found = run_batch(pipeline, {"numbers": keyed})["hundredths"]

    assert sorted(tuple(row) for row in found.collect()) == [
        (key, nth, key + 5 * (nth - 1)) for key in range(5) for nth in (100, 200)
    ]


def test_every_function_is_called_once_with_the_session_it_asks_for(spark: SparkSession) -> None:
    calls: list[str] = []
    pipeline = Pipeline("calls")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        raise AssertionError(spark)

    @pipeline.view
    def valid(orders: DataFrame, spark: SparkSession) -> DataFrame:
        calls.append(f"valid {spark is own}")
        return orders

    @pipeline.step
    def left(valid: DataFrame) -> DataFrame:
        calls.append("left")
        return valid

    pipeline.sink("one", Everything(), of=left)
    pipeline.sink("two", Everything(), of=lambda valid: valid.where("value > 1"))
    own = spark.newSession()

    run_batch(pipeline, {"orders": rows(spark, 3)}, own)

    assert calls == ["valid True", "left"]


def test_everything_that_is_wrong_with_the_frames_is_named(spark: SparkSession) -> None:
    pipeline = example("union").create()

    with pytest.raises(ConfigError) as missing:
        run_batch(pipeline, {"wbe": rows(spark, 1)})
    frames: Any = {"web": [1], "stores": sources.sequence(spark)}
    with pytest.raises(ConfigError) as wrong:
        run_batch(pipeline, frames)

    assert missing.value.message == (
        "frames: no DataFrame is given for sources stores, web; "
        "wbe: no such source; the pipeline has stores, web."
    )
    assert wrong.value.message == (
        "frames: stores must be a static DataFrame, not a streaming DataFrame; "
        "web must be a static DataFrame, not list."
    )


def test_a_function_that_gives_no_batch_is_named_with_its_line(spark: SparkSession) -> None:
    pipeline = Pipeline("wrong")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark)

    @pipeline.view
    def counted(orders: DataFrame) -> int:
        return orders.count()

    pipeline.sink("table", sinks.delta("nowhere"), of=counted)

    with pytest.raises(PlanError) as caught:
        run_batch(pipeline, {"orders": rows(spark, 3)})

    place = pipeline.nodes[1].place
    assert caught.value.problems == (f"{place}: view counted returns int, not a static DataFrame.",)


def test_an_error_of_a_users_function_comes_through_as_it_is(spark: SparkSession) -> None:
    pipeline = Pipeline("broken")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark)

    @pipeline.sink(Everything())
    def table(orders: DataFrame) -> DataFrame:
        raise ValueError(orders.columns)

    with pytest.raises(ValueError, match="value"):
        run_batch(pipeline, {"orders": rows(spark, 3)})


def test_a_users_test_has_a_session_of_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(USERS_TEST)

    warnings = ["-W", "error"]
    if version("pyspark").startswith("4.0."):
        # It does not close the socket from which a frame's rows are read.
        warnings += ["-W", "default::pytest.PytestUnraisableExceptionWarning"]
    command = [sys.executable, "-m", "pytest", "-q", *warnings, "-p", "no:cacheprovider", "."]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )

    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout
    assert not (tmp_path / "never").exists()
