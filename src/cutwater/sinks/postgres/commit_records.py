"""The records of a database's sinks: which slot each has committed, and in which transaction.

    sinks     one line for each sink: the newest slot it has committed, how far back it can be
              restored, and which table it has rows in: a recreated table is a different one
    commits   one line for each commit: slot, checkpoint, transaction, rows, staged tables

A commit and its line are one transaction. Every row in PostgreSQL carries the number of the
transaction that wrote it (`xmin`). Together with these lines it determines which checkpoint a row
came with, and whether another program has touched it since, without a column of ours in a user's
table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from cutwater.errors import Superseded
from cutwater.ids import PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.sinks.postgres.session import Connection

BEGINNING: Final = -1
"""The version of a sink that has never committed."""

_MADE: Final = """
    CREATE TABLE IF NOT EXISTS {schema}.sinks (
        pipeline text NOT NULL, sink text NOT NULL, slot bigint NOT NULL, floor bigint NOT NULL,
        relation text, PRIMARY KEY (pipeline, sink)
    );
    CREATE TABLE IF NOT EXISTS {schema}.commits (
        pipeline text NOT NULL, sink text NOT NULL, slot bigint NOT NULL,
        checkpoint bigint NOT NULL, target text NOT NULL, action text NOT NULL, xid xid8 NOT NULL,
        rows bigint NOT NULL, undone_by bigint, staged text[] NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, sink, slot)
    );
"""


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a sink.

    Attributes:
        floor: The oldest version it can be restored to.
        relation: The table that it has rows in, by `relation_of`; None if unknown.
    """

    slot: int
    floor: int
    relation: str | None = None


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """What one commit did: the rows it wrote or removed, and the staged tables it used up.

    `relation` is the table that the sink has rows in afterwards, as in `Head`.
    """

    action: str
    target: str
    rows: int
    staged: Sequence[str] = ()
    relation: str | None = None


