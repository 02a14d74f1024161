"""A wire between a client and a server, over real sockets, that can be cut as told.

It passes bytes both ways. Armed with a word, it lets the message with that word through to the
server and cuts the client off before the answer: the server has acted, and nobody knows.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ANSWER_S = 20.0


class Wire:
    """One listening port that leads to a server's."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.word = b""
        self.cuts = 0

    def cut_after(self, word: bytes) -> None:
        """Cut the next client off whose message has this word in it."""
        self.word = word

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                cut, answered = threading.Event(), threading.Event()
                for way in (self._ask, self._answer):
                    given = (client, server, cut, answered)
                    threading.Thread(target=way, args=given, daemon=True).start()

    def _ask(
        self,
        client: socket.socket,
        server: socket.socket,
        cut: threading.Event,
        answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.word and self.word in data:
                    self.word = b""
                    cut.set()
                    server.sendall(data)
                    # The server must have acted before anybody sees that nobody listens.
                    answered.wait(_ANSWER_S)
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    break
                server.sendall(data)
        _close(client, server)

    def _answer(
        self,
        client: socket.socket,
        server: socket.socket,
        cut: threading.Event,
        answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if cut.is_set():
                    answered.set()
                    return
                client.sendall(data)
        _close(client, server)

    def close(self) -> None:
        # An accept that waits is not woken by a close alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.close()


@contextmanager
def wire_to(server_port: int) -> Iterator[Wire]:
    """Run a wire on a free port."""
    wire = Wire(server_port)
    thread = threading.Thread(target=wire.accept, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        wire.close()
        thread.join()
