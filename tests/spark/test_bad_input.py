"""What a user or a machine can get wrong: a clear error, nothing half-committed, restart works."""

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, run, table

from cutwater import Pipeline, sinks, sources
from cutwater.errors import ConfigError, RunError, StepError


def numbers_into(
    directory: Path, *, total: int = 3000, calls: "itertools.count[int] | None" = None
) -> Pipeline:
    """A source, a stateless step behind a channel, a table; the step may change its mind."""
    pipeline = Pipeline("numbers")

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, batch_max=max(500, total // 20))

    @pipeline.step
    def wide(numbers: DataFrame) -> DataFrame:
        changed = calls is not None and next(calls) > 2
        return numbers.withColumn("late" if changed else "early", F.col("value") + 1)

    pipeline.sink("table", sinks.delta(str(directory / "table")), of=wide)
    return pipeline


def test_rows_that_do_not_fit_their_columns_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StepError, match="late bigint in place of early bigint") as raised:
        run(numbers_into(tmp_path, calls=itertools.count()), spark, options(tmp_path))

    assert raised.value.step == "wide"
    assert "test_bad_input.py:" in raised.value.where

    run(numbers_into(tmp_path), spark, options(tmp_path))
    assert table(tmp_path / "table", "value", "early") == [(one, one + 1) for one in range(3000)]


def test_a_corrupt_file_of_a_source_is_named_and_nothing_of_it_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    spark.range(100).coalesce(1).write.parquet(str(incoming))
    bad = incoming / "part-bad.parquet"
    bad.write_bytes(b"PAR1 this is no Parquet file PAR1")
    pipeline = Pipeline("files")

    @pipeline.source
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id long").parquet(str(incoming))

    pipeline.sink("table", sinks.delta(str(tmp_path / "table")), of=rows)

    with pytest.raises(StepError, match=r"part-bad\.parquet"):
        run(pipeline, spark, options(tmp_path, available_now=True))

    assert not (tmp_path / "table" / "_delta_log").exists()
    bad.unlink()
    spark.range(100, 150).coalesce(1).write.mode("append").parquet(str(incoming))
    run(pipeline, spark, options(tmp_path / "again", available_now=True))
    assert table(tmp_path / "table", "id") == [(one,) for one in range(150)]


def test_a_scratch_that_cannot_be_written_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigError, match=r"scratch: .*file cannot be written: File exists"):
        run(
            numbers_into(tmp_path),
            spark,
            options(tmp_path, scratch=tmp_path / "file"),
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kilobytes."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(path)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mount: a small disk needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_named_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    with pytest.raises(RunError, match="No space left on device"):
        run(
            numbers_into(tmp_path, total=2_000_000),
            spark,
            options(tmp_path, scratch=small_disk),
        )

    run(numbers_into(tmp_path, total=2_000_000), spark, options(tmp_path))
    values = [row[0] for row in table(tmp_path / "table", "value")]
    assert values == list(range(2_000_000))


def test_a_damaged_manifest_is_an_error_and_not_a_fresh_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(numbers_into(tmp_path, total=1000), spark, options(tmp_path))
    for manifest in tmp_path.glob("store/pipelines/*/manifests/*"):
        record = json.loads(manifest.read_text())
        record["record"]["value"]["started_at_ms"] = 0
        manifest.write_text(json.dumps(record))

    with pytest.raises(RunError, match="cannot be restored: its manifest is missing or damaged"):
        run(numbers_into(tmp_path, total=2000), spark, options(tmp_path))
