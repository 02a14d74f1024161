"""What a user or a machine can get wrong: a clear error, nothing half-committed, restart works."""

import errno
import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import DEADLINE_S, options, run, table, wait_for_rows, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import ConfigError, RunError, StepError
from cutwater.run import PipelineRun, RunOptions
from cutwater.runtime import effects
from cutwater.runtime.reporting.status import RunStatus
from cutwater.sinks.commit import commit_or_explain


def numbers_into(
    directory: Path,
    *,
    total: int = 3000,
    rate: float | None = None,
    calls: "itertools.count[int] | None" = None,
) -> Pipeline:
    """A source, a stateless step behind a channel, a table; the step may change its mind."""
    pipeline = Pipeline("numbers")

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=total, batch_max=max(500, total // 20), rate=rate)

    # One Event in each batch, so that it is called often enough to change its mind.
    @pipeline.step(max_batch=None if calls is None else "1B")
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
    assert table(tmp_path / "table", "value", "early") == [
        (number, number + 1) for number in range(3000)
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_files_that_spark_would_read_several_times_are_read_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Plain Spark shows the rows of such files once for every file of the batch."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for number in range(4):
        spark.range(number, number + 1).coalesce(1).write.format(form).save(str(tmp_path / "one"))
        (file,) = (tmp_path / "one").glob(f"part-*.{form}")
        file.rename(incoming / (f"{number}.{form}" if number == 3 else f"part[{number}]*?.{form}"))
        shutil.rmtree(tmp_path / "one")
    pipeline = Pipeline("files")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id long").format(form).load(str(incoming))

    pipeline.sink("table", sinks.delta(str(tmp_path / "table")), of=numbers)

    assert run(pipeline, spark, options(tmp_path, available_now=True)).finished
    assert table(tmp_path / "table", "id") == [(0,), (1,), (2,), (3,)]


def test_a_corrupt_file_that_appears_is_named_and_mended_it_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming, shown = tmp_path / "incoming", tmp_path / "table"
    spark.range(100).coalesce(1).write.parquet(str(incoming))
    spark.range(100, 150).coalesce(1).write.parquet(str(tmp_path / "whole"))
    (whole,) = (tmp_path / "whole").glob("part-*.parquet")
    pipeline = Pipeline("files")

    @pipeline.source
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id long").parquet(str(incoming))

    pipeline.sink("table", sinks.delta(str(shown)), of=rows)
    running = pipeline.start(spark, options(tmp_path))
    assert running.checkpoint(DEADLINE_S).status == "COMPLETED"
    wait_for_rows(shown, 100, "id")

    (tmp_path / "bad").write_bytes(b"PAR1 this is no Parquet file PAR1")
    (tmp_path / "bad").rename(incoming / "part-new.parquet")
    with pytest.raises(StepError, match=r"part-new\.parquet"):
        running.wait(DEADLINE_S)

    assert table(shown, "id") == [(number,) for number in range(100)]
    whole.rename(incoming / "part-new.parquet")
    run(pipeline, spark, options(tmp_path, available_now=True))
    assert table(shown, "id") == [(number,) for number in range(150)]


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
    with disk(tmp_path / "small", "300k") as path:
        yield path


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a disk of that size for a while."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mount: a small disk needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> Path:
    """Write until nothing more fits; return what must be deleted to make room."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast


def test_a_full_disk_is_named_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    with pytest.raises(RunError, match="No space left on device"):
        run(
            numbers_into(tmp_path, total=800_000),
            spark,
            options(tmp_path, scratch=small_disk),
        )

    run(numbers_into(tmp_path, total=800_000), spark, options(tmp_path))
    values = [row[0] for row in table(tmp_path / "table", "value")]
    assert values == list(range(800_000))


RARELY = CheckpointConfig(interval="1h", tolerable_failed=0, retained=1000)


def block(
    running: PipelineRun, small: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, RunStatus]:
    """Ask for a checkpoint, and fill its store as soon as the sinks have committed it."""
    ballast: list[Path] = []

    def then_full(*given: Any) -> Any:  # noqa: ANN401 - as it was
        done = commit_or_explain(*given)
        ballast.append(fill(small))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(effects, "commit_or_explain", then_full)
        threading.Thread(target=running.checkpoint, args=(DEADLINE_S,), daemon=True).start()
        status = wait_until(running, lambda one: one.state == "COMMIT_BLOCKED", "a full store")
    return ballast[0], status


def begun(spark: SparkSession, directory: Path, small: Path) -> tuple[RunOptions, PipelineRun]:
    """Run with a store on a small disk until rows have come to the sink."""
    given = replace(options(directory, checkpoint=RARELY), store=small / "store")
    running = numbers_into(directory, total=10**9, rate=1000.0).start(spark, given)
    wait_until(running, lambda one: one.steps[-1].rows > 0, "rows of the sink")
    return given, running


def test_a_stop_does_not_wait_for_room_in_the_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_RETRY_S", 0.1)
    with disk(tmp_path / "disk", "4m") as small:
        given, running = begun(spark, tmp_path, small)
        ballast, _ = block(running, small, monkeypatch)
        running.stop()
        result = running.wait(DEADLINE_S)
        values = [row[0] for row in table(tmp_path / "table", "value")]
        ballast.unlink()
        total = len(values) + 20_000
        again = run(numbers_into(tmp_path, total=total), spark, given)

    assert result is not None
    assert (result.finished, again.finished) == (False, True)
    assert "No space left on device" in result.problem
    assert again.problem == ""
    assert values == list(range(len(values)))
    assert [row[0] for row in table(tmp_path / "table", "value")] == list(range(total))


def test_a_full_store_is_named_wherever_it_was_needed_and_room_is_all_it_needs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_RETRY_S", 0.1)
    with disk(tmp_path / "disk", "4m") as small:
        given, running = begun(spark, tmp_path, small)
        assert running.checkpoint(DEADLINE_S).status == "COMPLETED"
        # Decided, and the sinks have committed: the record of that finds no room.
        ballast, blocked = block(running, small, monkeypatch)
        ballast.unlink()
        wait_until(running, lambda one: one.state == "RUNNING", "room in the store")

        # And the same before anything is decided.
        again = fill(small)
        failed = running.checkpoint(DEADLINE_S)
        with pytest.raises(RunError) as raised:
            running.wait(DEADLINE_S)
        values = [row[0] for row in table(tmp_path / "table", "value")]
        again.unlink()
        total = len(values) + 20_000
        assert run(numbers_into(tmp_path, total=total), spark, given).finished

    for told in (blocked.detail, failed.failure, str(raised.value)):
        assert re.search(rf"{re.escape(str(small))}/store: No space left on device", told), told
    assert values == list(range(len(values)))
    assert [row[0] for row in table(tmp_path / "table", "value")] == list(range(total))


def test_a_full_disk_of_a_table_is_named_and_room_is_all_it_needs(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = options(tmp_path)
    with disk(tmp_path / "disk", "4m") as small:
        running = numbers_into(small, total=10**9, rate=1000.0).start(spark, given)
        wait_for_rows(small / "table", 1, "value")
        ballast = fill(small)
        with pytest.raises(StepError, match="No space left on device") as raised:
            running.wait(DEADLINE_S)
        values = [row[0] for row in table(small / "table", "value")]
        ballast.unlink()
        total = len(values) + 20_000

        assert run(numbers_into(small, total=total), spark, given).finished

        assert str(small / "table") in str(raised.value)
        assert values == list(range(len(values)))
        assert [row[0] for row in table(small / "table", "value")] == list(range(total))


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
