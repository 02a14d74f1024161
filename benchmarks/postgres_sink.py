"""Rows a second into PostgreSQL: our sink, Spark's JDBC writer in a foreachBatch, one bare COPY.

The same Parquet files are streamed, one file a batch, into an empty table: by a pipeline with
`sinks.postgres` (staged by COPY, committed once a checkpoint, exactly once), by a plain query whose
foreachBatch appends with Spark's JDBC writer (batches of 10,000, reWriteBatchedInserts; a repeated
batch comes twice), and, as the most this server takes on one connection, by one COPY of the same
rows from a text file. Cases take turns. The server is a real one, on this machine, with fsync.

    python -m benchmarks.postgres_sink [--rows N] [--files N] [--jar FILE]

Spark's writer needs PostgreSQL's JDBC driver: Debian's package libpostgresql-jdbc-java has it.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psycopg
from benchmarks.measuring import (
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    rounded,
    session,
    spread,
    table,
    workspace,
)
from pyspark.sql import DataFrame, SparkSession
from tests.servers.postgres import PASSWORD, USER, Database, postgres_server

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import RunOptions

SCHEMA: Final = "id long, customer string, amount decimal(12,2), at timestamp"
ROWS: Final = (
    "id",
    "concat('customer ', id % 10007) AS customer",
    "cast(id % 100000 / 100 AS decimal(12,2)) AS amount",
    "timestamp_micros(1767225600000000 + id * 1001) AS at",
)
SMOKE: Final = {"rows": 20_000, "files": 2, "repeats": 1}


def make_files(spark: SparkSession, directory: Path, rows: int, files: int) -> None:
    spark.range(rows).selectExpr(*ROWS).repartitionByRange(files, "id").write.parquet(
        str(directory)
    )


def stream(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))


def with_sink(spark: SparkSession, given: Namespace, work: Path, database: Database) -> None:
    pipeline = Pipeline("orders")

    @pipeline.source
    def orders(spark: SparkSession) -> DataFrame:
        return stream(spark, work / "files")

    pipeline.sink("table", sinks.postgres(database.dsn, table="orders"), of=orders)
    run = pipeline.start(
        spark,
        RunOptions(
            store=work / f"store-{database.name}",
            scratch=work / f"scratch-{database.name}",
            checkpoint=CheckpointConfig(interval=given.interval),
            restart=RestartConfig(strategy="none"),
            available_now=True,
        ),
    )
    result = run.wait(None)
    assert result is not None
    assert result.finished


def with_jdbc(spark: SparkSession, given: Namespace, work: Path, database: Database) -> None:
    port = database.server.port
    url = f"jdbc:postgresql://127.0.0.1:{port}/{database.name}?reWriteBatchedInserts=true"
    properties = {
        "user": USER,
        "password": PASSWORD,
        "driver": "org.postgresql.Driver",
        "batchsize": str(given.batchsize),
    }

    def append(rows: DataFrame, _: int) -> None:
        rows.write.jdbc(url, "orders", mode="append", properties=properties)

    query = (
        stream(spark, work / "files")
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(work / f"checkpoint-{database.name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def with_copy(spark: SparkSession, given: Namespace, work: Path, database: Database) -> None:
    del spark, given
    with psycopg.connect(database.dsn) as connection:
        cursor = connection.cursor()
        with (work / "rows.text").open("rb") as file, cursor.copy("COPY orders FROM STDIN") as copy:
            while part := file.read(1 << 20):
                copy.write(part)


CASES: Final[dict[str, Callable[[SparkSession, Namespace, Path, Database], None]]] = {
    "sinks.postgres": with_sink,
    "Spark's JDBC writer": with_jdbc,
    "one COPY": with_copy,
}


def write_text(database: Database, file: Path) -> None:
    """Keep the rows of a table as the text that COPY reads."""
    with (
        psycopg.connect(database.dsn) as connection,
        file.open("wb") as out,
        connection.cursor().copy("COPY orders TO STDOUT") as copy,
    ):
        for part in copy:
            out.write(part)


def measure(given: Namespace) -> dict[str, list[float]]:
    """Return the seconds of every case, round by round."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    conf = {"spark.jars": str(given.jar)}
    made = "CREATE TABLE orders (id bigint, customer text, amount numeric(12,2), at timestamptz)"
    settings = {"fsync": "on", "max_wal_size": "4GB"}
    with (
        workspace(given) as work,
        postgres_server(settings) as server,
        session(given.master, conf) as spark,
    ):
        make_files(spark, work / "files", given.rows, given.files)
        first = server.make_database("first")
        first.query(made)
        with_sink(spark, given, work, first)
        write_text(first, work / "rows.text")
        for repeat, name in interleaved(list(CASES), given.repeats):
            database = server.make_database(f"{name} {repeat}".replace("'", ""))
            database.query(made)
            server.query("CHECKPOINT")
            began = time.perf_counter()
            CASES[name](spark, given, work, database)
            found[name].append(time.perf_counter() - began)
            (shown,) = database.query("SELECT count(*), count(DISTINCT id) FROM orders")
            assert shown == [str(given.rows)] * 2, (name, shown)
    return found


def show(given: Namespace, found: dict[str, list[float]]) -> str:
    rates = {name: spread([given.rows / one for one in took]) for name, took in found.items()}
    ours = rates["sinks.postgres"].middle
    rows = [(name, rate, rounded(ours / rate.middle)) for name, rate in rates.items()]
    return table(("", "rows/s", "ours against it"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("postgres_sink", "Measure rows a second into PostgreSQL.", repeats=5)
    parser.add_argument("--rows", type=int, default=2_000_000, help="to write (%(default)s)")
    parser.add_argument("--files", type=int, default=20, help="one a batch (%(default)s)")
    parser.add_argument("--interval", default="5s", help="of checkpoints (%(default)s)")
    parser.add_argument("--batchsize", type=int, default=10_000, help="of JDBC (%(default)s)")
    parser.add_argument(
        "--jar",
        type=Path,
        default=Path("/usr/share/java/postgresql.jar"),
        help="PostgreSQL's JDBC driver (%(default)s)",
    )
    given = parsed(parser, arguments, SMOKE)
    if not given.jar.exists():
        parser.error(f"{given.jar} is not there; install libpostgresql-jdbc-java or give --jar")
    facts = machine()
    found = measure(given)
    print(f"\n{show(given, found)}", flush=True)
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()
