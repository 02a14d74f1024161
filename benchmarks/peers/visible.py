"""What a reader of a table sees, and since when: for Delta, Spark's file sink, and plain files.

Rows of a live run carry the number of the file they came in with, in the column `auction`. A number
is visible when a file with its rows belongs to the table: named by a version of Delta's log, by an
entry of the file sink's log, or by a name that is no longer hidden.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

NUMBER: Final = "auction"
_LOOK_S: Final = 0.01


def delta_files(table: Path, entry: int) -> list[Path] | None:
    """Return the files that a version of a Delta table adds; None before it is there."""
    file = table / "_delta_log" / f"{entry:020d}.json"
    if not file.exists():
        return None
    actions = [json.loads(line) for line in file.read_text().splitlines() if line]
    return [table / unquote(action["add"]["path"]) for action in actions if "add" in action]


def sink_files(table: Path, entry: int) -> list[Path] | None:
    """Return the files that an entry of the file sink's log adds; None before it is there.

    Every tenth entry also repeats all before it.
    """
    for name in (f"{entry}", f"{entry}.compact"):
        file = table / "_spark_metadata" / name
        if file.exists():
            lines = file.read_text().splitlines()[1:]
            paths = [urlparse(json.loads(line)["path"]).path for line in lines if line]
            return [Path(unquote(path)) for path in paths]
    return None


class LogListing:
    """The files of a table that has a log, one entry after the other."""

    def __init__(self, table: Path, entry: Callable[[Path, int], list[Path] | None]) -> None:
        self._table = table
        self._entry = entry
        self._next = 0
        self._known: set[Path] = set()

    def look(self) -> list[Path]:
        """Return the files that have become visible since the last look."""
        found: list[Path] = []
        while (files := self._entry(self._table, self._next)) is not None:
            found += [file for file in files if file not in self._known]
            self._known |= set(files)
            self._next += 1
        return found


class DirectoryListing:
    """The files of a table that is a directory: whatever is not hidden."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._known: set[Path] = set()

    def look(self) -> list[Path]:
        """Return the files that have become visible since the last look."""
        if not self._table.exists():
            return []
        found = [
            file
            for file in self._table.iterdir()
            if not file.name.startswith((".", "_")) and file not in self._known
        ]
        self._known |= set(found)
        return found


def listing_of(engine: str, table: Path) -> LogListing | DirectoryListing:
    """Return how the files of an engine's tables become visible."""
    if engine.startswith("cutwater"):
        return LogListing(table, delta_files)
    if engine.startswith("flink"):
        return DirectoryListing(table)
    return LogListing(table, sink_files)


class Reader:
    """Looks at a table without end and notes when each number was first seen, and how often."""

    def __init__(self, listing: LogListing | DirectoryListing) -> None:
        self._listing = listing
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at_s: dict[int, float] = {}
        self.rows: Counter[int] = Counter()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Read the files that are new."""
        files = self._listing.look()
        seen_s = time.time()
        for file in files:
            numbers = pq.read_table(file, columns=[NUMBER]).column(NUMBER).to_numpy()
            self.rows.update(numbers.tolist())
            for number in set(numbers.tolist()):
                self.at_s.setdefault(number, seen_s)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()
