"""Upserts into a Delta table against a list of rows, under everything that others do to it.

Batches wait and are committed together; other writers append, compact and vacuum, also between
reading the table and committing to it; a process dies inside a commit and a fresh one repeats it;
the table is restored to earlier versions. Rows are written by pyarrow and read by DuckDB.
"""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.contract.delta_rows import TYPES, ArrowRows, arrow, read_with_duckdb

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.delta import merge as delta_changes
from cutwater.sinks.delta.table import OpenDeltaTable

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("totals")

Row = dict[str, Any]
keys = st.tuples(st.sampled_from(["a", "b c", "ü/%=", None]), st.sampled_from([0, 1, 2, None]))
batches = st.dictionaries(keys, st.integers(0, 9), min_size=1, max_size=8)


class Death(BaseException):
    """The process has died."""


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


class UpsertMachine(RuleBasedStateMachine):
    """One sink and its table."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.table = self.directory / "table"
        self.rows: list[Row] = []
        self.waiting: list[tuple[Committable, list[Row]]] = []
        self.committed: dict[str, list[Row]] = {}
        self.last: tuple[int, tuple[Committable, ...], str] | None = None
        self.slot = 0
        self.batch = 0
        self.meanwhile: list[Callable[[], None]] = []
        self.dies = False
        self.original = OpenDeltaTable._write
        self.joined_min = delta_changes.JOINED_MIN

    @initialize(partition_by=st.sampled_from([(), ("k",), ("v",)]), joined=st.sampled_from([2, 8]))
    def begin(self, partition_by: tuple[str, ...], joined: int) -> None:
        self.partition_by = partition_by
        machine = self

        def write(opened: OpenDeltaTable, *given: Any) -> None:  # noqa: ANN401
            if machine.dies:
                raise Death
            while machine.meanwhile:
                machine.meanwhile.pop()()
            machine.original(opened, *given)

        OpenDeltaTable._write = write  # type: ignore[assignment,method-assign]
        delta_changes.JOINED_MIN = joined  # type: ignore[misc]
        self.sink = self.open()

    def teardown(self) -> None:
        OpenDeltaTable._write = self.original  # type: ignore[method-assign]
        delta_changes.JOINED_MIN = self.joined_min  # type: ignore[misc]
        shutil.rmtree(self.directory)

    def open(self) -> OpenSink:
        target = sinks.delta(
            str(self.table), write="upsert", keys=["k", "n"], partition_by=self.partition_by
        )
        return target.open(SinkContext(None, PIPELINE, SINK))

    @rule(batch=batches, wide=st.booleans())
    def stage(self, batch: dict[tuple[str | None, int | None], int], wide: bool) -> None:
        rows = [
            {"k": k, "n": n, "v": v, "x": f"x{v}" if wide else None} for (k, n), v in batch.items()
        ]
        columns = tuple(TYPES) if wide else ("k", "n", "v")
        given = ArrowRows(rows, columns)
        staged = self.sink.stage(given, Generation(1), BatchId(self.batch))
        assert staged is not None
        assert staged.rows == len(rows)
        self.batch += 1
        self.waiting.append((staged, rows))

    def _upserted(self) -> list[Row]:
        rows = self.rows
        for _, batch in self.waiting:
            again = {(row["k"], row["n"]) for row in batch}
            rows = [row for row in rows if (row["k"], row["n"]) not in again] + batch
        return rows

    @precondition(lambda self: self.waiting)
    @rule(dies=st.booleans(), fresh=st.booleans())
    def commit(self, dies: bool, fresh: bool) -> None:
        self.slot += 1
        work = tuple(committable for committable, _ in self.waiting)
        if dies:
            self.dies = True
            with pytest.raises(Death):
                self.sink.commit(permit(self.slot), work)
            self.dies = False
        if dies or fresh:
            self.sink = self.open()
            assert [self.sink.problem(committable) for committable in work] == [None] * len(work)
        version = self.sink.commit(permit(self.slot), work)
        self.rows = self._upserted()
        self.waiting = []
        self.committed[version] = self.rows
        self.last = (self.slot, work, version)

    @precondition(lambda self: self.last)
    @rule()
    def commit_again(self) -> None:
        assert self.last is not None
        slot, work, version = self.last
        assert self.open().commit(permit(slot), work) == version

    @precondition(lambda self: self.table.joinpath("_delta_log").exists())
    @rule(batch=batches, in_between=st.booleans())
    def another_writer_appends(
        self, batch: dict[tuple[str | None, int | None], int], in_between: bool
    ) -> None:
        rows = [{"k": k, "n": n, "v": v, "x": None} for (k, n), v in batch.items()]

        def append() -> None:
            there = [field.name for field in DeltaTable(str(self.table)).schema().fields]
            found, divided_by = arrow(rows, there), list(self.partition_by) or None
            write_deltalake(str(self.table), found, mode="append", partition_by=divided_by)
            self.rows = [*self.rows, *rows]

        self._now_or_in_between(append, in_between=in_between)

    @precondition(lambda self: self.table.joinpath("_delta_log").exists())
    @rule(in_between=st.booleans())
    def another_writer_compacts(self, in_between: bool) -> None:
        def compact() -> None:
            DeltaTable(str(self.table)).optimize.compact()

        self._now_or_in_between(compact, in_between=in_between)

    @precondition(lambda self: self.table.joinpath("_delta_log").exists())
    @rule(in_between=st.booleans())
    def another_writer_vacuums(self, in_between: bool) -> None:
        def vacuum() -> None:
            DeltaTable(str(self.table)).vacuum(
                retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
            )

        self._now_or_in_between(vacuum, in_between=in_between)

    def _now_or_in_between(self, act: Callable[[], None], *, in_between: bool) -> None:
        if in_between and self.waiting:
            self.meanwhile.append(act)
            self.commit(dies=False, fresh=False)
        else:
            act()

    @precondition(lambda self: self.committed)
    @rule(chosen=st.randoms(use_true_random=False))
    def go_back(self, chosen: Any) -> None:  # noqa: ANN401
        version = chosen.choice(sorted(self.committed))
        preview = self.sink.look_back(version)
        if preview.obstacle is not None:
            assert re.search("written by another writer|perhaps by VACUUM", preview.obstacle)
            return
        assert preview.rows_then == len(self.committed[version])
        self.slot += 1
        now = self.open().restore(permit(self.slot), version)
        self.rows = self.committed[version]
        self.committed[now] = self.rows

    @invariant()
    def the_table_shows_the_rows(self) -> None:
        if not (self.table / "_delta_log").exists():
            return
        expected = sorted((tuple(row.get(name) for name in TYPES) for row in self.rows), key=repr)
        assert _as_text(read_with_duckdb(self.table)) == _as_text(expected)


def _as_text(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """A partition's value is text in the log."""
    return sorted(tuple(str(value) for value in row) for row in rows)


TestUpserts = UpsertMachine.TestCase
TestUpserts.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
