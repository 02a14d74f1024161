"""A Delta table that is upserted or overwritten: what comes of it, and what is refused.

Committing needs no Spark: rows are written by pyarrow as Spark would, and read by DuckDB.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.contract.delta_rows import ArrowRows, actions_of, changes_of, read_with_duckdb

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.delta.merge import JOINED_MIN
from cutwater.sinks.delta.merge_keys import Bounds
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.sinks.delta.target import DeltaTarget, reopen_delta

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("totals")
CONTEXT = SinkContext(None, PIPELINE, SINK)

Key = tuple[str | None, int | None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "totals"


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


def upserting(table: Path, **options: Any) -> DeltaTarget:  # noqa: ANN401
    return sinks.delta(str(table), write="upsert", keys=["k", "n"], **options)


def overwriting(table: Path, **options: Any) -> DeltaTarget:  # noqa: ANN401
    return sinks.delta(str(table), write="overwrite", **options)


def staged(
    sink: OpenSink, batch: int, *rows: tuple[str | None, int | None, int], wide: str = ""
) -> Committable:
    given = [{"k": k, "n": n, "v": v, "x": wide} for k, n, v in rows]
    columns = ("k", "n", "v", "x") if wide else ("k", "n", "v")
    found = sink.stage(ArrowRows(given, columns), Generation(1), BatchId(batch))
    assert found is not None
    return found


def shown(table: Path) -> list[tuple[Any, ...]]:
    return [row[:3] for row in read_with_duckdb(table)]


# -- upsert


def test_a_row_replaces_those_with_its_key_and_leaves_all_others(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 10), ("a", 2, 20), ("b", 1, 30))])

    sink.commit(permit(2), [staged(sink, 1, ("a", 2, 21), ("c", 1, 40))])

    assert shown(table) == [("a", 1, 10), ("a", 2, 21), ("b", 1, 30), ("c", 1, 40)]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 4


def test_of_several_batches_of_one_commit_the_last_row_of_a_key_wins(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    batches = [staged(sink, number, ("a", 1, number), ("b", number, number)) for number in range(3)]

    assert sink.commit(permit(1), batches) == "1"

    assert shown(table) == [("a", 1, 2), ("b", 0, 0), ("b", 1, 1), ("b", 2, 2)]
    assert len(changes_of(table)) == 2


def test_nulls_are_one_key_as_in_a_group_by(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, (None, None, 1), ("", 0, 2), (None, 0, 3))])

    sink.commit(permit(2), [staged(sink, 1, (None, None, 4)), staged(sink, 2, (None, 0, 5))])

    assert shown(table) == [("", 0, 2), (None, 0, 5), (None, None, 4)]


def test_a_batch_with_a_key_twice_is_refused_before_it_is_staged(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)

    with pytest.raises(SinkError, match=r"2 rows with the key k=None, n=7, and none is the later"):
        staged(sink, 0, ("a", 1, 1), (None, 7, 2), (None, 7, 3))

    assert not [path for path in table.rglob("*") if path.is_file()]
    assert sink.commit(permit(1), [staged(sink, 0, (None, 7, 3))]) == "1"


def test_only_files_with_a_key_that_comes_again_are_exchanged(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    for number in range(4):
        rows = [("a", 10 * number + two, 0) for two in range(2)]
        sink.commit(permit(number + 1), [staged(sink, number, *rows)])

    sink.commit(permit(5), [staged(sink, 4, ("a", 20, 1))])

    # Both rows of a batch are in files of their own: one goes and nothing of it is left.
    assert changes_of(table)[-1] == (1, 1)
    assert ("a", 20, 1) in shown(table)
    assert len(shown(table)) == 8


def test_a_row_may_move_to_another_partition(table: Path) -> None:
    sink = upserting(table, partition_by=["v"]).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 10), ("b", 1, 10))])

    sink.commit(permit(2), [staged(sink, 1, ("a", 1, 11))])

    assert [(k, n, int(v)) for k, n, v in shown(table)] == [("a", 1, 11), ("b", 1, 10)]


def test_columns_are_added_by_an_upsert_and_rows_are_replaced_whole(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1), ("b", 1, 1))])
    sink.commit(permit(2), [staged(sink, 1, ("a", 1, 2), wide="new")])
    assert read_with_duckdb(table) == [("a", 1, 2, "new"), ("b", 1, 1, None)]

    sink.commit(permit(3), [staged(sink, 2, ("a", 1, 3))])

    assert read_with_duckdb(table) == [("a", 1, 3, None), ("b", 1, 1, None)]


def test_rows_of_others_with_the_key_are_replaced_too(table: Path) -> None:
    there = pa.table({"k": ["a", "a", "z"], "n": [1, 1, 1], "v": [7, 8, 9]})
    write_deltalake(str(table), there)
    sink = upserting(table).open(CONTEXT)

    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])

    assert shown(table) == [("a", 1, 1), ("z", 1, 9)]


def _append(table: Path) -> None:
    write_deltalake(str(table), pa.table({"k": ["a"], "n": [1], "v": [70]}), mode="append")


def _compact(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


@pytest.mark.parametrize("meanwhile", [_append, _compact])
@pytest.mark.parametrize("write", ["upsert", "overwrite"])
def test_a_commit_is_computed_again_after_a_concurrent_write(
    table: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Path], None], write: str
) -> None:
    sink = (upserting(table) if write == "upsert" else overwriting(table)).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 10), ("b", 1, 20))])
    later = staged(sink, 1, ("a", 1, 11))
    plain = OpenDeltaTable._write
    came: list[Path] = []

    def slow(self: OpenDeltaTable, *given: Any) -> None:  # noqa: ANN401
        if not came:
            came.append(table)
            meanwhile(table)
        plain(self, *given)

    monkeypatch.setattr(OpenDeltaTable, "_write", slow)
    version = sink.commit(permit(2), [later])

    assert came
    assert int(version) == len(changes_of(table)) - 1 == 3
    kept = [("b", 1, 20)] if write == "upsert" else []
    assert shown(table) == [("a", 1, 11), *kept]


def _named_by_another_writer(table: Path, directory: str, logged: str) -> None:
    """Add a file under a name that the log encodes as it pleases."""
    write_deltalake(
        str(table), pa.table({"k": ["z"], "n": [1], "v": [9]}), mode="append", partition_by=["k"]
    )
    file = table / directory / "part.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"n": [1], "v": [7]}), file)
    add = {
        "path": f"{logged}/part.parquet",
        "partitionValues": {"k": "ü b"},
        "size": file.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    version = len(changes_of(table))
    (table / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"add": add}))


def test_a_file_is_taken_away_under_the_name_that_the_log_has_for_it(table: Path) -> None:
    _named_by_another_writer(table, "k=ü b", "k=%C3%BC%20b")
    sink = upserting(table, partition_by=["k"]).open(CONTEXT)

    sink.commit(permit(1), [staged(sink, 0, ("ü b", 1, 1))])

    assert shown(table) == [("z", 1, 9), ("ü b", 1, 1)]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 2


def test_a_file_that_deltalake_would_leave_there_is_refused(table: Path) -> None:
    """deltalake encodes the name in its own way, and would take away a file that is not there."""
    sink = upserting(table, partition_by=["k"]).open(CONTEXT)
    waiting = staged(sink, 0, ("ü b", 1, 1))
    _named_by_another_writer(table, "k=ü b", "k=ü b")

    with pytest.raises(ConfigError, match=r"names k=ü b/part\.parquet in a way that deltalake"):
        upserting(table, partition_by=["k"]).open(CONTEXT)
    with pytest.raises(SinkError, match=r"names k=ü b/part\.parquet in a way that deltalake"):
        sink.commit(permit(1), [waiting])
    assert len(changes_of(table)) == 2


def test_a_restore_that_would_leave_a_file_there_is_refused(table: Path) -> None:
    sink = sinks.delta(str(table), partition_by=["k"]).open(CONTEXT)
    version = sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    _named_by_another_writer(table, "k=ü b", "k=ü b")
    for file in sorted((table / "_delta_log").glob("*.json"))[2:]:
        # As if it had only moved rows.
        file.write_text(file.read_text().replace('"dataChange": true', '"dataChange": false'))
        file.write_text(file.read_text().replace('"dataChange":true', '"dataChange":false'))

    with pytest.raises(SinkError, match=r"names k=ü b/part\.parquet in a way that deltalake"):
        sink.restore(permit(2), version)

    assert len(changes_of(table)) == 4


# -- overwrite


def test_the_table_holds_exactly_the_last_result(table: Path) -> None:
    sink = overwriting(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1), ("b", 1, 1))])
    _append(table)

    results = [staged(sink, number, ("a", 1, number), ("c", number, number)) for number in (1, 2)]
    sink.commit(permit(2), results)

    assert shown(table) == [("a", 1, 2), ("c", 2, 2)]


def test_a_result_without_rows_empties_the_table(table: Path) -> None:
    sink = overwriting(table).open(CONTEXT)
    assert sink.commit(permit(1), [staged(sink, 0)]) == "1"
    sink.commit(permit(2), [staged(sink, 1, ("a", 1, 1))])

    sink.commit(permit(3), [staged(sink, 2)])
    sink.commit(permit(4), ())

    assert shown(table) == []
    assert len(changes_of(table)) == 4


# -- slots, and going back


@pytest.mark.parametrize("target", [upserting, overwriting])
def test_a_commit_that_is_repeated_changes_nothing(
    table: Path, target: Callable[[Path], DeltaTarget]
) -> None:
    sink = target(table).open(CONTEXT)
    first, second = staged(sink, 0, ("a", 1, 1)), staged(sink, 1, ("a", 1, 2))
    assert sink.commit(permit(1), [first]) == "1"
    assert sink.commit(permit(3), [second]) == "2"

    # Also by a sink that was reopened from the store's record.
    for one in (sink, reopen_delta(target(table).stored(), CONTEXT)):
        assert one.commit(permit(1), [first]) == "1"
        assert one.commit(permit(3), [second]) == "2"
        with pytest.raises(Superseded):
            one.commit(permit(2), [first])

    assert shown(table) == [("a", 1, 2)]
    info = [action["commitInfo"] for action in list(actions_of(table))[2] if "commitInfo" in action]
    assert [entry["cutwater.checkpoint"] for entry in info] == ["103"]
    assert DeltaTable(str(table)).history(1)[0]["cutwater.checkpoint"] == "103"


@pytest.mark.parametrize("target", [upserting, overwriting])
def test_a_table_is_restored_to_what_it_showed_at_a_version(
    table: Path, target: Callable[[Path], DeltaTarget]
) -> None:
    sink = target(table).open(CONTEXT)
    versions, states = [], []
    for number in range(3):
        rows = [("a", 1, number), ("b", number, number)]
        versions.append(sink.commit(permit(number + 1), [staged(sink, number, *rows)]))
        states.append(shown(table))
    _compact(table)

    for slot, chosen in ((4, 0), (5, 2), (6, 1)):
        reopened = reopen_delta(target(table).stored(), CONTEXT)
        preview = reopened.look_back(versions[chosen])
        assert (preview.obstacle, preview.rows_then) == (None, len(states[chosen]))
        reopened.restore(permit(slot), versions[chosen])
        assert shown(table) == states[chosen]
    sink.commit(permit(7), [staged(sink, 9, ("a", 1, 99))])
    expected = {row[:2]: row for row in [*states[1], ("a", 1, 99)]}
    assert shown(table) == ([("a", 1, 99)] if target is overwriting else sorted(expected.values()))
    _append(table)
    assert "written by another writer" in str(sink.look_back(versions[0]).obstacle)


def test_what_a_recovery_point_carries_can_be_committed_again_after_a_rewind(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    visible = sink.commit(permit(1), [staged(sink, 0, ("a", 1, 0), ("b", 1, 0))])
    carried = [staged(sink, number, ("a", 1, number)) for number in range(1, JOINED_MIN + 2)]
    sink.commit(permit(3), carried)
    sink.restore(permit(4), visible)

    later = upserting(table).open(CONTEXT)
    later.discard(Generation(2), carried)
    assert [later.problem(committable) for committable in carried] == [None] * len(carried)
    later.commit(permit(5), carried[:2])

    assert shown(table) == [("a", 1, 2), ("b", 1, 0)]


# -- small files


def test_many_small_files_of_one_commit_become_one(table: Path) -> None:
    sink = sinks.delta(str(table)).open(CONTEXT)
    few = [staged(sink, number, ("a", number, number)) for number in range(JOINED_MIN - 1)]
    many = [staged(sink, 100 + number, ("b", number, number)) for number in range(JOINED_MIN)]
    wide = [
        staged(sink, 200 + number, ("c", number, number), wide="x") for number in range(JOINED_MIN)
    ]

    sink.commit(permit(1), few)
    sink.commit(permit(2), many)
    more = [staged(sink, 300 + number, ("d", number, number)) for number in range(JOINED_MIN - 1)]
    sink.commit(permit(3), [*more, *wide])
    before = sorted(table.glob("*.parquet"))
    sink.commit(permit(3), [*more, *wide])

    # The last but one adds the column; files without it are joined with those that have it.
    added = [files for files, _ in changes_of(table)]
    assert added == [0, JOINED_MIN - 1, 1, 0, 1]
    assert sorted(table.glob("*.parquet")) == before
    assert len(shown(table)) == len([*few, *many, *more, *wide])
    stats = DeltaTable(str(table)).get_add_actions(flatten=True)
    assert sum(pa.table(stats)["num_records"].to_pylist()) == len(shown(table))


def test_small_files_are_joined_within_their_partition(table: Path) -> None:
    sink = upserting(table, partition_by=["k"]).open(CONTEXT)
    batches = [
        staged(sink, number, (None, number, number), ("a/b", 0, number))
        for number in range(JOINED_MIN)
    ]

    sink.commit(permit(1), batches)

    assert changes_of(table)[-1] == (2, 0)
    expected = [
        ("a/b", 0, JOINED_MIN - 1),
        *((None, number, number) for number in range(JOINED_MIN)),
    ]
    assert sorted(shown(table), key=repr) == sorted(expected, key=repr)


# -- looking for keys


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (Bounds(1, 5, has_null=False), Bounds(6, 9, has_null=False), False),
        (Bounds(1, 5, has_null=False), Bounds(5, 9, has_null=False), True),
        (Bounds("a", "c", has_null=True), Bounds("d", "e", has_null=False), False),
        (Bounds("a", "c", has_null=True), Bounds("d", "e", has_null=True), True),
        (Bounds(None, None, has_null=False), Bounds(6, 9, has_null=False), True),
        (Bounds("1", "5", has_null=False), Bounds(6, 9, has_null=False), True),
    ],
)
def test_files_are_left_alone_only_if_no_key_can_be_in_them(
    one: Bounds, other: Bounds, meets: bool
) -> None:
    assert (one.may_meet(other), other.may_meet(one)) == (meets, meets)


def test_a_damaged_file_of_the_table_is_an_error_of_the_sink(table: Path) -> None:
    sink = upserting(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    (file,) = table.glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 8) + b"PAR1")

    with pytest.raises(SinkError, match="gave up after"):
        sink.commit(permit(2), [staged(sink, 1, ("a", 1, 2))])

    assert len(changes_of(table)) == 2


# -- refused


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"write": "upsert"}, "keys"),
        ({"write": "upsert", "keys": "id"}, "keys"),
        ({"write": "upsert", "keys": ["id", "ID"]}, "keys"),
        ({"keys": ["id"]}, "keys"),
        ({"write": "overwrite", "keys": ["id"]}, "keys"),
        ({"write": "merge"}, "write"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sinks.delta("t", **options)
    assert caught.value.option == option


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_from_which_nothing_may_be_taken_can_only_be_appended_to(
    table: Path, setting: str
) -> None:
    there = pa.table({"k": ["a"], "n": [1], "v": [7]})
    write_deltalake(str(table), there, configuration={setting: "true"})

    with pytest.raises(ConfigError, match=rf"write='upsert': {setting} is true"):
        upserting(table).open(CONTEXT)
    with pytest.raises(ConfigError, match=rf"write='overwrite': {setting} is true"):
        overwriting(table).open(CONTEXT)
    sink = sinks.delta(str(table)).open(CONTEXT)
    assert sink.commit(permit(1), [staged(sink, 0, ("b", 1, 1))]) == "1"


def test_keys_that_the_table_or_the_rows_do_not_have_are_refused(table: Path) -> None:
    target = sinks.delta(str(table), write="upsert", keys=["k", "id"])
    with pytest.raises(ConfigError, match="keys names id, and the columns are k, n, v"):
        staged(target.open(CONTEXT), 0, ("a", 1, 1))
    write_deltalake(str(table), pa.table({"k": ["a"], "n": [1]}))
    with pytest.raises(ConfigError, match="it has no column id, which keys names"):
        target.open(CONTEXT)
