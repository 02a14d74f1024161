"""Targets that lost a recorded commit are refused before anything is committed on top (F43).

A Delta table loses versions as by a restored backup; a database is replaced by an older copy of
itself. What is legal must go on: other writers, a cleaned log, another target, an accepted loss.
"""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.contract.test_postgres_commit import ORDERS, PIPELINE, TOTALS, Shop, numbers, permit
from tests.servers.postgres import PostgresServer
from tests.unit.operations.prepared_pipeline import (
    NAME,
    SINKS,
    SOURCE,
    PreparedPipeline,
    below,
    prepare_pipeline,
    stage_parquet,
)

import cutwater
from cutwater.errors import TargetBehind
from cutwater.ids import CheckpointId, SinkId, Slot
from cutwater.protocol.commit import CommitSink
from cutwater.protocol.cut import NO_TARGET, Committable
from cutwater.protocol.lost_commit import last_writes
from cutwater.sinks.base import SinkContext
from cutwater.sinks.commit import commit_sinks
from cutwater.sinks.postgres.table import OpenPostgresTable
from cutwater.sinks.registry import reopen
from cutwater.store.paths import PipelinePaths

LEFT, RIGHT = SINKS


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedPipeline:
    return prepare_pipeline(tmp_path)


def versions_of(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def lose_newest(table: Path) -> None:
    """Take a table back by its newest version, as a backup that is one version old does."""
    versions_of(table)[-1].unlink()


def write_as_another_program(table: Path, value: int) -> None:
    write_deltalake(table, pa.table({"value": pa.array([value], pa.int64())}), mode="append")


def decide_sixth(prepared: PreparedPipeline) -> None:
    """Decide one more checkpoint, as a run does right before it looks at the targets."""
    store = prepared.opened()
    head = store.log.read().head
    assert head is not None
    before = store.manifests.read(head.checkpoint_id)
    sinks = {
        sink: prepared.target(sink).open(SinkContext(None, store.pipeline, sink)) for sink in SINKS
    }
    cut = replace(
        before,
        checkpoint_id=CheckpointId(6),
        commit={
            sink: (stage_parquet(prepared, store, one, sink, 6),) for sink, one in sinks.items()
        },
        visible=store.commits.read(head.slot).versions,
        last_writes=last_writes(head.slot, before),
    )
    sha256 = store.manifests.publish(cut)
    store.log.create(
        replace(
            head,
            slot=Slot(head.slot + 1),
            nonce="prepared 6",
            checkpoint_id=cut.checkpoint_id,
            manifest_sha256=sha256,
        )
    )


# -- Delta tables


def test_a_start_refuses_a_table_that_lost_its_last_commit(prepared: PreparedPipeline) -> None:
    lose_newest(prepared.table(LEFT))

    with pytest.raises(TargetBehind) as refused:
        prepared.recover()

    error = refused.value
    assert (error.sink, error.retryable) == (LEFT, False)
    assert error.found == "version 3, which holds commits up to slot 4"
    assert error.recorded == "version 4 with the commit of slot 6"
    assert "That was checkpoint 5" in error.message
    assert f"`cutwater rewind {NAME} --to 4`" in error.message


def test_the_rewind_that_is_offered_makes_the_tables_whole(prepared: PreparedPipeline) -> None:
    lose_newest(prepared.table(LEFT))
    with pytest.raises(TargetBehind) as refused:
        prepared.recover()
    offered = re.search(r"rewind orders --to (\d+)`", refused.value.message)
    assert offered is not None

    done = cutwater.rewind(NAME, to=offered[1], store=prepared.store, yes=True)
    restored = prepared.recover()

    assert prepared.shown() == below(30)
    assert {sink.sink: (sink.rows, sink.rows_then) for sink in done.sinks} == {
        LEFT: (30, 30),
        RIGHT: (50, 30),
    }
    assert restored.cut is not None
    assert [committable.rows for committable in restored.cut.carried[LEFT]] == [10]


def test_a_loss_found_by_a_commit_can_be_accepted_as_the_error_says(
    prepared: PreparedPipeline,
) -> None:
    decide_sixth(prepared)
    lose_newest(prepared.table(LEFT))
    with pytest.raises(TargetBehind) as refused:
        prepared.recover()
    offered = re.search(r"rewind orders --to (\d+) --leave-sinks`", refused.value.message)
    assert offered is not None

    cutwater.rewind(NAME, to=offered[1], store=prepared.store, yes=True, leave_sinks=True)
    restored = prepared.recover()

    assert prepared.shown() == [list(range(30)), list(range(50))]
    assert restored.cut is not None
    assert restored.cut.snapshots[SOURCE].batch == 4


def test_a_version_of_another_program_does_not_hide_that_ours_is_gone(
    prepared: PreparedPipeline,
) -> None:
    lose_newest(prepared.table(LEFT))
    write_as_another_program(prepared.table(LEFT), -1)
    write_as_another_program(prepared.table(LEFT), -2)

    with pytest.raises(TargetBehind, match=r"sink left.*version 5, which holds commits up to slot"):
        prepared.recover()


def test_a_table_that_is_gone_or_was_made_anew_is_refused(prepared: PreparedPipeline) -> None:
    shutil.rmtree(prepared.table(RIGHT))
    with pytest.raises(TargetBehind, match=r"sink right.*holds no commit of this sink"):
        prepared.recover()

    for value in range(3):
        write_as_another_program(prepared.table(RIGHT), value)
    preview = cutwater.rewind(NAME, to="2", store=prepared.store)
    assert "version 2, which holds no commit of this sink" in " ".join(preview.refused)
    for value in range(6):
        write_as_another_program(prepared.table(RIGHT), value)
    with pytest.raises(TargetBehind, match="version 8, which holds no commit of this sink"):
        prepared.recover()


def test_a_table_that_is_taken_back_under_an_open_sink_is_noticed(
    prepared: PreparedPipeline,
) -> None:
    store = prepared.opened()
    sink = reopen(prepared.target(LEFT).stored(), store.pipeline, LEFT)
    assert sink.newest().slot == 6  # type: ignore[attr-defined]

    lose_newest(prepared.table(LEFT))
    assert sink.newest().slot == 4  # type: ignore[attr-defined]
    shutil.rmtree(prepared.table(LEFT) / "_delta_log")
    assert sink.newest().version == NO_TARGET  # type: ignore[attr-defined]


def test_what_is_legal_is_not_taken_for_a_loss(prepared: PreparedPipeline) -> None:
    left, right = prepared.table(LEFT), prepared.table(RIGHT)
    write_as_another_program(left, -1)
    # Versions from before the newest checkpoint of the log are cleaned up in time.
    DeltaTable(right).create_checkpoint()
    for old in versions_of(right)[:-1]:
        old.unlink()

    restored = prepared.recover()

    assert restored.standing.last_writes == {LEFT: 6, RIGHT: 6}
    assert prepared.shown() == [[-1, *range(50)], list(range(50))]


def test_a_commit_that_was_not_recorded_is_repeated_whether_the_table_has_it_or_not(
    prepared: PreparedPipeline,
) -> None:
    lose_newest(prepared.table(LEFT))
    store = prepared.opened()
    store.backend.delete(PipelinePaths(store.pipeline).committed(Slot(6)))

    prepared.recover()

    assert prepared.shown() == below(50)


@pytest.mark.usefixtures("prepared")
def test_a_sink_with_another_target_than_it_wrote_to_is_not_asked_for_the_old_commits(
    tmp_path: Path,
) -> None:
    @dataclass(frozen=True)
    class Moved(PreparedPipeline):
        def table(self, sink: SinkId) -> Path:
            return tmp_path / "new" if sink == LEFT else super().table(sink)

    assert Moved(tmp_path).recover().standing.last_writes == {RIGHT: 6}


def test_a_rewind_that_leaves_the_sinks_accepts_what_they_show(prepared: PreparedPipeline) -> None:
    lose_newest(prepared.table(LEFT))

    cutwater.rewind(NAME, to="5", store=prepared.store, yes=True, leave_sinks=True)
    restored = prepared.recover()

    assert restored.standing.last_writes == {}
    assert prepared.shown() == [list(range(30)), list(range(50))]


def test_after_a_rewind_the_rewind_itself_must_be_in_the_tables(prepared: PreparedPipeline) -> None:
    cutwater.rewind(NAME, to="2", store=prepared.store, yes=True)
    assert prepared.recover().standing.last_writes == {LEFT: 8, RIGHT: 8}

    lose_newest(prepared.table(RIGHT))

    with pytest.raises(TargetBehind, match=r"sink right.*`cutwater rewind orders --to 5`"):
        prepared.recover()


def test_a_table_that_shows_batches_is_refused_by_its_version(tmp_path: Path) -> None:
    prepared = prepare_pipeline(tmp_path, "batch")
    whole = prepared.recover()
    table = prepared.table(LEFT)
    while int(versions_of(table)[-1].stem) >= int(whole.standing.visible[LEFT] or 0) - 3:
        lose_newest(table)

    with pytest.raises(TargetBehind, match="sink left"):
        prepared.recover()


def test_a_table_that_showed_batches_and_does_so_no_longer_is_no_loss(tmp_path: Path) -> None:
    prepare_pipeline(tmp_path, "batch")

    PreparedPipeline(tmp_path).recover()

    assert PreparedPipeline(tmp_path).shown() == below(50)


def test_a_table_that_shows_batches_from_now_on_is_no_loss(
    prepared: PreparedPipeline, tmp_path: Path
) -> None:
    PreparedPipeline(tmp_path, "batch").recover()

    assert prepared.shown() == below(50)


# -- PostgreSQL


@pytest.fixture
def shop(postgres: PostgresServer, request: pytest.FixtureRequest) -> Shop:
    return Shop(postgres.make_database(request.node.name))


def copied(shop: Shop, name: str) -> None:
    """Make a copy of a database on its server, or put one in its place."""
    database = shop.database
    database.server.query(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database.name}'"
    )
    database.server.query(f'CREATE DATABASE "{name}" TEMPLATE "{database.name}"')


