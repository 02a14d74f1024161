"""A custom sink that writes rows to a SQLite table exactly once.

docs/how-to/write-a-sink.md explains it, and `cutwater.testing.SinkContract` checks it.
"""

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import OpenSink, RestorePreview, Rows, SinkContext
from cutwater.store.records.targets import StoredTarget

_TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER, name TEXT, version INTEGER);
CREATE TABLE IF NOT EXISTS staged (generation INTEGER, batch INTEGER, id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS committed (generation INTEGER, batch INTEGER);
CREATE TABLE IF NOT EXISTS versions (version INTEGER PRIMARY KEY, slot INTEGER, undone INTEGER);
"""


@dataclass(frozen=True)
class SqliteTarget:
    """The table `orders` in a SQLite file, with the columns `id` and `name`."""

    path: str
    format: str = "sqlite"
    accepts: frozenset[str] = frozenset({"append"})

    def describe(self) -> str:
        """Return a human-readable name of the target."""
        return self.path

    def stored(self) -> StoredTarget:
        """Return the location that the store records; holds no secret."""
        return StoredTarget(self.format, str(Path(self.path).resolve()))

    def open(self, context: SinkContext) -> OpenSink:
        """Open the target for one generation."""
        return OpenSqlite(Path(self.path), context)


class OpenSqlite:
    """The opened table. Every method is one transaction."""

    def __init__(self, path: Path, context: SinkContext) -> None:
        self._path = path
        self._sink = context.sink
        with self._transaction() as database:
            for statement in _TABLES.split(";"):
                database.execute(statement)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        finally:
            database.close()

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """Write rows to a second table, where readers of `orders` do not see them."""
        found = [(generation, batch, *row) for row in rows.frame.select("id", "name").collect()]
        with self._transaction() as database:
            place = (generation, batch)
            database.execute("DELETE FROM staged WHERE generation = ? AND batch = ?", place)
            database.executemany("INSERT INTO staged VALUES (?, ?, ?, ?)", found)
        return Committable(self._sink, generation, batch, len(found), ()) if found else None

    def problem(self, committable: Committable) -> str | None:
        """Check that all staged rows still exist; committed rows alone are not enough."""
        with self._transaction() as database:
            place = (committable.generation, committable.batch)
            count = "SELECT count(*) FROM staged WHERE generation = ? AND batch = ?"
            found = _one(database, count, *place)
        return None if found == committable.rows else f"{found} of {committable.rows} rows are left"

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Copy the staged rows to `orders` and record the slot, in one transaction."""
        with self._transaction() as database:
            if not committables:
                return _unchanged(database, permit)
            version = self._begin(database, permit)
            if version is None:
                return _unchanged(database, permit)
            for committable in committables:
                place = (committable.generation, committable.batch)
                copied = database.execute(
                    "INSERT INTO orders SELECT id, name, ? FROM staged "
                    "WHERE generation = ? AND batch = ?",
                    (version, *place),
                )
                if copied.rowcount != committable.rows:
                    raise SinkError(
                        self._sink, f"{copied.rowcount} of {committable.rows} rows are left"
                    )
                database.execute("INSERT INTO committed VALUES (?, ?)", place)
            return str(version)

    def look_back(self, version: Version | None) -> RestorePreview:
        """Report whether `restore` can return to a version: not if its rows were deleted."""
        with self._transaction() as database:
            newest = _one(database, "SELECT coalesce(max(version), 0) FROM versions")
            rows = _one(database, "SELECT count(*) FROM orders")
            target = int(version or 0)
            undone = _one(database, "SELECT undone FROM versions WHERE version = ?", target)
            then = _one(database, "SELECT count(*) FROM orders WHERE version <= ?", target)
        obstacle = f"version {target} was undone, and its rows are deleted" if undone else None
        return RestorePreview(str(newest), rows, None if undone else then, obstacle)

    def newest(self) -> Found:
        """Return the newest slot in the table, so that a lost commit is detected."""
        with self._transaction() as database:
            slot = _one(database, "SELECT max(slot) FROM versions")
            version = _one(database, "SELECT coalesce(max(version), 0) FROM versions")
        return Found(None if slot is None else Slot(slot), str(version))

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Delete rows newer than a version and record the slot, in one transaction."""
        with self._transaction() as database:
            number = self._begin(database, permit)
            if number is None:
                return _unchanged(database, permit)
            after = (int(version or 0), number)
            database.execute("DELETE FROM orders WHERE version > ?", after[:1])
            database.execute("UPDATE versions SET undone=1 WHERE version>? AND version<?", after)
            return str(number)

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete rows that earlier generations staged and that no checkpoint needs."""
        kept = {(committable.generation, committable.batch) for committable in keep}
        with self._transaction() as database:
            old = "SELECT DISTINCT generation, batch FROM staged WHERE generation < ?"
            for place in set(database.execute(old, (generation,)).fetchall()) - kept:
                database.execute("DELETE FROM staged WHERE generation = ? AND batch = ?", place)

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete staged rows that are committed and that no kept checkpoint contains."""
        del shown
        kept = {(committable.generation, committable.batch) for committable in keep}
        with self._transaction() as database:
            done = "SELECT DISTINCT generation, batch FROM committed WHERE generation <= ?"
            for place in set(database.execute(done, (generation,)).fetchall()) - kept:
                for table in ("staged", "committed"):
                    database.execute(
                        f"DELETE FROM {table} WHERE generation = ? AND batch = ?", place
                    )

    def _begin(self, database: sqlite3.Connection, permit: CommitPermit) -> int | None:
        """Create a version for a slot; None if the slot has one. Refuse older slots."""
        if _one(database, "SELECT count(*) FROM versions WHERE slot = ?", permit.slot):
            return None
        newest = _one(database, "SELECT max(slot) FROM versions")
        if newest is not None and newest > permit.slot:
            raise Superseded(self._sink, permit.slot, newest)
        database.execute("INSERT INTO versions (slot, undone) VALUES (?, 0)", (permit.slot,))
        return _one(database, "SELECT max(version) FROM versions")


def _unchanged(database: sqlite3.Connection, permit: CommitPermit) -> Version:
    last = "SELECT coalesce(max(version), 0) FROM versions WHERE slot <= ?"
    return str(_one(database, last, permit.slot))


def _one(database: sqlite3.Connection, query: str, *values: object) -> int | None:
    found = database.execute(query, values).fetchone()
    return None if found is None else found[0]
