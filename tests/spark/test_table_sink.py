"""A table of the session's own catalog as a sink, read back by SQL like any other table."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import FrameRows, OpenSink, SinkContext
from cutwater.sinks.catalog_table import OpenTable
from cutwater.sinks.registry import read_target, reopen

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("events")
NAME = "shop.events"


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    spark.sql(f"CREATE DATABASE shop LOCATION '{tmp_path / 'shop'}'")
    spark.sql(f"CREATE TABLE {NAME} (id LONG, day DATE) USING parquet PARTITIONED BY (day)")
    yield spark
    spark.sql("DROP DATABASE shop CASCADE")


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot))


def opened(spark: SparkSession) -> OpenSink:
    return sinks.table(NAME).open(SinkContext(spark, PIPELINE, SINK))


def staged(spark: SparkSession, sink: OpenSink, batch: int, *days: str) -> tuple[Committable, ...]:
    rows = spark.createDataFrame([(batch, day) for day in days], "id long, day string")
    dated = rows.selectExpr("id", "CAST(day AS DATE) AS day")
    found = sink.stage(FrameRows(dated), Generation(1), BatchId(batch))
    return () if found is None else (found,)


def by_sql(spark: SparkSession, where: str = "true") -> list[tuple[int, str]]:
    query = f"SELECT id, CAST(day AS STRING) FROM {NAME} WHERE {where} ORDER BY ALL"
    return [(row[0], row[1]) for row in spark.sql(query).collect()]


def test_rows_are_in_the_table_once_and_in_partitions_that_the_catalog_knows(
    shop: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(shop)
    first = staged(shop, sink, 1, "2026-01-01", "2026-01-02")
    assert by_sql(shop) == []
    assert sink.commit(permit(3), first) == "1"
    assert by_sql(shop, "day = date'2026-01-02'") == [(1, "2026-01-02")]
    assert opened(shop).commit(permit(3), first) == "1"
    second = staged(shop, sink, 2, "2026-01-02", "2026-01-03")
    with monkeypatch.context() as patch:

        def dead(*_: object) -> None:
            raise SinkError(SINK, "it was killed before the catalog knew")

        patch.setattr(OpenTable, "_tell", dead)
        with pytest.raises(SinkError):
            sink.commit(permit(5), second)
    # The next process repeats the commit, and finds the catalog without the new partition.
    assert opened(shop).commit(permit(5), second) == "2"
    whole = [(1, "2026-01-01"), (1, "2026-01-02"), (2, "2026-01-02"), (2, "2026-01-03")]
    assert by_sql(shop) == whole
    assert shop.sql(f"SHOW PARTITIONS {NAME}").count() == 3
    target = sinks.table(NAME).stored()
    old = read_target(shop, target, "1", SINK)
    assert (old.count(), old.schema) == (2, shop.table(NAME).schema)
    assert sink.look_back("1").rows_then == 2
    assert sink.restore(permit(7), "1") == "3"
    assert by_sql(shop) == whole[:2]
    assert read_target(shop, target, "2", SINK).count() == 4


def test_tables_without_such_a_commit_are_refused_with_what_to_use_instead(
    shop: SparkSession,
) -> None:
    refused: list[tuple[str, str, str]] = [
        ("CREATE TABLE shop.lines (a STRING) USING csv", "shop.lines", "table of csv"),
        ("CREATE VIEW shop.seen AS SELECT 1 AS a", "shop.seen", "VIEW, not a table"),
        ("SELECT 1", "shop.nowhere", "the catalog cannot describe shop.nowhere"),
        (
            "CREATE TABLE shop.dated (a DATE) USING json OPTIONS (dateFormat 'yy')",
            "shop.dated",
            "has the option dateFormat",
        ),
    ]
    for statement, name, reason in refused:
        shop.sql(statement)
        with pytest.raises(ConfigError, match=reason):
            sinks.table(name).open(SinkContext(shop, PIPELINE, SINK))
    shop.sql("CREATE TABLE shop.old AS SELECT 1 AS id")
    foreign: Callable[[], OpenSink] = lambda: sinks.table("shop.old").open(  # noqa: E731
        SinkContext(shop, PIPELINE, SINK)
    )
    with pytest.raises(ConfigError, match="which Cutwater has not committed"):
        foreign()
    with pytest.raises(ConfigError, match="an empty name"):
        sinks.table(" ")
    with pytest.raises(ConfigError, match="which only the pipeline's own file can open"):
        reopen(sinks.table(NAME).stored(), PIPELINE, SINK)
