"""What Kafka costs as a source and as a sink, beside plain Spark on the same broker and records.

- source: a topic into Parquet files, by a plain query and by a pipeline (`sinks.files`);
- sink: Parquet files into a topic, by Spark's Kafka sink, which may write a record twice, and by
  `sinks.kafka`, which writes each once; both end when a consumer of committed records could read
  the last one;
- latency: a topic into a topic at a fixed rate; how long after a record was written the record made
  of it is visible to a consumer of committed records.

Every measurement is a fresh process with its own output; the cases take turns. Spark has its
defaults but for the number of shuffle partitions (`plain`), or the settings of our session
(`tuned`). The broker runs on this machine and shares its cores, with every case alike.

    python -m benchmarks.kafka [--rows N] [--batch-rows N] [--repeats N]
"""

import json
import os
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pyarrow.parquet as pq
from benchmarks.chain import drop, files, numbers, plain_session
from benchmarks.latency import quantile
from benchmarks.measuring import (
    Spread,
    in_fresh_process,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    rounded,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from benchmarks.processes import cpu_seconds
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.jars import connector_jars
from tests.servers.kafka import kafka_cluster

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import RunOptions

ENGINES: Final = ("plain", "tuned", "cutwater")
SHAPES: Final = ("source", "sink", "latency")
MODES: Final = tuple(f"{shape}-{engine}" for shape in SHAPES for engine in ENGINES)
SMOKE: Final = {"rows": 40_000, "batch_rows": 10_000, "seconds": 3.0, "repeats": 1}
PARTITIONS: Final = 4
INPUT: Final = "input"
_PIECE_S: Final = 0.02
_WARM_UP: Final = 1 / 3
"""The part of a latency run that is not counted: Java compiles."""

Running = Iterator[None]

# -- records


def record(number: int) -> bytes:
    return json.dumps({"id": number, "key": number % 1000, "amount": number * 0.5}).encode()


def read_topic(spark: SparkSession, bootstrap: str, topic: str, most: int) -> DataFrame:
    """Read the values of a topic from its beginning."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", most).load()


def fields(rows: DataFrame) -> DataFrame:
    """Parse the values of records."""
    schema = "id long, key int, amount double"
    parsed_value = F.from_json(F.col("value").cast("string"), schema).alias("row")
    return rows.select("partition", "offset", parsed_value).select("partition", "offset", "row.*")


def as_records(rows: DataFrame) -> DataFrame:
    """Make records of rows: the columns of Spark's Kafka sink."""
    value = F.to_json(F.struct("id", "key", "amount")).alias("value")
    return rows.select(F.col("key").cast("string").alias("key"), value)


def passed_on(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


# -- the three shapes, as a plain query and as a pipeline


def input_of(shape: str, topic: str) -> str:
    """Return the topic that is read: the same for all, or one for each latency run."""
    return INPUT if shape == "source" else f"{INPUT}-{topic}"


def source_of(spark: SparkSession, shape: str, topic: str, given: Namespace) -> DataFrame:
    if shape == "sink":
        return files(spark, given.input)
    return read_topic(spark, given.bootstrap, topic, given.batch_rows)


TRANSFORM: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "source": fields,
    "sink": as_records,
    "latency": passed_on,
}


@contextmanager
def plain_query(
    spark: SparkSession, shape: str, topic: str, given: Namespace, directory: Path
) -> Running:
    """Run one query with a checkpoint of its own."""
    rows = TRANSFORM[shape](source_of(spark, shape, input_of(shape, topic), given))
    if shape == "source":
        writer = rows.writeStream.format("parquet").option("path", str(directory / "table"))
    else:
        writer = rows.writeStream.format("kafka").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", given.bootstrap)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        yield
    finally:
        query.stop()


@contextmanager
def pipeline_of(
    spark: SparkSession, shape: str, topic: str, given: Namespace, directory: Path
) -> Running:
    """Run a pipeline of one source and one sink."""
    pipeline = Pipeline(topic)

    @pipeline.source
    def rows(spark: SparkSession) -> DataFrame:
        return source_of(spark, shape, input_of(shape, topic), given)

    def written(rows: DataFrame) -> DataFrame:
        return TRANSFORM[shape](rows)

    target: Any = sinks.files(str(directory / "table"))
    if shape != "source":
        staging = str(directory / "staging")
        target = sinks.kafka(given.bootstrap, topic=topic, staging=staging)
    pipeline.sink("output", target, of=written)
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval="1s" if shape == "latency" else given.interval),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline.start(spark, options)
    try:
        yield
    finally:
        run.kill()
        run.wait()


