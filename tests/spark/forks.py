"""Two forks of every checkpoint of a pipeline: what each must show in the end.

The pipeline is the diamond with barriers that always overtake, so that most of its checkpoints
have rows in flight and each of them commits. What a fork's own table shows, and what the
original's showed at that checkpoint, are together what the original shows in the end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import cutwater
from cutwater.ids import CheckpointId
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

NAME = "diamond"
TOTAL = 9_000
RATE = 3_000
FORCED: dict[str, Any] = {
    "interval": "400ms",
    "min_pause": "100ms",
    "unaligned": "forced",
    "retained": 1000,
}

Rows = list[tuple[int, ...]]


def parameters(table: Path, *, quick: bool) -> dict[str, str]:
    """What the diamond is made with; a fork need not wait for its rows."""
    return {
        "total": str(TOTAL),
        "rate": "1000000" if quick else str(RATE),
        "slow_us": "0" if quick else "300",
        "table": str(table),
    }


def rows_of(table: Path, version: str | None = None) -> Rows:
    """Read a version of a table, the newest for None; one that was never made has no rows."""
    if version == "none" or not (table / "_delta_log").exists():
        return []
    found = DeltaTable(table, version=None if version is None else int(version))
    rows = found.to_pyarrow_table(columns=["value", "twice", "thrice", "price"]).to_pylist()
    return sorted((row["value"], row["twice"], row["thrice"], row["price"]) for row in rows)


ALL: Rows = [(number, number * 2, number * 3, number // 100 % 7 + 1) for number in range(TOTAL)]


@dataclass(frozen=True)
class Point:
    """A checkpoint of the original.

    Attributes:
        id: Its number.
        in_flight_bytes: What was in flight.
        shown: What the original's table showed then.
    """

    id: CheckpointId
    in_flight_bytes: int
    shown: Rows


def points(directory: Path) -> list[Point]:
    """All checkpoints of the original, which has come to its end."""
    backend = LocalBackend(directory / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, NAME))
    table = directory / "table"
    assert rows_of(table) == ALL
    found = []
    for decision in store.log.read().decisions:
        (version,) = store.commits.read(decision.slot).versions.values()
        cut = store.manifests.read(decision.checkpoint_id)
        found.append(Point(decision.checkpoint_id, cut.in_flight_bytes, rows_of(table, version)))
    return found


@dataclass(frozen=True)
class TwoForks:
    """Two forks of one checkpoint, with a table each."""

    directory: Path
    point: Point

    def make(self) -> list[tuple[str, Path]]:
        """Make them; return the name and the table of each."""
        made = []
        for twin in ("a", "b"):
            name = f"{twin}-{self.point.id}"
            start = str(self.point.id)
            cutwater.fork(NAME, name, start_from=start, store=self.directory / "store")
            made.append((name, self.directory / "forks" / name))
        return made

    def check(self) -> None:
        """Check what both show after their end."""
        for twin in ("a", "b"):
            own = rows_of(self.directory / "forks" / f"{twin}-{self.point.id}")
            assert sorted(self.point.shown + own) == ALL, f"{twin}-{self.point.id}"
