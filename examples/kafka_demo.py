"""`make kafka`: run `kafka_orders` on a real broker, kill it during a commit, resume, compare.

The broker is one process on this machine, fetched with Maven. The pipeline runs in its own process,
which gets SIGKILL while the transaction of a commit is open. A second process resumes it. In the
end a consumer that reads committed records, and the Delta table, are compared row by row with a
join of the input that is computed here, without Spark.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from deltalake import DeltaTable
from rich.console import Console
from tests.servers.jars import JarsUnavailable, broker_jars, connector_jars
from tests.servers.kafka import KafkaCluster, kafka_cluster

HERE = Path(__file__).parent
CONSOLE = Console()
CUSTOMERS = 50
PARTITIONS = 2
DEADLINE_S = 300.0

Row = tuple[int, str, int]


def name_of(customer: int) -> str:
    return f"customer {customer}"


def order(number: int) -> dict[str, int]:
    return {"id": number, "customer": number * 7 % CUSTOMERS, "cents": number * 31 % 10_000}


def expected(total: int) -> Counter[Row]:
    """Join orders and customers as a user of the pipeline would expect, without Spark."""
    rows = (order(number) for number in range(total))
    return Counter((row["id"], name_of(row["customer"]), row["cents"]) for row in rows)


def produce(kafka: KafkaCluster, total: int, rate: int) -> None:
    """Write customers at once and orders at a rate, in many small pieces."""
    named = [{"customer": number, "name": name_of(number)} for number in range(CUSTOMERS)]
    kafka.produce("customers", [(str(row["customer"]), json.dumps(row)) for row in named])
    piece = max(1, rate // 5)
    for start in range(0, total, piece):
        rows = [order(number) for number in range(start, min(total, start + piece))]
        kafka.produce("orders", [(str(row["id"]), json.dumps(row)) for row in rows])
        time.sleep(piece / rate)


def start(kafka: KafkaCluster, out: Path) -> "subprocess.Popen[bytes]":
    """Start the pipeline, as typed in a shell."""
    jars = ",".join(map(str, connector_jars()))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "cutwater.cli.main", "run"),
            *(f"{HERE / 'kafka_orders.py'}:create", "--store", str(out / "store")),
            *("--interval", "2s", "--master", "local[2]", "--conf", f"spark.jars={jars}"),
            *("--param", f"bootstrap={kafka.bootstrap}", "--param", f"out={out}"),
        ]
    )


def end_of(admin: AdminClient, isolation: IsolationLevel) -> int:
    """Return how far the output topic reaches, over all partitions."""
    places = {
        TopicPartition("enriched", number): OffsetSpec.latest() for number in range(PARTITIONS)
    }
    answers = admin.list_offsets(places, isolation_level=isolation).values()
    return sum(int(answer.result(30).offset) for answer in answers)


def is_committing(admin: AdminClient) -> bool:
    """Return whether the output topic has records of an open transaction, after some committed."""
    committed = end_of(admin, IsolationLevel.READ_COMMITTED)
    return 0 < committed < end_of(admin, IsolationLevel.READ_UNCOMMITTED)


def wait_until(
    condition: Callable[[], bool], what: str, process: "subprocess.Popen[bytes]"
) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if process.poll() is not None:
            sys.exit(f"The pipeline ended with code {process.returncode} before {what}; see above.")
        if time.monotonic() > deadline:
            sys.exit(f"Not within {DEADLINE_S:.0f} s: {what}.")
        time.sleep(0.01)


def read_topic(kafka: KafkaCluster) -> Counter[Row]:
    """Return the records that a consumer of committed records sees."""
    values = (json.loads(message.value() or b"{}") for message in kafka.read("enriched"))
    return Counter((row["id"], row["name"], row["cents"]) for row in values)


def read_table(out: Path) -> Counter[Row]:
    """Return the rows of the Delta table."""
    rows = DeltaTable(out / "enriched").to_pyarrow_table().to_pylist()
    return Counter((row["id"], row["name"], row["cents"]) for row in rows)


def compare(found: Counter[Row], truth: Counter[Row], what: str) -> bool:
    missing, surplus = (truth - found).total(), (found - truth).total()
    verdict = "same" if not missing and not surplus else "[red]DIFFERENT[/]"
    counts = f"{found.total():,} rows, {missing:,} missing, {surplus:,} too many"
    CONSOLE.print(f"{what}: {counts}: {verdict}")
    return not missing and not surplus


def run(kafka: KafkaCluster, out: Path, arguments: argparse.Namespace) -> bool:
    for topic in ("orders", "customers", "enriched"):
        kafka.make_topic(topic, PARTITIONS)
    writer = threading.Thread(
        target=produce, args=(kafka, arguments.total, arguments.rate), daemon=True
    )
    writer.start()
    admin = kafka.admin()
    CONSOLE.rule("1. Orders and customers become a topic and a table, a checkpoint every 2 s")
    process = start(kafka, out)
    try:
        wait_until(lambda: is_committing(admin), "a commit to Kafka", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        CONSOLE.rule("2. Killed with SIGKILL while a transaction was open. A new process resumes")
        process = start(kafka, out)
        writer.join()
        truth = expected(arguments.total)
        wait_until(
            lambda: (
                len(kafka.read("enriched")) >= arguments.total
                and read_table(out).total() >= arguments.total
            ),
            "all rows are in both outputs",
            process,
        )
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    CONSOLE.rule("3. Both outputs, compared with a recomputation")
    same = [
        compare(read_topic(kafka), truth, "topic enriched, read_committed"),
        compare(read_table(out), truth, "table enriched"),
    ]
    return all(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--total", type=int, default=20_000, help="orders (%(default)s)")
    parser.add_argument("--rate", type=int, default=800, help="orders a second (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/kafka"), help="(%(default)s)")
    arguments = parser.parse_args()
    try:
        broker_jars()
    except JarsUnavailable as error:
        sys.exit(f"A broker is needed, and Maven cannot fetch it: {error}")
    out = arguments.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with kafka_cluster() as kafka:
        same = run(kafka, out, arguments)
    if not same:
        sys.exit("The outputs differ from the recomputation.")
    CONSOLE.print("Every row is in both outputs exactly once.")


if __name__ == "__main__":
    main()
