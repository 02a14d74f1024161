"""PostgreSQL tables as targets: what a user names, and what is checked before anything runs.

`postgres.table` does the work. It and everything else that needs the package `psycopg` is imported
when a table is opened or looked at, so that a pipeline can be planned without that package. A
connection string is never shown and never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.postgres.dsn import Dsn, GivenDsn
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cutwater.sinks.postgres.catalog import TableName
    from cutwater.sinks.postgres.session import Connection
    from cutwater.sinks.postgres.types import Column

OWN_SCHEMA = "_cutwater"
"""Where our own tables are, unless the user names another schema."""


def postgres(
    dsn: GivenDsn,
    *,
    table: str,
    write: str = "append",
    keys: Sequence[str] = (),
    own_schema: str = OWN_SCHEMA,
) -> "PostgresTarget":
    """Write a step's rows to a PostgreSQL table, exactly once, at every checkpoint.

    All PostgreSQL sinks of a pipeline that use one database and one role are committed in one
    transaction: a reader sees all of a checkpoint's rows in all of these tables, or none. The
    table is made at the first commit that has rows, if it is not there; one that is there is
    checked. Other programs may write to it at the same time.

    Args:
        dsn: How to connect: `env:NAME` for a variable of the driver's environment, a connection
            string, or a function that returns one. It is never stored or shown.
        table: The table, as `table` or `schema.table`. Names are taken literally.
        write: How rows are combined with existing rows: `append`, or `upsert`, by which a row
            replaces the row with the same keys.
        keys: For an upsert: the columns that identify a row. An existing table needs a primary
            key or a unique index on exactly these columns.
        own_schema: The schema for staged rows, records and images; created if necessary.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    if write not in {"append", "upsert"}:
        raise ConfigError("write", f"{write!r} is not a way to write; write 'append' or 'upsert'")
    if isinstance(keys, str):
        raise ConfigError("keys", f"{keys!r} is one name; write a list of names")
    if len(set(keys)) < len(keys):
        raise ConfigError("keys", f"{list(keys)} names a column twice")
    if write == "upsert" and not keys:
        raise ConfigError("keys", "an upsert needs the columns that identify a row")
    if write == "append" and keys:
        raise ConfigError("keys", "only an upsert has keys; write 'upsert', or leave them out")
    if not own_schema or {"\0", "%", '"'} & set(own_schema) or len(own_schema.encode()) > 63:
        raise ConfigError("own_schema", f"{own_schema!r} is no schema's name")
    if not table or {"\0", "%"} & set(table):
        raise ConfigError("table", f"{table!r} is no table's name")
    return PostgresTarget(Dsn(dsn), table, tuple(keys), own_schema)


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """A PostgreSQL table to write to; made by `postgres`, fills `Sink`."""

    dsn: Dsn
    table: str
    keys: tuple[str, ...] = ()
    own_schema: str = OWN_SCHEMA

    @property
    def format(self) -> str:
        return "postgres"

    @property
    def accepts(self) -> frozenset[str]:
        """Rows that are final, and with keys those that change."""
        return frozenset({"append", "update"} if self.keys else {"append"})

    @property
    def write(self) -> str:
        return "upsert" if self.keys else "append"

    def describe(self) -> str:
        """Name the table as the user wrote it, and nothing of the way to it."""
        return f"PostgreSQL table {self.table}"

    def open(self, context: SinkContext) -> OpenSink:
        """Open the table for one generation; create our own schema, not the table."""
        name = self._name()
        from cutwater.sinks.postgres.table import OpenPostgresTable  # noqa: PLC0415 - an extra

        return OpenPostgresTable(self.dsn, name, self.keys, self.own_schema, context)

    def check_target(self, sink: SinkId, rows: "StructType | None") -> str | None:
        """It makes nothing."""
        name = self._name()
        from cutwater.sinks.postgres.session import Session  # noqa: PLC0415 - an extra
        from cutwater.sinks.postgres.types import columns_of  # noqa: PLC0415 - imports pyspark

        why = None if rows is None else self.check_rows(sink, rows)
        if why is not None:
            return why
        columns = None if rows is None else columns_of(rows, sink)
        looks = partial(_obstacle, table=name, keys=self.keys, columns=columns, sink=sink)
        return Session(self.dsn, sink).run(looks)

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:
        self._name()
        from cutwater.sinks.postgres.types import check_keys, columns_of  # noqa: PLC0415

        try:
            check_keys(columns_of(rows, sink), self.keys, sink)
        except SinkError as error:
            return error.reason
        return None

    def identity(self, sink: SinkId) -> str:
        """Its database, its schema, its name."""
        name = self._name()
        from cutwater.sinks.postgres.catalog import identity_of  # noqa: PLC0415 - an extra
        from cutwater.sinks.postgres.session import Session  # noqa: PLC0415 - an extra

        return Session(self.dsn, sink).run(lambda connection: identity_of(connection, name))

    def stored(self) -> StoredTarget:
        """Host, port, database and table, without secrets."""
        name = self._name()
        options: dict[str, tuple[str, ...]] = {
            "table": (self.table,),
            "keys": self.keys,
            "own_schema": (self.own_schema,),
        }
        dsn = self.dsn.stored()
        if dsn is not None:
            options["dsn"] = (dsn,)
        return StoredTarget(self.format, f"{self.dsn.place}/{name}", options)

    def _name(self) -> "TableName":
        try:
            from cutwater.sinks.postgres.catalog import TableName  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "psycopg":
                raise
            reason = "needs the package psycopg: pip install 'cutwater[postgres]'"
            raise ConfigError("sinks.postgres", reason) from error
        return TableName.parse(self.table)


def _obstacle(
    connection: "Connection",
    *,
    table: "TableName",
    keys: tuple[str, ...],
    columns: "Sequence[Column] | None",
    sink: SinkId,
) -> str | None:
    """Say why rows cannot go into a table; None if nothing is known against it.

    Looks at the server's catalog alone, in a transaction that has just begun and may write nothing.
    The table need not be there yet.
    """
    from cutwater.sinks.postgres.catalog import (  # noqa: PLC0415 - an extra
        columns_there,
        obstacle,
        server_obstacle,
    )
    from cutwater.sinks.postgres.types import check_columns  # noqa: PLC0415

    connection.execute("SET TRANSACTION READ ONLY")
    why = server_obstacle(connection)
    if why is not None:
        return why
    found = table.resolve(connection)
    why = obstacle(connection, found, keys)
    if why is not None:
        return f"{found} {why}"
    there = columns_there(connection, found)
    if columns is not None and there:
        try:
            check_columns(columns, there, str(found), sink)
        except SinkError as error:
            return error.reason
    return None


def reopen_postgres(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a table that a store remembers.

    A password was not stored: the environment variable that had it must have it again, or
    PostgreSQL's own ways (PGPASSWORD, a password file) must give it.

    Raises:
        ConfigError: If only the pipeline's own file knows how to connect; as `open` does.
    """
    options = target.options
    if "dsn" not in options:
        reason = "only the pipeline's own file knows how to connect; use `cutwater run FILE --from`"
        raise ConfigError("dsn", reason)
    keys = tuple(options.get("keys", ()))
    (dsn,), (table,), (schema,) = options["dsn"], options["table"], options["own_schema"]
    return PostgresTarget(Dsn(dsn), table, keys, schema).open(context)
