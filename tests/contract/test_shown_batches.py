"""Recovery and rewinds where tables show batches before their checkpoint, without Spark.

A prepared pipeline shows six batches of ten numbers; its last checkpoint holds five (rule F33).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.unit.operations.prepared_pipeline import (
    NAME,
    SAVEPOINT,
    SINKS,
    PreparedPipeline,
    below,
    numbers_in,
    prepare_pipeline,
)

import cutwater
from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.commit import grant_shows
from cutwater.protocol.cut import Committable, Version
from cutwater.sinks.base import ShowingSink, SinkContext

LEFT, RIGHT = SINKS


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedPipeline:
    return prepare_pipeline(tmp_path, "batch")


def rewound(prepared: PreparedPipeline, to: str, *, leave_sinks: bool = False) -> None:
    cutwater.rewind(NAME, to=to, store=prepared.store, yes=True, leave_sinks=leave_sinks)


def counted(prepared: PreparedPipeline, versions: Mapping[SinkId, Version | None]) -> set[int]:
    """How many numbers the tables hold at these versions."""
    return {len(numbers_in(prepared.table(sink), int(at or 0))) for sink, at in versions.items()}


def test_what_no_checkpoint_holds_is_rolled_back_by_recovery(prepared: PreparedPipeline) -> None:
    before = prepared.shown()
    restored = prepared.recover()

    assert before == below(60)
    assert prepared.shown() == below(50)
    assert counted(prepared, restored.standing.visible) == {50}
    prepared.recover()
    assert prepared.shown() == below(50)


def test_every_checkpoint_has_the_version_with_just_its_batches(prepared: PreparedPipeline) -> None:
    commits = prepared.opened().commits
    shown = [counted(prepared, commits.read(slot).versions) for slot in commits.slots()]

    assert shown == [{10}, {20}, {30}, {50}]


@pytest.mark.parametrize(("to", "shows"), [("1", 10), ("2", 20), (SAVEPOINT, 30), ("5", 50)])
def test_a_rewind_rolls_back_what_was_shown_since(
    prepared: PreparedPipeline, to: str, shows: int
) -> None:
    rewound(prepared, to)
    taken = prepared.shown()
    prepared.recover()

    assert taken == prepared.shown() == below(shows)


def test_what_a_recovery_point_carries_is_shown_again_after_a_rewind(
    prepared: PreparedPipeline,
) -> None:
    rewound(prepared, "4")
    taken = prepared.shown()
    restored = prepared.recover()

    assert taken == below(30)
    assert prepared.shown() == below(40)
    assert counted(prepared, restored.standing.visible) == {30}


def test_a_rewind_that_leaves_the_sinks_leaves_all_that_is_shown(
    prepared: PreparedPipeline,
) -> None:
    rewound(prepared, "2", leave_sinks=True)
    prepared.recover()

    assert prepared.shown() == below(60)


def test_turning_it_off_rolls_back_what_was_shown_before(prepared: PreparedPipeline) -> None:
    replace(prepared, visibility="checkpoint").recover()

    assert prepared.shown() == below(50)


def test_a_sink_that_was_dropped_is_rolled_back_too(prepared: PreparedPipeline) -> None:
    replace(prepared, sinks=(RIGHT,)).recover()

    assert prepared.shown() == below(50)


def test_a_sink_that_writes_elsewhere_now_is_rolled_back_where_it_wrote(
    prepared: PreparedPipeline, tmp_path: Path
) -> None:
    class Moved(PreparedPipeline):
        def table(self, sink: object) -> Path:
            return tmp_path / "elsewhere" / str(sink)

    write_deltalake(tmp_path / "elsewhere" / LEFT, pa.table({"value": [7]}))

    Moved(prepared.directory, "batch").recover()

    assert prepared.shown() == below(50)
    assert numbers_in(tmp_path / "elsewhere" / LEFT) == [7]


def test_a_predecessor_is_shut_out_by_recovery(prepared: PreparedPipeline) -> None:
    store = prepared.opened()
    sink = prepared.target(LEFT).open(SinkContext(None, store.pipeline, LEFT))
    assert isinstance(sink, ShowingSink)
    permit = grant_shows(store.pipeline, Slot(1), Generation(1))
    sink.take_back(permit, None, ())
    prepared.recover()

    with pytest.raises(Superseded):
        sink.show(permit, Committable(LEFT, Generation(1), BatchId(6), 1, ()))
    assert prepared.shown() == below(50)


def test_what_another_writer_wrote_since_prevents_recovery_and_is_named(
    prepared: PreparedPipeline,
) -> None:
    write_deltalake(prepared.table(RIGHT), pa.table({"value": [7]}), mode="append")

    with pytest.raises(SinkError, match=r"right: .*another writer"):
        prepared.recover()
    rewound(prepared, "5", leave_sinks=True)
    prepared.recover()

    assert prepared.shown() == [list(range(50)), sorted([7, *range(60)])]
