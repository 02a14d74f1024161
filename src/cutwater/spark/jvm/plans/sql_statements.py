"""A statement that defines a dataset or a flow, read by Spark's own parser, as plain values.

The parser is that of the session, so the grammar is the one of the installed Spark. Statements of
other kinds are returned with their kind alone. This module decides nothing about them.
"""

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.spark.analysis.logical_plan import all_of, pairs_of
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.relations import FindRelation, Relations


class StatementKind(Enum):
    """The statements of definition files, by the names of Spark's plans."""

    STREAMING_TABLE = "CreateStreamingTable"
    STREAMING_TABLE_AS = "CreateStreamingTableAsSelect"
    STREAMING_TABLE_OF_CHANGES = "CreateStreamingTableAutoCdc"
    MATERIALIZED_VIEW_AS = "CreateMaterializedViewAsSelect"
    TEMPORARY_VIEW = "CreateViewCommand"
    VIEW = "CreateView"
    FLOW = "CreateFlowCommand"
    OTHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStatement:
    """One statement.

    Attributes:
        plan: Spark's name of its plan, for messages.
        name: The parts of the name that it defines.
        target: For a flow: the parts of the name of the table that it writes to.
        columns: The columns that it declares.
        column_names: For a view: the names that it gives its columns.
        partition_columns: The columns of PARTITIONED BY.
        extras: Clauses that are neither in these values nor in the query, as SQL names them.
        query: The text of a view's query.
    """

    kind: StatementKind
    plan: str
    name: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    columns: StructType | None = None
    column_names: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    provider: str | None = None
    comment: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    query: str = ""


_TABLES: Final = frozenset(
    {
        StatementKind.STREAMING_TABLE,
        StatementKind.STREAMING_TABLE_AS,
        StatementKind.MATERIALIZED_VIEW_AS,
    }
)
_INSERT: Final = "InsertIntoStatement"
_IDENTITY: Final = "identity"
_CLUSTERING: Final = "cluster_by"


class SqlStatements:
    """Reads statements in one session, and evaluates the queries in them."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals
        self._relations = Relations(internals)

    def read(self, text: str) -> SqlStatement:
        """Parse a statement.

        Raises:
            ParseException: If Spark cannot parse it.
        """
        plan = self._parse(text)
        name = str(plan.getClass().getSimpleName())
        kind = StatementKind(name) if name in {known.value for known in StatementKind} else None
        if kind in _TABLES:
            assert kind is not None
            return self._table(kind, plan)
        match kind:
            case StatementKind.TEMPORARY_VIEW:
                return self._temporary_view(plan)
            case StatementKind.VIEW:
                return self._view(plan)
            case StatementKind.FLOW:
                return self._flow(plan)
            case StatementKind.STREAMING_TABLE_OF_CHANGES:
                parts = _parts(plan.name())
                return SqlStatement(kind=kind, plan=name, name=parts, target=parts)
            case _:
                return SqlStatement(kind=StatementKind.OTHER, plan=name)

    def evaluate(self, text: str, find: FindRelation) -> DataFrame:
        """Return the result of the query in a statement, with its relations replaced.

        Raises:
            AnalysisException: If Spark cannot analyse it.
        """
        plan = self._parse(text)
        match plan.getClass().getSimpleName():
            case StatementKind.TEMPORARY_VIEW.value:
                query = plan.plan()
            case StatementKind.FLOW.value:
                query = plan.flowOperation().query()
            case _:
                query = plan.query()
        return self._relations.definition(query, find)

    def _parse(self, text: str) -> Any:
        return self._internals.session.sessionState().sqlParser().parsePlan(text)

    def _table(self, kind: StatementKind, plan: Any) -> SqlStatement:
        spec = plan.tableSpec()
        partitions, extras = [], []
        for transform in all_of(plan.partitioning()):
            references = [list(reference.fieldNames()) for reference in transform.references()]
            if transform.name() == _CLUSTERING:
                extras.append("CLUSTER BY")
            elif transform.name() != _IDENTITY or [len(names) for names in references] != [1]:
                extras.append(f"PARTITIONED BY ({transform.describe()})")
            else:
                partitions.append(str(references[0][0]))
        return SqlStatement(
            kind=kind,
            plan=kind.value,
            name=_parts(plan.name()),
            columns=self._columns(plan.columns()),
            partition_columns=tuple(partitions),
            extras=tuple(extras),
            provider=_text(spec.provider()),
            comment=_text(spec.comment()),
            properties=dict(pairs_of(spec.properties())),
        )

    def _columns(self, columns: Any) -> StructType | None:
        if not columns.size():
            return None
        schema = self._internals.no_columns()
        for column in all_of(columns):
            schema = schema.add(column.toV1Column())
        return StructType.fromJson(json.loads(schema.json()))

    def _temporary_view(self, plan: Any) -> SqlStatement:
        name = plan.name()
        parts = (*_option(name.catalog()), *_option(name.database()), str(name.table()))
        is_global = "Global" in str(plan.viewType().toString())
        return SqlStatement(
            kind=StatementKind.TEMPORARY_VIEW,
            plan=StatementKind.TEMPORARY_VIEW.value,
            name=parts,
            column_names=_first_of_each(plan.userSpecifiedColumns()),
            extras=("GLOBAL",) if is_global else (),
            comment=_text(plan.comment()),
        )

    def _view(self, plan: Any) -> SqlStatement:
        return SqlStatement(
            kind=StatementKind.VIEW,
            plan=StatementKind.VIEW.value,
            name=_parts(plan.child()),
            column_names=_first_of_each(plan.userSpecifiedColumns()),
            comment=_text(plan.comment()),
            properties=dict(pairs_of(plan.properties())),
            query=_text(plan.originalText()) or "",
        )

    def _flow(self, plan: Any) -> SqlStatement:
        operation = plan.flowOperation()
        kind, name = str(operation.getClass().getSimpleName()), _parts(plan.name())
        if kind != _INSERT:
            target = _parts(operation.targetTable())
            return SqlStatement(kind=StatementKind.FLOW, plan=kind, name=name, target=target)
        extras = [
            clause
            for clause, is_there in (
                ("PARTITION", bool(operation.partitionSpec().size())),
                ("a list of columns", bool(operation.userSpecifiedCols().size())),
                ("OVERWRITE", bool(operation.overwrite())),
                ("IF NOT EXISTS", bool(operation.ifPartitionNotExists())),
                ("no BY NAME", not operation.byName()),
            )
            if is_there
        ]
        return SqlStatement(
            kind=StatementKind.FLOW,
            plan=kind,
            name=name,
            target=tuple(map(str, all_of(operation.table().multipartIdentifier()))),
            extras=tuple(extras),
        )


def _parts(identifier: Any) -> tuple[str, ...]:
    return tuple(map(str, all_of(identifier.nameParts())))


def _first_of_each(pairs: Any) -> tuple[str, ...]:
    return tuple(str(pair._1()) for pair in all_of(pairs))


def _text(option: Any) -> str | None:
    return str(option.get()) if option.isDefined() else None


def _option(option: Any) -> tuple[str, ...]:
    text = _text(option)
    return () if text is None else (text,)
