"""A PostgreSQL table in use by one generation: rows staged beside it, committed by their decision.

One transaction for each decision holds the rows of all sinks of the pipeline in the same database
and the line that records the commit (`commit_records`): both or neither. A sink's line is locked
first, so that of two processes that commit, one waits, sees the result of the other, and does
nothing or is superseded. A version is the slot that was committed last.
"""

import contextlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

import psycopg
from psycopg import errors, sql

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, CommitSink
from cutwater.protocol.cut import NO_TARGET, Committable, Version
from cutwater.protocol.lost_commit import Found, is_behind
from cutwater.sinks.base import OpenSink, RestorePreview, Rows, SinkContext
from cutwater.sinks.columns import key_twice
from cutwater.sinks.lost_commits import target_behind
from cutwater.sinks.postgres.backlog import TABLES_MIN, Backlog, parts, tables_at_once
from cutwater.sinks.postgres.catalog import (
    TableName,
    columns_there,
    database_of,
    identity_of,
    is_another,
    make_table,
    obstacle,
    relation_of,
    server_obstacle,
)
from cutwater.sinks.postgres.commit_records import BEGINNING, CommitEntry, Records
from cutwater.sinks.postgres.copy import RESULT, CopyJob, copy_task
from cutwater.sinks.postgres.dsn import Dsn
from cutwater.sinks.postgres.session import Connection, Session, words_of
from cutwater.sinks.postgres.staging import Staged, Staging, generation_of, table_of
from cutwater.sinks.postgres.types import check_columns, check_keys, columns_of
from cutwater.sinks.postgres.writes import Appends, Upserts, Writes

_DROPPED_MAX: Final = 500


