"""Drivers killed with SIGKILL while they write to PostgreSQL and Delta: every table is exact.

One source feeds a Delta table and two PostgreSQL tables, one after a slow step and one by upserts.
While drivers die, psql looks at both PostgreSQL tables again and again; afterwards each commit
point is computed from the tables alone: rows of PostgreSQL carry the number of the transaction that
brought them, and a Delta table has its versions.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import PipelineState, rows_of
from tests.servers.postgres import Database

RATE = 1500
LOOK = """
    SELECT (SELECT count(*) FROM slowly), (SELECT coalesce(max(value) + 1, 0) FROM slowly),
           (SELECT coalesce(max(value) + 1, 0) FROM parts)
"""
THEN = """
    SELECT s.value, s.thrice FROM slowly s JOIN _cutwater.commits c
    ON c.sink = 'slowly' AND s.xmin = c.xid::xid WHERE c.slot <= {slot} ORDER BY 1
"""


class Watcher:
    """Looks at the PostgreSQL tables, with psql, until it is stopped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self.seen: list[tuple[int, int, int]] = []

    def run(self) -> None:
        while not self._stop.wait(0.3):
            there = self._database.query("SELECT to_regclass('slowly'), to_regclass('parts')")
            if "<null>" in there[0]:
                continue
            ((count, slow, parts),) = self._database.query(LOOK)
            self.seen.append((int(count), int(slow), int(parts)))

    @contextmanager
    def watching(self) -> Iterator["Watcher"]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()


def killing(drivers: Drivers, directory: Path, database: Database, **checkpoint: object) -> Killing:
    parameters = {
        "rate": str(RATE),
        "dsn": database.dsn,
        "table": str(directory / "tables" / "all"),
        "slow_us": "300",
    }
    return Killing(drivers, directory, "shop", parameters, **checkpoint)


def check_end(database: Database, directory: Path, total: int) -> None:
    """What the tables must show follows from the number of rows alone."""
    rows = database.query("SELECT value, thrice FROM slowly ORDER BY 1")
    assert rows == [[str(number), str(number * 3)] for number in range(total)]
    newest = {number % 100: number for number in range(total)}
    assert database.query("SELECT part, value FROM parts ORDER BY 1") == [
        [str(part), str(value)] for part, value in sorted(newest.items())
    ]
    assert rows_of(directory / "tables" / "all", None, "value") == [
        (number,) for number in range(total)
    ]


def check_every_commit(state: PipelineState, database: Database, directory: Path) -> list[int]:
    """Check that at each commit point the tables show one prefix; return their lengths."""
    lengths = []
    for commit in state.commits:
        versions = {str(sink): version for sink, version in commit.versions.items()}
        delta = versions["all"]
        numbers = [] if delta == "none" else rows_of(directory / "tables" / "all", delta, "value")
        slow = database.query(THEN.format(slot=versions["slowly"]))
        assert numbers == [(number,) for number in range(len(numbers))]
        assert slow == [[str(number), str(number * 3)] for number in range(len(numbers))]
        assert versions["slowly"] == versions["parts"]
        lengths.append(len(numbers))
    return lengths


def check_seen(watcher: Watcher, lengths: list[int]) -> None:
    """No look fell between two tables, or showed what is no commit point."""
    assert watcher.seen
    for count, slow, parts in watcher.seen:
        assert count == slow == parts
        assert count in {0, *lengths}


def test_tables_of_postgres_and_delta_show_one_moment_while_drivers_die(
    drivers: Drivers, tmp_path: Path, database: Database
) -> None:
    watcher = Watcher(database)
    with watcher.watching():
        forced = killing(drivers, tmp_path, database, unaligned="forced")
        inside = forced.dies_at("inside commit", 2)
        committed = forced.dies_at("commit")
        forced.dies_at("unaligned decision", 2)
        total = forced.finish()

    # The second sink had acted in a transaction that died with the driver; the same commit without
    # its record, made by a recovery; decisions with rows in flight, which are not committed.
    assert len(inside.cuts) > len(inside.commits)
    assert (committed.cuts, committed.commits) == (inside.cuts, inside.commits)
    check_end(database, tmp_path, total)
    lengths = check_every_commit(forced.states[-1], database, tmp_path)
    check_seen(watcher, lengths)
    assert lengths[-1] == total
    assert any(cut.in_flight_bytes and not cut.commit_point for cut in forced.states[-1].cuts)


@pytest.mark.long
@pytest.mark.parametrize(
    "write",
    ["before stage rows", "stage", "manifest", "decision", "inside commit", "commit", "record"],
)
def test_each_crash_point_is_survived_twice_in_a_row_and_in_recovery(
    drivers: Drivers, tmp_path: Path, database: Database, write: str
) -> None:
    aligned = killing(drivers, tmp_path, database, unaligned=False, channel_messages=4)

    aligned.dies_at("commit", 2)
    aligned.dies_at(write, 2)
    aligned.dies_at(write, 1)
    aligned.dies_after("starting", random.Random(write), 3.0)
    total = aligned.finish()

    check_end(database, tmp_path, total)
    assert check_every_commit(aligned.states[-1], database, tmp_path)[-1] == total


@pytest.mark.long
def test_a_server_that_crashes_again_and_again_loses_nothing(
    drivers: Drivers, tmp_path: Path, database: Database
) -> None:
    run = killing(drivers, tmp_path, database, unaligned="forced")
    chance = random.Random(7)

    def crash() -> None:
        database.server.restart()
        time.sleep(chance.uniform(0, 2.0))

    for _ in range(4):
        run.dies_after("checkpoint", chance, 1.0, crash)
    total = run.finish()

    check_end(database, tmp_path, total)
