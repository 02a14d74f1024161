"""A real Delta table that shows batches before their checkpoint, without Spark (rule F33).

Rows are written by pyarrow, as Spark's executors would; permits come from the protocol.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cutwater import sinks
from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, ShowPermit, grant, grant_shows
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import ShowingSink, SinkContext
from cutwater.sinks.delta.early_batches import ShowingDeltaTable
from cutwater.sinks.delta.storage import LocalStaging, LocalStorage
from cutwater.sinks.delta.target import DeltaWriteMode

PIPELINE = PipelineId("0f3c")
SINK = SinkId("numbers")


class ArrowRows:
    """Rows of numbers, and of words if there are any."""

    def __init__(self, numbers: Sequence[int], words: Sequence[str] | None = None) -> None:
        self._numbers, self._words = list(numbers), words

    @property
    def schema(self) -> StructType:
        fields = [StructField("value", LongType())]
        return StructType(fields + [StructField("word", StringType())] * bool(self._words))

    @property
    def frame(self) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def gathered(self) -> "ArrowRows":
        return self

    def count(self) -> int:
        raise NotImplementedError

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        del options, partition_by
        into = Path(directory.removeprefix("file://"))
        into.mkdir()
        columns: dict[str, Any] = {"value": pa.array(self._numbers, pa.int64())}
        if self._words:
            columns["word"] = self._words
        pq.write_table(pa.table(columns), into / "part-0.parquet")
        return len(self._numbers)


def opened(root: Path) -> ShowingDeltaTable:
    """The table as another process would open it."""
    sink = sinks.delta(str(root), visibility="batch").open(SinkContext(None, PIPELINE, SINK))
    assert isinstance(sink, ShowingDeltaTable)
    return sink


def claim(slot: int, generation: int) -> ShowPermit:
    return grant_shows(PIPELINE, Slot(slot), Generation(generation))


def decision(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot))


def staged(
    sink: ShowingDeltaTable,
    generation: int,
    batch: int,
    *numbers: int,
    words: Any = None,  # noqa: ANN401
) -> Committable:
    rows = ArrowRows(numbers, words)
    found = sink.stage(rows, Generation(generation), BatchId(batch))
    assert found is not None
    return found


def values(root: Path, version: str | None = None) -> list[int]:
    """Read a version with a reader that is not ours; the newest for None."""
    found = DeltaTable(root, version=None if version is None else int(version))
    return sorted(found.to_pyarrow_table(columns=["value"]).column("value").to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table that is there already, empty."""
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"value": pa.array([], pa.int64())}))
    return path


@pytest.fixture
def first(root: Path) -> ShowingDeltaTable:
    """Generation 1, claimed in slot 1, with batches 1 to 3 shown; the first two are in cut 2."""
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    for batch in (1, 2, 3):
        sink.show(claim(1, 1), staged(sink, 1, batch, batch * 10, batch * 10 + 1))
    return sink


def test_it_is_a_sink_that_shows_batches(first: ShowingDeltaTable) -> None:
    assert isinstance(first, ShowingSink)


def test_a_batch_is_seen_before_its_checkpoint(root: Path, first: ShowingDeltaTable) -> None:
    del first

    assert values(root) == [10, 11, 20, 21, 30, 31]


def test_a_seal_names_the_version_with_just_what_the_cut_holds(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2, 3)]
    for one in batches:
        sink.show(claim(1, 1), one)

    version = sink.seal(decision(2), batches[:2], None)
    again = opened(root).seal(decision(2), batches[:2], None)
    nothing = sink.seal(decision(3), (), version)

    assert values(root, version) == [1, 2]
    assert (again, nothing) == (version, version)
    assert values(root) == [1, 2, 3]


def test_a_seal_shows_batches_that_were_not_shown_yet(root: Path) -> None:
    """A crash came between staging and showing, or the table was out of reach."""
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2)]
    sink.show(claim(1, 1), batches[0])

    version = opened(root).seal(decision(2), batches, None)

    assert values(root, version) == [1, 2]
    sink.show(claim(1, 1), batches[1])
    assert values(root) == [1, 2]


