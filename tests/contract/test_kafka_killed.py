"""Processes that die, or stop, at every step of a commit to Kafka: every row is there once.

An independent consumer of committed records reads the topic after each story. The rows of all tests
have one key, so that their order is the order of the topic.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.contract.kafka_child import STEPS, Order, pack
from tests.contract.kafka_rows import Orders, permit, visible
from tests.servers.kafka import KafkaCluster, Node, kafka_cluster
from tests.waiting import wait_until

from cutwater.errors import SinkError, Superseded
from cutwater.protocol.cut import Committable
from cutwater.sinks.kafka.progress import Progress
from cutwater.sinks.kafka.topic import OpenKafkaTopic

ROWS = tuple(str(number) for number in range(40))
MORE = ("next", "and last")
TIMEOUT_MS = 4000
EXPIRATION_MS = 1500
IMPATIENT = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transactional.id.expiration.ms": str(EXPIRATION_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": str(EXPIRATION_MS),
    "producer.id.expiration.check.interval.ms": "200",
}
"""A broker that aborts transactions and forgets producers soon."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def impatient() -> Iterator[KafkaCluster]:
    with kafka_cluster(IMPATIENT) as cluster:
        yield cluster


@pytest.fixture
def orders(kafka: KafkaCluster, tmp_path: Path) -> Orders:
    return orders_in(kafka, tmp_path)


def orders_in(kafka: KafkaCluster, directory: Path) -> Orders:
    topic = kafka.make_topic(f"orders-{directory.name}")
    return Orders(kafka.bootstrap, topic, directory, {"progress": f"{topic}-progress"})


def order(orders: Orders, slot: int, step: str, number: int = signal.SIGKILL) -> Order:
    """Order the commit of the first batch."""
    staged = pack(orders.stage(1, *ROWS))
    place = str(orders.staging)
    return Order(orders.bootstrap, orders.topic, place, slot, staged, step, number, orders.extras)


def dies(orders: Orders, step: str) -> None:
    assert order(orders, 1, step).run() == (-signal.SIGKILL, "")


def finishes(kafka: KafkaCluster, orders: Orders) -> None:
    """Commit in a process that lives, then another slot, and check what a reader sees."""
    wait_until(lambda: order(orders, 1, "").run() == (0, "1"), "the commit")
    assert visible(kafka, orders.topic) == [*ROWS]
    orders.open().commit(permit(2), orders.stage(2, *MORE))
    assert visible(kafka, orders.topic) == [*ROWS, *MORE]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_and_repeats_nothing(
    kafka: KafkaCluster, orders: Orders, step: str
) -> None:
    dies(orders, step)

    finishes(kafka, orders)


def test_a_transaction_that_a_dead_process_left_open_delays_nothing(orders: Orders) -> None:
    dies(orders, "sent")
    start_s = time.monotonic()

    assert orders.open().newest().slot is None
    assert time.monotonic() - start_s < 30, "it waited for the timeout of 60 s"


def test_a_commit_after_an_open_transaction_of_another_sink_is_not_missed(
    kafka: KafkaCluster, orders: Orders
) -> None:
    """A reader of committed records would stop at the open transaction, and see no commit."""
    sink, staged = orders.open(), orders.stage(1, *ROWS)
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": orders.topic})
    other.init_transactions(60)
    write = sink._transactions.write

    def write_after_another(*given: Any) -> bool:  # noqa: ANN401
        other.begin_transaction()
        other.produce(f"{orders.topic}-progress", b"open", key=b"other")
        assert not other.flush(60)
        return write(*given)

    sink._transactions.write = write_after_another  # type: ignore[method-assign, assignment]
    # The transaction ends while the second process reads the progress topic.
    end = threading.Timer(5.0, other.commit_transaction)

    committing = threading.Thread(target=sink.commit, args=(permit(1), staged))
    committing.start()
    wait_until(lambda: len(visible(kafka, orders.topic)) == len(ROWS), "the first commit")
    end.start()
    orders.open().commit(permit(1), staged)
    committing.join()

    assert visible(kafka, orders.topic) == [*ROWS]


def test_a_commit_is_over_when_readers_of_committed_records_see_it(
    kafka: KafkaCluster, orders: Orders
) -> None:
    """A broker acknowledges before that; here a transaction before it hides the progress record."""
    sink, staged = orders.open(), orders.stage(1, *ROWS)
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": orders.topic})
    other.init_transactions(60)
    sink.newest()
    other.begin_transaction()
    other.produce(f"{orders.topic}-progress", b"open", key=b"other")
    assert not other.flush(60)
    sink._progress.read = Progress  # type: ignore[method-assign]

    committing = threading.Thread(target=sink.commit, args=(permit(1), staged))
    committing.start()
    wait_until(lambda: len(visible(kafka, orders.topic)) == len(ROWS), "the commit")
    committing.join(2.0)
    was_over = not committing.is_alive()
    other.commit_transaction(60)
    committing.join(60)

    assert not was_over
    assert not committing.is_alive()
    assert visible(kafka, orders.topic) == [*ROWS]


