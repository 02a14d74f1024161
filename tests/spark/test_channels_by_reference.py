"""A channel that names its source's files instead of holding rows is as exact as one that does.

The source's query runs no job; what the tables show is computed from the input alone.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import files_below, options, run, table, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import MoveRefused, PlanError, RecoveryError, RunError
from cutwater.planning.planner import plan
from cutwater.planning.rendering import draw
from cutwater.run import RunOptions
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.spark.analysis.explain import explain
from cutwater.spark.jvm.by_reference.source_reference import SourceReference
from cutwater.spark.jvm.internals import Internals

FILES = 30
ROWS = 40
SCHEMA = "id long, name string, amount long"


def rows_in(file: int) -> list[dict[str, Any]]:
    numbers = range(file * ROWS, (file + 1) * ROWS)
    return [{"id": number, "name": f"n{number % 7}", "amount": number % 11} for number in numbers]


def write_input(directory: Path) -> Path:
    """Write files whose names a glob would not take literally."""
    into = directory / "input"
    into.mkdir()
    for file in range(FILES):
        write_rows(rows_in(file), into / f"part [{file:03}] é%20#1.parquet")
    return into


def write_rows(rows: list[dict[str, Any]], file: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), file)


def two_tables(
    directory: Path, *, materialize: bool | None = False, slow: bool = False, least: int = 0
) -> Pipeline:
    """One source; all of its rows in one table, counts of some of them in another."""
    pipeline = Pipeline("two")

    @pipeline.source(materialize=materialize)
    def orders(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(directory / "input")).where(f"amount > {least}")

    @pipeline.step(output_mode="update", partitions=2)
    def counts(orders: DataFrame) -> DataFrame:
        if slow:
            pause = F.udf(lambda amount: __import__("time").sleep(0.002) or amount, "long")
            orders = orders.withColumn("amount", pause("amount"))
        return orders.groupBy("name").agg(F.count("*").alias("n"), F.sum("amount").alias("sum"))

    pipeline.sink("raw", sinks.delta(str(directory / "raw")), of=orders)
    target = sinks.delta(str(directory / "counts"), write="upsert", keys=["name"])
    pipeline.sink("totals", target, of=counts)
    return pipeline


def check_tables(directory: Path) -> None:
    rows = [row for file in range(FILES) for row in rows_in(file) if row["amount"] > 0]
    assert table(directory / "raw", "id", "amount") == [(row["id"], row["amount"]) for row in rows]
    count, total = Counter[str](), Counter[str]()
    for row in rows:
        count[row["name"]] += 1
        total[row["name"]] += row["amount"]
    expected = [(name, count[name], total[name]) for name in sorted(count)]
    assert table(directory / "counts", "name", "n", "sum") == expected


def forced(directory: Path, **given: Any) -> RunOptions:  # noqa: ANN401
    often = CheckpointConfig(interval="500ms", unaligned="forced", retained=1000)
    return options(directory, checkpoint=often, **given)


def test_two_tables_from_one_stream_of_files(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path)

    assert run(two_tables(tmp_path), spark, options(tmp_path, available_now=True)).finished

    check_tables(tmp_path)
    assert not list(files_below(tmp_path / "scratch" / "orders" / "channel", ".parquet"))


def interrupted(spark: SparkSession, directory: Path) -> str:
    """Kill the pipeline after a checkpoint with ranges in flight, and return its number."""
    running = two_tables(directory, slow=True).start(spark, forced(directory))
    status = wait_until(running, lambda status: any(map(in_flight, status.checkpoints)), "ranges")
    running.kill()
    running.wait()
    return str(next(filter(in_flight, status.checkpoints)).id)


def in_flight(report: CheckpointReport) -> bool:
    return report.status == "COMPLETED" and report.in_flight_bytes > 0


@pytest.mark.matrix
def test_ranges_in_flight_are_read_again_after_a_kill_and_a_rewind(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path)
    flying = interrupted(spark, tmp_path)

    assert run(two_tables(tmp_path), spark, forced(tmp_path, available_now=True)).finished
    check_tables(tmp_path)

    cutwater.rewind("two", to=flying, store=tmp_path / "store", yes=True)
    assert run(two_tables(tmp_path), spark, forced(tmp_path, available_now=True)).finished
    check_tables(tmp_path)


def test_ranges_in_flight_whose_files_have_changed_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = sorted(write_input(tmp_path).iterdir())
    flying = interrupted(spark, tmp_path)
    with pytest.raises(RecoveryError, match=r"materialize=.*has changed since"):
        run(two_tables(tmp_path, materialize=True), spark, forced(tmp_path, start_from=flying))
    with pytest.raises(RecoveryError, match="is evaluated in another way now"):
        run(two_tables(tmp_path, least=1), spark, forced(tmp_path, start_from=flying))

    assert run(two_tables(tmp_path), spark, forced(tmp_path, available_now=True)).finished
    for number, file in enumerate(files):
        write_rows([*rows_in(number), rows_in(0)[1]], file)
    with pytest.raises(MoveRefused, match=r"rows in flight: .*part \[0.*the file has changed"):
        cutwater.rewind("two", to=flying, store=tmp_path / "store", yes=True)
    for file in files:
        file.unlink()
    with pytest.raises(MoveRefused, match=r"rows in flight: .*: the file is gone"):
        cutwater.rewind("two", to=flying, store=tmp_path / "store", yes=True)
    check_tables(tmp_path)


@pytest.mark.parametrize("change", ["rewrite", "delete"])
def test_ranges_in_flight_whose_files_have_changed_are_not_restored(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    files = sorted(write_input(tmp_path).iterdir())
    interrupted(spark, tmp_path)
    for number, file in enumerate(files):
        if change == "rewrite":
            write_rows([*rows_in(number), rows_in(0)[1]], file)
        else:
            file.unlink()

    reason = r"part \[0.*instead of.*rewind" if change == "rewrite" else "be read as they were"
    with pytest.raises(RunError, match=reason):
        run(two_tables(tmp_path), spark, forced(tmp_path))


@pytest.mark.parametrize(
    ("form", "change", "reason"),
    [
        ("parquet", "rand() as id", "another result when they are evaluated again"),
        ("parquet", "current_timestamp() as id", "uses the current time"),
        ("parquet", "cast('today' as date) as id", "uses the current time"),
        ("parquet", "id > to_timestamp(' Now')::long as id", "uses the current time"),
        ("parquet", "aes_encrypt(name, '0000111122223333') as id", "a random key"),
        ("parquet", "_metadata.file_name as id", "reads the column _metadata"),
        ("json", "id", "reads json"),
    ],
)
def test_rows_that_would_differ_from_reader_to_reader_are_refused(
    spark: SparkSession, tmp_path: Path, form: str, change: str, reason: str
) -> None:
    (tmp_path / "input").mkdir()
    pipeline = Pipeline("two")

    @pipeline.source(chain=False, materialize=False)
    def orders(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).format(form).load(str(tmp_path / "input"))
        return stream.selectExpr(change)

    pipeline.sink("raw", sinks.delta(str(tmp_path / "raw")), of=orders)

    with pytest.raises(PlanError, match=f"materialize=False, and it .*{reason}"):
        run(pipeline, spark, options(tmp_path, available_now=True))


@pytest.mark.parametrize("filters", ["name = '{}'", "amount > 0 and name like '{}'"])
def test_every_literal_is_part_of_the_plan_that_ranges_in_flight_need(
    spark: SparkSession, tmp_path: Path, filters: str
) -> None:
    (tmp_path / "input").mkdir()
    values = [
        "a#1",
        "a#2",
        "0aa2f9a6-5b4a-4f53-8d1a-0f3c8b6a1c11",
        "b@cafe",
        "b@beef",
        "x_1",
        "x_2",
    ]

    def plan_with(value: str) -> str:
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
        many = [F.coalesce(*[F.col("amount")] * 30, F.lit(len(value))).alias("many")]
        lambdas = F.exists(F.array("id"), lambda element: element > 1)
        frame = stream.where(filters.format(value)).where(lambdas).select("*", *many)
        return SourceReference(Internals(spark), frame)._plan

    assert len({plan_with(value) for value in values}) == len(values)
    assert plan_with(values[0]) == plan_with(values[0])


def by_day(directory: Path, path: str, *, materialize: bool | None = None) -> Pipeline:
    pipeline = Pipeline("days")

    @pipeline.source(chain=False, materialize=materialize)
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(f"{SCHEMA}, day int").parquet(str(directory / path))

    pipeline.sink("raw", sinks.delta(str(directory / "raw")), of=orders)
    return pipeline


def write_day(directory: Path, day: int) -> None:
    into = directory / "input" / f"day={day}"
    into.mkdir(parents=True)
    write_rows(rows_in(day), into / "x.parquet")


def test_partition_columns_have_their_values(spark: SparkSession, tmp_path: Path) -> None:
    write_day(tmp_path, 1)
    write_day(tmp_path, 2)

    given = options(tmp_path, available_now=True)
    assert run(by_day(tmp_path, "input", materialize=False), spark, given).finished

    expected = [(row["id"], day) for day in (1, 2) for row in rows_in(day)]
    assert table(tmp_path / "raw", "id", "day") == expected


def test_partitions_below_a_pattern_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_day(tmp_path, 1)

    given = options(tmp_path, available_now=True)
    with pytest.raises(PlanError, match="directories of partitions by a pattern"):
        run(by_day(tmp_path, "in*", materialize=False), spark, given)


def test_files_in_other_partitions_than_the_rest_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_day(tmp_path, 1)
    write_rows(rows_in(2), tmp_path / "input" / "x.parquet")

    given = options(tmp_path, available_now=True)
    with pytest.raises(RunError, match=r"is in directories of .* Move it, or"):
        run(two_tables(tmp_path), spark, given)


def test_only_files_and_kafka_are_read_by_reference(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("numbers")

    @pipeline.source(chain=False, materialize=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=10)

    pipeline.sink("raw", sinks.delta(str(tmp_path / "raw")), of=numbers)

    with pytest.raises(PlanError, match="reads neither files nor Kafka"):
        run(pipeline, spark, options(tmp_path))


def names_files(directory: Path, source: str = "orders") -> bool:
    """Whether the channel of the source holds lists of files, and no rows."""
    (channel,) = (directory / "scratch").glob(f"*/*/{source}/channel")
    found = {file.suffix for file in files_below(channel, "")}
    assert found, "the channel is empty"
    return ".parquet" not in found


@pytest.mark.matrix
def test_without_the_option_a_source_of_files_is_not_copied(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path)
    running = two_tables(tmp_path, materialize=None, slow=True).start(spark, forced(tmp_path))
    wait_until(running, lambda status: any(map(in_flight, status.checkpoints)), "ranges")
    assert names_files(tmp_path)
    running.kill()
    running.wait()

    given = forced(tmp_path, available_now=True)
    assert run(two_tables(tmp_path, materialize=None), spark, given).finished
    check_tables(tmp_path)


def test_a_pipeline_that_has_run_keeps_how_its_channel_is_filled(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path)
    running = two_tables(tmp_path, materialize=True, slow=True).start(spark, forced(tmp_path))
    wait_until(running, lambda status: any(map(in_flight, status.checkpoints)), "rows in flight")
    running.kill()
    running.wait()

    running = two_tables(tmp_path, materialize=None, slow=True).start(spark, forced(tmp_path))
    wait_until(running, lambda status: status.completed >= 1, "a checkpoint")
    assert not names_files(tmp_path)
    running.kill()
    running.wait()
    given = forced(tmp_path, available_now=True)
    assert run(two_tables(tmp_path, materialize=None), spark, given).finished
    check_tables(tmp_path)


@pytest.mark.parametrize(
    ("column", "readers", "holds"),
    [
        ("id", 2, "names the source's files: reading them again costs less"),
        ("id", 5, "holds rows: the source has 5 readers"),
        ("doubled(id) AS id", 2, "holds rows: the source calls a function of the user"),
        ("rand() AS id", 2, "holds rows: the source has expressions that give another result"),
    ],
)
def test_a_plan_says_what_a_channel_holds_and_why(
    spark: SparkSession, tmp_path: Path, column: str, readers: int, holds: str
) -> None:
    (tmp_path / "input").mkdir()
    pipeline = Pipeline("chosen")
    doubled = F.udf(lambda number: 2 * number, "long")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        spark.udf.register("doubled", doubled)
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
        return stream.selectExpr(column)

    for number in range(readers):
        pipeline.sink(f"copy{number}", sinks.delta(str(tmp_path / f"{number}")), of=orders)

    planned = plan(pipeline)
    assert holds in draw(planned, explain(planned, spark))


def timed_tables(directory: Path, *, slow: bool = False) -> Pipeline:
    """One source with a watermark; all of its rows in one table, closed windows in another."""
    pipeline = Pipeline("timed")

    @pipeline.source
    def events(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema("id long, at timestamp").option("maxFilesPerTrigger", 1)
        timed = stream.parquet(str(directory / "input")).withWatermark("at", "2 seconds")
        return timed.where("id % 10 != 3")

    @pipeline.step(partitions=2)
    def windows(events: DataFrame) -> DataFrame:
        if slow:
            pause = F.udf(lambda number: __import__("time").sleep(0.005) or number, "long")
            events = events.withColumn("id", pause("id"))
        counted = events.groupBy(F.window("at", "10 seconds")).agg(F.count("id").alias("n"))
        return counted.select(F.unix_seconds("window.start").alias("start"), "n")

    pipeline.sink("raw", sinks.delta(str(directory / "raw")), of=events)
    pipeline.sink("counted", sinks.delta(str(directory / "counted")), of=windows)
    return pipeline


def test_readers_of_a_source_with_a_watermark_read_its_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One event each second; the last one, an hour later, closes the windows of all others."""
    (tmp_path / "input").mkdir()
    numbers = [*range(FILES * ROWS), FILES * ROWS + 3600]
    for file in range(FILES + 1):
        part = numbers[file * ROWS : (file + 1) * ROWS]
        times = pa.array([number * 1_000_000 for number in part], pa.timestamp("us", "UTC"))
        columns = pa.table({"id": pa.array(part, pa.int64()), "at": times})
        pq.write_table(columns, tmp_path / "input" / f"{file:03}.parquet")

    running = timed_tables(tmp_path, slow=True).start(spark, forced(tmp_path))
    wait_until(running, lambda status: any(map(in_flight, status.checkpoints)), "ranges")
    assert names_files(tmp_path, "events")
    running.kill()
    running.wait()
    assert run(timed_tables(tmp_path), spark, forced(tmp_path, available_now=True)).finished

    kept = [number for number in numbers if number % 10 != 3]
    assert table(tmp_path / "raw", "id") == [(number,) for number in kept]
    windows = Counter(number // 10 * 10 for number in kept[:-1])
    assert table(tmp_path / "counted", "start", "n") == sorted(windows.items())