def test_the_table_is_rolled_back_to_the_cut_before_the_replay(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2, 3)]
    for one in batches:
        sink.show(claim(1, 1), one)
    version = sink.seal(decision(2), batches[:1], None)

    taken = opened(root).take_back(claim(3, 2), version, ())
    again = opened(root).take_back(claim(4, 3), version, ())

    assert values(root, taken) == values(root, again) == values(root) == [1]


def test_what_a_cut_carries_is_shown_again_at_once(root: Path) -> None:
    """Its version is the one without: a rewind to that cut carries it once more."""
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2, 3)]
    for one in batches:
        sink.show(claim(1, 1), one)
    version = sink.seal(decision(2), batches[:1], None)

    second = opened(root)
    taken = second.take_back(claim(4, 2), version, batches[1:2])
    fresh = staged(second, 2, 3, 33)
    second.show(claim(4, 2), fresh)
    sealed = second.seal(decision(5), [batches[1], fresh], taken)

    assert values(root, taken) == [1]
    assert values(root, sealed) == values(root) == [1, 2, 33]


def test_a_predecessor_shows_nothing_once_the_table_was_rolled_back(
    root: Path, first: ShowingDeltaTable
) -> None:
    late = staged(first, 1, 4, 40)
    opened(root).take_back(claim(5, 2), None, ())

    with pytest.raises(Superseded):
        first.show(claim(1, 1), late)

    assert values(root) == []


@pytest.mark.parametrize("in_cut", [0, 1])
def test_a_predecessor_that_was_paused_in_mid_show_shows_nothing(root: Path, in_cut: int) -> None:
    """It has looked at the table, was paused before its write, and its successor came between.

    The successor took rows away, or nothing at all: its version is one that adds no file, and
    that Delta would put an append upon without asking.
    """
    versions: list[str] = []

    class Paused(ShowingDeltaTable):
        def _add_batch(self, table: DeltaTable, one: Committable) -> None:
            if one.batch == 2:
                version = versions[0] if in_cut else None
                opened(root).take_back(claim(5, 2), version, ())
            super()._add_batch(table, one)

    staging = LocalStaging(root, PIPELINE, SINK)
    sink = Paused(LocalStorage(root), staging, DeltaWriteMode(), SinkContext(None, PIPELINE, SINK))
    sink.take_back(claim(1, 1), None, ())
    first = staged(sink, 1, 1, 10)
    sink.show(claim(1, 1), first)
    versions.append(sink.seal(decision(2), [first], None))

    with pytest.raises(Superseded):
        sink.show(claim(1, 1), staged(sink, 1, 2, 20))

    assert values(root) == [10] * in_cut


def test_a_predecessor_in_the_same_process_shows_nothing(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    late = staged(sink, 1, 1, 10)
    sink.take_back(claim(2, 2), None, ())

    with pytest.raises(Superseded):
        sink.show(claim(1, 1), late)
    sink.show(claim(2, 2), staged(sink, 2, 1, 11))

    assert values(root) == [11]


def test_a_predecessor_seals_nothing_once_the_table_was_rolled_back(
    root: Path, first: ShowingDeltaTable
) -> None:
    late = staged(first, 1, 4, 40)
    opened(root).take_back(claim(5, 2), None, ())

    with pytest.raises(Superseded):
        first.seal(decision(2), [late], None)

    assert values(root) == []


def test_a_seal_whose_record_was_lost_is_found_after_a_rollback(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2)]
    for one in batches:
        sink.show(claim(1, 1), one)
    version = sink.seal(decision(2), batches[:1], None)
    second = opened(root)
    second.take_back(claim(3, 2), version, ())
    second.show(claim(3, 2), staged(second, 2, 2, 22))

    assert opened(root).seal(decision(2), batches[:1], None) == version


def test_a_claim_that_was_overtaken_rolls_nothing_back(root: Path) -> None:
    opened(root).take_back(claim(5, 2), None, ())

    with pytest.raises(Superseded):
        opened(root).take_back(claim(1, 1), None, ())


