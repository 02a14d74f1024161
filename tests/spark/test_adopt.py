"""A plain query in mid-life: adopted, given a second sink, killed, gone on, and ejected again.

The oracle is a recomputation in plain Python over all input: every window that is complete must
have been emitted exactly once, by the old query, by the pipeline or by the plain query after it.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.kafka_pipelines import newest_cut
from tests.spark.plain_queries import BEGUN, conf
from tests.spark.runs import options, run, starter, table, wait_until
from typer.testing import CliRunner

from cutwater import CheckpointConfig
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.ids import StepId
from cutwater.operations.migration.plain_query import trace
from cutwater.spark.checkpoint_dir.logs import batches

SCHEMA = "k int, v long, t timestamp"
DELAY_S = 150
BIG = 150
PLAIN = {**BEGUN["hdfs"], "spark.sql.shuffle.partitions": "3"}
"""The settings of an unconfigured session, but for the number of partitions."""

PIPELINE = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks


def windowed(orders, refunds):
    rows = orders.unionByName(refunds).withWatermark("t", "150 seconds")
    minutes = rows.groupBy(F.window("t", "1 minute"), "k")
    return minutes.agg(F.sum("v").alias("total")).select("window.start", "k", "total")


def create(incoming: str, tables: str) -> Pipeline:
    made = Pipeline("adopting")

    @made.source
    def orders(spark):
        stream = spark.readStream.schema("k int, v long, t timestamp")
        return stream.option("maxFilesPerTrigger", "1").json(f"{incoming}/orders")

    @made.source
    def refunds(spark):
        stream = spark.readStream.schema("k int, v long, t timestamp")
        return stream.option("maxFilesPerTrigger", "1").json(f"{incoming}/refunds")

    made.step(windowed, name="windows")
    made.sink("all", sinks.delta(f"{tables}/all"), of="windows")

    @made.sink(sinks.delta(f"{tables}/big"))
    def big(windows):
        return windows.where("total > 150")

    return made
"""

Row = tuple[datetime, int, int]


