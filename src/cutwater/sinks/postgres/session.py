"""Connections of the driver to a database: one transaction at a time, and error handling.

A connection is reused until it fails. A transaction that conflicts with another one is repeated
from its beginning. Every other failure becomes a `SinkError` without secrets, and the sink is
called again. Whether something was committed is never inferred from a call that returned, but from
the record in the database.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.postgres.dsn import Dsn, redact

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

_TRIES: Final = 10
_BEGIN: Final = """
    SELECT set_config('lock_timeout', '20s', true),
           set_config('statement_timeout', '0', true),
           -- A dead process must not hold a lock that its successor waits for.
           set_config('idle_in_transaction_session_timeout', '60s', true),
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""


class Session:
    """The connections of one sink's driver to its database. For any thread."""

    def __init__(self, dsn: Dsn, sink: SinkId) -> None:
        self._dsn = dsn
        self._sink = sink
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        # A sink is never closed explicitly; its connections are closed with the object.
        weakref.finalize(self, _close, self._idle)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Do some work in a separate transaction; repeat it after a conflict with another one.

        If the connection was lost at the very end, the work may or may not have been committed.
        """
        parameters = self._dsn.parameters
        try:
            for attempt in range(_TRIES):
                try:
                    with self._transaction() as connection:
                        return work(connection)
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    if attempt == _TRIES - 1:
                        raise
        except psycopg.Error as error:
            raise SinkError(self._sink, redact(words_of(error), parameters)) from None
        raise AssertionError

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        connection = self._connect()
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def _connect(self) -> Connection:
        """Return a connection in a new transaction; an idle one may have been cut meanwhile."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            try:
                connection.execute(_BEGIN)
            except psycopg.Error:
                connection.close()
            else:
                return connection
        parameters = self._dsn.parameters
        connection = psycopg.connect(prepare_threshold=None, **parameters)  # type: ignore[arg-type]
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(_BEGIN)
        return connection


def _close(idle: list[Connection]) -> None:
    for connection in idle:
        connection.close()


def words_of(error: psycopg.Error) -> str:
    """Say in one line what the server, or the way to it, has against something."""
    diagnosis = error.diag
    first = diagnosis.message_primary or str(error).strip() or type(error).__name__
    parts = [first, diagnosis.message_detail, diagnosis.message_hint]
    return " ".join("; ".join(part.strip().rstrip(".") for part in parts if part).split())
