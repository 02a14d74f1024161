"""How staged rows are written to a table and removed again: appends and upserts.

An append writes no image: its rows carry the number of its transaction, and a restore deletes
exactly those rows, if all of them are still as they were written. An upsert stores, in the same
statement, the previous row of each of its keys (`undo_<pipeline and sink>`); a restore puts the
oldest of these images back, if every row is still the one that this sink wrote last. Rows that
another program has changed since are never removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from psycopg import sql

from cutwater.ids import Slot
from cutwater.sinks.postgres.catalog import TableName, columns_there, names, unique_columns
from cutwater.sinks.postgres.commit_records import Records
from cutwater.sinks.postgres.session import Connection
from cutwater.sinks.postgres.staging import BATCH, TASK, Staged, Staging

_TABLES_MAX: Final = 200
"""How many staged tables one statement reads: with thousands its planning takes too long."""

SLOT, EXISTED, XID = "_cw_slot", "_cw_existed", "_cw_xid"


@dataclass(frozen=True, slots=True)
class Undo:
    """What a restore removes.

    Attributes:
        rows: How many rows more the table has now than it had then.
        foreign: The change of another program that prevents it, in words; None if there is none.
    """

    rows: int
    foreign: str | None = None


class Writes(Protocol):
    """Writes rows to a table and undoes writes; each call is part of a transaction."""

    def put(self, connection: Connection, slot: Slot, staged: Sequence[Staged]) -> int:
        """Put staged rows into the table; return how many there were."""
        ...

    def look(self, connection: Connection, version: int) -> Undo:
        """Return what a restore to a version would do; change nothing."""
        ...

    def take_back(self, connection: Connection, version: int) -> None:
        """Undo everything after a version; `look` has found no problem."""
        ...

    def forget(self, connection: Connection, version: int) -> None:
        """Delete what an undo of everything after a version would need: the rows are gone."""
        ...

    def prune(self, connection: Connection, floor: int) -> None:
        """Delete what a restore to the floor does not need."""
        ...


@dataclass(frozen=True, slots=True)
class Appends:
    """Rows that are added."""

    target: TableName
    staging: Staging
    records: Records

    def put(self, connection: Connection, slot: Slot, staged: Sequence[Staged]) -> int:
        del slot
        total = 0
        for staged_table in staged:
            columns = names(staged_table.columns)
            total += connection.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} = ANY(%s)").format(
                    self.target.sql,
                    columns,
                    columns,
                    self.staging.name(staged_table.table).sql,
                    sql.Identifier(TASK),
                ),
                [list(staged_table.tasks)],
            ).rowcount
        return total

    def look(self, connection: Connection, version: int) -> Undo:
        """Count the rows that are still as they were added."""
        expected = self.records.rows_of_undone(connection, version, str(self.target))
        found = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self.target.sql, self._ours()),
            self._undone_parameters(version),
        ).fetchone()
        count = 0 if found is None else int(found[0])
        if count == expected:
            return Undo(expected)
        reason = f"{expected} rows were added since then and {count} of them are as they were"
        return Undo(expected, f"{reason}: another writer has changed or deleted the others")

    def take_back(self, connection: Connection, version: int) -> None:
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE {}").format(self.target.sql, self._ours()),
            self._undone_parameters(version),
        )

    def forget(self, connection: Connection, version: int) -> None:
        """There are no images to delete."""

    def prune(self, connection: Connection, floor: int) -> None:
        """There are no images to delete."""

    def _ours(self) -> sql.Composed:
        query, _ = self.records.query_undone(0)
        return sql.SQL("xmin IN (SELECT u.xid::xid FROM ({}) AS u)").format(query)

    def _undone_parameters(self, version: int) -> list[object]:
        return self.records.query_undone(version)[1]


@dataclass(frozen=True, slots=True)
class Upserts:
    """Rows that replace those with the same keys."""

    target: TableName
    staging: Staging
    records: Records
    keys: tuple[str, ...]

    @property
    def undo(self) -> TableName:
        return self.staging.name(f"undo_{self.staging.id}")

    def put(self, connection: Connection, slot: Slot, staged: Sequence[Staged]) -> int:
        """Write the newest row of each key; store the previous row as an image.

        A batch has at most one row for each key, so the newest row is that of the last batch.
        """
        total = 0
        # An image has the columns of all batches: a key has only one image in a slot, the first.
        imaged = list(
            dict.fromkeys(name for staged_table in staged for name in staged_table.columns)
        )
        self._make_undo(connection, imaged)
        for columns, alike in groupby(staged, key=lambda staged_table: staged_table.columns):
            batches = list(alike)
            for start in range(0, len(batches), _TABLES_MAX):
                some = batches[start : start + _TABLES_MAX]
                connection.execute(self._put(columns, imaged, some), {"slot": slot})
            total += self._count(connection, batches)
        return total

    def _put(
        self, columns: tuple[str, ...], imaged: Sequence[str], batches: Sequence[Staged]
    ) -> sql.Composed:
        values = [name for name in columns if name not in self.keys]
        kept = [name for name in imaged if name not in self.keys]
        newest = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {}, {} AS _cw_batch FROM {} WHERE {} = ANY({})").format(
                names(columns),
                sql.Identifier(BATCH) if batch.batch is None else sql.Literal(batch.batch),
                self.staging.name(batch.table).sql,
                sql.Identifier(TASK),
                sql.Literal(list(batch.tasks)),
            )
            for batch in batches
        )
        changed = sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in values
        )
        change = sql.SQL("UPDATE SET {}").format(changed) if values else sql.SQL("NOTHING")
        text = """
            WITH newest AS MATERIALIZED (
                SELECT DISTINCT ON ({keys}) {columns} FROM ({staged}) AS s
                ORDER BY {keys}, _cw_batch DESC
            ), images AS (
                INSERT INTO {undo} ({slot}, {existed}, {xid}, {keys}{comma}{kept})
                SELECT %(slot)s, t.ctid IS NOT NULL, pg_current_xact_id(), {new_keys}{comma}{old}
                FROM newest LEFT JOIN {target} AS t ON {same} {touched}
                ON CONFLICT DO NOTHING
            )
            INSERT INTO {target} ({columns}) SELECT {columns} FROM newest
            ON CONFLICT ({keys}) DO {change}
        """
        return sql.SQL(text).format(
            staged=newest,
            undo=self.undo.sql,
            target=self.target.sql,
            columns=names(columns),
            keys=names(self.keys),
            new_keys=names(self.keys, "newest"),
            kept=names(kept),
            old=names(kept, "t"),
            comma=sql.SQL(", " if kept else ""),
            # A row that consists only of its key stays as it is, whichever program wrote it.
            touched=sql.SQL("" if values else "WHERE t.ctid IS NULL"),
            change=change,
            same=self._same("newest", "t"),
            slot=sql.Identifier(SLOT),
            existed=sql.Identifier(EXISTED),
            xid=sql.Identifier(XID),
        )

    def _count(self, connection: Connection, batches: Sequence[Staged]) -> int:
        total = 0
        for batch in batches:
            found = connection.execute(
                sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)").format(
                    self.staging.name(batch.table).sql, sql.Identifier(TASK)
                ),
                [list(batch.tasks)],
            ).fetchone()
            total += 0 if found is None else int(found[0])
        return total

    def _make_undo(self, connection: Connection, columns: Sequence[str]) -> None:
        """Create the table of images for these columns; recreate it if columns or keys changed."""
        there = {column.name: column.type for column in columns_there(connection, self.target)}
        wanted = {name: there.get(name) for name in columns}
        found = {column.name: column.type for column in columns_there(connection, self.undo)}
        same = wanted == {name: kind for name, kind in found.items() if name[:4] != "_cw_"}
        if same and {*self.keys, SLOT} in unique_columns(connection, self.undo):
            return
        if found:
            # Images of other columns or keys cannot be restored: no restore goes further back.
            self.records.raise_floor(connection, self.records.head(connection).slot)
            connection.execute(sql.SQL("DROP TABLE {}").format(self.undo.sql))
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} AS SELECT 0::bigint AS {}, false AS {}, '0'::xid8 AS {}, {} "
                "FROM {} WITH NO DATA"
            ).format(
                self.undo.sql,
                *map(sql.Identifier, (SLOT, EXISTED, XID)),
                names(columns),
                self.target.sql,
            )
        )
        connection.execute(
            sql.SQL("CREATE UNIQUE INDEX ON {} ({}, {})").format(
                self.undo.sql, names(self.keys), sql.Identifier(SLOT)
            )
        )

    def look(self, connection: Connection, version: int) -> Undo:
        """Compare the transaction that wrote each row last with the recorded one."""
        if not columns_there(connection, self.undo):
            return Undo(0)
        text = """
            WITH last AS (
                SELECT DISTINCT ON ({keys}) * FROM {undo} WHERE {slot} > %(version)s
                ORDER BY {keys}, {slot} DESC
            )
            SELECT count(*) FILTER (WHERE t.xmin IS DISTINCT FROM last.{xid}::xid), count(*)
            FROM last LEFT JOIN {target} AS t ON {same}
        """
        found = connection.execute(self._sql(text, "last"), {"version": version}).fetchone()
        assert found is not None
        text = "SELECT count(*) FROM ({oldest}) AS o WHERE NOT {existed}"
        added = connection.execute(self._sql(text, "o"), {"version": version}).fetchone()
        rows = 0 if added is None else int(added[0])
        if not found[0]:
            return Undo(rows)
        reason = f"{found[0]} of the {found[1]} rows that were written since then"
        return Undo(rows, f"{reason} have been changed or deleted by another writer")

    def take_back(self, connection: Connection, version: int) -> None:
        """Put the oldest images back."""
        found = [column.name for column in columns_there(connection, self.undo)]
        values = [name for name in found if name[:4] != "_cw_" and name not in self.keys]
        if not found:
            return
        given = {"version": version}
        delete = "DELETE FROM {target} AS t USING ({oldest}) AS o WHERE NOT o.{existed} AND {same}"
        connection.execute(self._sql(delete, "o"), given)
        if values:
            old = sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("o", name))
                for name in values
            )
            update = (
                "UPDATE {target} AS t SET {old} FROM ({oldest}) AS o WHERE o.{existed} AND {same}"
            )
            connection.execute(self._sql(update, "o", old=old), given)
            # The rows now carry this transaction's number; the remaining images must refer to it.
            mark = """
                UPDATE {undo} AS t SET {xid} = pg_current_xact_id() FROM ({oldest}) AS o
                WHERE o.{existed} AND {same} AND t.{slot} = (
                    SELECT max(l.{slot}) FROM {undo} AS l WHERE {left} AND l.{slot} <= %(version)s)
            """
            connection.execute(self._sql(mark, "o", left=self._same("o", "l")), given)
        connection.execute(self._sql("DELETE FROM {undo} WHERE {slot} > %(version)s", "o"), given)

    def forget(self, connection: Connection, version: int) -> None:
        if columns_there(connection, self.undo):
            text = "DELETE FROM {undo} WHERE {slot} > %(version)s"
            connection.execute(self._sql(text, "o"), {"version": version})

    def prune(self, connection: Connection, floor: int) -> None:
        if columns_there(connection, self.undo):
            text = "DELETE FROM {undo} WHERE {slot} <= %(floor)s"
            connection.execute(self._sql(text, "o"), {"floor": floor})

    def _same(self, left: str, right: str) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(left, key), sql.Identifier(right, key))
            for key in self.keys
        )

    def _sql(self, text: str, images: str, **given: sql.Composable) -> sql.Composed:
        parts: dict[str, sql.Composable] = {
            "undo": self.undo.sql,
            "target": self.target.sql,
            "keys": names(self.keys),
            "slot": sql.Identifier(SLOT),
            "existed": sql.Identifier(EXISTED),
            "xid": sql.Identifier(XID),
            "same": self._same(images, "t"),
        }
        oldest = (
            "SELECT DISTINCT ON ({keys}) * FROM {undo} WHERE {slot} > %(version)s "
            "ORDER BY {keys}, {slot}"
        )
        parts["oldest"] = sql.SQL(oldest).format(**parts)
        return sql.SQL(text).format(**parts, **given)