def test_a_rewind_fences_out_a_process_that_still_shows_batches(
    root: Path, first: ShowingDeltaTable
) -> None:
    late = staged(first, 1, 4, 40)
    opened(root).restore(decision(6), None)

    with pytest.raises(Superseded):
        first.show(claim(1, 1), late)

    assert values(root) == []


def test_nothing_is_shown_until_a_commit_has_made_the_table(tmp_path: Path) -> None:
    """A table that is not there has no version that could fence out a process."""
    root = tmp_path / "table"
    sink, late = opened(root), opened(root)
    late.take_back(claim(1, 1), None, ())
    assert sink.take_back(claim(2, 2), None, ()) == "none"
    batches = [staged(sink, 2, batch, batch) for batch in (1, 2)]
    for one in batches:
        sink.show(claim(2, 2), one)
    late.show(claim(1, 1), staged(late, 1, 1, 100))
    assert not (root / "_delta_log").exists()

    version = sink.seal(decision(3), batches[:1], "none")

    assert values(root, version) == values(root) == [1]
    sink.show(claim(2, 2), staged(sink, 2, 3, 3))
    assert values(root) == [1, 2, 3]
    with pytest.raises(Superseded):
        late.show(claim(1, 1), staged(late, 1, 2, 200))


def test_a_recovery_may_have_to_make_the_table(tmp_path: Path) -> None:
    """Its predecessor died after the first decision: what it holds is sealed, then taken over."""
    root = tmp_path / "table"
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    batches = [staged(sink, 1, batch, batch) for batch in (1, 2)]

    second = opened(root)
    version = second.seal(decision(2), batches[:1], None)
    taken = second.take_back(claim(3, 2), version, ())

    assert values(root, taken) == [1]
    assert second.look_back(None).rows_then == 0
    with pytest.raises(Superseded):
        sink.show(claim(1, 1), batches[1])


def test_what_others_wrote_before_is_left_there(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    write_deltalake(root, pa.table({"value": [7]}), mode="append")
    sink.show(claim(1, 1), staged(sink, 1, 1, 10))

    opened(root).take_back(claim(2, 2), None, ())

    assert values(root) == [7]


def test_what_others_wrote_since_is_never_taken_away(root: Path, first: ShowingDeltaTable) -> None:
    del first
    write_deltalake(root, pa.table({"value": [7]}), mode="append")

    with pytest.raises(SinkError, match=r"no checkpoint holds.*another writer.*--leave-sinks"):
        opened(root).take_back(claim(2, 2), None, ())

    assert values(root) == [7, 10, 11, 20, 21, 30, 31]


def test_what_others_wrote_while_nothing_was_shown_prevents_no_rollback(root: Path) -> None:
    sink = opened(root)
    taken = sink.take_back(claim(1, 1), None, ())
    write_deltalake(root, pa.table({"value": [7]}), mode="append")

    opened(root).take_back(claim(2, 2), taken, ())

    assert values(root) == [7]


def test_a_target_of_its_own_is_taken_over_as_it_is(root: Path, first: ShowingDeltaTable) -> None:
    """It was another pipeline's past, or this one's before it wrote elsewhere."""
    opened(root).take_over(claim(2, 2))

    assert values(root) == [10, 11, 20, 21, 30, 31]
    with pytest.raises(Superseded):
        first.show(claim(1, 1), staged(first, 1, 4, 40))


def test_a_batch_may_bring_a_column(root: Path, first: ShowingDeltaTable) -> None:
    first.show(claim(1, 1), staged(first, 1, 4, 40, words=["forty"]))

    rows = DeltaTable(root).to_pyarrow_table().to_pylist()
    assert {"value": 40, "word": "forty"} in rows
    assert {"value": 10, "word": None} in rows


def test_a_table_out_of_reach_shows_its_batches_later(root: Path) -> None:
    sink = opened(root)
    sink.take_back(claim(1, 1), None, ())
    one, two = staged(sink, 1, 1, 10), staged(sink, 1, 2, 20)
    hidden = root / one.blobs[-1].name
    aside = hidden.rename(hidden.with_suffix(".aside"))

    sink.show(claim(1, 1), one)
    before = values(root)
    aside.rename(hidden)
    sink.show(claim(1, 1), two)

    assert before == []
    assert values(root) == [10, 20]
