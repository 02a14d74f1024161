"""Directories of files go back and forth with their pipeline, without Spark and its file.

The pipeline is the one made by hand for moves, with directories of files for its tables.
"""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.unit.moves import handmade
from tests.unit.moves.handmade import ROWS, SINKS, Made
from tests.unit.sinks.by_hand import HandmadeRows, in_sight

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
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    def target(self: Made, sink: SinkId) -> Sink:
        return sinks.files(str(self.table(sink)))

    def staged(
        _: Made, __: PipelineStore, sink: OpenSink, ___: SinkId, number: int
    ) -> Committable | None:
        ids = tuple(range((number - 1) * ROWS, number * ROWS))
        rows = HandmadeRows(ids, {"value": "long"})
        return sink.stage(rows, Generation(1), BatchId(number - 1))

    monkeypatch.setattr(Made, "target", target)
    monkeypatch.setattr(handmade, "stage_by_hand", staged)
    return handmade.make(tmp_path)


def shown(made: Made) -> list[list[int]]:
    return [
        sorted(
            one
            for path in in_sight(made.table(sink))
            for one in pq.ParquetFile(path).read()["value"].to_pylist()
        )
        for sink in SINKS
    ]


def below(count: int) -> list[list[int]]:
    return [list(range(count))] * len(SINKS)


def test_a_rewind_takes_files_out_of_sight_and_another_brings_them_back(made: Made) -> None:
    assert shown(made) == below(50)
    preview = cutwater.rewind("orders", to="2", store=made.store)
    assert [(one.rows, one.rows_then) for one in preview.sinks] == [(50, 20)] * 2
    assert shown(made) == below(50)

    cutwater.rewind("orders", to="2", store=made.store, yes=True)
    assert shown(made) == below(20)
    cutwater.rewind("orders", to="5", store=made.store, yes=True)
    assert shown(made) == below(50)
    # The fourth was a recovery point: tables show what the third had committed.
    cutwater.rewind("orders", to="4", store=made.store, yes=True)
    assert shown(made) == below(30)

    versions = {one.version for one in view_at(made.opened(), "orders").tables.values()}
    assert versions == {"7"}
    assert made.recover().cut is not None
    assert shown(made) == below(30)


def test_a_directory_that_was_made_anew_is_not_taken_for_the_old_one(made: Made) -> None:
    left = SINKS[0]
    shutil.rmtree(made.table(left))
    store = made.opened()
    sink = made.target(left).open(SinkContext(None, store.pipeline, left))
    for number in (7, 8, 9):
        store.log.create(Claim(Slot(number), Generation(number), "again"))
        staged = handmade.stage_by_hand(made, store, sink, left, number)
        sink.commit(grant(store.pipeline, Slot(number), CheckpointId(number)), [staged])

    with pytest.raises(MoveRefused, match=r"is another table than .* it has been made anew"):
        cutwater.rewind("orders", to="2", store=made.store, yes=True)

    assert shown(made) == [list(range(60, 90)), list(range(50))]


def test_a_rewind_is_refused_before_it_begins_if_files_are_gone(made: Made) -> None:
    gone = in_sight(made.table(SINKS[0]))[0]
    gone.unlink()

    preview = cutwater.rewind("orders", to="2", store=made.store)

    assert [gone.name in one for one in preview.refused] == [True]
    assert preview.refused[0].count("is gone from") == 1
