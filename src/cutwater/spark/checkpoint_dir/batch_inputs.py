"""What a batch reads from its outside sources, by the offsets and logs of a checkpoint directory.

Only for error messages: what cannot be read is left out.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from cutwater.runtime.reporting.failed_batch import FailedInput
from cutwater.spark.checkpoint_dir.listing import names
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind

_COMPACT: Final = ".compact"
_START: Final = "the beginning"


def reading_of(
    stream: Stream, start: str | None, end: str | None, log: Path | None
) -> FailedInput | None:
    """Return what a batch reads from an outside stream; None if nothing, or if it is unknown.

    Args:
        start: Where the batch before it ended; None for the beginning.
        log: Where a source of files notes which it has read; None for other sources.
    """
    if end is None or end == start or stream.kind in {StreamKind.PULSE, StreamKind.CHANNEL}:
        return None
    files = () if log is None else _files(log, _log_offset(start), _log_offset(end))
    return FailedInput(stream.name, "offsets", start or _START, end, files)


def _log_offset(text: str | None) -> int | None:
    """Return the number in an offset of a source of files; None if it is none."""
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return None
    offset = found.get("logOffset") if isinstance(found, dict) else None
    return offset if isinstance(offset, int) else None


class _File(msgspec.Struct, frozen=True):
    path: str
    batch: int = msgspec.field(name="batchId")


def _files(log: Path, start: int | None, end: int | None) -> tuple[str, ...]:
    """Return the files that a source's log has between two offsets; none if it has no log."""
    if end is None:
        return ()
    found: set[str] = set()
    for name in names(log):
        number = name.removesuffix(_COMPACT)
        if number.isdecimal():
            found.update(_between(log / name, -1 if start is None else start, end))
    return tuple(sorted(found))


def _between(file: Path, start: int, end: int) -> Iterable[str]:
    try:
        _, *lines = file.read_text(encoding="utf-8").splitlines()
        entries = [msgspec.json.decode(line, type=_File) for line in lines]
    except (OSError, ValueError, msgspec.DecodeError):
        # Only diagnostic information: what cannot be read is left out.
        return ()
    return [entry.path.removeprefix("file://") for entry in entries if start < entry.batch <= end]