def brought_back(shop: Shop, name: str) -> None:
    database, server = shop.database, shop.database.server
    server.query(f'DROP DATABASE "{database.name}" WITH (FORCE)')
    server.query(f'ALTER DATABASE "{name}" RENAME TO "{database.name}"')


def commit(
    sink: OpenPostgresTable, slot: int, staged: tuple[Committable, ...], last: int | None
) -> None:
    command = CommitSink(
        permit(slot),
        sink.sink,
        staged,
        shown=None if last is None else str(last),
        last_write=None if last is None else Slot(last),
    )
    commit_sinks({sink.sink: sink}, [command])


def test_a_database_that_was_taken_back_is_refused_in_the_transaction_itself(shop: Shop) -> None:
    sink = shop.open()
    commit(sink, 3, shop.stage(sink, 0, *numbers(1)), None)
    copied(shop, "one_commit_old")
    sink = shop.open()
    commit(sink, 4, shop.stage(sink, 1, *numbers(2)), 3)
    commit(sink, 5, (), 4)
    brought_back(shop, "one_commit_old")
    staged = shop.stage(sink, 2, *numbers(3))

    with pytest.raises(TargetBehind) as refused:
        commit(sink, 6, staged, 4)

    assert refused.value.found == "version 3, which holds commits up to slot 3"
    assert refused.value.recorded == "version 4 with the commit of slot 4"
    assert shop.orders == [1]
    commit(sink, 6, staged, 3)
    commit(sink, 6, staged, 3)
    assert shop.orders == [1, 3]


