"""A Delta table as a sink: staged beside it, committed by slot, restored, on real Spark.

The table is read back in two ways: with deltalake, and by this file's own reading of the log's
JSON and of the Parquet files it names, which knows nothing of deltalake.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import FrameRows, KeepsPast, OpenSink, Sink, SinkContext

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("totals")

Open = Callable[..., OpenSink]
Rows = list[dict[str, Any]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "tables" / "totals of ü"


@pytest.fixture
def open_sink(spark: SparkSession, table: Path) -> Open:
    def opened(sink: SinkId = SINK, partition_by: Sequence[str] = ()) -> OpenSink:
        target = sinks.delta(str(table), partition_by=partition_by)
        return target.open(SinkContext(spark, PIPELINE, sink))

    return opened


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


def numbers(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(number,) for number in ids], "id long")


def staged(
    sink: OpenSink, rows: DataFrame, batch: int, generation: int = 1
) -> tuple[Committable, ...]:
    found = sink.stage(FrameRows(rows), Generation(generation), BatchId(batch))
    return () if found is None else (found,)


def log_of(table: Path) -> list[list[dict[str, Any]]]:
    """The actions of every version, oldest first; the log must have no holes."""
    files = sorted((table / "_delta_log").glob("*.json"))
    assert [int(file.stem) for file in files] == list(range(len(files)))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def files_of(table: Path) -> dict[str, dict[str, Any]]:
    """Replay the log: the files of the newest version with what was said of them."""
    files: dict[str, dict[str, Any]] = {}
    for actions in log_of(table):
        for action in actions:
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
    return files


def rows_of(table: Path) -> Rows:
    """The table's rows by both readers, which must agree, in the order of `id`."""
    independent: Rows = []
    for path, action in files_of(table).items():
        file = table / path
        assert file.stat().st_size == action["size"]
        found = pq.ParquetFile(file).read().to_pylist()
        assert json.loads(action["stats"])["numRecords"] == len(found)
        independent += [{**action["partitionValues"], **row} for row in found]
    read = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert len(read) == len(independent)
    columns = {name for row in read for name in row}
    as_text = [{name: _text(row.get(name)) for name in columns} for row in independent]
    assert sorted(map(repr, map(sorted_items, as_text))) == sorted(
        repr(sorted_items({name: _text(value) for name, value in row.items()})) for row in read
    )
    return sorted(read, key=lambda row: row["id"])


def sorted_items(row: dict[str, str | None]) -> list[tuple[str, str | None]]:
    return sorted(row.items())


def _text(value: object) -> str | None:
    """A partition's value is text in the log."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def ids_of(table: Path) -> list[int]:
    return [row["id"] for row in rows_of(table)]


def everything_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


# -- staging and committing


def test_the_target_fills_the_contract_of_a_sink(table: Path) -> None:
    target = sinks.delta(str(table))
    assert isinstance(target, Sink)
    assert (target.format, target.accepts) == ("delta", frozenset({"append"}))
    assert target.describe() == str(table)


def test_staged_rows_are_invisible_until_their_commit(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first = staged(sink, numbers(spark, 1, 2, 3), 0)
    assert not (table / "_delta_log").exists()
    assert [path.name for path in table.iterdir()] == ["_cutwater"]
    assert first[0].rows == 3
    assert sink.commit(permit(4), first) == "1"
    assert ids_of(table) == [1, 2, 3]
    second = staged(sink, numbers(spark, 4, 5), 1)
    assert ids_of(table) == [1, 2, 3]
    assert sink.commit(permit(7), second) == "2"
    assert ids_of(table) == [1, 2, 3, 4, 5]
    assert isinstance(sink, KeepsPast)
    sink.retain(Generation(1), ["1", "2"], [])
    assert not list((table / "_cutwater").rglob("*.parquet"))
    assert ids_of(table) == [1, 2, 3, 4, 5]


def test_one_commit_takes_several_batches_at_once(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    both = (*staged(sink, numbers(spark, 1), 0), *staged(sink, numbers(spark, 2), 1))
    assert sink.commit(permit(4), both) == "1"
    assert ids_of(table) == [1, 2]
    (info,) = [entry["commitInfo"] for entry in log_of(table)[1] if "commitInfo" in entry]
    assert info["cutwater.slot"] == "4"
    assert info["cutwater.checkpoint"] == "104"
    assert (info["cutwater.pipeline"], info["cutwater.sink"]) == (PIPELINE, SINK)
    (txn,) = [entry["txn"] for entry in log_of(table)[1] if "txn" in entry]
    assert (txn["appId"], txn["version"]) == (f"{PIPELINE}/{SINK}", 4)


def test_staging_runs_one_spark_job_and_leaves_only_files_with_rows(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    rows = spark.range(0, 100, 1, 4).where("id < 30").toDF("id")
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("staging", "one batch")
    _write_checksums(spark, on=True)
    try:
        (one,) = staged(sink, rows, 0)
    finally:
        _write_checksums(spark, on=False)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert len(tracker.getJobIdsForGroup("staging")) == 1
    on_disk = everything_in(table)
    assert sorted(on_disk) == sorted(blob.name for blob in one.blobs)
    assert one.rows == 30
    assert len([name for name in on_disk if name.endswith(".parquet")]) == 2


def _write_checksums(spark: SparkSession, *, on: bool) -> None:
    """Have Hadoop write a `.crc` beside every local file, as a session of the user's does."""
    jvm, conf = spark._jvm, spark._jsc.hadoopConfiguration()
    assert jvm is not None
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf).setWriteChecksum(on)


