"""Which kind of source an offset is of, as far as its form tells, and whether it fits a source.

Sources write their offsets in their own form; Spark checks none of it before the first batch, and
some forms are read by the wrong source without an error. What is not known here is let through.
"""

import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

FILES: Final = "a file source"
KAFKA: Final = "Kafka"
DELTA: Final = "a Delta table"
RATE: Final = "Spark's rate source"
UNKNOWN: Final = "a source of unknown kind"

_DESCRIBED: Final = (
    (FILES, re.compile(r"FileSource\[|FileStreamSource\[")),
    (KAFKA, re.compile(r"kafka", re.IGNORECASE)),
    (DELTA, re.compile(r"delta", re.IGNORECASE)),
    (RATE, re.compile(r"rate", re.IGNORECASE)),
)


def kind_of_offset(text: str | None) -> str:
    """Return the kind of source that writes such an offset."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return UNKNOWN
    match found:
        case int():
            return RATE
        case {"logOffset": int()} if len(found) == 1:
            return FILES
        case {"sourceVersion": _, "reservoirId": _}:
            return DELTA
        case dict() if found and all(_is_topic(one) for one in found.values()):
            return KAFKA
        case _:
            return UNKNOWN


def kind_of_source(description: str) -> str:
    """Return the kind of a source, as Spark describes it in a plan."""
    return next((kind for kind, form in _DESCRIBED if form.match(description)), UNKNOWN)


def fits(description: str, offset: str | None) -> bool:
    """Say whether an offset may be one of a source; no offset fits every source."""
    source, written = kind_of_source(description), kind_of_offset(offset)
    return offset is None or UNKNOWN in {source, written} or source == written


def reads_below(description: str, file: str) -> bool:
    """Say whether a file source may have listed a file; a pattern may list any."""
    found = re.fullmatch(r"FileSource\[(.*)\]", description)
    if found is None or re.search(r"[*?{\[]", found[1]):
        return True
    if re.match(r"(?!file:)[a-z0-9]+:", found[1]):
        return file.startswith(found[1])
    return Path(_local(file)).is_relative_to(Path(_local(found[1])).absolute())


def _local(address: str) -> str:
    return unquote(urlsplit(address).path) if address.startswith("file:") else address


def _is_topic(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(key.isdecimal() and isinstance(at, int) for key, at in value.items())
    )
