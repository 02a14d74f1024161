"""Staged files become runs of records, in their order, from any place on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.kafka_rows import SCHEMA

from cutwater.sinks.kafka.records import Run, read_runs


def stage(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    plain = {"key": b"k", "headers": None, "topic": "t", "partition": -1}
    pq.write_table(pa.Table.from_pylist([{**plain, **row} for row in rows], schema=SCHEMA), path)
    return path


def values(runs: list[Run]) -> list[bytes]:
    return [message["value"] for run in runs for message in run.messages]


@pytest.mark.parametrize("skip", [0, 1, 999, 1000, 1001, 1200, 1201, 2399, 2400])
def test_what_is_written_is_skipped_within_and_across_files(tmp_path: Path, skip: int) -> None:
    rows = [{"value": str(number).encode()} for number in range(2400)]
    files = [stage(tmp_path / "a", rows[:1200]), stage(tmp_path / "b", rows[1200:])]

    assert values(list(read_runs(files, skip))) == [row["value"] for row in rows[skip:]]


def test_rows_that_are_alike_are_one_plain_run(tmp_path: Path) -> None:
    file = stage(tmp_path / "a", [{"value": b"1"}, {"value": b"2", "key": None}])

    (run,) = read_runs([file])

    assert run == Run("t", [{"key": b"k", "value": b"1"}, {"key": None, "value": b"2"}], True)


@pytest.mark.parametrize(
    "other",
    [
        {"partition": 2},
        {"topic": "u"},
        {"headers": [{"key": "h", "value": b"v"}]},
    ],
)
def test_one_row_that_is_not_alike_is_not_lost_in_a_plain_run(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    file = stage(tmp_path / "a", [{"value": b"1"}, {"value": b"2", **other}, {"value": b"3"}])

    runs = list(read_runs([file]))

    assert values(runs) == [b"1", b"2", b"3"]
    assert not any(run.is_plain for run in runs)
    (message,) = [one for run in runs for one in run.messages if one["value"] == b"2"]
    assert message["partition"] == other.get("partition", -1)
    assert message["headers"] == [("h", b"v")] * ("headers" in other)
    assert [run.topic for run in runs] == (["t", "u", "t"] if "topic" in other else ["t"])
