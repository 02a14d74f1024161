"""Drivers killed with SIGKILL, several in a row: in the end every table is exact.

What a table must show is computed from the number of rows alone. Each test also looks at the store
between two drivers, to be sure that the kills fell where they were meant to.
"""

import json
import os
import random
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import PipelineState, rows_of
from tests.waiting import wait_until

SEED = int(os.environ.get("CUTWATER_SEED", "20261116"))
RATE = 1500


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Chance that can be replayed; what it prints is shown when the test fails."""
    sys.stdout.write(f"replay: CUTWATER_SEED={SEED} .venv/bin/pytest '{request.node.nodeid}'\n")
    return random.Random(f"{SEED} {request.node.name}")


# -- two sources, one step, one sink


@pytest.mark.parametrize("state", ["rocksdb", "memory"])
def test_a_join_of_two_sources_survives_its_drivers(
    drivers: Drivers, tmp_path: Path, chance: random.Random, state: str
) -> None:
    table = tmp_path / "tables" / "joined"
    parameters = {"rate": str(RATE), "table": str(table), "state": state}
    join = Killing(drivers, tmp_path, "join", parameters)

    committed = join.dies_at("commit", 2)
    decided = join.dies_at("decision")
    claimed = join.dies_at("claim")
    staged = join.dies_at("stage", 3)
    join.dies_after("checkpoint", chance, 1.0)
    total = join.finish()

    # Each kill fell where it was meant to: two changes made and the last not recorded; a decision
    # on which no sink has acted; nothing done but the claim; rows staged for no decision.
    assert committed.changes == 2
    assert committed.open_commits
    assert decided.staged
    assert decided.newest_is_open
    assert (claimed.cuts, claimed.changes) == (decided.cuts, decided.changes)
    assert staged.staged
    assert rows_of(table, None, "value", "seven") == [
        (number, number * 7) for number in range(total)
    ]


@pytest.mark.long
@pytest.mark.parametrize("write", ["manifest", "decision", "commit", "record", "stage", "append"])
def test_a_join_survives_many_kills_at_one_write(
    drivers: Drivers, tmp_path: Path, chance: random.Random, write: str
) -> None:
    table = tmp_path / "tables" / "joined"
    join = Killing(drivers, tmp_path, "join", {"rate": str(RATE), "table": str(table)})

    for _ in range(4):
        join.dies_at(write, chance.randint(1, 6))
        join.dies_after("starting", chance, 3.0)
    total = join.finish()

    assert rows_of(table, None, "value", "seven") == [
        (number, number * 7) for number in range(total)
    ]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_join_survives_a_kill_at_every_durable_write(
    drivers: Drivers, tmp_path: Path, moment: str
) -> None:
    """The writes are those that a driver came to that was killed, recovered and ended.

    They are not listed: what is not known to only read is a write (`tests.crash.writes`). A driver
    that comes to one that was never killed fails the test, and so does one that is never reached.
    Those that a pipeline makes once in its life come first, in their order.
    """
    scout = Killing(drivers, tmp_path / "scout", "join", _joined(tmp_path / "scout"), retained=1)
    scout.dies_at("decision", 2)
    scout.finish()
    join = Killing(drivers, tmp_path / "all", "join", _joined(tmp_path / "all"), retained=1)

    for write in scout.writes:
        join.dies_at(f"{moment} {write}")
    total = join.finish()

    assert set(join.writes) == set(scout.writes)
    assert {
        *("create names", "create log claim", "create log decision", "put_file blobs"),
        *("create manifests", "create committed", "delete manifests", "delete blobs"),
        *("stage rows", "create table", "create_write_transaction table", "commit rows"),
        *("discard rows", "put recoveries"),
    } <= set(scout.writes)
    table = tmp_path / "all" / "tables" / "joined"
    assert rows_of(table, None, "value", "seven") == [
        (number, number * 7) for number in range(total)
    ]


def _joined(directory: Path) -> dict[str, str]:
    return {"rate": str(RATE), "table": str(directory / "tables" / "joined")}


# -- the diamond


def diamond(drivers: Drivers, directory: Path, **checkpoint: object) -> Killing:
    parameters = {
        "rate": str(RATE),
        "slow_us": "500",
        "table": str(directory / "tables" / "joined"),
    }
    return Killing(drivers, directory, "diamond", parameters, **checkpoint)


def check_diamond(directory: Path, total: int) -> None:
    table = directory / "tables" / "joined"
    assert rows_of(table, None, "value", "twice", "thrice", "price") == [
        (number, number * 2, number * 3, number // 100 % 7 + 1) for number in range(total)
    ]


def test_a_diamond_that_always_overtakes_recovers_what_was_in_flight(
    drivers: Drivers, tmp_path: Path, chance: random.Random
) -> None:
    forced = diamond(drivers, tmp_path, unaligned="forced")

    first = forced.dies_at("unaligned decision", 2)
    forced.dies_after("starting", chance, 2.0)
    second = forced.dies_at("unaligned decision", 2)
    damage_all_below(tmp_path / "scratch")
    total = forced.finish()

    for state in (first, second):
        assert state.cuts[-1].in_flight_bytes > 0
        assert state.changes > 0
    check_diamond(tmp_path, total)
    # The dead had left what was in flight. Once that was damaged, all of it came from the store.
    left, damaged = second.recovery, forced.states[-1].recovery
    assert left is not None
    assert left.linked_bytes > 0
    assert damaged is not None
    assert (damaged.linked_bytes, damaged.checkpoint_id) == (0, second.cuts[-1].checkpoint_id)
    assert damaged.fetched_bytes >= second.cuts[-1].in_flight_bytes > 0
    # And no driver leaves anything after a regular end, when Spark has come to rest.
    wait_until(lambda: not any((tmp_path / "scratch").iterdir()), "scratch is empty")


def damage_all_below(directory: Path) -> None:
    """Change a byte in the middle of every file; its size stays."""
    # What was pinned has several names.
    damaged: set[int] = set()
    # A dead driver's JVM outlives it by a moment, and its tasks clear up behind them: files vanish,
    # and so do directories, which `walk` leaves out.
    for file in [Path(at, name) for at, _, names in os.walk(directory) for name in names]:
        with suppress(FileNotFoundError):
            facts = file.stat()
            if facts.st_size and facts.st_ino not in damaged:
                damaged.add(facts.st_ino)
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)


def test_a_diamond_overtakes_when_alignment_takes_too_long(
    drivers: Drivers, tmp_path: Path, chance: random.Random
) -> None:
    patient = diamond(drivers, tmp_path, alignment_timeout="300ms")

    overtaken = patient.dies_at("unaligned decision")
    patient.dies_after("checkpoint", chance, 1.0)
    total = patient.finish()

    assert overtaken.cuts[-1].in_flight_bytes > 0
    check_diamond(tmp_path, total)


@pytest.mark.long
def test_a_diamond_that_only_aligns_has_nothing_in_flight(
    drivers: Drivers, tmp_path: Path, chance: random.Random
) -> None:
    aligned = diamond(drivers, tmp_path, unaligned=False, channel_messages=4)

    aligned.dies_at("decision", 2)
    aligned.dies_after("checkpoint", chance, 1.0)
    total = aligned.finish()

    assert all(cut.in_flight_bytes == 0 for cut in aligned.states[-1].cuts)
    check_diamond(tmp_path, total)


# -- files


def test_files_survive_a_kill_at_every_turn_of_their_commit(
    drivers: Drivers, tmp_path: Path
) -> None:
    table = tmp_path / "tables" / "files"
    files = Killing(drivers, tmp_path, "files", {"rate": str(RATE), "table": str(table)})

    files.dies_at("commit", 2)
    begun = files.dies_at("after file manifest")
    unmoved = [waits_to_be_moved(table)]
    again = files.dies_at("before file moves")
    unmoved.append(waits_to_be_moved(table))
    decided = files.dies_at("decision")
    recovering = files.dies_at("before file manifest")
    prepared = files.dies_at("manifest")
    total = files.finish()

    # Inside the commit: the version is there and its files are not, also for the one that was
    # killed while it brought that to an end.
    assert unmoved == [True, True]
    assert (again.cuts, again.changes) == (begun.cuts, begun.changes)
    assert begun.open_commits
    # The decision of a driver that was killed, and the one that wanted to act on it.
    assert decided.newest_is_open
    assert (recovering.cuts, recovering.changes) == (decided.cuts, decided.changes)
    assert prepared.staged
    assert prepared.changes > recovering.changes
    assert numbers_in(table) == list(range(total))


@pytest.mark.long
def test_files_survive_a_kill_before_and_after_every_durable_write(
    drivers: Drivers, tmp_path: Path
) -> None:
    table = tmp_path / "tables" / "files"
    files = Killing(drivers, tmp_path, "files", {"rate": str(RATE), "table": str(table)})
    files.dies_at("commit", 2)
    files.finish()
    for write in files.writes:
        for moment in ("before", "after"):
            files.dies_at(f"{moment} {write}")
    total = files.finish()

    assert numbers_in(table) == list(range(total))


def waits_to_be_moved(table: Path) -> bool:
    """Say whether the newest version's files are all where they were staged."""
    newest = max((table / "_cutwater" / "commits").glob("*.json"))
    return all((table / file["source"]).exists() for file in json.loads(newest.read_text())["add"])


