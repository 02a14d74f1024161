"""The port on which Spark calls back into Python, under attack by another program on this machine.

Any user of the machine can connect to it. What such a connection sends must reach none of the
sources and sinks of a running pipeline, and must not use up the process's files. And what Python
returns to Spark must arrive, however quickly py4j forgets it.
"""

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from py4j import clientserver
from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from tests.spark.runs import DEADLINE_S, example, options, run, table, wait_until

from cutwater.run import PipelineRun
from cutwater.runtime.reporting.status import RunStatus
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.relations import Relations

GUESSES = 200
"""More than the objects that a session of all these tests has ever handed to Spark."""
SILENT = 200


@pytest.fixture(scope="module")
def running(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRun]:
    directory = tmp_path_factory.mktemp("callbacks")
    table = str(directory / "table")
    union = example("union").create(total="1000000000", rate="800", table=table)
    started = union.start(spark, options(directory))
    wait_until(started, lambda one: one.completed > 0, "a checkpoint")
    yield started
    started.kill()
    started.wait(DEADLINE_S)


@contextmanager
def connected(spark: SparkSession) -> Iterator[socket.socket]:
    """Connect to the callback port, as any program on this machine can."""
    server = spark.sparkContext._gateway._callback_server  # type: ignore[union-attr]
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as made:
        yield made


def answer(spark: SparkSession, message: str) -> bytes:
    """Send a message on a connection of its own; return what comes back until it is closed."""
    with connected(spark) as made:
        try:
            made.sendall(message.encode())
            made.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: made.recv(4096), b""))
        except OSError:
            return b""


def test_a_stranger_reaches_no_source_and_no_sink_by_guessing(
    spark: SparkSession, running: PipelineRun
) -> None:
    before = running.status()
    messages = (
        "c\np{}\naddBatch\ni0\nn\ne\n",
        "c\np{}\nstop\ne\n",
        "c\np{}\ntoString\ne\n",
        "g\np{}\ne\n",
    )

    answers = {
        answer(spark, message.format(number)) for message in messages for number in range(GUESSES)
    }

    assert answers == {b""}
    _goes_on(running, before)


def _goes_on(running: PipelineRun, before: RunStatus) -> None:
    """See two more checkpoints in the same generation."""
    after = wait_until(running, lambda one: one.completed >= before.completed + 2, "more of them")
    assert (after.state, after.generation, after.restarts) == ("RUNNING", before.generation, 0)


class Listening(StreamingQueryListener):
    """A listener of the user's own."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802
        self.ended.set()


def test_what_spark_itself_calls_back_is_called(spark: SparkSession, tmp_path: Path) -> None:
    counted, listening = [], Listening()
    spark.streams.addListener(listening)
    spark.range(7).write.parquet(str(tmp_path / "rows"))
    try:
        frame = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
        writer = frame.writeStream.foreachBatch(lambda rows, _: counted.append(rows.count()))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(int(DEADLINE_S))
        assert listening.ended.wait(DEADLINE_S)
    finally:
        spark.streams.removeListener(listening)

    assert counted == [7]


def test_silent_connections_do_not_use_up_the_files_of_the_process(
    spark: SparkSession, running: PipelineRun
) -> None:
    before, opened = running.status(), _open_files()
    with ExitStack() as held:
        for _ in range(SILENT):
            held.enter_context(connected(spark))
        _goes_on(running, before)
        accepted = _open_files() - opened - SILENT

    assert accepted < SILENT / 2


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


class Forgotten:
    """A task of py4j's finalizer: done when all tasks before it are done."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def garbage_collect_object(self, target_id: str, enqueue: bool) -> None:  # noqa: ARG002
        self.done.set()


@pytest.fixture
def late_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Send an answer to the JVM only when the JVM has forgotten all that Python no longer holds."""
    call_proxy = ClientServerConnection._call_proxy

    def call_late(connection: ClientServerConnection, name: str, stream: object) -> str:
        message: str = call_proxy(connection, name, stream)
        # Java objects are parts of cycles, which Python frees at any time.
        gc.collect()
        forgotten = Forgotten()
        connection.java_client.finalizer_deque.appendleft((forgotten, ""))
        assert forgotten.done.wait(DEADLINE_S)
        return message

    monkeypatch.setattr(clientserver, "DEFAULT_WORKER_SLEEP_TIME", 0.001)
    monkeypatch.setattr(ClientServerConnection, "_call_proxy", call_late)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("late_answers")
def test_a_relation_that_python_returns_arrives(spark: SparkSession) -> None:
    rows = {"orders": spark.range(3), "lines": spark.range(2)}

    found = Relations(Internals(spark)).query(
        "SELECT * FROM orders UNION ALL SELECT * FROM lines", lambda name, _: rows[name[0]]
    )

    assert found is not None
    assert found.count() == 5


@pytest.mark.usefixtures("late_answers")
def test_offsets_and_batches_that_python_returns_arrive(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "table")
    union = example("union").create(total="600", rate="2000", table=target)

    result = run(union, spark, options(tmp_path))

    assert result.restarts == 0
    assert len(table(tmp_path / "table", "channel")) == 900
