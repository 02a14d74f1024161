"""Connections that say nothing, or little by little, or do not read: they cost the run nothing."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.cli.command import command, environment
from tests.cli.offline_store import OfflineStore
from tests.waiting import DEADLINE_S, wait_until

from cutwater.server.app import make_app
from cutwater.server.auth import Token
from cutwater.server.connections import Limits
from cutwater.server.pipelines import StoredPipelines
from cutwater.server.uvicorn_server import Endpoint, Server, bind

FILES = 96
SILENT = 150
ASK = b"GET /jobs/overview HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def stored(tmp_path: Path) -> OfflineStore:
    made = OfflineStore(tmp_path / "store")
    made.writer.decide(1)
    return made


@contextmanager
def serving(stored: OfflineStore, limits: Limits) -> Iterator[tuple[str, int]]:
    token = Token.of(stored.directory.parent)
    app = make_app(StoredPipelines(stored.backend), token, "127.0.0.1")
    listening = bind(Endpoint(port=0))
    server = Server(app, listening, "127.0.0.1", limits)
    server.start()
    try:
        yield listening.getsockname()
    finally:
        server.stop()


def connect(held: ExitStack, where: tuple[str, int]) -> socket.socket:
    return held.enter_context(socket.create_connection(where, DEADLINE_S))


def closed(connection: socket.socket) -> bool:
    """Wait until a connection is closed by the other side, whatever it says before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def answered(connection: socket.socket) -> bytes:
    connection.sendall(ASK)
    return connection.recv(12)


def test_silent_connections_use_up_neither_the_files_of_the_process_nor_its_answers(
    stored: OfflineStore,
) -> None:
    words = command("ui", str(stored.directory), "--listen", "0", "--output", "json")
    ui = subprocess.Popen(
        ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert ui.stdout is not None
        url = httpx.URL(json.loads(ui.stdout.readline())["url"])
        with ExitStack() as held:
            for _ in range(SILENT):
                connect(held, (url.host, url.port or 0))
            for _ in range(5):
                answer = httpx.get(f"{url}jobs/overview", timeout=DEADLINE_S)
                assert (answer.status_code, len(answer.json()["jobs"])) == (200, 1)
            wait_until(lambda: open_files(ui.pid) < FILES / 2, "few files are open")
    finally:
        ui.send_signal(signal.SIGINT)
        _, errors = ui.communicate(timeout=DEADLINE_S)

    assert (ui.returncode, errors) == (0, "")


def open_files(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def test_a_connection_without_a_complete_request_is_closed_in_time(stored: OfflineStore) -> None:
    with serving(stored, Limits(8, request_s=0.3)) as where, ExitStack() as held:
        silent, part, body, idle = (connect(held, where) for _ in range(4))
        part.sendall(ASK[:20])
        body.sendall(ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n{"))
        assert answered(idle) == b"HTTP/1.1 200"

        assert all(closed(socket) for socket in (silent, part, body, idle))


def test_a_request_in_many_pieces_does_not_gain_time_by_each(stored: OfflineStore) -> None:
    with serving(stored, Limits(8, request_s=0.3)) as where, ExitStack() as held:
        slow = connect(held, where)
        slow.settimeout(0.05)
        sent = send_slowly(slow, ASK[:18] + b"x" * 10_000)

        assert 1 < sent < 10_000


def send_slowly(connection: socket.socket, message: bytes) -> int:
    """Send a byte at a time until the other side closes; return how many were sent."""
    for sent, byte in enumerate(message):
        try:
            connection.sendall(bytes([byte]))
            if connection.recv(1) == b"":
                return sent
        except TimeoutError:
            continue
        except OSError:
            return sent
    return len(message)


def test_a_client_that_does_not_read_its_answers_is_closed_in_time(stored: OfflineStore) -> None:
    with serving(stored, Limits(8, request_s=0.3)) as where, ExitStack() as held:
        deaf = connect(held, where)
        with pytest.raises(OSError, match=r"[Rr]eset|[Bb]roken pipe"):
            send_for_ever(deaf, ASK.replace(b"jobs/overview", b"openapi.json"))


def send_for_ever(connection: socket.socket, message: bytes) -> None:
    while True:
        connection.sendall(message)


def test_one_more_takes_the_place_of_the_one_that_has_been_silent_longest(
    stored: OfflineStore,
) -> None:
    with serving(stored, Limits(3, request_s=DEADLINE_S)) as where, ExitStack() as held:
        first, second, third = (connect(held, where) for _ in range(3))
        assert [answered(socket) for socket in (first, second, third)] == [b"HTTP/1.1 200"] * 3
        fourth = connect(held, where)

        assert answered(fourth) == b"HTTP/1.1 200"
        assert closed(first)
        assert answered(third)


def test_limits_fit_the_files_that_a_process_may_open() -> None:
    found = Limits.of_process()

    assert 4 <= found.connections <= 64
    assert found.request_s == 10