def numbers_in(table: Path) -> list[int]:
    """The numbers in all files that are in sight, by a reader that knows nothing of commits."""
    files = [path for path in table.glob("part=*/*.parquet") if path.is_file()]
    return sorted(
        entry
        for file in files
        for entry in pq.ParquetFile(file).read(columns=["value"])["value"].to_pylist()
    )


# -- three tables


def test_three_tables_show_one_moment_at_every_commit(
    drivers: Drivers, tmp_path: Path, chance: random.Random
) -> None:
    tables = tmp_path / "tables"
    parameters = {"rate": str(RATE), "tables": str(tables)}
    three = Killing(drivers, tmp_path, "three_sinks", parameters, unaligned="forced")

    between = three.dies_at("commit", 3)
    three.dies_at("unaligned decision", chance.randint(1, 3))
    total = three.finish()

    # The tables had begun to act on a decision, and that all of them had was not recorded.
    assert between.changes >= 3
    assert between.open_commits
    shown = [prefix_shown(tables, versions) for versions in commits(three.states[-1])]
    assert shown == sorted(shown)
    assert shown[-1] == total
    assert any(cut.in_flight_bytes and not cut.commit_point for cut in three.states[-1].cuts)


def commits(state: PipelineState) -> list[dict[str, str]]:
    return [
        {str(sink): version for sink, version in found.versions.items()} for found in state.commits
    ]


