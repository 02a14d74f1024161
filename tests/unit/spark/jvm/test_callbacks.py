"""The port on which the JVM calls Python, without a JVM: the test is the JVM, or is not."""

import logging
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
from py4j import clientserver
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from tests.waiting import DEADLINE_S, wait_until

from cutwater.spark.jvm import callbacks
from cutwater.spark.jvm.callbacks import secure


class Answering:
    """An object that Java may call."""

    calls = 0

    def call(self) -> str:
        self.calls += 1
        return "called"

    class Java:
        implements = ("java.util.concurrent.Callable",)


@pytest.fixture
def gateway() -> Iterator[ClientServer]:
    with secured() as made:
        yield made


@contextmanager
def secured() -> Iterator[ClientServer]:
    python = PythonParameters(
        port=0, eager_load=False, daemonize=True, daemonize_connections=True, accept_timeout=0.05
    )
    # Nothing listens there: no test calls Java.
    made = ClientServer(JavaParameters(port=1), python)
    secure(made)
    before = set(threading.enumerate())
    made.start_callback_server(python)
    wait_until(lambda: listens(made), "it listens")
    # The server's end of that connection has a thread and a file descriptor for a moment longer.
    wait_until(lambda: len({*threading.enumerate()} - before) == 1, "only the listener is left")
    yield made
    made.shutdown_callback_server()


def listens(gateway: ClientServer) -> bool:
    try:
        with connected(gateway):
            return True
    except ConnectionRefusedError:
        return False


@contextmanager
def connected(gateway: ClientServer) -> Iterator[socket.socket]:
    port = gateway._callback_server.get_listening_port()
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as made:
        yield made


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_refused(gateway: ClientServer) -> bool:
    """Connect; the server may reset the connection before `connect` has returned."""
    try:
        with connected(gateway) as connection:
            return is_closed(connection)
    except ConnectionResetError:
        return True


def test_ids_are_secret_from_the_first_object_on_and_stay_so(gateway: ClientServer) -> None:
    first = gateway.gateway_property.pool.put(Answering())
    secure(gateway)
    second = gateway.gateway_property.pool.put(Answering())

    assert 1 << 127 <= int(first[1:]) < 1 << 128
    assert int(second[1:]) == int(first[1:]) + 1


def test_a_connection_that_knows_an_object_calls_it_and_goes_on(gateway: ClientServer) -> None:
    answering = Answering()
    known = gateway.gateway_property.pool.put(answering)
    with connected(gateway) as jvm:
        for _ in range(2):
            jvm.sendall(f"c\n{known}\ncall\ne\n".encode())
            assert jvm.recv(64) == b"!yscalled\n"
        jvm.sendall(f"g\n{known}\ne\n".encode())
        assert jvm.recv(64) == b"!y\n"

    assert answering.calls == 2
    assert known not in gateway.gateway_property.pool


def test_a_message_that_comes_in_pieces_is_waited_for(gateway: ClientServer) -> None:
    known = gateway.gateway_property.pool.put(Answering())
    with connected(gateway) as jvm:
        for piece in ("c", "\n", known[:9], known[9:], "\nca", "ll\ne\n"):
            jvm.sendall(piece.encode())
        assert jvm.recv(64) == b"!yscalled\n"


@pytest.mark.parametrize(
    "message",
    ["c\np0\ncall\ne\n", "g\np0\ne\n", "A\nsecret\ne\n", "\n\n", "c\n" + "p" * 300, "é\n\xff\n"],
)
def test_a_connection_that_knows_no_object_is_closed_and_logged_once(
    gateway: ClientServer, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    answering = Answering()
    gateway.gateway_property.pool.put(answering)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with connected(gateway) as stranger:
                stranger.sendall(message.encode())
                assert is_closed(stranger)

    assert answering.calls == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) <= 1
    assert all("another program on this machine" in text for text in said)


def test_a_command_that_there_is_not_is_refused_even_on_an_object(gateway: ClientServer) -> None:
    known = gateway.gateway_property.pool.put(Answering())
    with connected(gateway) as stranger:
        stranger.sendall(f"x\n{known}\ne\n".encode())
        assert is_closed(stranger)


def test_silent_connections_are_few_and_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_FIRST_MESSAGE_S", 0.2)
    monkeypatch.setattr(callbacks, "_UNPROVEN_MAX", 3)
    with secured() as gateway, ExitStack() as held:
        known = gateway.gateway_property.pool.put(Answering())
        silent = [held.enter_context(connected(gateway)) for _ in range(6)]
        with connected(gateway) as jvm:
            jvm.sendall(f"c\n{known}\ncall\ne\n".encode())
            assert jvm.recv(64) == b"!yscalled\n"
        assert all(is_closed(socket) for socket in silent)


def test_a_lack_of_file_descriptors_is_waited_out(
    gateway: ClientServer, caplog: pytest.LogCaptureFixture
) -> None:
    message = f"c\n{gateway.gateway_property.pool.put(Answering())}\ncall\ne\n".encode()
    port = gateway._callback_server.get_listening_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        # Several: a thread of an earlier test may free a descriptor, and one is accepted after all.
        clients = [held.enter_context(socket.socket()) for _ in range(10)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 1, hard))
        try:
            with ExitStack() as taken:
                for jvm in clients:
                    take_all_descriptors(taken)
                    jvm.settimeout(DEADLINE_S)
                    jvm.connect(("127.0.0.1", port))
                    jvm.sendall(message)
                    wait_until(partial(is_known, jvm, caplog), "it is accepted, or cannot be")
                    if not has_answer(jvm):
                        break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "Too many open files" in caplog.text
        assert jvm.recv(64) == b"!yscalled\n"


def take_all_descriptors(held: ExitStack) -> None:
    """Open as many as may be open, so that a connection cannot be accepted."""
    with suppress(OSError):
        while True:
            held.enter_context(socket.socket())


def is_known(connection: socket.socket, caplog: pytest.LogCaptureFixture) -> bool:
    """Say whether a connection was accepted, or could not be for lack of descriptors."""
    return "Too many open files" in caplog.text or has_answer(connection)


def has_answer(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_connections_without_a_thread_do_not_use_up_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callbacks, "_UNPROVEN_MAX", 3)
    with secured() as gateway:
        known = gateway.gateway_property.pool.put(Answering())
        with monkeypatch.context() as starved:
            # As threading fails where the system has no thread left.
            starved.setattr(clientserver, "Thread", _NoThread)
            assert all(is_refused(gateway) for _ in range(4))
        with connected(gateway) as jvm:
            jvm.sendall(f"c\n{known}\ncall\ne\n".encode())
            assert jvm.recv(64) == b"!yscalled\n"


class _NoThread:
    daemon = True

    def __init__(self, target: object) -> None:
        del target

    def start(self) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)
