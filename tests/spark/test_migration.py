"""The three jobs of docs/how-to/migrate-from-plain-spark.md, before, during and after.

The files are those of `examples/migration`, which the page shows. Each test first shows what goes
wrong in plain Spark, then adopts the queries and lets the pipeline run on, through a kill. What the
tables must show is computed from the input in plain Python.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.cli.documents import blocks
from tests.servers.kafka import KafkaCluster
from tests.spark.kafka_pipelines import newest_cut, opened
from tests.spark.plain_queries import BEGUN, conf
from tests.spark.runs import (
    EXAMPLES,
    Rows,
    example,
    options,
    run,
    starter,
    table,
    wait_for_rows,
    wait_until,
)
from typer.testing import CliRunner

import cutwater
from cutwater import CheckpointConfig, Pipeline
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.errors import RunError
from cutwater.operations.migration.plain_query import trace
from cutwater.run import PipelineRun

PAGE = "how-to/migrate-from-plain-spark.md"
LARGE_CENTS = 10_000
PLAIN = {**BEGUN["hdfs"], "spark.sql.shuffle.partitions": "3"}
"""The settings of an unconfigured session, but for the number of partitions."""

Order = dict[str, Any]


def order(number: int) -> Order:
    cents = number * 997 % 20_000 + 1
    at = f"2024-01-01 00:{number // 60:02}:{number % 60:02}"
    return {"id": number, "customer": f"c{number % 5}", "cents": cents, "at": at}


def orders(numbers: Iterable[int]) -> list[Order]:
    return [order(number) for number in numbers]


def put(directory: Path, number: int, lines: Iterable[str]) -> None:
    """Add a file, which is complete from the start; Spark takes the oldest first."""
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{number}"
    hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / f"{number:03}.json")


def totals(numbers: Iterable[int]) -> Rows:
    """Return the orders and cents of each customer."""
    groups: dict[str, list[int]] = {}
    for one in orders(numbers):
        groups.setdefault(one["customer"], []).append(one["cents"])
    return sorted((name, len(cents), sum(cents)) for name, cents in groups.items())


def parquet(spark: SparkSession, path: Path, *columns: str) -> Rows:
    """Return what a reader of a plain query's output finds, sorted."""
    return sorted(tuple(row) for row in spark.read.parquet(str(path)).select(*columns).collect())


def ids(rows: Rows) -> list[int]:
    return [row[0] for row in rows]


