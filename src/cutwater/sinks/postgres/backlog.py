"""A backlog of staged tables, brought together before the transaction that commits it.

A transaction holds a lock on every table that it touches until it ends, and a server has a fixed
number of locks for all transactions together (`max_locks_per_transaction`). After a long outage
one sink may have thousands of staged tables. Their rows are copied into one table first, a bounded
number of staged tables in each transaction, and the commit reads that table. It is derived data: a
copy that was not finished is never read, and the staged tables stay until retention deletes them.
"""

import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from psycopg import sql

from cutwater.ids import Slot
from cutwater.sinks.postgres.catalog import TableName, columns_there, make_table, names
from cutwater.sinks.postgres.session import Connection, Session
from cutwater.sinks.postgres.staging import BATCH, TASK, Staged, Staging

_SHARE: Final = 8
"""One transaction of ours takes at most this part of the locks of a server."""

_LOCKS: Final = 4
"""A table has its own lock, those of long values and of their index, and that of its type."""

TABLES_MIN: Final = 4
_TABLES_MAX: Final = 200


def tables_at_once(connection: Connection, sinks: int = 1) -> int:
    """Return how many staged tables each of some sinks may touch in one transaction."""
    found = connection.execute(
        "SELECT current_setting('max_locks_per_transaction')::int * "
        "(current_setting('max_connections')::int "
        "+ current_setting('max_prepared_transactions')::int)"
    ).fetchone()
    assert found is not None
    share = int(found[0]) // (_SHARE * _LOCKS * max(sinks, 1))
    return min(max(share, TABLES_MIN), _TABLES_MAX)


def parts(tables: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (tables[start : start + size] for start in range(0, len(tables), size))


class Backlog:
    """The tables in which one sink's staged rows are brought together, one for each slot."""

    def __init__(self, session: Session, staging: Staging) -> None:
        self._session = session
        self._staging = staging

    def bring_together(
        self, slot: Slot, target: TableName, staged: Sequence[Staged], at_once: int
    ) -> list[Staged]:
        """Copy the rows that count into one table for all batches with the same columns.

        Returns the tables to commit instead of the staged batches, both in order. The target may
        not be there yet. One transaction reads `at_once` of the batches.
        """
        kinds = self._session.run(lambda connection: self._kinds(connection, target, staged))
        made = []
        for columns, alike in groupby(staged, key=lambda staged_table: staged_table.columns):
            table = f"m_{self._staging.id}_{slot}_{uuid.uuid4().hex[:8]}"
            wanted = [(name, kinds[name]) for name in columns]
            self._session.run(partial(self._make, table=table, columns=wanted))
            batches = list(alike)
            for start in range(0, len(batches), at_once):
                some = batches[start : start + at_once]
                self._session.run(partial(self._copy, table=table, staged=some))
            made.append(Staged(table, columns, (0,), None))
        return made

    def _kinds(
        self, connection: Connection, target: TableName, staged: Sequence[Staged]
    ) -> dict[str, str]:
        """Return the type of each column that was sent: the target's, or else the first sent."""
        there = {column.name: column.type for column in columns_there(connection, target)}
        return {**self._staging.columns(connection, staged), **there}

    def _make(self, connection: Connection, table: str, columns: Sequence[tuple[str, str]]) -> None:
        own = [(TASK, "bigint"), (BATCH, "bigint")]
        connection.execute(make_table(self._staging.name(table), [*columns, *own], ()))

    def _copy(self, connection: Connection, table: str, staged: Sequence[Staged]) -> None:
        for staged_table in staged:
            connection.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {}, 0, %s FROM {} WHERE {} = ANY(%s)").format(
                    self._staging.name(table).sql,
                    names([*staged_table.columns, TASK, BATCH]),
                    names(staged_table.columns),
                    self._staging.name(staged_table.table).sql,
                    sql.Identifier(TASK),
                ),
                [staged_table.batch, list(staged_table.tasks)],
            )

    def list_unneeded(self, connection: Connection, newest: int) -> list[str]:
        """Return the tables that no commit needs: those of slots that were committed."""
        found = self._staging.tables(connection, "m")
        return [table for table in found if int(table.split("_")[2]) <= newest]
