"""Processes killed with SIGKILL inside the commit of a Delta table, several in a row.

The next process repeats the slot, as recovery does; other programs write in between. In the end
the table shows every slot once.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.contract.delta_child import KEYS, MOMENTS, PIPELINE, SINK
from tests.contract.delta_rows import ArrowRows, actions_of, read_with_duckdb

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import OpenSink, SinkContext

ROOT = Path(__file__).parents[2]
BATCHES = 9
"""How many small batches a slot has: enough to be joined."""

Rows = list[tuple[Any, ...]]
FOREIGN = ("another writer", 0, 0, None)


def opened(table: Path, write: str) -> OpenSink:
    target = sinks.delta(str(table), write=write, keys=KEYS.get(write, ()))
    return target.open(SinkContext(None, PIPELINE, SINK))


def batches_of(slot: int) -> list[Rows]:
    """The rows of a slot: keys of its own, and keys that every slot has."""
    return [
        [("own", slot * 100 + number, number), ("all", number % 3, slot * 10 + number)]
        for number in range(BATCHES)
    ]


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot))


def stage(sink: OpenSink, slot: int) -> list[Committable]:
    found = []
    for number, rows in enumerate(batches_of(slot)):
        given = [{"k": k, "n": n, "v": v} for k, n, v in rows]
        batch = BatchId(slot * 100 + number)
        one = sink.stage(ArrowRows(given, ("k", "n", "v")), Generation(1), batch)
        assert one is not None
        found.append(one)
    return found


def expected(write: str, slots: int) -> Rows:
    rows: dict[Any, tuple[Any, ...]] = {}
    for slot in range(1, slots + 1):
        for number, batch in enumerate(batches_of(slot)):
            if write == "overwrite":
                rows = {}
            for row in batch:
                key = (*row[:2], slot, number) if write == "append" else row[:2]
                rows[key] = (*row, None)
    return sorted(rows.values(), key=repr)


def dies(table: Path, write: str, work: list[Committable], moment: tuple[str, int]) -> bool:
    """Commit slot 2 in a process that dies at a moment; False if that moment never came."""
    told = [
        (
            committable.generation,
            committable.batch,
            committable.rows,
            [(b.name, b.size_bytes, b.sha256) for b in committable.blobs],
        )
        for committable in work
    ]
    words = [str(table), write, moment[0], str(moment[1]), "2"]
    child = subprocess.run(
        [sys.executable, "-m", "tests.contract.delta_child", *words],
        cwd=ROOT,
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode in {0, -signal.SIGKILL}, child.stderr[-2000:]
    return child.returncode != 0


def another_program_writes(table: Path) -> None:
    rows = pa.table({"k": [FOREIGN[0]], "n": [FOREIGN[1]], "v": [FOREIGN[2]]})
    write_deltalake(str(table), rows, mode="append")
    DeltaTable(str(table)).optimize.compact()


def check(table: Path, write: str, slots: int, foreign: int) -> None:
    shown = read_with_duckdb(table)
    others = [row for row in shown if row == FOREIGN]
    assert len(others) == (0 if write == "overwrite" else foreign)
    assert [row for row in shown if row != FOREIGN] == expected(write, slots)
    told = [
        action["txn"]["version"]
        for actions in actions_of(table)
        for action in actions
        if "txn" in action
    ]
    assert told == list(range(1, slots + 1))


def kill_and_repeat(table: Path, write: str, moments: list[tuple[str, int]]) -> int:
    """Return how many processes have died in slot 2; slots 1 and 3 are quiet."""
    sink = opened(table, write)
    assert sink.commit(permit(1), stage(sink, 1)) == "1"
    work = stage(sink, 2)
    deaths = sum(dies(table, write, work, moment) for moment in moments)
    another_program_writes(table)
    version = opened(table, write).commit(permit(2), work)
    assert sink.commit(permit(2), work) == version
    sink.commit(permit(3), stage(sink, 3))
    check(table, write, 3, foreign=1)
    return deaths


@pytest.mark.parametrize("write", ["append", "upsert", "overwrite"])
def test_a_commit_survives_three_deaths_in_a_row(tmp_path: Path, write: str) -> None:
    moments = [("after settle", 1), ("before version", 1), ("after version", 1)]

    assert kill_and_repeat(tmp_path / "t", write, moments) == 3


@pytest.mark.long
@pytest.mark.parametrize("write", ["append", "upsert", "overwrite"])
@pytest.mark.parametrize("name", list(MOMENTS))
def test_a_commit_survives_a_death_at_every_moment(tmp_path: Path, write: str, name: str) -> None:
    moments = [(f"{when} {name}", count) for when in ("before", "after") for count in (1, 2)]

    # Appending joins one file and overwriting copies none; all else happens at least once.
    assert kill_and_repeat(tmp_path / "t", write, moments) > 0 or write != "upsert"
