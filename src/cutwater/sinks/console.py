"""The console as a target: prints the rows of each commit.

For experiments. Rows are printed after the decision and never before. A console keeps nothing, so
that it cannot be read back, and printed rows stay printed after a rewind.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, Generation, Slot
from cutwater.printable import printable_line
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.sinks.base import OpenSink, RestorePreview, Rows, SinkContext, share_disk
from cutwater.store.backends.directories import matching, try_to_remove_tree
from cutwater.store.records.targets import StoredTarget

_WIDTH_MAX: Final = 40
_WAITING_MAX: Final = 1000
"""How many batches are remembered until their commit."""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def console(rows: int = 20) -> "ConsoleTarget":
    """Print the rows of each commit to standard output, up to a number.

    Rows that an earlier process staged are counted and not shown: after a crash a commit is
    repeated, and it is unknown whether it was printed before.

    Args:
        rows: How many rows of each commit are shown.

    Raises:
        ConfigError: If the number is negative.
    """
    if rows < 0:
        raise ConfigError("rows", f"{rows} is less than none")
    return ConsoleTarget(rows)


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """Standard output; made by `console`, fills `Sink`."""

    rows: int = 20

    @property
    def format(self) -> str:
        return "console"

    @property
    def accepts(self) -> frozenset[str]:
        return frozenset({"append", "update", "complete"})

    def describe(self) -> str:
        return "standard output"

    def open(self, context: SinkContext) -> OpenSink:
        return OpenConsole(context, self.rows)

    def stored(self) -> StoredTarget:
        """An empty place, which no two targets share."""
        return StoredTarget(self.format, "")


def reopen_console(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open it for a rewind or fork; nothing is printed then."""
    del target
    return OpenConsole(context, 0)


class OpenConsole:
    """Standard output in use by one generation; fills `OpenSink`."""

    def __init__(self, context: SinkContext, rows: int) -> None:
        self._context = context
        self._rows = rows
        self._waiting: dict[tuple[Generation, BatchId], Table] = {}
        self._printed: Slot | None = None

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        """Compute the rows of one batch, with exactly one Spark action, and keep the first rows.

        All rows are written to a temporary directory: computing only some of them would leave a
        stateful step without its state.
        """
        directory = Path(tempfile.mkdtemp(prefix="cutwater-console-"))
        try:
            written = rows.write_parquet(f"file://{directory / 'rows'}", {})
            found, table = _read_first_rows(directory / "rows", self._rows)
        except OSError as error:
            raise SinkError(self._context.sink, f"cannot stage: {error}") from error
        finally:
            try_to_remove_tree(directory)
        # Executors may write to other disks: their rows are counted, and not shown.
        if written != found and share_disk(self._context.spark):
            reason = f"the executors wrote {written} rows and {found} are in {directory}"
            raise SinkError(self._context.sink, reason)
        if not written:
            return None
        self._waiting[generation, batch] = table
        while len(self._waiting) > _WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        return Committable(self._context.sink, generation, batch, written, ())

    def problem(self, committable: Committable) -> str | None:
        """Return None: rows that are not here are counted and not shown."""
        del committable
        return None

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Print what was committed, once in this process."""
        if committables and self._printed != permit.slot:
            self._printed = permit.slot
            _print(self._lines(permit, committables))
        return str(permit.slot)

    def _lines(self, permit: CommitPermit, committables: Sequence[Committable]) -> Iterator[str]:
        total = sum(committable.rows for committable in committables)
        noun = "row" if total == 1 else "rows"
        yield f"-- {self._context.sink}, checkpoint {permit.checkpoint_id}: {total} {noun}"
        left, unknown, header = self._rows, 0, None
        shown: list[tuple[str, ...]] = []
        for committable in committables:
            table = self._waiting.pop((committable.generation, committable.batch), None)
            if table is None:
                unknown += committable.rows
                continue
            if header not in {None, table[0]}:
                yield from _draw_table(header or (), shown)
                shown = []
            header = table[0]
            shown += table[1][:left]
            left -= len(table[1][:left])
        if header is not None and shown:
            yield from _draw_table(header, shown)
        hidden = total - unknown - (self._rows - left)
        if hidden > 0:
            yield f"   and {hidden} more"
        if unknown:
            reason = "by an earlier process, which may have printed them"
            yield f"   {unknown} of them were staged {reason}: not shown"

    def look_back(self, version: Version | None) -> RestorePreview:
        """Return that a restore is possible; printed rows stay printed."""
        return RestorePreview(str(version or 0))

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Print that rows printed after a version no longer count."""
        if self._context.spark is not None and self._printed != permit.slot:
            self._printed = permit.slot
            since = "everything" if version is None else f"everything after slot {version}"
            _print([f"-- {self._context.sink}: a rewind takes {since} back"])
        return str(permit.slot)

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Do nothing: nothing is kept."""


def _print(lines: Iterable[str]) -> None:
    """Print lines; a closed output does not fail the commit."""
    text = "".join(f"{line}\n" for line in lines)
    with suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _read_first_rows(directory: Path, rows: int) -> tuple[int, Table]:
    """Count the rows of Parquet files and read the first of them."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - only staging needs it

    total = 0
    names: tuple[str, ...] = ()
    shown: list[tuple[str, ...]] = []
    for file in matching(directory, "*.parquet"):
        with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
            total += opened.metadata.num_rows
            names = tuple(map(printable_line, opened.schema_arrow.names))
            batches = opened.iter_batches(max(rows - len(shown), 1))
            for batch in islice(batches, 1 if len(shown) < rows else 0):
                found = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                shown += [tuple(map(_cell, row)) for row in found]
    return total, (names, shown[:rows])


def _cell(value: object) -> str:
    text = printable_line("null" if value is None else str(value))
    return text if len(text) <= _WIDTH_MAX else f"{text[: _WIDTH_MAX - 1]}…"


def _draw_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"   {' | '.join(cells)}".rstrip()
