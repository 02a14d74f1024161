"""How a run logs: with Python's default text format, or as JSON lines.

With `json` every record of Cutwater from INFO up goes to stderr as one JSON object per line; the
events of a run (`runtime.reporting.event_log`) have fields of their own. A thread writes them. A
slow reader of stderr loses lines, which is reported, and never blocks the pipeline.
"""

import json
import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, TextIO

import typer

from cutwater.printable import printable, printable_json
from cutwater.runtime.reporting.event_log import FIELDS


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="CUTWATER_LOG_FORMAT",
        help="Warnings as text, or one JSON object on stderr for each change of state.",
    ),
]

_LOGGER: Final = "cutwater"
_TEXT_MAX: Final = 10_000
_KEPT: Final = 10_000
_CLOSING_S: Final = 2.0


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, None) or {"event": "log"}
        made: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **fields,
            "message": record.getMessage()[:_TEXT_MAX],
        }
        if record.exc_info:
            made["trace"] = self.formatException(record.exc_info)[:_TEXT_MAX]
        return printable_json(json.dumps(made, ensure_ascii=False, default=str))


class TextLines(logging.Formatter):
    """Writes a record in Python's default format, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Lines(logging.Handler):
    """Writes records to a stream from a thread; `emit` never waits for the stream."""

    def __init__(self, stream: TextIO, kept: int = _KEPT) -> None:
        """Write to this stream; keep up to `kept` records that are not written yet."""
        super().__init__()
        self._stream = stream
        self._waiting: queue.Queue[str | None] = queue.Queue(kept)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as lost."""
        try:
            self._waiting.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write the queued records, for two seconds at most."""
        try:
            self._waiting.put(None, timeout=_CLOSING_S)
        except queue.Full:
            return
        finally:
            super().close()
        self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            lost, self._lost = self._lost, 0
            if lost:
                note = {"event": "log", "level": "WARNING", "message": f"{lost} records were lost"}
                line = f"{json.dumps(note)}\n{line}"
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                # The reader is gone.
                return


def log_as(form: LogFormat) -> None:
    if form is LogFormat.TEXT:
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(TextLines())
        return
    handler = Lines(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
