"""A driver from Kafka to Kafka and Delta, killed while it runs, and what is seen then.

The oracle is an independent consumer that reads the committed records of the topic from its
beginning. At every commit point both tables and the output topic must show the same prefix of every
partition of the input.
"""

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.waiting import wait_until

from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify

KILLS = 3
PARTITIONS = 3
RUN_S = 240.0
NUMBERS_PER_KILL = 4_000

Row = tuple[int, int, int]


class Writer(threading.Thread):
    """Writes transactions of 20 numbers, and aborts every third of them, until it is stopped.

    Their number is bounded: on a busy machine a driver must not have minutes to catch up with.
    """

    def __init__(self, kafka: KafkaCluster, topic: str, total: int) -> None:
        super().__init__(daemon=True)
        self._total = total
        self._over = threading.Event()
        self._topic = topic
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "writer"}
        self._producer = Producer(settings)

    def run(self) -> None:
        self._producer.init_transactions(30)
        number = 0
        while number < self._total and not self._over.wait(0.1):
            self._producer.begin_transaction()
            for value in range(number, number + 20):
                self._producer.produce(self._topic, value=str(value), partition=value % PARTITIONS)
            # What is not sent yet when a transaction is aborted would never reach the broker.
            self._producer.flush(30)
            if (number // 20) % 3 == 2:
                self._producer.abort_transaction(30)
            else:
                self._producer.commit_transaction(30)
            number += 20

    def stop(self) -> None:
        self._over.set()
        self.join(60)


def start(kafka: KafkaCluster, directory: Path, *words: str) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "tests.crash.kafka_driver"]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [*program, kafka.bootstrap, "numbers", str(directory), *words], stdout=log, stderr=log
        )


def store_of(directory: Path) -> PipelineStore:
    backend = existing_backend(directory / "store")
    return PipelineStore.of(backend, identify(backend, "totals")[1])


def commits(directory: Path) -> int:
    """Return how many commits are recorded; 0 before there is a store."""
    found = list((directory / "store").glob("pipelines/*/committed/*"))
    return len(found)


def kill_after_commits(kafka: KafkaCluster, directory: Path, seed: random.Random) -> None:
    """Kill a driver a random time after two commits of its own."""
    before = commits(directory)
    driver = start(kafka, directory)
    try:
        end_s = time.monotonic() + RUN_S
        while commits(directory) < before + 2:
            assert driver.poll() is None, (directory / "log").read_text(errors="replace")[-4000:]
            assert time.monotonic() < end_s, "no commits in time"
            time.sleep(0.05)
        time.sleep(seed.uniform(0, 0.5))
    finally:
        driver.kill()
        driver.wait(60)


def by_key(numbers: list[int]) -> list[Row]:
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(number % 7, []).append(number)
    return sorted((key, len(group), sum(group)) for key, group in groups.items())


def read_table(path: Path, version: str, *columns: str) -> list[Row]:
    rows = DeltaTable(path, version=int(version)).to_pyarrow_table().to_pylist()
    return sorted((row[columns[0]], row[columns[1]], row[columns[2]]) for row in rows)


def read_output(kafka: KafkaCluster) -> list[tuple[int, int]]:
    """Return each record of the output topic as the slot that wrote it and its number."""
    found: list[tuple[int, int]] = []
    for message in kafka.read("unique"):
        slot = dict(message.headers() or [])["cutwater-slot"]
        assert isinstance(slot, bytes)
        at = int(slot.rpartition(b"/")[2])
        found.append((at, int(json.loads(message.value() or b"")["number"])))
    return found


def check(directory: Path, expected: list[Row], output: list[tuple[int, int]]) -> None:
    """Compare every commit with the recomputation over the prefix that its table shows."""
    store = store_of(directory)
    ends: list[int] = []
    for slot in store.commits.slots():
        versions = {str(sink): at for sink, at in store.commits.read(slot).versions.items()}
        seen = sorted(number for written, number in output if written <= slot)
        if "none" in versions.values():
            assert {versions["all"], versions["totals"]} == {"none"}
            assert not seen
            continue
        tables = directory / "tables"
        rows = read_table(tables / "all", versions["all"], "partition", "offset", "number")
        counts = read_table(tables / "counts", versions["totals"], "key", "count", "sum")
        prefix = [
            record
            for partition in range(PARTITIONS)
            for record in [row for row in expected if row[0] == partition][
                : sum(row[0] == partition for row in rows)
            ]
        ]
        assert rows == prefix
        numbers = [number for _, _, number in rows]
        assert counts == by_key(numbers)
        assert seen == sorted(numbers)
        ends.append(len(rows))
    assert ends == sorted(ends)
    assert ends[-1] == len(expected)


@pytest.mark.parametrize("kills", [KILLS, pytest.param(30, marks=pytest.mark.long)])
def test_every_committed_record_is_counted_once_whatever_kills_the_driver(
    tmp_path: Path, kills: int
) -> None:
    seed = random.Random(20261118)
    with kafka_cluster() as kafka:
        kafka.make_topic("numbers", PARTITIONS)
        kafka.make_topic("unique", PARTITIONS)
        writer = Writer(kafka, "numbers", NUMBERS_PER_KILL * kills)
        writer.start()
        try:
            for _ in range(kills):
                kill_after_commits(kafka, tmp_path, seed)
        finally:
            writer.stop()
        last = start(kafka, tmp_path, "--available-now")
        try:
            assert last.wait(RUN_S) == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]
        finally:
            last.kill()
            last.wait(60)
        found = kafka.read("numbers")
        assert len(kafka.read("numbers", "read_uncommitted")) > len(found), "none was aborted"
        expected = sorted(
            (message.partition() or 0, message.offset() or 0, int(message.value() or b""))
            for message in found
        )
        check(tmp_path, expected, read_output(kafka))
        wait_until(lambda: _lag(kafka) == 0, "the group has the offsets of the last checkpoint")


def _lag(kafka: KafkaCluster) -> int:
    """Return the lag of the group, as any tool computes it."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "totals"}
    consumer = Consumer(settings)
    try:
        asked = [TopicPartition("numbers", number) for number in range(PARTITIONS)]
        committed = consumer.committed(asked, 10)
        ends = [consumer.get_watermark_offsets(partition, 10)[1] for partition in asked]
    finally:
        consumer.close()
    return sum(end - found.offset for end, found in zip(ends, committed, strict=True))
