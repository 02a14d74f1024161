"""The files that a plain query has read or written, as Spark's own logs list them.

    <checkpoint>/sources/<i>/<n>[.compact]   v1 / {"path":…,"batchId":…} for each file read
    <output>/_spark_metadata/<n>[.compact]   v1 / {"path":…,"action":"add"} for each file written

The first log is that of a file source, the second that of Spark's file sink. An entry that is
compacted repeats those before it. Paths are returned without their scheme. A log that is missing or
cannot be understood is a RecoveryError: what it lists decides whether rows are lost or repeated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.spark.checkpoint_dir.listing import names
from cutwater.store.backends.directories import is_directory

SINK_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
_ADD: Final = "add"

Form = TypeVar("Form")


class _ReadFile(msgspec.Struct, frozen=True):
    path: str
    batch: int = msgspec.field(name="batchId")


class _WrittenFile(msgspec.Struct, frozen=True):
    path: str
    action: str


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What a query with Spark's file sink has written.

    Attributes:
        batch: The last batch whose files count.
    """

    directory: Path
    batch: BatchId
    files: frozenset[str]


def files_before(checkpoint: Path, number: int, offset: str) -> frozenset[str]:
    """Return the files that a query's file source, by its number, has read up to an offset."""
    end = msgspec.json.decode(offset)["logOffset"]
    log = checkpoint / "sources" / str(number)
    entries = [entry for _, lines in _entries(log) for entry in _decode(_ReadFile, log, lines)]
    return frozenset(_local(entry.path) for entry in entries if entry.batch <= end)


def files_written(read: frozenset[str]) -> WrittenFiles | None:
    """Return what the query has written that wrote these files; None if its log is not found."""
    for file in sorted(read)[:1]:
        for directory in Path(file).parents:
            log = directory / SINK_LOG
            if is_directory(log):
                return _written(directory, log)
    return None


def _written(directory: Path, log: Path) -> WrittenFiles:
    found = list(_entries(log))
    if not found:
        raise RecoveryError(f"{log} has no entry.")
    files = [file for _, lines in found for file in _decode(_WrittenFile, log, lines)]
    return WrittenFiles(
        directory,
        BatchId(max(number for number, _ in found)),
        frozenset(_local(file.path) for file in files if file.action == _ADD),
    )


def _entries(log: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the lines of each entry of a log."""
    found = []
    for name in names(log):
        number = name.removesuffix(_COMPACT)
        if number.isdecimal():
            version, *lines = (log / name).read_text(encoding="utf-8").splitlines() or [""]
            if version != "v1":
                raise RecoveryError(f"{log / name} begins with {version!r}; expected v1.")
            found.append((int(number), lines))
    return found


def _decode(form: type[Form], log: Path, lines: list[str]) -> list[Form]:
    try:
        return [msgspec.json.decode(line, type=form) for line in lines]
    except msgspec.DecodeError as error:
        raise RecoveryError(f"{log} makes no sense: {error}.") from error


def _local(address: str) -> str:
    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme == "file" else address
