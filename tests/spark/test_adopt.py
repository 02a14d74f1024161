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

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.plain_queries import BEGUN, conf
from tests.spark.runs import options, run, table, wait_until
from typer.testing import CliRunner

from cutwater import CheckpointConfig
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.operations.migration.plain_query import trace
from cutwater.spark.checkpoint_dir.logs import batches

SCHEMA = "k int, v long, t timestamp"
DELAY_S = 150
BIG = 150
PLAIN = {**BEGUN["hdfs"], "spark.sql.shuffle.partitions": "3"}
"""What a session has that nobody has set up, but for the number of partitions."""

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
    loaded = load(target, params, lambda: spark)
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
