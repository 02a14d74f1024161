"""A directory of files as a sink: its manifests, processes that wake up late, rewinds."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)
from tests.descriptors import contents
from tests.unit.sinks.files_sink import (
    PIPELINE,
    SINK,
    ArrowRows,
    ids_in,
    open_sink,
    permit,
    stage_rows,
    visible_files,
)

from cutwater import sinks
from cutwater.errors import ConfigError, Corrupt, SinkError, Superseded
from cutwater.ids import BatchId, Generation, SinkId
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import KeepsPast, OpenSink, SinkContext
from cutwater.sinks.files.manifests import FileCommits
from cutwater.sinks.files.table import OpenFiles
from cutwater.sinks.files.target import reopen_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out [1]"


def manifest(root: Path, version: int) -> dict[str, Any]:
    text = (root / "_cutwater" / "commits" / f"{version:020d}.json").read_text()
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_manifest_names_every_file_of_its_commit(root: Path) -> None:
    sink = open_sink(root, partition_by=["kind"])
    assert sink.commit(permit(4), stage_rows(sink, 0, 1, 2, id="long", kind="long")) == "1"
    sink.commit(permit(5), stage_rows(sink, 1, 3, id="long", kind="long"))
    found = manifest(root, 1)
    assert (found["pipeline"], found["sink"]) == (PIPELINE, SINK)
    assert (found["slot"], found["checkpoint_id"], found["rows"]) == (4, 104, 2)
    assert (found["operation"], found["data_format"]) == ("append", "parquet")
    assert [field["name"] for field in found["schema"]["fields"]] == ["id", "kind"]
    named = [entry["path"] for version in (1, 2) for entry in manifest(root, version)["add"]]
    assert sorted(named) == [str(path.relative_to(root)) for path in visible_files(root)]
    assert {Path(entry).parent.name for entry in named} == {"kind=0", "kind=1"}
    for entry in found["add"]:
        assert (root / entry["path"]).stat().st_size == entry["size_bytes"]
    assert not list((root / "_cutwater" / PIPELINE).rglob("*.parquet"))


def test_files_in_sight_never_change_their_names_or_bytes(root: Path) -> None:
    sink = open_sink(root)
    seen: dict[Path, bytes] = {}
    for slot in range(1, 6):
        sink.commit(permit(slot), stage_rows(sink, slot, slot))
        for path in visible_files(root):
            assert path.read_bytes() == seen.setdefault(path, path.read_bytes())
    assert set(seen) == set(visible_files(root))


def test_a_commit_without_rows_makes_no_version(root: Path) -> None:
    sink = open_sink(root)
    assert sink.commit(permit(1), ()) == "0"
    assert sink.stage(ArrowRows(()), Generation(1), BatchId(9)) is None
    sink.commit(permit(2), stage_rows(sink, 0, 1))
    assert [sink.commit(permit(slot), ()) for slot in (3, 4)] == ["1", "1"]
    sink.commit(permit(6), stage_rows(sink, 1, 2))
    assert [open_sink(root).commit(permit(slot), ()) for slot in (1, 4, 7)] == ["0", "1", "2"]
    assert len(list((root / "_cutwater" / "commits").iterdir())) == 2


# -- processes that die or wake up late


class Died(BaseException):
    """Stands for SIGKILL in a test that looks at the directory afterwards."""


def die_at(monkeypatch: pytest.MonkeyPatch, owner: object, method: str, call: int) -> None:
    """Let the n-th call of a method be the last thing that happens."""
    plain: Callable[..., Any] = getattr(owner, method)
    calls: list[int] = []

    def crashing(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        calls.append(1)
        if len(calls) == call:
            raise Died
        return plain(*given, **named)

    monkeypatch.setattr(owner, method, crashing)


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_commit_that_died_between_two_moves_is_finished(
    root: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    sink = open_sink(root)
    waiting = stage_rows(sink, 0, 1, 2, 3)
    with monkeypatch.context() as patch:
        die_at(patch, Path, "rename", moves)
        with pytest.raises(Died):
            sink.commit(permit(1), waiting)
    assert ids_in(root) == list(range(1, moves))
    other = open_sink(root)
    assert other.problem(waiting[0]) is None
    assert other.commit(permit(1), waiting) == "1"
    assert ids_in(root) == [1, 2, 3]


def test_nothing_is_in_sight_before_the_manifest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(root)
    waiting = stage_rows(sink, 0, 1, 2)
    with monkeypatch.context() as patch:
        die_at(patch, os, "link", 1)
        with pytest.raises(Died):
            sink.commit(permit(1), waiting)
    assert visible_files(root) == []
    assert open_sink(root).commit(permit(1), waiting) == "1"
    assert ids_in(root) == [1, 2]


def test_a_sleeper_that_wakes_up_in_its_commit_brings_nothing_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has made its version and moved one of two files when it falls asleep. Meanwhile the
    pipeline is rewound, and the rows come again."""
    sleeper = open_sink(root)
    sleeper.commit(permit(1), stage_rows(sleeper, 0, 7))
    waiting = stage_rows(sleeper, 1, 1, 2)
    with monkeypatch.context() as patch:
        die_at(patch, Path, "rename", 2)
        with pytest.raises(Died):
            sleeper.commit(permit(2), waiting)
    asleep = FileCommits(root).read(2)
    awake = open_sink(root)
    awake.restore(permit(4), "1")
    assert ids_in(root) == [7]
    FileCommits(root).carry_out(asleep)
    assert ids_in(root) == [7]
    with pytest.raises(Superseded):
        sleeper.commit(permit(3), waiting)
    assert sleeper.commit(permit(2), waiting) == "2"
    assert ids_in(root) == [7]
    restore = FileCommits(root).read(3)
    forth = awake.restore(permit(6), "2")
    assert (forth, ids_in(root)) == ("4", [1, 2, 7])
    FileCommits(root).carry_out(restore)
    assert ids_in(root) == [1, 2, 7]
    awake.restore(permit(8), "1")
    FileCommits(root).carry_out(FileCommits(root).read(4))
    assert ids_in(root) == [7]


