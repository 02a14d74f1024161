"""What a function has been handed, and what of it was taken back: the notes in its directory."""

import io
import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sinks.files_sink import PIPELINE, SINK, permit

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, Generation, Slot
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import SinkContext
from cutwater.sinks.console import OpenConsole, _read_first_rows
from cutwater.sinks.foreach_batch import CommitInfo, OpenForeachBatch
from cutwater.sinks.registry import reopen

CONTEXT = SinkContext(None, PIPELINE, SINK)


@pytest.fixture
def taken() -> list[tuple[int, int | None]]:
    return []


@pytest.fixture
def opened(tmp_path: Path, taken: list[tuple[int, int | None]]) -> OpenForeachBatch:
    """Rows were handed over at the slots 1, 2 and 3, one batch each."""

    def take_back(told: CommitInfo, slot: Slot | None) -> None:
        taken.append((told.slot, slot))

    target = sinks.foreach_batch(lambda *_: None, staging=str(tmp_path), take_back=take_back)
    found = target.open(CONTEXT)
    assert isinstance(found, OpenForeachBatch)
    for slot in (1, 2, 3):
        found._note(Slot(slot), "commit", [[1, slot]])
    return found


def test_a_rewind_passes_the_last_slot_that_stays_to_the_function(
    opened: OpenForeachBatch, taken: list[tuple[int, int | None]]
) -> None:
    assert opened.look_back("1").obstacle is None
    assert opened.restore(permit(5), "1") == "5"
    assert opened.restore(permit(5), "1") == "5"
    assert taken == [(5, 1)]
    assert opened.look_back("2").obstacle == "the rows of slot 2 were taken back since then"
    opened._note(Slot(6), "commit", [[2, 1]])
    # The version of the rewind itself, and a commit without rows after it, show slot 1 alone.
    assert opened.restore(permit(8), "5") == "8"
    assert opened.restore(permit(9), None) == "9"
    assert taken == [(5, 1), (8, 1), (9, None)]
    assert opened.restore(permit(10), "9") == "10"
    assert len(taken) == 3


def test_a_rewind_without_rows_to_take_back_needs_no_function(
    opened: OpenForeachBatch, tmp_path: Path
) -> None:
    stored = sinks.foreach_batch(lambda *_: None, staging=str(tmp_path)).stored()
    from_store = reopen(stored, PIPELINE, SINK)
    assert from_store.look_back("3").obstacle is None
    assert from_store.look_back("7").version == "3"
    assert from_store.restore(permit(8), "4") == "8"
    assert "run FILE --from" in str(from_store.look_back("2").obstacle)
    with pytest.raises(SinkError, match="rows were handed to a function"):
        from_store.restore(permit(9), "2")
    waiting = Committable(SINK, Generation(1), BatchId(9), 1, ())
    with pytest.raises(SinkError, match="only the pipeline's own file"):
        from_store.commit(permit(9), (waiting,))
    with pytest.raises(Superseded):
        opened.commit(permit(7), (waiting,))
    assert opened.commit(permit(9), ()) == "9"


def test_rows_that_were_handed_over_and_are_gone_are_a_problem(opened: OpenForeachBatch) -> None:
    """A rewind to a recovery point that carries them would call the function with nothing."""
    schema = BlobRef(f"_cutwater/{PIPELINE}/{SINK}/g000001/schema-0.json", 2, "0" * 64)
    handed_over = Committable(SINK, Generation(1), BatchId(2), 1, (schema,))
    assert opened.problem(handed_over) == f"{schema.name} is missing"


def test_a_rewind_past_the_oldest_note_is_refused_and_takes_nothing_back(
    opened: OpenForeachBatch,
    taken: list[tuple[int, int | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the notes the function would be asked to take everything back."""
    module = import_module("cutwater.sinks.foreach_batch")
    monkeypatch.setattr(module, "_NOTES", 3)
    opened._note(Slot(4), "commit", [[1, 4]])
    reason = "it remembers no further back than slot 2 which rows were handed over"
    for version in ("1", None):
        assert opened.look_back(version).obstacle == reason
        with pytest.raises(SinkError, match="no further back than slot 2"):
            opened.restore(permit(9), version)
    assert taken == []
    assert opened.look_back("2").obstacle is None
    assert opened.restore(permit(9), "3") == "9"
    assert taken == [(9, 3)]
    opened._note(Slot(10), "commit", [[2, 1]])
    # Slot 3 is forgotten by now, and the rewind went back to it.
    assert "no further back than slot 4" in str(opened.look_back("9").obstacle)
    assert opened.restore(permit(11), "10") == "11"


def test_options_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        sinks.foreach_batch(7, staging=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="file systems only"):
        sinks.foreach_batch(print, staging="s3://bucket/staging")
    with pytest.raises(ConfigError, match="less than none"):
        sinks.console(rows=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        sinks.foreach_batch(lambda *_: None, staging=str(tmp_path / "file")).open(CONTEXT)


def test_a_console_prints_a_commit_once_and_counts_what_it_did_not_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = sinks.console(rows=2).open(CONTEXT)
    assert isinstance(sink, OpenConsole)
    sink._waiting[Generation(1), BatchId(1)] = (("id", "name"), [("1", "a"), ("22", "b")])
    staged = [Committable(SINK, Generation(1), BatchId(number), 3, ()) for number in (0, 1)]
    assert sink.commit(permit(4), staged) == "4"
    assert sink.commit(permit(4), staged) == "4"
    assert capsys.readouterr().out.splitlines() == [
        "-- out, checkpoint 104: 6 rows",
        "   id | name",
        "   1  | a",
        "   22 | b",
        "   and 1 more",
        "   3 of them were staged by an earlier process, which may have printed them: not shown",
    ]
    assert sink.commit(permit(5), ()) == "5"
    assert sink.look_back("4").obstacle is None
    assert reopen(sinks.console().stored(), PIPELINE, SINK).restore(permit(6), "4") == "6"
    assert capsys.readouterr().out == ""


def test_a_console_writes_out_control_characters_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a\x1b[2J\n\x9b1m"
    pq.write_table(pa.table({evil: [evil]}), tmp_path / "1.parquet")
    sink = sinks.console().open(CONTEXT)
    assert isinstance(sink, OpenConsole)
    count, sink._waiting[Generation(1), BatchId(1)] = _read_first_rows(tmp_path, 20)

    sink.commit(permit(4), [Committable(SINK, Generation(1), BatchId(1), count, ())])

    assert capsys.readouterr().out.splitlines()[1:] == ["   a\\x1b[2J\\n\\x9b1m"] * 2


def test_a_console_without_a_reader_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sinks.console().open(CONTEXT)
    staged = [Committable(SINK, Generation(1), BatchId(0), 3, ())]
    reader, writer = os.pipe()
    os.close(reader)

    # Unbuffered, so that nothing is left to write when it is closed.
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        version = sink.commit(permit(4), staged)
        monkeypatch.undo()

    assert version == "4"


def test_a_console_shows_timestamps_beyond_the_range_of_nanoseconds(tmp_path: Path) -> None:
    at = pa.array([datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    file = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"at": at}), file, use_deprecated_int96_timestamps=True)

    assert _read_first_rows(tmp_path, 1) == (1, (("at",), [("9999-12-31 23:59:59",)]))
