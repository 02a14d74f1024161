"""Which stream each line of a query's offset log belongs to, and lines for another set of streams.

Spark writes one line per stream, in the order of the plan and without names. A step's plan may
have streams that a plain query has not: channels, and the pulse that makes an owed batch run. So a
snapshot has this list beside Spark's own files, which take no notice of it:

    streams.json    [{"name":"orders","kind":"outside","description":"FileSource[…]"},…]
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.logs import replace_text

FILE: Final = "streams.json"


class StreamKind(Enum):
    """Where a stream comes from."""

    OUTSIDE = "outside"
    """A source of Spark's, or of somebody else's."""
    OWN = "own"
    """A source of `cutwater.sources`, whose offsets only it understands."""
    CHANNEL = "channel"
    PULSE = "pulse"


class Stream(msgspec.Struct, frozen=True):
    """One line of an offset log.

    Attributes:
        name: The source's name in the pipeline, or the channel's.
        kind: Where it comes from.
        description: What Spark calls it.
    """

    name: str
    kind: StreamKind
    description: str = ""


_STREAMS: Final = msgspec.json.Decoder(tuple[Stream, ...])


def note_streams(directory: Path, streams: Sequence[Stream]) -> str:
    """Write the list into a directory that holds a snapshot's files, in place of one there.

    Returns:
        The name of the file.
    """
    replace_text(directory / FILE, msgspec.json.encode(tuple(streams)).decode())
    return FILE


def read_streams(directory: Path) -> tuple[Stream, ...]:
    """Read the list.

    Raises:
        RecoveryError: If there is none, or it makes no sense.
    """
    file = directory / FILE
    try:
        return _STREAMS.decode(file.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise RecoveryError(f"{file} does not tell which streams the query reads: {error}.") from (
            error
        )


def for_plan(
    offsets: Sequence[str | None], streams: Sequence[Stream]
) -> tuple[str | None, ...] | None:
    """Return the lines for a plan with these streams, of a plain query's lines.

    Returns:
        The same lines with one that is empty for each pulse; None if their number does not fit.
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
    """Return the lines for a plain query, of the lines of a plan with these streams.

    Returns:
        The same lines without the pulses', and empty ones for channels, which a plain query must
        fill with something else; None if the numbers differ.
    """
    if len(offsets) != len(streams):
        return None
    return tuple(
        None if stream.kind is StreamKind.CHANNEL else line
        for line, stream in zip(offsets, streams, strict=True)
        if stream.kind is not StreamKind.PULSE
    )
