"""A real Kafka broker on loopback: one node, or several, each a process in KRaft mode.

The data is in a temporary directory, and the ports are free ones that a node keeps when it starts
again. A node can be killed with SIGKILL and started on the same data, as after a crash. The broker
comes from Maven (`tests/servers/jars.py`); `kafka_cluster` skips the test where it is unavailable.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from tests.servers.jars import JarsUnavailable, broker_jars
from tests.servers.ports import free_port

from cutwater.spark.session.java import find_java

HOST = "127.0.0.1"
SCRAM = "SCRAM-SHA-512"
_DEADLINE_S = 90.0
_CALL_S = 10.0
_MARKERS_S = 10.0
_SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.coordinator.append.linger.ms": "0",
    "share.coordinator.state.topic.num.partitions": "1",
}
_JAVA = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


@dataclass
class Node:
    """One process, which is a broker and a controller."""

    directory: Path
    port: int
    ports: Mapping[str, int] = field(default_factory=dict)
    """Of further listeners, by their names."""
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def format(self, cluster: str, users: Mapping[str, str]) -> None:
        """Write the metadata of an empty node, with users and their passwords."""
        # One argument: an id may begin with a dash.
        words = ["format", f"--cluster-id={cluster}", "-c", self._properties]
        for name, password in users.items():
            words += ["--add-scram", f"{SCRAM}=[name={name},password={password}]"]
        done = subprocess.run(
            _java("kafka.tools.StorageTool", *words), capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                _java("kafka.Kafka", self._properties), stdout=log, stderr=subprocess.STDOUT
            )

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait until the process is gone."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(_DEADLINE_S)
            self.process = None

    def pause(self) -> None:
        """Let the process hang, as on a machine that is out of memory."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def _properties(self) -> str:
        return str(self.directory / "server.properties")


