"""Limits on the number and the idle time of connections: silent clients must not harm the run.

The server lives in the process that runs the pipeline, so each of its connections takes a file
descriptor that the pipeline may need. The number of connections is limited. A connection without a
complete request is closed after a timeout, or earlier if a new connection needs its place. uvicorn
limits neither.
"""

import asyncio
import resource
from typing import Any, Final, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG: Final = 16
"""How many connections wait to be accepted; asyncio accepts that many in one iteration."""

_CONNECTIONS_MAX: Final = 64
_CONNECTIONS_MIN: Final = 4
_SHARE: Final = 8
"""Connections may take one in this many file descriptors of the process."""


class Limits(NamedTuple):
    """How many connections may be open, and how long one may be idle.

    `request_s` is how long a connection may be open, or idle, without a complete request; and how
    long a client may leave a full response buffer unread.
    """

    connections: int
    request_s: float = 10.0

    @classmethod
    def of_process(cls) -> "Limits":
        """Return limits that fit the file descriptors of this process."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = _CONNECTIONS_MAX if files == resource.RLIM_INFINITY else files // _SHARE
        return cls(max(_CONNECTIONS_MIN, min(_CONNECTIONS_MAX, share)))


def limited_protocol(limits: Limits) -> type[H11Protocol]:
    """Return a protocol class with these limits; uvicorn expects a class."""
    return type("BoundedHttp", (_BoundedHttp,), {"limits": limits})


class _BoundedHttp(H11Protocol):
    """One connection. All methods are called on the server's loop."""

    limits: Limits
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    waits_since_s = 0.0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as asyncio declares it
        """Wait for a request; at the limit, close the connection that has waited longest."""
        super().connection_made(transport)
        self._await_request()
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, _BoundedHttp)
            and connection is not self
            and connection.is_open
        ]
        if len(others) >= self.limits.connections:
            waiting = [connection for connection in others if connection.waits]
            oldest = min(waiting, key=lambda connection: connection.waits_since_s, default=self)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()
        self._cancel_writing()

    def data_received(self, data: bytes) -> None:
        """Receive data; only a complete request ends the wait."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have arrived already."""
        super().on_response_complete()
        if self.is_open:
            self._await_request()
            self._look()

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read its response."""
        super().pause_writing()
        self._cancel_writing()
        self._write_timer = self.loop.call_later(self.limits.request_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_writing()

    @property
    def is_open(self) -> bool:
        """Whether the connection still needs a file descriptor."""
        return not self.transport.is_closing()

    @property
    def waits(self) -> bool:
        """Whether no complete request has arrived."""
        return self._timer is not None

    def _look(self) -> None:
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._cancel()

    def _await_request(self) -> None:
        self._cancel()
        self.waits_since_s = self.loop.time()
        self._timer = self.loop.call_later(self.limits.request_s, self.transport.abort)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