@pytest.mark.parametrize("step", ["begun", "sent"])
def test_a_second_kill_at_the_same_step_loses_and_repeats_nothing(
    kafka: KafkaCluster, orders: Orders, step: str
) -> None:
    dies(orders, step)
    dies(orders, step)

    finishes(kafka, orders)


@pytest.mark.parametrize("step", ["sent", "committing", "committed"])
def test_a_broker_that_restarts_after_a_kill_loses_and_repeats_nothing(
    kafka: KafkaCluster, orders: Orders, step: str
) -> None:
    """In an orderly way: see docs/reference/sink-kafka.md about a broker that is killed."""
    dies(orders, step)
    kafka.stop()
    kafka.start()

    finishes(kafka, orders)


@pytest.mark.long
def test_three_nodes_end_a_transaction_whichever_is_killed_as_soon_as_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    """The only copy of a partition may stay open: see docs/reference/sink-kafka.md."""
    with kafka_cluster({"default.replication.factor": "3"}, nodes=3) as cluster:
        orders = orders_in(cluster, tmp_path)
        sink, sent = orders.open(), 0
        for slot in range(1, 7):
            node = cluster.nodes[slot % 3]
            # In the place of the wait for the transaction's markers.
            sink._progress.wait_for = partial(end, node)  # type: ignore[method-assign]
            staged = orders.stage(slot, *(str(sent + number) for number in range(len(ROWS))))
            wait_until(partial(commits, sink, slot, staged), "the commit")
            assert node.process is None
            sent += len(ROWS)
            wait_until(partial(shows, cluster, orders.topic, sent), "all rows are visible")
            cluster.start()


def end(node: Node, slot: int) -> None:
    del slot
    node.end()


def shows(kafka: KafkaCluster, topic: str, count: int) -> bool:
    return visible(kafka, topic) == [str(number) for number in range(count)]


def commits(sink: OpenKafkaTopic, slot: int, staged: Sequence[Committable]) -> bool:
    """Commit as a pipeline does, which repeats what fails."""
    try:
        return sink.commit(permit(slot), staged) == str(slot)
    except SinkError:
        return False


@pytest.mark.parametrize("step", ["sent", "committed"])
def test_a_downtime_beyond_all_timeouts_loses_and_repeats_nothing(
    impatient: KafkaCluster, tmp_path: Path, step: str
) -> None:
    """The transaction is aborted by its timeout, and the transactional id is forgotten."""
    plain = orders_in(impatient, tmp_path)
    options = {"transaction.timeout.ms": str(TIMEOUT_MS)}
    orders = replace(plain, extras={**plain.extras, "options": options})
    names = {"bootstrap.servers": impatient.bootstrap, "transactional.id": f"probe {step}"}
    probe = Producer({**names, "log_level": 0})
    probe.init_transactions(60)
    dies(orders, step)

    end_s = time.monotonic() + (TIMEOUT_MS + 2 * EXPIRATION_MS) / 1000 + 1.0
    wait_until(lambda: time.monotonic() > end_s, "the end of the downtime")

    assert is_forgotten(probe, orders.topic)
    finishes(impatient, plain)


@pytest.mark.parametrize("step", ["before init", "after init", "sent"])
def test_a_process_that_wakes_up_after_its_successor_shows_nothing(
    kafka: KafkaCluster, orders: Orders, step: str
) -> None:
    with order(orders, 1, step, signal.SIGSTOP).start() as zombie:
        wait_until(lambda: is_stopped(zombie.pid), f"a process stopped at {step}")

        finishes(kafka, orders)
        os.kill(zombie.pid, signal.SIGCONT)
        told, _ = zombie.communicate(timeout=120)

    assert told.strip() == "1"
    assert visible(kafka, orders.topic) == [*ROWS, *MORE]


@pytest.mark.parametrize("step", ["before init", "sent"])
def test_a_process_that_wakes_up_with_a_slot_that_was_passed_over_is_superseded(
    kafka: KafkaCluster, orders: Orders, step: str
) -> None:
    with order(orders, 1, step, signal.SIGSTOP).start() as zombie:
        wait_until(lambda: is_stopped(zombie.pid), f"a process stopped at {step}")

        orders.open().commit(permit(2), orders.stage(2, *MORE))
        os.kill(zombie.pid, signal.SIGCONT)
        told, _ = zombie.communicate(timeout=120)

    assert told.startswith(Superseded.__name__)
    assert visible(kafka, orders.topic) == [*MORE]


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def is_forgotten(producer: Producer, topic: str) -> bool:
    """Return whether the broker no longer knows a producer that was idle."""
    producer.begin_transaction()
    producer.produce(topic, b"of a producer that is forgotten")
    try:
        producer.commit_transaction(60)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.INVALID_PRODUCER_ID_MAPPING)
    return False