def test_a_restore_over_a_commit_that_died_takes_all_of_it_away(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(root)
    sink.commit(permit(1), stage_rows(sink, 0, 7))
    waiting = stage_rows(sink, 1, 1, 2)
    with monkeypatch.context() as patch:
        die_at(patch, Path, "rename", 1)
        with pytest.raises(Died):
            sink.commit(permit(2), waiting)
    open_sink(root).restore(permit(4), "1")
    assert ids_in(root) == [7]
    assert not list((root / "_cutwater" / PIPELINE).rglob("*.parquet"))


def test_rows_that_a_recovery_point_carries_can_be_committed_again_after_a_rewind(
    root: Path,
) -> None:
    """A cut with data in flight carries them, the next one commits them, and the pipeline is
    rewound to the first: then they are to be committed once more."""
    sink = open_sink(root)
    sink.commit(permit(1), stage_rows(sink, 0, 7))
    carried = stage_rows(sink, 1, 1, 2)
    sink.commit(permit(3), (*carried, *stage_rows(sink, 2, 3)))
    sink.restore(permit(5), "1")
    assert sink.problem(carried[0]) is None
    sink.discard(Generation(3), carried)
    assert sink.commit(permit(6), carried) == "4"
    assert ids_in(root) == [1, 2, 7]
    assert manifest(root, 4)["rows"] == 3
    # If a rewind without the sinks leaves them where they are, they come no second time.
    assert sink.commit(permit(8), (*carried, *stage_rows(sink, 3, 4))) == "5"
    assert ids_in(root) == [1, 2, 4, 7]
    assert manifest(root, 5)["rows"] == 4


def retain(sink: OpenSink, *keep: Committable, generation: int = 1) -> None:
    assert isinstance(sink, KeepsPast)
    sink.retain(Generation(generation), {None}, keep)


def staged_files(root: Path) -> list[str]:
    """The batches of which rows are staged."""
    found = (root / "_cutwater" / PIPELINE).rglob("*.parquet")
    return sorted("/".join(path.relative_to(root).parts[3:5]) for path in found)


def test_results_of_one_commit_stay_staged_while_a_recovery_point_carries_them(root: Path) -> None:
    """Only the last result of a commit comes in sight; those before it are in no other place."""
    sink = open_sink(root, write="overwrite")
    carried, last = stage_rows(sink, 1, 1), stage_rows(sink, 2, 2)
    sink.commit(permit(3), (*carried, *last))
    pending = stage_rows(sink, 3, 3)
    retain(sink, *carried)
    assert staged_files(root) == ["g000001/b000000000001", "g000001/b000000000003"]
    retain(sink)
    assert staged_files(root) == ["g000001/b000000000003"]
    assert "is missing" in str(sink.problem(carried[0]))
    assert sink.problem(pending[0]) is None


def test_what_an_earlier_generation_staged_goes_when_its_checkpoint_goes(root: Path) -> None:
    """Discarding happens once, at the start, and may keep rows that a checkpoint carries."""
    first = open_sink(root, write="overwrite")
    carried = stage_rows(first, 1, 1)
    first.commit(permit(3), (*carried, *stage_rows(first, 2, 2)))
    second = open_sink(root, write="overwrite")
    second.discard(Generation(2), carried)
    retain(second, *carried, generation=2)
    assert staged_files(root) == ["g000001/b000000000001"]
    retain(second, generation=2)
    assert staged_files(root) == []


def test_files_rolled_back_stay_while_a_checkpoint_carries_them_whatever_keep_past_says(
    root: Path,
) -> None:
    sink = open_sink(root, keep_past=0)
    sink.commit(permit(1), stage_rows(sink, 0, 7))
    carried = stage_rows(sink, 1, 1, 2)
    sink.commit(permit(3), (*carried, *stage_rows(sink, 2, 3)))
    sink.restore(permit(5), "1")
    sink.discard(Generation(3), carried)
    retain(sink, *carried, generation=3)
    assert sink.problem(carried[0]) is None
    assert len(list((root / "_cutwater" / "past").rglob("*.parquet"))) == 2
    sink.commit(permit(6), carried)
    assert ids_in(root) == [1, 2, 7]


def test_a_process_that_was_paused_leaves_alone_what_its_successor_took_away(root: Path) -> None:
    """A checkpoint of the successor may carry it; the paused process knows none of them."""
    paused = open_sink(root, write="overwrite", keep_past=0)
    old = stage_rows(paused, 1, 1)
    paused.commit(permit(2), old)
    successor = open_sink(root, write="overwrite", keep_past=0)
    carried = stage_rows(successor, 1, 2, generation=2)
    successor.commit(permit(4), carried)
    successor.commit(permit(5), stage_rows(successor, 2, 3, generation=2))
    retain(paused)
    assert successor.problem(carried[0]) is None
    assert "is missing" in str(successor.problem(old[0]))
    retain(successor, generation=2)
    assert "is missing" in str(successor.problem(carried[0]))


def test_a_result_that_is_in_sight_stays_there_when_it_is_committed_again(root: Path) -> None:
    """A rewind that leaves the sinks as they are commits what is carried a second time."""
    sink = open_sink(root, write="overwrite")
    carried = stage_rows(sink, 1, 1, 2)
    sink.commit(permit(3), carried)
    sink.commit(permit(6), carried)
    assert ids_in(root) == [1, 2]
    assert manifest(root, 2)["rows"] == 2
    assert sink.restore(permit(8), "1") == "3"
    assert ids_in(root) == [1, 2]


# -- versions


def test_a_manifest_in_a_hundred_lists_all_files(root: Path) -> None:
    sink = open_sink(root)
    for slot in range(1, 206):
        sink.commit(permit(slot), stage_rows(sink, slot, slot))
    whole = [number for number in range(1, 206) if "files" in manifest(root, number)]
    assert whole == [100, 200]
    commits = FileCommits(root)
    for version in (1, 99, 100, 101, 199, 200, 205):
        assert len(commits.live(version)) == version
    # Older manifests are not needed to know what is in sight.
    for version in range(1, 199):
        (root / "_cutwater" / "commits" / f"{version:020d}.json").unlink()
    again = open_sink(root)
    again.restore(permit(300), "203")
    assert ids_in(root) == list(range(1, 204))


def test_the_past_is_kept_for_so_many_versions(root: Path) -> None:
    sink = open_sink(root, write="overwrite", keep_past=2)
    for slot in range(1, 6):
        sink.commit(permit(slot), stage_rows(sink, slot, slot))
    retain(sink)
    assert ids_in(root) == [5]
    obstacles = [sink.look_back(str(version)).obstacle for version in range(1, 6)]
    assert [bool(obstacle) for obstacle in obstacles] == [True, True, False, False, False]
    assert "part-000000000001" in str(obstacles[0])
    with pytest.raises(SinkError, match="is gone from"):
        sink.restore(permit(7), "1")
    assert sink.restore(permit(8), "3") == "6"
    assert ids_in(root) == [3]
    preview = sink.look_back("4")
    assert (preview.version, preview.rows, preview.rows_then) == ("6", 1, 1)


def test_an_overwrite_without_rows_leaves_nothing_in_sight(root: Path) -> None:
    sink = open_sink(root, write="overwrite")
    sink.commit(permit(1), stage_rows(sink, 0, 1, 2))
    empty = stage_rows(sink, 1)
    assert empty[0].rows == 0
    assert sink.commit(permit(2), empty) == "2"
    assert ids_in(root) == []
    assert sink.commit(permit(3), ()) == "2"


# -- what is refused


def test_a_directory_belongs_to_one_sink(root: Path) -> None:
    mine, late = open_sink(root), open_sink(root, sink=SinkId("late"))
    mine.commit(permit(1), stage_rows(mine, 0, 1))
    with pytest.raises(ConfigError, match="belongs to sink out of pipeline"):
        open_sink(root, sink=SinkId("other"))
    with pytest.raises(SinkError, match="belongs to sink out of pipeline"):
        late.commit(permit(1), stage_rows(late, 0, 2))
    with pytest.raises(ConfigError, match="holds parquet files, not json"):
        sinks.files(str(root), "json").open(SinkContext(None, PIPELINE, SINK))
    assert ids_in(root) == [1]


def test_a_directory_with_other_files_is_refused(root: Path) -> None:
    root.mkdir()
    (root / "precious.csv").write_text("id\n1\n")
    with pytest.raises(ConfigError, match=r"holds precious.csv, which Cutwater has not"):
        open_sink(root)
    (root / "precious.csv").unlink()
    open_sink(root)
    root.joinpath("file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        open_sink(root / "file")


def test_columns_may_be_added_and_not_changed(root: Path) -> None:
    sink = open_sink(root)
    sink.commit(permit(1), stage_rows(sink, 0, 1))
    sink.commit(permit(2), stage_rows(sink, 1, 2, id="long", name="string"))
    sink.commit(permit(3), stage_rows(sink, 2, 3))
    assert [field["name"] for field in manifest(root, 3)["schema"]["fields"]] == ["id", "name"]
    with pytest.raises(SinkError, match="column name was string before and bigint in the new rows"):
        stage_rows(sink, 3, 4, id="long", name="long")
    with pytest.raises(SinkError, match="column ID was spelled id before"):
        stage_rows(open_sink(root), 3, 4, ID="long")
    with pytest.raises(ConfigError, match="no column day to partition by"):
        stage_rows(open_sink(root, partition_by=["day"]), 4, 5)


def test_a_staged_file_that_is_lost_stops_its_commit_and_no_other_rows_appear(root: Path) -> None:
    sink = open_sink(root)
    waiting = stage_rows(sink, 0, 1, 2)
    (root / waiting[0].blobs[1].name).unlink()
    assert "is missing" in str(sink.problem(waiting[0]))
    with pytest.raises(SinkError, match="gave up after"):
        sink.commit(permit(1), waiting)
    assert visible_files(root) == []
    assert not (root / "_cutwater" / "commits").exists()


def test_a_manifest_that_is_damaged_is_an_error_and_never_nothing(root: Path) -> None:
    sink = open_sink(root)
    sink.commit(permit(1), stage_rows(sink, 0, 1))
    path = root / "_cutwater" / "commits" / f"{1:020d}.json"
    for text in ("{", "[]", '{"cutwater": 2}', '{"cutwater": 1, "version": 1}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="cannot be written to"):
            open_sink(root)
        for act in (lambda: sink.look_back("1"), lambda: sink.commit(permit(1), ())):
            sink._commits._read.clear()  # type: ignore[attr-defined]
            with pytest.raises(SinkError):
                act()


def test_restoring_a_version_that_never_was_is_refused(root: Path) -> None:
    sink = open_sink(root)
    assert sink.restore(permit(1), None) == "1"
    assert "never was at 7" in str(sink.look_back("7").obstacle)
    with pytest.raises(SinkError, match="never was at version 7"):
        sink.restore(permit(2), "7")


# -- the target


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"path": "s3://bucket/rows"}, "path"),
        ({"path": "file://server/share"}, "path"),
        ({"path": ""}, "path"),
        ({"path": "t", "format": "orc"}, "format"),
        ({"path": "t", "write": "upsert"}, "write"),
        ({"path": "t", "partition_by": "day"}, "partition_by"),
        ({"path": "t", "partition_by": ["day", "Day"]}, "partition_by"),
        ({"path": "t", "keep_past": -1}, "keep_past"),
        ({"path": "t", "format": "csv", "options": {"compression": "zstd"}}, "options"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sinks.files(**given)
    assert caught.value.option == option


def test_a_store_remembers_all_that_a_directory_needs(root: Path) -> None:
    options = {"header": "false", "sep": "="}
    target = sinks.files(
        root.as_uri(), "csv", write="overwrite", partition_by=["k"], options=options, keep_past=3
    )
    assert target.accepts == {"complete"}
    stored = target.stored()
    assert (stored.format, stored.uri) == ("csv", str(root))
    with pytest.raises(SinkError, match="there is no directory"):
        reopen_files(stored, SinkContext(None, PIPELINE, SINK))
    root.mkdir()
    again = reopen_files(stored, SinkContext(None, PIPELINE, SINK))
    assert isinstance(again, OpenFiles)
    first = target.open(SinkContext(None, PIPELINE, SINK))
    assert isinstance(first, OpenFiles)
    assert again._form == first._form
    assert again._keep_past == 3


@pytest.mark.parametrize(
    ("kind", "cannot"),
    [
        (YearMonthIntervalType(), []),
        (VariantType(), ["csv"]),
        (NullType(), ["csv"]),
        (ArrayType(StringType()), ["csv"]),
        (GeometryType(4326), ["json", "csv"]),
        (MapType(StringType(), StructType().add("x", GeographyType(4326))), ["json", "csv"]),
    ],
    ids=lambda one: one.simpleString() if isinstance(one, DataType) else "",
)
def test_types_that_a_format_does_not_have_are_known_beforehand(
    root: Path, kind: DataType, cannot: list[str]
) -> None:
    rows = StructType().add("id", "long").add("odd", kind)
    said = {
        text: sinks.files(str(root), text).check_rows(SINK, rows)
        for text in ("parquet", "json", "csv")
    }

    assert [text for text in said if said[text] is not None] == cannot
    for one in cannot:
        reason = f"column odd has the type {kind.simpleString()}, which {one} files cannot hold"
        assert said[one] == f"{reason}; cast it or leave it out"


# -- paths that a manifest names


@pytest.mark.parametrize("part", ["path", "source"])
@pytest.mark.parametrize("where", ["../outside/1", "a/../../outside", "/tmp/outside", "", "."])
def test_a_manifest_that_names_a_place_outside_its_directory_is_refused(
    tmp_path: Path, part: str, where: str
) -> None:
    root, outside = tmp_path / "table", tmp_path / "outside"
    outside.mkdir()
    (outside / "1").write_text("not the sink's")
    sink = open_sink(root)
    sink.commit(permit(1), stage_rows(sink, 0, 1))
    manifest = root / "_cutwater" / "commits" / f"{1:020d}.json"
    written = json.loads(manifest.read_text())
    written["add"][0][part] = where
    manifest.write_text(json.dumps(written))
    seen = contents(tmp_path)

    with pytest.raises(Corrupt, match=re.escape(str(manifest))):
        FileCommits(root).read(1)
    with pytest.raises(ConfigError, match=re.escape(str(manifest))):
        open_sink(root)
    assert contents(tmp_path) == seen


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_a_staged_file_outside_the_directory_is_damaged(tmp_path: Path, name: str) -> None:
    sink = open_sink(tmp_path / "table")
    (found,) = stage_rows(sink, 0, 1)
    far = replace(found, blobs=(found.blobs[0], replace(found.blobs[1], name=name)))

    assert "outside" in (sink.problem(far) or "")
    with pytest.raises(SinkError, match="outside"):
        sink.commit(permit(1), (far,))
