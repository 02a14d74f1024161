"""The server: uvicorn on its own thread, on an address that is known before it responds.

The caller binds the socket, so that a port in use is an error of the caller and not a line in a
log. The thread is a daemon, so that an open dashboard does not keep the process from ending.
"""

import asyncio
import logging
import re
import socket
import threading
import time
from typing import Final, NamedTuple

import uvicorn

from cutwater.errors import ConfigError, RunError
from cutwater.server.auth import Guard
from cutwater.server.connections import BACKLOG, Limits, limited_protocol

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 4080
_TRIED: Final = 20
_START_S: Final = 30.0
_STOP_S: Final = 5.0
_FORM: Final = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):)?(?P<port>[0-9]{1,5})")


class Endpoint(NamedTuple):
    """Where to listen; port 0 is any free port.

    `is_preference` is whether another port will do if this one is in use.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    is_preference: bool = True

    @classmethod
    def of(cls, text: str, option: str = "--serve") -> "Endpoint":
        """Parse `[HOST:]PORT`; any other form is a `ConfigError` that names the option."""
        found = _FORM.fullmatch(text.strip())
        port = int(found["port"]) if found else -1
        if found is None or port > 65_535:
            raise ConfigError(option, f"{text!r} is not [HOST:]PORT, such as 8080 or 0.0.0.0:8080")
        host = (found["host"] or DEFAULT_HOST).strip("[]")
        return cls(host, port, is_preference=False)


def bind(endpoint: Endpoint, option: str = "--serve") -> socket.socket:
    """Listen on the endpoint, or on the next free port if any will do.

    Raises:
        ConfigError: If the address is in use or cannot be bound.
    """
    reason = ""
    tried = (
        range(endpoint.port, endpoint.port + _TRIED) if endpoint.is_preference else [endpoint.port]
    )
    for port in (*tried, *([0] if endpoint.is_preference else [])):
        try:
            return _listen(endpoint.host, port)
        except OSError as error:
            reason = error.strerror or str(error)
    raise ConfigError(option, f"cannot listen on {endpoint.host}:{endpoint.port}: {reason}")


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _url(host: str, port: int) -> str:
    # A server on every address is reached by the machine's name.
    name = socket.gethostname() if host in {"0.0.0.0", "::"} else host
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


class Server:
    """Serves one application until it is stopped."""

    def __init__(
        self, app: Guard, listening: socket.socket, host: str, limits: Limits | None = None
    ) -> None:
        """Prepare; the server does not respond before `start`. It closes the listening socket.

        Without limits, those that fit this process apply.
        """
        self._socket = listening
        self.url = _url(host, listening.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=limited_protocol(limits or Limits.of_process()),
            backlog=BACKLOG,
            access_log=False,
            log_config=None,
            # Below ERROR, uvicorn logs every malformed request.
            log_level=logging.ERROR,
            lifespan="off",
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=32 * 1024,
            server_header=False,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def start(self) -> None:
        """Start; return when the server responds, or raise `RunError` if it does not in time."""
        self._thread.start()
        end_s = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end_s:
                message = f"the server on {self.url} did not start."
                raise RunError(message)
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop; waits a few seconds at most."""
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the server has ended, or until the timeout."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
