"""A table that its sink creates in the session's catalog, and finds again there or without it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cutwater.errors import ConfigError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, SinkContext
from cutwater.sinks.created_table import CreatedTable
from cutwater.sinks.files.target import FilesOptions, FilesTarget
from cutwater.sinks.registry import reopen

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a11")
SINK = SinkId("events")
NAME = "made.events"
ID, DAY = StructField("id", LongType()), StructField("day", StringType())


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Iterator[CreatedTable]:
    spark.sql(f"CREATE DATABASE made LOCATION '{tmp_path / 'made'}'")
    yield CreatedTable(
        name=NAME,
        title=NAME,
        files=FilesTarget(str(tmp_path / "made" / "events"), "parquet", FilesOptions()),
        columns=StructType([ID, DAY]),
        accepts=frozenset({"append"}),
        comment="it's one",
        properties={"made.by": "tests"},
    )
    spark.sql("DROP DATABASE made CASCADE")


def write(spark: SparkSession, target: CreatedTable, slot: int) -> None:
    """Commit one row through the target."""
    sink = target.open(SinkContext(spark, PIPELINE, SINK))
    names = [column.name for column in target.columns.fields]
    row = spark.createDataFrame([tuple([slot, "x", "y"][: len(names)])], names)
    staged = sink.stage(FrameRows(row), Generation(1), BatchId(slot))
    assert staged is not None
    sink.commit(grant(PIPELINE, Slot(slot), CheckpointId(slot)), [staged])


def ids(spark: SparkSession) -> list[int]:
    return sorted(row[0] for row in spark.table(NAME).collect())


def test_the_table_is_created_once_and_again_over_its_files_if_the_catalog_forgets_it(
    spark: SparkSession, target: CreatedTable
) -> None:
    write(spark, target, 1)
    files = Path(target.files.uri)
    files.rename(files.with_name("kept"))
    spark.sql(f"DROP TABLE {NAME}")
    files.with_name("kept").rename(files)

    write(spark, target, 2)

    assert ids(spark) == [1, 2]


def test_a_rewind_needs_no_session(spark: SparkSession, target: CreatedTable) -> None:
    write(spark, target, 1)
    write(spark, target, 2)

    offline = reopen(target.stored(), PIPELINE, SINK)
    offline.restore(grant(PIPELINE, Slot(3), CheckpointId(3)), "1")

    spark.sql(f"REFRESH TABLE {NAME}")
    assert ids(spark) == [1]


def test_a_new_column_is_added_to_the_table(spark: SparkSession, target: CreatedTable) -> None:
    write(spark, target, 1)
    wider = replace(target, columns=StructType([ID, DAY, StructField("note", StringType())]))

    write(spark, wider, 2)

    assert spark.table(NAME).columns == ["id", "day", "note"]
    assert ids(spark) == [1, 2]


def test_another_type_other_partitions_and_another_place_are_refused(
    spark: SparkSession, target: CreatedTable, tmp_path: Path
) -> None:
    target.ensure(spark)
    text = replace(target, columns=StructType([StructField("id", StringType())]))
    by_day = replace(
        target, files=replace(target.files, options=FilesOptions(partition_by=("day",)))
    )
    moved = replace(target, files=FilesTarget(str(tmp_path / "elsewhere")))

    with pytest.raises(ConfigError, match="its column id is bigint in the catalog; cast"):
        text.ensure(spark)
    with pytest.raises(ConfigError, match="it is partitioned by nothing; drop it"):
        by_day.ensure(spark)
    with pytest.raises(ConfigError, match=r"the catalog has it at .*made/events, and the"):
        moved.ensure(spark)


def test_rows_of_other_programs_are_never_written_over(
    spark: SparkSession, target: CreatedTable
) -> None:
    spark.sql(f"CREATE TABLE {NAME} (id long, day string) USING parquet")
    spark.sql(f"INSERT INTO {NAME} VALUES (1, 'x')")

    with pytest.raises(ConfigError, match="which Cutwater has not committed, such as rows of"):
        target.ensure(spark)


def test_what_the_catalog_refuses_is_refused_with_its_reason(
    spark: SparkSession, target: CreatedTable
) -> None:
    with pytest.raises(ConfigError, match=r"the catalog refuses it: .* owner is a reserved table"):
        replace(target, properties={"owner": "tests"}).ensure(spark)


def test_the_catalog_has_the_comment_and_the_properties(
    spark: SparkSession, target: CreatedTable
) -> None:
    target.ensure(spark)

    described = {row[0]: row[1] for row in spark.sql(f"DESCRIBE EXTENDED {NAME}").collect()}
    assert described["Comment"] == "it's one"
    assert "made.by=tests" in described["Table Properties"]
