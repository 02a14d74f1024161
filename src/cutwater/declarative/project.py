"""Loads a declarative project: from `spark-pipeline.yml` to a `Pipeline`.

The stages, each in a module of its own: read the spec; import the definition files, without Spark
where they allow it; start Spark; read the SQL files; assemble datasets and flows; discover what
flows read; make targets and nodes. Problems of all stages after the spec are reported together.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutwater.declarative.datasets import Dataset, Datasets, assemble
from cutwater.declarative.definition_files import import_definitions, working_directory
from cutwater.declarative.definitions import DatasetKind, Definitions
from cutwater.declarative.discovery import DatasetFacts, Discovery, Way
from cutwater.declarative.evaluation import evaluate_statement
from cutwater.declarative.names import Namespace
from cutwater.declarative.nodes import ProjectNodes, is_written
from cutwater.declarative.session import NeedsSpark, ProjectSession
from cutwater.declarative.spec import (
    OVERRIDES,
    ProjectSpec,
    definition_files,
    find_spec,
    read_spec,
)
from cutwater.declarative.sql_definitions import declare_sql
from cutwater.declarative.targets import TargetRefused, sink_target, table_target
from cutwater.errors import ConfigError, DeclarationError, PlanError
from cutwater.pipeline.declarations import check_name
from cutwater.pipeline.nodes import Node, SinkTarget
from cutwater.pipeline.pipeline import Pipeline
from cutwater.planning.validation import Problem
from cutwater.sinks.created_table import CreatedTable
from cutwater.sinks.sql_text import literal, quoted, refusal_reason
from cutwater.spark.analysis.self_reads import address_of
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.sql_statements import SqlStatements

_DEFAULT_FORMAT: Final = "spark.sql.sources.default"

StartSpark = Callable[[Mapping[str, str]], SparkSession]
"""Starts the session with the settings of a project, under those of the user; may be repeated."""


@dataclass(frozen=True, slots=True)
class CatalogView:
    """A view of the catalog that a project declares: the statement that publishes it."""

    title: str
    statement: str

    def publish(self, spark: SparkSession) -> PySparkException | None:
        """Create or replace the view; return why the catalog refuses it, if it does."""
        try:
            spark.sql(self.statement)
        except PySparkException as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class Project:
    """A loaded project."""

    pipeline: Pipeline
    tables: tuple[CreatedTable, ...]
    views: tuple[CatalogView, ...]

    def publish(self, spark: SparkSession) -> None:
        """Create the tables and views in the catalog, as `spark-pipelines run` does first.

        Raises:
            ConfigError: If the catalog refuses one.
        """
        for table in self.tables:
            table.ensure(spark)
        pending = list(self.views)
        while pending:
            # A view may read one that comes after it, and is then created in a later round.
            refused = {
                view: error for view in pending if (error := view.publish(spark)) is not None
            }
            if len(refused) == len(pending):
                view, error = next(iter(refused.items()))
                reason = refusal_reason(error)
                raise ConfigError(view.title, f"the catalog refuses it: {reason}") from error
            pending = list(refused)


def load_project(path: Path, parameters: Mapping[str, str], start: StartSpark) -> Project:
    """Load a project.

    Args:
        path: Its spec, or the directory of the spec.
        parameters: `catalog` and `database`, in place of those of the spec.
        start: Starts Spark. Called once the files that need no Spark are imported, or because one
            needs it.

    Raises:
        ConfigError: If there is no such spec or parameter.
        PlanError: With all problems of the project, each with its file and line.
    """
    unknown = sorted(parameters.keys() - set(OVERRIDES))
    if unknown:
        reason = f"a declarative project takes {' and '.join(OVERRIDES)}; give settings by --conf"
        raise ConfigError("--param", f"{', '.join(unknown)}: no such parameter; {reason}")
    spec = read_spec(find_spec(path), parameters)
    try:
        check_name(spec.name, "a pipeline", spec.place("name"))
    except DeclarationError as error:
        raise PlanError(spec.name, f"{error.where}: {error.reason}") from error
    return _Loading(spec, start).run()


class _Loading:
    """The stages of loading one project."""

    def __init__(self, spec: ProjectSpec, start: StartSpark) -> None:
        self._spec = spec
        self._session = ProjectSession()
        self._start = partial(start, spec.configuration)
        self._problems: list[Problem] = []

    def run(self) -> Project:
        files = definition_files(self._spec)
        try:
            definitions = self._import(files)
        except NeedsSpark:
            self._session.start(self._start())
            definitions = self._import(files)
        spark = self._start()
        self._session.start(spark)
        namespace = self._enter_namespace(spark)
        internals = Internals(spark)
        for file in definitions.sql_files:
            evaluate = partial(evaluate_statement, self._session)
            declare_sql(file, definitions, SqlStatements(internals), evaluate)
        default_format = str(spark.conf.get(_DEFAULT_FORMAT))
        datasets, self._problems = assemble(definitions, namespace, default_format)
        discovery = Discovery(datasets, self._session, internals, self._spec.root)
        with working_directory(self._spec.root):
            facts = discovery.run()
        self._problems += discovery.problems
        project = self._build(spark, datasets, facts)
        if self._problems:
            problems = sorted(set(self._problems))
            raise PlanError(self._spec.name, *(f"{problem}." for problem in problems))
        return project

    def _import(self, files: tuple[Path, ...]) -> Definitions:
        return import_definitions(self._spec.root, files, self._session, pyspark.__version__)

    def _enter_namespace(self, spark: SparkSession) -> Namespace:
        """Make the spec's catalog and database those of names that have none."""
        spec = self._spec
        for field, name in (("catalog", spec.catalog), ("database", spec.database)):
            if name is None:
                continue
            try:
                if field == "catalog":
                    spark.catalog.setCurrentCatalog(name)
                else:
                    spark.catalog.setCurrentDatabase(quoted(name))
            except PySparkException as error:
                reason = f"there is no {field} {name}; create it, or name another"
                raise PlanError(spec.name, f"{spec.place(field)}: {reason}") from error
        return Namespace(spark.catalog.currentCatalog(), spark.catalog.currentDatabase())

    def _build(
        self, spark: SparkSession, datasets: Datasets, facts: Mapping[str, DatasetFacts]
    ) -> Project:
        targets = dict(self._targets(spark, facts))
        tables = tuple(target for target in targets.values() if isinstance(target, CreatedTable))
        self._refuse_self_reads(facts, targets)
        pipeline = Pipeline(self._spec.name)
        pipeline.place = self._spec.place("name")
        for node in ProjectNodes(datasets, self._session, facts, targets).all():
            self._add(pipeline, node)
        views = tuple(
            _catalog_view(dataset) for dataset in datasets.all if dataset.kind is DatasetKind.VIEW
        )
        return Project(pipeline, tables, views)

    def _targets(
        self, spark: SparkSession, facts: Mapping[str, DatasetFacts]
    ) -> Iterator[tuple[str, SinkTarget]]:
        for key, found in facts.items():
            dataset = found.dataset
            if not is_written(dataset):
                continue
            try:
                if dataset.kind is DatasetKind.SINK:
                    yield key, sink_target(dataset, self._spec)
                else:
                    yield key, table_target(found, spark)
            except TargetRefused as error:
                reason = f"{dataset.title} {error}"
                self._problems.append(Problem(dataset.definition.place, reason))

    def _refuse_self_reads(
        self, facts: Mapping[str, DatasetFacts], targets: Mapping[str, SinkTarget]
    ) -> None:
        """Refuse to compute a table from the files of another one of the project (rule F40).

        Streams are checked when the pipeline is planned.
        """
        written = [
            (address_of(target.files.uri), target)
            for target in targets.values()
            if isinstance(target, CreatedTable)
        ]
        for found in facts.values():
            if found.way is not Way.STATIC:
                continue
            (flow,) = found.flows
            for path in sorted({path for node in flow.plan.walk() for path in node.reads}):
                for address, target in written:
                    if address_of(path).is_in(address):
                        reason = f"reads {path}, which is table {target.title}; read it by its name"
                        problem = Problem(flow.flow.place, f"{flow.flow.title} {reason}")
                        self._problems.append(problem)

    def _add(self, pipeline: Pipeline, node: Node) -> None:
        try:
            check_name(node.name, f"a {node.kind.value}", node.place)
            pipeline.add(node)
        except DeclarationError as error:
            self._problems.append(Problem(node.place, error.reason))


def _catalog_view(dataset: Dataset) -> CatalogView:
    assert dataset.table is not None
    definition = dataset.definition
    properties = ", ".join(
        f"{literal(name)} = {literal(value)}"
        for name, value in sorted(definition.properties.items())
    )
    clauses = (
        f"CREATE OR REPLACE VIEW {dataset.table.sql}",
        f"COMMENT {literal(definition.comment)}" if definition.comment else "",
        f"TBLPROPERTIES ({properties})" if properties else "",
        f"AS {definition.text}",
    )
    return CatalogView(str(dataset.table), " ".join(filter(None, clauses)))
