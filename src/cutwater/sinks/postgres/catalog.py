"""Tables as PostgreSQL's catalog describes them: names, columns, and unique keys.

Names are taken literally, as in double quotes: `Orders` is not `orders`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from cutwater.errors import ConfigError
from cutwater.sinks.postgres.session import Connection
from cutwater.sinks.postgres.types import Column, TableColumn, digits_of

_SERVER_MIN: Final = 130000
_PART: Final = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_NAME: Final = re.compile(rf"(?:{_PART}\.)?{_PART}")

_COLUMNS: Final = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod),
           CASE WHEN b.typtype = 'e' THEN 'enum'
                WHEN e.oid IS NULL THEN b.typname
                WHEN e.typtype = 'e' THEN 'enum[]' ELSE e.typname || '[]' END,
           format_type(b.oid, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END),
           (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = ''
               AND t.typdefault IS NULL,
           a.attgenerated <> '' OR a.attidentity = 'a', a.attgenerated <> ''
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""

_UNIQUE: Final = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, perhaps in the schema that the server looks in first."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """Read `table`, `schema.table`, or either with double quotes."""
        found = _NAME.fullmatch(text)
        if found is None or {"\0", "%"} & set(text):
            raise ConfigError("table", f"{text!r} is no table's name; write table or schema.table")
        schema, name = found[1] or found[2], found[3] or found[4]
        parts = [part.replace('""', '"') for part in (schema, name) if part]
        if any(len(part.encode()) > 63 for part in parts):
            raise ConfigError("table", f"{text!r} is longer than 63 bytes")
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    @property
    def sql(self) -> sql.Identifier:
        return sql.Identifier(*([] if self.schema is None else [self.schema]), self.name)

    @property
    def quoted(self) -> str:
        """Give it as the server's functions read it."""
        return self.sql.as_string()

    def resolve(self, connection: Connection) -> "TableName":
        """Return it with the schema it is in, or would be made in."""
        if self.schema is not None:
            return self
        found = connection.execute(
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)), current_schema())",
            [self.quoted],
        ).fetchone()
        schema = None if found is None else found[0]
        return TableName("public" if schema is None else str(schema), self.name)


def database_of(connection: Connection) -> tuple[str, int]:
    """Return the identity of a database, regardless of the name by which it was reached.

    The identity is the number that a cluster gets when it is created and shares with its replicas,
    and the number of the database. If the role may not read the first, the server's own address
    takes its place.
    """
    found = connection.execute(
        "SELECT CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE') "
        "THEN (SELECT system_identifier::text FROM pg_control_system()) "
        "ELSE concat_ws(':', host(inet_server_addr()), inet_server_port()) END, "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()
    assert found is not None
    return str(found[0]), int(found[1])


def identity_of(connection: Connection, table: TableName) -> str:
    """Return the identity of a sink's target: database, schema and name.

    The number of the table is not part of it, because the table may not exist yet.
    """
    system, database = database_of(connection)
    return f"{system}/{database}/{table.resolve(connection).quoted}"


def relation_of(connection: Connection, table: TableName) -> str | None:
    """Return the number of a table, which a recreated table changes; None if there is none."""
    found = connection.execute("SELECT to_regclass(%s)::oid", [table.quoted]).fetchone()
    if found is None or found[0] is None:
        return None
    system, database = database_of(connection)
    return f"{system}/{database}/{found[0]}"


def is_another(connection: Connection, relation: str | None, table: TableName) -> bool:
    """Say whether a table is not the one that a sink has rows in; False if that is not known.

    A database that was copied to another server has other numbers, and is not compared.
    """
    if relation is None:
        return False
    system, database = database_of(connection)
    if not relation.startswith(f"{system}/{database}/"):
        return False
    return relation_of(connection, table) != relation


def server_obstacle(connection: Connection) -> str | None:
    """Say why no table of a server can be written to; None if one can."""
    old = connection.info.server_version < _SERVER_MIN
    return "the server is older than PostgreSQL 13" if old else None


def columns_there(connection: Connection, table: TableName) -> tuple[TableColumn, ...]:
    """Return the columns of a table; none if there is no table."""
    return tuple(
        TableColumn(name, shown, base, digits_of(below), *facts)
        for name, shown, base, below, *facts in connection.execute(_COLUMNS, [table.quoted])
    )


def obstacle(connection: Connection, table: TableName, keys: Sequence[str]) -> str | None:
    """Say why rows cannot go into what has a table's name; None if they can."""
    found = connection.execute(
        "SELECT relkind::text, relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)",
        [table.quoted],
    ).fetchone()
    if found is None:
        return _no_schema(connection, table)
    if found[0] not in {"r", "p"}:
        return "is not a table; name a table"
    if found[1] != "p":
        return "is unlogged or temporary, so that a crash of the server empties it"
    if not keys:
        return None
    there = {column.name for column in columns_there(connection, table)}
    missing = next((key for key in keys if key not in there), None)
    if missing is not None:
        return f"has no column {missing}, which is one of the keys"
    if set(keys) not in unique_columns(connection, table):
        listed = ", ".join(keys)
        return f"has no primary key or unique index on exactly ({listed}), which an upsert needs"
    return None


def unique_columns(connection: Connection, table: TableName) -> list[set[str]]:
    """Return the sets of columns of which a table has each combination of values once."""
    return [set(columns) for (columns,) in connection.execute(_UNIQUE, [table.quoted])]


def _no_schema(connection: Connection, table: TableName) -> str | None:
    """Say why a table that is not there cannot be made; None if it can."""
    if table.schema is None:
        return None
    quoted = sql.Identifier(table.schema).as_string()
    found = connection.execute("SELECT to_regnamespace(%s)", [quoted]).fetchone()
    if found != (None,):
        return None
    return f"is in no schema that is there; CREATE SCHEMA {quoted}, or name another one"


def make_table(
    table: TableName, columns: Sequence[tuple[str, str]], keys: Sequence[str]
) -> sql.Composed:
    """Return the statement that makes a table; keys become its primary key."""
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns
    ]
    if keys:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names(keys)))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        table.sql, sql.SQL(", ").join(parts)
    )


def types_of(columns: Sequence[Column]) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in columns]


def names(columns: Sequence[str], prefix: str = "") -> sql.Composed:
    """Return a list of columns for a statement, perhaps all of one table."""
    parts = [sql.Identifier(*([prefix] if prefix else []), column) for column in columns]
    return sql.SQL(", ").join(parts)