def prefix_shown(tables: Path, versions: dict[str, str]) -> int:
    """Check that the tables show one prefix of the stream, and return its length."""
    numbers = rows_at(tables / "all", versions["all_orders"], "value")
    count = len(numbers)
    assert numbers == [(number,) for number in range(count)]
    amounts = [(number, number * 37 % 1000) for number in range(count)]
    assert rows_at(tables / "large", versions["large_orders"], "value", "amount") == [
        (one, amount) for one, amount in amounts if amount > 900
    ]
    # A window is shown once the watermark, a second behind, has passed it: whole, and in order.
    sums = rows_at(tables / "sums", versions["sums"], "start", "sum")
    begin = datetime(2026, 1, 1)  # noqa: DTZ001 - as the sequence begins, in UTC
    assert [(at.replace(tzinfo=None), found) for at, found in sums] == [
        (begin + timedelta(seconds=number), sum(amount for _, amount in window(amounts, number)))
        for number in range(len(sums))
    ]
    assert count >= len(sums) * RATE
    return count


def rows_at(table: Path, version: str, *columns: str) -> list[tuple[Any, ...]]:
    return [] if version == "none" else rows_of(table, version, *columns)


def window(amounts: list[tuple[int, int]], second: int) -> list[tuple[int, int]]:
    return amounts[second * RATE : (second + 1) * RATE]
