"""How a run logs: as Python's logging does by itself, or as JSON lines for programs.

With `json` every record of Cutwater goes to stderr as one JSON object on one line, from INFO up;
the events of a run (`cutwater.spark.journal`) bring fields of their own.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from cutwater.spark.journal import FIELDS


class LogFormat(StrEnum):
    """How log records are written."""

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


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record: time, level, what happened, the fields of an event, the sentence."""
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
        return json.dumps(made, ensure_ascii=False, default=str)


def log_as(form: LogFormat) -> None:
    """Let this process log in a form from now on."""
    if form is LogFormat.TEXT:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
