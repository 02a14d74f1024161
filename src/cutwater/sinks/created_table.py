"""A table of Spark's catalog that its sink creates, as the tables of a declarative project are.

The catalog holds name, columns and location; rows are committed to the location as `sinks.files`
does it, for the reasons in `catalog_table`. A store remembers the location, so a rewind needs no
session. A catalog in memory forgets the table with its process: the next start creates it again, at
the directory that has the rows.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cutwater.errors import ConfigError
from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.catalog_table import OpenTable, files_of
from cutwater.sinks.files.target import FilesTarget, directory_of
from cutwater.sinks.sql_text import literal, quoted, refusal_reason
from cutwater.sinks.staging.directory import HIDDEN, create_lasting
from cutwater.store.backends.directories import exists, list_directory
from cutwater.store.backends.files import make_lasting
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_COMMITS: Final = "commits"
_QUERY: Final = "query.json"
_SETTINGS: Final = (
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.session.timeZone",
)
"""What the rows of a query depend on besides the query."""
_FROM_THE_BEGINNING: Final = (
    "run it as it was, or run the project with another store and database, from the beginning"
)


class _Query(msgspec.Struct, frozen=True):
    """By what the rows of a table were computed, and the version of Spark that described it."""

    spark: str
    sha256: str


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTable:
    """A table to create and to write to; fills `Sink`.

    Attributes:
        name: Its whole name, as SQL writes it.
        title: The same, as messages write it.
        files: Where its rows are, and how they are written.
        query: What its rows are computed by, if every change of that would need other rows.
        accepts: The output modes whose rows it takes. With `append` and a target that overwrites,
            every batch with rows is a whole result.
    """

    name: str
    title: str
    files: FilesTarget
    columns: "StructType"
    accepts: frozenset[str]
    query: str | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def format(self) -> str:
        return "table"

    @property
    def stays_in_place(self) -> bool:
        """Whether it may not move: always, since its place follows from settings of the session."""
        return True

    @property
    def write(self) -> str:
        return self.files.write

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return self.title

    def open(self, context: SinkContext) -> OpenSink:
        """Create the table if necessary; refuse one that holds rows of other programs."""
        if context.spark is None:
            return self.files.open(context)
        self.ensure(context.spark)
        return OpenTable(self.name, self.files, context.spark, context)

    def ensure(self, spark: "SparkSession") -> None:
        """Create the table in the catalog, or add columns that it lacks; may be called again.

        Raises:
            ConfigError: If there is another table, or rows of other programs.
        """
        self._refuse_foreign_rows()
        query = None
        if self.query is not None:
            settings = "\n".join(f"{name}={spark.conf.get(name)}" for name in _SETTINGS)
            query = _Query(spark.version, _sha256(f"{self.query}\n{settings}"))
        if query is not None:
            self._check_query(query)
        if spark.catalog.tableExists(self.name):
            self._conform(spark)
        else:
            self._create(spark)
        if query is not None:
            self._remember_query(query)

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:
        return self.files.check_rows(sink, rows)

    def stored(self) -> StoredTarget:
        """Its directory, which can be opened without a session."""
        return self.files.stored()

    @property
    def _directory(self) -> Path:
        return directory_of(self.files.uri)

    def _refuse_foreign_rows(self) -> None:
        found = [path.name for path in list_directory(self._directory) if path.name[0] != "."]
        if HIDDEN not in found and any(name != HIDDEN for name in found):
            raise ConfigError(
                self.title,
                f"its directory {self._directory} holds {min(found)}, which Cutwater has not "
                "committed, such as rows of `spark-pipelines run`; drop the table and its "
                "directory, or write to another database",
            )

    def _check_query(self, now: "_Query") -> None:
        """Refuse rows of another query.

        Versions of Spark describe a query differently, so only the same version is compared.
        """
        before = self._read_query()
        if before is None:
            commits = self._directory / HIDDEN / _COMMITS
            if exists(commits) and any(list_directory(commits)):
                reason = "it holds rows that were not computed by a materialized view"
                raise ConfigError(self.title, f"{reason}; {_FROM_THE_BEGINNING}")
            return
        if before.spark == now.spark and before.sha256 != now.sha256:
            # Also without rows: what was read may have given none.
            raise ConfigError(
                self.title,
                "its query has changed, or the time zone, ANSI mode or case sensitivity of the "
                f"session, and its rows are those of the query before; {_FROM_THE_BEGINNING}",
            )

    def _read_query(self) -> "_Query | None":
        file = self._directory / HIDDEN / _QUERY
        return msgspec.json.decode(file.read_bytes(), type=_Query) if exists(file) else None

    def _remember_query(self, now: "_Query") -> None:
        """Called after the table was created: Spark creates none in a directory with files."""
        if self._read_query() == now:
            return
        file = self._directory / HIDDEN / _QUERY
        make_lasting(file.parent)
        file.unlink(missing_ok=True)
        create_lasting(file, msgspec.json.encode(now).decode())

    def _create(self, spark: "SparkSession") -> None:
        partitions = ", ".join(map(quoted, self.files.options.partition_by))
        properties = ", ".join(
            f"{literal(name)} = {literal(value)}" for name, value in sorted(self.properties.items())
        )
        clauses = (
            f"CREATE TABLE {self.name} ({_columns(self.columns)})",
            f"USING {self.files.format}",
            f"PARTITIONED BY ({partitions})" if partitions else "",
            # Spark creates no managed table in a directory that holds files.
            f"LOCATION {literal(str(self._directory))}" if exists(self._directory / HIDDEN) else "",
            f"COMMENT {literal(self.comment)}" if self.comment else "",
            f"TBLPROPERTIES ({properties})" if properties else "",
        )
        self._tell(spark, " ".join(filter(None, clauses)))

    def _conform(self, spark: "SparkSession") -> None:
        """Add columns that are new; refuse a table that is another one."""
        found = files_of(spark, self.name)
        if directory_of(found.uri).resolve() != self._directory.resolve():
            reason = f"the catalog has it at {found.uri}, and the pipeline at {self.files.uri}"
            raise ConfigError(self.title, f"{reason}; load the project again")
        if found.options.partition_by != self.files.options.partition_by:
            now = ", ".join(found.options.partition_by) or "nothing"
            raise ConfigError(
                self.title, f"it is partitioned by {now}; drop it, or declare the same partitions"
            )
        known = {column.name: column.dataType for column in spark.table(self.name).schema.fields}
        new = [column for column in self.columns.fields if column.name not in known]
        for column in self.columns.fields:
            if known.get(column.name, column.dataType) != column.dataType:
                kind = known[column.name].simpleString()
                reason = f"its column {column.name} is {kind} in the catalog"
                raise ConfigError(self.title, f"{reason}; cast the column, or drop the table")
        if new:
            kinds = type(self.columns)(new)
            self._tell(spark, f"ALTER TABLE {self.name} ADD COLUMNS ({_columns(kinds)})")

    def _tell(self, spark: "SparkSession", statement: str) -> None:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - planning needs no Spark

        try:
            spark.sql(statement)
        except PySparkException as error:
            reason = refusal_reason(error)
            raise ConfigError(self.title, f"the catalog refuses it: {reason}") from error


def _columns(columns: "StructType") -> str:
    return ", ".join(
        f"{quoted(column.name)} {column.dataType.simpleString()}" for column in columns.fields
    )
