"""The file in which Spark's Kafka source keeps where it began, in the query's directory.

    sources/0/0      a zero byte, `v1`, a line break, and the offsets as in the offset log

Spark writes it once, when a query without a position starts, and starts there as long as the query
has no position. So the file is what pins a start at the newest record.
"""

from pathlib import Path
from typing import Final

_FIRST: Final = "0"
_HEADER: Final = b"\x00v1\n"


def read_start(log: Path | None) -> str | None:
    """Return where a source began, by its directory; None if it has not begun."""
    if log is None:
        return None
    try:
        data = (log / _FIRST).read_bytes()
    except FileNotFoundError:
        return None
    return data.removeprefix(_HEADER).decode() if data.startswith(_HEADER) else None


def write_start(log: Path, offsets: str) -> None:
    """Let a source begin there; a source that has begun is left as it is."""
    log.mkdir(parents=True, exist_ok=True)
    file = log / _FIRST
    if read_start(log) is None:
        file.write_bytes(_HEADER + offsets.encode())
