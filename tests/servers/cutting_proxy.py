"""A TCP proxy between a client and a server that can cut a connection at a given message.

It forwards bytes both ways. `cut_after` names a word: the proxy forwards the next message with that
word to the server and closes the connection to the client before the reply. The server has acted,
and the client does not know.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_ANSWER_S = 20.0


class CuttingProxy:
    """A listening port that forwards to the port of a server."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.word = b""
        self.cuts = 0

    def cut_after(self, word: bytes) -> None:
        """Cut the connection of the next client whose message contains this word."""
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
                    # The server must have acted before it sees that the client is gone.
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
    """The two connections of one client."""

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
        for end in (self.client, self.server):
            with suppress(OSError):
                end.close()


@contextmanager
def cutting_proxy_to(server_port: int) -> Iterator[CuttingProxy]:
    """Run a proxy on a free port."""
    proxy = CuttingProxy(server_port)
    thread = threading.Thread(target=proxy.accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