def test_a_batch_without_rows_leaves_nothing_behind(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink(partition_by=["kind"])
    empty = spark.createDataFrame([], "id long, kind string")
    assert sink.stage(FrameRows(empty), Generation(1), BatchId(0)) is None
    assert open_sink().stage(FrameRows(numbers(spark)), Generation(1), BatchId(1)) is None
    assert everything_in(table) == {}


def test_staging_a_batch_again_replaces_what_the_first_call_left(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    staged(sink, numbers(spark, 1, 2), 0)
    again = staged(sink, numbers(spark, 3), 0)
    assert sorted(everything_in(table)) == sorted(blob.name for blob in again[0].blobs)
    sink.commit(permit(2), again)
    assert ids_of(table) == [3]


# -- acting on a slot once


def test_a_commit_that_is_repeated_changes_nothing(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first, second = staged(sink, numbers(spark, 1), 0), staged(sink, numbers(spark, 2), 1)
    assert sink.commit(permit(4), first) == "1"
    before = everything_in(table)
    assert sink.commit(permit(4), first) == "1"
    assert open_sink().commit(permit(4), first) == "1"
    assert everything_in(table) == before
    assert sink.commit(permit(6), second) == "2"
    # F41: also after a later slot, the version of the original commit.
    assert open_sink().commit(permit(4), first) == "1"
    assert ids_of(table) == [1, 2]


def test_a_fresh_process_commits_what_an_older_one_staged(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, kind string")
    old = staged(open_sink(partition_by=["kind"]), rows, 3)
    new = open_sink(partition_by=["kind"])
    assert new.problem(old[0]) is None
    assert new.commit(permit(9), old) == "1"
    assert rows_of(table) == [{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}]


def test_a_commit_interrupted_after_its_files_moved_is_finished_by_another(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    later = staged(sink, numbers(spark, 2, 3), 1)
    blobs = [blob for blob in later[0].blobs if blob.name.endswith(".parquet")]
    sink._files.settle(blobs)  # type: ignore[attr-defined]
    assert ids_of(table) == [1]
    other = open_sink()
    assert other.problem(later[0]) is None
    assert other.commit(permit(2), later) == "2"
    assert ids_of(table) == [1, 2, 3]


def test_a_slot_with_rows_that_a_later_one_overtook_is_superseded(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first, late, newest = (staged(sink, numbers(spark, number), number) for number in (0, 1, 2))
    sink.commit(permit(3), first)
    sink.commit(permit(8), newest)
    with pytest.raises(Superseded) as caught:
        sink.commit(permit(5), late)
    assert (caught.value.slot, caught.value.newer) == (5, 8)
    with pytest.raises(Superseded):
        sink.restore(permit(6), "1")
    with pytest.raises(Superseded):
        sink.commit(permit(1), late)
    assert ids_of(table) == [0, 2]


def test_sinks_of_one_table_do_not_disturb_each_others_slots(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    one, two = open_sink(), open_sink(SinkId("other"))
    ones, twos = staged(one, numbers(spark, 1), 0), staged(two, numbers(spark, 2), 0)
    assert one.commit(permit(9), ones) == "1"
    assert two.commit(permit(5), twos) == "2"
    assert one.commit(permit(9), ones) == "1"
    assert ids_of(table) == [1, 2]


def test_another_writer_between_two_commits_keeps_its_rows(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    for number in range(10, 13):
        write_deltalake(str(table), pa.table({"id": [number]}), mode="append")
    later = staged(sink, numbers(spark, 2), 1)
    assert sink.commit(permit(2), later) == "5"
    write_deltalake(str(table), pa.table({"id": [13]}), mode="append")
    assert sink.commit(permit(2), later) == "5"
    assert ids_of(table) == [1, 2, 10, 11, 12, 13]


def test_a_commit_that_lost_a_race_looks_again(
    spark: SparkSession, open_sink: Open, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    later = staged(sink, numbers(spark, 2), 1)
    plain = type(sink)._write  # type: ignore[attr-defined]
    raced: list[str] = []

    def slow(self: OpenSink, *args: object) -> None:
        if not raced:
            # Another process of the same pipeline acts on the same slot first.
            raced.append("")
            raced[0] = open_sink().commit(permit(2), later)
        plain(self, *args)

    monkeypatch.setattr(type(sink), "_write", slow)
    assert sink.commit(permit(2), later) == "2"
    assert raced == ["2"]
    assert ids_of(table) == [1, 2]


def test_a_table_with_a_long_log_still_knows_its_slots(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first = staged(sink, numbers(spark, 0), 0)
    sink.commit(permit(1), first)
    for number in range(110):
        write_deltalake(str(table), pa.table({"id": [number + 1]}), mode="append")
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))
    assert open_sink().commit(permit(1), first) == "1"
    later = staged(sink, numbers(spark, 500), 1)
    assert open_sink().commit(permit(2), later) == "112"
    assert ids_of(table) == [*range(111), 500]


# -- slots without rows


def test_a_slot_without_rows_makes_no_version(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    assert sink.commit(permit(1), ()) == "none"
    assert sink.commit(permit(2), staged(sink, numbers(spark, 1), 0)) == "1"
    assert [sink.commit(permit(slot), ()) for slot in (3, 4, 5)] == ["1", "1", "1"]
    assert len(log_of(table)) == 2
    assert sink.commit(permit(6), staged(sink, numbers(spark, 2), 1)) == "2"
    assert ids_of(table) == [1, 2]


def test_a_slot_without_rows_that_is_repeated_late_names_its_old_version(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first, second = staged(sink, numbers(spark, 1), 0), staged(sink, numbers(spark, 2), 1)
    sink.commit(permit(1), ())
    sink.commit(permit(2), first)
    sink.commit(permit(4), ())
    sink.commit(permit(6), second)
    before = everything_in(table)
    late = open_sink()
    assert late.commit(permit(4), ()) == "1"
    # Before the sink's first rows: the empty version that the table began with.
    assert late.commit(permit(1), ()) == "0"
    assert late.commit(permit(7), ()) == "2"
    assert everything_in(table) == before
    with pytest.raises(Superseded):
        late.commit(permit(4), first)


def test_rows_of_a_slot_come_in_after_slots_without_rows(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    """What is repeated after a crash: the last slot with rows, with nothing after it."""
    sink = open_sink()
    rows = staged(sink, numbers(spark, 1), 0)
    sink.commit(permit(1), ())
    assert open_sink().commit(permit(2), rows) == "1"
    assert open_sink().commit(permit(3), ()) == "1"
    assert open_sink().commit(permit(2), rows) == "1"
    assert ids_of(table) == [1]


# -- columns


ALL_TYPES = """
    select id, cast(id as byte) b, cast(id as short) s, cast(id as int) i, id * 10000000000 l,
    cast(id as float) / 2 f, cast(id as double) / 3 d, cast(id as decimal(38, 9)) / 4 dec,
    id % 2 = 0 flag, concat('text ü ', id) t, cast(concat('x', id) as binary) bin,
    date_add(date'1969-12-30', cast(id as int)) day,
    timestamp'1969-12-31 23:59:59.999999' + make_interval(0, 0, 0, cast(id as int)) ts,
    timestamp_ntz'2024-02-29 12:00:00.000001' ntz,
    array(id, null) arr, map('k', struct(id as a, array('z') as b)) m,
    struct(id as x, struct(cast(null as string) as z) as y) st,
    cast(null as int) nothing, if(id = 1, 'some', null) half
    from range(1, 4)
"""


def test_every_type_comes_back_as_spark_computed_it(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    rows = spark.sql(ALL_TYPES)
    sink.commit(permit(1), staged(sink, rows, 0))
    files = [str(table / path) for path in files_of(table)]
    found = spark.read.schema(rows.schema).parquet(*files)
    assert sorted(map(str, found.collect())) == sorted(map(str, rows.collect()))
    expected = sorted(rows.toArrow().to_pylist(), key=lambda row: row["id"])
    read = sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert read == expected
    assert read[0]["dec"] == Decimal("0.25")
    (meta,) = [entry["metaData"] for entry in log_of(table)[0] if "metaData" in entry]
    fields = json.loads(meta["schemaString"])["fields"]
    assert [field["name"] for field in fields] == rows.columns
    assert {field["nullable"] for field in fields} == {True}
    assert next(field["type"] for field in fields if field["name"] == "ntz") == "timestamp_ntz"


def test_statistics_let_readers_skip_files_and_lose_no_row(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    for batch in range(3):
        low = 10 * batch
        rows = spark.sql(
            f"select id, timestamp'2024-01-0{batch + 1} 00:00:00.000001' at, "
            f"date'2024-01-0{batch + 1}' day, if(id = {low}, null, repeat('x', {batch + 31})) t, "
            f"double('NaN') n from range({low}, {low + 10}, 1, 1)"
        )
        sink.commit(permit(batch + 1), staged(sink, rows, batch))
    said = [json.loads(file["stats"]) for file in files_of(table).values()]
    assert said[0] == {
        "numRecords": 10,
        "minValues": {
            "id": 0,
            "at": "2024-01-01T00:00:00.000001Z",
            "day": "2024-01-01",
            "t": "x" * 31,
        },
        "maxValues": {
            "id": 9,
            "at": "2024-01-01T00:00:00.000001Z",
            "day": "2024-01-01",
            "t": "x" * 31,
        },
        "nullCount": {"id": 0, "at": 0, "day": 0, "t": 1, "n": 0},
    }
    assert "t" not in said[2]["minValues"]
    dataset = DeltaTable(str(table)).to_pyarrow_dataset()
    for value in (0, 9, 10, 19, 29):
        assert dataset.to_table(filter=ds.field("id") == value)["id"].to_pylist() == [value]
    late = dataset.to_table(
        filter=ds.field("at") > pa.scalar(1704153600000000, pa.timestamp("us", "UTC"))
    )
    assert sorted(late["id"].to_pylist()) == list(range(10, 30))


def test_partitions_are_in_the_log_with_values_of_all_kinds(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink(partition_by=["day", "kind"])
    kinds = ["a b", "ü/ö", "x=y%41", "__", None, "c:d#e?", "'\"[]{}^*\\"]
    rows = spark.createDataFrame(
        [(one, kind) for one, kind in enumerate(kinds)], "id long, kind string"
    ).selectExpr("id", "kind", "date'2024-02-29' day")
    assert sink.commit(permit(1), staged(sink, rows, 0)) == "1"
    assert [(row["id"], row["kind"]) for row in rows_of(table)] == list(enumerate(kinds))
    values = [file["partitionValues"] for file in files_of(table).values()]
    assert {value["day"] for value in values} == {"2024-02-29"}
    assert {value["kind"] for value in values} == set(kinds)
    found = DeltaTable(str(table)).to_pyarrow_table(filters=[("kind", "=", "x=y%41")])
    assert found["id"].to_pylist() == [2]
    assert DeltaTable(str(table)).metadata().partition_columns == ["day", "kind"]


def test_columns_of_a_later_batch_are_added(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    wide = spark.sql("select 2L id, 'x' name, timestamp_ntz'2024-01-01 00:00:00' at")
    narrow = numbers(spark, 3)
    both = (*staged(sink, wide, 1), *staged(sink, narrow, 2))
    sink.commit(permit(2), both)
    rows = rows_of(table)
    assert [(row["id"], row["name"]) for row in rows] == [(1, None), (2, "x"), (3, None)]
    sink.commit(permit(3), staged(sink, spark.sql("select 'y' name, 4L id"), 3))
    assert [row["name"] for row in rows_of(table)] == [None, "x", None, "y"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select '1' id", "column id is bigint in the table and string in the new rows"),
        ("select 1 id", "column id is bigint in the table and int in the new rows"),
        ("select 1L ID", "column ID is spelled id in the table"),
        (
            "select 1L id, struct(1 as a, 2 as b) st",
            "column st is struct<a:int> in the table and struct<a:int,b:int> in the new rows",
        ),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused_before_they_are_staged(
    spark: SparkSession, open_sink: Open, table: Path, query: str, message: str
) -> None:
    sink = open_sink()
    unfit = staged(open_sink(), spark.sql(query), 7)
    sink.commit(permit(1), staged(sink, spark.sql("select 1L id, struct(1 as a) st"), 0))
    for refusing in (sink, open_sink()):
        with pytest.raises(SinkError, match=message):
            refusing.stage(FrameRows(spark.sql(query)), Generation(1), BatchId(1))
    # Staged before the table was there: the commit refuses, and nothing has changed.
    with pytest.raises(SinkError, match=message):
        sink.commit(permit(2), unfit)
    assert ids_of(table) == [1]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1 id, null v", "column v has the type void"),
        ("select 1 id, array(struct(null as deep)) v", r"column v.element.deep has the type void"),
        ("select 1 id, interval '1' day v", "column v has the type interval day"),
        ("select 1 id, parse_json('1') v", "column v has the type variant"),
        ("select 1 id, count(1) from range(1)", r"column 'count\(1\)' has a name that Delta"),
        ("select 1 id, struct(1 as a, 2 as A) v", "columns v.a and v.A differ in case"),
    ],
)
def test_columns_that_no_delta_table_can_hold_are_refused_by_name(
    spark: SparkSession, open_sink: Open, table: Path, query: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_sink().stage(FrameRows(spark.sql(query)), Generation(1), BatchId(0))
    assert everything_in(table) == {}


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        (["kind"], "partition_by names kind, and the columns are id, v"),
        (["v"], "partition_by names v, which is double"),
        (["id", "v"], "partition_by names"),
    ],
)
def test_columns_that_cannot_divide_a_table_are_refused(
    spark: SparkSession, open_sink: Open, partition_by: list[str], message: str
) -> None:
    rows = spark.sql("select 1L id, double(1) v")
    with pytest.raises(ConfigError, match=message):
        open_sink(partition_by=partition_by).stage(FrameRows(rows), Generation(1), BatchId(0))


# -- going back


def test_a_restore_brings_back_exactly_the_rows_of_a_version(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    versions = [
        sink.commit(permit(number), staged(sink, numbers(spark, number), number))
        for number in (1, 2, 3)
    ]
    assert versions == ["1", "2", "3"]
    assert sink.restore(permit(5), versions[0]) == "4"
    assert ids_of(table) == [1]
    before = everything_in(table)
    assert sink.restore(permit(5), versions[0]) == "4"
    assert open_sink().restore(permit(5), versions[0]) == "4"
    assert everything_in(table) == before
    # The second timeline uses batch numbers again, with other rows.
    again = staged(sink, numbers(spark, 20), 2, generation=2)
    assert sink.commit(permit(6), again) == "5"
    assert open_sink().restore(permit(5), versions[0]) == "4"
    assert ids_of(table) == [1, 20]
    # And forward again, to a version that was left.
    assert sink.restore(permit(7), versions[2]) == "6"
    assert ids_of(table) == [1, 2, 3]


def test_a_restore_to_the_beginning_leaves_what_was_there_before_the_sink(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    write_deltalake(str(table), pa.table({"id": [100, 101]}))
    sink = open_sink()
    assert sink.commit(permit(1), ()) == "0"
    sink.commit(permit(2), staged(sink, numbers(spark, 1), 0))
    sink.commit(permit(3), staged(sink, numbers(spark, 2), 1))
    assert sink.restore(permit(4), None) == "3"
    assert ids_of(table) == [100, 101]


def test_a_table_that_the_sink_made_is_empty_at_its_beginning(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    assert sink.restore(permit(1), None) == "none"
    before = sink.commit(permit(2), ())
    sink.commit(permit(3), staged(sink, numbers(spark, 1), 0))
    assert sink.restore(permit(4), before) == "2"
    assert ids_of(table) == []
    sink.commit(permit(5), staged(sink, numbers(spark, 2), 1))
    assert sink.restore(permit(6), None) == "4"
    assert ids_of(table) == []


def test_a_restore_that_changes_nothing_is_remembered_all_the_same(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    now = sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    assert sink.restore(permit(2), now) == "2"
    write_deltalake(str(table), pa.table({"id": [100]}), mode="append")
    assert sink.restore(permit(2), now) == "2"
    assert ids_of(table) == [1, 100]


def test_columns_added_later_go_with_a_restore_and_come_again(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    wide = spark.sql("select 2L id, 'x' name")
    first = sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    sink.commit(permit(2), staged(sink, wide, 1))
    sink.restore(permit(3), first)
    assert rows_of(table) == [{"id": 1}]
    sink.commit(permit(4), staged(sink, wide, 1, generation=2))
    assert [(row["id"], row["name"]) for row in rows_of(table)] == [(1, None), (2, "x")]


def test_a_restore_whose_files_are_gone_is_refused_and_changes_nothing(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    first = sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    (path,) = files_of(table)
    sink.restore(permit(2), None)
    (table / path).unlink()
    with pytest.raises(SinkError, match="missing file"):
        sink.restore(permit(3), first)
    assert ids_of(table) == []


def test_rows_committed_after_a_recovery_point_are_committed_again_after_a_rewind_to_it(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    visible = sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    carried = staged(sink, numbers(spark, 2), 1)
    sink.commit(permit(3), carried)
    sink.restore(permit(4), visible)
    later = open_sink()
    later.discard(Generation(2), carried)
    assert later.problem(carried[0]) is None
    later.commit(permit(5), carried)
    assert ids_of(table) == [1, 2]


# -- what is staged


def test_a_damaged_staged_file_is_named(spark: SparkSession, open_sink: Open, table: Path) -> None:
    sink = open_sink()
    (one,) = staged(sink, numbers(spark, 1), 0)
    assert sink.problem(one) is None
    for blob in one.blobs:
        path = table / blob.name
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        assert sink.problem(one) == f"{blob.name} has another content: sha256 {_sha(path)}"
        path.write_bytes(whole[:-1])
        said = f"{blob.name} has {len(whole) - 1} bytes instead of {len(whole)}"
        assert sink.problem(one) == said
        path.unlink()
        assert sink.problem(one) == f"{blob.name} is missing"
        path.write_bytes(whole)


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_lost_staged_file_is_never_committed(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    (two,) = staged(sink, numbers(spark, 2), 1)
    (table / two.blobs[-1].name).unlink()
    with pytest.raises(SinkError, match="gone or not what was staged"):
        sink.commit(permit(2), (two,))
    (three,) = staged(sink, numbers(spark, 3), 2)
    with (table / three.blobs[-1].name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(SinkError, match="gone or not what was staged"):
        sink.commit(permit(2), (three,))
    assert ids_of(table) == [1]


def test_discarding_keeps_what_is_committed_carried_or_of_this_generation(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    carried = staged(sink, numbers(spark, 2), 1)
    abandoned = staged(sink, numbers(spark, 3), 2)
    other = staged(open_sink(SinkId("other")), numbers(spark, 4), 0)
    newer = open_sink()
    running = staged(newer, numbers(spark, 5), 2, generation=2)
    newer.discard(Generation(2), carried)
    for kept in (*carried, *other, *running):
        assert newer.problem(kept) is None
    assert not list((table / abandoned[0].blobs[-1].name).parent.parent.glob("*"))
    newer.commit(permit(2), (*carried, *running))
    assert ids_of(table) == [1, 2, 5]
    newer.discard(Generation(3), ())
    assert ids_of(table) == [1, 2, 5]
    left = [path for path in (table / "_cutwater").rglob("*") if path.is_file()]
    assert {str(path.relative_to(table)) for path in left} == {blob.name for blob in other[0].blobs}


def test_what_is_staged_and_committed_outlives_a_power_cut(
    spark: SparkSession, open_sink: Open, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(partition_by=["kind"])
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, kind string")
    synced: set[Path] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    waiting = staged(sink, rows, 0)
    files = [table / blob.name for blob in waiting[0].blobs]
    above = {path for file in files for path in file.parents if table in path.parents}
    # The schema reaches the disk under another name.
    assert {file for file in files if file.suffix == ".parquet"} | above <= synced
    assert sum(path.suffix == ".unfinished" for path in synced) == 1
    for again in (sink, open_sink(partition_by=["kind"])):
        synced.clear()
        assert again.commit(permit(1), waiting) == "1"
        log = table / "_delta_log"
        assert {log / f"{0:020d}.json", log / f"{1:020d}.json", log, table} <= synced


def test_vacuum_does_not_touch_what_is_staged(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    waiting = staged(sink, numbers(spark, 2), 1)
    found = DeltaTable(str(table))
    found.optimize.compact()
    found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sink.problem(waiting[0]) is None
    sink.commit(permit(2), waiting)
    assert ids_of(table) == [1, 2]


# -- opening


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"uri": "s3://key:secret@bucket/table"}, "uri"),
        ({"uri": "file://server/share"}, "uri"),
        ({"uri": "tables/a%20b"}, "uri"),
        ({"uri": ""}, "uri"),
        ({"uri": "t", "partition_by": "day"}, "partition_by"),
        ({"uri": "t", "partition_by": ["day", "Day"]}, "partition_by"),
        ({"uri": "t", "commit_every": "1"}, "commit_every"),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sinks.delta(**options)
    assert caught.value.option == option
    assert "secret" not in str(caught.value)


def test_a_file_address_and_a_relative_path_name_the_same_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = SinkContext(spark, PIPELINE, SINK)
    relative = sinks.delta("tables/t").open(context)
    monkeypatch.chdir("/")
    waiting = staged(relative, numbers(spark, 1), 0)
    address = (tmp_path / "tables" / "t").as_uri()
    sinks.delta(address).open(context).commit(permit(1), waiting)
    assert ids_of(tmp_path / "tables" / "t") == [1]


def test_a_directory_with_other_files_is_not_made_a_table(open_sink: Open, table: Path) -> None:
    table.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), table / "precious.parquet")
    with pytest.raises(ConfigError, match=r"holds precious.parquet and no Delta table"):
        open_sink()


def test_a_file_in_the_tables_place_is_refused(open_sink: Open, table: Path) -> None:
    table.parent.mkdir(parents=True)
    table.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be a Delta table"):
        open_sink()


def test_a_table_that_is_divided_otherwise_is_refused(open_sink: Open, table: Path) -> None:
    write_deltalake(str(table), pa.table({"id": [1], "k": ["a"]}), partition_by=["k"])
    with pytest.raises(ConfigError, match=r"partitioned by \['k'\], not by \[\]"):
        open_sink()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                       "readerFeatures": ["deletionVectors"],
                       "writerFeatures": ["deletionVectors"]}}, "deletionVectors"),
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                       "readerFeatures": ["fromTheFuture"],
                       "writerFeatures": ["fromTheFuture"]}}, "fromTheFuture"),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7,
                       "writerFeatures": ["rowTracking", "domainMetadata"]}}, "rowTracking"),
    ],
)  # fmt: skip
def test_a_table_with_features_that_we_do_not_know_is_refused(
    open_sink: Open, table: Path, actions: dict[str, Any], message: str
) -> None:
    write_deltalake(str(table), pa.table({"id": [1]}))
    (table / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(actions) + "\n")
    with pytest.raises(ConfigError, match=message):
        open_sink()


def test_a_table_with_rules_that_would_not_be_checked_is_refused(
    open_sink: Open, table: Path
) -> None:
    DeltaTable.create(str(table), Schema([Field("id", PrimitiveType("long"), nullable=False)]))
    with pytest.raises(ConfigError, match="has a rule for column id"):
        open_sink()


def test_a_check_constraint_added_later_blocks_the_commit_until_it_is_gone(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    sink.commit(permit(1), staged(sink, numbers(spark, 1), 0))
    waiting = staged(sink, numbers(spark, -1), 1)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkError, match="CHECK constraints"):
        sink.commit(permit(2), waiting)
    with pytest.raises(ConfigError, match="CHECK constraints"):
        open_sink()
    DeltaTable(str(table)).alter.drop_constraint("positive")
    sink.commit(permit(2), waiting)
    assert ids_of(table) == [-1, 1]


def test_a_session_whose_files_delta_misreads_is_refused(
    spark: SparkSession, open_sink: Open
) -> None:
    key = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(key, "INT96")
    try:
        with pytest.raises(ConfigError, match="INT96"):
            open_sink()
    finally:
        spark.conf.set(key, "TIMESTAMP_MICROS")


def test_without_deltalake_the_error_names_what_to_install(
    open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [module for module in sys.modules if module.startswith("cutwater.sinks.delta.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'cutwater\[delta\]'"):
        open_sink()


# -- sudden death


CHILD = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from cutwater import sinks
from cutwater.ids import CheckpointId, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import SinkContext

class Conf:
    def get(self, key):
        return {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
                "spark.sql.parquet.writeLegacyFormat": "false"}.get(key, "CORRECTED")

# Committing needs no Spark: only the settings and the master are looked at.
spark = SimpleNamespace(conf=Conf(), sparkContext=SimpleNamespace(master="local"))
uri, pipeline, sink = sys.argv[1:4]
opened = sinks.delta(uri).open(SinkContext(spark, PipelineId(pipeline), SinkId(sink)))
print("ready", flush=True)
for line in sys.stdin:
    slot, generation, batch, rows, blobs = json.loads(line)
    one = Committable(sink, generation, batch, rows, tuple(BlobRef(*blob) for blob in blobs))
    print(slot, flush=True)
    opened.commit(grant(PipelineId(pipeline), Slot(slot), CheckpointId(slot)), (one,))
"""


def test_a_process_killed_while_committing_loses_and_doubles_no_row(
    spark: SparkSession, open_sink: Open, table: Path
) -> None:
    sink = open_sink()
    work = []
    for batch in range(14):
        rows = numbers(spark, *range(10 * batch, 10 * batch + 10)).coalesce(2)
        (one,) = staged(sink, rows, batch)
        work.append((batch + 1, one))
    chance = random.Random(7)
    done = 0
    while done < len(work):
        slot = _slot_of_death(table, work[done:], chance.uniform(0.0, 0.06))
        # Recovery repeats the slot it died in; a fresh object finds or finishes it.
        (one,) = (committable for at, committable in work if at == slot)
        version = open_sink().commit(permit(slot), (one,))
        assert open_sink().commit(permit(slot), (one,)) == version
        assert ids_of(table) == list(range(10 * slot))
        done = slot
    own = [
        action["txn"]["version"]
        for actions in log_of(table)
        for action in actions
        if "txn" in action
    ]
    assert own == [slot for slot, _ in work]


def _slot_of_death(table: Path, work: list[tuple[int, Committable]], after_s: float) -> int:
    """Commit in another process, kill it a moment later, and say in which slot it was."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(table), PIPELINE, SINK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin, child.stdout:
        assert child.stdout.readline() == "ready\n"
        for slot, committable in work:
            blobs = [(blob.name, blob.size_bytes, blob.sha256) for blob in committable.blobs]
            line = json.dumps(
                [slot, committable.generation, committable.batch, committable.rows, blobs]
            )
            child.stdin.write(line + "\n")
        child.stdin.flush()
        first = child.stdout.readline()
        deadline = time.monotonic() + after_s
        while time.monotonic() < deadline:
            continue
        os.kill(child.pid, signal.SIGKILL)
        said = [first, *child.stdout.readlines()]
    assert child.returncode == -signal.SIGKILL
    return int(said[-1])
