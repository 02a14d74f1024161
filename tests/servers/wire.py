"""A wire between a client and a server, over real sockets, that can be cut as told.

It passes bytes both ways. Armed with a word, it lets the message with that word through to the
server and cuts the client off before the answer: the server has acted, and nobody knows.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ACTS_S = 0.3


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
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, giver: socket.socket, taker: socket.socket, upward: bool) -> None:
        with suppress(OSError):
            while data := giver.recv(1 << 16):
                if upward and self.word and self.word in data:
                    self.word, self.cuts = b"", self.cuts + 1
                    giver.shutdown(socket.SHUT_RDWR)
                    taker.sendall(data)
                    # The server must have the time to act before it sees that nobody listens.
                    time.sleep(_ACTS_S)
                    break
                taker.sendall(data)
        for one in (giver, taker):
            with suppress(OSError):
                one.close()

    def close(self) -> None:
        # An accept that waits is not woken by a close alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


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
