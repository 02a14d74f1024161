"""A wire between a client and a server, over real sockets, that can be cut as told.

It passes bytes both ways. Armed with a word, it lets the message with that word through to the
server and cuts the client off before the answer: the server has acted, and nobody knows.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

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
                link = _Link(client, server)
                threading.Thread(target=self._ask, args=(link,), daemon=True).start()
                threading.Thread(target=link.answer, daemon=True).start()

    def _ask(self, link: "_Link") -> None:
        with suppress(OSError):
            while data := link.client.recv(1 << 16):
                if self.word and self.word in data:
                    self.word = b""
                    link.is_cut.set()
                    link.server.sendall(data)
                    # The server must have acted before anybody sees that nobody listens.
                    link.answered.wait(_ANSWER_S)
                    self.cuts += 1
                    link.client.shutdown(socket.SHUT_RDWR)
                    break
                link.server.sendall(data)
        link.close()

    def close(self) -> None:
        # An accept that waits is not woken by a close alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@dataclass(slots=True)
class _Link:
    """One client, connected."""

    client: socket.socket
    server: socket.socket
    is_cut: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def answer(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(1 << 16):
                if self.is_cut.is_set():
                    self.answered.set()
                    return
                self.client.sendall(data)
        self.close()

    def close(self) -> None:
        for one in (self.client, self.server):
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
