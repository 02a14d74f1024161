"""Staged rows: ordinary, logged tables in a schema of our own, one for each batch.

    <own schema>.s_<pipeline and sink>_<generation>_<batch>_<random>

Such a table has the columns, types and checks of the target, so that a row which the target would
refuse is refused here, before any decision. What needs the target's other rows (unique and foreign
keys, exclusions, triggers) can only be checked by the commit. The table's comment says which
columns were sent. It stays until its rows are committed and no kept cut carries them any more.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.postgres.catalog import TableName, columns_there, make_table, names, types_of
from cutwater.sinks.postgres.session import Connection
from cutwater.sinks.postgres.types import Column, TableColumn

TASK = "_cw_task"
BATCH = "_cw_batch"


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of one batch, or of many that were brought together (`postgres_backlog`).

    Attributes:
        batch: Which batch of the commit it is, from 0; None if a column of the table says so.
    """

    table: str
    columns: tuple[str, ...]
    tasks: tuple[int, ...]
    batch: int | None = 0


class Staging:
    def __init__(self, schema: str, pipeline: PipelineId, sink: SinkId) -> None:
        self._schema = schema
        self.id = hashlib.sha256(f"{pipeline}/{sink}".encode()).hexdigest()[:16]
        self._sink = sink

    def name(self, table: str) -> TableName:
        """Return a staged table with its schema."""
        return TableName(self._schema, table)

    def make(
        self,
        connection: Connection,
        place: tuple[Generation, BatchId],
        target: TableName,
        columns: Sequence[Column],
        keys: Sequence[str],
    ) -> str:
        """Make the table for a batch; what a failed call left of it goes. Return its name."""
        start = f"s_{self.id}_{place[0]}_{place[1]}_"
        for left in self.tables(connection, start=start):
            self.drop(connection, left)
        # A name of its own for every call: tasks of a failed one may still be running.
        table = self.name(f"{start}{uuid.uuid4().hex[:8]}")
        there = columns_there(connection, target)
        if there:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING GENERATED)"
                ).format(table.sql, target.sql)
            )
            changes = _relax_nulls(there, columns)
        else:
            connection.execute(make_table(table, types_of(columns), ()))
            changes = []
        changes += [_null(key, "SET") for key in keys]
        changes.append(sql.SQL("ADD COLUMN {} bigint").format(sql.Identifier(TASK)))
        changes.append(sql.SQL("SET ({} = false)").format(sql.SQL("autovacuum_enabled")))
        connection.execute(
            sql.SQL("ALTER TABLE {} {}").format(table.sql, sql.SQL(", ").join(changes))
        )
        sent = json.dumps([column.name for column in columns])
        connection.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(table.sql, sql.Literal(sent))
        )
        return table.name

    def copy_statement(self, table: str, columns: Sequence[str]) -> str:
        sent = names([*columns, TASK])
        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self.name(table).sql, sent)
        return copy.as_string()

    def committable(
        self,
        table: str,
        place: tuple[Generation, BatchId],
        sent: Sequence[tuple[int, int, int, str]],
    ) -> Committable:
        """Describe what the tasks that count have sent: task, rows, bytes, hash of the text."""
        blobs = tuple(
            BlobRef(f"{table}/{task}/{rows}", size, sha) for task, rows, size, sha in sent
        )
        return Committable(self._sink, *place, sum(rows for _, rows, _, _ in sent), blobs)

    def twice(
        self, connection: Connection, committable: Committable, keys: Sequence[str]
    ) -> tuple[int, tuple[object, ...]] | None:
        """Find a key that several rows of a batch have, and how many; None if there is none.

        Keys are the same if PostgreSQL says so, by the types and collations of the target.
        """
        text = (
            "SELECT count(*), {keys} FROM {table} WHERE {task} = ANY(%s) "
            "GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT 1"
        )
        tasks = [_task(blob)[0] for blob in committable.blobs]
        found = connection.execute(
            sql.SQL(text).format(
                keys=names(keys),
                table=self.name(table_of(committable)).sql,
                task=sql.Identifier(TASK),
            ),
            [tasks],
        ).fetchone()
        return None if found is None else (int(found[0]), found[1:])

    def tables(self, connection: Connection, kind: str = "s", start: str = "") -> list[str]:
        """Return the names of all tables of this sink: staged ones, or those of a backlog."""
        found = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname::text, %s)",
            [self._schema, start or f"{kind}_{self.id}_"],
        )
        return sorted(str(name) for (name,) in found)

    def drop(self, connection: Connection, table: str) -> None:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.name(table).sql))

    def read(self, connection: Connection, committables: Sequence[Committable]) -> Iterator[Staged]:
        """Yield the tables of committables, in order; LookupError if a table is gone.

        Rows are not counted here, but when they are put into the target.
        """
        for batch, committable in enumerate(committables):
            table, tasks = (
                table_of(committable),
                tuple(_task(blob)[0] for blob in committable.blobs),
            )
            found = connection.execute(
                "SELECT obj_description(to_regclass(%s), 'pg_class')", [self.name(table).quoted]
            ).fetchone()
            if found is None or found[0] is None:
                message = f"the staged table {self.name(table)} is missing"
                raise LookupError(message)
            yield Staged(table, tuple(json.loads(found[0])), tasks, batch)

    def columns(self, connection: Connection, staged: Sequence[Staged]) -> dict[str, str]:
        """Return the columns that were sent with some batches, each with its first type."""
        found: dict[str, str] = {}
        for staged_table in staged:
            if found.keys() >= set(staged_table.columns):
                continue
            there = {
                c.name: c.type for c in columns_there(connection, self.name(staged_table.table))
            }
            for name in staged_table.columns:
                found.setdefault(name, there[name])
        return found

    def problem(self, connection: Connection, committable: Committable) -> str | None:
        """Say what is wrong with the rows of a batch; None if all of them are there."""
        table = self.name(table_of(committable))
        there = connection.execute("SELECT to_regclass(%s)", [table.quoted]).fetchone()
        if there == (None,):
            return f"the staged table {table} is missing"
        counted = connection.execute(
            sql.SQL("SELECT {task}, count(*) FROM {} GROUP BY {task}").format(
                table.sql, task=sql.Identifier(TASK)
            )
        )
        found = {int(task): int(count) for task, count in counted}
        for blob in committable.blobs:
            task, rows = _task(blob)
            if found.get(task, 0) != rows:
                return f"the staged table {table} has {found.get(task, 0)} rows instead of {rows}"
        return None


def table_of(committable: Committable) -> str:
    return committable.blobs[0].name.partition("/")[0]


def generation_of(table: str) -> int:
    return int(table.split("_")[2])


def _task(blob: BlobRef) -> tuple[int, int]:
    _, task, rows = blob.name.split("/")
    return int(task), int(rows)


def _relax_nulls(there: Sequence[TableColumn], columns: Sequence[Column]) -> list[sql.Composed]:
    """Let the columns be null that rows do not have: the commit gives them their defaults."""
    sent = {column.name for column in columns}
    unsent = [column for column in there if column.name not in sent]
    if all(column.computed for column in unsent):
        # Everything that PostgreSQL computes, it computes from what is sent.
        return []
    return [_null(column.name, "DROP") for column in unsent]


def _null(column: str, verb: str) -> sql.Composed:
    text = "ALTER COLUMN {} SET NOT NULL" if verb == "SET" else "ALTER COLUMN {} DROP NOT NULL"
    return sql.SQL(text).format(sql.Identifier(column))
