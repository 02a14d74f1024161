"""Delta tables that are upserted and overwritten by a pipeline on real Spark, and taken back."""

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, run

import cutwater
from cutwater import Pipeline, sinks, sources
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, SinkContext
from cutwater.spark.session.session import ship_by_value
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

ship_by_value([sys.modules[__name__]])

TOTAL, KEYS = 2400, 40


def ways(tables: Path, total: int = TOTAL) -> Pipeline:
    """Totals by key: upserted as they are, upserted under another name slowly, and whole."""
    pipeline = Pipeline("ways")

    def slowly(value: int) -> int:
        # Long enough for more than one Event to be waiting when the next batch is taken.
        time.sleep(0.004)
        return value

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, rate=400.0, batch_max=120)

    def counted(numbers: DataFrame) -> DataFrame:
        key = F.col("value") % KEYS
        return numbers.groupBy(F.when(key != 0, key).alias("key")).agg(F.count("*").alias("count"))

    pipeline.step(counted, name="totals", inputs=["numbers"], output_mode="update", partitions=2)
    pipeline.step(counted, name="whole", inputs=["numbers"], output_mode="complete", partitions=2)
    upsert = sinks.delta(str(tables / "upsert"), write="upsert", keys=["key"])
    pipeline.sink("upsert", upsert, of="totals")

    @pipeline.sink(sinks.delta(str(tables / "renamed"), write="upsert", keys=["id"]))
    def renamed(totals: DataFrame) -> DataFrame:
        count = F.udf(slowly, "long", useArrow=False)(F.col("count"))
        return totals.select(F.col("key").alias("id"), count.alias("count"))

    pipeline.sink("whole_table", sinks.delta(str(tables / "whole"), write="overwrite"), of="whole")
    return pipeline


def shown(table: Path, version: str | None = None) -> list[tuple[Any, ...]]:
    found = DeltaTable(table, version=None if version is None else int(version))
    return sorted((tuple(row.values()) for row in found.to_pyarrow_table().to_pylist()), key=repr)


@pytest.mark.matrix
def test_a_pipeline_upserts_and_overwrites_and_goes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    # The first run ends with a commit that has half of the rows, on a busy machine too.
    run(ways(tables, TOTAL // 2), spark, options(tmp_path))
    run(ways(tables), spark, options(tmp_path))

    expected = sorted([(key or None, TOTAL // KEYS) for key in range(KEYS)], key=repr)
    for name in ("upsert", "renamed", "whole"):
        assert shown(tables / name) == expected
    backend = LocalBackend(tmp_path / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, "ways"))
    commits = [store.commits.read(slot) for slot in store.commits.slots()]
    versions = [commit.versions[SinkId("whole_table")] for commit in commits]
    results = [
        [] if version == "none" else shown(tables / "whole", version) for version in versions
    ]
    chosen, then = next(
        (commit, rows)
        for commit, rows in zip(commits, results, strict=True)
        if 0 < sum(count for _, count in rows) < TOTAL and "none" not in commit.versions.values()
    )
    history = DeltaTable(tables / "upsert").history()
    assert str(chosen.checkpoint_id) in [entry.get("cutwater.checkpoint") for entry in history]

    to = str(chosen.checkpoint_id)
    cutwater.rewind("ways", to=to, store=tmp_path / "store", yes=True)
    for name in ("upsert", "renamed", "whole"):
        assert shown(tables / name) == then
    run(ways(tables), spark, options(tmp_path, scratch=tmp_path / "again"))
    for name in ("upsert", "renamed", "whole"):
        assert shown(tables / name) == expected


ALL_TYPES = """
    select cast(id as byte) b, cast(id as short) s, cast(id as int) i, id l,
    cast(id as decimal(9, 2)) / 4 dec, cast(id as decimal(38, 9)) big, id % 2 = 0 flag,
    if(id = 2, null, concat('ü ', id)) t, cast(concat('x', id) as binary) bin,
    date_add(date'1969-12-30', cast(id as int)) day,
    timestamp'1969-12-31 23:59:59.999999' + make_interval(0, 0, 0, cast(id as int)) ts,
    timestamp_ntz'2024-02-29 12:00:00.000001' ntz,
    cast(id as float) / 2 f, cast(id as double) / 3 d,
    array(id, null) arr, map('k', struct(id as a, array('z') as b)) m,
    struct(id as x, struct(cast(null as string) as z) as y) st, cast(null as int) nothing,
    {mark} mark from range({first}, {last}, 1, 1)
"""
KEY = ["b", "s", "i", "l", "dec", "big", "flag", "t", "bin", "day", "ts", "ntz"]


def test_keys_of_every_type_are_found_and_copies_keep_every_type(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    pipeline, name = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10"), SinkId("types")
    target = sinks.delta(str(table), write="upsert", keys=KEY)
    sink = target.open(SinkContext(spark, pipeline, name))

    def commit(slot: int, rows: DataFrame) -> None:
        staged = sink.stage(FrameRows(rows), Generation(1), BatchId(slot))
        assert staged is not None
        sink.commit(grant(pipeline, Slot(slot), CheckpointId(slot)), [staged])

    first = spark.sql(ALL_TYPES.format(mark=1, first=1, last=6))
    second = spark.sql(ALL_TYPES.format(mark=2, first=2, last=4))
    commit(1, first)
    commit(2, second)

    expected = [*first.where("l not in (2, 3)").collect(), *second.collect()]
    files = [str(table / path) for path in _paths(table)]
    assert len(files) == 2
    # Spark reads the copies with its own columns, and pyarrow finds the same types in them.
    found = spark.read.schema(first.schema).parquet(*files)
    assert sorted(map(str, found.collect())) == sorted(map(str, expected))
    assert _kinds(files[0]) == _kinds(files[1])


def _paths(table: Path) -> list[str]:
    return [Path(text).name for text in DeltaTable(table).file_uris()]


def _kinds(file: str) -> list[tuple[str, str, str]]:
    """Return how a file stores each of its columns, the innermost ones included."""
    schema = pq.ParquetFile(file).schema
    leaves = [schema.column(index) for index in range(len(schema))]
    return [(leaf.path, leaf.physical_type, str(leaf.logical_type)) for leaf in leaves]
