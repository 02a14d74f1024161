"""Where the rows of a project go: tables of the catalog, and the sinks of `create_sink`.

A table is a directory of Parquet files that the catalog knows. A sink of a format that Cutwater
writes exactly once is written by Cutwater's own sink; an option without an exact equivalent is
refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from cutwater.declarative.datasets import FORMAT, Dataset
from cutwater.declarative.definitions import DatasetDefinition
from cutwater.declarative.discovery import DatasetFacts, Way
from cutwater.declarative.names import TableName
from cutwater.declarative.spec import ProjectSpec
from cutwater.errors import ConfigError
from cutwater.pipeline.nodes import SinkTarget
from cutwater.sinks.catalog_table import files_of
from cutwater.sinks.created_table import CreatedTable
from cutwater.sinks.delta.target import delta
from cutwater.sinks.files.target import FilesOptions, FilesTarget, files
from cutwater.sinks.kafka.target import kafka
from cutwater.sinks.sql_text import quoted
from cutwater.store.backends.location import file_path

_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_KAFKA: Final[Mapping[str, str]] = {
    "kafka.compression.type": "compression.type",
    "kafka.linger.ms": "linger.ms",
    "kafka.security.protocol": "security.protocol",
}
"""Options of Spark's Kafka sink that librdkafka has under the same name, with the same values."""

_STAGED: Final = "_cutwater"


class TargetRefused(Exception):
    """Rows cannot go where they should; the end of a sentence that begins with the dataset."""


def table_target(facts: DatasetFacts, spark: SparkSession) -> CreatedTable:
    """Return the table of a dataset as a target.

    Raises:
        TargetRefused: If the table's place cannot be written exactly once.
    """
    dataset = facts.dataset
    assert dataset.table is not None
    whole = facts.way is Way.STATIC or facts.mode == "complete"
    options = FilesOptions(
        write="overwrite" if whole else "append",
        partition_by=dataset.definition.partition_columns,
    )
    try:
        place = table_directory(spark, dataset.table)
        target = FilesTarget(place, FORMAT, options)
        target.stored()
    except ConfigError as error:
        raise TargetRefused(f"cannot be written to: {error.reason}") from error
    return CreatedTable(
        name=dataset.table.sql,
        title=str(dataset.table),
        files=target,
        columns=facts.columns,
        query=facts.query,
        accepts=frozenset({facts.mode}),
        comment=dataset.definition.comment,
        properties=dataset.definition.properties,
    )


def table_directory(spark: SparkSession, table: TableName) -> str:
    """Return where a table is in the catalog, or would be if it were created."""
    if spark.catalog.tableExists(table.sql):
        return files_of(spark, table.sql).uri
    database = f"{quoted(table.catalog)}.{quoted(table.database)}"
    location = spark.catalog.getDatabase(database).locationUri
    # Spark's session catalog knows tables by lower-case names.
    return f"{location.rstrip('/')}/{table.table.lower()}"


def sink_target(dataset: Dataset, spec: ProjectSpec) -> SinkTarget:
    """Return the sink of Cutwater that writes what a declared sink writes.

    Raises:
        TargetRefused: If there is none.
    """
    definition = dataset.definition
    try:
        match (definition.format or "").lower():
            case "kafka":
                return _kafka(definition, dataset.key, spec)
            case "delta":
                return delta(_path(definition))
            case "parquet":
                return files(_path(definition), "parquet")
            case other:
                raise TargetRefused(
                    f"has the format {other}, which Cutwater does not write exactly as Spark does; "
                    "use kafka, delta or parquet"
                )
    except ConfigError as error:
        raise TargetRefused(f"cannot be written to: {error.reason}") from error


def _path(definition: DatasetDefinition) -> str:
    others = sorted(name for name in definition.options if name.lower() != "path")
    if others:
        raise TargetRefused(
            f"has the option {others[0]}, which Cutwater does not know; leave it out"
        )
    found = [value for name, value in definition.options.items() if name.lower() == "path"]
    if not found:
        raise TargetRefused("has no option path; name the directory of its files")
    return found[0]


def _kafka(definition: DatasetDefinition, key: str, spec: ProjectSpec) -> SinkTarget:
    options = dict(definition.options)
    bootstrap, topic = options.pop(_BOOTSTRAP, None), options.pop("topic", None)
    if bootstrap is None:
        raise TargetRefused(f"has no option {_BOOTSTRAP}")
    unknown = sorted(options.keys() - _KAFKA.keys())
    if unknown:
        known = ", ".join(sorted(_KAFKA))
        raise TargetRefused(
            f"has the option {unknown[0]}, which Cutwater's Kafka sink has no exact equivalent of; "
            f"it has {known}"
        )
    storage = file_path(spec.storage, "storage") or spec.storage
    if "://" in storage:
        raise TargetRefused(
            f"needs a directory for rows that wait for their checkpoint, and storage is {storage}"
        )
    return kafka(
        bootstrap,
        staging=str(Path(storage) / _STAGED / spec.name / key),
        topic=topic,
        options={_KAFKA[name]: value for name, value in options.items()},
    )
