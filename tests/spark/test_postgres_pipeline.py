"""A pipeline with two PostgreSQL sinks on real Spark: blocked, let go on, rewound, run again."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.postgres import PASSWORD, Database, PostgresServer
from tests.spark.runs import options, run, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.protocol.options import CommitOptions

PARTS = 7


def shop(total: int) -> Pipeline:
    """Orders are appended, the newest order of each part is kept."""
    pipeline = Pipeline("shop")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=total, rate=3000, batch_max=1500)
        # A type that no Delta table holds, through a channel and into PostgreSQL.
        return rows.selectExpr("*", "make_dt_interval(0, 0, 0, value) AS took")

    @pipeline.step(output_mode="update", partitions=2)
    def parts(numbers: DataFrame) -> DataFrame:
        grouped = numbers.groupBy((F.col("value") % PARTS).alias("part"))
        return grouped.agg(F.max("value").alias("value"))

    orders = sinks.postgres("env:SHOP_DSN", table="orders")
    newest = sinks.postgres("env:SHOP_DSN", table="newest", write="upsert", keys=["part"])
    chosen = ("value AS id", "at", "took")
    pipeline.sink("orders", orders, of=lambda numbers: numbers.selectExpr(*chosen))
    pipeline.sink("newest", newest, of=parts)
    return pipeline


def check(database: Database, total: int) -> None:
    assert database.numbers("SELECT id FROM orders ORDER BY 1") == list(range(total))
    others = "SELECT count(*) FROM orders WHERE took IS DISTINCT FROM make_interval(secs => id)"
    assert database.numbers(others) == [0]
    expected = sorted((number % PARTS, number) for number in range(total - PARTS, total))
    assert database.query("SELECT part, value FROM newest ORDER BY 1") == [
        [str(part), str(value)] for part, value in expected
    ]


def test_a_pipeline_is_blocked_by_a_row_goes_on_by_itself_and_can_be_rewound(
    spark: SparkSession,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = postgres.make_database("pipeline")
    monkeypatch.setenv("SHOP_DSN", database.dsn)
    monkeypatch.setattr(
        "cutwater.config.options.CommitOptions", partial(CommitOptions, budget_ms=300)
    )
    database.query("CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz, took interval)")
    database.query("INSERT INTO orders VALUES (0)")

    # So many checkpoints are kept that the first one is still there in the end.
    kept = CheckpointConfig(interval="1s", retained=1000)
    given_options = options(tmp_path, checkpoint=kept)

    running = shop(10**9).start(spark, given_options)
    # Before the database has answered, the status says so.
    status = wait_until(
        running,
        lambda status: status.state == "COMMIT_BLOCKED" and "duplicate key value" in status.detail,
        "it is blocked by a row",
    )
    assert "sink orders: duplicate key value" in status.detail
    assert "Key (id)=(0) already exists" in status.detail
    assert database.numbers("SELECT id FROM orders") == [0]
    assert database.query("SELECT to_regclass('newest')") == [["<null>"]]
    database.query("DELETE FROM orders")
    wait_until(running, lambda one: one.state == "RUNNING", "it goes on")
    running.stop()
    first = running.wait(240)

    assert first is not None
    (total,) = database.numbers("SELECT count(*) FROM orders")
    assert total > PARTS
    check(database, total)
    run(shop(total + 5000), spark, given_options)
    check(database, total + 5000)

    given = {"to": str(first.last_checkpoint), "store": tmp_path / "store"}
    preview = cutwater.rewind("shop", **given)  # type: ignore[arg-type]
    assert not preview.refused
    assert {sink.rows_then for sink in preview.sinks} == {total, PARTS}
    cutwater.rewind("shop", yes=True, **given)  # type: ignore[arg-type]
    check(database, total)
    run(shop(total + 2000), spark, given_options)
    check(database, total + 2000)

    database.query("UPDATE newest SET value = 0 WHERE part = 3")
    refused = cutwater.rewind("shop", **given)  # type: ignore[arg-type]
    assert "1 of the 7 rows that were written since then" in " ".join(refused.refused)
    stored = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert PASSWORD.encode() not in b"".join(stored)
    assert PASSWORD not in caplog.text


@pytest.mark.long
def test_rows_that_tasks_sent_twice_come_once(postgres: PostgresServer) -> None:
    database = postgres.make_database("retries")
    words = [sys.executable, "-m", "tests.spark.retried_copy", database.dsn]

    subprocess.run(words, cwd=Path(__file__).parents[2], check=True, timeout=240)

    assert database.numbers("SELECT id FROM t ORDER BY 1") == list(range(1000))
    (staged,) = database.query("SELECT relname FROM pg_class WHERE relname LIKE 's\\_%'")
    assert database.numbers(f"SELECT count(*) FROM _cutwater.{staged[0]}") == [2000]
