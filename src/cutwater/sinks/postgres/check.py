"""Why rows cannot go into a PostgreSQL table as it is, asked while a pipeline is planned.

Looks at the server's catalog alone, in a transaction that may write nothing.
"""

from pyspark.sql.types import StructType

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.postgres.catalog import (
    TableName,
    columns_there,
    identity_of,
    obstacle,
    server_obstacle,
)
from cutwater.sinks.postgres.dsn import Dsn
from cutwater.sinks.postgres.session import Connection, Session
from cutwater.sinks.postgres.types import check_columns, check_keys, columns_of


def check_rows(keys: tuple[str, ...], sink: SinkId, rows: StructType) -> str | None:
    """Say why no table of PostgreSQL's can hold such rows; None if one can."""
    try:
        check_keys(columns_of(rows, sink), keys, sink)
    except SinkError as error:
        return error.reason
    return None


def identity(dsn: Dsn, table: TableName, sink: SinkId) -> str:
    """Return what tells a table from every other one, by whatever name its server is reached.

    Raises:
        SinkError: If the database cannot be reached now.
    """
    return Session(dsn, sink).run(lambda connection: identity_of(connection, table))


def check_table(
    dsn: Dsn, table: TableName, keys: tuple[str, ...], sink: SinkId, rows: StructType | None
) -> str | None:
    """Say why rows cannot go into a table; None if nothing is known against it.

    Args:
        dsn: How to connect.
        table: The table, which need not be there yet.
        keys: Those of an upsert.
        sink: The sink.
        rows: The columns of its rows, if they are known.

    Raises:
        SinkError: If the database cannot be reached now.
    """
    why = None if rows is None else check_rows(keys, sink, rows)
    if why is not None:
        return why
    columns = None if rows is None else columns_of(rows, sink)

    def look(connection: Connection) -> str | None:
        connection.execute("SET TRANSACTION READ ONLY")
        why = server_obstacle(connection)
        if why is not None:
            return why
        found = table.resolved(connection)
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

    return Session(dsn, sink).run(look)
