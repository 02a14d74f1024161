"""The output of commands: text or JSON on stdout, errors as one line on stderr, exit codes.

Numbers are formatted the same way everywhere. Control characters are escaped, since text may come
from rows, servers or users. With `--output json` errors are JSON on stdout too, as `{"error": {…}}`
with the code that the documentation explains.
"""

import json
import signal
import sys
from enum import StrEnum
from typing import Any, Final

import rich.table
from rich.console import RenderableType as Cell
from rich.text import Text

from cutwater.errors import (
    CutwaterError,
    Fenced,
    HolderUnknown,
    PipelineHeld,
    Superseded,
    UserError,
)
from cutwater.printable import printable, printable_json, printable_line

SUCCESS: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
NOT_OURS: Final = 3
UNSAVED: Final = 4
HUNG_UP: Final = 129
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_KIB: Final = 1024.0
_OTHER_PROCESS: Final = (Fenced, HolderUnknown, PipelineHeld, Superseded)


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


def exit_code(error: CutwaterError) -> int:
    """Return the exit code for an error; `cutwater run --help` lists them."""
    if isinstance(error, UserError):
        return WRONG_USE
    return NOT_OURS if isinstance(error, _OTHER_PROCESS) else FAILED


def exit_code_of(number: signal.Signals) -> int:
    """Return the exit code for a signal that ended a command before its work was done."""
    return HUNG_UP if number is signal.SIGHUP else TERMINATED


def say(text: str) -> None:
    """Write a line to stdout, at once: it may be read through a pipe."""
    print(printable(text), flush=True)


def say_json(value: object, *, indent: int | None = None) -> None:
    """Write one JSON value to stdout; on one line unless an indent is given."""
    print(printable_json(json.dumps(value, indent=indent, ensure_ascii=False)), flush=True)


def complain(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


class Table(rich.table.Table):
    """A table whose headers and cells are text that is safe to show, each on one line."""

    # The other arguments are passed on to the base class.

    def add_column(self, header: Cell = "", *more: Any, **named: Any) -> None:  # noqa: ANN401
        super().add_column(_safe(header) or "", *more, **named)

    def add_row(self, *cells: Cell | None, **named: Any) -> None:  # noqa: ANN401
        super().add_row(*map(_safe, cells), **named)


def _safe(cell: Cell | None) -> Cell | None:
    """Return a safe cell: text is plain and on one line, other cells are unchanged."""
    return Text(printable_line(cell)) if isinstance(cell, str) else cell


def report_error(error: CutwaterError, *, as_json: bool) -> int:
    """Report what went wrong, why and what to do; return the exit code."""
    code = exit_code(error)
    if as_json:
        fields = {"code": error.code, "message": error.message, "next_step": error.next_step}
        say_json({"error": {**fields, "exit_code": code}})
    else:
        complain(str(error))
    return code


def report_unexpected(error: Exception, *, as_json: bool) -> int:
    """Report an unexpected error; return the exit code."""
    text = " ".join(str(error).split())[:500]
    message = f"{type(error).__name__}: {text} This is not an error that Cutwater expects;"
    next_step = "run it again with --debug to see where it comes from."
    if as_json:
        fields = {"code": CutwaterError.code, "message": message, "next_step": next_step}
        say_json({"error": {**fields, "exit_code": FAILED}})
    else:
        complain(f"[{CutwaterError.code}] {message} {next_step}")
    return FAILED


def bytes_text(size_bytes: float) -> str:
    """Write a size with a unit: `0 B`, `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < _KIB:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:.1f} TB"


def duration_text(duration_ms: int) -> str:
    """Write a duration with a unit: `250 ms`, `1.5 s`, `2 min 5 s`."""
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1_000:.1f} s"
    minutes, rest_ms = divmod(duration_ms, 60_000)
    return f"{minutes} min {rest_ms // 1_000} s"


def count_text(count: int, noun: str) -> str:
    """Write a number with its noun: `1 restart`, `2 restarts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
