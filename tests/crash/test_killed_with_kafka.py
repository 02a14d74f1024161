"""Drivers killed with SIGKILL while they write to Kafka and Delta: both show the same rows, once.

A consumer of committed records that knows nothing of Cutwater reads the topic; what it must show
follows from the number of rows alone.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import rows_of
from tests.crash.pipelines import PUBLISHED_KEYS
from tests.servers.kafka import KafkaCluster, kafka_cluster

RATE = 1500


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        cluster.make_topic("numbers", partitions=3)
        yield cluster


@pytest.fixture
def run(drivers: Drivers, tmp_path: Path, kafka: KafkaCluster) -> Killing:
    parameters = {
        "rate": str(RATE),
        "bootstrap": kafka.bootstrap,
        "staging": str(tmp_path / "staging"),
        "table": str(tmp_path / "tables" / "table"),
    }
    return Killing(drivers, tmp_path, "published", parameters)


def check_end(kafka: KafkaCluster, directory: Path, total: int) -> None:
    """Check every row once in both targets, and the order of each key in the topic."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for message in kafka.read("numbers"):
        found[message.key()].append(int(json.loads(message.value() or b"")["value"]))
    assert found == {
        str(part).encode(): list(range(part, total, PUBLISHED_KEYS))
        for part in range(PUBLISHED_KEYS)
    }
    table = rows_of(directory / "tables" / "table", None, "value")
    assert table == [(number,) for number in range(total)]


def test_a_topic_and_a_table_are_exact_after_kills_in_a_commit(
    run: Killing, kafka: KafkaCluster, tmp_path: Path
) -> None:
    inside = run.dies_at("inside transaction", 2)
    again = run.dies_at("inside transaction")
    recovered = run.dies_at("commit")
    total = run.finish()

    # The same decision waited for its commit through two deaths in a transaction.
    assert len(inside.cuts) > len(inside.commits)
    assert again.commits == inside.commits
    assert len(recovered.commits) >= len(again.commits)
    check_end(kafka, tmp_path, total)


def test_a_driver_paused_in_a_transaction_writes_nothing_visible_when_it_wakes(
    run: Killing, kafka: KafkaCluster, tmp_path: Path
) -> None:
    paused = run.is_paused_at("inside transaction", 2)
    total = run.finish()

    # Its records were sent and its decision was made; its successor committed them, once.
    assert len(paused.cuts) > len(paused.commits)
    check_end(kafka, tmp_path, total)


@pytest.mark.long
def test_a_topic_and_a_table_are_exact_after_kills_and_broker_restarts_at_any_time(
    run: Killing, kafka: KafkaCluster, tmp_path: Path
) -> None:
    chance = random.Random(11)

    def restart() -> None:
        kafka.stop()
        kafka.start()

    run.dies_at("fence")
    for _ in range(6):
        run.dies_after("checkpoint", chance, 2.0)
        run.dies_after("checkpoint", chance, 1.0, restart)
    run.is_paused()
    total = run.finish()

    check_end(kafka, tmp_path, total)
