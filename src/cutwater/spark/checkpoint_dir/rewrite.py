"""Rebuilds the checkpoint directory of a query whose inputs have changed.

    offsets/<N-1>, offsets/<N>     the same header; one line per current source, `-` for none
    commits/<N>                    as it is, or that of a query without state
    sources/<i>/…                  what each source keeps for itself, under its current number

State is not changed. Spark reads `offsets/<N-1>` only to request the last batch from a source once
more, and discards its rows; so both entries are equal. No query may be running in any of the
directories. `protocol.evolution.mapping` has decided the content; `files` documents the layout.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId
from cutwater.protocol.evolution.identity import NO_OFFSET
from cutwater.spark.checkpoint_dir.logs import (
    COMMITS,
    METADATA,
    OFFSETS,
    mint_query_id,
    replace_text,
)
from cutwater.store.backends.directories import exists, is_directory, remove_tree

SOURCES: Final = "sources"
_NEXT: Final = ".sources"
_HEADER: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


@dataclass(frozen=True, slots=True)
class Donor:
    """A query of the cut from which another query takes over the files of a source."""

    checkpoint: Path
    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedQuery:
    """A query that starts at other offsets than those in its directory.

    Attributes:
        checkpoint: Its directory, with its own files; or not there, for a query without state.
        batch: The batch after which it starts.
        lines: Where each source starts, in the order of the current plan; None for its beginning.
        logs: For each current number, the directory of the files that the source kept.
        donor: Where settings and watermark come from if it has no directory.
    """

    checkpoint: Path
    batch: BatchId
    lines: Sequence[str | None]
    logs: Mapping[int, Path] = field(default_factory=dict)
    donor: Donor | None = None


def rebuild(queries: Sequence[ChangedQuery]) -> None:
    """Write the new offsets of queries; all together, since they take files from each other."""
    for query in queries:
        into = query.checkpoint / _NEXT
        into.mkdir(parents=True)
        for number, kept in query.logs.items():
            if is_directory(kept):
                shutil.copytree(kept, into / str(number))
    for query in queries:
        remove_tree(query.checkpoint / SOURCES)
        (query.checkpoint / _NEXT).rename(query.checkpoint / SOURCES)
        _write_logs(query)


def _write_logs(query: ChangedQuery) -> None:
    checkpoint, batch = query.checkpoint, query.batch
    own = exists(checkpoint / METADATA)
    donor = Donor(checkpoint, batch) if own else query.donor
    header = _HEADER if donor is None else _header(donor)
    if not own:
        mint_query_id(checkpoint)
        watermark_ms = msgspec.json.decode(header).get("batchWatermarkMs", 0)
        commit = {"nextBatchWatermarkMs": watermark_ms, "stateUniqueIds": {}}
        _write(checkpoint / COMMITS / str(batch), "v2", msgspec.json.encode(commit).decode())
    lines = [NO_OFFSET if line is None else line for line in query.lines]
    for number in range(max(batch - 1, 0), batch + 1):
        _write(checkpoint / OFFSETS / str(number), "v1", header, *lines)


def _header(donor: Donor) -> str:
    file = donor.checkpoint / OFFSETS / str(donor.batch)
    try:
        version, header, *_ = file.read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, ValueError) as error:
        raise RecoveryError(f"{file} is not there or makes no sense: {error!r}.") from error
    if version != "v1":
        raise RecoveryError(f"{file} begins with {version!r}; expected v1.")
    return header


def _write(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, "\n".join(lines))


def donor_of(checkpoint: Path, batch: BatchId) -> Donor | None:
    """Return None if the query has run no batch."""
    return None if batch == NO_BATCH else Donor(checkpoint, batch)
