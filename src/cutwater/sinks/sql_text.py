"""Statements for Spark's catalog: names and texts in SQL's quotes, and why one was refused.

A module of its own because the tables of sinks and the datasets of declarative projects both need
it, and neither of them belongs to the other.
"""


def quoted(part: str) -> str:
    """Return one part of a name in SQL's quotes."""
    return "`" + part.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text in SQL's quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def refusal_reason(error: Exception) -> str:
    """Return why Spark refuses a statement, as part of a sentence: its first line."""
    return str(error).strip().split("\n", 1)[0].split(" SQLSTATE", 1)[0].rstrip(".")
