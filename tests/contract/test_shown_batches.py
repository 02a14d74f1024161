"""Recovery and rewinds where tables show batches before their checkpoint, without Spark.

A pipeline made by hand shows six batches of ten numbers; its last checkpoint holds five (rule F33).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.unit.operations.handmade import NAME, SAVEPOINT, SINKS, Made, below, make, numbers_in

import cutwater
from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, Generation, SinkId, Slot
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.showing import grant_shows
from cutwater.sinks.base import ShowingSink, SinkContext

LEFT, RIGHT = SINKS


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path, "batch")


def rewound(made: Made, to: str, *, leave_sinks: bool = False) -> None:
    cutwater.rewind(NAME, to=to, store=made.store, yes=True, leave_sinks=leave_sinks)


def counted(made: Made, versions: Mapping[SinkId, Version | None]) -> set[int]:
    """How many numbers the tables hold at these versions."""
    return {len(numbers_in(made.table(sink), int(at or 0))) for sink, at in versions.items()}


def test_what_no_checkpoint_holds_is_taken_back_by_recovery(made: Made) -> None:
    before = made.shown()
    restored = made.recover()

    assert before == below(60)
    assert made.shown() == below(50)
    assert counted(made, restored.standing.visible) == {50}
    made.recover()
    assert made.shown() == below(50)


def test_every_checkpoint_has_the_version_with_just_its_batches(made: Made) -> None:
    commits = made.opened().commits
    shown = [counted(made, commits.read(slot).versions) for slot in commits.slots()]

    assert shown == [{10}, {20}, {30}, {50}]


@pytest.mark.parametrize(("to", "shows"), [("1", 10), ("2", 20), (SAVEPOINT, 30), ("5", 50)])
def test_a_rewind_takes_back_what_was_shown_since(made: Made, to: str, shows: int) -> None:
    rewound(made, to)
    taken = made.shown()
    made.recover()

    assert taken == made.shown() == below(shows)


def test_what_a_recovery_point_carries_is_shown_again_after_a_rewind(made: Made) -> None:
    rewound(made, "4")
    taken = made.shown()
    restored = made.recover()

    assert taken == below(30)
    assert made.shown() == below(40)
    assert counted(made, restored.standing.visible) == {30}


def test_a_rewind_that_leaves_the_sinks_leaves_all_that_is_shown(made: Made) -> None:
    rewound(made, "2", leave_sinks=True)
    made.recover()

    assert made.shown() == below(60)


def test_turning_it_off_takes_back_what_was_shown_before(made: Made) -> None:
    replace(made, visibility="checkpoint").recover()

    assert made.shown() == below(50)


def test_a_sink_that_was_dropped_is_taken_back_too(made: Made) -> None:
    replace(made, sinks=(RIGHT,)).recover()

    assert made.shown() == below(50)


def test_a_sink_that_writes_elsewhere_now_is_taken_back_where_it_wrote(
    made: Made, tmp_path: Path
) -> None:
    class Moved(Made):
        def table(self, sink: object) -> Path:
            return tmp_path / "elsewhere" / str(sink)

    write_deltalake(tmp_path / "elsewhere" / LEFT, pa.table({"value": [7]}))

    Moved(made.directory, "batch").recover()

    assert made.shown() == below(50)
    assert numbers_in(tmp_path / "elsewhere" / LEFT) == [7]


def test_a_predecessor_is_shut_out_by_recovery(made: Made) -> None:
    store = made.opened()
    sink = made.target(LEFT).open(SinkContext(None, store.pipeline, LEFT))
    assert isinstance(sink, ShowingSink)
    permit = grant_shows(store.pipeline, Slot(1), Generation(1))
    sink.take_back(permit, None, ())
    made.recover()

    with pytest.raises(Superseded):
        sink.show(permit, Committable(LEFT, Generation(1), BatchId(6), 1, ()))
    assert made.shown() == below(50)


def test_what_somebody_else_wrote_since_is_in_the_way_and_named(made: Made) -> None:
    write_deltalake(made.table(RIGHT), pa.table({"value": [7]}), mode="append")

    with pytest.raises(SinkError, match=r"right: .*somebody else"):
        made.recover()
    rewound(made, "5", leave_sinks=True)
    made.recover()

    assert made.shown() == [list(range(50)), sorted([7, *range(60)])]