class OpenPostgresTable:
    """A table to write to; fills `OpenSink`, `CommitsAtomically` and `KeepsPast`.

    Every method raises `SinkError` if it cannot be done now. `commit`, `restore`, `act_together`
    and `bring_together` raise `Superseded` for a slot that was never committed, after a later slot
    was.
    """

    def __init__(
        self, dsn: Dsn, table: TableName, keys: tuple[str, ...], schema: str, context: SinkContext
    ) -> None:
        """Connect, create our own schema if necessary, and inspect the table."""
        self._dsn = dsn
        self._keys = keys
        self.sink = context.sink
        self._session = Session(dsn, context.sink)
        self._records = Records(schema, context.pipeline, context.sink)
        self._staging = Staging(schema, context.pipeline, context.sink)
        self._backlog = Backlog(self._session, self._staging)
        self.target = table
        self._group, self._identity = self._session.run(self._open)
        self._writes: Writes = Appends(self.target, self._staging, self._records)
        if keys:
            self._writes = Upserts(self.target, self._staging, self._records, keys)
        self._floor = BEGINNING

    def _open(self, connection: Connection) -> tuple[tuple[object, ...], str]:
        why = server_obstacle(connection)
        if why is not None:
            raise ConfigError("dsn", why)
        self._records.make(connection)
        self.target = self.target.resolve(connection)
        why = obstacle(connection, self.target, self._keys)
        if why is not None:
            raise ConfigError("table", f"{self.target} {why}")
        found = connection.execute("SELECT current_user").fetchone()
        group = (*database_of(connection), None if found is None else found[0])
        return group, identity_of(connection, self.target)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def names(self) -> tuple[str | None, str]:
        return self.target.schema, self.target.name

    # -- staging

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """Send the rows into a staged table; the error for a row that it refuses names the row."""
        columns = columns_of(rows.schema, self.sink)
        check_keys(columns, self._keys, self.sink)
        place = (generation, batch)

        def make(connection: Connection) -> str:
            there = columns_there(connection, self.target)
            if there:
                check_columns(columns, there, str(self.target), self.sink)
            return self._staging.make(connection, place, self.target, columns, self._keys)

        table = self._session.run(make)
        sent = tuple(column.name for column in columns)
        job = CopyJob(
            parameters=self._dsn.parameters,
            statement=self._staging.copy_statement(table, sent),
            columns=sent,
            title=(str(self.target), table),
        )
        frame = rows.frame.selectExpr(
            *(f"{column.expression} AS c{n}" for n, column in enumerate(columns))
        )
        results = frame.mapInArrow(partial(copy_task, job), RESULT).collect()
        refused = next((result.refused for result in results if result.refused is not None), None)
        counted = [(result.task, result.rows, result.bytes, result.sha256) for result in results]
        if refused is not None:
            self._drop(table)
            raise SinkError(self.sink, f"{self.target} refuses a row: {refused}")
        return self.describe_staged(table, place, counted)

    def describe_staged(
        self,
        table: str,
        place: tuple[Generation, BatchId],
        counted: Sequence[tuple[int, int, int, str]],
    ) -> Committable | None:
        """Describe the rows that tasks have sent into a staged table; drop it if there are none.

        `counted` has, of each task attempt that counts: task, rows, bytes, hash of the text. If a
        key of an upsert occurs twice, nothing is staged.
        """
        if not counted:
            self._drop(table)
            return None
        found = self._staging.committable(table, place, counted)
        if self._keys:
            twice = self._session.run(
                lambda connection: self._staging.twice(connection, found, self._keys)
            )
            if twice is not None:
                self._drop(table)
                times, key = twice
                raise key_twice(self.sink, times, dict(zip(self._keys, key, strict=True)))
        return found

    def _drop(self, table: str) -> None:
        self._session.run(lambda connection: self._staging.drop(connection, table))

    def problem(self, committable: Committable) -> str | None:
        """Committed rows must still be staged too.

        After a rewind to a recovery point that carries them, they are committed again.
        """
        return self._session.run(lambda connection: self._staging.problem(connection, committable))

    # -- one slot

    @property
    def group(self) -> Hashable:
        """The server, the database and the role: sinks that share them commit together."""
        return self._group

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        command = CommitSink(permit, self.sink, tuple(committables))
        return self.act_together([(self, command)])[self.sink]

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """SinkError also if another program has written rows that the restore would remove."""
        command = CommitSink(permit, self.sink, (), restore=True, version=version)
        return self.act_together([(self, command)])[self.sink]

    def act_together(self, acts: Sequence[tuple[OpenSink, CommitSink]]) -> Mapping[SinkId, Version]:
        """Use one transaction; a `SinkError` names the sink that prevents it."""
        # Always in the same order, so that two processes never wait for each other in a circle.
        ordered = sorted(acts, key=lambda pair: pair[1].sink)
        at_once = TABLES_MIN
        if any(len(command.committables) > at_once for _, command in ordered):
            at_once = self._session.run(lambda connection: tables_at_once(connection, len(ordered)))
        together: dict[SinkId, list[Staged] | None] = {}
        for sink, command in ordered:
            assert isinstance(sink, OpenPostgresTable)
            together[command.sink] = sink.bring_together(command, at_once)

        def commit_all(connection: Connection) -> dict[SinkId, Version]:
            versions = {}
            for sink, command in ordered:
                assert isinstance(sink, OpenPostgresTable)
                versions[command.sink] = sink.commit_once(
                    connection, command, together[command.sink]
                )
            try:
                # Deferred constraints are checked now, while the sink at fault can be named.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except psycopg.IntegrityError as error:
                raise _blame(error, [sink for sink, _ in ordered], self) from None
            return versions

        versions = self._session.run(commit_all)
        for sink, command in ordered:
            if together[command.sink] is not None:
                assert isinstance(sink, OpenPostgresTable)
                # The commit is done; `retain` deletes later what cannot be deleted now.
                with contextlib.suppress(SinkError):
                    sink.drop_backlog()
        return versions

    def bring_together(self, command: CommitSink, at_once: int) -> list[Staged] | None:
        """Merge a backlog if it has more tables than a transaction may touch.

        Returns the tables to commit instead of the staged ones; None to commit those as they are.
        """
        if len(command.committables) <= at_once:
            return None
        slot = command.permit.slot

        def read(connection: Connection) -> list[Staged] | None:
            if not self._records.may_act(connection, slot):
                return None
            return self._read(connection, command)

        staged = self._session.run(read)
        if staged is None:
            return None
        return self._backlog.bring_together(slot, self.target, staged, at_once)

    def drop_backlog(self) -> None:
        """Delete the merged tables whose rows are committed by now."""

        def list_unneeded(connection: Connection) -> list[str]:
            return self._backlog.list_unneeded(connection, self._records.head(connection).slot)

        self._drop_all(self._session.run(list_unneeded))

    def _drop_all(self, tables: Sequence[str]) -> None:
        """Delete tables, a bounded number in each transaction."""
        if not tables:
            return
        at_once = self._session.run(tables_at_once)
        for some in parts(tables, at_once):
            self._session.run(partial(self._drop_some, tables=some))

    def _drop_some(self, connection: Connection, tables: Sequence[str]) -> None:
        for name in tables:
            self._staging.drop(connection, name)

    def commit_once(
        self, connection: Connection, command: CommitSink, together: list[Staged] | None = None
    ) -> Version:
        """Commit or restore a decision within a transaction, unless that was done before.

        `together` are the tables that the staged rows were merged into, if they were.
        """
        permit = command.permit
        if not self._records.may_act(connection, permit.slot):
            return str(permit.slot)
        # In the same transaction, because the next connection may lead to another server.
        found = self._find_newest(connection)
        if command.recorded is not None and is_behind(command.recorded, found):
            raise target_behind(self.sink, command.recorded, found)
        try:
            done = self._carry_out(connection, command, together)
            self._records.add(connection, permit, done)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            raise
        except psycopg.Error as error:
            if connection.broken:
                raise
            raise SinkError(self.sink, _way_out(error, self.target)) from None
        return str(permit.slot)

    def _carry_out(
        self, connection: Connection, command: CommitSink, together: list[Staged] | None
    ) -> CommitEntry:
        """Insert rows, or undo commits; return what was done."""
        target, before = str(self.target), self._records.head(connection).relation
        if command.restore:
            rows, is_empty = self._take_back(connection, command)
            return CommitEntry("restore", target, rows, relation=None if is_empty else before)
        staged = [table_of(committable) for committable in command.committables]
        rows = self._put(connection, command, together)
        relation = relation_of(connection, self.target) if rows else before
        return CommitEntry("commit", target, rows, staged, relation)

    def newest(self) -> Found:
        """Return the newest slot that was committed; None if the table was recreated since."""
        return self._session.run(self._find_newest)

    def _find_newest(self, connection: Connection) -> Found:
        head = self._records.head(connection)
        if is_another(connection, head.relation, self.target):
            return Found(None, NO_TARGET)
        return Found(None if head.slot == BEGINNING else Slot(head.slot), str(head.slot))

    def _read(self, connection: Connection, command: CommitSink) -> list[Staged]:
        try:
            return list(self._staging.read(connection, command.committables))
        except LookupError as error:
            raise SinkError(self.sink, str(error)) from None

    def _put(
        self, connection: Connection, command: CommitSink, together: list[Staged] | None
    ) -> int:
        if not command.committables:
            return 0
        staged = self._read(connection, command) if together is None else together
        if not columns_there(connection, self.target):
            made = self._staging.columns(connection, staged)
            connection.execute(make_table(self.target, list(made.items()), self._keys))
        why = obstacle(connection, self.target, self._keys)
        if why is not None:
            raise SinkError(self.sink, f"{self.target} {why}")
        rows = self._writes.put(connection, command.permit.slot, staged)
        expected = sum(committable.rows for committable in command.committables)
        if rows != expected:
            wrong = (
                self._staging.problem(connection, committable)
                for committable in command.committables
            )
            listed = "; ".join(problem for problem in wrong if problem is not None)
            raise SinkError(self.sink, listed or f"{rows} of {expected} staged rows came through")
        return rows

    # -- the past

    def look_back(self, version: Version | None) -> RestorePreview:
        def look(connection: Connection) -> RestorePreview:
            head = self._records.head(connection)
            there = bool(columns_there(connection, self.target))
            rows = _count(connection, self.target) if there else 0
            then, against = self._against(connection, version, there=there)
            return RestorePreview(
                str(head.slot), rows, None if then is None else rows - then, against
            )

        return self._session.run(look)

    def _against(
        self, connection: Connection, version: Version | None, *, there: bool
    ) -> tuple[int | None, str | None]:
        """Return how many rows a restore removes, and why it is impossible, if it is."""
        head = self._records.head(connection)
        wanted = _number(version)
        if wanted < head.floor:
            return None, f"it remembers {self.target} no further back than version {head.floor}"
        if wanted > head.slot:
            return None, f"{self.target} is at version {head.slot} and never was at {wanted}"
        lost = self._records.find_undoing_slot(connection, wanted)
        if lost is not None:
            return None, f"what {self.target} showed then was taken back by the rewind {lost}"
        if not there or is_another(connection, head.relation, self.target):
            # All rows are gone with the table: those after the version, and those it showed.
            shown = head.floor > BEGINNING or self._records.rows_until(connection, wanted)
            why = "has been recreated" if there else "no longer exists"
            return 0, f"the table {self.target} {why}" if shown else None
        undo = self._writes.look(connection, wanted)
        return undo.rows, None if undo.foreign is None else f"{self.target}: {undo.foreign}"

    def _take_back(self, connection: Connection, command: CommitSink) -> tuple[int, bool]:
        """Undo commits after a version; return the change in rows, and if none of ours is left."""
        wanted = _number(command.version)
        relation = self._records.head(connection).relation
        there = bool(columns_there(connection, self.target))
        rows, against = self._against(connection, command.version, there=there)
        if against is not None:
            # Usually found before the decision; rows that were written since then are kept.
            reason = f"{against}; rewind once more, with --leave-sinks, to leave it there"
            raise SinkError(self.sink, reason)
        if there and not is_another(connection, relation, self.target):
            self._writes.take_back(connection, wanted)
        else:
            self._writes.forget(connection, wanted)
        self._records.mark_undone(connection, wanted, command.permit.slot, str(self.target))
        known = self._records.head(connection).floor == BEGINNING
        return -(rows or 0), known and not self._records.rows_until(connection, wanted)

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete images and lines that no restore needs, and staged rows that are committed.

        What a newer generation has staged stays: this may be a process that was paused, and
        checkpoints of its successor may carry tables that are used up by now.
        """
        floor = min(map(_number, shown), default=BEGINNING)
        kept = {table_of(committable) for committable in keep}

        def give_up(connection: Connection) -> list[str]:
            gone = self._records.used_up(connection) - kept
            staged = self._staging.tables(connection)
            over = [
                table for table in staged if table in gone and generation_of(table) <= generation
            ]
            head = self._records.head(connection, lock=True)
            # A version that is higher than all of ours belongs to an earlier target of the sink.
            lowest = min(floor, head.slot)
            if lowest > head.floor:
                self._writes.prune(connection, lowest)
                self._records.raise_floor(connection, lowest)
                self._records.prune(connection, lowest)
            return over[:_DROPPED_MAX]

        self._drop_all(self._session.run(give_up))
        self.drop_backlog()

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        kept = {table_of(committable) for committable in keep}

        def list_unneeded(connection: Connection) -> list[str]:
            return [
                table
                for table in self._staging.tables(connection)
                if generation_of(table) < generation and table not in kept
            ]

        self._drop_all(self._session.run(list_unneeded))


def _number(version: Version | None) -> int:
    """Return a version as a number; a version of another kind of target is before all of ours."""
    return int(version) if version is not None and version.isdecimal() else BEGINNING


def _count(connection: Connection, table: TableName) -> int:
    found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(table.sql)).fetchone()
    return 0 if found is None else int(found[0])


def _blame(
    error: psycopg.Error, sinks: Sequence[OpenSink], default: OpenPostgresTable
) -> SinkError:
    """Return an error that names the sink whose table has the violated constraint."""
    named = (error.diag.schema_name, error.diag.table_name)
    for sink in sinks:
        if isinstance(sink, OpenPostgresTable) and sink.names == named:
            default = sink
    return SinkError(default.sink, _way_out(error, default.target))


def _way_out(error: psycopg.Error, table: TableName) -> str:
    """Describe which row or constraint of the table is the problem, and what the user can do."""
    if isinstance(error, psycopg.IntegrityError):
        way = f"change that row or that constraint of {table}"
    elif isinstance(error, psycopg.ProgrammingError | psycopg.DataError):
        way = f"let {table} take the rows that are staged, by its columns and permissions"
    else:
        return words_of(error)
    return (
        f"{words_of(error)}; {way}, and the commit continues by itself; or stop and rewind past it"
    )
