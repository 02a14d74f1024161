"""An upsert into a table with files of other programs: keys, partitions, statistics, refusals.

Whether Spark reads the same rows before and after is tested with Spark
(`tests/spark/test_delta_foreign_files.py`).
"""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from tests.contract.delta_rows import ArrowRows, actions_of

from cutwater import sinks
from cutwater.errors import SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import OpenSink, SinkContext

CONTEXT = SinkContext(None, PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10"), SinkId("totals"))
KEYED = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.int64())])
MOMENT = datetime(2024, 2, 29, 12, 0, 0, 123000, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "totals"


def permit(slot: int) -> CommitPermit:
    return grant(CONTEXT.pipeline, Slot(slot), CheckpointId(slot + 100))


def staged(sink: OpenSink, batch: int, *rows: tuple[str, int, int]) -> Committable:
    given = [{"k": k, "n": n, "v": v} for k, n, v in rows]
    found = sink.stage(ArrowRows(given, ("k", "n", "v")), Generation(1), BatchId(batch))
    assert found is not None
    return found


def foreign_table(
    table: Path, schema: pa.Schema, rows: pa.Table, partition: tuple[str, str] | None = None
) -> None:
    """Make a Delta table of one Parquet file, with a log as another program writes it."""
    columns = Schema.from_arrow(schema)
    divided_by = [partition[0]] if partition else []
    made = DeltaTable.create(str(table), columns, partition_by=divided_by)
    pq.write_table(rows, table / "foreign.parquet")
    add(table, made, dict([partition] if partition else []))


def add(table: Path, made: DeltaTable, values: dict[str, str | None]) -> None:
    size = (table / "foreign.parquet").stat().st_size
    action = AddAction("foreign.parquet", size, values, 0, True, '{"numRecords": 2}')
    made.create_write_transaction([action], "append", made.schema(), list(values))


def added(table: Path) -> list[dict[str, Any]]:
    """Return what the last version says of the files that it added."""
    *_, last = actions_of(table)
    return [action["add"] for action in last if "add" in action]


def shown(table: Path) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def upserting(table: Path, **options: Any) -> OpenSink:  # noqa: ANN401
    target = sinks.delta(str(table), write="upsert", keys=["k", "n"], **options)
    return target.open(CONTEXT)


def test_the_log_says_of_a_copied_timestamp_what_it_is(table: Path) -> None:
    schema = pa.schema([*KEYED, ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    at = pa.array([MOMENT, MOMENT], pa.timestamp("ms", "UTC"))
    day = pa.array([date(1500, 3, 1)] * 2)
    keys = {"k": ["a", "b"], "n": [1, 1], "v": [1, 1]}
    foreign_table(table, schema, pa.table({**keys, "at": at, "day": day}))
    sink = upserting(table)

    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 2))])

    (copied,) = [entry for entry in added(table) if "1500-03-01" in entry["stats"]]
    said = "2024-02-29T12:00:00.123000Z"
    assert f'"minValues": {{"k": "b", "n": 1, "v": 1, "at": "{said}"' in copied["stats"]
    assert f'"maxValues": {{"k": "b", "n": 1, "v": 1, "at": "{said}"' in copied["stats"]


def test_a_key_column_is_found_whatever_the_case_of_its_name(table: Path) -> None:
    foreign_table(table, KEYED, pa.table({"K": ["a", "b"], "N": [1, 1], "V": [7, 8]}))
    sink = upserting(table)

    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])

    assert shown(table) == [("a", 1, 1), ("b", 1, 8)]


def test_the_log_counts_where_a_file_has_its_partition_column_as_well(table: Path) -> None:
    rows = pa.table({"k": ["stale", "stale"], "n": [1, 2], "v": [7, 8]})
    foreign_table(table, KEYED, rows, ("k", "a"))
    sink = upserting(table, partition_by=["k"])

    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])

    assert shown(table) == [("a", 1, 1), ("a", 2, 8)]
    (copied,) = [entry for entry in added(table) if "stats" in entry and '"v": 8' in entry["stats"]]
    assert pq.read_schema(table / copied["path"]).names == ["n", "v"]


@pytest.mark.parametrize("column", ["n", "at"])
def test_a_column_that_cannot_be_kept_is_refused_and_nothing_is_lost(
    table: Path, column: str
) -> None:
    schema = pa.schema([*KEYED, ("at", pa.timestamp("us", "UTC"))])
    odd = {"n": pa.array(["1", "1"]), "at": pa.array([1, 2], pa.timestamp("ns", "UTC"))}
    sound = {"k": ["a", "b"], "n": [1, 1], "v": [7, 8], "at": pa.array([MOMENT] * 2)}
    foreign_table(table, schema, pa.table({**sound, column: odd[column]}))
    sink = upserting(table)
    waiting = staged(sink, 0, ("a", 1, 1))
    before = sorted(table.rglob("*"))

    with pytest.raises(SinkError, match=rf"foreign\.parquet has column {column} as .* in the file"):
        sink.commit(permit(1), [waiting])

    assert DeltaTable(str(table)).version() == 1
    assert set(before) <= set(table.rglob("*"))
    assert sink.problem(waiting) is None
    # Another program puts the file right, and the same commit succeeds.
    pq.write_table(pa.table(sound), table / "foreign.parquet")
    add(table, DeltaTable(str(table)), {})
    assert sink.commit(permit(1), [waiting]) == "3"
    assert [row[:3] for row in shown(table)] == [("a", 1, 1), ("b", 1, 8)]
