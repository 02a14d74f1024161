"""Targets that lost commits under a real pipeline: refused, rewound as offered, exact again."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers.postgres import Database, PostgresServer, postgres_server
from tests.spark.runs import DEADLINE_S, options, run, table

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import TargetBehind
from cutwater.run import PipelineRun


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own: it is stopped, copied, and taken back."""
    with postgres_server() as found:
        yield found


def shop(database: Database, copy: Path, total: int) -> Pipeline:
    """Numbers in a PostgreSQL table and, the same, in a Delta table."""
    pipeline = Pipeline("shop")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, rate=3000, batch_max=1500).select("value")

    pipeline.sink("orders", sinks.postgres(database.dsn, table="orders"), of=numbers)
    pipeline.sink("copy", sinks.delta(str(copy)), of=numbers)
    return pipeline


def offered(error: TargetBehind) -> str:
    """The checkpoint of the command that the error offers."""
    found = re.search(r"`cutwater rewind shop --to (\d+)`", error.message)
    assert found is not None, error.message
    return found[1]


def newest_version(copy: Path) -> Path:
    return max((copy / "_delta_log").glob("*.json"))


def checkpoint_while(running: PipelineRun, condition: Callable[[], bool]) -> None:
    """Take checkpoints while a condition holds; raise what ended the pipeline if one fails."""
    deadline = time.monotonic() + DEADLINE_S
    while condition():
        assert time.monotonic() < deadline
        if running.checkpoint(DEADLINE_S).status != "COMPLETED":
            running.wait(DEADLINE_S)


def test_targets_that_lost_commits_are_refused_and_the_offered_rewind_makes_them_whole(
    spark: SparkSession, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "do-not-tell")
    database, copy = server.make_database("lost"), tmp_path / "copy"
    given = options(tmp_path, checkpoint=CheckpointConfig(interval="1s", retained=1000))

    def shown() -> tuple[list[int], list[int]]:
        orders = database.numbers("SELECT value FROM orders ORDER BY 1")
        return orders, [value for (value,) in table(copy, "value")]

    run(shop(database, copy, 3000), spark, given)
    server.stop(at_once=False)
    shutil.copytree(server.data, tmp_path / "backup")
    server.start()
    run(shop(database, copy, 6000), spark, given)
    server.stop(at_once=False)
    for path in server.data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "backup", server.data, dirs_exist_ok=True)
    server.give_data()
    server.start()

    with pytest.raises(TargetBehind, match="sink orders") as refused:
        run(shop(database, copy, 9000), spark, given)
    assert shown() == (list(range(3000)), list(range(6000)))
    cutwater.rewind("shop", to=offered(refused.value), store=tmp_path / "store", yes=True)
    assert shown() == (list(range(3000)), list(range(3000)))
    run(shop(database, copy, 9000), spark, given)
    assert shown() == (list(range(9000)), list(range(9000)))

    by_request = options(tmp_path, checkpoint=CheckpointConfig(interval="1h", retained=1000))
    running = shop(database, copy, 10**9).start(spark, by_request)
    checkpoint_while(running, lambda: len(table(copy, "value")) == 9000)
    newest_version(copy).unlink()
    with pytest.raises(TargetBehind, match="sink copy") as refused:
        checkpoint_while(running, lambda: True)
    cutwater.rewind("shop", to=offered(refused.value), store=tmp_path / "store", yes=True)
    orders, copied = shown()
    assert orders == copied == list(range(len(orders)))
    total = len(orders) + 3000
    run(shop(database, copy, total), spark, given)
    assert shown() == (list(range(total)), list(range(total)))