@dataclass
class KafkaCluster:
    """The broker as tests see it: its address, its topics, and processes that can be killed."""

    nodes: Sequence[Node]
    client: Mapping[str, str] = field(default_factory=dict)
    """Options of our own clients, such as a user name."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def address(self, listener: str) -> str:
        """Return the address of a further listener."""
        return ",".join(f"{HOST}:{node.ports[listener]}" for node in self.nodes)

    @property
    def copies(self) -> int:
        """How many copies of a topic there are."""
        return len(self.nodes)

    def start(self) -> None:
        """Start every node, and wait until all of them are in the cluster."""
        for node in self.nodes:
            if node.process is None:
                node.launch()
        self.wait_for_nodes(len(self.nodes))
        for name, topic in self.admin().list_topics(timeout=_CALL_S).topics.items():
            self._wait_for_leaders(name, len(topic.partitions))

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes answer."""
        end_s = time.monotonic() + _DEADLINE_S
        while self._answering() != count:
            for node in self.nodes:
                assert node.process is None or node.process.poll() is None, node.log[-4000:]
            assert time.monotonic() < end_s, "\n".join(node.log[-4000:] for node in self.nodes)

    def kill(self) -> None:
        """End every node with SIGKILL."""
        for node in self.nodes:
            node.end()

    def stop(self) -> None:
        """End every node in an orderly way."""
        for node in self.nodes:
            node.end(signal.SIGTERM)

    def restart(self) -> None:
        """Crash, and come back with the same data."""
        self.kill()
        self.start()

    def make_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Make a topic with a copy on every node; return its name."""
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self.copies,
            config=dict(config or {}),
        )
        admin = self.admin()  # what is pending fails when the client is collected
        admin.create_topics([topic])[name].result(_DEADLINE_S)
        self._wait_for_leaders(name, partitions)
        return name

    def admin(self) -> AdminClient:
        return AdminClient({**self.client, "bootstrap.servers": self.bootstrap, "log_level": 0})

    def produce(
        self, topic: str, rows: Sequence[tuple[str | None, str]], partition: int = -1
    ) -> None:
        """Write rows of key and value, each acknowledged by the broker."""
        errors: list[object] = []
        producer = Producer({**self.client, "bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for key, value in rows:
            producer.produce(
                topic,
                value=value.encode(),
                key=None if key is None else key.encode(),
                partition=partition,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert not producer.flush(_DEADLINE_S), "rows are still waiting for the broker"
        assert not errors, errors

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Read a topic from its beginning to its end, with a client that knows nothing of us.

        A commit returns before every partition has its marker, so readers of committed records
        first wait a while for transactions to end. One that stays open hides what follows it.
        """
        consumer = Consumer(
            {
                **self.client,
                "bootstrap.servers": self.bootstrap,
                "group.id": f"test-{uuid.uuid4()}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partitions = sorted(consumer.list_topics(topic, _DEADLINE_S).topics[topic].partitions)
            if isolation == "read_committed":
                self._wait_for_markers([TopicPartition(topic, number) for number in partitions])
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            return _messages(consumer, set(partitions))
        finally:
            consumer.close()

    def _wait_for_markers(self, partitions: Sequence[TopicPartition]) -> None:
        admin, end_s = self.admin(), time.monotonic() + _MARKERS_S
        while time.monotonic() < end_s:
            committed, written = (
                self._ends(admin, partitions, level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if committed == written:
                return
            time.sleep(0.02)

    @staticmethod
    def _ends(
        admin: AdminClient, partitions: Sequence[TopicPartition], level: IsolationLevel
    ) -> list[int]:
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = dict.fromkeys(partitions, newest)
        futures = admin.list_offsets(wanted, isolation_level=level, request_timeout=_CALL_S)
        return [int(futures[partition].result(_DEADLINE_S).offset) for partition in partitions]

    def _answering(self) -> int:
        try:
            return len(self.admin().list_topics(timeout=_CALL_S).brokers)
        except KafkaException:
            return 0

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        end_s = time.monotonic() + _DEADLINE_S
        admin = self.admin()
        while True:
            found = admin.list_topics(topic, timeout=_CALL_S).topics[topic]
            if sum(one.leader >= 0 for one in found.partitions.values()) == partitions:
                return
            assert time.monotonic() < end_s, f"no leader of {topic}"
            time.sleep(0.02)


class Extras(TypedDict, total=False):
    """What a broker with logins has in addition.

    Attributes:
        listeners: The names of further listeners, each on a port of its own.
        users: Users that log in by SCRAM, and their passwords.
    """

    listeners: Sequence[str]
    users: Mapping[str, str]


@contextmanager
def kafka_cluster(
    settings: Mapping[str, str] | None = None,
    nodes: int = 1,
    client: Mapping[str, str] | None = None,
    **extras: Unpack[Extras],
) -> Iterator[KafkaCluster]:
    """Run a broker, perhaps with other settings, and leave nothing of it; skip without its jars."""
    try:
        broker_jars()
    except JarsUnavailable as unavailable:
        pytest.skip(str(unavailable))
    directory = Path(tempfile.mkdtemp(prefix="cutwater-kafka-"))
    made = _make_nodes(directory, nodes, settings or {}, extras)
    cluster = KafkaCluster(made, client or {})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _make_nodes(
    directory: Path, count: int, settings: Mapping[str, str], extras: Extras
) -> list[Node]:
    controllers = [free_port() for _ in range(count)]
    voters = ",".join(f"{index}@{HOST}:{port}" for index, port in enumerate(controllers))
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    nodes = []
    for index, controller in enumerate(controllers):
        further = {name: free_port() for name in extras.get("listeners", ())}
        node = Node(directory / f"node{index}", free_port(), further)
        node.directory.mkdir()
        listeners = {"PLAINTEXT": node.port, **further, "CONTROLLER": controller}
        chosen = {
            "process.roles": "broker,controller",
            "node.id": str(index),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{HOST}:{at}" for name, at in listeners.items()),
            "log.dirs": str(node.directory / "data"),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": str(min(count, 2)),
            "share.coordinator.state.topic.replication.factor": str(count),
            "share.coordinator.state.topic.min.isr": "1",
            **_SETTINGS,
            **settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in chosen.items())
        (node.directory / "server.properties").write_text(text)
        node.format(cluster, extras.get("users", {}))
        nodes.append(node)
    return nodes


def _java(main: str, *words: str) -> list[str]:
    java = find_java().home / "bin" / "java"
    return [str(java), *_JAVA, "-cp", f"{broker_jars()}{os.sep}*", main, *words]


def _messages(consumer: Consumer, open_partitions: set[int]) -> list[Message]:
    found: list[Message] = []
    end_s = time.monotonic() + _DEADLINE_S
    while open_partitions:
        assert time.monotonic() < end_s, f"never read to the end of {sorted(open_partitions)}"
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
        elif error.name() == "_PARTITION_EOF":
            open_partitions.discard(message.partition() or 0)
        else:
            assert error.retriable() or error.code() < 0, error
    return found
