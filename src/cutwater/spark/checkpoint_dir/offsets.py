"""Which stream each line of a query's offset log belongs to, and which kind of source wrote it.

Spark writes one line per stream, in the order of the plan and without names. A step's plan can have
streams that a plain query does not have: channels, and the empty-batch source that makes an owed
batch run. So a snapshot contains this list beside Spark's own files; Spark ignores it:

    streams.json    [{"name":"orders","kind":"outside","description":"FileSource[…]"},…]

Each source writes its offsets in its own format. Spark checks no offset before the first batch, and
some sources read the offsets of another without an error. So an offset whose format is known is
compared with its source here; unknown formats are accepted.
"""

import json
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.logs import replace_text

STREAMS_FILE: Final = "streams.json"

_FILES: Final = "a file source"
_KAFKA: Final = "Kafka"
_DELTA: Final = "a Delta table"
_RATE: Final = "Spark's rate source"
_UNKNOWN: Final = "a source of unknown kind"

_DESCRIBED: Final = (
    (_FILES, re.compile(r"FileSource\[|FileStreamSource\[")),
    (_KAFKA, re.compile(r"kafka", re.IGNORECASE)),
    (_DELTA, re.compile(r"delta", re.IGNORECASE)),
    (_RATE, re.compile(r"rate", re.IGNORECASE)),
)


class StreamKind(Enum):
    """Where a stream comes from."""

    OUTSIDE = "outside"
    """A source that is built into Spark or comes from a third party."""
    OWN = "own"
    """A source of `cutwater.sources`, whose offsets only it understands."""
    CHANNEL = "channel"
    PULSE = "pulse"


class Stream(msgspec.Struct, frozen=True):
    """One line of an offset log.

    Attributes:
        name: The source's name in the pipeline, or the channel's.
        description: What Spark calls it.
    """

    name: str
    kind: StreamKind
    description: str = ""


_STREAMS: Final = msgspec.json.Decoder(tuple[Stream, ...])


def note_streams(directory: Path, streams: Sequence[Stream]) -> str:
    """Write the list beside a snapshot's files, over an existing one; return the file's name."""
    replace_text(directory / STREAMS_FILE, msgspec.json.encode(tuple(streams)).decode())
    return STREAMS_FILE


def read_streams(directory: Path) -> tuple[Stream, ...]:
    file = directory / STREAMS_FILE
    try:
        return _STREAMS.decode(file.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError) as error:
        reason = f"{file} does not name the streams that the query reads: {error}."
        raise RecoveryError(reason) from error


def for_plan(
    offsets: Sequence[str | None], streams: Sequence[Stream]
) -> tuple[str | None, ...] | None:
    """Return the lines for a plan with these streams, from the lines of a plain query.

    Empty-batch sources get an empty line. None if the number of lines does not fit.
    """
    left = list(offsets)
    lines: list[str | None] = []
    for stream in streams:
        if stream.kind is StreamKind.PULSE:
            lines.append(None)
        elif left:
            lines.append(left.pop(0))
        else:
            return None
    return None if left else tuple(lines)


def for_plain(
    offsets: Sequence[str | None], streams: Sequence[Stream]
) -> tuple[str | None, ...] | None:
    """Return the lines for a plain query, from the lines of a plan with these streams.

    Lines of empty-batch sources are left out. Lines of channels, which a plain query must replace
    by other sources, are empty. None if the numbers differ.
    """
    if len(offsets) != len(streams):
        return None
    return tuple(
        None if stream.kind is StreamKind.CHANNEL else line
        for line, stream in zip(offsets, streams, strict=True)
        if stream.kind is not StreamKind.PULSE
    )


def kind_of_offset(text: str | None) -> str:
    try:
        found = json.loads(text or "")
    except ValueError:
        return _UNKNOWN
    match found:
        case int():
            return _RATE
        case {"logOffset": int()} if len(found) == 1:
            return _FILES
        case {"sourceVersion": _, "reservoirId": _}:
            return _DELTA
        case dict() if found and all(_is_topic(value) for value in found.values()):
            return _KAFKA
        case _:
            return _UNKNOWN


def positions_of(streams: Sequence[Stream], offsets: Sequence[str | None]) -> dict[str, str]:
    """Return where a query resumes in each stream, by number and name."""
    return {
        f"{at}:{stream.name}": line
        for at, (stream, line) in enumerate(zip(streams, offsets, strict=True))
        if line is not None
    }


def is_of_files(offset: str) -> bool:
    """Return whether an offset is one of a file source."""
    return kind_of_offset(offset) == _FILES


def _kind_of_source(description: str) -> str:
    """Return the kind of a source, as Spark describes it in a plan."""
    return next((kind for kind, form in _DESCRIBED if form.match(description)), _UNKNOWN)


def fits(description: str, offset: str | None) -> bool:
    """Return whether an offset may be one of a source; no offset fits every source."""
    source, written = _kind_of_source(description), kind_of_offset(offset)
    return offset is None or _UNKNOWN in {source, written} or source == written


def reads_below(description: str, file: str) -> bool:
    """Return whether a file source may have listed a file; a pattern may list any."""
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