@pytest.mark.parametrize("name", [ORDERS, TOTALS])
def test_a_table_that_was_dropped_is_not_made_again_without_its_rows(
    shop: Shop, name: SinkId
) -> None:
    sink = shop.open(name)
    rows = [(1, 10)] if name == ORDERS else [("ada", 10)]
    commit(sink, 3, shop.stage(sink, 0, *rows), None)
    shop.database.query(f"DROP TABLE {name}")
    staged = shop.stage(sink, 1, *rows)

    with pytest.raises(TargetBehind, match="holds no commit of this sink"):
        commit(sink, 4, staged, 3)
    columns = "id bigint, amount bigint"
    if name == TOTALS:
        columns = "customer text PRIMARY KEY, total bigint"
    shop.database.query(f"CREATE TABLE {name} ({columns})")
    with pytest.raises(TargetBehind, match="holds no commit of this sink"):
        commit(sink, 4, staged, 3)
    assert shop.database.numbers(f"SELECT count(*) FROM {name}") == [0]

    assert "has been recreated" in str(sink.look_back("3").obstacle)
    assert sink.look_back(None).obstacle is None
    sink.restore(permit(5), None)
    commit(sink, 6, staged, 5)
    assert shop.database.numbers(f"SELECT count(*) FROM {name}") == [1]


def test_rows_that_others_deleted_and_tables_that_were_altered_are_no_loss(shop: Shop) -> None:
    sink = shop.open()
    commit(sink, 3, shop.stage(sink, 0, *numbers(1, 2)), None)
    shop.database.query("TRUNCATE orders; ALTER TABLE orders ALTER amount TYPE numeric")

    commit(sink, 4, shop.stage(sink, 1, *numbers(3)), 3)

    assert shop.orders == [3]


def test_a_database_that_was_copied_elsewhere_still_knows_its_slots(shop: Shop) -> None:
    sink = shop.open()
    commit(sink, 3, shop.stage(sink, 0, *numbers(1)), None)
    copied(shop, "moved")
    brought_back(shop, "moved")
    sink = shop.open()

    commit(sink, 4, shop.stage(sink, 1, *numbers(2)), 3)

    assert shop.orders == [1, 2]


def test_records_of_an_older_version_get_the_column_that_they_lack(shop: Shop) -> None:
    sink = shop.open()
    commit(sink, 3, shop.stage(sink, 0, *numbers(1)), None)
    shop.database.query("ALTER TABLE _cutwater.sinks DROP COLUMN relation")
    sink = shop.open()
    commit(sink, 4, shop.stage(sink, 1, *numbers(2)), 3)
    shop.database.query("DROP TABLE orders")

    with pytest.raises(TargetBehind):
        commit(sink, 5, (), 4)


def test_records_that_another_role_owns_work_without_the_column(shop: Shop) -> None:
    sink = shop.open()
    commit(sink, 3, shop.stage(sink, 0, *numbers(1)), None)
    database, role = shop.database, "writer_of_older_records"
    database.query(
        f"ALTER TABLE _cutwater.sinks DROP COLUMN relation; CREATE ROLE {role} LOGIN PASSWORD 'x'; "
        f"GRANT ALL ON SCHEMA _cutwater, public TO {role}; "
        f"GRANT ALL ON ALL TABLES IN SCHEMA _cutwater, public TO {role}"
    )
    dsn = re.sub(r"//.*@", f"//{role}:x@", database.dsn)
    target = cutwater.sinks.postgres(dsn, table="orders")
    other = target.open(SinkContext(None, PIPELINE, ORDERS))
    assert isinstance(other, OpenPostgresTable)

    commit(other, 4, (), 3)

    assert other.newest().slot == 4
