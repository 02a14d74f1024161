"""Sinks of every kind, rewound to a checkpoint between two commits, and run on from there.

Such a checkpoint carries rows that a later one has committed. Expected contents are computed from
the numbers of the stream alone.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.json
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.postgres import Database, PostgresServer
from tests.spark.runs import example, files_below, options, run, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.protocol.cut import Cut
from cutwater.sinks.foreach_batch import CommitInfo
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify

NAME = "carried"
TABLE = "recovery_points.numbers"


def pipeline_of(tables: Path, total: int) -> Pipeline:
    """One source, a sink of each kind; the Delta table lets all of them commit once an hour."""
    pipeline = Pipeline(NAME)

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, rate=1500, batch_max=300).select("value")

    @pipeline.step(output_mode="complete")
    def counts(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy((F.col("value") % 3).alias("part")).count()

    def write(frame: DataFrame, told: CommitInfo) -> None:
        rows = [(told.slot, row["value"]) for row in frame.collect()]
        with closing(sqlite3.connect(tables / "function.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS rows (slot INTEGER, value INTEGER)")
            (last,) = database.execute("SELECT coalesce(max(slot), 0) FROM rows").fetchone()
            if last < told.slot:
                database.executemany("INSERT INTO rows VALUES (?, ?)", rows)

    def take_back(told: CommitInfo, slot: int | None) -> None:
        del told
        with closing(sqlite3.connect(tables / "function.db")) as database, database:
            database.execute("DELETE FROM rows WHERE slot > ?", (slot or 0,))

    function = sinks.foreach_batch(write, staging=str(tables / "staging"), take_back=take_back)
    own = example("sqlite_sink").SqliteTarget(str(tables / "own.db"))
    tallies = sinks.files(str(tables / "tallies"), "json", write="overwrite", keep_past=1)
    pipeline.sink("delta", sinks.delta(str(tables / "delta"), commit_every="1h"), of=numbers)
    pipeline.sink("parquet", sinks.files(str(tables / "parquet"), keep_past=0), of=numbers)
    pipeline.sink("tallies", tallies, of=counts)
    pipeline.sink("table", sinks.table(TABLE), of=numbers)
    pipeline.sink("function", function, of=numbers)
    pipeline.sink("postgres", sinks.postgres("env:CARRIED_DSN", table="numbers"), of=numbers)
    pipeline.sink("console", sinks.console(rows=1), of=numbers)
    named = ("value AS id", "CAST(value AS STRING) AS name")
    pipeline.sink("own", own, of=lambda numbers: numbers.selectExpr(*named))
    return pipeline


def shown(spark: SparkSession, tables: Path, database: Database) -> dict[str, list[Any]]:
    """What each sink shows, read by other programs where there are any."""
    with closing(sqlite3.connect(tables / "function.db")) as function:
        handed = [entry for (entry,) in function.execute("SELECT value FROM rows ORDER BY 1")]
    with closing(sqlite3.connect(tables / "own.db")) as own:
        orders = [entry for (entry,) in own.execute("SELECT id FROM orders ORDER BY 1")]
    tallies = [
        row
        for file in (tables / "tallies").glob("part-*.json")
        for row in pyarrow.json.read_json(file).to_pylist()
    ]
    files = (tables / "parquet").glob("part-*.parquet")
    return {
        "delta": sorted(DeltaTable(tables / "delta").to_pyarrow_table()["value"].to_pylist()),
        "parquet": sorted(
            entry for file in files for entry in pq.read_table(file)["value"].to_pylist()
        ),
        "tallies": sorted((row["part"], row["count"]) for row in tallies),
        "table": sorted(row["value"] for row in spark.table(TABLE).collect()),
        "function": handed,
        "postgres": database.numbers("SELECT value FROM numbers ORDER BY 1"),
        "own": orders,
    }


def expected(total: int) -> dict[str, list[Any]]:
    """The same, computed from the numbers of the stream."""
    kinds = ("delta", "parquet", "table", "function", "postgres", "own")
    tallies = [(part, len(range(part, total, 3))) for part in range(3)]
    return {**{kind: list(range(total)) for kind in kinds}, "tallies": tallies}


def cuts(store: Path) -> list[Cut]:
    """All checkpoints that are kept, oldest first."""
    backend = existing_backend(store)
    opened = PipelineStore.of(backend, identify(backend, NAME)[1])
    return [opened.manifests.read(number) for number in sorted(opened.manifests.ids())]


def staged(tables: Path, database: Database) -> dict[str, int]:
    """How much is staged: files of batches, tables, rows."""
    with closing(sqlite3.connect(tables / "own.db")) as own:
        (rows,) = own.execute("SELECT count(*) FROM staged").fetchone()
    hidden = [*files_below(tables, ".parquet"), *files_below(tables, ".json")]
    waiting = [path for path in hidden if any(part.startswith("b0000") for part in path.parts)]
    return {
        "files": len(waiting),
        "postgres": len(database.query("SELECT 1 FROM pg_class WHERE relname LIKE 's\\_%'")),
        "own": rows,
    }


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    spark.sql(f"CREATE DATABASE recovery_points LOCATION '{tmp_path / 'catalog'}'")
    spark.sql(f"CREATE TABLE {TABLE} (value LONG) USING parquet")
    yield
    spark.sql("DROP DATABASE recovery_points CASCADE")


@pytest.mark.usefixtures("catalog")
def test_every_sink_commits_again_what_a_checkpoint_between_two_commits_carries(
    spark: SparkSession,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = postgres.make_database("carried")
    monkeypatch.setenv("CARRIED_DSN", database.dsn)
    tables = tmp_path / "tables"
    tables.mkdir()
    # Aligned, so that the last checkpoint of a stop commits on a busy machine too.
    kept = CheckpointConfig(interval="300ms", min_pause="50ms", retained=1000, unaligned=False)
    given = options(tmp_path, checkpoint=kept)

    def has_carried(least: int) -> bool:
        found = cuts(tmp_path / "store") if (tmp_path / "store").exists() else []
        return sum(all(cut.carried.get(sink) for sink in cut.carried) for cut in found) >= least

    running = pipeline_of(tables, 10**9).start(spark, given)
    wait_until(
        running,
        lambda one: (
            sum(report.status == "COMPLETED" for report in one.checkpoints) >= 6 and has_carried(3)
        ),
        "some checkpoints carry rows",
    )
    running.stop()
    stopped = running.wait(240)
    assert stopped is not None
    assert stopped.problem == ""
    before = shown(spark, tables, database)
    total = len(before["delta"])
    assert before == expected(total)

    carrying = [
        cut for cut in cuts(tmp_path / "store") if cut.carried and all(cut.carried.values())
    ]
    # Its rows were committed by the checkpoint that the run ended with.
    target = carrying[-2]
    assert not target.commit_point
    rewound = replace(given, start_from=str(target.checkpoint_id))
    run(pipeline_of(tables, total + 1000), spark, rewound)

    assert shown(spark, tables, database) == expected(total + 1000)

    # With the checkpoints that carry them the staged rows go as well.
    few = CheckpointConfig(interval="300ms", min_pause="50ms", retained=1)
    run(pipeline_of(tables, total + 2000), spark, options(tmp_path, checkpoint=few))

    assert shown(spark, tables, database) == expected(total + 2000)
    assert staged(tables, database) == {"files": 0, "postgres": 0, "own": 0}
