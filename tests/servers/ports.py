"""Ports on loopback that nobody listens on.

Somebody else may take one before it is used; servers that can choose for themselves should.
"""

import socket


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