# -- measuring


def committed_end(admin: AdminClient, topic: str) -> int:
    """Return how far a consumer of committed records may read, over all partitions."""
    newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    places = {TopicPartition(topic, number): newest for number in range(PARTITIONS)}
    committed = IsolationLevel.READ_COMMITTED
    answers = admin.list_offsets(places, isolation_level=committed).values()
    return sum(int(answer.result(30).offset) for answer in answers)


def make_topics(admin: AdminClient, *names: str) -> None:
    made = admin.create_topics([NewTopic(name, num_partitions=PARTITIONS) for name in names])
    for future in made.values():
        future.result(30)


def logged(table: Path) -> set[Path]:
    """Return the files of a table by the log of Spark's file sink."""
    found: set[Path] = set()
    for batch in (table / "_spark_metadata").glob("[0-9]*"):
        lines = batch.read_text().splitlines()[1:]
        found.update(Path(json.loads(line)["path"].removeprefix("file://")) for line in lines)
    return found


def moved(table: Path) -> set[Path]:
    """Return the files of a table of `sinks.files`: they are moved there by their commit."""
    return set(table.glob("*.parquet"))


class Counting:
    """Counts the rows of visible files; each file is opened once."""

    def __init__(self, visible: Callable[[], set[Path]]) -> None:
        self._visible = visible
        self._known: dict[Path, int] = {}

    def look(self) -> int:
        for path in self._visible() - self._known.keys():
            self._known[path] = int(pq.ParquetFile(path).metadata.num_rows)
        return sum(self._known.values())


