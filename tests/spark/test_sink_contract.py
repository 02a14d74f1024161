"""The public contract of a sink, over every sink of ours that keeps rows.

`shown` reads with pyarrow and this file's own reading of logs and directories; the sinks' code
takes no part in it.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.runs import example

from cutwater import sinks
from cutwater.sinks.base import Sink
from cutwater.sinks.foreach_batch import CommitInfo, ForeachBatchTarget
from cutwater.sinks.registry import reopen
from cutwater.testing import SinkContract
from cutwater.testing.sink_contract.harness import PIPELINE, SINK


def in_sight(directory: Path, suffix: str) -> list[Path]:
    """The files that a plain directory reader finds: nothing below a hidden name."""
    found = directory.rglob(f"*{suffix}")
    hidden = (".", "_")
    return [
        path
        for path in found
        if not any(part.startswith(hidden) for part in path.relative_to(directory).parts)
    ]


class TestDeltaAppend(SinkContract):
    def target(self, directory: Path) -> Sink:
        return sinks.delta(str(directory / "table"))

    def shown(self, directory: Path) -> list[int]:
        table = directory / "table"
        files: dict[str, None] = {}
        for version in sorted((table / "_delta_log").glob("*.json")):
            for line in version.read_text().splitlines():
                action = json.loads(line)
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    files[action["add"]["path"]] = None
        return sorted(number for file in files for number in ids_in(table / file))


class TestParquetFiles(SinkContract):
    def target(self, directory: Path) -> Sink:
        return sinks.files(str(directory / "out [of] ü"), partition_by=["kind"])

    def frame(self, spark: SparkSession, ids: Sequence[int]) -> DataFrame:
        rows = [(number, None if number % 3 == 0 else f"a/b {number % 3}") for number in ids]
        return spark.createDataFrame(rows, "id long, kind string")

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out [of] ü", ".parquet")
        return sorted(number for file in found for number in ids_in(file))


@pytest.mark.long
class TestJsonFiles(SinkContract):
    def target(self, directory: Path) -> Sink:
        options = {"compression": "gzip"}
        return sinks.files(str(directory / "out"), "json", options=options)

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out", ".json.gz")
        return sorted(
            entry for file in found for entry in pyarrow.json.read_json(file)["id"].to_pylist()
        )


class TestCsvFilesOverwritten(SinkContract):
    overwrites = True

    def target(self, directory: Path) -> Sink:
        return sinks.files(str(directory / "out"), "csv", write="overwrite")

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out", ".csv")
        return sorted(
            entry for file in found for entry in pyarrow.csv.read_csv(file)["id"].to_pylist()
        )


class TestForeachBatch(SinkContract):
    """A function that writes rows and slot in one transaction, and can take rows back."""

    commits_without_spark = False

    def target(self, directory: Path) -> Sink:
        path = directory / "rows.db"

        def write(frame: DataFrame, told: CommitInfo) -> None:
            rows = [(told.slot, row["id"]) for row in frame.select("id").collect()]
            with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("CREATE TABLE IF NOT EXISTS rows (slot INTEGER, id INTEGER)")
                last = database.execute("SELECT max(slot) FROM rows").fetchone()[0]
                if last is None or last < told.slot:
                    database.executemany("INSERT INTO rows VALUES (?, ?)", rows)
                database.execute("COMMIT")

        def take_back(told: CommitInfo, slot: int | None) -> None:
            assert (told.generation, told.batch) == (None, None)
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("DELETE FROM rows WHERE slot > ?", (slot or 0,))

        return sinks.foreach_batch(write, staging=str(directory / "st[ag]ing"), take_back=take_back)

    def shown(self, directory: Path) -> list[int]:
        return sqlite_ids(directory / "rows.db", "rows")


def test_a_function_without_take_back_is_not_rewound(
    cutwater_spark: SparkSession,
    tmp_path: Path,
) -> None:
    class Refusing(TestForeachBatch):
        restores = False

        def target(self, directory: Path) -> Sink:
            whole = super().target(directory)
            assert isinstance(whole, ForeachBatchTarget)
            return sinks.foreach_batch(whole.function, staging=whole.staging)

    Refusing().test_the_target_goes_back_to_a_version(cutwater_spark, tmp_path)
    stored = Refusing().target(tmp_path).stored()
    preview = reopen(stored, PIPELINE, SINK).look_back("1")
    assert "use `cutwater run FILE --from`" in str(preview.obstacle)
    assert reopen(stored, PIPELINE, SINK).look_back("3").obstacle is None


class TestSqliteOfTheHowTo(SinkContract):
    stages_files = False

    def target(self, directory: Path) -> Sink:
        found = example("sqlite_sink").SqliteTarget(str(directory / "orders.db"))
        assert isinstance(found, Sink)
        return found

    def shown(self, directory: Path) -> list[int]:
        return sqlite_ids(directory / "orders.db", "orders")


def sqlite_ids(path: Path, table: str) -> list[int]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        known = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        if known.fetchone() is None:
            return []
        return [entry for (entry,) in database.execute(f"SELECT id FROM {table} ORDER BY id")]


def ids_in(file: Path) -> list[int]:
    return list(pq.ParquetFile(file).read(columns=["id"])["id"].to_pylist())
