"""SQL definition files: split into statements, each read by Spark's parser and declared.

A file holds the statements of `spark-pipelines`: streaming tables, materialized views, views,
temporary views and flows. A statement that Cutwater cannot run is a problem with its line, and the
other statements are read nevertheless.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from cutwater.declarative.definitions import (
    DatasetDefinition,
    DatasetKind,
    Definitions,
    FlowDefinition,
    SqlFile,
)
from cutwater.pipeline.nodes import SourceLocation
from cutwater.planning.validation import Problem
from cutwater.sinks.sql_text import refusal_reason
from cutwater.spark.jvm.plans.sql_statements import SqlStatement, SqlStatements, StatementKind

Evaluate = Callable[[str], DataFrame]
"""Evaluates the query in a statement, for the flow that is called now."""

_KINDS: Final = {
    StatementKind.STREAMING_TABLE: DatasetKind.STREAMING_TABLE,
    StatementKind.STREAMING_TABLE_AS: DatasetKind.STREAMING_TABLE,
    StatementKind.STREAMING_TABLE_OF_CHANGES: DatasetKind.STREAMING_TABLE,
    StatementKind.MATERIALIZED_VIEW_AS: DatasetKind.MATERIALIZED_VIEW,
    StatementKind.TEMPORARY_VIEW: DatasetKind.TEMPORARY_VIEW,
    StatementKind.VIEW: DatasetKind.VIEW,
}
_QUOTES: Final = "'\"`"
_SETTINGS: Final = {
    "SetCommand": "SET, and all flows share one session; put it into the configuration of the spec",
    "SetNamespaceCommand": "USE, and a name means the same in all files; write the database before "
    "each name",
    "SetCatalogCommand": "USE, and a name means the same in all files; write the catalog before "
    "each name",
}
_CHANGES: Final = "Cdc"


class Statement(NamedTuple):
    """The text of one statement, and its line in the file."""

    text: str
    line: int


def split(text: str) -> tuple[Statement, ...]:
    """Split a file at the semicolons outside of quotes and comments.

    A part of blanks and comments alone is no statement.
    """
    found: list[Statement] = []
    start, first = 0, None
    for position, character in _code(text):
        if character == ";":
            if first is not None:
                found.append(Statement(text[start:position], _line(text, first)))
            start, first = position + 1, None
        elif first is None:
            first = position
    if first is not None:
        found.append(Statement(text[start:], _line(text, first)))
    return tuple(found)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the characters that are neither blanks nor part of a comment; a quote as a whole."""
    position, depth = 0, 0
    while position < len(text):
        pair, character = text[position : position + 2], text[position]
        if pair == "/*" or (depth and pair == "*/"):
            depth += 1 if pair == "/*" else -1
            position += 2
        elif depth:
            position += 1
        elif pair == "--":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif character in _QUOTES:
            yield position, character
            position = _end_of_quote(text, position)
        else:
            if not character.isspace():
                yield position, character
            position += 1


def _end_of_quote(text: str, start: int) -> int:
    """Return the position after a quoted text; the end of the file if the quote is not closed."""
    quote, position = text[start], start + 1
    while position < len(text):
        if text[position] == "\\" and quote != "`":
            position += 2
        elif text[position] == quote:
            return position + 1
        else:
            position += 1
    return len(text)


def declare_sql(
    file: SqlFile, definitions: Definitions, statements: SqlStatements, evaluate: Evaluate
) -> None:
    """Declare what a SQL file defines; problems go to the definitions too."""
    for text, line in split(file.text):
        place = SourceLocation(str(file.path), line)
        try:
            statement = statements.read(text)
        except PySparkException as error:
            reason = refusal_reason(error)
            definitions.refuse(place, f"Spark cannot parse this statement: {reason}")
            continue
        if _CHANGES in statement.plan:
            name = ".".join(statement.name)
            definitions.refuse_changes(place, name, statement.target)
            if statement.kind is StatementKind.FLOW:
                continue
        definitions.problems += [Problem(place, reason) for reason in _refusals(statement)]
        # Also what is refused, so that its readers are not reported as well.
        if statement.kind is not StatementKind.OTHER:
            _declare(statement, place, definitions, partial(evaluate, text))


def _refusals(statement: SqlStatement) -> Iterator[str]:
    title = ".".join(statement.name)
    if statement.kind is StatementKind.OTHER:
        known = _SETTINGS.get(statement.plan)
        other = f"defines datasets and flows, and this statement does neither ({statement.plan})"
        yield f"a definition file {f'has {known}' if known else other}"
    if statement.kind is StatementKind.TEMPORARY_VIEW and len(statement.name) > 1:
        yield f"temporary view {title} has a database, and temporary views have none"
    if statement.column_names:
        yield f"view {title} names its columns; write the names into its query, with AS"
    for clause in statement.extras:
        if statement.kind is StatementKind.FLOW:
            yield f"flow {title} is not of the form INSERT INTO … BY NAME SELECT …: {clause}"
        else:
            yield f"{title} has {clause}, which Cutwater cannot give its table; leave it out"


def _declare(
    statement: SqlStatement,
    place: SourceLocation,
    definitions: Definitions,
    function: Callable[[], DataFrame],
) -> None:
    name = statement.name
    if statement.kind is StatementKind.FLOW:
        definitions.flows.append(FlowDefinition(name, statement.target, place, function))
        return
    definitions.datasets.append(
        DatasetDefinition(
            name=name,
            kind=_KINDS[statement.kind],
            place=place,
            comment=statement.comment,
            properties=statement.properties,
            partition_columns=statement.partition_columns,
            columns=statement.columns,
            format=statement.provider,
            text=statement.query,
        )
    )
    has_query = statement.kind not in {
        StatementKind.STREAMING_TABLE,
        StatementKind.STREAMING_TABLE_OF_CHANGES,
    }
    if has_query:
        definitions.flows.append(FlowDefinition(name, name, place, function))
