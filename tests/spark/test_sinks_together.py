"""Sinks of every kind in one pipeline: what `cutwater.read` gives at each commit point, exactly.

Expected values are computed from the numbers of the stream, or were written down by hand.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.spark.runs import collected, options, ordered, run
from typer.testing import CliRunner

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.cli.main import app
from cutwater.errors import NotReadable, SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, Sink, SinkContext
from cutwater.sinks.foreach_batch import CommitInfo
from cutwater.sinks.registry import read_target
from cutwater.store.records.targets import StoredTarget

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("rows")


def pipeline_of(tables: Path, total: int, calls: list[CommitInfo]) -> Pipeline:
    """One source, five sinks; the function fails the first time, after it has written."""
    pipeline = Pipeline("together")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=total, rate=1500, batch_max=300)
        return rows.select("value", (F.col("value") % 3).cast("string").alias("part"))

    @pipeline.step(output_mode="complete")
    def counts(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy("part").count()

    def write(frame: DataFrame, told: CommitInfo) -> None:
        rows = [(told.slot, row["value"]) for row in frame.collect()]
        with closing(sqlite3.connect(tables / "rows.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS rows (slot INTEGER, value INTEGER)")
            last = database.execute("SELECT max(slot) FROM rows").fetchone()[0] or 0
            if last < told.slot:
                database.executemany("INSERT INTO rows VALUES (?, ?)", rows)
        calls.append(told)
        if len(calls) == 1:
            raise RuntimeError("the connection was lost")

    by_part = ["part"]
    delta = sinks.delta(str(tables / "delta"), partition_by=by_part)
    pipeline.sink("delta", delta, of=numbers)
    parquet = sinks.files(str(tables / "parquet"), partition_by=by_part)
    pipeline.sink("parquet", parquet, of=numbers)
    pipeline.sink(
        "tallies", sinks.files(str(tables / "tallies"), "json", write="overwrite"), of=counts
    )
    pipeline.sink(
        "function", sinks.foreach_batch(write, staging=str(tables / "staging")), of=numbers
    )
    pipeline.sink("console", sinks.console(rows=2), of=numbers)
    return pipeline


def test_all_sinks_show_one_moment_at_every_commit_point(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[CommitInfo] = []
    tables = tmp_path / "tables"
    tables.mkdir()
    checkpoint = CheckpointConfig(interval="300ms", min_pause="50ms", retained=100)
    pipeline = pipeline_of(tables, 1500, calls)
    result = run(pipeline, spark, options(tmp_path, checkpoint=checkpoint))
    assert result.finished
    printed = capfd.readouterr().out

    store = str(tmp_path / "store")
    listed = CliRunner().invoke(
        app, ["checkpoints", "list", "together", "--store", store, "--output", "json"]
    )
    points = [
        point["id"]
        for point in json.loads(listed.stdout)["checkpoints"]
        if point["commit_point"]
        for checkpoint in json.loads(listed.stdout)["checkpoints"]
        if checkpoint["commit_point"]
    ]
    assert len(points) > 1
    prefixes = [check_moment(spark, store, number) for number in points]
    assert prefixes == sorted(prefixes)
    assert prefixes[-1] == 1500
    check_function(tables / "rows.db", calls)
    assert printed.count("-- console, checkpoint") >= 1
    assert sum(line.startswith("   and ") for line in printed.splitlines()) >= 1
    refused = cutwater.rewind("together", to=str(points[0]), store=store)
    assert any("sink function" in text or "function" in text for text in refused.refused)


def check_moment(spark: SparkSession, store: str, number: int) -> int:
    """Read every sink at a checkpoint; return how many numbers all of them show."""

    def at(sink: str) -> DataFrame:
        return cutwater.read(spark, store, "together", sink, checkpoint=number)

    told = CliRunner().invoke(
        app,
        ["tables", "together", "--checkpoint", str(number), "--store", store, "--output", "json"],
    )
    versions = {sink: table["version"] for sink, table in json.loads(told.stdout)["tables"].items()}
    assert set(versions) == {"delta", "parquet", "tallies", "function", "console"}
    if versions["delta"] == "none":
        with pytest.raises(NotReadable, match="it had no columns then"):
            at("delta")
        assert (versions["parquet"], versions["tallies"]) == ("0", "0")
        return 0
    rows = collected(at("delta").select("value", "part"))
    count = len(rows)
    assert rows == ordered((number, str(number % 3)) for number in range(count))
    assert collected(at("parquet").select("value", "part")) == rows
    expected = [(str(part), len(range(part, count, 3))) for part in range(3)]
    assert collected(at("tallies").select("part", "count")) == ordered(expected)
    for sink, reason in (("console", "keeps nothing"), ("function", "only its own function")):
        with pytest.raises(NotReadable, match=reason):
            at(sink)
    return count


def check_function(path: Path, calls: Sequence[CommitInfo]) -> None:
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT slot, value FROM rows").fetchall()
    assert sorted(value for _, value in rows) == list(range(1500))
    # The call that failed was repeated, with the same slot, and wrote nothing.
    assert calls[0].key == calls[1].key
    assert [call.slot for call in calls[1:]] == sorted({call.slot for call in calls})
    assert {slot for slot, _ in rows} == {call.slot for call in calls}
    batches = [batch for call in calls[1:] for batch in call.batches]
    assert batches == sorted(set(batches))


# -- values


NASTY = [
    "", "plain", " blanks ", "a,b", 'qu"ote', "back\\slash\\", "\\", '"', "new\nline", "tab\t",
    "null", "NaN", "ü€😀", "'", "#not a comment", "a=b/c%20d",
]  # fmt: skip
SCHEMA = (
    "id long, text string, small byte, real double, exact decimal(20,5), day date, "
    "at timestamp, clock timestamp_ntz, yes boolean"
)


def values() -> list[tuple[Any, ...]]:
    moment = datetime(2026, 11, 16, 9, 30, 15, 123456)  # noqa: DTZ001 - both kinds
    rows: list[tuple[Any, ...]] = [
        (number, text, number % 100, number + 0.1, Decimal(f"{number}.12345"), date(1969, 12, 31),
         moment, moment, number % 2 == 0)
        for number, text in enumerate(NASTY)
    ]  # fmt: skip
    rows.append((len(rows), *[None] * 8))
    rows.append((len(rows), "inf", -1, float("inf"), Decimal("-0.00001"), None, None, None, None))
    return rows


def written(
    spark: SparkSession, target: Sink, *frames: DataFrame
) -> tuple[StoredTarget, list[str]]:
    """Commit each frame in a slot of its own; return where, and the versions."""
    sink = target.open(SinkContext(spark, PIPELINE, SINK))
    versions = []
    for slot, frame in enumerate(frames, start=1):
        staged = sink.stage(FrameRows(frame), Generation(1), BatchId(slot))
        assert staged is not None
        permit = grant(PIPELINE, Slot(slot), CheckpointId(slot))
        versions.append(sink.commit(permit, (staged,)))
    return target.stored(), versions


@pytest.mark.parametrize(
    ("kind", "partition_by"),
    [("parquet", ["text"]), ("json", []), ("csv", []), ("csv", ["text"])],
)
def test_values_come_back_from_files_as_they_went_in(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    partition_by: list[str],
) -> None:
    frame = spark.createDataFrame(values(), SCHEMA)
    target = sinks.files(str(tmp_path / "f{1} ü"), kind, partition_by=partition_by)
    stored, (version,) = written(spark, target, frame)
    found = read_target(spark, stored, version, SINK)
    assert found.schema == StructType.fromDDL(SCHEMA)
    expected = frame
    if partition_by:
        # As in Hive's layout, an empty text is null where it is the name of a directory.
        expected = frame.withColumn("text", F.when(F.col("text") != "", F.col("text")))
    assert collected(found) == collected(expected)


def test_files_are_read_as_they_were_before_columns_came_and_after_a_rewind(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = sinks.files(str(tmp_path / "rows"), "json", partition_by=["part"])
    first = spark.createDataFrame([(1, "a"), (2, None)], "id long, part string")
    second = spark.createDataFrame([(3, "a", [1.5])], "id long, part string, more array<double>")
    stored, versions = written(spark, target, first, second)
    sink = target.open(SinkContext(spark, PIPELINE, SINK))
    back = sink.restore(grant(PIPELINE, Slot(9), CheckpointId(9)), versions[0])

    def rows_at(version: str) -> list[tuple[Any, ...]]:
        return collected(read_target(spark, stored, version, SINK))

    assert rows_at(versions[0]) == rows_at(back) == ordered([(1, "a"), (2, None)])
    # What the rewind took away is still there to be read.
    assert rows_at(versions[1]) == ordered([(1, "a", None), (2, None, None), (3, "a", [1.5])])
    csv = sinks.files(str(tmp_path / "csv"), "csv")
    with pytest.raises(SinkError, match="CSV files cannot change theirs"):
        written(spark, csv, first, second)


def test_a_delta_table_is_read_at_a_version_without_its_jar(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = sinks.delta(str(tmp_path / "d (1) ü&+"), partition_by=["day", "text"])
    frame = spark.createDataFrame(values(), SCHEMA)
    more = spark.createDataFrame(
        [(100, "x y", date(2026, 1, 2), [7])], "id long, text string, day date, more array<int>"
    )
    stored, versions = written(spark, target, frame, more)
    before = frame.withColumn("text", F.when(F.col("text") != "", F.col("text")))
    found = read_target(spark, stored, versions[0], SINK)
    assert found.schema == StructType.fromDDL(SCHEMA)
    assert collected(found) == collected(before)
    later = read_target(spark, stored, versions[1], SINK)
    assert later.schema == StructType.fromDDL(f"{SCHEMA}, more array<int>")
    expected = before.unionByName(more, allowMissingColumns=True).select(*later.columns)
    assert collected(later) == collected(expected)
    assert later.where("day = date'2026-01-02'").select("text", "more").collect() == [("x y", [7])]
    foreign = pa.table({"id": [1], "day": [date(2020, 1, 1)], "text": ["t"]})
    write_deltalake(stored.uri, foreign, mode="append", schema_mode="merge")
    assert read_target(spark, stored, versions[1], SINK).count() == later.count()
    empty = read_target(spark, stored, "0", SINK)
    assert (empty.count(), empty.schema) == (0, found.schema)
    DeltaTable(stored.uri).delete()
    DeltaTable(stored.uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SinkError, match="perhaps by VACUUM"):
        read_target(spark, stored, versions[1], SINK)
    with pytest.raises(SinkError, match="there was no table"):
        read_target(spark, stored, "none", SINK)
