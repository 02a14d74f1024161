"""Free ports on loopback, for servers that cannot choose one themselves.

The system assigns ports of another range, so that only another call of this function may take the
same one before it is used; they are drawn so that this does not happen.
"""

import random
import socket

_ANY = range(20_000, 30_000)
"""Below the range of which systems give out ports."""

_CHANCE = random.SystemRandom()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    while True:
        port = _CHANCE.choice(_ANY)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