class Migration:
    """A pipeline of `examples/migration`, and the plain queries that it continues."""

    def __init__(
        self, spark: SparkSession, directory: Path, name: str, parameters: Mapping[str, str]
    ) -> None:
        self.spark = spark
        self.directory = directory
        self.name = name
        self.before = example(f"migration/{name}_before")
        self.plain = directory / "plain"
        self.tables = directory / "tables"
        self.parameters = {**parameters, "out": str(self.tables)}

    def finish(self, start: Callable[..., StreamingQuery]) -> None:
        """Run a plain query over all that is there, in a session with Spark's defaults."""
        with conf(self.spark, PLAIN):
            start(availableNow=True).awaitTermination()

    def adopt(self, *queries: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
        """Give the command of the page: show, then do; return its answer."""
        file = EXAMPLES / "migration" / f"{self.name}_after.py"
        words = ["adopt", f"{file}:create", "--store", str(self.directory / "store")]
        for query in queries:
            step, _, name = query.partition("=")
            words += ["--query", f"{step}={self.plain / 'checkpoints' / name}"]
        for key, value in self.parameters.items():
            words += ["--param", f"{key}={value}"]
        words += ["--output", "json"]
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == code, shown.output
        if code:
            return json.loads(shown.stdout)["error"]["message"]
        assert not (self.directory / "store").exists()
        done = CliRunner().invoke(app, [*words, "--yes"])
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert {**answer, "adopted": None} == json.loads(shown.stdout)
        assert answer["adopted"] == 1
        return answer

    def pipeline(self) -> Pipeline:
        made: Pipeline = example(f"migration/{self.name}_after").create(**self.parameters)
        return made

    def run(self) -> int:
        """Run over all that is there; return the checkpoint at which both tables committed."""
        result = run(self.pipeline(), self.spark, options(self.directory, available_now=True))
        assert result.last_checkpoint is not None
        assert newest_cut(self.directory, self.name).commit_point
        committed = opened(self.directory, self.name).commits.newest()
        assert committed is not None
        assert committed.checkpoint_id == result.last_checkpoint
        return result.last_checkpoint

    def kill_in_between(
        self,
        add_rows: Callable[[], None],
        then: Callable[[PipelineRun], None] = lambda _: None,
    ) -> None:
        """Kill the pipeline when it has processed rows that no checkpoint has, or after more."""
        never = CheckpointConfig(interval="1h")
        running = self.pipeline().start(self.spark, options(self.directory, checkpoint=never))
        try:
            before = [step.batch for step in wait_until(running, lambda _: True, "it runs").steps]
            add_rows()
            wait_until(
                running,
                lambda now: all(
                    step.batch > old for step, old in zip(now.steps, before, strict=True)
                ),
                "a batch of every step",
            )
            then(running)
        finally:
            running.kill()
            running.wait(60)

    def at(self, checkpoint: int, sink: str, *columns: str) -> Rows:
        """Return what a table showed at a checkpoint."""
        store = str(self.directory / "store")
        found = cutwater.read(self.spark, store, self.name, sink, checkpoint=checkpoint)
        return sorted(tuple(row) for row in found.select(*columns).collect())


@contextmanager
def unwritable(directory: Path) -> Iterator[Path]:
    """Let all writes to a directory fail; return where its content is meanwhile."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.touch()
    try:
        yield aside
    finally:
        directory.unlink()
        aside.rename(directory)


def test_two_queries_on_one_topic_become_one_source_and_two_tables_that_agree(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("migrated", 2)
    job = Migration(spark, tmp_path, "one_topic", {"bootstrap": kafka.bootstrap, "topic": topic})
    out, plain = str(job.plain), job.before

    def produce(numbers: Iterable[int]) -> None:
        kafka.produce(topic, [(one["customer"], json.dumps(one)) for one in orders(numbers)])

    def finish_totals() -> None:
        read = plain.read(spark, kafka.bootstrap, topic)
        job.finish(lambda **trigger: plain.start_totals(read, out, **trigger))

    def finish_archive() -> None:
        read = plain.read(spark, kafka.bootstrap, topic)
        job.finish(lambda **trigger: plain.start_archive(read, out, **trigger))

    # Before: each query is right for itself, and the two disagree.
    produce(range(20))
    finish_totals()
    produce(range(20, 30))
    finish_archive()
    assert parquet(spark, job.plain / "totals", "customer", "orders", "cents") == totals(range(20))
    assert ids(parquet(spark, job.plain / "archive", "id")) == list(range(30))
    refused = job.adopt("totals=totals", "archive=archive", code=2)
    assert "orders is read once for totals and archive" in refused
    assert "their queries stopped at different places" in refused

    # Both at one place: adopted, with one position.
    finish_totals()
    original = trace(job.plain / "checkpoints")
    adopted = job.adopt("totals=totals", "archive=archive")
    (source,) = adopted["sources"]
    assert (source["step"], source["readers"]) == ("orders", ["totals", "archive"])
    assert sum(json.loads(source["offsets"]["0:orders"])[topic].values()) == 30

    # After: at every checkpoint both tables show the same orders.
    ends = {}
    for last in (40, 50):
        produce(range(last - 10, last))
        ends[job.run()] = last
    job.kill_in_between(lambda: produce(range(50, 60)))
    produce(range(60, 70))
    ends[job.run()] = 70
    assert len(ends) == 3
    for checkpoint, last in ends.items():
        shown = job.at(checkpoint, "total_table", "customer", "orders", "cents")
        assert shown == totals(range(last))
        assert ids(job.at(checkpoint, "archive", "id")) == list(range(30, last))
    assert table(job.tables / "totals", "customer", "orders", "cents") == totals(range(70))
    assert ids(table(job.tables / "archive", "id")) == list(range(30, 70))
    assert trace(job.plain / "checkpoints") == original


OWN_SOURCES = """
import importlib.util
from cutwater import Pipeline, sinks
from pyspark.sql import functions as F


def create(before: str, bootstrap: str, topic: str, out: str) -> Pipeline:
    spec = importlib.util.spec_from_file_location("one_topic_before", before)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    made = Pipeline("own_sources")
    for name in ("counted", "archived"):
        made.source(lambda spark: plain.read(spark, bootstrap, topic), name=name)

    @made.step(output_mode="complete")
    def totals(counted):
        groups = counted.groupBy("customer")
        return groups.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))

    made.sink("total_table", sinks.delta(f"{out}/totals", write="overwrite"), of=totals)
    made.sink("archive", sinks.delta(f"{out}/archive"), of="archived")
    return made