class Latencies:
    """Writes records at a rate with the time in them, and reads what becomes of them."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._bootstrap, self._topic, self._rate = bootstrap, topic, rate
        self._over = Event()
        self.samples: list[float] = []
        self.failed: list[BaseException] = []
        self._threads = [
            Thread(target=self._guard, args=(one,)) for one in (self._write, self._read)
        ]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self.failed.append(error)

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        piece = max(1, round(self._rate * _PIECE_S))
        while not self._over.wait(_PIECE_S):
            now = str(time.time()).encode()
            for number in range(piece):
                producer.produce(f"{INPUT}-{self._topic}", value=now, key=str(number))
            producer.poll(0)
        producer.flush(30)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._topic,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        consumer.assign([TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)])
        while not self._over.is_set():
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    self.samples.append(time.time() - float(message.value() or b"0"))
        consumer.close()

    @contextmanager
    def running(self) -> Iterator["Latencies"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


def follow(
    shape: str, engine: str, topic: str, given: Namespace, directory: Path
) -> dict[str, Any]:
    """Wait until a shape is through; return how long it took, or how late each record was."""
    if shape == "latency":
        with Latencies(given.bootstrap, topic, given.rate).running() as found:
            wait_for(lambda: found.samples or found.failed, "the first record was seen")
            time.sleep(given.seconds)
        if found.failed:
            raise RuntimeError("the consumer or the producer failed") from found.failed[0]
        counted = found.samples[int(len(found.samples) * _WARM_UP) :]
        if not counted:
            raise RuntimeError("no record was seen after the warm-up")
        return {"latency_s": sorted(counted)[:: max(1, len(counted) // 2000)]}
    began, cpu = time.monotonic(), cpu_seconds()
    if shape == "source":
        visible = moved if engine == "cutwater" else logged
        counting = Counting(lambda: visible(directory / "table"))
        wait_for(lambda: counting.look() >= given.rows, "all rows are in the table", poll_s=0.1)
    else:
        admin = AdminClient({"bootstrap.servers": given.bootstrap})
        wait_for(lambda: committed_end(admin, topic) >= given.rows, "all are there", poll_s=0.1)
    return {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - cpu}


def work(mode: str, given: Namespace) -> dict[str, Any]:
    """Measure one case in this process."""
    shape, _, engine = mode.partition("-")
    topic = f"out-{os.getpid()}"
    directory = given.worker.parent / topic
    directory.mkdir()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    make_topics(admin, topic, f"{INPUT}-{topic}")
    jars = {"spark.jars": ",".join(map(str, connector_jars()))}
    opened = plain_session(given.master, jars) if engine == "plain" else session(given.master, jars)
    with opened as spark:
        chosen = pipeline_of if engine == "cutwater" else plain_query
        with chosen(spark, shape, topic, given, directory):
            return follow(shape, engine, topic, given, directory)


# -- all of them


def fill(bootstrap: str, rows: int) -> None:
    """Write the records of the input topic."""
    make_topics(AdminClient({"bootstrap.servers": bootstrap}), INPUT)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(rows):
        producer.produce(INPUT, value=record(number), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(60)
    if producer.flush(60):
        raise RuntimeError("the broker did not take the input")


def run_all(given: Namespace) -> dict[str, list[dict[str, Any]]]:
    modes = [mode for mode in MODES if mode.partition("-")[0] in given.shapes.split(",")]
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with workspace(given) as directory, kafka_cluster() as kafka:
        source = directory / "input"
        source.mkdir()
        for start in range(0, given.rows, given.batch_rows):
            drop(numbers(start, given.batch_rows), source, f"n{start:012}.parquet")
        fill(kafka.bootstrap, given.rows)
        for _, mode in interleaved(modes, given.repeats):
            words = ["--mode", mode, "--input", str(source), "--master", given.master]
            words += ["--bootstrap", kafka.bootstrap]
            for option in ("rows", "batch_rows", "interval", "rate", "seconds"):
                words += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
            one = in_fresh_process("benchmarks.kafka", words, directory)
            found[mode].append(one)
            print(f"{mode}: {_told(one, given.rows)}", flush=True)
    return found


def _told(one: Mapping[str, Any], rows: int) -> str:
    if "latency_s" in one:
        return f"median {quantile(one['latency_s'], 0.5):.2f} s"
    return f"{rounded(rows / one['seconds'])} rows/s"


def show(found: Mapping[str, Sequence[Mapping[str, Any]]], rows: int) -> str:
    lines: list[tuple[object, ...]] = []
    late: list[tuple[object, ...]] = []
    for mode, runs in found.items():
        if "latency_s" in runs[0]:
            shares = (0.5, 0.99)
            late.append(
                (mode, *(spread([quantile(run["latency_s"], s) for run in runs]) for s in shares))
            )
            continue
        rate, shape = _rate(runs, rows), mode.partition("-")[0]
        ratios = [
            f"{rate.middle / _rate(found[f'{shape}-{other}'], rows).middle:.2f}"
            for other in ("plain", "tuned")
        ]
        lines.append((mode, rate, *ratios, spread([run["cpu_seconds"] for run in runs])))
    told = [table(("", "rows/s", "/plain", "/tuned", "CPU s"), lines)] if lines else []
    if late:
        told += ["\nSeconds from a record to the record made of it, visible:\n"]
        told += [table(("", "p50", "p99"), late)]
    return "\n".join(told)


def _rate(runs: Sequence[Mapping[str, Any]], rows: int) -> Spread:
    return spread([rows / run["seconds"] for run in runs])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("kafka", "Measure Kafka as a source and as a sink.", repeats=5)
    parser.add_argument("--rows", type=int, default=4_000_000, help="in all (%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=200_000, help="per batch (%(default)s)")
    parser.add_argument("--interval", default="5s", help="of checkpoints (%(default)s)")
    parser.add_argument("--rate", type=int, default=1_000, help="records/s, latency (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of latency (%(default)s)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="which (%(default)s)")
    parser.add_argument("--mode", choices=MODES, help=SUPPRESS)
    parser.add_argument("--input", type=Path, help=SUPPRESS)
    parser.add_argument("--bootstrap", help=SUPPRESS)
    parser.add_argument("--worker", type=Path, help=SUPPRESS)
    given = parsed(parser, arguments, SMOKE)
    if given.rows % given.batch_rows or given.batch_rows % 10:
        parser.error("--rows must be a multiple of --batch-rows, and that of 10")
    if given.worker is not None:
        given.worker.write_text(json.dumps(work(given.mode, given)))
        return
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found, given.rows)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