class Records:
    """The lines of one sink in one schema."""

    def __init__(self, schema: str, pipeline: PipelineId, sink: SinkId) -> None:
        self._schema = schema
        self._key = (str(pipeline), str(sink))
        self._sink = sink
        # A table made by an older Cutwater and owned by another role may lack the column.
        self._has_relation = True

    def make(self, connection: Connection) -> None:
        """Make schema, tables and the sink's line, if they are not there."""
        there = connection.execute(
            "SELECT to_regclass(%s), to_regclass(%s)",
            [self._name("sinks").as_string(), self._name("commits").as_string()],
        ).fetchone()
        self._has_relation = there is None or None in there or self._add_relation(connection)
        if there is None or None in there:
            schema = sql.Identifier(self._schema)
            connection.execute("SELECT pg_advisory_xact_lock(7318349873)")
            found = connection.execute("SELECT to_regnamespace(%s)", [schema.as_string()])
            if found.fetchone() == (None,):
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
            connection.execute(sql.SQL(_MADE).format(schema=schema))
        connection.execute(
            self._sql(
                "INSERT INTO {sinks} VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (pipeline, sink) DO NOTHING"
            ),
            [*self._key, BEGINNING, BEGINNING],
        )

    def _add_relation(self, connection: Connection) -> bool:
        """Add the column that older versions lack, if we may; say whether it is there."""
        found = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid "
            "AND attname = 'relation' AND NOT attisdropped), pg_has_role(c.relowner, 'USAGE') "
            "FROM pg_class c WHERE c.oid = to_regclass(%s)",
            [self._name("sinks").as_string()],
        ).fetchone()
        is_there, is_owned = found or (False, False)
        if not is_there and is_owned:
            connection.execute(
                self._sql("ALTER TABLE {sinks} ADD COLUMN IF NOT EXISTS relation text")
            )
        return bool(is_there or is_owned)

    def head(self, connection: Connection, *, lock: bool = False) -> Head:
        """Return how far the sink has come; locks its line until the transaction ends."""
        relation = "relation" if self._has_relation else "NULL"
        text = f"SELECT slot, floor, {relation} FROM {{sinks}} WHERE pipeline = %s AND sink = %s"
        found = connection.execute(
            self._sql(text + " FOR UPDATE" if lock else text), self._key
        ).fetchone()
        return Head(BEGINNING, BEGINNING) if found is None else Head(*found)

    def may_act(self, connection: Connection, slot: Slot) -> bool:
        """Return whether a slot is still to be committed; lock the sink's line.

        Superseded if a later slot was committed and this one never was.
        """
        head = self.head(connection, lock=True)
        done = connection.execute(
            self._sql("SELECT 1 FROM {commits} WHERE pipeline = %s AND sink = %s AND slot = %s"),
            [*self._key, slot],
        ).fetchone()
        if done is not None:
            return False
        if head.slot >= slot:
            raise Superseded(self._sink, slot, Slot(head.slot))
        return True

    def add(self, connection: Connection, permit: CommitPermit, entry: CommitEntry) -> None:
        connection.execute(
            self._sql(
                "INSERT INTO {commits} (pipeline, sink, slot, checkpoint, target, action, xid, "
                "rows, staged) VALUES (%s, %s, %s, %s, %s, %s, pg_current_xact_id(), %s, %s)"
            ),
            [
                *self._key,
                permit.slot,
                permit.checkpoint_id,
                entry.target,
                entry.action,
                entry.rows,
                list(entry.staged),
            ],
        )
        relation, given = (", relation = %s", [entry.relation]) if self._has_relation else ("", [])
        text = f"UPDATE {{sinks}} SET slot = %s{relation} WHERE pipeline = %s AND sink = %s"
        connection.execute(self._sql(text), [permit.slot, *given, *self._key])

    def used_up(self, connection: Connection) -> set[str]:
        """Return the staged tables whose rows are committed, and not undone since."""
        found = connection.execute(
            self._sql(
                "SELECT unnest(staged) FROM {commits} WHERE pipeline = %s AND sink = %s "
                "AND undone_by IS NULL"
            ),
            self._key,
        )
        return {str(name) for (name,) in found}

    def raise_floor(self, connection: Connection, floor: int) -> None:
        """Record that the sink can no longer be restored to versions before this one."""
        connection.execute(
            self._sql("UPDATE {sinks} SET floor = %s WHERE pipeline = %s AND sink = %s"),
            [floor, *self._key],
        )

    def prune(self, connection: Connection, floor: int) -> None:
        """Delete lines that neither a repetition nor a restore to the floor needs.

        Lines that were undone after the floor are needed: versions in between show rows that are
        gone (`find_undoing_slot`).
        """
        connection.execute(
            self._sql(
                "DELETE FROM {commits} WHERE pipeline = %s AND sink = %s AND slot < %s "
                "AND coalesce(undone_by, 0) <= %s "
                "AND slot < (SELECT slot FROM {sinks} WHERE pipeline = %s AND sink = %s)"
            ),
            [*self._key, floor, floor, *self._key],
        )

    # -- restoring

    def find_undoing_slot(self, connection: Connection, version: int) -> int | None:
        """Return the slot of a rewind that removed rows of a version; None if there is none."""
        found = connection.execute(
            self._sql(
                "SELECT min(undone_by) FROM {commits} WHERE pipeline = %s AND sink = %s "
                "AND slot <= %s AND undone_by > %s"
            ),
            [*self._key, version, version],
        ).fetchone()
        return None if found is None or found[0] is None else int(found[0])

    def rows_until(self, connection: Connection, version: int) -> int:
        """Count the rows that this sink has written up to a version and not undone."""
        found = connection.execute(
            self._sql(
                "SELECT coalesce(sum(rows), 0) FROM {commits} WHERE pipeline = %s AND sink = %s "
                "AND slot <= %s AND undone_by IS NULL AND action = 'commit'"
            ),
            [*self._key, version],
        ).fetchone()
        return 0 if found is None else int(found[0])

    def query_undone(self, version: int) -> tuple[sql.Composed, list[object]]:
        """Return a query for the commits of this sink that a restore to a version undoes."""
        text = (
            "SELECT slot, xid, rows, target FROM {commits} WHERE pipeline = %s AND sink = %s "
            "AND slot > %s AND undone_by IS NULL AND action = 'commit'"
        )
        return self._sql(text), [*self._key, version]

    def mark_undone(self, connection: Connection, version: int, slot: Slot, target: str) -> None:
        """Mark commits as undone, and other sinks' commits to the table in those transactions."""
        query, given = self.query_undone(version)
        connection.execute(
            self._sql(
                "UPDATE {commits} SET undone_by = %s WHERE pipeline = %s AND action = 'commit' "
                "AND undone_by IS NULL AND (sink = %s OR target = %s) "
                "AND xid IN (SELECT xid FROM ({undone}) AS u)",
                undone=query,
            ),
            [slot, *self._key, target, *given],
        )

    def rows_of_undone(self, connection: Connection, version: int, target: str) -> int:
        """Count the rows that the commits to be undone have added to a table, by any sink."""
        query, given = self.query_undone(version)
        found = connection.execute(
            self._sql(
                "SELECT coalesce(sum(rows), 0) FROM {commits} WHERE pipeline = %s AND target = %s "
                "AND action = 'commit' AND undone_by IS NULL "
                "AND xid IN (SELECT xid FROM ({undone}) AS u)",
                undone=query,
            ),
            [self._key[0], target, *given],
        ).fetchone()
        return 0 if found is None else int(found[0])

    def _name(self, table: str) -> sql.Identifier:
        return sql.Identifier(self._schema, table)

    def _sql(self, text: str, **given: sql.Composable) -> sql.Composed:
        names = {"sinks": self._name("sinks"), "commits": self._name("commits")}
        return sql.SQL(text).format(**names, **given)
