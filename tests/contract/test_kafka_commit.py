"""A Kafka sink's decisions, on a real broker and without Spark: committing, repeating, refusing.

A consumer that knows nothing of Cutwater says what a reader of committed records sees.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.contract.kafka_rows import PIPELINE, SINK, Orders, permit, values, visible
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.waiting import wait_until

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import Slot
from cutwater.protocol.cut import Committable
from cutwater.protocol.lost_commit import Found, Recorded
from cutwater.sinks.kafka.progress import Progress
from cutwater.sinks.kafka.records import Run, read_runs
from cutwater.sinks.kafka.settings import KafkaSettings
from cutwater.sinks.kafka.target import KafkaExtras
from cutwater.sinks.kafka.topic import OpenKafkaTopic
from cutwater.sinks.kafka.transactions import Conclude, Transactions
from cutwater.sinks.lost_commits import behind
from cutwater.sinks.registry import reopen


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture
def orders(kafka: KafkaCluster, tmp_path: Path) -> Orders:
    topic = kafka.make_topic(f"orders-{os.path.basename(tmp_path)}")  # noqa: PTH119
    return Orders(kafka.bootstrap, topic, tmp_path, {"progress": f"{topic}-progress"})


def test_a_slot_is_written_once_however_often_it_is_committed(
    kafka: KafkaCluster, orders: Orders
) -> None:
    first, second = orders.stage(1, "1", "2", "3"), orders.stage(2, "4")
    sink = orders.open()

    versions = [sink.commit(permit(1), first), sink.commit(permit(1), first)]
    versions.append(sink.commit(permit(3), second))
    versions.append(orders.open().commit(permit(1), first))
    versions.append(orders.open().commit(permit(3), second))

    assert versions == ["1", "1", "3", "1", "3"]
    assert visible(kafka, orders.topic) == ["1", "2", "3", "4"]
    assert sink.newest().slot == 3


def test_a_slot_that_was_never_committed_is_refused_after_a_later_one(orders: Orders) -> None:
    sink = orders.open()
    sink.commit(permit(5), orders.stage(1, "1"))

    with pytest.raises(Superseded):
        orders.open().commit(permit(4), orders.stage(2, "2"))


def test_rows_keep_their_order_in_and_across_batches(kafka: KafkaCluster, orders: Orders) -> None:
    rows = [str(number) for number in range(5000)]

    orders.open().commit(
        permit(1), (*orders.stage(1, *rows[:3000]), *orders.stage(2, *rows[3000:]))
    )

    assert visible(kafka, orders.topic) == rows


def test_a_commit_that_takes_too_long_is_split_and_resumed(
    kafka: KafkaCluster, orders: Orders
) -> None:
    rows = [str(number) for number in range(5)]
    staged = orders.stage(1, *rows)
    sink = orders.open()
    sink._budget_s = 0.0

    sink.commit(permit(1), staged)

    assert visible(kafka, orders.topic) == rows
    parts = values(kafka.read(f"{orders.topic}-progress"))
    assert len(parts) == 6
    assert '"partial": [1, 3]' in parts[2]
    assert orders.open().look_back(None).rows == 5


def test_the_time_of_a_part_starts_with_its_first_row(kafka: KafkaCluster, orders: Orders) -> None:
    """A commit of many parts reads over what is written, which takes longer with every part."""
    writer = Transactions(KafkaSettings(kafka.bootstrap), "slow-reader", SINK)
    writer.fence()

    def read_slowly() -> Iterator[Run]:
        time.sleep(0.5)
        yield Run(orders.topic, [{"value": str(number).encode()} for number in range(9)], True)

    end = Run(orders.topic, [{"value": b"end"}], True)
    is_all = writer.write(read_slowly(), lambda *_: end, 0.4)

    assert is_all
    assert visible(kafka, orders.topic) == [*map(str, range(9)), "end"]


def test_a_part_that_the_broker_has_no_time_for_is_followed_by_smaller_ones(
    tmp_path: Path,
) -> None:
    with kafka_cluster() as broker:
        options = {"transaction.timeout.ms": "4000"}
        extras: KafkaExtras = {"progress": "progress", "options": options}
        orders = Orders(broker.bootstrap, broker.make_topic("orders"), tmp_path, extras)
        rows = [str(number) for number in range(400)]
        staged = orders.stage(1, *rows)
        sink = orders.open()
        assert sink.newest().slot is None
        broker.nodes[0].pause()
        try:
            with pytest.raises(SinkError, match=r"400 records did not fit .* half as many"):
                sink._transactions.write(
                    read_runs(sink._files(staged)),
                    partial(sink._conclude, Progress(), permit(1)),
                    9,
                )
        finally:
            broker.nodes[0].resume()

        wait_until(lambda: commits(sink, 1, staged), "the commit")

        assert visible(broker, "orders") == rows
        assert '"partial": [1, 200]' in values(broker.read("progress"))[0]


def test_a_restore_is_refused_if_a_process_that_was_replaced_has_written_meanwhile(
    kafka: KafkaCluster, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, rewinding = orders.open(), orders.open()
    staged = orders.stage(1, "1")
    write = rewinding._transactions.write

    def wake_the_other(runs: Iterator[Run], conclude: Conclude, budget_s: float) -> bool:
        monkeypatch.setattr(rewinding._transactions, "write", write)
        paused.commit(permit(1), staged)
        return write(runs, conclude, budget_s)

    monkeypatch.setattr(rewinding._transactions, "write", wake_the_other)
    with pytest.raises(SinkError, match="cannot remove the 1 records"):
        rewinding.restore(permit(2), None)

    assert visible(kafka, orders.topic) == ["1"]


def test_rows_keep_their_order_when_the_queue_of_the_producer_is_full(
    kafka: KafkaCluster, orders: Orders
) -> None:
    rows = [str(number) for number in range(2500)]
    small = _with_options(orders, {"queue.buffering.max.messages": "100"})

    small.open().commit(permit(1), orders.stage(1, *rows))

    assert visible(kafka, orders.topic) == rows


def test_a_record_that_the_producer_refuses_is_named_and_none_is_written(
    kafka: KafkaCluster, orders: Orders
) -> None:
    limited = _with_options(orders, {"message.max.bytes": "1000"})
    rows = ["1", "2", "3", "x" * 2000, *map(str, range(4, 40))]

    with pytest.raises(SinkError, match=f"topic {orders.topic}: a record is too large"):
        limited.open().commit(permit(1), orders.stage(1, *rows))

    assert visible(kafka, orders.topic) == []
    orders.open().commit(permit(1), orders.stage(2, *rows))
    assert visible(kafka, orders.topic) == rows


def _with_options(orders: Orders, options: dict[str, str]) -> Orders:
    return replace(orders, extras={**orders.extras, "options": options})


def test_two_processes_that_commit_at_once_write_once(kafka: KafkaCluster, orders: Orders) -> None:
    staged = orders.stage(1, *[str(number) for number in range(300)])
    failures: list[Exception] = []

    def commit() -> None:
        sink = orders.open()
        for _ in range(20):
            try:
                sink.commit(permit(1), staged)
            except SinkError as error:
                failures.append(error)
            else:
                return

    threads = [threading.Thread(target=commit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(visible(kafka, orders.topic)) == 300, failures
    assert orders.open().newest().slot == 1


def test_a_rewind_past_rows_is_refused_with_their_number(orders: Orders) -> None:
    sink = orders.open()
    sink.commit(permit(1), orders.stage(1, "1"))
    sink.commit(permit(4), orders.stage(2, "2", "3"))

    preview = sink.look_back("2")

    assert (preview.rows, preview.rows_then) == (3, 1)
    assert "Kafka cannot remove the 2 records" in str(preview.obstacle)
    assert "--leave-sinks" in str(preview.obstacle)
    assert sink.look_back("4").obstacle is None
    with pytest.raises(SinkError, match="cannot remove"):
        sink.restore(permit(6), "2")
    assert sink.restore(permit(6), "5") == "6"
    assert sink.restore(permit(6), "5") == "6"
    assert orders.open().newest().slot == 6


def test_a_look_at_a_sink_does_not_disturb_a_commit(kafka: KafkaCluster, orders: Orders) -> None:
    """A preview runs beside the pipeline; `init_transactions` would abort what the latter does."""
    orders.open().commit(permit(1), orders.stage(1, "1"))
    name = {"transactional.id": f"cutwater.{PIPELINE}.{SINK}"}
    running = Producer({"bootstrap.servers": kafka.bootstrap, **name})
    running.init_transactions(60)
    running.begin_transaction()
    running.produce(orders.topic, b"2")
    assert not running.flush(60)

    looking = reopen(orders.target().stored(), PIPELINE, SINK)
    lost = [
        behind(looking, Recorded(Slot(slot), str(slot)), unnoticed=True) is not None
        for slot in (1, 2)
    ]
    preview = looking.look_back("1")

    assert lost == [False, True]
    assert (preview.rows, preview.obstacle) == (1, None)
    running.commit_transaction(60)
    assert visible(kafka, orders.topic) == ["1", "2"]


def test_a_look_at_a_sink_creates_nothing(kafka: KafkaCluster, orders: Orders) -> None:
    looking = reopen(orders.target().stored(), PIPELINE, SINK)

    assert looking.look_back(None).rows == 0
    assert behind(looking, Recorded(Slot(1), "1"), unnoticed=True) == Found(None, "0")
    assert f"{orders.topic}-progress" not in kafka.admin().list_topics(timeout=60).topics


def test_errors_name_the_topic_and_the_reason(kafka: KafkaCluster, orders: Orders) -> None:
    sink = orders.open()
    small = kafka.make_topic(f"{orders.topic}-small", config={"max.message.bytes": "1000"})

    with pytest.raises(SinkError, match="there is no topic absent"):
        sink.commit(permit(1), orders.stage(1, "1", topic="absent"))
    with pytest.raises(SinkError, match=f"topic {small}, partition 0: a record is too large"):
        sink.commit(permit(1), orders.stage(2, "x" * 2000, topic=small))
    with pytest.raises(
        ConfigError, match="there is no topic absent, or these credentials may not see it"
    ):
        Orders(orders.bootstrap, "absent", orders.staging).open()
    assert sink.commit(permit(1), orders.stage(3, "1")) == "1"
    assert visible(kafka, orders.topic) == ["1"]


def test_each_record_names_its_slot_on_request(kafka: KafkaCluster, orders: Orders) -> None:
    marked = replace(orders, extras={**orders.extras, "slot_header": True})

    marked.open().commit(permit(7), orders.stage(1, "1"))

    (message,) = kafka.read(orders.topic)
    assert message.headers() == [("cutwater-slot", f"{PIPELINE}/{SINK}/7".encode())]


def test_a_stored_target_is_opened_without_the_users_file(
    kafka: KafkaCluster, orders: Orders
) -> None:
    staged = orders.stage(1, "1")

    opened = reopen(orders.target().stored(), PIPELINE, SINK)

    assert opened.commit(permit(1), staged) == "1"
    assert visible(kafka, orders.topic) == ["1"]


def test_a_progress_topic_that_would_forget_is_refused(kafka: KafkaCluster, orders: Orders) -> None:
    name = kafka.make_topic(f"{orders.topic}-forgetful")

    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete, and would forget"):
        Orders(orders.bootstrap, orders.topic, orders.staging, {"progress": name}).open()


def test_a_broker_that_is_down_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    with kafka_cluster() as broker:
        orders = Orders(broker.bootstrap, broker.make_topic("orders"), tmp_path)
        sink = orders.open()
        sink.commit(permit(1), orders.stage(1, "1"))
        staged = orders.stage(2, "2")
        broker.stop()

        with pytest.raises(SinkError):
            sink.commit(permit(2), staged)
        broker.start()

        wait_until(lambda: commits(sink, 2, staged), "the commit")
        assert visible(broker, "orders") == ["1", "2"]


def commits(sink: OpenKafkaTopic, slot: int, staged: Sequence[Committable]) -> bool:
    """Commit as a pipeline does, which repeats what fails."""
    try:
        return sink.commit(permit(slot), staged) == str(slot)
    except SinkError:
        return False


def test_a_target_shows_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "do-not-show")
    options = {"sasl.username": "shop", "sasl.password": "env:KAFKA_PASSWORD"}

    target = sinks.kafka("b:9092", topic="t", staging=str(tmp_path), options=options)

    assert "do-not-show" not in f"{target!r} {target.describe()} {target.stored()}"
    with pytest.raises(ConfigError, match="write env:NAME"):
        sinks.kafka("b:9092", topic="t", staging=".", options={"sasl.password": "do-not-show"})
