"""The port on which the JVM calls Python: closed to every other program on this machine.

py4j authenticates calls to the JVM, but not calls from it: in Spark's threading mode py4j's client
in the JVM drops its token when PySpark sets the port. So the ids of Python objects are made secret:
the counter of ids starts at 128 random bits, and a connection must name an existing object in its
first message and within seconds, or it is closed. The number of connections that have not yet done
so is bounded. A lack of file descriptors does not end the server, as it does in py4j. A session
whose callback server was started before `secure` keeps that server; the ids of everything that a
pipeline passes to it are still secret.

What a call from the JVM returns must outlive the call, see `returns_java`.
"""

import functools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, ParamSpec

from py4j.clientserver import ClientServer, ClientServerConnection, PythonServer

_LOG: Final = logging.getLogger(__name__)
_ID_BITS: Final = 128
_UNPROVEN_MAX: Final = 64
_FIRST_MESSAGE_S: Final = 10.0
_LOOK_S: Final = 0.01
_PEEKED_BYTES: Final = 256
"""A command of one letter, an id of at most 40 digits, and a line feed after each."""
_COMMANDS: Final = frozenset({b"c", b"g"})
_PAUSE_S: Final = 0.5
_LOCK: Final = threading.Lock()
_RETURNED: Final = threading.local()
_Arguments = ParamSpec("_Arguments")


def returns_java(method: Callable[_Arguments, Any]) -> Callable[_Arguments, Any]:
    """Keep the Java object that a method returns to the JVM until the next call on this thread.

    py4j sends the id of the object back, and a thread of its own tells the JVM to forget the id as
    soon as Python holds the object no longer. If the second message arrives first, the JVM gets
    null. A thread answers its calls one by one, so the next call shows that the JVM has the object.
    """

    @functools.wraps(method)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Any:
        _RETURNED.value = method(*args, **kwargs)
        return _RETURNED.value

    return call


def secure(gateway: Any) -> None:
    """Make the ids of this gateway's Python objects secret, and let it start our callback server.

    Called before a pipeline hands anything to Spark; may be called again.
    """
    pool = gateway.gateway_property.pool
    with _LOCK, pool.lock:
        if pool.next_id < 1 << (_ID_BITS - 1):
            # The highest bit is set, so that a second call finds the counter started.
            pool.next_id = 1 << (_ID_BITS - 1) | secrets.randbits(_ID_BITS - 1)
        if isinstance(gateway, ClientServer):
            gateway._create_callback_server = lambda _: _Server(
                gateway._gateway_client,
                gateway.java_parameters,
                gateway.python_parameters,
                gateway.gateway_property,
            )


class _Server(PythonServer):  # type: ignore[misc]
    """Accepts connections as long as few of them are unproven."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._unproven = threading.BoundedSemaphore(_UNPROVEN_MAX)
        self._has_warned = False

    def run(self) -> None:
        """Accept until shutdown; after an error, such as too many open files, wait and retry."""
        super().run()
        while not self.is_shutdown and self.server_socket is not None:
            time.sleep(_PAUSE_S)
            super().run()

    def _create_connection(
        self,
        accepted: socket.socket,
        stream: Any,
    ) -> "_Connection":
        # Waits, and lets others wait in the kernel's queue, until a slot is free.
        self._unproven.acquire()
        connection = _Connection(
            self.java_parameters,
            self.python_parameters,
            self.gateway_property,
            self.gateway_client,
            python_server=self,
        )
        connection.init_socket_from_python_server(accepted, stream)
        return connection

    def on_thread_missing(self) -> None:
        """Release the slot of a connection for which no thread could be started."""
        self._unproven.release()

    def on_proof(self, *, is_proven: bool) -> None:
        """Release the slot of an unproven connection, and log a refused one once."""
        self._unproven.release()
        if not is_proven and not self._has_warned and not self.is_shutdown:
            self._has_warned = True
            _LOG.warning(
                "another program on this machine connected to port %s, on which only Spark calls, "
                "and was refused; this is said once",
                self.port,
            )


class _Connection(ClientServerConnection):  # type: ignore[misc]
    """Executes commands once the connection has proven that it comes from the JVM."""

    def start(self) -> None:
        """Start the thread of the connection, or close it where no thread can be started."""
        try:
            super().start()
        except RuntimeError as error:
            _LOG.warning("a call of the JVM cannot be answered: %s", error)
            self.python_server.on_thread_missing()
            self.close(reset=True)

    def wait_for_commands(self) -> None:
        """Check the first message; if it names an existing object, continue as py4j does."""
        is_proven = False
        try:
            is_proven = self._names_an_object()
        finally:
            self.python_server.on_proof(is_proven=is_proven)
        if is_proven:
            super().wait_for_commands()
        else:
            self.close(reset=True)

    def _names_an_object(self) -> bool:
        """Return whether the first message is a command on an object that exists; takes nothing."""
        end_s = time.monotonic() + _FIRST_MESSAGE_S
        try:
            self.socket.settimeout(_FIRST_MESSAGE_S)
            while time.monotonic() < end_s:
                start = self.socket.recv(_PEEKED_BYTES, socket.MSG_PEEK)
                command, *rest = start.split(b"\n", 2)
                if len(rest) > 1:
                    known = rest[0].decode("ascii", "replace") in self.pool
                    self.socket.settimeout(None)
                    return command in _COMMANDS and known
                if not start or len(start) == _PEEKED_BYTES:
                    return False
                time.sleep(_LOOK_S)
        except OSError:
            pass
        return False
