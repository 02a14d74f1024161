"""What definition files declare: datasets, sinks and flows, each with its line.

`Definitions` is Cutwater's registry of graph elements, which the decorators of `pyspark.pipelines`
fill while a definition file is imported. It needs no JVM and no Spark Connect; functions are kept
and not called. SQL files are kept as text, since only Spark's parser can read them
(`sql_definitions`). What Cutwater cannot run is noted as a problem, so that all of it is reported
together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry
from pyspark.pipelines.output import (
    MaterializedView,
    Output,
    Sink,
    StreamingTable,
    Table,
    TemporaryView,
)
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql.types import StructType

from cutwater.declarative.names import parts_of
from cutwater.pipeline.nodes import SourceLocation
from cutwater.planning.validation import Problem

if TYPE_CHECKING:
    # Not every version of Spark with declarative pipelines has it.
    from pyspark.pipelines.flow import AutoCdcFlow


class DatasetKind(Enum):
    """The kinds of datasets, by the words of messages."""

    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    TEMPORARY_VIEW = "temporary view"
    VIEW = "view"
    SINK = "sink"

    @property
    def is_table(self) -> bool:
        return self in {DatasetKind.STREAMING_TABLE, DatasetKind.MATERIALIZED_VIEW}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDefinition:
    """One declared dataset or sink.

    Attributes:
        name: The parts of its name, of which the last one is always there.
        columns: Its columns if they are declared: a schema, or text that Spark parses.
        format: Of a table or sink; None for the session's default.
        options: Of a sink.
        text: Of a view in the catalog, its query.
    """

    name: tuple[str, ...]
    kind: DatasetKind
    place: SourceLocation
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    columns: StructType | str | None = None
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def title(self) -> str:
        """The dataset as messages call it."""
        return f"{self.kind.value} {'.'.join(self.name)}"


@dataclass(frozen=True, slots=True)
class FlowDefinition:
    """One declared flow: a query, and the dataset or sink that it writes to.

    Attributes:
        name: The parts of its name: one, or those of its dataset.
    """

    name: tuple[str, ...]
    target: tuple[str, ...]
    place: SourceLocation
    function: Callable[[], object]

    @property
    def title(self) -> str:
        return f"flow {'.'.join(self.name)}"


@dataclass(frozen=True, slots=True)
class SqlFile:
    """The text of a SQL definition file."""

    path: Path
    text: str


@dataclass(slots=True)
class Definitions(GraphElementRegistry):
    """The registry that a project's definition files fill."""

    datasets: list[DatasetDefinition] = field(default_factory=list)
    flows: list[FlowDefinition] = field(default_factory=list)
    sql_files: list[SqlFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    refused_targets: set[tuple[str, ...]] = field(default_factory=set)

    def refuse(self, place: SourceLocation, reason: str) -> None:
        self.problems.append(Problem(place, reason))

    def register_output(self, output: Output) -> None:
        place = place_of(output.source_code_location)
        name = self._parts(output.name, place)
        if name is None:
            return
        match output:
            case StreamingTable():
                self._add_table(DatasetKind.STREAMING_TABLE, name, output, place)
            case MaterializedView():
                self._add_table(DatasetKind.MATERIALIZED_VIEW, name, output, place)
            case TemporaryView():
                kind = DatasetKind.TEMPORARY_VIEW
                self.datasets.append(DatasetDefinition(name=name, kind=kind, place=place))
            case Sink():
                options = {str(key): str(value) for key, value in output.options.items()}
                self.datasets.append(
                    DatasetDefinition(
                        name=name,
                        kind=DatasetKind.SINK,
                        place=place,
                        format=output.format,
                        options=options,
                    )
                )
            case _:
                kind_name = type(output).__name__
                self.refuse(place, f"{output.name} is a {kind_name}, which Cutwater does not know")

    def _parts(self, name: str, place: SourceLocation) -> tuple[str, ...] | None:
        try:
            return parts_of(name)
        except ValueError as error:
            self.refuse(place, str(error))
            return None

    def _add_table(
        self, kind: DatasetKind, name: tuple[str, ...], table: Table, place: SourceLocation
    ) -> None:
        if table.cluster_by:
            columns = ", ".join(table.cluster_by)
            self.refuse(
                place,
                f"{kind.value} {table.name} has cluster_by ({columns}), and the files of its table "
                "cannot be clustered; leave it out or use partition_cols",
            )
        self.datasets.append(
            DatasetDefinition(
                name=name,
                kind=kind,
                place=place,
                comment=table.comment,
                properties=dict(table.table_properties),
                partition_columns=tuple(table.partition_cols or ()),
                columns=table.schema,
                format=table.format,
            )
        )

    def register_flow(self, flow: Flow) -> None:
        place = place_of(flow.source_code_location)
        if flow.spark_conf:
            settings = ", ".join(sorted(flow.spark_conf))
            self.refuse(
                place,
                f"flow {flow.name} has spark_conf ({settings}), and all flows share one session; "
                "put the settings into the configuration of the spec",
            )
        name, target = self._parts(flow.name, place), self._parts(flow.target, place)
        if name is not None and target is not None:
            self.flows.append(FlowDefinition(name, target, place, flow.func))

    def register_auto_cdc_flow(self, flow: "AutoCdcFlow") -> None:
        """Refuse it; `definition_files` does so before pyspark needs Spark Connect for it."""
        place = place_of(flow.source_code_location)
        self.refuse_changes(place, flow.name or flow.target, parts_of(flow.target))

    def refuse_changes(self, place: SourceLocation, name: str, target: tuple[str, ...]) -> None:
        """Refuse a flow of changes; its target then has no other problem for lack of a flow."""
        self.refuse(
            place,
            f"flow {name} applies changes (AUTO CDC), and no sink of Cutwater does exactly that: "
            "an upsert keeps the row that arrived last, not the one with the highest sequence, "
            "and has no deletes and no history; write the changes to a streaming table instead",
        )
        self.refused_targets.add(target)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        self.sql_files.append(SqlFile(file_path, sql_text))


def place_of(location: SourceCodeLocation) -> SourceLocation:
    return SourceLocation(location.filename, location.line_number or 0)
