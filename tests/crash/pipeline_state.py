"""The state of a stopped pipeline, read from its store and its tables."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from cutwater.protocol.cut import Cut
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline, list_pipelines
from cutwater.store.records.codecs import Committed
from cutwater.store.records.reports import RecoveryReport


@dataclass(frozen=True)
class PipelineState:
    """A pipeline after one driver has ended and before the next one starts.

    Attributes:
        cuts: All decided cuts that are kept, oldest first.
        commits: The records of commits, oldest first.
        staged: Files with rows that sinks have staged and not committed.
        changes: The number of changes to the tables.
        recovery: The newest report of a recovery; None if there is none.
    """

    cuts: tuple[Cut, ...]
    commits: tuple[Committed, ...]
    staged: tuple[Path, ...]
    changes: int
    recovery: RecoveryReport | None = None

    @property
    def open_commits(self) -> int:
        """The number of decided commit points without a commit record.

        Usually one; a decision may be made while the previous commit is still running.
        """
        return sum(cut.commit_point and not self._is_recorded(cut) for cut in self.cuts)

    @property
    def newest_is_open(self) -> bool:
        """Whether the newest cut has no commit record, whether or not it is a commit point."""
        return bool(self.cuts) and not self._is_recorded(self.cuts[-1])

    def _is_recorded(self, cut: Cut) -> bool:
        return cut.checkpoint_id in {commit.checkpoint_id for commit in self.commits}

    @property
    def source_position(self) -> int:
        """The max number that a source had read at the last cut."""
        head = self.cuts[-1].stream_positions.values() if self.cuts else ()
        return max((number_in(text) for text in head), default=0)


def number_in(offset: str) -> int:
    """Return the number in the offset of a sequence; 0 for that of another source."""
    found = json.loads(offset)
    return int(found.get("sequence", 0))


def read_state(pipeline: str, directory: Path) -> PipelineState:
    """Read the state of a pipeline whose store and tables are in a directory.

    A pipeline that has never run has an empty state. The newest cut is always read.
    """
    backend = LocalBackend(directory / "store")
    if pipeline not in list_pipelines(backend):
        return PipelineState((), (), (), 0)
    store = PipelineStore.of(backend, find_pipeline(backend, pipeline))
    log = store.log.read()
    kept = {*store.manifests.ids(), *(() if log.head is None else (log.head.checkpoint_id,))}
    cuts = tuple(
        store.manifests.read(decision.checkpoint_id, decision.manifest_sha256)
        for decision in log.decisions
        if decision.checkpoint_id in kept
    )
    commits = tuple(store.commits.read(slot) for slot in store.commits.slots())
    staged = tuple(_staged_below(directory / "tables"))
    changes = sum(len(slots_of(table)) for table in (directory / "tables").glob("*"))
    recovery = next(iter(reversed(store.reports.recoveries())), None)
    return PipelineState(cuts, commits, staged, changes, recovery)


def rows_of(table: Path, version: str | None, *columns: str) -> list[tuple[Any, ...]]:
    """Read a version of a Delta table, sorted; the newest for None."""
    found = DeltaTable(table, version=None if version is None else int(version))
    rows = found.to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in rows)


def slots_of(table: Path) -> list[int]:
    """Return the slots on which the table was changed, in order, as its own log names them."""
    manifests = sorted((table / "_cutwater" / "commits").glob("*.json"))
    if manifests:
        return [int(json.loads(manifest.read_text())["slot"]) for manifest in manifests]
    lines = [
        json.loads(line)
        for version in sorted((table / "_delta_log").glob("*.json"))
        for line in version.read_text().splitlines()
    ]
    return [int(line["txn"]["version"]) for line in lines if "txn" in line]


def _staged_below(tables: Path) -> Iterator[Path]:
    """Find staged files; the JVM of a killed driver may still be deleting some of them."""
    for table in tables.glob("*"):
        for parent, _, names in os.walk(table / "_cutwater"):
            yield from (Path(parent, name) for name in names if name.endswith(".parquet"))
