"""Directories of files go back and forth with their pipeline, without Spark and its file.

The pipeline is the prepared pipeline, with directories of files for its tables.
"""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.unit.operations import prepared_pipeline
from tests.unit.operations.prepared_pipeline import ROWS, SINKS, PreparedPipeline
from tests.unit.sinks.files_sink import ArrowRows, visible_files

import cutwater
from cutwater import sinks
from cutwater.errors import MoveRefused
from cutwater.ids import BatchId, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.protocol.cut import Committable
from cutwater.protocol.decisions import Claim
from cutwater.sinks.base import OpenSink, Sink, SinkContext
from cutwater.sinks.consistent_view import view_at
from cutwater.store.pipeline_store import PipelineStore


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedPipeline:
    def target(self: PreparedPipeline, sink: SinkId) -> Sink:
        return sinks.files(str(self.table(sink)))

    def staged(
        _: PreparedPipeline, __: PipelineStore, sink: OpenSink, ___: SinkId, number: int
    ) -> Committable | None:
        ids = tuple(range((number - 1) * ROWS, number * ROWS))
        rows = ArrowRows(ids, {"value": "long"})
        return sink.stage(rows, Generation(1), BatchId(number - 1))

    monkeypatch.setattr(PreparedPipeline, "target", target)
    monkeypatch.setattr(prepared_pipeline, "stage_parquet", staged)
    return prepared_pipeline.prepare_pipeline(tmp_path)


def shown(prepared: PreparedPipeline) -> list[list[int]]:
    return [
        sorted(
            entry
            for path in visible_files(prepared.table(sink))
            for entry in pq.ParquetFile(path).read()["value"].to_pylist()
        )
        for sink in SINKS
    ]


def below(count: int) -> list[list[int]]:
    return [list(range(count))] * len(SINKS)


def test_a_rewind_takes_files_out_of_sight_and_another_brings_them_back(
    prepared: PreparedPipeline,
) -> None:
    assert shown(prepared) == below(50)
    preview = cutwater.rewind("orders", to="2", store=prepared.store)
    assert [(sink.rows, sink.rows_then) for sink in preview.sinks] == [(50, 20)] * 2
    assert shown(prepared) == below(50)

    cutwater.rewind("orders", to="2", store=prepared.store, yes=True)
    assert shown(prepared) == below(20)
    cutwater.rewind("orders", to="5", store=prepared.store, yes=True)
    assert shown(prepared) == below(50)
    # The fourth was a recovery point: tables show what the third had committed.
    cutwater.rewind("orders", to="4", store=prepared.store, yes=True)
    assert shown(prepared) == below(30)

    versions = {table.version for table in view_at(prepared.opened(), "orders").tables.values()}
    assert versions == {"7"}
    assert prepared.recover().cut is not None
    assert shown(prepared) == below(30)


def test_a_directory_that_was_made_anew_is_not_taken_for_the_old_one(
    prepared: PreparedPipeline,
) -> None:
    left = SINKS[0]
    shutil.rmtree(prepared.table(left))
    store = prepared.opened()
    sink = prepared.target(left).open(SinkContext(None, store.pipeline, left))
    for number in (7, 8, 9):
        store.log.create(Claim(Slot(number), Generation(number), "again"))
        staged = prepared_pipeline.stage_parquet(prepared, store, sink, left, number)
        sink.commit(grant(store.pipeline, Slot(number), CheckpointId(number)), [staged])

    with pytest.raises(MoveRefused, match=r"is another table than .* it has been recreated"):
        cutwater.rewind("orders", to="2", store=prepared.store, yes=True)

    assert shown(prepared) == [list(range(60, 90)), list(range(50))]


def test_a_rewind_is_refused_before_it_begins_if_files_are_gone(prepared: PreparedPipeline) -> None:
    gone = visible_files(prepared.table(SINKS[0]))[0]
    gone.unlink()

    preview = cutwater.rewind("orders", to="2", store=prepared.store)

    assert [gone.name in text for text in preview.refused] == [True]
    assert preview.refused[0].count("is gone from") == 1