def put(directory: Path, number: int, made: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{number:03}"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / f"{number:03}.json")


def orders(number: int) -> list[tuple[int, int, datetime]]:
    """One file a minute, with rows of the minute before it too: windows span files."""
    return [(row % 3, number * 10 + row, moment(number, row)) for row in range(12)]


def refunds(number: int) -> list[tuple[int, int, datetime]]:
    return [(0, -number, moment(number, 1))]


def write(incoming: Path, *numbers: int) -> None:
    for number in numbers:
        for name, made in (("refunds", refunds), ("orders", orders)):
            found = ({"k": k, "v": v, "t": str(t)[:19]} for k, v, t in made(number))
            put(incoming / name, number, list(found))


def moment(number: int, row: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=60 * number + 5 * row - 20)


def complete(numbers: range) -> list[Row]:
    """Return the windows that are complete after these files, without Spark."""
    found = [row for number in numbers for row in (*orders(number), *refunds(number))]
    return complete_rows(found)


def complete_rows(found: list[tuple[int, int, datetime]]) -> list[Row]:
    until = max(t for _, _, t in found) - timedelta(seconds=DELAY_S)
    sums: dict[tuple[datetime, int], int] = {}
    for k, v, t in found:
        key = (t.replace(second=0), k)
        sums[key] = sums.get(key, 0) + v
    minute = timedelta(minutes=1)
    return sorted((start, k, v) for (start, k), v in sums.items() if start + minute <= until)


def plain(
    spark: SparkSession,
    windowed: Callable[[DataFrame, DataFrame], DataFrame],
    incoming: Path,
    checkpoint: Path,
    *,
    stop: bool = False,
) -> list[Row]:
    """Run the plain query over all that is left; return what it puts out.

    Or stop it in its first batch, whose state is written by then.
    """
    found: list[Row] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend((row.start.replace(tzinfo=UTC), row.k, row.total) for row in frame.collect())
        if stop:
            raise Stopped

    with conf(spark, PLAIN):
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        sources = (stream.json(str(incoming / name)) for name in ("orders", "refunds"))
        writer = windowed(*sources).writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    return found


def command(directory: Path, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    """Call a command in this process, whose Spark it finds running."""
    store = ("--store", str(directory / "store"), "--output", "json")
    result = CliRunner().invoke(app, [*words, *store])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


class Stopped(Exception):
    """What ends a query in the middle of a batch."""


def rows(directory: Path) -> list[Row]:
    found = table(directory, "start", "k", "total")
    return [(start.replace(tzinfo=UTC), k, v) for start, k, v in found]


@pytest.mark.matrix
def test_a_plain_query_is_adopted_runs_on_is_ejected_and_goes_on_exactly(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming, query, tables = (tmp_path / name for name in ("incoming", "query", "tables"))
    file = tmp_path / "adopting.py"
    file.write_text(PIPELINE, encoding="utf-8")
    write(incoming, *range(4))
    target, params = f"{file}:create", {"incoming": str(incoming), "tables": str(tables)}
    loaded = load(target, params, starter(spark))
    windowed = loaded.modules[0].windowed
    before = plain(spark, windowed, incoming, query)
    assert sorted(before) == complete(range(4))
    last = max(batches(query, "commits"))
    # One more batch is begun, and its state written, which must not be taken for anything.
    write(incoming, 4)
    with pytest.raises(StreamingQueryException):
        plain(spark, windowed, incoming, query, stop=True)
    assert list(query.glob(f"state/0/*/{last + 2}.delta"))
    original = trace(query)

    # Adopted, with a second sink that the plain query never had: shown first, then done.
    flags = [target, "--query", f"windows={query}"]
    flags += [text for key, value in params.items() for text in ("--param", f"{key}={value}")]
    refused = command(tmp_path, "adopt", *flags, code=2)
    assert f"has batch {last + 1} begun and not committed" in refused["error"]["message"]
    flags.append("--allow-uncommitted")
    shown = command(tmp_path, "adopt", *flags)
    assert shown["adopted"] is None
    assert not (tmp_path / "store").exists()
    done = command(tmp_path, "adopt", *flags, "--yes")
    assert {**done, "adopted": None} == shown
    assert done["start_empty"] == ["all", "big"]
    (found,) = done["queries"]
    # The plan of the step has a stream between the two, which the plain query had not.
    assert found["offsets"] == {"0:orders": '{"logOffset":3}', "2:refunds": '{"logOffset":3}'}
    assert (found["batch"], found["uncommitted_batch"]) == (last, last + 1)

    # Runs on; is killed after a checkpoint of its own, with a batch that is lost.
    write(incoming, 5)
    running = loaded.pipeline.start(
        spark, options(tmp_path, checkpoint=CheckpointConfig(interval="1h"))
    )
    wait_until(running, lambda now: now.steps[0].batch > last, "a batch of its own")
    assert running.checkpoint(60).status == "COMPLETED"
    at = running.status().steps[0].batch
    write(incoming, 6)
    wait_until(running, lambda now: now.steps[0].batch > at, "a batch that is lost")
    running.kill()
    running.wait(60)
    write(incoming, 7)
    run(loaded.pipeline, spark, options(tmp_path, available_now=True))
    made = rows(tables / "all")
    assert sorted(before + made) == complete(range(8))
    big = [row for row in made if row[2] > BIG]
    assert rows(tables / "big") == big
    assert 0 < len(big) < len(made)

    # Ejected: a plain query with plain settings goes on; originals were only read.
    out = command(tmp_path, "eject", "adopting", "--to", str(tmp_path / "plain"))
    assert {step["step"]: step["ending"] for step in out["steps"]} == {
        "windows": "goes on exactly",
        "all": "nothing to write",
        "big": "nothing to write",
    }
    write(incoming, 8, 9)
    after = plain(spark, windowed, incoming, tmp_path / "plain" / "windows")
    assert sorted(before + made + after) == complete(range(10))
    assert after
    assert trace(query) == original


SHARED = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks


def read(spark, incoming, kind, files):
    stream = spark.readStream.schema("k int, v long, t timestamp").format(kind)
    return stream.option("maxFilesPerTrigger", files).load(incoming)


def windowed(orders):
    minutes = orders.withWatermark("t", "150 seconds").groupBy(F.window("t", "1 minute"), "k")
    return minutes.agg(F.sum("v").alias("total")).select("window.start", "k", "total")


def firsts(valid):
    return valid.dropDuplicates(["k", "t"]).selectExpr("t AS start", "k", "v AS total")


def create(incoming: str, kind: str, tables: str) -> Pipeline:
    made = Pipeline("sharing")
    made.source(lambda spark: read(spark, incoming, kind, 1), name="orders")
    made.view(lambda orders: orders.where("k >= 0"), name="valid")
    made.step(windowed, name="windows")
    made.step(firsts, name="firsts")
    made.sink("all", sinks.delta(f"{tables}/all"), of="windows")
    made.sink("first", sinks.delta(f"{tables}/first"), of="firsts")
    made.sink("raw", sinks.delta(f"{tables}/raw"), of="valid")
    return made
"""


def put_file(
    directory: Path, kind: str, number: int, made: list[tuple[int, int, datetime]]
) -> None:
    if kind == "json":
        put(directory, number, [{"k": k, "v": v, "t": str(t)[:19]} for k, v, t in made])
        return
    types = {"k": pa.int32(), "v": pa.int64(), "t": pa.timestamp("us", "UTC")}
    columns = dict(zip(types, zip(*made, strict=True), strict=True))
    hidden = directory / f".{number:03}"
    parquet.write_table(pa.table(columns, schema=pa.schema(types)), hidden)
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / f"{number:03}.parquet")


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_two_plain_queries_over_one_directory_are_adopted_into_one_source(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Parquet files are read by reference, and the channel of JSON files holds rows."""
    incoming, tables = tmp_path / "incoming", tmp_path / "tables"
    incoming.mkdir()
    file = tmp_path / "sharing.py"
    file.write_text(SHARED, encoding="utf-8")
    target = f"{file}:create"
    params = {"incoming": str(incoming), "kind": kind, "tables": str(tables)}
    loaded = load(target, params, starter(spark))
    code = loaded.modules[0]

    def finish(name: str, made: Callable[[DataFrame], DataFrame], files: int) -> list[Row]:
        """Run a plain query to the end, with so many files in a batch."""
        found: list[Row] = []

        def collect(frame: DataFrame, _: int) -> None:
            found.extend(
                (row.start.replace(tzinfo=UTC), row.k, row.total) for row in frame.collect()
            )

        with conf(spark, PLAIN):
            writer = made(code.read(spark, str(incoming), kind, files)).writeStream
            writer = writer.foreachBatch(collect).option("checkpointLocation", str(tmp_path / name))
            writer.trigger(availableNow=True).start().awaitTermination()
        return found

    for number in range(4):
        put_file(incoming, kind, number, orders(number))
    before = finish("windows", code.windowed, 1)
    early = finish("firsts", code.firsts, 3)
    flags = [target, *(f"--query={name}={tmp_path / name}" for name in ("windows", "firsts"))]
    flags += [f"--param={key}={value}" for key, value in params.items()]

    done = command(tmp_path, "adopt", *flags, "--yes")
    # The queries number their batches of files differently, and have read the same files.
    assert done["sources"] == [
        {
            "step": "orders",
            "readers": ["windows", "firsts"],
            "offsets": {"0:orders": '{"logOffset":3}'},
        }
    ]
    identities = newest_cut(tmp_path, "sharing").identities
    assert identities[StepId("orders")].by_reference == (kind == "parquet")
    put_file(incoming, kind, 4, orders(4))
    put_file(incoming, kind, 5, [(k, 0, t) for k, _, t in orders(3)])
    running = loaded.pipeline.start(
        spark, options(tmp_path, checkpoint=CheckpointConfig(interval="1h"))
    )
    wait_until(running, lambda now: all(step.batch >= 0 for step in now.steps), "a batch of each")
    running.kill()
    running.wait(60)
    put_file(incoming, kind, 6, orders(6))
    run(loaded.pipeline, spark, options(tmp_path, available_now=True))

    everything = [row for number in (0, 1, 2, 3, 4, 6) for row in orders(number)]
    late = [row for row in everything if row not in [row for n in range(4) for row in orders(n)]]
    assert sorted(before + rows(tables / "all")) == complete_rows(everything)
    assert before
    assert sorted(early + rows(tables / "first")) == sorted({(t, k, v) for k, v, t in everything})
    assert len(table(tables / "raw", "k", "v")) == len(late) + len(orders(3))
