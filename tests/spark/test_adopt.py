"""A plain query in mid-life: adopted, given a second sink, killed, gone on, and ejected again.

The oracle is a recomputation in plain Python over all input: every window that is complete must
have been emitted exactly once, by the old query, by the pipeline or by the plain query after it.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.plain_queries import BEGUN, conf
from tests.spark.runs import options, run, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks
from cutwater.errors import AdoptionRefused
from cutwater.plan import plan
from cutwater.spark.adopt import Adoption, Looked, adopt, examine
from cutwater.spark.eject import Ending, eject
from cutwater.spark.explain import look as look_at_steps
from cutwater.spark.plain_query import look, trace
from cutwater.store.catalog import open_pipeline
from cutwater.store.local import LocalBackend
from cutwater.store.opened import OpenStore

SCHEMA = "k int, v long, t timestamp"
DELAY_S = 30
BIG = 200
PLAIN = {**BEGUN["hdfs"], "spark.sql.shuffle.partitions": "3"}
"""What a session has that nobody has set up, but for the number of partitions."""

Row = tuple[datetime, int, int]


def write(directory: Path, number: int) -> None:
    """One file a minute, with rows of the minute before it too: windows span files."""
    rows = (
        {"k": row % 3, "v": number * 10 + row, "t": str(moment(number, row))[:19]}
        for row in range(12)
    )
    hidden, file = directory / f".{number:03}", directory / f"{number:03}.json"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(file)


def moment(number: int, row: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=60 * number + 5 * row - 20)


def complete(numbers: range) -> list[Row]:
    """Return the windows that are complete after these files, without Spark."""
    sums: dict[tuple[datetime, int], int] = {}
    for number in numbers:
        for row in range(12):
            start = moment(number, row).replace(second=0)
            key = (start, row % 3)
            sums[key] = sums.get(key, 0) + number * 10 + row
    last = max(moment(number, row) for number in numbers for row in range(12))
    until = last - timedelta(seconds=DELAY_S)
    minute = timedelta(minutes=1)
    return sorted((start, k, v) for (start, k), v in sums.items() if start + minute <= until)


def windowed(orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("t", f"{DELAY_S} seconds")
        .groupBy(F.window("t", "1 minute"), "k")
        .agg(F.sum("v").alias("total"))
        .select(F.col("window.start").alias("start"), "k", "total")
    )


def plain(spark: SparkSession, incoming: Path, checkpoint: Path) -> list[Row]:
    """Run the plain query over all that is left; return what it puts out."""
    found: list[Row] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend((row.start.replace(tzinfo=UTC), row.k, row.total) for row in frame.collect())

    with conf(spark, PLAIN):
        orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        writer = windowed(orders.json(str(incoming))).writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    return found


def pipeline(incoming: Path, tables: Path) -> Pipeline:
    made = Pipeline("adopting")

    @made.source
    def orders(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        return stream.json(str(incoming))

    @made.step
    def windows(orders: DataFrame) -> DataFrame:
        return windowed(orders)

    made.sink("all", sinks.delta(str(tables / "all")), of="windows")

    @made.sink(sinks.delta(str(tables / "big")))
    def big(windows: DataFrame) -> DataFrame:
        return windows.where(F.col("total") > BIG)

    return made


def store_of(directory: Path) -> OpenStore:
    backend = LocalBackend(directory / "store")
    return OpenStore.of(backend, open_pipeline(backend, "adopting"))


def adopted(made: Pipeline, spark: SparkSession, query: Path, **allowed: bool) -> Adoption:
    seen = Looked(look(query), trace(query))
    physical = plan(made)
    allowed = {"allow_uncommitted": False, **allowed}
    return examine(physical, look_at_steps(physical, spark), {"windows": seen}, **allowed)


def rows(directory: Path) -> list[Row]:
    found = table(directory, "start", "k", "total")
    return [(start.replace(tzinfo=UTC), k, v) for start, k, v in found]


def test_a_plain_query_is_adopted_runs_on_is_ejected_and_goes_on_exactly(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming, query, tables = (tmp_path / one for one in ("incoming", "query", "tables"))
    incoming.mkdir()
    for number in range(4):
        write(incoming, number)
    before = plain(spark, incoming, query)
    assert sorted(before) == complete(range(4))
    original = trace(query)

    # Adopted, with a second sink that the plain query never had.
    made = pipeline(incoming, tables)
    adoption = adopted(made, spark, query)
    assert adoption.empty == ("all", "big")
    last = adoption.steps[0].query.batch
    adopt(adoption, store_of(tmp_path))
    assert trace(query) == original
    with pytest.raises(AdoptionRefused, match="has checkpoints"):
        adopt(adoption, store_of(tmp_path))

    # Runs on; is killed after a checkpoint of its own, with more input to come.
    write(incoming, 4)
    write(incoming, 5)
    given = options(tmp_path, checkpoint=CheckpointConfig(interval="500ms"))
    running = made.start(spark, given)
    wait_until(running, lambda now: now.steps[0].batch > last, "a batch of its own")
    assert running.checkpoint(60).status == "COMPLETED"
    write(incoming, 6)
    wait_until(running, lambda now: now.steps[0].batch > last + 2, "a batch that is lost")
    running.kill()
    running.wait(60)
    write(incoming, 7)
    run(made, spark, options(tmp_path, available_now=True))
    table_rows = rows(tables / "all")
    assert sorted(before + table_rows) == complete(range(8))
    big = [one for one in table_rows if one[2] > BIG]
    assert rows(tables / "big") == big
    assert 0 < len(big) < len(table_rows)

    # Ejected: a plain query with plain settings goes on, the pipeline is left as it is.
    store = store_of(tmp_path)
    head = store.log.read().head
    assert head is not None
    ejection = eject("adopting", store, head, tmp_path / "plain")
    endings = {one.step: one.ending for one in ejection.steps}
    assert endings == {"windows": Ending.EXACT, "all": Ending.NOTHING, "big": Ending.NOTHING}
    for number in (8, 9):
        write(incoming, number)
    after = plain(spark, incoming, tmp_path / "plain" / "windows")
    assert sorted(before + table_rows + after) == complete(range(10))
    assert trace(query) == original
