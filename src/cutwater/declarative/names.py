"""The names of datasets: parts as SQL writes them, and what a name without all parts means.

A table is known by catalog, database and name; a temporary view by its name alone, which comes
first, as in `spark-pipelines`. Names are compared as they are written. A node of a pipeline has no
dots in its name, so it is called after the parts that differ from the project's own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cutwater.sinks.sql_text import quoted

_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^`.\s]+)")
PARTS_MAX: Final = 3


class TableName(NamedTuple):
    """The whole name of a table."""

    catalog: str
    database: str
    table: str

    def __str__(self) -> str:
        return ".".join(self)

    @property
    def sql(self) -> str:
        """The name as SQL reads it, whatever characters it has."""
        return ".".join(quoted(part) for part in self)


def parts_of(text: str) -> tuple[str, ...]:
    """Split a name such as `shop.orders`, whose parts may be quoted.

    Raises:
        ValueError: If it is no name of one to three parts.
    """
    found: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            break
        found.append(match[1].replace("``", "`") if match[1] else match[2])
        position = match.end()
        if position == len(text) and len(found) <= PARTS_MAX:
            return tuple(found)
        if text[position : position + 1] != ".":
            break
        position += 1
    raise ValueError(f"{text!r} is no name of a table")


@dataclass(frozen=True, slots=True)
class Namespace:
    """The catalog and database of names that have none of their own."""

    catalog: str
    database: str

    def qualify(self, parts: Sequence[str]) -> TableName:
        """Return the whole name that one to three parts stand for."""
        missing = (self.catalog, self.database)[: PARTS_MAX - len(parts)]
        return TableName(*missing, *parts)

    def node_name(self, name: TableName) -> str:
        """Return what a node is called: the parts from the first one that is not the project's."""
        if name.catalog != self.catalog:
            return "-".join(name)
        if name.database != self.database:
            return f"{name.database}-{name.table}"
        return name.table
