"""Drivers killed around and inside the commits of Delta tables that are written in three ways.

One source feeds a table that is appended to, one that is upserted and one that is overwritten. At
every commit all three show the same prefix of the stream, whatever has died and whatever another
program has written meanwhile.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import PipelineState, rows_of
from tests.crash.pipelines import WAYS_KEYS

RATE = 1500
FOREIGN = (-1, 1, 1)
"""A row of another program in the upserted table, which no row of the stream replaces."""


def killing(drivers: Drivers, directory: Path, **checkpoint: object) -> Killing:
    parameters = {"rate": str(RATE), "tables": str(directory / "tables")}
    return Killing(drivers, directory, "ways", parameters, **checkpoint)


def totals(count: int) -> list[tuple[int | None, int, int]]:
    """What the numbers below `count` give, by arithmetic."""
    groups: dict[int, list[int]] = {}
    for value in range(count):
        groups.setdefault(value % WAYS_KEYS, []).append(value)
    found = [(key or None, len(group), sum(group)) for key, group in groups.items()]
    return sorted(found, key=repr)


def check(directory: Path, state: PipelineState, total: int) -> None:
    """Check that the tables agree at every commit, and show everything at the last."""
    versions = (
        {str(sink): version for sink, version in done.versions.items()} for done in state.commits
    )
    counts = [_prefix(directory / "tables", version) for version in versions]
    assert counts == sorted(counts)
    assert counts[-1] == total


def _prefix(tables: Path, versions: dict[str, str]) -> int:
    if "none" in versions.values():
        assert set(versions.values()) == {"none"}
        return 0
    appended = rows_of(tables / "append", versions["append"], "value")
    count = len(appended)
    assert appended == [(number,) for number in range(count)]
    for way in ("upsert", "overwrite"):
        table = DeltaTable(tables / way, version=int(versions[way])).to_pyarrow_table()
        rows = [(row["key"], row["count"], row["sum"]) for row in table.to_pylist()]
        own = sorted((row for row in rows if row != FOREIGN), key=repr)
        assert own == totals(count), way
    return count


def another_program_writes(tables: Path) -> None:
    """Compact all tables, and append to the upserted one."""
    columns = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("sum", pa.int64())])
    row = pa.Table.from_arrays([pa.array([number]) for number in FOREIGN], schema=columns)
    write_deltalake(str(tables / "upsert"), row, mode="append")
    for table in tables.iterdir():
        DeltaTable(table).optimize.compact()


def test_tables_written_in_three_ways_survive_their_drivers(
    drivers: Drivers, tmp_path: Path
) -> None:
    run = killing(drivers, tmp_path)

    inside = run.dies_at("before write upsert", 3)
    another_program_writes(tmp_path / "tables")
    recovering = run.dies_at("after write upsert")
    decided = run.dies_at("decision")
    total = run.finish()

    # The first died with its files made and its version not; the second while it repeated that.
    assert inside.changes >= 6
    assert recovering.changes > inside.changes
    assert inside.open_commits
    assert recovering.cuts == inside.cuts
    assert recovering.commits == inside.commits
    assert decided.newest_is_open
    check(tmp_path, run.states[-1], total)
    assert FOREIGN in rows_of_upsert(tmp_path)


def rows_of_upsert(directory: Path) -> list[tuple[int, int, int]]:
    rows = DeltaTable(directory / "tables" / "upsert").to_pyarrow_table().to_pylist()
    return [(row["key"], row["count"], row["sum"]) for row in rows]


POINTS = ["before stage rows", "stage", "manifest", "decision", "commit", "record"]


@pytest.mark.long
@pytest.mark.parametrize("way", ["append", "upsert", "overwrite"])
@pytest.mark.parametrize("unaligned", [False, "forced"])
def test_a_kill_twice_at_every_point_of_a_commit(
    drivers: Drivers, tmp_path: Path, way: str, unaligned: object
) -> None:
    run = killing(drivers, tmp_path, unaligned=unaligned)
    run.dies_at("commit", 4)

    for point in (*POINTS, f"before write {way}", f"after write {way}"):
        for count in (2, 1):
            run.dies_at(point, count)
        another_program_writes(tmp_path / "tables")
    total = run.finish()

    check(tmp_path, run.states[-1], total)
