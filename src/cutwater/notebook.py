"""How values look in a notebook: tables and drawings as plain HTML, without styles or scripts.

Everything is escaped: names and messages are a user's, and a notebook may be shared.
"""

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a caption; None becomes an empty cell."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def drawing(text: str) -> str:
    """Return preformatted text, whose columns stay aligned."""
    return f"<pre>{escape(text)}</pre>"


def _text(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else str(value))
