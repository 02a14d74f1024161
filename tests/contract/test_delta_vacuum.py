"""VACUUM with a retention of zero, by another program, while a commit is under way.

It deletes every file of the table's directory that no version names, and so also those that the
commit is about to name.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable
from tests.contract.bucket_table import bucket_at, names_in, rows_in
from tests.contract.delta_rows import TYPES, ArrowRows, read_with_duckdb
from tests.servers.s3 import S3Server

from cutwater import sinks
from cutwater.errors import SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant, grant_shows
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import KeepsPast, OpenSink, SinkContext
from cutwater.sinks.delta import merge as delta_changes
from cutwater.sinks.delta.data_files import DataFile
from cutwater.sinks.delta.early_batches import ShowingDeltaTable
from cutwater.sinks.delta.storage_s3 import BucketStorage
from cutwater.store.backends.location import Location

CONTEXT = SinkContext(None, PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10"), SinkId("totals"))
WAYS: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write": "upsert", "keys": ["k", "n"]},
    "overwrite": {"write": "overwrite"},
    "joined": {},
}


@pytest.fixture(params=["disk", "bucket"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "table")
    server: S3Server = request.getfixturevalue("s3")
    name = re.sub(r"\W+", "-", request.node.name)
    return server.url(f"vacuumed/{name}")


def permit(slot: int) -> CommitPermit:
    return grant(CONTEXT.pipeline, Slot(slot), CheckpointId(slot + 100))


def staged(sink: OpenSink, batch: int, *rows: tuple[str, int, int]) -> Committable:
    given = [{"k": k, "n": n, "v": v} for k, n, v in rows]
    found = sink.stage(ArrowRows(given, ("k", "n", "v")), Generation(1), BatchId(batch))
    assert found is not None
    return found


def delta_table(uri: str) -> DeltaTable:
    if not uri.startswith("s3:"):
        return DeltaTable(uri)
    root = BucketStorage(Location.of(uri))
    return DeltaTable(root.address, storage_options=root.options)


def shown(uri: str) -> list[tuple[Any, ...]]:
    if not uri.startswith("s3:"):
        return [row[:3] for row in read_with_duckdb(Path(uri))]
    rows = rows_in(bucket_at(uri))
    return sorted(tuple(row[name] for name in TYPES if name != "x") for row in rows)


def hidden(uri: str) -> list[str]:
    """Return the staged files with rows that are still there."""
    if uri.startswith("s3:"):
        names = names_in(bucket_at(uri))
    else:
        files = (path for path in Path(uri).rglob("*") if path.is_file())
        names = [file.relative_to(uri).as_posix() for file in files]
    return [name for name in names if name.startswith("_cutwater/") and name.endswith(".parquet")]


def collect(sink: OpenSink) -> None:
    """Let the sink delete what no kept checkpoint carries, as retention does."""
    assert isinstance(sink, KeepsPast)
    sink.retain(Generation(1), [], [])


def vacuum(uri: str, *, logged: bool = False) -> None:
    """Delete all that no version names, as Spark's VACUUM RETAIN 0 HOURS does.

    delta-rs writes two versions for it; Spark writes none where its `vacuum.logging` is off.
    """
    found = delta_table(uri).vacuum(
        retention_hours=0, dry_run=not logged, enforce_retention_duration=False, full=True
    )
    for name in () if logged else found:
        if uri.startswith("s3:"):
            obstore.delete(bucket_at(uri), name)
        else:
            (Path(uri) / name).unlink()


def before(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, act: Callable[[], None]
) -> list[str]:
    """Let something happen just before the first call of a method; say later whether it did."""
    original = getattr(owner, method)
    happened: list[str] = []

    def call(*given: object, **named: object) -> object:
        if not happened:
            happened.append(method)
            act()
        return original(*given, **named)

    monkeypatch.setattr(owner, method, call)
    return happened


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("logged", [True, False], ids=["logged", "silent"])
def test_rows_outlive_a_vacuum_between_settling_and_the_commit(
    uri: str, way: str, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.delta(uri, **WAYS[way]).open(CONTEXT)
    first = [("a", number, 1) for number in range(4)]
    sink.commit(permit(1), [staged(sink, 0, *first)])
    second = [("a", 1, 2), ("b", 1, 2)]
    waiting = staged(sink, 1, *second)
    if way == "joined":
        monkeypatch.setattr(delta_changes, "JOINED_MIN", 2)
    # A logged one is noticed by the commit itself. A silent one comes after the last look at files.
    owner, method = (DataFile, "addition") if logged else (DeltaTable, "create_write_transaction")
    happened = before(monkeypatch, owner, method, lambda: vacuum(uri, logged=logged))

    assert sink.commit(permit(2), [waiting]) == ("4" if logged else "2")

    assert happened == [method]
    left = {"overwrite": [], "upsert": [row for row in first if row[1] != 1]}.get(way, first)
    assert shown(uri) == sorted([*left, *second])
    assert delta_table(uri).to_pyarrow_table().num_rows == len(left) + 2
    collect(sink)
    assert hidden(uri) == []


def test_rows_that_are_shown_early_outlive_a_vacuum(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.delta(uri, visibility="batch").open(CONTEXT)
    assert isinstance(sink, ShowingDeltaTable)
    sink.take_back(grant_shows(CONTEXT.pipeline, Slot(1), Generation(1)), None, [])
    sink.seal(permit(1), [staged(sink, 0, ("a", 1, 1))], None)
    before(monkeypatch, DeltaTable, "create_write_transaction", lambda: vacuum(uri))

    second = staged(sink, 1, ("b", 1, 1))
    sink.show(grant_shows(CONTEXT.pipeline, Slot(1), Generation(1)), second)

    assert shown(uri) == [("a", 1, 1), ("b", 1, 1)]
    sink.seal(permit(2), [second], None)
    collect(sink)
    assert hidden(uri) == []
    assert shown(uri) == [("a", 1, 1), ("b", 1, 1)]


def test_a_commit_whose_process_died_before_it_looked_is_looked_at_again(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.delta(uri).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    waiting = staged(sink, 1, ("b", 1, 1))
    original = DeltaTable.create_write_transaction

    def commit_and_die(*given: Any, **named: Any) -> None:  # noqa: ANN401
        vacuum(uri)
        original(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(DeltaTable, "create_write_transaction", commit_and_die)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(permit(2), [waiting])

    again = sinks.delta(uri).open(CONTEXT)
    assert again.problem(waiting) is None
    assert again.commit(permit(2), [waiting]) == "2"
    assert shown(uri) == [("a", 1, 1), ("b", 1, 1)]


def test_a_file_that_nothing_can_bring_back_is_named(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.delta(uri, **WAYS["upsert"]).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, *[("a", number, 1) for number in range(4)])])
    waiting = staged(sink, 1, ("a", 1, 2))
    original = DeltaTable.create_write_transaction

    def vacuum_twice(*given: Any, **named: Any) -> None:  # noqa: ANN401
        vacuum(uri)
        original(*given, **named)
        vacuum(uri)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(DeltaTable, "create_write_transaction", vacuum_twice)
        with pytest.raises(SinkError, match=r"version 2 names part-\w+\.parquet.*VACUUM") as caught:
            sink.commit(permit(2), [waiting])

    assert "retention" in caught.value.reason
    assert hidden(uri) != []


def test_a_commit_is_repeated_long_after_its_files_were_replaced_and_vacuumed(uri: str) -> None:
    sink = sinks.delta(uri, **WAYS["overwrite"]).open(CONTEXT)
    first, second = staged(sink, 0, ("a", 1, 1)), staged(sink, 1, ("b", 1, 1))
    assert [sink.commit(permit(1), [first]), sink.commit(permit(2), [second])] == ["1", "2"]
    vacuum(uri)

    assert [sink.commit(permit(1), [first]), sink.commit(permit(2), [second])] == ["1", "2"]


@pytest.mark.parametrize("tried_before", [False, True])
def test_a_file_that_waited_for_weeks_is_new_to_a_vacuum_with_a_retention(
    tmp_path: Path, tried_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    table = tmp_path / "table"
    sink = sinks.delta(str(table)).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    waiting = staged(sink, 1, ("b", 1, 1))
    with monkeypatch.context() as dying:
        dying.setattr(DeltaTable, "create_write_transaction", die)
        with pytest.raises(KeyboardInterrupt) if tried_before else nullcontext():
            sink.commit(permit(2), [waiting] if tried_before else [])
    file = table / waiting.blobs[-1].name
    weeks_ago_s = file.stat().st_mtime - 30 * 86_400
    os.utime(file, (weeks_ago_s, weeks_ago_s))

    sink.commit(permit(2), [waiting])

    settled = [
        path for path in table.glob("*.parquet") if path.stat().st_mtime < weeks_ago_s + 86_400
    ]
    assert settled == []


def test_a_file_system_without_hard_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    table = str(tmp_path / "table")
    sink = sinks.delta(table).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    waiting = staged(sink, 1, ("b", 1, 1))
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    before(monkeypatch, DeltaTable, "create_write_transaction", lambda: vacuum(table))

    assert sink.commit(permit(2), [waiting]) == "2"

    assert shown(table) == [("a", 1, 1), ("b", 1, 1)]
    collect(sink)
    assert hidden(table) == []