"""


def test_queries_at_different_places_are_adopted_with_a_source_each(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("migrated-apart", 2)
    plain, out = example("migration/one_topic_before"), tmp_path / "plain"
    file = tmp_path / "own_sources.py"
    file.write_text(OWN_SOURCES, encoding="utf-8")
    parameters = {
        "before": str(EXAMPLES / "migration" / "one_topic_before.py"),
        "bootstrap": kafka.bootstrap,
        "topic": topic,
        "out": str(tmp_path / "tables"),
    }

    def produce(numbers: Iterable[int]) -> None:
        kafka.produce(topic, [(one["customer"], json.dumps(one)) for one in orders(numbers)])

    with conf(spark, PLAIN):
        for start, numbers in (
            (plain.start_totals, range(10)),
            (plain.start_archive, range(10, 25)),
        ):
            produce(numbers)
            read = plain.read(spark, kafka.bootstrap, topic)
            start(read, str(out), availableNow=True).awaitTermination()
    words = ["adopt", f"{file}:create", "--yes", "--store", str(tmp_path / "store")]
    words += [f"--query={name}={out / 'checkpoints' / name}" for name in ("totals", "archive")]
    words += [f"--param={key}={value}" for key, value in parameters.items()]
    adopted = CliRunner().invoke(app, words)
    assert adopted.exit_code == 0, adopted.output
    produce(range(25, 30))
    made = load(f"{file}:create", parameters, starter(spark)).pipeline
    run(made, spark, options(tmp_path, available_now=True))

    shown = table(tmp_path / "tables" / "totals", "customer", "orders", "cents")
    assert shown == totals(range(30))
    assert ids(table(tmp_path / "tables" / "archive", "id")) == list(range(25, 30))


def test_two_tables_of_a_foreach_batch_become_two_sinks_without_duplicates(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    job = Migration(spark, tmp_path, "two_tables", {"incoming": str(incoming)})
    plain, large = (
        job.before,
        {one["id"] for one in orders(range(80)) if one["cents"] > LARGE_CENTS},
    )

    def put_orders(number: int, numbers: Iterable[int]) -> None:
        put(incoming, number, map(json.dumps, orders(numbers)))

    def finish(out: Path) -> None:
        read = plain.read(spark, str(incoming))
        job.finish(lambda **trigger: plain.start(read, str(out), **trigger))

    # Before: the second write fails once, and the first table has the batch twice.
    put_orders(0, range(20))
    failing = tmp_path / "failing"
    finish(failing)
    put_orders(1, range(10, 30))
    with unwritable(failing / "large"), pytest.raises(StreamingQueryException):
        finish(failing)
    assert ids(parquet(spark, failing / "orders", "id")) == list(range(30))
    assert ids(parquet(spark, failing / "large", "id")) == sorted(large & set(range(20)))
    finish(failing)
    counts = Counter(ids(parquet(spark, failing / "orders", "id")))
    assert counts == {number: 2 if number >= 20 else 1 for number in range(30)}
    assert ids(parquet(spark, failing / "large", "id")) == sorted(large & set(range(30)))

    # Adopted: orders that the plain query has seen are not taken again.
    finish(job.plain)
    assert ids(parquet(spark, job.plain / "orders", "id")) == list(range(30))
    adopted = job.adopt("distinct=orders")
    assert adopted["queries"][0]["state_operators"] == ["dedupeWithinWatermark"]
    put_orders(2, range(20, 40))
    first = job.run()

    # After: killed with rows that no checkpoint has; each is there once.
    job.kill_in_between(lambda: put_orders(3, range(35, 50)))
    put_orders(4, range(45, 60))
    second = job.run()

    # And the failure of before: the second write fails, and the pipeline repeats only that one.
    def commit_one(running: PipelineRun) -> None:
        with unwritable(job.tables / "large") as aside:
            with pytest.raises(RunError):
                running.checkpoint(3)
            assert ids(wait_for_rows(job.tables / "orders", 40, "id")) == list(range(30, 70))
            assert ids(table(aside, "id")) == sorted(large & set(range(30, 60)))
        wait_for_rows(job.tables / "large", len(large & set(range(30, 70))), "id")

    job.kill_in_between(lambda: put_orders(5, range(55, 70)), commit_one)
    assert ids(table(job.tables / "orders", "id")) == list(range(30, 70))
    assert ids(table(job.tables / "large", "id")) == sorted(large & set(range(30, 70)))
    put_orders(6, range(65, 80))
    third = job.run()
    for checkpoint, last in ((first, 40), (second, 60), (third, 80)):
        everything = list(range(30, last))
        assert ids(job.at(checkpoint, "all_orders", "id")) == everything
        assert ids(job.at(checkpoint, "large_orders", "id")) == sorted(large & set(everything))
    assert ids(table(job.tables / "orders", "id")) == list(range(30, 80))
    assert ids(table(job.tables / "large", "id")) == sorted(large & set(range(30, 80)))
    assert large & set(range(60, 70))


def test_queries_that_are_joined_by_files_become_steps_that_are_joined_by_a_channel(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    job = Migration(spark, tmp_path, "file_chain", {"incoming": str(incoming)})
    plain, out = job.before, str(job.plain)

    def put_orders(number: int, numbers: Iterable[int]) -> None:
        put(incoming, number, ["not an order", *map(json.dumps, orders(numbers))])

    def finish_clean() -> None:
        job.finish(lambda **trigger: plain.start_clean(spark, str(incoming), out, **trigger))

    def finish_totals() -> None:
        job.finish(lambda **trigger: plain.start_totals(spark, out, **trigger))

    # Before: nothing is lost, and the second query is behind the first one.
    put_orders(0, range(20))
    finish_clean()
    finish_totals()
    put_orders(1, range(20, 30))
    finish_clean()
    assert ids(parquet(spark, job.plain / "clean", "id")) == list(range(30))
    assert parquet(spark, job.plain / "totals", "customer", "orders", "cents") == totals(range(20))
    refused = job.adopt("clean=clean", "totals=totals", code=2)
    assert "must have read all files that the query of clean has written" in refused
    assert "are left, such as" in refused

    # All files are read: adopted, and the files are not read again.
    finish_totals()
    original = trace(job.plain)
    adopted = job.adopt("clean=clean", "totals=totals")
    assert (adopted["sources"], adopted["start_empty"]) == ([], ["clean_orders"])

    # After: at every checkpoint both tables show the same orders.
    put_orders(2, range(30, 40))
    first = job.run()
    job.kill_in_between(lambda: put_orders(3, range(40, 50)))
    put_orders(4, range(50, 60))
    second = job.run()
    for checkpoint, last in ((first, 40), (second, 60)):
        assert ids(job.at(checkpoint, "clean_orders", "id")) == list(range(30, last))
        shown = job.at(checkpoint, "total_table", "customer", "orders", "cents")
        assert shown == totals(range(last))
    assert ids(table(job.tables / "clean", "id")) == list(range(30, 60))
    assert table(job.tables / "totals", "customer", "orders", "cents") == totals(range(60))
    assert trace(job.plain) == original


def test_the_page_shows_what_these_tests_run() -> None:
    shown = [text for kind, text in blocks(PAGE) if kind == "python"]

    files = {path.name: path.read_text() for path in (EXAMPLES / "migration").glob("*.py")}
    for text in shown:
        name, _, body = text.removeprefix("# ").partition("\n")
        assert body.strip() in files[name]
    assert {text.split("\n")[0].removeprefix("# ") for text in shown} == set(files)
