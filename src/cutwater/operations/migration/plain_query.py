"""A plain Spark streaming query, as its checkpoint directory describes it: read, never written.

A directory is examined before it is adopted. The operator sees what was found, and a query that
cannot be resumed in a pipeline is refused with the reason. Spark leaves no lock, so a directory
does not show whether its query still runs; two calls of `trace` show whether anything changed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.listing import directories, names
from cutwater.spark.checkpoint_dir.logs import COMMITS, METADATA, OFFSETS, BatchLog
from cutwater.spark.checkpoint_dir.state_files import Operator, operators, snapshot_mark
from cutwater.spark.session.session import WATERMARK_POLICY
from cutwater.store.backends.directories import exists, files_below, is_directory, status

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_LOGS: Final = (OFFSETS, COMMITS)


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """A query that has stopped.

    Attributes:
        batch: The last batch that it committed.
        planned: A later batch that it started and did not commit; None for none.
        log: What Spark logged before it ran the last committed batch.
        next_watermark_ms: The event-time watermark of the batch after it; 0 for none.
        provider: Their state store provider; empty without stateful operators.
        files: The files of the last committed batch.
        snapshot_marks: The versions that its RocksDB snapshots are marked with.
    """

    directory: Path
    batch: BatchId
    planned: BatchId | None
    log: BatchLog
    next_watermark_ms: int
    operators: tuple[Operator, ...]
    provider: str
    format: int
    files: tuple[str, ...]
    size_bytes: int
    snapshot_marks: frozenset[str] = frozenset()

    @property
    def partitions(self) -> int | None:
        """The fixed number of partitions of its state; None without state."""
        number = self.log.settings.get(_PARTITIONS, "")
        return int(number) if self.operators and number.isdecimal() else None

    @property
    def watermark_ms(self) -> int:
        """The event-time watermark it resumes with; 0 for none."""
        return max(self.log.watermark_ms, self.next_watermark_ms)


def look(directory: Path) -> PlainQuery:
    """Refuse a directory that is none of a query, has no committed batch, or is incomplete."""
    _check_directory(directory)
    committed = query_log.batches(directory, COMMITS)
    if not committed:
        raise RecoveryError(
            f"{directory} has no committed batch: there is nothing to resume from, and a pipeline "
            "without it starts at the same place."
        )
    batch = committed[-1]
    later = [number for number in query_log.batches(directory, OFFSETS) if number > batch]
    if len(later) > 1:
        raise RecoveryError(
            f"{directory} has batches {later[0]} to {later[-1]} begun and not committed: its logs "
            "do not belong together, or it ran with asyncProgressTrackingEnabled."
        )
    log = query_log.read_batch(directory, batch)
    if log.settings.get(_EVOLUTION) == "true":
        raise RecoveryError(f"{directory} is of a query with named sources, which is not known.")
    if log.settings.get(WATERMARK_POLICY, "").lower() == "max":
        raise RecoveryError(
            f"{directory} is of a query with {WATERMARK_POLICY}=max, which Spark keeps with its "
            "state: in a pipeline, rows of the slower input could be dropped as late."
        )
    files = query_files.files_of(directory, batch)
    found = operators(directory, batch)
    ids = query_log.state_ids(directory, batch)
    return PlainQuery(
        directory=directory,
        batch=batch,
        planned=later[0] if later else None,
        log=log,
        next_watermark_ms=query_log.next_watermark_ms(directory, batch),
        operators=found,
        provider=query_files.provider_of(directory, batch).value if found else "",
        format=1 if ids is None else 2,
        files=files,
        size_bytes=sum((directory / name).stat().st_size for name in files),
        snapshot_marks=frozenset(
            snapshot_mark(directory / name) for name in files if name.endswith(".zip")
        ),
    )


def _check_directory(directory: Path) -> None:
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(directory)):
        raise RecoveryError(f"{directory} is not on this machine: copy it to a local directory.")
    if not is_directory(directory):
        raise RecoveryError(f"{directory} is not a directory.")
    lost = [name for name in (METADATA, *_LOGS) if not exists(directory / name)]
    if lost:
        beside = [
            name for name in directories(directory) if is_directory(directory / name / OFFSETS)
        ]
        hint = f"; perhaps {directory / beside[0]} is meant" if beside else ""
        raise RecoveryError(
            f"{directory} has no {' and no '.join(lost)}: it is no checkpoint directory of a "
            f"streaming query{hint}."
        )


def _number(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else -1


class _Listed(msgspec.Struct, frozen=True):
    path: str


_LISTED: Final = msgspec.json.Decoder(_Listed)


def files_read(directory: Path) -> list[str]:
    """Return one file for each file source of a query, from its newest listing.

    Sources that do not read files keep other things, or nothing, and are left out.
    """
    found = []
    for source in directories(directory / "sources"):
        log = directory / "sources" / source
        for name in sorted(names(log), key=_number, reverse=True):
            lines = (log / name).read_text(encoding="utf-8", errors="replace").split("\n")
            try:
                found.append(_LISTED.decode(lines[-1]).path)
            except msgspec.DecodeError:
                continue
            break
    return found


Trace = frozenset[tuple[str, int, int]]
"""Every file of a directory, incomplete ones included, with its size and time."""


def trace(directory: Path) -> Trace:
    """List a directory; if two traces differ, a process writes to the directory."""
    return frozenset(_walk(directory))


def _walk(directory: Path) -> Iterable[tuple[str, int, int]]:
    for path in files_below(directory):
        found = status(path)
        if found is not None:
            yield str(path), found.st_size, found.st_mtime_ns
