"""A function of the user's that raises: back to the last cut, or an end that says why.

What the error names is a line of this file.
"""

import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, run, table

from cutwater import Pipeline, RestartConfig, sinks, sources
from cutwater.errors import StepError
from cutwater.spark.session.session import ship_by_value

ship_by_value([sys.modules[__name__]])

TOTAL = 3000
RESTART = RestartConfig(strategy="fixed", attempts=3, delay="100ms")


def raising_at(number: int, unless: Path) -> Column:
    """Raise at one number, unless the file is there, which appears then."""
    known = str(unless)

    def check(value: int) -> int:
        if value == number and not Path(known).exists():
            Path(known).write_text("raised")
            raise ValueError(f"no {value} today")
        return value

    return F.udf(check, "long", useArrow=False)(F.col("value"))


def failing(directory: Path, number: int, way: str) -> Pipeline:
    pipeline = Pipeline("failing")

    @pipeline.source(chain=way == "chained")
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=TOTAL, batch_max=200, rate=1500.0)

    @pipeline.step
    def checked(numbers: DataFrame) -> DataFrame:
        rows = numbers.dropDuplicates(["value"]) if way == "query" else numbers
        return rows.select(raising_at(number, directory / "raised").alias("value"))

    pipeline.sink("t", sinks.delta(str(directory / "t")), of=checked)
    return pipeline


WAYS = ["chained", "query", "batch"]
NUMBERS = [0, 1700]
IN = {0: "the first batch", 1700: "a later batch"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", NUMBERS, ids=IN.get)
def test_a_failure_that_passes_leaves_no_trace(
    spark: SparkSession, tmp_path: Path, number: int, way: str
) -> None:
    result = run(failing(tmp_path, number, way), spark, options(tmp_path, restart=RESTART))

    assert result.finished
    assert result.restarts == 1
    assert table(tmp_path / "t", "value") == [(number,) for number in range(TOTAL)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", NUMBERS, ids=IN.get)
def test_a_failure_names_the_line_and_the_cause(
    spark: SparkSession, tmp_path: Path, number: int, way: str
) -> None:
    with pytest.raises(StepError) as caught:
        run(failing(tmp_path, number, way), spark, options(tmp_path))

    error = caught.value
    assert error.step == "checked"
    what = "offsets" if way == "chained" else "Events"
    reads = rf"Batch \d+ reads {what} of numbers from .+ to .+\."
    assert re.fullmatch(rf"ValueError: no {number} today\. {reads}", error.reason), error.reason
    assert error.where == f"step checked, {__file__}:{raising_line()} in check"
    # What was committed before is whole, and a run without the cause goes on from there.
    result = run(failing(tmp_path, number, way), spark, options(tmp_path))
    assert result.finished
    assert table(tmp_path / "t", "value") == [(number,) for number in range(TOTAL)]


def raising_line() -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(at for at, line in enumerate(lines, start=1) if "raise ValueError" in line)
