"""Every checkpoint that is kept restores, in any order, twice at once in one Spark application."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.forks import ALL, FORCED, Point, TwoForks, parameters, points, rows_of
from tests.spark.runs import DEADLINE_S, example, options, run

from cutwater import CheckpointConfig

OFTEN = CheckpointConfig(**FORCED)


def original(spark: SparkSession, directory: Path) -> list[Point]:
    create = example("diamond").create
    pipeline = create(**parameters(directory / "table", quick=False))
    run(pipeline, spark, options(directory, checkpoint=OFTEN))
    found = points(directory)
    assert len(found) >= 4
    assert any(point.in_flight_bytes and point.shown for point in found)
    return found


def forked(spark: SparkSession, directory: Path, chosen: list[Point]) -> None:
    for point in chosen:
        forks = TwoForks(directory, point)
        running = [
            example("diamond")
            .create(**parameters(table, quick=True))
            .start(spark, options(directory, checkpoint=OFTEN, name=name))
            for name, table in forks.make()
        ]
        ended = [entry.wait(DEADLINE_S) for entry in running]
        assert all(entry is not None and entry.finished for entry in ended)
        forks.check()
    assert rows_of(directory / "table") == ALL


def test_a_checkpoint_with_rows_in_flight_restores_twice_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = original(spark, tmp_path)
    middle = [point for point in found if point.in_flight_bytes and point.shown]

    forked(spark, tmp_path, [middle[len(middle) // 2]])


@pytest.mark.long
def test_every_checkpoint_restores_twice_at_once_in_any_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = original(spark, tmp_path)

    forked(spark, tmp_path, random.Random(4).sample(found, len(found)))
